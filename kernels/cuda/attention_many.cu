/* Attention of many single rows over the paged fp16 cache: what attention_decode.cu does, with a warp for each row and KV head.
 *
 * Where rows are enough to give most warps of the card one, warps that share a row only wait for each other: here each has a ring
 * of its own, walks along the whole row and looks its row up once. Only rows of many keys are cut, again by their position alone,
 * so a row's bits do not depend on the other rows of the step; they differ from those of attention_decode.cu, whose warps meet. */
#include "kernels/cuda/attention_decode.cuh"

#define MANY_SPLIT_TOKENS 512 /* guess: what a warp on its own does in about the time that a full card takes for rows of 200 */
#define MANY_BLOCK_TILES 32 /* whose cache blocks a warp's lanes know */
#define MANY_ROWS_LANE (ATTENTION_DECODE_ROWS_MAX / CUDA_WARP)
#define MANY_SHARED_BYTES (227 << 10) /* all that a block may have on Hopper */

template <int HEAD_DIM> struct many_shape {
	static constexpr int WARPS = 8;
	static constexpr int TILE = decode_shape<HEAD_DIM>::TILE;
	static constexpr int FITTING = MANY_SHARED_BYTES / (WARPS * TILE * (int)sizeof(__half));
	static constexpr int SLOTS = FITTING < 8 ? FITTING : 8;
	static constexpr int SHARED_BYTES = WARPS * SLOTS * TILE * (int)sizeof(__half);
};

/* --- which row, and which of its splits --------------------------------------------------------------------------- */

/* All rows of the step, a few to each lane: lane i has rows MANY_ROWS_LANE * i and on. */
struct many_rows {
	int positions[MANY_ROWS_LANE], slots[MANY_ROWS_LANE];
	int splits_before; /* of rows of earlier lanes */
};

static __device__ __forceinline__ int split_tokens_of(int position)
{
	const int tokens = position / ATTENTION_SPLITS_MAX + 1; /* rounded up */
	return max((tokens + KN_KV_BLOCK_TOKENS - 1) / KN_KV_BLOCK_TOKENS * KN_KV_BLOCK_TOKENS, MANY_SPLIT_TOKENS);
}

static __device__ __forceinline__ int n_splits_of(int position)
{
	return position < MANY_SPLIT_TOKENS ? 1 : position / split_tokens_of(position) + 1;
}

static __device__ __forceinline__ struct many_rows look_up_rows(const struct kn_attention &a, int n_rows)
{
	const int lane = threadIdx.x % CUDA_WARP;
	struct many_rows rows;
	int n_splits = 0;
#pragma unroll
	for (int i = 0; i < MANY_ROWS_LANE; i++) {
		const int row = lane * MANY_ROWS_LANE + i;
		rows.positions[i] = row < n_rows ? a.positions[row] : 0;
		rows.slots[i] = row < n_rows ? a.slots[row] : -1;
	}
#pragma unroll
	for (int i = 0; i < MANY_ROWS_LANE; i++)
		n_splits += lane * MANY_ROWS_LANE + i < n_rows ? n_splits_of(rows.positions[i]) : 0;
	rows.splits_before = n_splits;
	for (int offset = 1; offset < CUDA_WARP; offset *= 2) {
		const int other = __shfl_up_sync(0xffffffffu, rows.splits_before, offset);
		rows.splits_before += lane >= offset ? other : 0;
	}
	rows.splits_before -= n_splits;
	return rows;
}

