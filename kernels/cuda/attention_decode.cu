/* Attention of single rows over the paged fp16 cache: rotary embedding, append and split-key attention in one launch.
 *
 * How a row's keys are cut depends on its position alone, and partial results are merged in a fixed order, so a row's bits do not
 * depend on the other rows of the step or on how many blocks share its splits. Scores and weighted values are tensor core
 * products. q and the weights go into them in two parts of fp16, the second being what rounding to the first lost, so both keep
 * about 22 bits beside fp16 keys and values: q as rows 0 to 7 and 8 to 15 of one operand, weights as two products into one sum. */
#include "kernels/cuda/attention_decode.cuh"

static __device__ __forceinline__ struct decode_row find_row(const struct kn_attention &a, const struct attention_cut &cut, int row)
{
	struct decode_row r;
	r.row = r.first_row = row;
	r.position = a.positions[row];
	const int slot = a.slots[row], before = row > 0 ? a.slots[row - 1] : -1; /* asked for together */
	if (cut.tile_rows == 0 && before == slot)
		while (r.first_row > 0 && a.slots[r.first_row - 1] == slot)
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
	r.heads = heads_of_block(a, cut, blockIdx.x);
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

/* A split, and the cache blocks of a warp's first tiles in it, a lane each, so that they are loaded at once. */
struct decode_split {
	int begin, end;
	int32_t block;
};

template <int HEAD_DIM> static __device__ __forceinline__ struct decode_split find_split(const struct decode_row &r, int split)
{
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	struct decode_split s;
	s.begin = split * r.split_tokens;
	s.end = min(s.begin + r.split_tokens, r.position + 1);
	s.block = r.table[min(s.begin + warp * KN_KV_BLOCK_TOKENS + lane * decode_shape<HEAD_DIM>::STEP, s.end - 1) /
		KN_KV_BLOCK_TOKENS];
	return s;
}

/* The cache block of a warp's tile. */
template <int HEAD_DIM>
static __device__ __forceinline__ int32_t block_of(const struct decode_row &r, const struct decode_split &s, int token)
{
	const int number = (token - s.begin) / decode_shape<HEAD_DIM>::STEP;
	return number < CUDA_WARP ? __shfl_sync(0xffffffffu, s.block, number) : r.table[token / KN_KV_BLOCK_TOKENS];
}

/* A warp's ring of tiles: keys, their values, the next keys. Each is one group of copies, an empty one past the split's end. */
template <int HEAD_DIM, int SLOTS> struct decode_ring {
	__half *tiles;
	int slot, ahead; /* the next to be filled, which is the next to be read when the ring is full, and the token it is for */
	bool is_values;

	__device__ __forceinline__ decode_ring(__half *at, int token) : tiles(at), slot(0), ahead(token), is_values(false)
	{
	}
	__device__ __forceinline__ __half *at(int number) const
	{
		return tiles + number * decode_shape<HEAD_DIM>::TILE;
	}
	/* Fresh lines are left out while they are not known; later they are written with the values. */
	__device__ __forceinline__ void request(
		const struct kn_attention &a, const struct decode_row &r, const struct decode_split &s, bool with_fresh)
	{
		if (ahead < s.end) {
			request_tile<HEAD_DIM>(
				a, r, is_values ? a.v_cache : a.k_cache, block_of<HEAD_DIM>(r, s, ahead), ahead, at(slot));
			if (is_values && with_fresh)
				fill_fresh<HEAD_DIM>(a, r, ahead, s.end, at(slot == 0 ? SLOTS - 1 : slot - 1), at(slot));
			ahead += is_values ? decode_shape<HEAD_DIM>::STEP : 0;
			is_values = !is_values;
		}
		copy_async_commit();
		slot = slot + 1 == SLOTS ? 0 : slot + 1;
	}
};

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

/* A warp leaves its results: sums over its tiles, over the first of its slots. */
template <int HEAD_DIM>
static __device__ __forceinline__ void leave_results(
	const struct decode_state<HEAD_DIM> &state, float *result, struct decode_results &results)
{
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	const float sum = leave_outputs<HEAD_DIM>(state, result, lane);
	if (lane % 4 == 0) {
		results.peaks[warp][lane / 4] = state.peak;
		results.sums[warp][lane / 4] = sum;
	}
}

/* Adds the warps' results in warp order: into the row's output where this is its only split, else into partial. Warps without a
 * tile count nothing. */
template <int HEAD_DIM>
static __device__ __forceinline__ void merge_warps(const struct kn_attention &a, const struct attention_cut &cut,
	const struct decode_row &r, const __half *rings, int ring_elements, const struct decode_results &results, float *partial)
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
			total = fmaf(scale, ((const float *)(rings + w * ring_elements))[result_at<HEAD_DIM>(head, d)], total);
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
		last = atomicAdd(ticket, 1) == min((int)gridDim.z, r.n_splits) - 1;
		if (last)
			*ticket = 0; /* ready for the next step */
	}
	last = __syncthreads_or(last);
	if (last)
		__threadfence();
	return last;
}

/* Block: blockIdx.z-th, gridDim.z-th further splits of the keys of every gridDim.y-th row, for query heads that share a KV head.
 * Warp: every WARPS-th tile of 16 keys of the split, which is one block of the cache, in its own ring of shared memory.
 * Cached keys of the first tiles are asked for before the wait for the kernel in front: no kernel of this step writes them.
 * Steps are apart: a step's first kernel (exchange.cu) waits for the end of the step before, the others of the step for its own. */
