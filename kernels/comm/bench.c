/* Threads as ranks, each with every backend open, timing calls in turns. */
#include "kernels/comm/bench.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"
#include "base/wait_word.h"

#define TIMEOUT_NS 10000000000LL
#define WINDOW_US 2000.0 /* calls per window are chosen for about this long: a scheduler tick or two */
#define WARM_UP_CALLS 5
#define ROUNDS_MAX 101
#define BACKENDS_MAX 8
#define REGION_ALIGN 128

struct bench {
	int world, rounds;
	const size_t *counts;
	size_t n_counts, count_max;
	void *shared[BACKENDS_MAX];
	int sockets[COMM_RANKS_MAX][COMM_RANKS_MAX];
	double *us; /* [world][n_rows][rounds] */
	struct err err;
	_Atomic uint32_t abort;
};

struct bench_rank {
	struct bench *bench;
	int rank;
	struct comm *comms[BACKENDS_MAX];
	float *data;
};

static double *us_of(const struct bench *bench, int rank, size_t row)
{
	size_t n_rows = comm_cpu_backends_count * bench->n_counts;
	return bench->us + ((size_t)rank * n_rows + row) * (size_t)bench->rounds;
}

static enum status open_all(struct bench_rank *rank, struct err *err)
{
	struct bench *bench = rank->bench;
	rank->data = mem_calloc(bench->count_max, sizeof(float));
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++) {
		const struct comm_options options = {
			.rank = rank->rank,
			.world = bench->world,
			.count_max = bench->count_max,
			.shared = bench->shared[backend],
			.sockets = bench->sockets[rank->rank],
			.abort = &bench->abort,
			.timeout_ns = TIMEOUT_NS,
			.spins = wait_default_spins(bench->world),
		};
		enum status status = comm_cpu_backends[backend]->create(&options, &rank->comms[backend], err);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

static enum status call(struct bench_rank *rank, size_t backend, size_t count, int calls, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; i < calls && status == STATUS_OK; i++)
		status = comm_cpu_backends[backend]->allreduce(rank->comms[backend], rank->data, count, err);
	return status;
}

/* Rank 0 times the warm-up, and the sum of its number and zeros tells all ranks how many calls make a window. */
static enum status choose_calls(struct bench_rank *rank, size_t backend, size_t count, int *calls, struct err *err)
{
	int64_t start_ns = clock_monotonic_ns();
	enum status status = call(rank, backend, count, WARM_UP_CALLS, err);
	double us = (double)(clock_monotonic_ns() - start_ns) / 1e3 / WARM_UP_CALLS;
	double wanted = WINDOW_US / (us > 0 ? us : 1);
	float agreed = rank->rank == 0 ? (float)(int)(wanted < 1 ? 1 : wanted > 2000 ? 2000 : wanted) : 0.0f;
	if (status == STATUS_OK)
		status = comm_cpu_backends[backend]->allreduce(rank->comms[backend], &agreed, 1, err);
	*calls = (int)agreed;
	return status;
}

static enum status run_row(struct bench_rank *rank, size_t backend, size_t i, int round, struct err *err)
{
	const struct bench *bench = rank->bench;
	int calls = 0;
	enum status status = choose_calls(rank, backend, bench->counts[i], &calls, err);
	int64_t start_ns = clock_monotonic_ns();
	if (status == STATUS_OK)
		status = call(rank, backend, bench->counts[i], calls, err);
	if (status == STATUS_OK)
		us_of(bench, rank->rank, backend * bench->n_counts + i)[round] =
			(double)(clock_monotonic_ns() - start_ns) / 1e3 / calls;
	return status;
}

