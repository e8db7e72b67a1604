/* Attention of many rows of one sequence over the paged fp16 cache, in tiles on tensor cores.
 *
 * Online softmax over tiles of keys, as in FlashAttention-2 (arXiv 2307.08691). Query heads that share a KV head share its keys:
 * a tile's 128 lines are pairs of a row and a head. q and the weights are rounded to fp16, so bits differ from attention_decode's
 * within the stated tolerance; sums are fp32. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

#define PREFILL_KEYS 32 /* of one tile: two blocks of the cache */

template <int HEAD_DIM> struct prefill_shape {
	static constexpr int MATRICES =
		HEAD_DIM <= 128 ? 2 : 1; /* tiles of 16 lines a warp: two share the loads of keys and values */
	static constexpr int WARPS = PREFILL_LINES / (16 * MATRICES), THREADS = WARPS * CUDA_WARP;
	static constexpr int LINE = HEAD_DIM + 8; /* padded, so that eight rows of a matrix lie in different banks */
	static constexpr int TILE = PREFILL_KEYS * LINE;
	static constexpr size_t SHARED_BYTES =
		(PREFILL_LINES * LINE + 4 * TILE) * sizeof(__half); /* queries; two stages of keys and values */
};

/* Asks for one tile of keys and values. Past the last block that one is read again: its keys are masked. */
template <int HEAD_DIM>
static __device__ __forceinline__ void request_keys(
	const struct kn_attention &a, const int32_t *table, int kv_head, int tile, int last_block, __half *keys)
{
	constexpr int BLOCK_PIECES = KN_KV_BLOCK_TOKENS * HEAD_DIM / 8; /* of 16 bytes */
	constexpr int ALL = PREFILL_KEYS / KN_KV_BLOCK_TOKENS * BLOCK_PIECES, THREADS = prefill_shape<HEAD_DIM>::THREADS;
	const uint32_t to = shared_address(keys);
#pragma unroll
	for (int i = 0; i < (ALL + THREADS - 1) / THREADS; i++) {
		const int piece = threadIdx.x + i * THREADS;
		if (piece >= ALL)
			break;
		const int number = piece / BLOCK_PIECES,
			  block = min(tile * (PREFILL_KEYS / KN_KV_BLOCK_TOKENS) + number, last_block);
		const int2 from = cache_piece(HEAD_DIM, piece % BLOCK_PIECES);
		const int64_t at = cache_at(a, table[block], kv_head) + piece % BLOCK_PIECES * 8;
		const int line = number * KN_KV_BLOCK_TOKENS + from.x;
		const uint32_t place = to + (line * prefill_shape<HEAD_DIM>::LINE + from.y) * sizeof(__half);
		copy_async(place, (const __half *)a.k_cache + at, true);
		copy_async(place + prefill_shape<HEAD_DIM>::TILE * sizeof(__half), (const __half *)a.v_cache + at, true);
	}
	copy_async_commit();
}

/* Online softmax of line g + 8 * i of one matrix: scores become weights; keys after number last are masked. */
template <int HEAD_DIM>
static __device__ __forceinline__ void soften(
	float (&score)[PREFILL_KEYS / 8][4], int i, int last, float &peak, float &sum, float (&out)[HEAD_DIM / 8][4])
{
	const int t = threadIdx.x % 4;
	float top = peak, total = 0.0f;
#pragma unroll
	for (int n = 0; n < PREFILL_KEYS / 8; n++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			if (n * 8 + 2 * t + c > last)
				score[n][2 * i + c] = -INFINITY;
			top = fmaxf(top, score[n][2 * i + c]);
		}
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
	const float keep = exp2_fast(peak - top);
#pragma unroll
	for (int n = 0; n < PREFILL_KEYS / 8; n++)
#pragma unroll
		for (int c = 0; c < 2; c++) {
			score[n][2 * i + c] = exp2_fast(score[n][2 * i + c] - top);
			total += score[n][2 * i + c];
		}
	peak = top;
	sum = sum * keep + total;
#pragma unroll
	for (int d = 0; d < HEAD_DIM / 8; d++) {
		out[d][2 * i] *= keep;
		out[d][2 * i + 1] *= keep;
	}
}

/* What one block works on. */
struct prefill_tile {
	int first_row, n_lines; /* lines past the last see the first key, and are dropped */
	int first_position, last_position;
	struct attention_heads heads;
};

