/* Measures the CPU backends jointly and makes the winner.
 *
 * A small shm-flag collective carries the agreement: its sum of rank 0's values and everybody else's zeros is a broadcast, and no
 * rank leaves it before all have come, so it is a barrier too. */
#include "kernels/comm/auto.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/shm.h"

#define BUDGET_NS 200000000LL /* measuring ends with the round in which this is passed */
#define ROUNDS_MAX 7 /* odd: the median is a measured value */
#define DECODE_CALLS 20 /* per round: long enough for the clock, short enough to interleave backends */
#define PREFILL_CALLS 2
#define NEAR 1.10 /* decode times this close are told apart by the prefill time; guess from the noise of shared machines */

#define CONTROL_COUNT 64 /* floats: more than one round's times of all backends */

enum size_class { DECODE, PREFILL, SIZE_CLASSES };

struct measuring {
	const struct comm_options *options;
	size_t counts[SIZE_CLASSES];
	struct comm *control; /* of comm_shm_flag */
	const struct comm_ops *ops[COMM_AUTO_BACKENDS_MAX];
	struct comm *comms[COMM_AUTO_BACKENDS_MAX];
	size_t n_backends;
	float *data;
	float us[COMM_AUTO_BACKENDS_MAX][SIZE_CLASSES][ROUNDS_MAX]; /* rank 0's, on rank 0 only */
	int n_rounds;
};

static size_t align_up(size_t bytes)
{
	return (bytes + SHM_ALIGN - 1) / SHM_ALIGN * SHM_ALIGN;
}

static size_t control_bytes(int world)
{
	return align_up(comm_shm_flag.shared_bytes(world, CONTROL_COUNT));
}

size_t comm_auto_shared_bytes(int world, size_t count_max)
{
	if (world <= 1)
		return 0;
	size_t bytes = control_bytes(world);
	for (size_t i = 0; i < comm_cpu_backends_count; i++)
		bytes += align_up(comm_cpu_backends[i]->shared_bytes(world, count_max));
	return bytes;
}

size_t comm_auto_pick(const struct comm_auto_row *rows, size_t n_rows)
{
	size_t fastest = 0;
	for (size_t i = 1; i < n_rows; i++) {
		if (rows[i].decode_us < rows[fastest].decode_us)
			fastest = i;
	}
	size_t best = fastest;
	for (size_t i = 0; i < n_rows; i++) {
		if (rows[i].decode_us <= NEAR * rows[fastest].decode_us && rows[i].prefill_us < rows[best].prefill_us)
			best = i;
	}
	return best;
}

/* Rank 0's values on every rank. Values are finite and not negative. */
static enum status broadcast(struct measuring *measuring, float *values, size_t count, struct err *err)
{
	if (measuring->options->rank != 0)
		memset(values, 0, count * sizeof(*values));
	return comm_shm_flag.allreduce(measuring->control, values, count, err);
}

static enum status open_backends(struct measuring *measuring, struct err *err)
{
	const struct comm_options *options = measuring->options;
	struct comm_options small = *options;
	small.count_max = CONTROL_COUNT;
	enum status status = comm_shm_flag.create(&small, &measuring->control, err);
	char *place = (char *)options->shared + control_bytes(options->world);
	for (size_t i = 0; i < comm_cpu_backends_count && status == STATUS_OK; i++) {
		const struct comm_ops *ops = comm_cpu_backends[i];
		if (ops->needs_sockets && options->sockets == NULL)
			continue;
		ASSERT(measuring->n_backends < COMM_AUTO_BACKENDS_MAX);
		struct comm_options own = *options;
		own.shared = place;
		place += align_up(ops->shared_bytes(options->world, options->count_max));
		status = ops->create(&own, &measuring->comms[measuring->n_backends], err);
		measuring->ops[measuring->n_backends++] = ops;
	}
	return status;
}

static void close_backends(struct measuring *measuring)
{
	for (size_t i = 0; i < measuring->n_backends; i++) {
		measuring->ops[i]->destroy(measuring->comms[i]);
		measuring->comms[i] = NULL;
	}
}

/* The first call is not timed: it may have to clear away what calls of another size left. */
static enum status time_calls(
	struct measuring *measuring, size_t backend, enum size_class size, int calls, float *us, struct err *err)
{
	int64_t start_ns = 0;
	for (int call = 0; call <= calls; call++) {
		enum status status = measuring->ops[backend]->allreduce(
			measuring->comms[backend], measuring->data, measuring->counts[size], err);
		if (status != STATUS_OK)
			return status;
		if (call == 0)
			start_ns = clock_monotonic_ns();
	}
	*us = (float)((double)(clock_monotonic_ns() - start_ns) / 1e3 / calls);
	return STATUS_OK;
}

/* Backends take turns within a round, so that a disturbance of the machine does not fall on one of them alone. */
static enum status run_round(struct measuring *measuring, int round, int decode_calls, int prefill_calls, struct err *err)
{
	const int calls[SIZE_CLASSES] = {decode_calls, prefill_calls};
	for (size_t i = 0; i < measuring->n_backends; i++) {
		for (int size = DECODE; size < SIZE_CLASSES; size++) {
			float *us = &measuring->us[i][size][round];
			enum status status = time_calls(measuring, i, (enum size_class)size, calls[size], us, err);
			if (status != STATUS_OK)
				return status;
		}
	}
	return STATUS_OK;
}

