/* Measures read rate and multiply rates. Threads run their passes at the same time, between two barriers; a pass counts with
 * the time from the first start to the last end. */
#include "kernels/cpu/limits.h"

#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/pool.h"

#define READ_BYTES ((size_t)256 << 20) /* guess: several times the largest shared cache share of a small machine */
#define LOAD_NS 500000000LL /* time for each load; the best pass counts: other programs disturb single ones */
#define MULTIPLY_ROUNDS 400000 /* a few milliseconds on current cores */

enum load { LOAD_READ, LOAD_FMA, LOAD_DOT16 };

struct measurement {
	struct pool *pool;
	const struct micro *micro;
	enum load load;
	const uint8_t *memory;
	int64_t started_ns; /* thread 0's, between barriers */
	double best_seconds; /* thread 0's */
	bool more; /* thread 0 decides before a barrier whether all go on */
	double sink[POOL_THREADS_MAX]; /* results nobody needs, so that the work cannot be left out */
};

static void one_pass(struct measurement *m, int thread)
{
	int64_t share = (int64_t)(READ_BYTES / (size_t)pool_threads(m->pool)) / 4096 * 4096;

	switch (m->load) {
	case LOAD_READ:
		m->sink[thread] = (double)m->micro->run_read(m->memory + share * thread, share);
		break;
	case LOAD_FMA:
		m->sink[thread] = (double)m->micro->run_fma(MULTIPLY_ROUNDS);
		break;
	case LOAD_DOT16:
		m->sink[thread] = m->micro->run_dot16(MULTIPLY_ROUNDS);
		break;
	}
}

static void measure_thread(void *ctx, int thread)
{
	struct measurement *m = ctx;
	int64_t end_ns = clock_monotonic_ns() + LOAD_NS;

	for (bool more = true; more;) {
		if (thread == 0)
			m->started_ns = clock_monotonic_ns();
		pool_barrier(m->pool);
		one_pass(m, thread);
		pool_barrier(m->pool);
		if (thread == 0) {
			int64_t now_ns = clock_monotonic_ns();
			double seconds = (double)(now_ns - m->started_ns) * 1e-9;

			if (m->best_seconds == 0 || seconds < m->best_seconds)
				m->best_seconds = seconds;
			m->more = now_ns < end_ns;
		}
		pool_barrier(m->pool);
		more = m->more;
	}
}

static double seconds_of(struct measurement *m, enum load load)
{
	m->load = load;
	m->best_seconds = 0;
	pool_run(m->pool, measure_thread, m);
	return m->best_seconds;
}

enum status cpu_limits_measure(int threads, struct cpu_limits *out, struct err *err)
{
	struct measurement *m = mem_calloc(1, sizeof *m);
	void *memory = NULL;
	enum status status = micro_choose("auto", &m->micro, err);

	*out = (struct cpu_limits){0};
	if (status == STATUS_OK)
		status = pool_create(threads, &m->pool, err);
	if (status == STATUS_OK)
		status = mem_map(READ_BYTES, &memory, err);
	if (status == STATUS_OK) {
		mem_advise_huge(memory, READ_BYTES);
		memset(memory, 1, READ_BYTES); /* untouched pages would all be the same zeros */
		m->memory = memory;
		out->read_bytes_per_s = (double)READ_BYTES / seconds_of(m, LOAD_READ);
		out->fma_flops_per_s = 2.0 * MULTIPLY_ROUNDS * m->micro->fma_per_round * threads / seconds_of(m, LOAD_FMA);
		out->dot16_flops_per_s = 2.0 * MULTIPLY_ROUNDS * m->micro->dot16_per_round * threads / seconds_of(m, LOAD_DOT16);
	}
	mem_unmap(memory, READ_BYTES);
	pool_destroy(m->pool);
	mem_free(m);
	return status;
}
