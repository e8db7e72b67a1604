/* Thread pool: one epoch word starts jobs, another releases barriers. Waiters spin, then yield, then sleep on the word;
 * a counter of sleepers spares the waking system call when nobody sleeps. */
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/mem.h"
#include "base/wait.h"

/* Spins of a thread without a job, in units of the barrier's spins: covers the work between two steps (sampling, sending)
 * so that the next step starts without a system call. */
#define IDLE_SPIN_FACTOR 8

struct gate {
	alignas(64) _Atomic uint32_t epoch;
	_Atomic uint32_t sleepers;
};

struct worker {
	struct pool *pool;
	pthread_t handle;
	int thread;
};

/* Fields without atomics are written by thread 0 before the start gate opens and read by all after it. */
struct pool {
	struct gate start, release;
	alignas(64) _Atomic uint32_t arrived;
	int threads;
	uint32_t spins;
	pool_job job; /* NULL: end */
	void *ctx;
	struct worker *workers; /* [threads - 1] */
	int n_started;
};

static void gate_open(struct gate *gate)
{
	atomic_fetch_add(&gate->epoch, 1);
	/* Sequentially consistent on both sides: either the sleeper is seen here, or it sees the new epoch. */
	if (atomic_load(&gate->sleepers) != 0)
		wait_wake_all(&gate->epoch);
}

static void gate_wait(struct gate *gate, uint32_t epoch, uint32_t spins)
{
	for (uint32_t i = 0; i < spins; i++) {
		if (atomic_load_explicit(&gate->epoch, memory_order_acquire) != epoch)
			return;
		wait_spin(i);
	}
	atomic_fetch_add(&gate->sleepers, 1);
	while (atomic_load(&gate->epoch) == epoch)
		wait_while_equal(&gate->epoch, epoch, 0, NULL, INT64_MAX);
	atomic_fetch_sub(&gate->sleepers, 1);
}

void pool_barrier(struct pool *pool)
{
	uint32_t epoch = atomic_load_explicit(&pool->release.epoch, memory_order_relaxed);

	if (pool->threads == 1)
		return;
	if (atomic_fetch_add(&pool->arrived, 1) + 1 == (uint32_t)pool->threads) {
		atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
		gate_open(&pool->release);
	} else {
		gate_wait(&pool->release, epoch, pool->spins);
	}
}

static void *worker_main(void *arg)
{
	struct worker *worker = arg;
	struct pool *pool = worker->pool;

	for (uint32_t epoch = 0;; epoch++) {
		gate_wait(&pool->start, epoch, pool->spins * IDLE_SPIN_FACTOR);
		if (!pool->job)
			return NULL;
		pool->job(pool->ctx, worker->thread);
		pool_barrier(pool);
	}
}

void pool_run(struct pool *pool, pool_job job, void *ctx)
{
	if (pool->threads > 1) {
		pool->job = job;
		pool->ctx = ctx;
		gate_open(&pool->start);
	}
	job(ctx, 0);
	pool_barrier(pool);
}

enum status pool_create(int threads, struct pool **out, struct err *err)
{
	struct pool *pool;
	sigset_t all, before;
	int errnum = 0;

	*out = NULL;
	if (threads < 1 || threads > POOL_THREADS_MAX)
		return err_set(err, STATUS_INPUT, "threads is %d, expected 1 to %d", threads, POOL_THREADS_MAX);
	pool = mem_calloc_aligned(alignof(struct pool), 1, sizeof *pool);
	pool->threads = threads;
	pool->spins = wait_default_spins(threads);
	pool->workers = mem_calloc((size_t)threads, sizeof *pool->workers);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (int i = 0; i < threads - 1 && errnum == 0; i++) {
		pool->workers[i] = (struct worker){.pool = pool, .thread = i + 1};
		errnum = pthread_create(&pool->workers[i].handle, NULL, worker_main, &pool->workers[i]);
		if (errnum == 0)
			pool->n_started++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (errnum != 0) {
		err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start thread %d of %d", pool->n_started + 2, threads);
		pool_destroy(pool);
		return STATUS_UNAVAILABLE;
	}
	*out = pool;
	return STATUS_OK;
}

void pool_destroy(struct pool *pool)
{
	if (!pool)
		return;
	pool->job = NULL;
	gate_open(&pool->start);
	for (int i = 0; i < pool->n_started; i++)
		pthread_join(pool->workers[i].handle, NULL);
	mem_free(pool->workers);
	mem_free(pool);
}

int pool_threads(const struct pool *pool)
{
	return pool->threads;
}
