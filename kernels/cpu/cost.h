/* Work that an operation cannot avoid: bytes of weights, activations and cache, and arithmetic. */
#ifndef KERNELS_CPU_COST_H
#define KERNELS_CPU_COST_H

#include <stdint.h>

#include "kernels/kn.h"

struct cpu_cost {
	double bytes;
	double fma_flops; /* in fp32; a multiply-add counts as two */
	double dot16_flops; /* in 16-bit integers */
};

/* Packed weights once, inputs and outputs once. Quantised rows multiply in 16-bit integers, others in fp32. */
void cpu_cost_matmul(const struct kn_matmul *args, int n_rows, struct cpu_cost *out);

/* Keys and values of every token seen, for each run of rows of one sequence once; scores and weighted sums of every row. */
void cpu_cost_attention(const struct kn_attention *args, int n_rows, struct cpu_cost *out);

#endif
