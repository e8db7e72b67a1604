/* Attention over the paged cache the plain way: for fp32 keys and values, and for head sizes that no other kernel is made for.
 * Lines of the cache lie as they are, of either type. */
#include "kernels/cuda/attention.cuh"

#define ROPE_WARPS 4
#define ROPE_THREADS (ROPE_WARPS * CUDA_WARP)
#define PLAIN_WARPS 8
#define PLAIN_VALUES (ATTENTION_HEAD_DIM_MAX / CUDA_WARP) /* dimensions of one lane */

/* Block: ROPE_WARPS heads of one row, a warp each: the query heads, rotated in place, then keys, rotated, and values for the
 * cache. */
template <typename T> static __global__ void __launch_bounds__(ROPE_THREADS) rope_append_kernel(const struct kn_attention a)
{
	dependency_release();
	dependency_wait();
	const int row = blockIdx.y, lane = threadIdx.x % CUDA_WARP;
	const int head = blockIdx.x * ROPE_WARPS + threadIdx.x / CUDA_WARP, n_rotated = a.n_heads + a.n_kv_heads;
	if (head >= n_rotated + a.n_kv_heads)
		return;
	float *at = a.qkv + ((int64_t)row * (n_rotated + a.n_kv_heads) + head) * a.head_dim;
	const int position = a.positions[row];
	const int kv_head = head < n_rotated ? head - a.n_heads : head - n_rotated;
	T *cached = NULL;
	if (head >= a.n_heads)
		cached = (T *)(head < n_rotated ? a.k_cache : a.v_cache) + position % KN_KV_BLOCK_TOKENS * a.head_dim +
			cache_at(a, a.block_tables[a.slots[row] * a.block_table_stride + position / KN_KV_BLOCK_TOKENS], kv_head);
	if (head >= n_rotated) {
		for (int i = lane; i < a.head_dim; i += CUDA_WARP)
			cached[i] = (T)at[i];
		return;
	}
	const float *cos_sin = a.rope_cos_sin + (int64_t)position * a.head_dim;
	for (int pair = lane; pair < a.head_dim / 2; pair += CUDA_WARP) {
		const int2 element = pair_at(a, pair);
		const float2 rotated = rotate(at[element.x], at[element.y], *(const float2 *)(cos_sin + 2 * pair));
		if (cached) {
			cached[element.x] = (T)rotated.x;
			cached[element.y] = (T)rotated.y;
		} else {
			at[element.x] = rotated.x;
			at[element.y] = rotated.y;
		}
	}
}

/* Block: one query head of one row. Warp: every PLAIN_WARPS-th key, with a running softmax of its own. Lane: every 32nd dimension.
 * Warps are merged in their order, so a row's bits depend on its position alone. */
template <typename T>
static __global__ void __launch_bounds__(PLAIN_WARPS *CUDA_WARP)
	attention_plain_kernel(const struct kn_attention a, const struct attention_cut cut)
{
	__shared__ float outputs[PLAIN_WARPS][ATTENTION_HEAD_DIM_MAX], peaks[PLAIN_WARPS], sums[PLAIN_WARPS];
	const int head = blockIdx.x, row = blockIdx.y, warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	const int kv_head = a.kv_head_of_head[head], n_keys = a.positions[row] + 1;
	const int n_values = (a.head_dim - lane + CUDA_WARP - 1) / CUDA_WARP; /* of this lane: fewer in lanes past the last whole 32 */
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
		const T *key = (const T *)a.k_cache + at, *value = (const T *)a.v_cache + at;
		float score = 0.0f;
#pragma unroll
		for (int i = 0; i < PLAIN_VALUES; i++)
			if (i < n_values)
				score = fmaf(q[i], (float)key[i * CUDA_WARP], score);
		score = warp_sum(score);
		const float top = fmaxf(peak, score), keep = expf(peak - top), weight = expf(score - top);
		peak = top;
		sum = sum * keep + weight;
#pragma unroll
		for (int i = 0; i < PLAIN_VALUES; i++)
			if (i < n_values)
				out[i] = fmaf(weight, (float)value[i * CUDA_WARP], out[i] * keep);
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

template <typename T>
static cudaError_t attend(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	const dim3 heads((args->n_heads + 2 * args->n_kv_heads + ROPE_WARPS - 1) / ROPE_WARPS, cut->n_rows);
	cudaError_t error = launch_dependent(backend->stream, heads, dim3(ROPE_THREADS), 0, rope_append_kernel<T>, *args);
	return error ? error
		     : launch_dependent(backend->stream, dim3(args->n_heads, cut->n_rows), dim3(PLAIN_WARPS * CUDA_WARP), 0,
			       attention_plain_kernel<T>, *args, *cut);
}

cudaError_t attention_plain(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	return args->kv_type == KN_KV_F32 ? attend<float>(backend, args, cut) : attend<__half>(backend, args, cut);
}
