/* The kernel of batch_hopper.cu: a matrix product for up to 128 rows, which streams the weights once.
 *
 * A block has a tile of weight rows, as tall as makes one block for nearly every processor, so that all end together and no sums
 * need to meet in memory. Short matrices are also split by columns between the two blocks of a cluster, which send each other half
 * of their sums at the end. All stages of weights are requested before the wait for the kernel in front, and what the results need
 * besides the sums before the first product. Where a row's columns are added in which order depends on the shape and the number of
 * rows alone.
 *
 * A norm between two products needs no kernel: the first leaves the residual times the norm's weights in bf16, and each block the
 * squares of its part of a row; the second adds these up and scales its results by 1 / sqrt(mean + eps). */
#ifndef KERNELS_CUDA_BATCH_HOPPER_CUH
#define KERNELS_CUDA_BATCH_HOPPER_CUH

#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/hopper.cuh"

#define BATCH_DEPTH 64 /* columns of a stage: one swizzled line */
#define BATCH_GROUPS 2 /* multiplying warpgroups */
#define BATCH_CONSUMERS (BATCH_GROUPS * HOPPER_GROUP_THREADS)
#define BATCH_THREADS (BATCH_CONSUMERS + 2 * CUDA_WARP) /* and one warp that requests, one for the input's norm */
#define BATCH_SHARED_BYTES (225 << 10) /* of the 227 KB that a block may have */

struct batch_args {
	void *y;
	int64_t y_stride;
	int rows; /* a multiple of 8 */
	int n_rows;
	int n_blocks; /* of BATCH_DEPTH columns */
	enum kn_epilogue epilogue;
	bool y_prepared; /* y in the weights' type, else fp32 */
	int n_squares; /* parts of a row's squares that belong to x; 0: x has no norm left to do */
	float eps, mean_of; /* 1 / columns */
	const float *norm_weight; /* KN_ADD: of the norm that reads y next, or NULL */
	__nv_bfloat16 *normed; /* [n_rows][rows]: y times norm_weight */
	float *squares; /* [parts][BATCH_ROWS_MAX]: of x, or of y where norm_weight is set */
};

/* A kernel's sizes. ROWS: activation rows, 64 a product at least. With 128 each warpgroup multiplies 64 rows by all weight rows of
 * the tile, else all rows by half of them. */
template <int ROWS, int TILE, int SPLIT> struct batch_shape {
	static constexpr int COLUMNS = ROWS == 128 ? TILE : TILE / 2; /* of a product */
	static constexpr int EIGHTS = COLUMNS / 8; /* of weight rows */
	static constexpr int W_BYTES = TILE * HOPPER_LINE_BYTES, X_BYTES = ROWS * HOPPER_LINE_BYTES;
	static constexpr int X_STAGE_BYTES =
		(ROWS < 64 ? 64 : ROWS) * HOPPER_LINE_BYTES; /* rows past the last: whatever is there */
	static constexpr int SENT_BYTES = SPLIT == 1 ? 0 : 2 * EIGHTS * BATCH_CONSUMERS * (int)sizeof(float);
	static constexpr int STAGES = (BATCH_SHARED_BYTES - SENT_BYTES) / (W_BYTES + X_STAGE_BYTES);

	/* Shared memory. */
	struct memory {
		alignas(HOPPER_ATOM_BYTES) uint8_t w[STAGES][W_BYTES];
		uint8_t x[STAGES][X_STAGE_BYTES];
		float4 sums[EIGHTS / 2][SPLIT == 1 ? 1 : BATCH_CONSUMERS]; /* from the other block of a cluster */
		uint64_t w_full[STAGES], x_full[STAGES], empty[STAGES], sums_full, scales_full;
		float scales[ROWS < 64 ? 64 : ROWS];
	};
	static_assert(sizeof(struct memory) <= 227 << 10, "a block's shared memory");
	static_assert(COLUMNS % 16 == 0, "a tile");
};

/* --- requesting thread -------------------------------------------------------------------------------------------- */

