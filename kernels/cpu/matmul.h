/* Matrix products of the CPU backend. */
#ifndef KERNELS_CPU_MATMUL_H
#define KERNELS_CPU_MATMUL_H

#include "kernels/cpu/backend.h"

/* Refuses arguments that the backend cannot run. */
enum status matmul_check(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);

/* One thread's part; called by all threads of the pool. Results are complete after the next barrier. */
void matmul_run(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, int thread);

#endif
