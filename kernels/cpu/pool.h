/* Persistent threads of one CPU backend. The caller is thread 0; every job runs on all threads at once. */
#ifndef KERNELS_CPU_POOL_H
#define KERNELS_CPU_POOL_H

#include "base/err.h"

struct pool;

/* Work of one thread. All threads of a job run the same function and meet at the same barriers. */
typedef void (*pool_job)(void *ctx, int thread);

/* Starts threads - 1 threads (1 <= threads <= POOL_THREADS_MAX). Signals are left to the caller's threads. */
enum status pool_create(int threads, struct pool **out, struct err *err);
void pool_destroy(struct pool *pool);
int pool_threads(const struct pool *pool);

/* Runs job on every thread and returns when all have finished. Used from one thread. */
void pool_run(struct pool *pool, pool_job job, void *ctx);

/* Called by every thread of the running job: none goes on before all have come; what was written before is seen after. */
void pool_barrier(struct pool *pool);

#define POOL_THREADS_MAX 1024 /* guess: more than any machine this runs on has cores */

#endif
