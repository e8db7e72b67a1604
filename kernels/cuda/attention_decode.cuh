/* Attention of single rows: how a warp gets a tile of 16 keys and what it does with it on tensor cores. Lanes are (g, t) =
 * (lane / 4, lane % 4). */
#ifndef KERNELS_CUDA_ATTENTION_DECODE_CUH
#define KERNELS_CUDA_ATTENTION_DECODE_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

template <int HEAD_DIM> struct decode_shape {
	static constexpr int WARPS = 8;
	static constexpr int THREADS = WARPS * CUDA_WARP;
	static constexpr int STEP = WARPS * KN_KV_BLOCK_TOKENS; /* from one tile of a warp to its next */
	static constexpr int QUERY_LINE = HEAD_DIM + 8; /* padded, so that eight rows of a matrix lie in different banks */
	static constexpr int TILE = KN_KV_BLOCK_TOKENS * HEAD_DIM; /* a cache block as it is: see cache_place */
};

/* A warp's running softmax, outputs turned: lane (g, t) holds outputs 16i + g and 16i + g + 8 of heads 2t and 2t + 1, the peak of
 * head g, and of head g's sum what its own keys gave. */
template <int HEAD_DIM> struct decode_state {
	float out[HEAD_DIM / 16][4], peak, sum;
};

/* What lanes hold for head g, for heads 2t and 2t + 1. */
static __device__ __forceinline__ float2 of_two_heads(float value)
{
	const int from = threadIdx.x % 4 * 8;
	return make_float2(__shfl_sync(0xffffffffu, value, from), __shfl_sync(0xffffffffu, value, from + 4));
}

/* Address of this lane's line and column in a tile for the four 8x8 matrices of 16 keys and 16 elements: elements first, then keys.
 */
template <int HEAD_DIM> struct tile_lane {
	uint32_t start;
	int turn; /* of the line's pieces, in elements */

	__device__ __forceinline__ tile_lane(const __half *tile)
	{
		const bool turned = HEAD_DIM % CACHE_PART == 0;
		const int lane = threadIdx.x % CUDA_WARP, line = lane / 16 * 8 + lane % 8, column = lane / 8 % 2 * 8;
		start = shared_address(
			tile + (turned ? cache_place(HEAD_DIM, line, 0) & ~(CACHE_PART - 1) : line * HEAD_DIM + column));
		turn = turned ? line % CACHE_GROUP * 8 ^ column : 0;
	}
	__device__ __forceinline__ uint32_t at(int d) const
	{
		const int inside =
			HEAD_DIM % CACHE_PART != 0 ? d : d / CACHE_PART * (CACHE_GROUP * CACHE_PART) + (d % CACHE_PART ^ turn);
		return start + inside * (int)sizeof(__half);
	}
};

/* Scores of 16 keys for 8 heads: lane (g, t) gets head g, keys 2t, 2t + 1, 2t + 8, 2t + 9. */
template <int HEAD_DIM>
static __device__ __forceinline__ void score_tile(
	const __half (*query)[decode_shape<HEAD_DIM>::QUERY_LINE], const __half *keys, float out[4])
{
	const int lane = threadIdx.x % CUDA_WARP;
	const uint32_t query_at = shared_address(&query[lane % 16][lane / 16 * 8]);
	const struct tile_lane<HEAD_DIM> key(keys);
	float sum[2][4] = {};
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		uint32_t q[4], k[4];
		load_matrices(q, query_at + d * sizeof(__half));
		load_matrices(k, key.at(d));
		mma_f16(sum[0], q, k[0], k[1]);
		mma_f16(sum[1], q, k[2], k[3]);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		out[i] = sum[i / 2][i % 2] + sum[i / 2][i % 2 + 2];
}

/* Takes the scores of 16 keys into the running softmax and turns them into weights, in two parts, as a right operand. */
template <int HEAD_DIM>
static __device__ __forceinline__ void weigh_tile(
	struct decode_state<HEAD_DIM> &state, float score[4], int n_keys, uint32_t weights[2], uint32_t rests[2])
{
	const int t = threadIdx.x % 4;
	float top = state.peak;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (2 * t + i % 2 + i / 2 * 8 >= n_keys)
			score[i] = -INFINITY;
		top = fmaxf(top, score[i]);
	}
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
	const float keep = exp2_fast(state.peak - top);
	const float2 keep_out = of_two_heads(keep);
	float sum = 0.0f;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		score[i] = exp2_fast(score[i] - top);
		sum += score[i];
	}
	state.peak = top;
	state.sum = state.sum * keep + sum; /* of this lane's keys; lanes are added at the end */
#pragma unroll
	for (int i = 0; i < HEAD_DIM / 16; i++)
#pragma unroll
		for (int k = 0; k < 4; k++)
			state.out[i][k] *= k % 2 ? keep_out.y : keep_out.x;
#pragma unroll
	for (int i = 0; i < 2; i++) {
		weights[i] = pack_f16(score[2 * i], score[2 * i + 1]);
		rests[i] = pack_f16_rest(score[2 * i], score[2 * i + 1], weights[i]);
	}
}

template <int HEAD_DIM>
static __device__ __forceinline__ void add_values(
	struct decode_state<HEAD_DIM> &state, const uint32_t weights[2], const uint32_t rests[2], const __half *values)
{
	const struct tile_lane<HEAD_DIM> value(values);
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		uint32_t v[4];
		load_matrices_transposed(v, value.at(d));
		mma_f16(state.out[d / 16], v, weights[0], weights[1]);
		mma_f16(state.out[d / 16], v, rests[0], rests[1]);
	}
}

