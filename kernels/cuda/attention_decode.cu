/* Attention of single rows over the paged fp16 cache: rotary embedding, append and split-key attention in one launch.
 *
 * How a row's keys are cut depends on its position alone, and partial results are merged in a fixed order, so a row's bits do not
 * depend on the other rows of the step or on how many blocks share its splits. Scores and weighted values are tensor core
 * products. A tile has 16 rows and a block at most 8 heads: rows 0 to 7 carry the fp16 of q (then of the weights), rows 8 to 15
 * what that rounding lost, so both keep about 22 bits beside fp16 keys and values. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/mma.cuh"

template <int HEAD_DIM> struct decode_shape {
	static constexpr int WARPS = 8; /* 32 K registers, so that a block fits beside the products in front of it */
	static constexpr int THREADS = WARPS * CUDA_WARP;
	static constexpr int QUERY_LINE = HEAD_DIM + 8; /* padded, so that eight rows of a matrix lie in different banks */
	static constexpr int TILE = KN_KV_BLOCK_TOKENS * HEAD_DIM; /* a cache block as it is: see cache_place */
	static constexpr size_t STAGE_BYTES = 2 * WARPS * TILE * sizeof(__half); /* keys and values */
	/* Tiles that a warp asks for ahead when blocks are few: all of a short context. Many blocks ask for one, and two of them
	 * fit on a processor. Results do not depend on it. */
	static constexpr int STAGES = HEAD_DIM <= 128 ? 2 : 1;
};

/* What one block works on for one row. */
struct decode_row {
	int row, first_row, position, first_fresh; /* keys from first_fresh on are this step's own, of rows from first_row on */
	int split_tokens, n_splits;
	const int32_t *table;
	struct attention_heads heads;
};

static __device__ __forceinline__ struct decode_row find_row(const struct kn_attention &a, const struct attention_cut &cut, int row)
{
	struct decode_row r;
	r.row = r.first_row = row;
	r.position = a.positions[row];
	const int slot = a.slots[row];
	while (cut.tile_rows == 0 && r.first_row > 0 && a.slots[r.first_row - 1] == slot)
		r.first_row--;
	r.first_fresh = cut.tile_rows == 0 ? r.position - (row - r.first_row) : r.position + 1;
	const int tokens = (r.position + ATTENTION_SPLITS_MAX) / ATTENTION_SPLITS_MAX;
	r.split_tokens =
		max((tokens + KN_KV_BLOCK_TOKENS - 1) / KN_KV_BLOCK_TOKENS * KN_KV_BLOCK_TOKENS, ATTENTION_SPLIT_TOKENS_MIN);
	r.n_splits = 1;
#pragma unroll 1
	while (r.n_splits * r.split_tokens <= r.position) /* seldom: a division would be more code */
		r.n_splits++;
	r.table = a.block_tables + slot * a.block_table_stride;
	r.heads = heads_of_block(a, cut, blockIdx.y);
	return r;
}

/* Whether some tile of the prefill kernels has rows of several sequences. Asked by whole blocks. */
static __device__ __forceinline__ bool any_tile_is_mixed(const struct kn_attention &a, const struct attention_cut &cut)
{
	bool mixed = false;
#pragma unroll 1
	for (int i = threadIdx.x + 1; i < cut.n_rows; i += blockDim.x)
		mixed = mixed || (i % cut.tile_rows != 0 && a.slots[i] != a.slots[i - 1]);
	return __syncthreads_or(mixed);
}

/* The cache block of a tile, loaded well before it is used; past the split's end any. */
static __device__ __forceinline__ int32_t block_of(const struct decode_row &r, int token, int end)
{
	return r.table[min(token, end - 1) / KN_KV_BLOCK_TOKENS];
}

/* Asks for one tile of keys or values as one group of copies; an empty one past the split's end. Of a tile that reaches this step's
 * own tokens only older lines are copied; lines past the row's own key are zeroed. Code is kept short here and below: a warp runs
 * most of it once or twice, so fetching instructions counts. */