/* q of all lines, rotated and scaled, into shared memory; lines past the last are zero. */
template <int HEAD_DIM>
static __device__ __forceinline__ void fill_queries(const struct kn_attention &a, const struct prefill_tile &tile, __half *queries)
{
	using shape = prefill_shape<HEAD_DIM>;
	const float scale = a.scale * LOG2_E;
	for (int i = threadIdx.x; i < PREFILL_LINES * (HEAD_DIM / 2); i += shape::THREADS) {
		const int line = i / (HEAD_DIM / 2), pair = i % (HEAD_DIM / 2), row = line / tile.heads.count;
		const int2 element = pair_at(a, pair);
		float2 value = make_float2(0.0f, 0.0f);
		if (line < tile.n_lines) {
			const float *q = a.qkv + (int64_t)(tile.first_row + row) * ((a.n_heads + 2 * a.n_kv_heads) * HEAD_DIM) +
				(tile.heads.first + line % tile.heads.count) * HEAD_DIM;
			/* Rows that fill up a plan have gaps. */
			const int position = min(tile.first_position + row, tile.last_position);
			const float *turn = a.rope_cos_sin + (int64_t)position * HEAD_DIM + 2 * pair;
			value = rotate(q[element.x], q[element.y], *(const float2 *)turn);
		}
		queries[line * shape::LINE + element.x] = __float2half_rn(value.x * scale);
		queries[line * shape::LINE + element.y] = __float2half_rn(value.y * scale);
	}
}

/* Scores of a warp's lines with the keys of one tile. Addresses are this lane's, for the loads of matrices. */
template <int HEAD_DIM>
static __device__ __forceinline__ void score_keys(
	float (&score)[prefill_shape<HEAD_DIM>::MATRICES][PREFILL_KEYS / 8][4], uint32_t query_at, uint32_t keys_at)
{
	constexpr int LINE = prefill_shape<HEAD_DIM>::LINE, MATRICES = prefill_shape<HEAD_DIM>::MATRICES;
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		uint32_t q[MATRICES][4];
#pragma unroll
		for (int m = 0; m < MATRICES; m++)
			load_matrices(q[m], query_at + (m * 16 * LINE + d) * sizeof(__half));
#pragma unroll
		for (int n = 0; n < PREFILL_KEYS / 8; n += 2) {
			uint32_t k[4];
			load_matrices(k, keys_at + (n * 8 * LINE + d) * sizeof(__half));
#pragma unroll
			for (int m = 0; m < MATRICES; m++) {
				mma_f16(score[m][n], q[m], k[0], k[1]);
				mma_f16(score[m][n + 1], q[m], k[2], k[3]);
			}
		}
	}
}

