/* Attention over the paged fp32 cache: the plain way, for models and tests that want fp32 keys and values. */
#include "kernels/cuda/attention.cuh"

#define PLAIN_WARPS 8
#define PLAIN_VALUES (ATTENTION_HEAD_DIM_MAX / CUDA_WARP) /* dimensions of one lane */

/* Block: one query head of one row. Warp: every PLAIN_WARPS-th key, with a running softmax of its own. Lane: every 32nd dimension.
 * Warps are merged in their order, so a row's bits depend on its position alone. */
static __global__ void __launch_bounds__(PLAIN_WARPS *CUDA_WARP)
	attention_plain_kernel(const struct kn_attention a, const struct attention_cut cut)
{
	__shared__ float outputs[PLAIN_WARPS][ATTENTION_HEAD_DIM_MAX], peaks[PLAIN_WARPS], sums[PLAIN_WARPS];
	const int head = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	const int n_values = a.head_dim / CUDA_WARP, kv_head = a.kv_head_of_head[head], n_keys = a.positions[row] + 1;
	const int32_t *table = a.block_tables + a.slots[row] * a.block_table_stride;
	dependency_release();
	dependency_wait();
	const float *query = a.qkv + (int64_t)row * ((a.n_heads + 2 * a.n_kv_heads) * a.head_dim) + head * a.head_dim + lane;
	float q[PLAIN_VALUES], out[PLAIN_VALUES] = {}, peak = -INFINITY, sum = 0.0f;
#pragma unroll
	for (int i = 0; i < PLAIN_VALUES; i++)
		q[i] = i < n_values ? query[i * CUDA_WARP] * a.scale : 0.0f;
	for (int token = warp; token < n_keys; token += PLAIN_WARPS) {
		const int64_t at =
			cache_at(a, table[token / KN_KV_BLOCK_TOKENS], kv_head) + token % KN_KV_BLOCK_TOKENS * a.head_dim + lane;
		const float *key = (const float *)a.k_cache + at, *value = (const float *)a.v_cache + at;
		float score = 0.0f;
#pragma unroll
		for (int i = 0; i < PLAIN_VALUES; i++)
			if (i < n_values)
				score = fmaf(q[i], key[i * CUDA_WARP], score);
		score = warp_sum(score);
		const float top = fmaxf(peak, score), keep = expf(peak - top), weight = expf(score - top);
		peak = top;
		sum = sum * keep + weight;
#pragma unroll
		for (int i = 0; i < PLAIN_VALUES; i++)
			if (i < n_values)
				out[i] = fmaf(weight, value[i * CUDA_WARP], out[i] * keep);
	}
#pragma unroll
	for (int i = 0; i < PLAIN_VALUES; i++)
		outputs[warp][lane + i * CUDA_WARP] = out[i];
	if (lane == 0) {
		peaks[warp] = peak;
		sums[warp] = sum;
	}
	__syncthreads();
	for (int d = threadIdx.x; d < a.head_dim; d += PLAIN_WARPS * CUDA_WARP) {
		float top = peaks[0], total = 0.0f, divisor = 0.0f;
		for (int w = 1; w < PLAIN_WARPS; w++)
			top = fmaxf(top, peaks[w]);
		for (int w = 0; w < PLAIN_WARPS; w++) {
			const float scale = expf(peaks[w] - top);
			total = fmaf(scale, outputs[w][d], total);
			divisor = fmaf(scale, sums[w], divisor);
		}
		store_out(a, cut, ((int64_t)row * a.n_heads + head) * a.head_dim + d, total / divisor);
	}
}

cudaError_t attention_plain(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	return launch_dependent(backend->stream, dim3(args->n_heads, cut->n_rows), dim3(PLAIN_WARPS * CUDA_WARP), 0,
		attention_plain_kernel, *args, *cut);
}