template <int HEAD_DIM>
static __device__ __forceinline__ void request_tile(const struct kn_attention &a, const struct decode_row &r, const void *cache,
	int32_t block, int token, int end, __half *tile)
{
	constexpr int PIECES = KN_KV_BLOCK_TOKENS * HEAD_DIM / 8 / CUDA_WARP;
	const int lane = threadIdx.x % CUDA_WARP;
	if (token < end) {
		const __half *from = (const __half *)cache + cache_at(a, block, r.heads.kv_head) + lane * 8;
		const uint32_t to = shared_address(tile + lane * 8);
		if (token + KN_KV_BLOCK_TOKENS <= r.first_fresh) {
#pragma unroll
			for (int i = 0; i < PIECES; i++)
				copy_async(to + i * (CUDA_WARP * 16), from + i * (CUDA_WARP * 8), true);
		} else {
#pragma unroll 1
			for (int i = 0; i < PIECES; i++) {
				const int line = token + cache_piece(HEAD_DIM, lane + i * CUDA_WARP).x;
				if (line < r.first_fresh || line > r.position)
					copy_async(to + i * (CUDA_WARP * 16), from + i * (CUDA_WARP * 8), line <= r.position);
			}
		}
	}
	copy_async_commit();
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

/* q of the block's heads, scaled for powers of two: fp16 in row head, the rest in row head + 8. Other rows stay zero. */
template <int HEAD_DIM>
static __device__ __forceinline__ void fill_query(
	const struct kn_attention &a, const struct decode_row &r, __half (*query)[decode_shape<HEAD_DIM>::QUERY_LINE])
{
	const float *q = a.qkv + (int64_t)r.row * ((a.n_heads + 2 * a.n_kv_heads) * HEAD_DIM) + r.heads.first * HEAD_DIM;
#pragma unroll 1
	for (int i = threadIdx.x; i < r.heads.count * (HEAD_DIM / 8); i += decode_shape<HEAD_DIM>::THREADS) {
		const int head = i / (HEAD_DIM / 8), pair = i % (HEAD_DIM / 8) * 4;
		const int2 runs = runs_of(a, pair);
		const struct four_pairs pairs = rotate_four(a, q + head * HEAD_DIM, r.position, pair, a.scale * LOG2_E);
		store_pairs(pairs, a.rope_interleaved, &query[head][runs.x], &query[head][runs.y]);
		store_pairs(rest_of(pairs), a.rope_interleaved, &query[head + 8][runs.x], &query[head + 8][runs.y]);
	}
}

/* A warp's running softmax: lane (g, t) holds head g, and of the outputs the columns 2t and 2t + 1 of every eight. */
template <int HEAD_DIM> struct decode_state {
	float out[HEAD_DIM / 8][4], peak, sum;
};

/* Address of element d of a matrix's line for this lane in a tile: line and column (0 or 8) are the lane's, d is a multiple of 16.
 */
template <int HEAD_DIM> struct tile_lane {
	uint32_t start;
	int turn; /* of the line's pieces, in elements */

	__device__ __forceinline__ tile_lane(const __half *tile, int line, int column)
	{
		const bool turned = HEAD_DIM % CACHE_PART == 0;
		start = shared_address(
			tile + (turned ? cache_place(HEAD_DIM, line, 0) & ~(CACHE_PART - 1) : line * HEAD_DIM + column));
		turn = turned ? line % CACHE_GROUP * 8 ^ column : 0;
	}
	__device__ __forceinline__ uint32_t at(int d) const
	{
		if (HEAD_DIM % CACHE_PART != 0)
			return start + d * (int)sizeof(__half);
		const int inside = d / CACHE_PART * (CACHE_GROUP * CACHE_PART) + (d % CACHE_PART ^ turn);
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
	const struct tile_lane<HEAD_DIM> key(keys, lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
	float low[2][4] = {};
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		uint32_t q[4], k[4];
		load_matrices(q, query_at + d * sizeof(__half));
		load_matrices(k, key.at(d));
		mma_f16(low[0], q, k[0], k[1]);
		mma_f16(low[1], q, k[2], k[3]);
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		out[2 * i] = low[i][0] + low[i][2];
		out[2 * i + 1] = low[i][1] + low[i][3];
	}
}

/* Takes the weights of 16 keys into the running softmax and turns them into an A fragment. */
template <int HEAD_DIM>
static __device__ __forceinline__ void weigh_tile(
	struct decode_state<HEAD_DIM> &state, float score[4], int n_keys, uint32_t weights[4])
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
	float sum = 0.0f;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		score[i] = exp2_fast(score[i] - top);
		sum += score[i];
	}
	state.peak = top;
	state.sum = state.sum * keep + sum; /* of this lane's keys; lanes are added at the end */
#pragma unroll
	for (int i = 0; i < HEAD_DIM / 8; i++)
#pragma unroll
		for (int k = 0; k < 4; k++)
			state.out[i][k] *= keep;
	weights[0] = pack_f16(score[0], score[1]);
	weights[1] = pack_f16_rest(score[0], score[1], weights[0]);
	weights[2] = pack_f16(score[2], score[3]);
	weights[3] = pack_f16_rest(score[2], score[3], weights[2]);
}

