/* What this machine can do at best, measured: the yardstick of every figure that the bench prints. */
#ifndef KERNELS_CPU_LIMITS_H
#define KERNELS_CPU_LIMITS_H

#include "base/err.h"

/* Rates of `threads` threads together, with the best instruction set of the machine. A multiply-add counts as two operations. */
struct cpu_limits {
	double read_bytes_per_s; /* streaming through memory far larger than the caches, on huge pages where granted */
	double fma_flops_per_s; /* fp32 fused multiply-add between registers */
	double dot16_flops_per_s; /* products of 16-bit integers added in 32 bits, between registers */
};

/* Best of several passes of some milliseconds each; takes about two seconds and 256 MiB of memory. */
enum status cpu_limits_measure(int threads, struct cpu_limits *out, struct err *err);

#endif
