/* Low tiles, for short matrices: 64 weight rows are the 64-row operand, all activations the other, since so each is read from
 * shared memory once; the other way round a tile as low as this is read twice, and activations are most of what a block reads.
 * Columns are split between the two blocks of a cluster. */
#ifndef KERNELS_CUDA_BATCH_LOW_CUH
#define KERNELS_CUDA_BATCH_LOW_CUH

#include "kernels/cuda/batch_stage.cuh"

/* Sizes. One warpgroup multiplies. */
template <int ROWS_> struct low_shape {
	static constexpr int ROWS = ROWS_, TILE = 64, SPLIT = 2;
	static constexpr bool IS_LOW = true;
	static constexpr int GROUPS = 1, CONSUMERS = HOPPER_GROUP_THREADS, PARTS = 1;
	static constexpr int EIGHTS = ROWS / 16; /* of activation rows that a block finishes */
	static constexpr int W_BYTES = TILE * HOPPER_LINE_BYTES, X_BYTES = ROWS * HOPPER_LINE_BYTES, X_STAGE_BYTES = X_BYTES;
	static constexpr int SENT_BYTES = 4 * EIGHTS * CONSUMERS * (int)sizeof(float);
	static constexpr int STAGES = (BATCH_SHARED_BYTES - SENT_BYTES) / (W_BYTES + X_BYTES);

	/* Shared memory. */
	struct memory {
		alignas(HOPPER_ATOM_BYTES) uint8_t w[STAGES][W_BYTES];
		uint8_t x[STAGES][X_BYTES];
		float4 sums[EIGHTS][CONSUMERS]; /* from the other block of the cluster */
		uint64_t full[STAGES], empty[STAGES], sums_full, scales_full;
		float scales[ROWS], squares[CONSUMERS / CUDA_WARP][ROWS / 2];
	};
	static_assert(sizeof(struct memory) <= 227 << 10, "a block's shared memory");
};

/* Where a thread's results go. Accumulator 4 * j + 2 * half + c is weight row 16 * warp + lane / 4 + 8 * half of the tile,
 * activation row 8 * j + lane % 4 * 2 + c; of the two c it keeps one and takes the neighbouring weight row's from another lane:
 * then result 2 * j + half is activation row row + 8 * j, weight rows line + 8 * half and the next. */
struct low_place {
	int row, line;

	template <int ROWS> static __device__ __forceinline__ low_place of_thread(int first_line, int rank)
	{
		const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
		return {rank * (ROWS / 2) + lane % 4 * 2 + lane / 4 % 2, first_line + 16 * warp + lane / 8 * 2};
	}
};

/* What they need besides their sums. Addresses past the end are those of what is there. */
template <int EIGHTS> struct low_known {
	float2 before[2 * EIGHTS], weights[2];

	__device__ __forceinline__ void load(const struct batch_args &a, const struct low_place &place)
	{
		const auto line = [&](int half) { return min(place.line + 8 * half, a.rows - 2); };
#pragma unroll
		for (int i = 0; i < 2 * EIGHTS; i++)
			before[i] = make_float2(0.0f, 0.0f);
		weights[0] = weights[1] = make_float2(0.0f, 0.0f);
		if (a.epilogue == KN_ADD)
#pragma unroll
			for (int i = 0; i < 2 * EIGHTS; i++)
				before[i] = __ldcg((const float2 *)((const float *)a.y +
					min(place.row + i / 2 * 8, a.n_rows - 1) * a.y_stride + line(i % 2)));
		if (a.norm_weight)
#pragma unroll
			for (int half = 0; half < 2; half++)
				weights[half] = __ldg((const float2 *)(a.norm_weight + line(half)));
	}
};

/* Sends the other block of the cluster its half of the activation rows' sums; own: the others. */
template <typename SHAPE>
static __device__ __forceinline__ void low_send_half(
	typename SHAPE::memory &shared, const float (&sums)[8 * SHAPE::EIGHTS], int rank, float (&own)[4 * SHAPE::EIGHTS])
{
	const uint32_t to = at_rank(shared_address(&shared.sums[0][threadIdx.x]), rank ^ 1),
		       barrier = at_rank(shared_address(&shared.sums_full), rank ^ 1);
#pragma unroll
	for (int j = 0; j < SHAPE::EIGHTS; j++) {
		float away[4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float first = sums[4 * j + k], second = sums[4 * (SHAPE::EIGHTS + j) + k];
			own[4 * j + k] = rank == 0 ? first : second;
			away[k] = rank == 0 ? second : first;
		}
		store_at_rank(to + j * (int)sizeof shared.sums[0], away, barrier);
	}
}