template <int HEAD_DIM>
static __device__ __forceinline__ void add_values(
	struct decode_state<HEAD_DIM> &state, const uint32_t weights[4], const __half *values)
{
	const int lane = threadIdx.x % CUDA_WARP;
	const struct tile_lane<HEAD_DIM> value(values, lane % 16, lane / 16 * 8);
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		uint32_t v[4];
		load_matrices_transposed(v, value.at(d));
		mma_f16(state.out[d / 8], weights, v[0], v[1]);
		mma_f16(state.out[d / 8 + 1], weights, v[2], v[3]);
	}
}

/* Place of output d of a head among a warp's results, which lie over its tile: heads in different banks. */
template <int HEAD_DIM> static __device__ __forceinline__ int result_at(int head, int d)
{
	return head * HEAD_DIM + (d ^ head % 4 * 8);
}

/* Adds the splits' results in split order; the block that finishes a row's last split does it. */
template <int HEAD_DIM>
static __device__ __forceinline__ void merge_splits(
	const struct kn_attention &a, const struct attention_cut &cut, const float *splits, const struct decode_row &r)
{
	const int stride = cut.heads_per_block * (HEAD_DIM + 2);
#pragma unroll 1
	for (int i = threadIdx.x; i < r.heads.count * HEAD_DIM; i += decode_shape<HEAD_DIM>::THREADS) {
		const int head = i / HEAD_DIM;
		const float *peaks = splits + cut.heads_per_block * HEAD_DIM + head, *sums = peaks + cut.heads_per_block;
		float top = -INFINITY, total = 0.0f, divisor = 0.0f;
#pragma unroll 4
		for (int s = 0; s < r.n_splits; s++)
			top = fmaxf(top, __ldcg(peaks + s * stride));
#pragma unroll 4
		for (int s = 0; s < r.n_splits; s++) {
			const int at = s * stride;
			const float scale = exp2_fast(__ldcg(peaks + at) - top);
			total = fmaf(scale, __ldcg(splits + at + i), total);
			divisor = fmaf(scale, __ldcg(sums + at), divisor);
		}
		store_out(a, cut, ((int64_t)r.row * a.n_heads + r.heads.first) * HEAD_DIM + i, __fdividef(total, divisor));
	}
}

/* Results of a block's warps for one split. */
struct decode_results {
	float peaks[decode_shape<128>::WARPS][ATTENTION_HEADS_PER_BLOCK], sums[decode_shape<128>::WARPS][ATTENTION_HEADS_PER_BLOCK];
};

/* A warp leaves its results: sums over its tiles, over the first of its tiles of keys. */
template <int HEAD_DIM>
static __device__ __forceinline__ void leave_results(
	const struct decode_state<HEAD_DIM> &state, float *result, struct decode_results &results)
{
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	float sum = state.sum;
	sum += __shfl_xor_sync(0xffffffffu, sum, 1);
	sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
	for (int i = 0; i < HEAD_DIM / 8; i++)
		*(float2 *)(result + result_at<HEAD_DIM>(lane / 4, 8 * i + lane % 4 * 2)) =
			make_float2(state.out[i][0] + state.out[i][2], state.out[i][1] + state.out[i][3]);
	if (lane % 4 == 0) {
		results.peaks[warp][lane / 4] = state.peak;
		results.sums[warp][lane / 4] = sum;
	}
}

/* Adds the warps' results in warp order: into the row's output where this is its only split, else into partial. Warps without a
 * tile count nothing. */
template <int HEAD_DIM>
static __device__ __forceinline__ void merge_warps(const struct kn_attention &a, const struct attention_cut &cut,
	const struct decode_row &r, const __half *tiles, const struct decode_results &results, float *partial)
{
	using shape = decode_shape<HEAD_DIM>;
#pragma unroll 1
	for (int i = threadIdx.x; i < r.heads.count * HEAD_DIM; i += shape::THREADS) {
		const int head = i / HEAD_DIM, d = i % HEAD_DIM;
		float top = -INFINITY, total = 0.0f, divisor = 0.0f;
#pragma unroll
		for (int w = 0; w < shape::WARPS; w++)
			top = fmaxf(top, results.peaks[w][head]);
#pragma unroll
		for (int w = 0; w < shape::WARPS; w++) {
			const float scale = exp2_fast(results.peaks[w][head] - top);
			total = fmaf(scale, ((const float *)(tiles + w * shape::TILE))[result_at<HEAD_DIM>(head, d)], total);
			divisor = fmaf(scale, results.sums[w][head], divisor);
		}
		if (r.n_splits == 1) {
			store_out(a, cut, ((int64_t)r.row * a.n_heads + r.heads.first) * HEAD_DIM + i, __fdividef(total, divisor));
			continue;
		}
		partial[i] = total;
		if (d == 0) {
			partial[cut.heads_per_block * HEAD_DIM + head] = top;
			partial[cut.heads_per_block * (HEAD_DIM + 1) + head] = divisor;
		}
	}
}