/* Blocks begin to end of a tile, through the ring of stages. */
template <int ROWS, int TILE, int SPLIT> struct batch_request {
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	const struct batch_args &a;
	typename shape::memory &shared;
	const CUtensorMap &w_map, &x_map;
	int line, begin, end;

	__device__ __forceinline__ void weights(int block, int stage) const
	{
		const bool gated = a.epilogue == KN_SWIGLU;
		barrier_expect(&shared.w_full[stage], shape::W_BYTES);
		tensor_copy(shared_address(shared.w[stage]), &w_map, block * BATCH_DEPTH, gated ? 0 : line, 0,
			gated ? line / 16 : 0, &shared.w_full[stage], HOPPER_READ_ONCE);
	}
	__device__ __forceinline__ void inputs(int block, int stage) const
	{
		barrier_expect(&shared.x_full[stage], shape::X_BYTES);
		tensor_copy(
			shared_address(shared.x[stage]), &x_map, block * BATCH_DEPTH, 0, &shared.x_full[stage], HOPPER_READ_OFTEN);
	}
	/* Weights for all stages, while the kernel in front runs. */
	__device__ __forceinline__ void first_weights(void) const
	{
		for (int block = begin; block < min(begin + shape::STAGES, end); block++)
			weights(block, block - begin);
		tensor_prefetch(&x_map);
	}
	/* Inputs for all stages, then what follows. */
	__device__ __forceinline__ void rest(void) const
	{
		int stage = 0, parity = 0;
		dependency_wait();
		for (int block = begin; block < min(begin + shape::STAGES, end); block++)
			inputs(block, block - begin);
		for (int block = begin + shape::STAGES; block < end; block++) {
			barrier_wait(&shared.empty[stage], parity);
			weights(block, stage);
			inputs(block, stage);
			if (++stage == shape::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
};

/* --- multiplying threads ------------------------------------------------------------------------------------------ */

template <enum pack_form FORM, int COUNT>
static __device__ __forceinline__ void batch_product(float (&sums)[COUNT], uint64_t x, uint64_t w)
{
	if (FORM == PACK_BF16)
		product_bf16(sums, x, w, 1);
	else
		product_f16(sums, x, w, 1);
}

/* Adds n_blocks of the tile to sums. */
template <enum pack_form FORM, int ROWS, int TILE, int SPLIT>
static __device__ __forceinline__ void batch_multiply(float (&sums)[batch_shape<ROWS, TILE, SPLIT>::COLUMNS / 2],
	typename batch_shape<ROWS, TILE, SPLIT>::memory &shared, int n_blocks)
{
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	using memory = typename shape::memory;
	uint32_t base = shared_address(&shared);
	asm volatile("" : "+r"(base)); /* kept, since to find it again takes as long as a product */
	const int part = threadIdx.x / HOPPER_GROUP_THREADS;
	const uint32_t x_part = base + offsetof(memory, x) + (ROWS == 128 ? part * 64 * HOPPER_LINE_BYTES : 0);
	const uint32_t w_part = base + offsetof(memory, w) + (ROWS == 128 ? 0 : part * shape::COLUMNS * HOPPER_LINE_BYTES);
	int stage = 0, parity = 0, before = 0;
#pragma unroll 1
	for (int i = 0; i < n_blocks; i++) {
		const uint64_t x = tile_along_depth(x_part + stage * shape::X_STAGE_BYTES, HOPPER_ATOM_BYTES);
		const uint64_t w = tile_along_depth(w_part + stage * shape::W_BYTES, HOPPER_ATOM_BYTES);
		barrier_wait(base + offsetof(memory, w_full) + stage * 8, parity);
		barrier_wait(base + offsetof(memory, x_full) + stage * 8, parity);
		products_begin();
#pragma unroll
		for (int k = 0; k < BATCH_DEPTH / 16; k++)
			batch_product<FORM>(sums, tile_further(x, 32 * k), tile_further(w, 32 * k));
		products_commit();
		products_wait<1>();
		if (i > 0 && threadIdx.x % CUDA_WARP == 0)
			barrier_arrive(base + offsetof(memory, empty) + before * 8);
		before = stage;
		if (++stage == shape::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
	products_wait<0>();
	products_hold(sums);
}

/* Where a thread's accumulators go: sums[4 * j + 2 * half + c] is activation row + 8 * half, weight row line + 8 * j + c. */
struct batch_place {
	int row, line;

	template <int ROWS, int COLUMNS> static __device__ __forceinline__ batch_place of_thread(int first_line)
	{
		const int part = threadIdx.x / HOPPER_GROUP_THREADS, warp = threadIdx.x / CUDA_WARP % 4,
			  lane = threadIdx.x % CUDA_WARP;
		return {(ROWS == 128 ? part * 64 : 0) + warp * 16 + lane / 4,
			first_line + (ROWS == 128 ? 0 : part * COLUMNS) + lane % 4 * 2};
	}
};

/* Two neighbours in the weights' type. */
template <enum pack_form FORM> static __device__ __forceinline__ uint32_t narrow_two(float first, float second)
{
	if (FORM == PACK_BF16) {
		const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
		return *(const uint32_t *)&two;
	}
	const __half2 two = __floats2half2_rn(first, second);
	return *(const uint32_t *)&two;
}

/* SwiGLU with an approximate division, to within 2 units in the last place: a tile has many, and exact ones are long code. */
static __device__ __forceinline__ float swiglu_short(float gate, float up)
{
	return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* SwiGLU: eight gates and their ups are neighbours in the tile. */
template <typename STORE, int COUNT>
static __device__ __forceinline__ void batch_gate(const struct batch_args &a, const struct batch_place &place,
	const float (&sums)[COUNT], const float (&scales)[2], const STORE &store)
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
				store(row * a.y_stride + first_at, 4 * j,
					swiglu_short(gate[0] * scales[half], up[0] * scales[half]),
					swiglu_short(gate[1] * scales[half], up[1] * scales[half]));
		}
	}
}

template <enum pack_form FORM, int COUNT>
static __device__ __forceinline__ void batch_store_gated(
	const struct batch_args &a, const struct batch_place &place, const float (&sums)[COUNT], const float (&scales)[2])
{
	if (a.y_prepared)
		batch_gate(a, place, sums, scales, [&](int64_t line, int at, float first, float second) {
			*(uint32_t *)((uint16_t *)a.y + line + at) = narrow_two<FORM>(first, second);
		});
	else
		batch_gate(a, place, sums, scales, [&](int64_t line, int at, float first, float second) {
			*(float2 *)((float *)a.y + line + at) = make_float2(first, second);
		});
}

/* What a thread's results in EIGHTS eights of weight rows need besides their sums. Addresses past the end are those of what is
 * there, so that no load waits for a branch. */
template <int EIGHTS> struct batch_known {
	float2 before[EIGHTS], weights[EIGHTS];

	__device__ __forceinline__ void load(const struct batch_args &a, const struct batch_place &place)
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
static __device__ __forceinline__ float batch_store(const struct batch_args &a, const struct batch_place &place,
	const struct batch_known<EIGHTS> &known, const float (&sums)[2 * EIGHTS], float scale)
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
static __device__ __forceinline__ void batch_store_rest(const struct batch_args &a, struct batch_place place,
	const float (&sums)[COUNT], const float (&scales)[2], float (&squares)[2])
{
	constexpr int EIGHTS = COUNT / 4 - FIRST < 4 ? COUNT / 4 - FIRST : 4;
	if constexpr (EIGHTS > 0) {
		struct batch_known<EIGHTS> known[2];
		const struct batch_place places[2] = {place, {place.row + 8, place.line}};
		known[0].load(a, places[0]);
		known[1].load(a, places[1]);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			float own[2 * EIGHTS];
#pragma unroll
			for (int i = 0; i < 2 * EIGHTS; i++)
				own[i] = sums[4 * (FIRST + i / 2) + 2 * half + i % 2];
			squares[half] += batch_store(a, places[half], known[half], own, scales[half]);
		}
		place.line += 8 * EIGHTS;
		batch_store_rest<FIRST + EIGHTS>(a, place, sums, scales, squares);
	}
}

/* Leaves a part of a row's squares. Four neighbours have the same row. */
static __device__ __forceinline__ void batch_leave_squares(const struct batch_args &a, int row, int part, float squares)
{
	squares += __shfl_xor_sync(0xffffffffu, squares, 1);
	squares += __shfl_xor_sync(0xffffffffu, squares, 2);
	if (threadIdx.x % 4 == 0 && row < a.n_rows)
		a.squares[part * BATCH_ROWS_MAX + row] = squares;
}

/* One warp: 1 / sqrt(mean square + eps) of all rows, each from its parts in one order. Lane: four rows of every GROUPS-th part. */
template <int ROWS, typename MEMORY>
static __device__ __forceinline__ void batch_find_scales(const struct batch_args &a, MEMORY &shared)
{
	constexpr int LANES = ROWS / 4, GROUPS = CUDA_WARP / LANES;
	const int lane = threadIdx.x % CUDA_WARP, row = lane % LANES * 4;
	float sums[4] = {};
#pragma unroll 16
	for (int i = lane / LANES; i < a.n_squares; i += GROUPS) {
		const float4 four = __ldcg((const float4 *)(a.squares + i * BATCH_ROWS_MAX + row));
		sums[0] += four.x;
		sums[1] += four.y;
		sums[2] += four.z;
		sums[3] += four.w;
	}
#pragma unroll
	for (int k = 0; k < 4; k++) {
#pragma unroll
		for (int offset = LANES; offset < CUDA_WARP; offset *= 2)
			sums[k] += __shfl_xor_sync(0xffffffffu, sums[k], offset);
		if (lane < LANES)
			shared.scales[row + k] = 1.0f / sqrtf(sums[k] * a.mean_of + a.eps);
	}
	barrier_arrive(&shared.scales_full);
}

/* Sends the other block of the cluster its half of the sums, one of every thread's two rows; own: the other row's. */
template <typename SHAPE, int COUNT>
static __device__ __forceinline__ void batch_send_half(
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

/* Adds what the other block sent. */
template <typename SHAPE>
static __device__ __forceinline__ void batch_take_half(typename SHAPE::memory &shared, float (&own)[2 * SHAPE::EIGHTS])
{
	barrier_wait(&shared.sums_full, 0);
#pragma unroll
	for (int i = 0; i < SHAPE::EIGHTS / 2; i++) {
		const float4 other = shared.sums[i][threadIdx.x];
		own[4 * i] += other.x;
		own[4 * i + 1] += other.y;
		own[4 * i + 2] += other.z;
		own[4 * i + 3] += other.w;
	}
}

/* A block that multiplies whole rows of its tile. */
template <enum pack_form FORM, int ROWS, int TILE>
static __device__ __forceinline__ void batch_multiply_alone(
	const struct batch_args &a, typename batch_shape<ROWS, TILE, 1>::memory &shared, const struct batch_place &place, int part)
{
	using shape = batch_shape<ROWS, TILE, 1>;
	float sums[shape::COLUMNS / 2] = {}, scales[2] = {1.0f, 1.0f}, squares[2] = {0.0f, 0.0f};
	batch_multiply<FORM, ROWS, TILE, 1>(sums, shared, a.n_blocks);
	if (a.n_squares > 0) {
		barrier_wait(&shared.scales_full, 0);
		scales[0] = shared.scales[place.row];
		scales[1] = shared.scales[place.row + 8];
	}
	if (a.epilogue == KN_SWIGLU) {
		batch_store_gated<FORM>(a, place, sums, scales);
		return;
	}
	batch_store_rest<0>(a, place, sums, scales, squares);
	if (!a.norm_weight)
		return;
	batch_leave_squares(a, place.row, part, squares[0]);
	batch_leave_squares(a, place.row + 8, part, squares[1]);
}

/* One of the two blocks of a cluster, with half of the columns; of every thread's two rows it finishes the one of its rank. */
template <enum pack_form FORM, int ROWS, int TILE>
static __device__ __forceinline__ void batch_multiply_half(const struct batch_args &a,
	typename batch_shape<ROWS, TILE, 2>::memory &shared, struct batch_place place, int part, int rank, int n_blocks)
{
	using shape = batch_shape<ROWS, TILE, 2>;
	float sums[shape::COLUMNS / 2] = {}, own[2 * shape::EIGHTS], scale = 1.0f;
	struct batch_known<shape::EIGHTS> known;
	place.row += 8 * rank;
	known.load(a, place);
	batch_multiply<FORM, ROWS, TILE, 2>(sums, shared, n_blocks);
	cluster_wait(); /* the other block's barrier is there */
	batch_send_half<shape>(shared, sums, rank, own);
	if (a.n_squares > 0) {
		barrier_wait(&shared.scales_full, 0);
		scale = shared.scales[place.row];
	}
	batch_take_half<shape>(shared, own);
	const float squares = batch_store(a, place, known, own, scale);
	if (a.norm_weight)
		batch_leave_squares(a, place.row, part, squares);
}

/* Cluster: a tile of TILE weight rows. Block: the columns of its rank among SPLIT. Warps 0 to 7: two warpgroups that multiply. Warp
 * 8: its first lane requests weights and inputs. Warp 9: what x's norm still lacks. */
template <enum pack_form FORM, int ROWS, int TILE, int SPLIT>
static __global__ void __launch_bounds__(BATCH_THREADS, 1) batch_kernel(
	const struct batch_args a, const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map)
{
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	using request_of = batch_request<ROWS, TILE, SPLIT>;
	extern __shared__ __align__(HOPPER_ATOM_BYTES) uint8_t bytes[];
	auto &shared = *(typename shape::memory *)bytes;
	const int rank = SPLIT == 1 ? 0 : cluster_rank(), warp = threadIdx.x / CUDA_WARP;
	const int tile = blockIdx.x / SPLIT, line = tile * TILE;
	const int begin = a.n_blocks * rank / SPLIT, end = a.n_blocks * (rank + 1) / SPLIT;
	const request_of request = {a, shared, w_map, x_map, line, begin, end};
	if (threadIdx.x == BATCH_CONSUMERS) {
		for (int i = 0; i < shape::STAGES; i++) {
			barrier_init(&shared.w_full[i], 1);
			barrier_init(&shared.x_full[i], 1);
			barrier_init(&shared.empty[i], BATCH_CONSUMERS / CUDA_WARP);
		}
		barrier_init(&shared.sums_full, 1);
		barrier_init(&shared.scales_full, CUDA_WARP);
		barrier_init_done();
		if (SPLIT > 1)
			barrier_expect(&shared.sums_full, shape::SENT_BYTES);
		request.first_weights();
	}
	__syncthreads();
	dependency_release();
	if (SPLIT > 1)
		cluster_arrive();
	if (threadIdx.x == BATCH_CONSUMERS)
		request.rest();
	__syncwarp();
	if (warp > BATCH_CONSUMERS / CUDA_WARP && a.n_squares > 0) {
		dependency_wait();
		batch_find_scales<ROWS>(a, shared);
	}
	if (warp >= BATCH_CONSUMERS / CUDA_WARP) {
		if (SPLIT > 1)
			cluster_wait();
		return;
	}
	const struct batch_place place = batch_place::of_thread<ROWS, shape::COLUMNS>(line);
	const int part = ROWS == 128 ? tile : 2 * tile + warp / 4; /* of the squares */
	dependency_wait(); /* y may still be read or written by the kernel in front */
	if constexpr (SPLIT > 1)
		batch_multiply_half<FORM, ROWS, TILE>(a, shared, place, part, rank, end - begin);
	else
		batch_multiply_alone<FORM, ROWS, TILE>(a, shared, place, part);
}

#endif