static __device__ __forceinline__ void pack_weights(
	const float (&score)[PREFILL_KEYS / 8][4], uint32_t (&weights)[PREFILL_KEYS / 16][4])
{
#pragma unroll
	for (int k = 0; k < PREFILL_KEYS / 16; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			weights[k][i] = pack_f16(score[2 * k + i / 2][i % 2 * 2], score[2 * k + i / 2][i % 2 * 2 + 1]);
}

/* out += weights * values of one tile. */
template <int HEAD_DIM>
static __device__ __forceinline__ void add_values(float (&out)[prefill_shape<HEAD_DIM>::MATRICES][HEAD_DIM / 8][4],
	const uint32_t (&weights)[prefill_shape<HEAD_DIM>::MATRICES][PREFILL_KEYS / 16][4], uint32_t values_at)
{
	constexpr int LINE = prefill_shape<HEAD_DIM>::LINE, MATRICES = prefill_shape<HEAD_DIM>::MATRICES;
#pragma unroll
	for (int k = 0; k < PREFILL_KEYS / 16; k++)
#pragma unroll
		for (int d = 0; d < HEAD_DIM; d += 16) {
			uint32_t v[4];
			load_matrices_transposed(v, values_at + (k * 16 * LINE + d) * sizeof(__half));
#pragma unroll
			for (int m = 0; m < MATRICES; m++) {
				mma_f16(out[m][d / 8], weights[m][k], v[0], v[1]);
				mma_f16(out[m][d / 8 + 1], weights[m][k], v[2], v[3]);
			}
		}
}

/* A line's results, divided by the sum of its weights; sum is of this lane's keys. */
template <int HEAD_DIM>
static __device__ __forceinline__ void store_line(const struct kn_attention &a, const struct attention_cut &cut,
	const struct prefill_tile &tile, int line, int half, const float (&out)[HEAD_DIM / 8][4], float sum)
{
	sum += __shfl_xor_sync(0xffffffffu, sum, 1);
	sum += __shfl_xor_sync(0xffffffffu, sum, 2);
	if (line >= tile.n_lines)
		return;
	const int64_t row = tile.first_row + line / tile.heads.count;
	const int64_t to = (row * a.n_heads + tile.heads.first + line % tile.heads.count) * HEAD_DIM + 2 * (threadIdx.x % 4);
	const float scale = 1.0f / sum;
#pragma unroll
	for (int d = 0; d < HEAD_DIM / 8; d++)
		store_out_pair(a, cut, to + d * 8, make_float2(out[d][half * 2] * scale, out[d][half * 2 + 1] * scale));
}

/* Block: one tile of rows and the query heads of one block (see attention_cut). Warp: MATRICES times 16 lines, all keys. Lane (g,
 * t): lines g and g + 8 of each 16, columns 2t and 2t + 1 of every eight. Rows of one sequence come in ascending position without
 * gaps. */
template <int HEAD_DIM>
static __global__ void __launch_bounds__(prefill_shape<HEAD_DIM>::THREADS, HEAD_DIM <= 128 ? 2 : 1)
	attention_prefill_kernel(const struct kn_attention a, const struct attention_cut cut)
{
	using shape = prefill_shape<HEAD_DIM>;
	constexpr int LINE = shape::LINE, MATRICES = shape::MATRICES;
	extern __shared__ __align__(16) __half shared[];
	__half *stages = shared + PREFILL_LINES * LINE;
	const int lane = threadIdx.x % CUDA_WARP, warp_line = threadIdx.x / CUDA_WARP * (16 * MATRICES);
	struct prefill_tile tile;
	tile.first_row = (gridDim.x - 1 - blockIdx.x) * cut.tile_rows; /* those with most keys first */
	const int n_rows = min(cut.tile_rows, cut.n_rows - tile.first_row);
	tile.heads = heads_of_block(a, cut, blockIdx.y);
	tile.n_lines = n_rows * tile.heads.count;
	dependency_release();
	dependency_wait();
	if (!tile_is_prefill(a, cut, tile.first_row))
		return;
	const int32_t *table = a.block_tables + a.slots[tile.first_row] * a.block_table_stride;
	tile.first_position = a.positions[tile.first_row];
	tile.last_position = a.positions[tile.first_row + n_rows - 1];
	const int last_block = tile.last_position / KN_KV_BLOCK_TOKENS, n_key_tiles = tile.last_position / PREFILL_KEYS + 1;
	request_keys<HEAD_DIM>(a, table, tile.heads.kv_head, 0, last_block, stages);
	fill_queries<HEAD_DIM>(a, tile, shared);

	int seen[MATRICES][2];
	float out[MATRICES][HEAD_DIM / 8][4] = {}, peak[MATRICES][2], sum[MATRICES][2] = {};
#pragma unroll
	for (int i = 0; i < 2 * MATRICES; i++) {
		const int line = warp_line + lane / 4 + 8 * i;
		seen[i / 2][i % 2] = line < tile.n_lines ? tile.first_position + line / tile.heads.count : 0;
		peak[i / 2][i % 2] = -INFINITY;
	}
	const int warp_last = tile.first_position + min(warp_line + 16 * MATRICES - 1, tile.n_lines - 1) / tile.heads.count;
	const uint32_t query_at = shared_address(shared + (warp_line + lane % 16) * LINE + lane / 16 * 8);
#pragma unroll 1
	for (int number = 0; number < n_key_tiles; number++) {
		const __half *keys = stages + number % 2 * (2 * shape::TILE), *values = keys + shape::TILE;
		copy_async_wait<0>();
		__syncthreads();
		if (number + 1 < n_key_tiles)
			request_keys<HEAD_DIM>(a, table, tile.heads.kv_head, number + 1, last_block,
				stages + (number + 1) % 2 * (2 * shape::TILE));
		if (warp_line >= tile.n_lines || number * PREFILL_KEYS > warp_last)
			continue;
		float score[MATRICES][PREFILL_KEYS / 8][4] = {};
		uint32_t weights[MATRICES][PREFILL_KEYS / 16][4];
		score_keys<HEAD_DIM>(
			score, query_at, shared_address(keys + (lane / 16 * 8 + lane % 8) * LINE + lane / 8 % 2 * 8));
		const bool masked = (number + 1) * PREFILL_KEYS > tile.first_position; /* some line may not see all of these */
#pragma unroll
		for (int m = 0; m < MATRICES; m++) {
#pragma unroll
			for (int i = 0; i < 2; i++)
				soften<HEAD_DIM>(score[m], i, masked ? seen[m][i] - number * PREFILL_KEYS : PREFILL_KEYS,
					peak[m][i], sum[m][i], out[m]);
			pack_weights(score[m], weights[m]);
		}
		add_values<HEAD_DIM>(out, weights, shared_address(values + lane % 16 * LINE + lane / 16 * 8));
	}
#pragma unroll
	for (int i = 0; i < 2 * MATRICES; i++)
		store_line<HEAD_DIM>(a, cut, tile, warp_line + lane / 4 + 8 * i, i % 2, out[i / 2], sum[i / 2][i % 2]);
}

cudaError_t attention_prefill(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	const dim3 grid((cut->n_rows + cut->tile_rows - 1) / cut->tile_rows, cut->n_groups);
	return for_head_dim(args->head_dim, [&](auto dim) {
		using shape = prefill_shape<dim.value>;
		return launch_dependent(backend->stream, grid, dim3(shape::THREADS), shape::SHARED_BYTES,
			attention_prefill_kernel<dim.value>, *args, *cut);
	});
}

cudaError_t attention_prefill_init(void)
{
	return for_every_head_dim([](auto dim) {
		return cudaFuncSetAttribute(attention_prefill_kernel<dim.value>, cudaFuncAttributeMaxDynamicSharedMemorySize,
			(int)prefill_shape<dim.value>::SHARED_BYTES);
	});
}
