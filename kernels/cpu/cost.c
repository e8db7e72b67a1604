/* Bytes and arithmetic of the CPU operations, from their arguments. */
#include "kernels/cpu/cost.h"

#include "kernels/cpu/pack.h"

void cpu_cost_matmul(const struct kn_matmul *args, int n_rows, struct cpu_cost *out)
{
	const struct kn_matrix *w = args->w;
	double outputs = args->epilogue == KN_SWIGLU ? (double)w->rows / 2 : (double)w->rows;

	*out = (struct cpu_cost){.bytes = (double)w->bytes + n_rows * ((double)w->cols + outputs) * sizeof(float)};
	for (size_t i = 0; i < w->n_segments; i++) {
		double flops = 2.0 * n_rows * (double)w->segments[i].rows * (double)w->cols;

		if (pack_is_quantized(w->segments[i].form))
			out->dot16_flops += flops;
		else
			out->fma_flops += flops;
	}
}

void cpu_cost_attention(const struct kn_attention *args, int n_rows, struct cpu_cost *out)
{
	double element = args->kv_type == KN_KV_F16 ? 2 : 4, token = 2.0 * args->n_kv_heads * args->head_dim * element;
	double rows = (double)n_rows * (2 * args->n_heads + 2 * args->n_kv_heads) * args->head_dim * sizeof(float);

	*out = (struct cpu_cost){.bytes = rows + n_rows * token};
	for (int row = 0; row < n_rows; row++) {
		double tokens = args->positions[row] + 1;

		out->fma_flops += 4.0 * tokens * args->n_heads * args->head_dim;
		if (row + 1 == n_rows || args->slots[row + 1] != args->slots[row])
			out->bytes += tokens * token;
	}
}