/* The number-th of all rows' splits, rows in order; false past the last. *split: its number among the row's. */
static __device__ __forceinline__ bool find_row(const struct kn_attention &a, const struct attention_cut &cut,
	const struct many_rows &rows, int number, struct decode_row &r, int *split)
{
	const int lane = threadIdx.x % CUDA_WARP, owner = 31 - __clz(__ballot_sync(0xffffffffu, rows.splits_before <= number));
	int left = number - rows.splits_before, at = 0;
	bool found = false;
#pragma unroll
	for (int i = 0; i < MANY_ROWS_LANE; i++) {
		const int n_splits = lane * MANY_ROWS_LANE + i < cut.n_rows ? n_splits_of(rows.positions[i]) : 0;
		found = found || left < n_splits;
		left -= found ? 0 : n_splits;
		at += found ? 0 : 1;
	}
	if (!__shfl_sync(0xffffffffu, found, owner))
		return false;
	*split = __shfl_sync(0xffffffffu, left, owner);
	r.row = __shfl_sync(0xffffffffu, lane * MANY_ROWS_LANE + at, owner);
	int position = 0, slot = 0, before = -1; /* the last row in front that is of another sequence */
#pragma unroll
	for (int i = 0; i < MANY_ROWS_LANE; i++) {
		position = at == i ? rows.positions[i] : position;
		slot = at == i ? rows.slots[i] : slot;
	}
	r.position = __shfl_sync(0xffffffffu, position, owner);
	slot = __shfl_sync(0xffffffffu, slot, owner);
#pragma unroll
	for (int i = 0; i < MANY_ROWS_LANE; i++) {
		const int row = lane * MANY_ROWS_LANE + i;
		before = row < r.row && rows.slots[i] != slot ? row : before;
	}
	for (int offset = CUDA_WARP / 2; offset > 0; offset /= 2)
		before = max(before, __shfl_xor_sync(0xffffffffu, before, offset));
	r.first_row = before + 1;
	r.first_fresh = r.position - (r.row - r.first_row);
	r.split_tokens = split_tokens_of(r.position);
	r.n_splits = n_splits_of(r.position);
	r.table = a.block_tables + slot * a.block_table_stride;
	return true;
}

/* --- what a warp does with a split -------------------------------------------------------------------------------- */

/* q of the heads as a left operand, scaled for powers of two: row g of it head g, row g + 8 what fp16 lost of it. */
template <int HEAD_DIM> struct many_query {
	uint32_t pairs[HEAD_DIM / 16][4];

	__device__ __forceinline__ void put(int d, float x, float y)
	{
		const int i = d / 16, low = d % 16 / 8 * 2;
		pairs[i][low] = pack_f16(x, y);
		pairs[i][low + 1] = pack_f16_rest(x, y, pairs[i][low]);
	}
	/* Lane (g, t): elements 2t and 2t + 1 of every eight of head g. */
	__device__ __forceinline__ void load(const struct kn_attention &a, const struct decode_row &r)
	{
		const int g = threadIdx.x % CUDA_WARP / 4, t = threadIdx.x % 4, head = min(g, r.heads.count - 1);
		const float *q = a.qkv + (int64_t)r.row * ((a.n_heads + 2 * a.n_kv_heads) * HEAD_DIM) +
			(r.heads.first + head) * HEAD_DIM + 2 * t;
		const float *turns = a.rope_cos_sin + (int64_t)r.position * HEAD_DIM;
		const float scale = g < r.heads.count ? a.scale * LOG2_E : 0.0f;
#pragma unroll
		for (int d = 0; d < HEAD_DIM / 2; d += 8) {
			const float2 low = *(const float2 *)(q + d), high = *(const float2 *)(q + d + HEAD_DIM / 2);
			float2 first, second; /* one pair after its turn, or element 2t of both halves */
			if (a.rope_interleaved) {
				first = rotate(low.x, low.y, *(const float2 *)(turns + d + 2 * t));
				second = rotate(high.x, high.y, *(const float2 *)(turns + d + HEAD_DIM / 2 + 2 * t));
			} else {
				const float4 turn = *(const float4 *)(turns + 2 * (d + 2 * t));
				const float2 even = rotate(low.x, high.x, make_float2(turn.x, turn.y)),
					     odd = rotate(low.y, high.y, make_float2(turn.z, turn.w));
				first = make_float2(even.x, odd.x);
				second = make_float2(even.y, odd.y);
			}
			put(d, first.x * scale, first.y * scale);
			put(d + HEAD_DIM / 2, second.x * scale, second.y * scale);
		}
	}
};