/* Rank 0's clock decides how many rounds there are. */
static enum status run_rounds(struct measuring *measuring, struct err *err)
{
	int64_t start_ns = clock_monotonic_ns();
	enum status status = run_round(measuring, 0, 1, 1, err); /* warm-up: pages, caches; overwritten by the first round */
	float go_on = 1.0f;
	while (status == STATUS_OK && go_on != 0.0f) {
		status = run_round(measuring, measuring->n_rounds, DECODE_CALLS, PREFILL_CALLS, err);
		measuring->n_rounds++;
		go_on = measuring->n_rounds < ROUNDS_MAX && clock_monotonic_ns() - start_ns < BUDGET_NS ? 1.0f : 0.0f;
		if (status == STATUS_OK)
			status = broadcast(measuring, &go_on, 1, err);
	}
	return status;
}

/* The least disturbed round: what other processes of the machine add says nothing about a backend. */
static float smallest(const float *values, int n)
{
	float least = values[0];
	for (int i = 1; i < n; i++)
		least = values[i] < least ? values[i] : least;
	return least;
}

/* Rank 0's times become everybody's rows. */
static enum status share_times(struct measuring *measuring, struct comm_auto_choice *out, struct err *err)
{
	float times[COMM_AUTO_BACKENDS_MAX * SIZE_CLASSES];
	for (size_t i = 0; i < measuring->n_backends; i++) {
		for (int size = DECODE; size < SIZE_CLASSES; size++)
			times[i * SIZE_CLASSES + (size_t)size] = smallest(measuring->us[i][size], measuring->n_rounds);
	}
	enum status status = broadcast(measuring, times, measuring->n_backends * SIZE_CLASSES, err);
	out->n_rows = measuring->n_backends;
	for (size_t i = 0; i < measuring->n_backends; i++) {
		out->rows[i] = (struct comm_auto_row){
			.ops = measuring->ops[i],
			.decode_us = (double)times[i * SIZE_CLASSES + DECODE],
			.prefill_us = (double)times[i * SIZE_CLASSES + PREFILL],
		};
	}
	return status;
}

static void explain(const struct measuring *measuring, struct comm_auto_choice *out)
{
	int used = snprintf(out->why, sizeof(out->why), "measured with %zu and %zu floats:", measuring->counts[DECODE],
		measuring->counts[PREFILL]);
	for (size_t i = 0; i < out->n_rows && used >= 0 && (size_t)used < sizeof(out->why); i++) {
		const struct comm_auto_row *row = &out->rows[i];
		used += snprintf(out->why + used, sizeof(out->why) - (size_t)used, "%s %s %.1f and %.0f µs", i > 0 ? "," : "",
			row->ops->name, row->decode_us, row->prefill_us);
	}
}

/* Zeroes shared memory, whole pages by returning them to the system. */
static void return_pages(char *begin, size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *end = begin + bytes;
	char *first = (char *)(((uintptr_t)begin + page - 1) / page * page);
	char *last = (char *)((uintptr_t)end / page * page);
	if (first >= last || madvise(first, (size_t)(last - first), MADV_REMOVE) != 0) {
		memset(begin, 0, bytes);
		return;
	}
	memset(begin, 0, (size_t)(first - begin));
	memset(last, 0, (size_t)(end - last));
}

/* Makes the winner where the candidates were, once nobody uses them any more. */
static enum status make_winner(struct measuring *measuring, struct comm_auto_choice *out, struct err *err)
{
	const struct comm_options *options = measuring->options;
	struct comm_options own = *options;
	float barrier = 0.0f;
	own.shared = (char *)options->shared + control_bytes(options->world);
	close_backends(measuring);
	enum status status = broadcast(measuring, &barrier, 1, err);
	if (status == STATUS_OK && options->rank == 0)
		return_pages(
			own.shared, comm_auto_shared_bytes(options->world, options->count_max) - control_bytes(options->world));
	if (status == STATUS_OK)
		status = broadcast(measuring, &barrier, 1, err);
	if (status == STATUS_OK)
		status = out->ops->create(&own, &out->comm, err);
	return status;
}

static enum status measure_and_make(struct measuring *measuring, struct comm_auto_choice *out, struct err *err)
{
	enum status status = open_backends(measuring, err);
	if (status == STATUS_OK)
		status = run_rounds(measuring, err);
	if (status == STATUS_OK)
		status = share_times(measuring, out, err);
	if (status != STATUS_OK)
		return status;
	out->ops = out->rows[comm_auto_pick(out->rows, out->n_rows)].ops;
	explain(measuring, out);
	return make_winner(measuring, out, err);
}

enum status comm_auto_create(
	const struct comm_options *options, const struct comm_auto_sizes *sizes, struct comm_auto_choice *out, struct err *err)
{
	*out = (struct comm_auto_choice){0};
	if (options->world == 1) {
		snprintf(out->why, sizeof(out->why), "one rank needs none");
		return STATUS_OK;
	}
	if (sizes->decode_count < 1 || sizes->decode_count > options->count_max || sizes->prefill_count < 1 ||
		sizes->prefill_count > options->count_max)
		return err_set(err, STATUS_INTERNAL, "auto: sizes %zu and %zu are not within 1 to %zu", sizes->decode_count,
			sizes->prefill_count, options->count_max);
	struct measuring measuring = {.options = options, .counts = {sizes->decode_count, sizes->prefill_count}};
	measuring.data = mem_calloc(options->count_max, sizeof(float));
	enum status status = measure_and_make(&measuring, out, err);
	close_backends(&measuring);
	comm_shm_flag.destroy(measuring.control);
	mem_free(measuring.data);
	return status;
}
