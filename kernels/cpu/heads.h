/* Bias and head norms of the CPU backend. */
#ifndef KERNELS_CPU_HEADS_H
#define KERNELS_CPU_HEADS_H

#include "kernels/cpu/backend.h"

/* Refuses arguments that the backend cannot run. */
enum status heads_check(const struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err);

/* One thread's part; called by all threads of the pool. Results are complete after the next barrier. */
void heads_run(struct kn_backend *backend, const struct kn_heads *args, int n_rows, int thread);

#endif