/* As score_tile, with q in registers. */
template <int HEAD_DIM>
static __device__ __forceinline__ void score_keys(const struct many_query<HEAD_DIM> &query, const __half *keys, float out[4])
{
	const struct tile_lane<HEAD_DIM> key(keys);
	float sum[2][4] = {};
#pragma unroll
	for (int i = 0; i < HEAD_DIM / 16; i++) {
		uint32_t k[4];
		load_matrices(k, key.at(16 * i));
		mma_f16(sum[0], query.pairs[i], k[0], k[1]);
		mma_f16(sum[1], query.pairs[i], k[2], k[3]);
	}
#pragma unroll
	for (int i = 0; i < 4; i++)
		out[i] = sum[i / 2][i % 2] + sum[i / 2][i % 2 + 2];
}

/* The warp's ring: keys, their values, the next keys, as decode_ring has them, of all tiles from begin to end. */
template <int HEAD_DIM> struct many_ring {
	__half *tiles;
	int slot, ahead, end;
	int32_t block; /* of the tile whose number from `ahead` on, by MANY_BLOCK_TILES, is the lane's */
	bool is_values;

	__device__ __forceinline__ void look_up_blocks(const struct decode_row &r)
	{
		const int lane = threadIdx.x % CUDA_WARP;
		block = r.table[min(ahead + lane * KN_KV_BLOCK_TOKENS, end - 1) / KN_KV_BLOCK_TOKENS];
	}
	__device__ __forceinline__ void begin(const struct decode_row &r, int first, int last)
	{
		slot = 0;
		ahead = first;
		end = last;
		is_values = false;
		look_up_blocks(r);
	}
	__device__ __forceinline__ __half *at(int number) const
	{
		return tiles + number * many_shape<HEAD_DIM>::TILE;
	}
	__device__ __forceinline__ void request(
		const struct kn_attention &a, const struct decode_row &r, int first, bool with_fresh)
	{
		if (ahead < end) {
			const int number = (ahead - first) / KN_KV_BLOCK_TOKENS % MANY_BLOCK_TILES;
			request_tile<HEAD_DIM>(
				a, r, is_values ? a.v_cache : a.k_cache, __shfl_sync(0xffffffffu, block, number), ahead, at(slot));
			if (is_values) {
				if (with_fresh)
					fill_fresh<HEAD_DIM>(a, r, ahead, end,
						at(slot == 0 ? many_shape<HEAD_DIM>::SLOTS - 1 : slot - 1), at(slot));
				ahead += KN_KV_BLOCK_TOKENS;
				if (number == MANY_BLOCK_TILES - 1 && ahead < end)
					look_up_blocks(r);
			}
			is_values = !is_values;
		}
		copy_async_commit();
		slot = slot + 1 == many_shape<HEAD_DIM>::SLOTS ? 0 : slot + 1;
	}
};

/* The only split of a row: its results. */
template <int HEAD_DIM>
static __device__ __forceinline__ void store_row(
	const struct kn_attention &a, const struct attention_cut &cut, const struct decode_row &r, const float *out, float sum)
{
	const int64_t to = ((int64_t)r.row * a.n_heads + r.heads.first) * HEAD_DIM;
#pragma unroll 1
	for (int base = 0; base < r.heads.count * HEAD_DIM; base += 2 * CUDA_WARP) {
		const int i = base + threadIdx.x % CUDA_WARP * 2, head = i / HEAD_DIM;
		const float divisor = __shfl_sync(0xffffffffu, sum, head * 4 % CUDA_WARP);
		const float2 two = *(const float2 *)(out + result_at<HEAD_DIM>(head % 8, i % HEAD_DIM));
		if (i < r.heads.count * HEAD_DIM)
			store_out_pair(a, cut, to + i, make_float2(__fdividef(two.x, divisor), __fdividef(two.y, divisor)));
	}
}

/* One of several: to partial, laid out [heads * HEAD_DIM] outputs, [heads] peaks, [heads] sums with the heads of a whole part. */
template <int HEAD_DIM>
static __device__ __forceinline__ void store_split(
	const struct attention_cut &cut, const struct decode_row &r, const float *out, float peak, float sum, float *partial)
{
	const int lane = threadIdx.x % CUDA_WARP, peaks = cut.heads_per_block * HEAD_DIM;
#pragma unroll 1
	for (int i = lane; i < r.heads.count * HEAD_DIM; i += CUDA_WARP)
		partial[i] = out[result_at<HEAD_DIM>(i / HEAD_DIM, i % HEAD_DIM)];
	if (lane % 4 == 0 && lane / 4 < r.heads.count) {
		partial[peaks + lane / 4] = peak;
		partial[peaks + cut.heads_per_block + lane / 4] = sum;
	}
}

