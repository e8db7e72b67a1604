/* Tall tiles: all activations are the 64-row operand, twice where there are 128, the tile's weights the other. With SwiGLU eight
 * gates and their ups are neighbours in a tile. Short matrices are also split by columns between the two blocks of a cluster. */
#ifndef KERNELS_CUDA_BATCH_TALL_CUH
#define KERNELS_CUDA_BATCH_TALL_CUH

#include "kernels/cuda/batch_stage.cuh"

/* Sizes. ROWS: activation rows, 64 a product at least. With 128 each warpgroup multiplies 64 rows by all weight rows of the tile,
 * else all rows by half of them. */
template <int ROWS_, int TILE_, int SPLIT_> struct tall_shape {
	static constexpr int ROWS = ROWS_, TILE = TILE_, SPLIT = SPLIT_;
	static constexpr bool IS_LOW = false;
	static constexpr int GROUPS = 2, CONSUMERS = GROUPS * HOPPER_GROUP_THREADS, PARTS = ROWS == 128 ? 1 : GROUPS;
	static constexpr int COLUMNS = ROWS == 128 ? TILE : TILE / 2; /* of a product */
	static constexpr int EIGHTS = COLUMNS / 8; /* of weight rows */
	static constexpr int W_BYTES = TILE * HOPPER_LINE_BYTES, X_BYTES = ROWS * HOPPER_LINE_BYTES;
	static constexpr int X_STAGE_BYTES =
		(ROWS < 64 ? 64 : ROWS) * HOPPER_LINE_BYTES; /* rows past the last: whatever is there */
	static constexpr int SENT_BYTES = SPLIT == 1 ? 0 : 2 * EIGHTS * CONSUMERS * (int)sizeof(float);
	static constexpr int STAGES = (BATCH_SHARED_BYTES - SENT_BYTES) / (W_BYTES + X_STAGE_BYTES);
	/* What gates leave of an activation row: an odd number of 16-byte pieces, so that rows begin at different banks. */
	static constexpr int GATED_BYTES = (COLUMNS / 16 | 1) * 16;

	/* Shared memory. */
	struct memory {
		alignas(HOPPER_ATOM_BYTES) uint8_t w[STAGES][W_BYTES];
		uint8_t x[STAGES][X_STAGE_BYTES];
		float4 sums[EIGHTS / 2][SPLIT == 1 ? 1 : CONSUMERS]; /* from the other block of a cluster */
		uint64_t full[STAGES], empty[STAGES], sums_full, scales_full;
		float scales[ROWS < 64 ? 64 : ROWS];
	};
	static_assert(sizeof(struct memory) <= 227 << 10, "a block's shared memory");
	static_assert(COLUMNS % 16 == 0, "a tile");
	static_assert(STAGES >= 4 && 16 * GATED_BYTES <= (ROWS == 128 ? X_BYTES : W_BYTES) / GROUPS, "room for what gates leave");

	/* Where a warp leaves what it has gated, once its warpgroup has multiplied: in a stage's part that only this group reads.
	 */
	static __device__ __forceinline__ uint32_t gated_place(struct memory &shared)
	{
		const int group = threadIdx.x / HOPPER_GROUP_THREADS, stage = threadIdx.x / CUDA_WARP % 4;
		return ROWS == 128 ? shared_address(shared.x[stage]) + group * (X_BYTES / GROUPS)
				   : shared_address(shared.w[stage]) + group * (W_BYTES / GROUPS);
	}
};

/* Where a thread's accumulators go: sums[4 * j + 2 * half + c] is activation row + 8 * half, weight row line + 8 * j + c. */
struct tall_place {
	int row, line;

	template <typename SHAPE> static __device__ __forceinline__ tall_place of_thread(int first_line)
	{
		const int group = threadIdx.x / HOPPER_GROUP_THREADS, warp = threadIdx.x / CUDA_WARP % 4,
			  lane = threadIdx.x % CUDA_WARP;
		return {(SHAPE::ROWS == 128 ? group * 64 : 0) + warp * 16 + lane / 4,
			first_line + (SHAPE::ROWS == 128 ? 0 : group * SHAPE::COLUMNS) + lane % 4 * 2};
	}
};