/* What a block, or a warp, works on for one row. */
struct decode_row {
	int row, first_row, position, first_fresh; /* keys from first_fresh on are this step's own, of rows from first_row on */
	int split_tokens, n_splits;
	const int32_t *table;
	struct attention_heads heads;
};

/* Asks for one tile of keys or values. Of a tile that reaches this step's own tokens only older lines are copied; lines past the
 * row's own key are zeroed. Code is kept short here and below: a warp runs most of it once or twice, so fetching instructions
 * counts. */
template <int HEAD_DIM>
static __device__ __forceinline__ void request_tile(
	const struct kn_attention &a, const struct decode_row &r, const void *cache, int32_t block, int token, __half *tile)
{
	constexpr int PIECES = KN_KV_BLOCK_TOKENS * HEAD_DIM / 8 / CUDA_WARP;
	const int lane = threadIdx.x % CUDA_WARP;
	const __half *from = (const __half *)cache + cache_at(a, block, r.heads.kv_head) + lane * 8;
	const uint32_t to = shared_address(tile + lane * 8);
	if (token + KN_KV_BLOCK_TOKENS <= r.first_fresh) {
#pragma unroll
		for (int i = 0; i < PIECES; i++)
			copy_async(to + i * (CUDA_WARP * 16), from + i * (CUDA_WARP * 8), true);
		return;
	}
#pragma unroll 1
	for (int i = 0; i < PIECES; i++) {
		const int line = token + cache_piece(HEAD_DIM, lane + i * CUDA_WARP).x;
		if (line < r.first_fresh || line > r.position)
			copy_async(to + i * (CUDA_WARP * 16), from + i * (CUDA_WARP * 8), line <= r.position);
	}
}

/* Keys and values of this step that lie in a tile of the split; the row's own are appended to the cache. Lane: four pairs of a key
 * or of a value, which is taken as if it were interleaved. */
template <int HEAD_DIM>
static __device__ __forceinline__ void fill_fresh(
	const struct kn_attention &a, const struct decode_row &r, int token_begin, int end, __half *keys, __half *values)
{
	const int lane = threadIdx.x % CUDA_WARP, width = (a.n_heads + 2 * a.n_kv_heads) * HEAD_DIM;
#pragma unroll 1
	for (int token = max(token_begin, r.first_fresh); token < min(token_begin + KN_KV_BLOCK_TOKENS, end); token++) {
		const float *k =
			a.qkv + (int64_t)(r.first_row + token - r.first_fresh) * width + (a.n_heads + r.heads.kv_head) * HEAD_DIM;
		const int64_t cached = cache_at(a, r.table[token / KN_KV_BLOCK_TOKENS], r.heads.kv_head);
#pragma unroll 1
		for (int i = lane; i < HEAD_DIM / 4; i += CUDA_WARP) {
			const bool is_key = i < HEAD_DIM / 8;
			const int pair = (is_key ? i : i - HEAD_DIM / 8) * 4, line = token - token_begin;
			const bool interleaved = a.rope_interleaved || !is_key;
			const int2 runs = is_key ? runs_of(a, pair) : make_int2(2 * pair, 2 * pair + 4);
			const int first = cache_place(HEAD_DIM, line, runs.x), second = cache_place(HEAD_DIM, line, runs.y);
			const float *from = is_key ? k : k + a.n_kv_heads * HEAD_DIM;
			const float4 *turns = (const float4 *)(a.rope_cos_sin + (int64_t)token * HEAD_DIM + 2 * pair);
			const float4 none = make_float4(1.0f, 0.0f, 1.0f, 0.0f); /* a turn by nothing is exact */
			const struct four_pairs pairs =
				rotate_runs(*(const float4 *)(from + runs.x), *(const float4 *)(from + runs.y),
					is_key ? turns[0] : none, is_key ? turns[1] : none, interleaved, 1.0f);
			__half *tile = is_key ? keys : values;
			store_pairs(pairs, interleaved, tile + first, tile + second);
			tile = (__half *)(is_key ? a.k_cache : a.v_cache) + cached;
			if (token == r.position)
				store_pairs(pairs, interleaved, tile + first, tile + second);
		}
	}
}

/* Place of output d of a head among a warp's results, which lie over its first slot: heads 2t in different banks. */
template <int HEAD_DIM> static __device__ __forceinline__ int result_at(int head, int d)
{
	return head * HEAD_DIM + (d ^ head / 2 * 8);
}

/* A warp's outputs go there, not yet seen by its other lanes. Returns the sum of head g's weights, in each of its lanes. */
template <int HEAD_DIM>
static __device__ __forceinline__ float leave_outputs(const struct decode_state<HEAD_DIM> &state, float *out, int lane)
{
	float sum = state.sum;
	sum += __shfl_xor_sync(0xffffffffu, sum, 1);
	sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
	for (int i = 0; i < HEAD_DIM / 16; i++)
#pragma unroll
		for (int k = 0; k < 4; k++)
			out[result_at<HEAD_DIM>(lane % 4 * 2 + k % 2, 16 * i + lane / 4 + k / 2 * 8)] = state.out[i][k];
	return sum;
}

#endif