template <int HEAD_DIM, int SLOTS>
static __global__ void __launch_bounds__(decode_shape<HEAD_DIM>::THREADS, HEAD_DIM <= 128 ? 2 : 1)
	attention_decode_kernel(const struct kn_attention a, const struct attention_cut cut, float *partials, uint32_t *tickets)
{
	using shape = decode_shape<HEAD_DIM>;
	extern __shared__ __align__(16) __half rings[]; /* [WARPS][SLOTS] tiles */
	__shared__ __align__(16) __half query[16][shape::QUERY_LINE];
	__shared__ struct decode_results results;
	constexpr int RING = SLOTS * shape::TILE;
	const int warp = threadIdx.x / CUDA_WARP;
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
	for (int row = blockIdx.y; row < cut.n_rows; row += gridDim.y) {
		if (tile_is_prefill(a, cut, row))
			continue;
		const struct decode_row r = find_row(a, cut, row);
		const int partial_floats = cut.heads_per_block * (HEAD_DIM + 2), group = blockIdx.y * cut.n_groups + blockIdx.x;
		float *splits = partials + (int64_t)group * (ATTENTION_SPLITS_MAX * partial_floats);
#pragma unroll 1
		for (int split = blockIdx.z; split < r.n_splits; split += gridDim.z) {
			const struct decode_split s = find_split<HEAD_DIM>(r, split);
			struct decode_state<HEAD_DIM> state = {
			};
			state.peak = -INFINITY;
			int token = s.begin + warp * KN_KV_BLOCK_TOKENS;
			struct decode_ring<HEAD_DIM, SLOTS> ring(rings + warp * RING, token);
			__syncthreads(); /* query and results of the split before have been read */
#pragma unroll
			for (int i = 0; i < SLOTS; i++)
				ring.request(a, r, s, false);
			if (!waited)
				dependency_wait();
			waited = true;
			fill_query<HEAD_DIM>(a, r, query);
#pragma unroll 1
			for (int i = 0; i + 1 < SLOTS; i += 2)
				fill_fresh<HEAD_DIM>(a, r, token + i / 2 * shape::STEP, s.end, ring.at(i), ring.at(i + 1));
			__syncthreads();
			uint32_t weights[2], rests[2];
			bool is_values = false;
#pragma unroll 1
			while (token < s.end) { /* a tile a turn: its keys, then its values */
				copy_async_wait<SLOTS - 1>();
				__syncwarp();
				if (is_values) {
					add_values<HEAD_DIM>(state, weights, rests, ring.at(ring.slot));
					token += shape::STEP;
				} else {
					float score[4];
					score_tile<HEAD_DIM>(query, ring.at(ring.slot), score);
					weigh_tile<HEAD_DIM>(state, score, s.end - token, weights, rests);
				}
				is_values = !is_values;
				__syncwarp();
				ring.request(a, r, s, true);
			}
			leave_results<HEAD_DIM>(state, (float *)ring.at(0), results);
			__syncthreads();
			merge_warps<HEAD_DIM>(a, cut, r, rings, RING, results, splits + split * partial_floats);
		}
		if (r.n_splits > 1 && blockIdx.z < r.n_splits && is_last_split(r, tickets + group))
			merge_splits<HEAD_DIM>(a, cut, splits, r);
	}
}

template <int HEAD_DIM, int SLOTS> struct decode_variant {
	static constexpr int SHARED_BYTES =
		decode_shape<HEAD_DIM>::WARPS * SLOTS * decode_shape<HEAD_DIM>::TILE * (int)sizeof(__half);

	static cudaError_t launch(
		struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut, dim3 grid)
	{
		return launch_dependent(backend->stream, grid, dim3(decode_shape<HEAD_DIM>::THREADS), SHARED_BYTES,
			attention_decode_kernel<HEAD_DIM, SLOTS>, *args, *cut, backend->attention_partials,
			backend->attention_tickets);
	}
	static cudaError_t raise_shared(void)
	{
		return cudaFuncSetAttribute(
			attention_decode_kernel<HEAD_DIM, SLOTS>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES);
	}
};

/* Slots where blocks are few: all of a short context. Many blocks have less, so that two of them fit on a processor. Results do not
 * depend on it. */
template <int HEAD_DIM> using few_blocks = decode_variant<HEAD_DIM, (HEAD_DIM <= 128 ? 4 : 2)>;
template <int HEAD_DIM> using many_blocks = decode_variant<HEAD_DIM, (HEAD_DIM < 128 ? 4 : HEAD_DIM == 128 ? 3 : 2)>;

cudaError_t attention_decode(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	/* Enough blocks for the card; more would be empty ones that wait for shared memory. Rows in a step with prefill tiles are
	 * few, and their blocks do all splits themselves, since several rows take turns in one place for partial results. */
	int rows = cut->n_rows < ATTENTION_DECODE_ROWS_MAX ? cut->n_rows : ATTENTION_DECODE_ROWS_MAX, splits = 1;
	if (cut->tile_rows > 0 && rows > ATTENTION_MIXED_BLOCKS)
		rows = ATTENTION_MIXED_BLOCKS;
	if (cut->tile_rows == 0)
		splits = backend->n_sms / (rows * cut->n_groups);
	splits = splits < 1 ? 1 : splits > ATTENTION_SPLITS_MAX ? ATTENTION_SPLITS_MAX : splits;
	const dim3 grid(cut->n_groups, rows, splits);
	const bool few = rows * cut->n_groups <= backend->n_sms;
	return for_head_dim(args->head_dim, [&](auto dim) {
		return few ? few_blocks<dim.value>::launch(backend, args, cut, grid)
			   : many_blocks<dim.value>::launch(backend, args, cut, grid);
	});
}

cudaError_t attention_decode_init(void)
{
	return for_every_head_dim([](auto dim) {
		cudaError_t error = few_blocks<dim.value>::raise_shared();
		return error ? error : many_blocks<dim.value>::raise_shared();
	});
}