/* Stores a thread's results of eight j; for the norm that reads them next also normed, and returns the sum of their squares. */
template <int EIGHTS>
static __device__ __forceinline__ float low_store(const struct batch_args &a, const struct low_place &place,
	const struct low_known<EIGHTS> &known, int j, const float *sums, float scale)
{
	const int row = place.row + 8 * j;
	const bool is_odd = threadIdx.x / 4 % 2;
	float squares = 0.0f;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int line = place.line + 8 * half;
		const float mine = is_odd ? sums[2 * half + 1] : sums[2 * half],
			    theirs = is_odd ? sums[2 * half] : sums[2 * half + 1];
		const float other = __shfl_xor_sync(0xffffffffu, theirs, 4);
		const float2 before = known.before[2 * j + half];
		const float first = fmaf(is_odd ? other : mine, scale, before.x),
			    second = fmaf(is_odd ? mine : other, scale, before.y);
		if (row >= a.n_rows || line >= a.rows)
			continue;
		*(float2 *)((float *)a.y + row * a.y_stride + line) = make_float2(first, second);
		if (!a.norm_weight)
			continue;
		squares = fmaf(first, first, fmaf(second, second, squares));
		*(uint32_t *)(a.normed + (int64_t)row * a.rows + line) =
			narrow_two<PACK_BF16>(first * known.weights[half].x, second * known.weights[half].y);
	}
	return squares;
}

/* Leaves the tile's part of the squares of the block's activation rows. */
template <typename SHAPE>
static __device__ __forceinline__ void low_leave_squares(
	const struct batch_args &a, typename SHAPE::memory &shared, int part, int rank, const float (&squares)[SHAPE::EIGHTS])
{
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
#pragma unroll
	for (int j = 0; j < SHAPE::EIGHTS; j++) {
		float sum = squares[j];
		sum += __shfl_xor_sync(0xffffffffu, sum, 8);
		sum += __shfl_xor_sync(0xffffffffu, sum, 16);
		if (lane < 8)
			shared.squares[warp][8 * j + lane % 4 * 2 + lane / 4] = sum;
	}
	named_sync(1, SHAPE::CONSUMERS);
	const int row = rank * (SHAPE::ROWS / 2) + threadIdx.x;
	if (threadIdx.x >= SHAPE::ROWS / 2 || row >= a.n_rows)
		return;
	float sum = 0.0f;
#pragma unroll
	for (int w = 0; w < SHAPE::CONSUMERS / CUDA_WARP; w++)
		sum += shared.squares[w][threadIdx.x];
	a.squares[part * BATCH_ROWS_MAX + row] = sum;
}

/* What a multiplying thread does: n_blocks of the columns, then its share of the activation rows that the block's rank names. */
template <enum pack_form FORM, typename SHAPE>
static __device__ __forceinline__ void low_work(
	const struct batch_args &a, typename SHAPE::memory &shared, int tile, int rank, int n_blocks)
{
	constexpr int EIGHTS = SHAPE::EIGHTS;
	const struct low_place place = low_place::of_thread<SHAPE::ROWS>(tile * SHAPE::TILE, rank);
	float sums[8 * EIGHTS] = {}, own[4 * EIGHTS], squares[EIGHTS];
	struct low_known<EIGHTS> known;
	known.load(a, place);
	batch_multiply<FORM, SHAPE>(sums, shared, 0, 0, n_blocks);
	cluster_wait(); /* the other block's barrier is there */
	low_send_half<SHAPE>(shared, sums, rank, own);
	if (a.n_squares > 0)
		barrier_wait(&shared.scales_full, 0);
	batch_take_half(shared, own);
#pragma unroll
	for (int j = 0; j < EIGHTS; j++) {
		const float scale = a.n_squares > 0 ? shared.scales[place.row + 8 * j] : 1.0f;
		squares[j] = low_store(a, place, known, j, &own[4 * j], scale);
	}
	if (a.norm_weight)
		low_leave_squares<SHAPE>(a, shared, tile, rank, squares);
}

#endif