/* SwiGLU with an approximate division, to within 2 units in the last place: a tile has many, and exact ones are long code. */
static __device__ __forceinline__ float swiglu_short(float gate, float up)
{
	return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* SwiGLU in fp32: eight gates and their ups are neighbours in the tile. */
template <int COUNT>
static __device__ __forceinline__ void tall_gate(
	const struct batch_args &a, const struct tall_place &place, const float (&sums)[COUNT], const float (&scales)[2])
{
	const int lane_at = place.line % 8, first_at = (place.line - lane_at) / 2 + lane_at, end = a.rows / 2 - first_at;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int row = place.row + half * 8;
		if (row >= a.n_rows)
			continue;
#pragma unroll
		for (int j = 0; j < COUNT / 4; j += 2) {
			const float *gate = &sums[4 * j + 2 * half], *up = gate + 4;
			if (4 * j < end)
				*(float2 *)((float *)a.y + row * a.y_stride + first_at + 4 * j) =
					make_float2(swiglu_short(gate[0] * scales[half], up[0] * scales[half]),
						swiglu_short(gate[1] * scales[half], up[1] * scales[half]));
		}
	}
}

/* The same in the weights' type: a warp's 16 rows meet in shared memory, so that stores take whole sectors. */
template <enum pack_form FORM, typename SHAPE, int COUNT>
static __device__ __forceinline__ void tall_gate_narrow(const struct batch_args &a, typename SHAPE::memory &shared,
	const struct tall_place &place, const float (&sums)[COUNT], const float (&scales)[2])
{
	constexpr int EIGHTS = COUNT / 8; /* of gated columns */
	const int lane = threadIdx.x % CUDA_WARP, group = threadIdx.x / HOPPER_GROUP_THREADS;
	const uint32_t own = SHAPE::gated_place(shared), to = own + lane % 16 * SHAPE::GATED_BYTES;
	named_sync(1 + group, HOPPER_GROUP_THREADS); /* all of the group have multiplied */
#pragma unroll
	for (int e = 0; e < EIGHTS; e++) {
		uint32_t two[2];
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const float *gate = &sums[8 * e + 2 * half], *up = gate + 4, scale = scales[half];
			two[half] = narrow_two<FORM>(
				swiglu_short(gate[0] * scale, up[0] * scale), swiglu_short(gate[1] * scale, up[1] * scale));
		}
		store_matrices(to + 16 * e, two[0], two[1]);
	}
	__syncwarp();
	const int first_row = place.row - lane / 4, first_at = (place.line - lane % 4 * 2) / 2, end = (a.rows / 2 - first_at) / 8;
	uint16_t *y = (uint16_t *)a.y + first_row * a.y_stride + first_at;
#pragma unroll
	for (int i = lane; i < 16 * EIGHTS; i += CUDA_WARP) {
		const int row = i / EIGHTS, e = i % EIGHTS;
		if (first_row + row < a.n_rows && e < end)
			*(uint4 *)(y + row * a.y_stride + 8 * e) = load_shared(own + row * SHAPE::GATED_BYTES + 16 * e);
	}
}

/* What a thread's results in EIGHTS eights of weight rows need besides their sums. Addresses past the end are those of what is
 * there, so that no load waits for a branch. */
template <int EIGHTS> struct tall_known {
	float2 before[EIGHTS], weights[EIGHTS];

	__device__ __forceinline__ void load(const struct batch_args &a, const struct tall_place &place)
	{
		const float *y = (const float *)a.y + min(place.row, a.n_rows - 1) * a.y_stride;
		const auto line = [&](int e) { return min(place.line + 8 * e, a.rows - 2); };
#pragma unroll
		for (int e = 0; e < EIGHTS; e++)
			before[e] = weights[e] = make_float2(0.0f, 0.0f);
		if (a.epilogue == KN_ADD)
#pragma unroll
			for (int e = 0; e < EIGHTS; e++)
				before[e] = __ldcg((const float2 *)(y + line(e)));
		if (a.norm_weight)
#pragma unroll
			for (int e = 0; e < EIGHTS; e++)
				weights[e] = __ldg((const float2 *)(a.norm_weight + line(e)));
	}
};

