/* Attention over the paged cache: chooses the kernels for a step, and rotates and appends where they do not do it themselves. */
#include "kernels/cuda/attention.cuh"

#define ROPE_WARPS 4
#define ROPE_THREADS (ROPE_WARPS * CUDA_WARP)

static __device__ __forceinline__ void store(float *at, float value)
{
	*at = value;
}

static __device__ __forceinline__ void store(__half *at, float value)
{
	*at = __float2half_rn(value);
}

static __device__ __forceinline__ int place_of(const float *, int head_dim, int line, int d)
{
	return line * head_dim + d;
}

static __device__ __forceinline__ int place_of(const __half *, int head_dim, int line, int d)
{
	return cache_place(head_dim, line, d);
}

/* Block: ROPE_WARPS heads of one row from first_head on, a warp each: the query heads, then keys, then values. */
template <typename T>
__global__ void __launch_bounds__(ROPE_THREADS) rope_append_kernel(const struct kn_attention a, int first_head)
{
	dependency_release();
	dependency_wait();
	const int row = blockIdx.y, lane = threadIdx.x % CUDA_WARP;
	const int head = first_head + blockIdx.x * ROPE_WARPS + threadIdx.x / CUDA_WARP, n_rotated = a.n_heads + a.n_kv_heads;
	if (head >= n_rotated + a.n_kv_heads)
		return;
	float *at = a.qkv + ((int64_t)row * (n_rotated + a.n_kv_heads) + head) * a.head_dim;
	const int position = a.positions[row], line = position % KN_KV_BLOCK_TOKENS;
	const int kv_head = head < n_rotated ? head - a.n_heads : head - n_rotated;
	T *cached = NULL;
	if (head >= a.n_heads)
		cached = (T *)(head < n_rotated ? a.k_cache : a.v_cache) +
			cache_at(a, a.block_tables[a.slots[row] * a.block_table_stride + position / KN_KV_BLOCK_TOKENS], kv_head);
	if (head >= n_rotated) {
		for (int i = lane; i < a.head_dim; i += CUDA_WARP)
			store(cached + place_of(cached, a.head_dim, line, i), at[i]);
		return;
	}
	const float *cos_sin = a.rope_cos_sin + (int64_t)position * a.head_dim;
	for (int pair = lane; pair < a.head_dim / 2; pair += CUDA_WARP) {
		const int2 element = pair_at(a, pair);
		const float2 rotated = rotate(at[element.x], at[element.y], *(const float2 *)(cos_sin + 2 * pair));
		if (cached) {
			store(cached + place_of(cached, a.head_dim, line, element.x), rotated.x);
			store(cached + place_of(cached, a.head_dim, line, element.y), rotated.y);
		} else {
			at[element.x] = rotated.x;
			at[element.y] = rotated.y;
		}
	}
}

/* Kernels of the fp16 cache rotate q themselves. */
template <typename T> static cudaError_t rope_append(struct kn_backend *backend, const struct kn_attention *args, int n_rows)
{
	const int first_head = args->kv_type == KN_KV_F32 ? 0 : args->n_heads;
	const int n_heads = args->n_heads + 2 * args->n_kv_heads - first_head;
	dim3 grid((n_heads + ROPE_WARPS - 1) / ROPE_WARPS, n_rows);
	return launch_dependent(backend->stream, grid, dim3(ROPE_THREADS), 0, rope_append_kernel<T>, *args, first_head);
}

/* Query heads that read one KV head share its loads when every KV head serves equally many of them. */
static struct attention_cut cut_heads(const struct kn_attention *args, int n_rows)
{
	struct attention_cut cut = {};
	cut.group = args->uniform_groups ? args->n_heads / args->n_kv_heads : 1;
	cut.parts = (cut.group + ATTENTION_HEADS_PER_BLOCK - 1) / ATTENTION_HEADS_PER_BLOCK;
	cut.heads_per_block = (cut.group + cut.parts - 1) / cut.parts;
	cut.n_groups = args->n_heads / cut.group * cut.parts;
	cut.n_rows = n_rows;
	cut.out_form = is_prepared_for(args->reader, n_rows) ? args->reader->form : PACK_F32;
	return cut;
}

static cudaError_t attend(struct kn_backend *backend, const struct kn_attention *args, int n_rows)
{
	struct attention_cut cut = cut_heads(args, n_rows);
	if (args->kv_type == KN_KV_F32) {
		cudaError_t error = rope_append<float>(backend, args, n_rows);
		return error ? error : attention_plain(backend, args, &cut);
	}
	if (n_rows <= ATTENTION_DECODE_ROWS_MAX)
		return attention_decode(backend, args, &cut);
	cut.tile_rows = PREFILL_LINES / cut.heads_per_block;
	cudaError_t error = rope_append<__half>(backend, args, n_rows);
	if (!error)
		error = attention_prefill_hopper_takes(backend, args) ? attention_prefill_hopper(backend, args, &cut)
								      : attention_prefill(backend, args, &cut);
	return error ? error : attention_decode(backend, args, &cut);
}

enum status kn_cuda_attention(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	if (args->head_dim != 64 && args->head_dim != 96 && args->head_dim != 128 && args->head_dim != 256)
		return err_set(err, STATUS_INPUT, "head size %d is not supported on GPUs: 64, 96, 128 and 256 are", args->head_dim);
	if (args->n_heads > ATTENTION_HEADS_MAX)
		return err_set(err, STATUS_INPUT, "%d attention heads are more than the %d supported on GPUs", args->n_heads,
			ATTENTION_HEADS_MAX);
	return cuda_status(attend(backend, args, n_rows), "attention", err);
}