static void *run_rank(void *argument)
{
	struct bench_rank *rank = argument;
	struct bench *bench = rank->bench;
	struct err err = {0};
	enum status status = open_all(rank, &err);
	for (int round = 0; round < bench->rounds && status == STATUS_OK; round++) {
		for (size_t i = 0; i < bench->n_counts && status == STATUS_OK; i++) {
			for (size_t backend = 0; backend < comm_cpu_backends_count && status == STATUS_OK; backend++)
				status = run_row(rank, backend, i, round, &err);
		}
	}
	if (status != STATUS_OK && atomic_exchange(&bench->abort, 1) == 0)
		bench->err = err;
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++)
		comm_cpu_backends[backend]->destroy(rank->comms[backend]);
	mem_free(rank->data);
	return NULL;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void summarise(const struct bench *bench, struct comm_bench_row *rows)
{
	for (size_t row = 0; row < comm_cpu_backends_count * bench->n_counts; row++) {
		double slowest[ROUNDS_MAX] = {0};
		for (int round = 0; round < bench->rounds; round++) {
			for (int rank = 0; rank < bench->world; rank++) {
				double us = us_of(bench, rank, row)[round];
				slowest[round] = us > slowest[round] ? us : slowest[round];
			}
		}
		qsort(slowest, (size_t)bench->rounds, sizeof(*slowest), compare_doubles);
		rows[row] = (struct comm_bench_row){
			.ops = comm_cpu_backends[row / bench->n_counts],
			.count = bench->counts[row % bench->n_counts],
			.us = slowest[bench->rounds / 2],
			.us_worst = slowest[bench->rounds - 1],
		};
	}
}

static enum status prepare(struct bench *bench, struct err *err)
{
	memset(bench->sockets, -1, sizeof(bench->sockets));
	for (int peer = 1; peer < bench->world; peer++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
			return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot make sockets for %d ranks", bench->world);
		bench->sockets[0][peer] = pair[0];
		bench->sockets[peer][0] = pair[1];
	}
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++) {
		size_t bytes = comm_cpu_backends[backend]->shared_bytes(bench->world, bench->count_max);
		if (bytes > 0)
			bench->shared[backend] = mem_calloc_aligned(REGION_ALIGN, bytes, 1);
	}
	bench->us = mem_calloc(
		(size_t)bench->world * comm_cpu_backends_count * bench->n_counts * (size_t)bench->rounds, sizeof(double));
	return STATUS_OK;
}

static void release(struct bench *bench)
{
	for (int peer = 1; peer < bench->world; peer++) {
		if (bench->sockets[0][peer] >= 0) {
			close(bench->sockets[0][peer]);
			close(bench->sockets[peer][0]);
		}
	}
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++)
		mem_free(bench->shared[backend]);
	mem_free(bench->us);
}

