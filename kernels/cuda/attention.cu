/* Attention over the paged cache: chooses the kernels for a step, and rotates and appends where they do not do it themselves. */
#include "kernels/cuda/attention.cuh"

#define APPEND_THREADS 256

/* fp16 cache: keys, rotated, and values; q is left to the kernels that read it. Thread: four pairs of one key, or eight elements of
 * one value; neighbours take the next ones of the same head. */
static __global__ void __launch_bounds__(APPEND_THREADS) append_kernel(const struct kn_attention a, int n_rows)
{
	dependency_release();
	dependency_wait();
	const int pieces = a.head_dim / 8, n_lines = 2 * a.n_kv_heads;
	const int64_t i = (int64_t)blockIdx.x * APPEND_THREADS + threadIdx.x;
	const int piece = (int)(i % pieces), number = (int)(i / pieces % n_lines);
	const int64_t row = i / pieces / n_lines;
	if (row >= n_rows)
		return;
	const int position = a.positions[row], line = position % KN_KV_BLOCK_TOKENS, kv_head = number % a.n_kv_heads;
	const float *from = a.qkv + (row * (a.n_heads + n_lines) + a.n_heads + number) * a.head_dim;
	const int64_t block =
		cache_at(a, a.block_tables[a.slots[row] * a.block_table_stride + position / KN_KV_BLOCK_TOKENS], kv_head);
	if (number >= a.n_kv_heads) {
		const float4 low = *(const float4 *)(from + piece * 8), high = *(const float4 *)(from + piece * 8 + 4);
		*(uint4 *)((__half *)a.v_cache + block + cache_place(a.head_dim, line, piece * 8)) = make_uint4(
			pack_f16(low.x, low.y), pack_f16(low.z, low.w), pack_f16(high.x, high.y), pack_f16(high.z, high.w));
		return;
	}
	const int2 runs = runs_of(a, piece * 4);
	__half *keys = (__half *)a.k_cache + block;
	store_pairs(rotate_four(a, from, position, piece * 4, 1.0f), a.rope_interleaved,
		keys + cache_place(a.head_dim, line, runs.x), keys + cache_place(a.head_dim, line, runs.y));
}

static cudaError_t append(struct kn_backend *backend, const struct kn_attention *args, int n_rows)
{
	const int64_t threads = (int64_t)n_rows * 2 * args->n_kv_heads * (args->head_dim / 8);
	return launch_dependent(backend->stream, dim3((unsigned)((threads + APPEND_THREADS - 1) / APPEND_THREADS)),
		dim3(APPEND_THREADS), 0, append_kernel, *args, n_rows);
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
	cut.out_form = form_for(args->reader, n_rows);
	return cut;
}

static __global__ void fence_kernel(void)
{
}

/* Every row by the kernel that has the same bits for a row however its sequence is cut. It looks at cached keys before it waits for
 * the kernel in front, so nothing of a next part may start before this one has ended. */
static cudaError_t attend_invariant(struct kn_backend *backend, const struct kn_attention *args, int n_rows)
{
	cudaError_t error = cudaSuccess;
	for (int row = 0; row < n_rows && !error; row += ATTENTION_DECODE_ROWS_MAX) {
		struct kn_attention part = *args;
		part.reader = NULL; /* which the product that follows does not expect either */
		const int n = n_rows - row < ATTENTION_DECODE_ROWS_MAX ? n_rows - row : ATTENTION_DECODE_ROWS_MAX;
		part.qkv += (int64_t)row * (args->n_heads + 2 * args->n_kv_heads) * args->head_dim;
		part.out += (int64_t)row * args->n_heads * args->head_dim;
		part.positions += row;
		part.slots += row;
		struct attention_cut cut = cut_heads(&part, n);
		if (row > 0)
			error = launch_after(backend->stream, dim3(1), dim3(1), 0, fence_kernel);
		if (!error)
			error = attention_decode(backend, &part, &cut);
	}
	return error;
}

static bool has_fast_kernels(int head_dim)
{
	return for_head_dim(head_dim, [](auto) { return cudaSuccess; }) == cudaSuccess;
}

static cudaError_t attend(struct kn_backend *backend, const struct kn_attention *args, int n_rows)
{
	struct attention_cut cut = cut_heads(args, n_rows);
	if (args->kv_type == KN_KV_F32 || !has_fast_kernels(args->head_dim)) {
		if (backend->deterministic)
			cut.out_form = PACK_F32;
		return attention_plain(backend, args, &cut);
	}
	if (backend->deterministic)
		return attend_invariant(backend, args, n_rows);
	if (n_rows <= ATTENTION_DECODE_ROWS_MAX)
		return attention_many_takes(backend, args, &cut) ? attention_many(backend, args, &cut)
							   : attention_decode(backend, args, &cut);
	cut.tile_rows = PREFILL_LINES / cut.heads_per_block;
	cudaError_t error = append(backend, args, n_rows);
	if (!error)
		error = attention_prefill_hopper_takes(backend, args) ? attention_prefill_hopper(backend, args, &cut)
								      : attention_prefill(backend, args, &cut);
	return error ? error : attention_decode(backend, args, &cut);
}

enum status kn_cuda_attention(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	if (args->head_dim < 1 || args->head_dim % ATTENTION_HEAD_DIM_STEP != 0 || args->head_dim > ATTENTION_HEAD_DIM_MAX)
		return err_set(err, STATUS_INPUT, "head size %d, expected a multiple of %d up to %d", args->head_dim,
			ATTENTION_HEAD_DIM_STEP, ATTENTION_HEAD_DIM_MAX);
	if (args->n_heads > ATTENTION_HEADS_MAX)
		return err_set(err, STATUS_INPUT, "%d attention heads are more than the %d supported on GPUs", args->n_heads,
			ATTENTION_HEADS_MAX);
	return cuda_status(attend(backend, args, n_rows), "attention", err);
}
