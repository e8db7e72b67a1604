/* Prints what the CPU collectives cost: bench_comm [RANKS [ROUNDS]]. */
#include <stdio.h>

#include "base/mem.h"
#include "base/text.h"
#include "kernels/comm/bench.h"

/* One row of SmolLM2-135M, a few rows, a chunk of 128 and of 512. */
static const size_t counts[] = {1, 576, 4 * 576, 16 * 576, 128 * 576, 512 * 576};
#define N_COUNTS (sizeof(counts) / sizeof(counts[0]))

/* The floor of a size is one cache line there and back plus one copy of what the other core has written. */
static void print_rows(const struct comm_bench_row *rows, const struct comm_bench_floor *floors)
{
	printf("%-12s %9s %10s %10s %11s %11s\n", "backend", "floats", "µs", "worst µs", "of oracle", "of floor");
	for (size_t row = 0; row < comm_cpu_backends_count * N_COUNTS; row++) {
		const struct comm_bench_floor *floor = &floors[row % N_COUNTS];
		printf("%-12s %9zu %10.2f %10.2f %10.3f× %10.2f×\n", rows[row].ops->name, rows[row].count, rows[row].us,
			rows[row].us_worst, rows[row].us / rows[row % N_COUNTS].us,
			rows[row].us / (floor->round_trip_us + floor->copy_us));
	}
	for (size_t i = 0; i < N_COUNTS; i++)
		printf("%-12s %9zu %10.2f\n", "floor", floors[i].copy_count, floors[i].round_trip_us + floors[i].copy_us);
}

int main(int argc, char **argv)
{
	long long world = 2, rounds = 15;
	struct err err = {0};
	struct comm_bench_floor floors[N_COUNTS];
	if ((argc > 1 && !text_to_i64(argv[1], &world)) || (argc > 2 && !text_to_i64(argv[2], &rounds)) || argc > 3) {
		fprintf(stderr, "usage: bench_comm [RANKS [ROUNDS]]\n");
		return status_exit_code(STATUS_INPUT);
	}
	struct comm_bench_row *rows = mem_calloc(comm_cpu_backends_count * N_COUNTS, sizeof(*rows));
	enum status status = STATUS_OK;
	for (size_t i = 0; i < N_COUNTS && status == STATUS_OK; i++)
		status = comm_bench_measure_floor(counts[i], &floors[i], &err);
	if (status == STATUS_OK)
		status = comm_bench((int)world, counts, N_COUNTS, (int)rounds, rows, &err);
	if (status == STATUS_OK)
		print_rows(rows, floors);
	else
		fprintf(stderr, "bench_comm: %s\n", err.text);
	mem_free(rows);
	return status_exit_code(status);
}