/* Stores a thread's results of one row; for the norm that reads them next also normed, and returns the sum of their squares. */
template <int EIGHTS>
static __device__ __forceinline__ float tall_store(const struct batch_args &a, const struct tall_place &place,
	const struct tall_known<EIGHTS> &known, const float (&sums)[2 * EIGHTS], float scale)
{
	float *y = (float *)a.y + place.row * a.y_stride + place.line;
	__nv_bfloat16 *normed = a.normed + (int64_t)place.row * a.rows + place.line;
	float squares = 0.0f;
#pragma unroll
	for (int e = 0; e < EIGHTS; e++) {
		const float first = fmaf(sums[2 * e], scale, known.before[e].x),
			    second = fmaf(sums[2 * e + 1], scale, known.before[e].y);
		if (place.row >= a.n_rows || place.line + 8 * e >= a.rows)
			continue;
		*(float2 *)(y + 8 * e) = make_float2(first, second);
		if (!a.norm_weight)
			continue;
		squares = fmaf(first, first, fmaf(second, second, squares));
		*(uint32_t *)(normed + 8 * e) = narrow_two<PACK_BF16>(first * known.weights[e].x, second * known.weights[e].y);
	}
	return squares;
}

/* The same for both rows of a thread, from eight FIRST to the end, a few at a time. */
template <int FIRST, int COUNT>
static __device__ __forceinline__ void tall_store_rest(const struct batch_args &a, struct tall_place place,
	const float (&sums)[COUNT], const float (&scales)[2], float (&squares)[2])
{
	constexpr int EIGHTS = COUNT / 4 - FIRST < 4 ? COUNT / 4 - FIRST : 4;
	if constexpr (EIGHTS > 0) {
		struct tall_known<EIGHTS> known[2];
		const struct tall_place places[2] = {place, {place.row + 8, place.line}};
		known[0].load(a, places[0]);
		known[1].load(a, places[1]);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float own[2 * EIGHTS];
#pragma unroll
			for (int i = 0; i < 2 * EIGHTS; i++)
				own[i] = sums[4 * (FIRST + i / 2) + 2 * half + i % 2];
			squares[half] += tall_store(a, places[half], known[half], own, scales[half]);
		}
		place.line += 8 * EIGHTS;
		tall_store_rest<FIRST + EIGHTS>(a, place, sums, scales, squares);
	}
}

/* Leaves a part of a row's squares. Four neighbours have the same row. */
static __device__ __forceinline__ void tall_leave_squares(const struct batch_args &a, int row, int part, float squares)
{
	squares += __shfl_xor_sync(0xffffffffu, squares, 1);
	squares += __shfl_xor_sync(0xffffffffu, squares, 2);
	if (threadIdx.x % 4 == 0 && row < a.n_rows)
		a.squares[part * BATCH_ROWS_MAX + row] = squares;
}

/* Sends the other block of the cluster its half of the sums, one of every thread's two rows; own: the other row's. */
template <typename SHAPE, int COUNT>
static __device__ __forceinline__ void tall_send_half(
	typename SHAPE::memory &shared, const float (&sums)[COUNT], int rank, float (&own)[2 * SHAPE::EIGHTS])
{
	const uint32_t to = at_rank(shared_address(&shared.sums[0][threadIdx.x]), rank ^ 1),
		       barrier = at_rank(shared_address(&shared.sums_full), rank ^ 1);
#pragma unroll
	for (int i = 0; i < SHAPE::EIGHTS / 2; i++) {
		float away[4];
#pragma unroll
		for (int k = 0; k < 4; k++) {
			const float first = sums[8 * i + k / 2 * 4 + k % 2], second = sums[8 * i + k / 2 * 4 + 2 + k % 2];
			own[4 * i + k] = rank == 0 ? first : second;
			away[k] = rank == 0 ? second : first;
		}
		store_at_rank(to + i * (int)sizeof shared.sums[0], away, barrier);
	}
}