/* Whether this warp's split of a row and KV head is the last to be done. Asked by whole warps that have stored theirs. */
static __device__ __forceinline__ bool is_last_split(const struct decode_row &r, uint32_t *ticket)
{
	bool last = false;
	__threadfence();
	__syncwarp();
	if (threadIdx.x % CUDA_WARP == 0) {
		last = atomicAdd(ticket, 1) == (uint32_t)r.n_splits - 1;
		if (last)
			*ticket = 0; /* ready for the next step */
	}
	last = __shfl_sync(0xffffffffu, last, 0);
	if (last)
		__threadfence();
	return last;
}

/* Adds a row's splits in their order. Everything is asked for at once, since a warp does this alone. */
template <int HEAD_DIM>
static __device__ __forceinline__ void merge_row(
	const struct kn_attention &a, const struct attention_cut &cut, const struct decode_row &r, const float *splits)
{
	constexpr int LANE_SPLITS = ATTENTION_SPLITS_MAX / 4;
	const int lane = threadIdx.x % CUDA_WARP, stride = cut.heads_per_block * (HEAD_DIM + 2);
	const float *peaks = splits + cut.heads_per_block * HEAD_DIM + min(lane / 4, r.heads.count - 1);
	float factors[LANE_SPLITS], sums[LANE_SPLITS], top = -INFINITY,
						       divisor = 0.0f; /* lane (g, t): head g, splits t, t + 4 and on */
#pragma unroll
	for (int k = 0; k < LANE_SPLITS; k++) {
		const int s = lane % 4 + 4 * k;
		factors[k] = s < r.n_splits ? __ldcg(peaks + s * stride) : -INFINITY;
		sums[k] = s < r.n_splits ? __ldcg(peaks + s * stride + cut.heads_per_block) : 0.0f;
	}
#pragma unroll
	for (int k = 0; k < LANE_SPLITS; k++)
		top = fmaxf(top, factors[k]);
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
	top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
#pragma unroll
	for (int k = 0; k < LANE_SPLITS; k++) {
		factors[k] = exp2_fast(factors[k] - top);
		divisor = fmaf(factors[k], sums[k], divisor);
	}
	divisor += __shfl_xor_sync(0xffffffffu, divisor, 1);
	divisor += __shfl_xor_sync(0xffffffffu, divisor, 2);
	const int64_t to = ((int64_t)r.row * a.n_heads + r.heads.first) * HEAD_DIM;
#pragma unroll 4
	for (int base = 0; base < r.heads.count * HEAD_DIM; base += 2 * CUDA_WARP) {
		const int i = min(base + lane * 2, r.heads.count * HEAD_DIM - 2), head = i / HEAD_DIM;
		float2 total = {};
#pragma unroll
		for (int s = 0; s < ATTENTION_SPLITS_MAX; s++) {
			const float factor = __shfl_sync(0xffffffffu, factors[s / 4], head * 4 + s % 4);
			const float2 two =
				s < r.n_splits ? __ldcg((const float2 *)(splits + s * stride + i)) : make_float2(0.0f, 0.0f);
			total.x = fmaf(factor, two.x, total.x);
			total.y = fmaf(factor, two.y, total.y);
		}
		const float by = __shfl_sync(0xffffffffu, divisor, head * 4);
		if (base + lane * 2 < r.heads.count * HEAD_DIM)
			store_out_pair(a, cut, to + i, make_float2(__fdividef(total.x, by), __fdividef(total.y, by)));
	}
}

/* Warp: every so many-th of all rows' splits and KV heads. Shared: [WARPS][SLOTS] tiles. As in attention_decode_kernel cached keys
 * are asked for before the wait for the kernel in front, and positions, slots and block tables read. */