/* Whether this block is the last of those that share a row's splits. Asked by whole blocks that have written theirs. */
static __device__ __forceinline__ bool is_last_split(const struct decode_row &r, uint32_t *ticket)
{
	bool last = false;
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		last = atomicAdd(ticket, 1) == min((int)gridDim.x, r.n_splits) - 1;
		if (last)
			*ticket = 0; /* ready for the next step */
	}
	last = __syncthreads_or(last);
	if (last)
		__threadfence();
	return last;
}

/* Block: blockIdx.x-th, gridDim.x-th further splits of the keys of every gridDim.z-th row, for query heads that share a KV head.
 * Warp: every WARPS-th tile of 16 keys of the split, which is one block of the cache, in its own parts of shared memory.
 * Cached keys of the first tiles are asked for before the wait for the kernel in front: no kernel of this step writes them.
 * Steps are apart: between two of them the host synchronises, or a graph begins. */
template <int HEAD_DIM, int STAGES>
__global__ void __launch_bounds__(decode_shape<HEAD_DIM>::THREADS, HEAD_DIM <= 128 ? 2 : 1)
	attention_decode_kernel(const struct kn_attention a, const struct attention_cut cut, float *partials, uint32_t *tickets)
{
	using shape = decode_shape<HEAD_DIM>;
	extern __shared__ __align__(16) __half tiles[]; /* [STAGES][keys, values][WARPS] tiles */
	__shared__ __align__(16) __half query[16][shape::QUERY_LINE];
	__shared__ struct decode_results results;
	constexpr int VALUES = shape::WARPS * shape::TILE, STAGE = 2 * VALUES, STEP = shape::WARPS * KN_KV_BLOCK_TOKENS;
	const int warp = threadIdx.x / CUDA_WARP;
	__half *mine = tiles + warp * shape::TILE;
	bool waited = false;
	dependency_release();
	if (cut.tile_rows > 0) { /* often no row is left for this kernel: it must not end before the one in front */
		dependency_wait();
		waited = true;
		if (!any_tile_is_mixed(a, cut))
			return;
	}
	for (int i = threadIdx.x; i < 16 * shape::QUERY_LINE / 2; i += shape::THREADS)
		((__half2 *)query)[i] = __half2();
#pragma unroll 1
	for (int row = blockIdx.z; row < cut.n_rows; row += gridDim.z) {
		if (tile_is_prefill(a, cut, row))
			continue;
		const struct decode_row r = find_row(a, cut, row);
		const int partial_floats = cut.heads_per_block * (HEAD_DIM + 2), group = blockIdx.z * cut.n_groups + blockIdx.y;
		float *splits = partials + (int64_t)group * (ATTENTION_SPLITS_MAX * partial_floats);
#pragma unroll 1
		for (int split = blockIdx.x; split < r.n_splits; split += gridDim.x) {
			const int begin = split * r.split_tokens, end = min(begin + r.split_tokens, r.position + 1);
			struct decode_state<HEAD_DIM> state = {
			};
			state.peak = -INFINITY;
			int token = begin + warp * KN_KV_BLOCK_TOKENS, stage = 0;
			__syncthreads(); /* query and results of the split before have been read */
			int32_t blocks[STAGES];
#pragma unroll
			for (int i = 0; i < STAGES; i++)
				blocks[i] = block_of(r, token + i * STEP, end);
#pragma unroll
			for (int i = 0; i < 2 * STAGES; i++)
				request_tile<HEAD_DIM>(a, r, i % 2 ? a.v_cache : a.k_cache, blocks[i / 2], token + i / 2 * STEP,
					end, mine + i * VALUES);
			if (!waited)
				dependency_wait();
			waited = true;
			fill_query<HEAD_DIM>(a, r, query);
			/* Turn -1 fills fresh lines of the first tiles, later turns work on one tile and fill the next one in its
			 * place. */
#pragma unroll 1
			for (int turn = -1; turn < 0 || token < end; turn++) {
				int filled = 0, n_filled = STAGES, ahead = token;
				if (turn >= 0) {
					__half *keys = mine + stage * STAGE, *values = keys + VALUES;
					float score[4];
					uint32_t weights[4];
					ahead = token + STAGES * STEP;
					const int32_t block = block_of(r, ahead, end);
					copy_async_wait<2 * STAGES - 1>();
					__syncwarp();
					score_tile<HEAD_DIM>(query, keys, score);
					__syncwarp();
					request_tile<HEAD_DIM>(a, r, a.k_cache, block, ahead, end, keys);
					weigh_tile<HEAD_DIM>(state, score, end - token, weights);
					copy_async_wait<2 * STAGES - 1>();
					__syncwarp();
					add_values<HEAD_DIM>(state, weights, values);
					__syncwarp();
					request_tile<HEAD_DIM>(a, r, a.v_cache, block, ahead, end, values);
					filled = stage;
					n_filled = 1;
					token += STEP;
					stage = (stage + 1) % STAGES;
				}
#pragma unroll 1
				for (int i = 0; i < n_filled; i++)
					fill_fresh<HEAD_DIM>(a, r, ahead + i * STEP, end, mine + (filled + i) * STAGE,
						mine + (filled + i) * STAGE + VALUES);
				if (turn < 0)
					__syncthreads();
			}
			copy_async_wait<0>();
			__syncwarp();
			leave_results<HEAD_DIM>(state, (float *)mine, results);
			__syncthreads();
			merge_warps<HEAD_DIM>(a, cut, r, tiles, results, splits + split * partial_floats);
		}
		if (r.n_splits > 1 && blockIdx.x < r.n_splits && is_last_split(r, tickets + group))
			merge_splits<HEAD_DIM>(a, cut, splits, r);
	}
}