/* A block that multiplies whole rows of its tile. */
template <enum pack_form FORM, typename SHAPE>
static __device__ __forceinline__ void tall_multiply_alone(const struct batch_args &a, typename SHAPE::memory &shared,
	const struct tall_place &place, int w_from, int x_from, int part)
{
	float sums[SHAPE::COLUMNS / 2] = {}, scales[2] = {1.0f, 1.0f}, squares[2] = {0.0f, 0.0f};
	batch_multiply<FORM, SHAPE>(sums, shared, w_from, x_from, a.n_blocks);
	if (a.n_squares > 0) {
		barrier_wait(&shared.scales_full, 0);
		scales[0] = shared.scales[place.row];
		scales[1] = shared.scales[place.row + 8];
	}
	if (a.epilogue == KN_SWIGLU) {
		if (a.y_prepared)
			tall_gate_narrow<FORM, SHAPE>(a, shared, place, sums, scales);
		else
			tall_gate(a, place, sums, scales);
		return;
	}
	tall_store_rest<0>(a, place, sums, scales, squares);
	if (!a.norm_weight)
		return;
	tall_leave_squares(a, place.row, part, squares[0]);
	tall_leave_squares(a, place.row + 8, part, squares[1]);
}

/* One of the two blocks of a cluster, with half of the columns; of every thread's two rows it finishes the one of its rank. */
template <enum pack_form FORM, typename SHAPE>
static __device__ __forceinline__ void tall_multiply_half(const struct batch_args &a, typename SHAPE::memory &shared,
	struct tall_place place, int w_from, int x_from, int part, int rank, int n_blocks)
{
	float sums[SHAPE::COLUMNS / 2] = {}, own[2 * SHAPE::EIGHTS], scale = 1.0f;
	struct tall_known<SHAPE::EIGHTS> known;
	place.row += 8 * rank;
	known.load(a, place);
	batch_multiply<FORM, SHAPE>(sums, shared, w_from, x_from, n_blocks);
	cluster_wait(); /* the other block's barrier is there */
	tall_send_half<SHAPE>(shared, sums, rank, own);
	if (a.n_squares > 0) {
		barrier_wait(&shared.scales_full, 0);
		scale = shared.scales[place.row];
	}
	batch_take_half(shared, own);
	const float squares = tall_store(a, place, known, own, scale);
	if (a.norm_weight)
		tall_leave_squares(a, place.row, part, squares);
}

/* What a multiplying thread does: n_blocks of the columns, then its share of the results. */
template <enum pack_form FORM, typename SHAPE>
static __device__ __forceinline__ void tall_work(
	const struct batch_args &a, typename SHAPE::memory &shared, int tile, int rank, int n_blocks)
{
	const int group = threadIdx.x / HOPPER_GROUP_THREADS;
	const int w_from = SHAPE::ROWS == 128 ? 0 : group * SHAPE::COLUMNS * HOPPER_LINE_BYTES,
		  x_from = SHAPE::ROWS == 128 ? group * 64 * HOPPER_LINE_BYTES : 0;
	const struct tall_place place = tall_place::of_thread<SHAPE>(tile * SHAPE::TILE);
	const int part = SHAPE::PARTS == 1 ? tile : SHAPE::PARTS * tile + group; /* of the squares */
	if constexpr (SHAPE::SPLIT > 1)
		tall_multiply_half<FORM, SHAPE>(a, shared, place, w_from, x_from, part, rank, n_blocks);
	else
		tall_multiply_alone<FORM, SHAPE>(a, shared, place, w_from, x_from, part);
}

#endif