template <int HEAD_DIM>
static __global__ void __launch_bounds__(many_shape<HEAD_DIM>::WARPS *CUDA_WARP, 1)
	attention_many_kernel(const struct kn_attention a, const struct attention_cut cut, float *partials, uint32_t *tickets)
{
	using shape = many_shape<HEAD_DIM>;
	extern __shared__ __align__(16) __half rings[];
	const int warp = threadIdx.x / CUDA_WARP;
	struct many_ring<HEAD_DIM> ring;
	struct decode_row r;
	bool waited = false;
	int split;
	ring.tiles = rings + warp * shape::SLOTS * shape::TILE;
	dependency_release();
	const struct many_rows rows = look_up_rows(a, cut.n_rows);
#pragma unroll 1
	for (int unit = warp * gridDim.x + blockIdx.x;; unit += shape::WARPS * gridDim.x) {
		const int group = unit % cut.n_groups;
		if (!find_row(a, cut, rows, unit / cut.n_groups, r, &split))
			break;
		r.heads = heads_of_block(a, cut, group);
		const int first = split * r.split_tokens;
		ring.begin(r, first, min(first + r.split_tokens, r.position + 1));
#pragma unroll
		for (int i = 0; i < shape::SLOTS; i++)
			ring.request(a, r, first, false);
		if (!waited)
			dependency_wait();
		waited = true;
		struct many_query<HEAD_DIM> query;
		query.load(a, r);
#pragma unroll 1
		for (int i = 0; i + 1 < shape::SLOTS; i += 2)
			fill_fresh<HEAD_DIM>(a, r, first + i / 2 * KN_KV_BLOCK_TOKENS, ring.end, ring.at(i), ring.at(i + 1));
		struct decode_state<HEAD_DIM> state = {
		};
		state.peak = -INFINITY;
		uint32_t weights[2], rests[2];
		bool is_values = false;
#pragma unroll 1
		for (int token = first; token < ring.end;) { /* a tile a turn: its keys, then its values */
			copy_async_wait<shape::SLOTS - 1>();
			__syncwarp();
			if (is_values) {
				add_values<HEAD_DIM>(state, weights, rests, ring.at(ring.slot));
				token += KN_KV_BLOCK_TOKENS;
			} else {
				float score[4];
				score_keys<HEAD_DIM>(query, ring.at(ring.slot), score);
				weigh_tile<HEAD_DIM>(state, score, ring.end - token, weights, rests);
			}
			is_values = !is_values;
			__syncwarp();
			ring.request(a, r, first, true);
		}
		float *out = (float *)ring.at(0),
		      *splits = partials +
			(int64_t)(r.row * cut.n_groups + group) * (ATTENTION_SPLITS_MAX * cut.heads_per_block * (HEAD_DIM + 2));
		const float sum = leave_outputs<HEAD_DIM>(state, out, threadIdx.x % CUDA_WARP);
		__syncwarp();
		if (r.n_splits == 1) {
			store_row<HEAD_DIM>(a, cut, r, out, sum);
		} else {
			store_split<HEAD_DIM>(
				cut, r, out, state.peak, sum, splits + split * (cut.heads_per_block * (HEAD_DIM + 2)));
			if (is_last_split(r, tickets + r.row * cut.n_groups + group))
				merge_row<HEAD_DIM>(a, cut, r, splits);
		}
		__syncwarp(); /* the first slot has been read */
	}
}

bool attention_many_takes(
	const struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	const int units = cut->n_rows * cut->n_groups;
	return backend->is_hopper && args->few_rows_each && cut->tile_rows == 0 && cut->n_rows > ATTENTION_SAME_BITS_ROWS &&
		cut->n_rows <= ATTENTION_DECODE_ROWS_MAX && units >= backend->n_sms * ATTENTION_MANY_WARPS;
}

cudaError_t attention_many(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	return for_head_dim(args->head_dim, [&](auto dim) {
		using shape = many_shape<dim.value>;
		return launch_dependent(backend->stream, dim3((unsigned)backend->n_sms), dim3(shape::WARPS * CUDA_WARP),
			shape::SHARED_BYTES, attention_many_kernel<dim.value>, *args, *cut, backend->attention_partials,
			backend->attention_tickets);
	});
}

cudaError_t attention_many_init(void)
{
	return for_every_head_dim([](auto dim) {
		return cudaFuncSetAttribute(attention_many_kernel<dim.value>, cudaFuncAttributeMaxDynamicSharedMemorySize,
			many_shape<dim.value>::SHARED_BYTES);
	});
}