template <int HEAD_DIM, int STAGES>
static cudaError_t launch(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut, dim3 grid)
{
	return launch_dependent(backend->stream, grid, dim3(decode_shape<HEAD_DIM>::THREADS),
		STAGES * decode_shape<HEAD_DIM>::STAGE_BYTES, attention_decode_kernel<HEAD_DIM, STAGES>, *args, *cut,
		backend->attention_partials, backend->attention_tickets);
}

template <int HEAD_DIM>
static cudaError_t launch(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	/* Enough blocks for the card; more would be empty ones that wait for shared memory. Rows in a step with prefill tiles are
	 * few, and their blocks do all splits themselves, since several rows take turns in one place for partial results. */
	int rows = cut->n_rows < ATTENTION_DECODE_ROWS_MAX ? cut->n_rows : ATTENTION_DECODE_ROWS_MAX, splits = 1;
	if (cut->tile_rows > 0 && rows > ATTENTION_MIXED_BLOCKS)
		rows = ATTENTION_MIXED_BLOCKS;
	if (cut->tile_rows == 0)
		splits = backend->n_sms / (rows * cut->n_groups);
	splits = splits < 1 ? 1 : splits > ATTENTION_SPLITS_MAX ? ATTENTION_SPLITS_MAX : splits;
	dim3 grid(splits, cut->n_groups, rows);
	if (rows * cut->n_groups > backend->n_sms)
		return launch<HEAD_DIM, 1>(backend, args, cut, grid);
	return launch<HEAD_DIM, decode_shape<HEAD_DIM>::STAGES>(backend, args, cut, grid);
}

cudaError_t attention_decode(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	switch (args->head_dim) {
	case 64:
		return launch<64>(backend, args, cut);
	case 96:
		return launch<96>(backend, args, cut);
	case 128:
		return launch<128>(backend, args, cut);
	case 256:
		return launch<256>(backend, args, cut);
	default:
		return cudaErrorInvalidValue;
	}
}

template <int HEAD_DIM, int STAGES> static cudaError_t raise_shared(void)
{
	return cudaFuncSetAttribute(attention_decode_kernel<HEAD_DIM, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
		(int)(STAGES * decode_shape<HEAD_DIM>::STAGE_BYTES));
}

template <int HEAD_DIM> static cudaError_t raise_both(void)
{
	cudaError_t error = raise_shared<HEAD_DIM, 1>();
	return error ? error : raise_shared<HEAD_DIM, decode_shape<HEAD_DIM>::STAGES>();
}

cudaError_t attention_decode_init(void)
{
	cudaError_t error = raise_both<64>();
	error = error ? error : raise_both<96>();
	error = error ? error : raise_both<128>();
	return error ? error : raise_both<256>();
}
