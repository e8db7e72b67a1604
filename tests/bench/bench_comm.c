/* Prints what the CPU collectives cost: bench_comm [RANKS [ROUNDS]]. */
#include <stdio.h>

#include "base/mem.h"
#include "base/text.h"
#include "kernels/comm/bench.h"

/* One row of SmolLM2-135M, a few rows, a chunk of 128 and of 512. */
static const size_t counts[] = {1, 576, 4 * 576, 16 * 576, 128 * 576, 512 * 576};
#define N_COUNTS (sizeof(counts) / sizeof(counts[0]))

static void print_rows(const struct comm_bench_row *rows, const struct comm_bench_floor *floor)
{
	printf("cache line there and back %.3f µs; copy of %zu floats from the other core %.3f µs\n\n", floor->round_trip_us,
		floor->copy_count, floor->copy_us);
	printf("%-12s %9s %10s %10s %12s\n", "backend", "floats", "µs", "worst µs", "of oracle");
	for (size_t row = 0; row < comm_cpu_backends_count * N_COUNTS; row++)
		printf("%-12s %9zu %10.2f %10.2f %11.3f×\n", rows[row].ops->name, rows[row].count, rows[row].us, rows[row].us_worst,
			rows[row].us / rows[row % N_COUNTS].us);
}

int main(int argc, char **argv)
{
	long long world = 2, rounds = 15;
	struct err err = {0};
	struct comm_bench_floor floor;
	if ((argc > 1 && !text_to_i64(argv[1], &world)) || (argc > 2 && !text_to_i64(argv[2], &rounds)) || argc > 3) {
		fprintf(stderr, "usage: bench_comm [RANKS [ROUNDS]]\n");
		return status_exit_code(STATUS_INPUT);
	}
	struct comm_bench_row *rows = mem_calloc(comm_cpu_backends_count * N_COUNTS, sizeof(*rows));
	enum status status = comm_bench_measure_floor(576, &floor, &err);
	if (status == STATUS_OK)
		status = comm_bench((int)world, counts, N_COUNTS, (int)rounds, rows, &err);
	if (status == STATUS_OK)
		print_rows(rows, &floor);
	else
		fprintf(stderr, "bench_comm: %s\n", err.text);
	mem_free(rows);
	return status_exit_code(status);
}
