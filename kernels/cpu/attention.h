/* Attention of the CPU backend: rotary embedding, append to the paged cache, causal attention. */
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/backend.h"

/* Refuses arguments that the backend cannot run. */
enum status attention_check(const struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err);

/* One thread's part; called by all threads of the pool. Results are complete after the next barrier. */
void attention_run(struct kn_backend *backend, const struct kn_attention *args, int n_rows, int thread);

#endif