static enum status run_threads(struct bench *bench, struct err *err)
{
	pthread_t threads[COMM_RANKS_MAX];
	struct bench_rank ranks[COMM_RANKS_MAX];
	int started = 0, errnum = 0;
	for (int rank = 0; rank < bench->world; rank++)
		ranks[rank] = (struct bench_rank){.bench = bench, .rank = rank};
	for (; started < bench->world && errnum == 0; started += errnum == 0)
		errnum = pthread_create(&threads[started], NULL, run_rank, &ranks[started]);
	if (errnum != 0)
		atomic_store(&bench->abort, 1);
	for (int rank = 0; rank < started; rank++)
		pthread_join(threads[rank], NULL);
	if (errnum != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start %d threads", bench->world);
	return bench->err.status == STATUS_OK ? STATUS_OK : err_set(err, bench->err.status, "%s", bench->err.text);
}

enum status comm_bench(int world, const size_t *counts, size_t n_counts, int rounds, struct comm_bench_row *rows, struct err *err)
{
	struct bench bench = {.world = world, .counts = counts, .n_counts = n_counts, .rounds = rounds};
	ASSERT(comm_cpu_backends_count <= BACKENDS_MAX);
	if (world < 1 || world > COMM_RANKS_MAX || rounds < 1 || rounds > ROUNDS_MAX || n_counts < 1)
		return err_set(err, STATUS_INPUT, "collectives are timed with 1 to %d ranks and 1 to %d rounds", COMM_RANKS_MAX,
			ROUNDS_MAX);
	for (size_t i = 0; i < n_counts; i++)
		bench.count_max = counts[i] > bench.count_max ? counts[i] : bench.count_max;
	enum status status = prepare(&bench, err);
	if (status == STATUS_OK)
		status = run_threads(&bench, err);
	if (status == STATUS_OK)
		summarise(&bench, rows);
	release(&bench);
	return status;
}

/* ---- the floor ---- */

#define BOUNCE_ROUNDS 21u
#define BOUNCES_PER_ROUND 500u
#define BOUNCES (BOUNCE_ROUNDS * BOUNCES_PER_ROUND)
#define COPIES 101u
#define SPINS 100000

/* Two threads take turns on one word: odd values belong to the partner, even ones to the caller. */
struct table {
	_Alignas(REGION_ALIGN) struct wait_word turn;
	int64_t deadline_ns;
	size_t count;
	float *written, *copied;
};

static bool await_turn(struct table *table, uint32_t turn)
{
	return wait_word_while_equal(&table->turn, turn - 1, SPINS, NULL, table->deadline_ns);
}

static void *partner(void *argument)
{
	struct table *table = argument;
	for (uint32_t bounce = 0; bounce < BOUNCES; bounce++) {
		if (!await_turn(table, 2 * bounce + 1))
			return NULL;
		wait_word_set(&table->turn, 2 * bounce + 2);
	}
	for (uint32_t copy = 0; copy < COPIES; copy++) {
		if (!await_turn(table, 2 * (BOUNCES + copy) + 1))
			return NULL;
		for (size_t i = 0; i < table->count; i++)
			table->written[i] = (float)copy;
		wait_word_set(&table->turn, 2 * (BOUNCES + copy) + 2);
	}
	return NULL;
}

static bool take_turns(struct table *table, struct comm_bench_floor *out)
{
	double bounce_us[BOUNCE_ROUNDS], copy_us[COPIES];
	for (uint32_t round = 0; round < BOUNCE_ROUNDS; round++) {
		int64_t start_ns = clock_monotonic_ns();
		for (uint32_t bounce = round * BOUNCES_PER_ROUND; bounce < (round + 1) * BOUNCES_PER_ROUND; bounce++) {
			wait_word_set(&table->turn, 2 * bounce + 1);
			if (!await_turn(table, 2 * bounce + 2))
				return false;
		}
		bounce_us[round] = (double)(clock_monotonic_ns() - start_ns) / 1e3 / BOUNCES_PER_ROUND;
	}
	qsort(bounce_us, BOUNCE_ROUNDS, sizeof(*bounce_us), compare_doubles);
	out->round_trip_us = bounce_us[BOUNCE_ROUNDS / 2];
	for (uint32_t copy = 0; copy < COPIES; copy++) {
		wait_word_set(&table->turn, 2 * (BOUNCES + copy) + 1);
		if (!await_turn(table, 2 * (BOUNCES + copy) + 2))
			return false;
		int64_t start_ns = clock_monotonic_ns();
		memcpy(table->copied, table->written, table->count * sizeof(float));
		copy_us[copy] = (double)(clock_monotonic_ns() - start_ns) / 1e3;
	}
	qsort(copy_us, COPIES, sizeof(*copy_us), compare_doubles);
	out->copy_us = copy_us[COPIES / 2];
	out->copy_count = table->count;
	return true;
}

enum status comm_bench_measure_floor(size_t copy_count, struct comm_bench_floor *out, struct err *err)
{
	pthread_t thread;
	struct table *table = mem_calloc_aligned(REGION_ALIGN, 1, sizeof(*table));
	table->count = copy_count;
	table->deadline_ns = clock_monotonic_ns() + TIMEOUT_NS;
	table->written = mem_calloc_aligned(REGION_ALIGN, copy_count, sizeof(float));
	table->copied = mem_calloc_aligned(REGION_ALIGN, copy_count, sizeof(float));
	enum status status = STATUS_OK;
	int errnum = pthread_create(&thread, NULL, partner, table);
	if (errnum != 0) {
		status = err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start a thread");
	} else {
		if (!take_turns(table, out))
			status = err_set(
				err, STATUS_TIMEOUT, "two threads did not get their turns within %.0f s", (double)TIMEOUT_NS / 1e9);
		pthread_join(thread, NULL);
	}
	mem_free(table->written);
	mem_free(table->copied);
	mem_free(table);
	return status;
}
