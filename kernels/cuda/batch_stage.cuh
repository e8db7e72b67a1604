/* What both kinds of tile of batch_hopper.cuh have: arguments, the ring of stages, the loop over columns, what a norm left to do.
 *
 * SHAPE is a kernel's sizes, tall_shape or low_shape: ROWS of activations and TILE of weights, which is the 64-row operand if
 * IS_LOW; SPLIT blocks that have a part of the columns each; GROUPS multiplying warpgroups; PARTS that a tile's squares come in;
 * STAGES and their bytes; memory, a block's shared memory. */
#ifndef KERNELS_CUDA_BATCH_STAGE_CUH
#define KERNELS_CUDA_BATCH_STAGE_CUH

#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/hopper.cuh"

#define BATCH_DEPTH 64 /* columns of a stage: one swizzled line */
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

/* --- requesting thread -------------------------------------------------------------------------------------------- */

/* Blocks begin to end of a tile, through the ring of stages. A stage has one barrier for its weights and its inputs. */
template <typename SHAPE> struct batch_request {
	const struct batch_args &a;
	typename SHAPE::memory &shared;
	const CUtensorMap &w_map, &x_map;
	int line, begin, end;

	__device__ __forceinline__ void weights(int block, int stage) const
	{
		const bool gated = a.epilogue == KN_SWIGLU;
		barrier_announce(&shared.full[stage], SHAPE::W_BYTES);
		tensor_copy(shared_address(shared.w[stage]), &w_map, block * BATCH_DEPTH, gated ? 0 : line, 0,
			gated ? line / 16 : 0, &shared.full[stage], HOPPER_READ_ONCE);
	}
	__device__ __forceinline__ void inputs(int block, int stage) const
	{
		barrier_expect(&shared.full[stage], SHAPE::X_BYTES);
		tensor_copy(
			shared_address(shared.x[stage]), &x_map, block * BATCH_DEPTH, 0, &shared.full[stage], HOPPER_READ_OFTEN);
	}
	/* Weights for all stages, while the kernel in front runs. */
	__device__ __forceinline__ void first_weights(void) const
	{
		for (int block = begin; block < min(begin + SHAPE::STAGES, end); block++)
			weights(block, block - begin);
		tensor_prefetch(&x_map);
	}
	/* Inputs for all stages, then what follows. */
	__device__ __forceinline__ void rest(void) const
	{
		int stage = 0, parity = 0;
		dependency_wait();
		for (int block = begin; block < min(begin + SHAPE::STAGES, end); block++)
			inputs(block, block - begin);
		for (int block = begin + SHAPE::STAGES; block < end; block++) {
			barrier_wait(&shared.empty[stage], parity);
			weights(block, stage);
			inputs(block, stage);
			if (++stage == SHAPE::STAGES) {
				stage = 0;
				parity ^= 1;
			}
		}
	}
};

/* --- multiplying threads ------------------------------------------------------------------------------------------ */

template <enum pack_form FORM, int COUNT>
static __device__ __forceinline__ void batch_product(float (&sums)[COUNT], uint64_t a, uint64_t b)
{
	if (FORM == PACK_BF16)
		product_bf16(sums, a, b, 1);
	else
		product_f16(sums, a, b, 1);
}

/* Adds n_blocks of the tile to sums. Of each stage's weights and inputs a warpgroup multiplies what begins at w_from and x_from. */
template <enum pack_form FORM, typename SHAPE, int COUNT>
static __device__ __forceinline__ void batch_multiply(
	float (&sums)[COUNT], typename SHAPE::memory &shared, int w_from, int x_from, int n_blocks)
{
	using memory = typename SHAPE::memory;
	uint32_t base = shared_address(&shared);
	asm volatile("" : "+r"(base)); /* kept, since to find it again takes as long as a product */
	const uint32_t w_base = base + offsetof(memory, w) + w_from, x_base = base + offsetof(memory, x) + x_from;
	int stage = 0, parity = 0, before = 0;
#pragma unroll 1
	for (int i = 0; i < n_blocks; i++) {
		const uint64_t w = tile_along_depth(w_base + stage * SHAPE::W_BYTES, HOPPER_ATOM_BYTES);
		const uint64_t x = tile_along_depth(x_base + stage * SHAPE::X_STAGE_BYTES, HOPPER_ATOM_BYTES);
		barrier_wait(base + offsetof(memory, full) + stage * 8, parity);
		products_begin();
#pragma unroll
		for (int k = 0; k < BATCH_DEPTH / 16; k++)
			batch_product<FORM>(
				sums, tile_further(SHAPE::IS_LOW ? w : x, 32 * k), tile_further(SHAPE::IS_LOW ? x : w, 32 * k));
		products_commit();
		products_wait<1>();
		if (i > 0 && threadIdx.x % HOPPER_GROUP_THREADS == 0) /* a product ends for all of its warpgroup at once */
			barrier_arrive(base + offsetof(memory, empty) + before * 8);
		before = stage;
		if (++stage == SHAPE::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
	products_wait<0>();
	products_hold(sums);
}

/* Adds what the other block of the cluster sent to a thread's own sums. */
template <typename MEMORY, int COUNT>
static __device__ __forceinline__ void batch_take_half(MEMORY &shared, float (&own)[COUNT])
{
	barrier_wait(&shared.sums_full, 0);
#pragma unroll
	for (int i = 0; i < COUNT / 4; i++) {
		const float4 other = shared.sums[i][threadIdx.x];
		own[4 * i] += other.x;
		own[4 * i + 1] += other.y;
		own[4 * i + 2] += other.z;
		own[4 * i + 3] += other.w;
	}
}

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

/* --- norms -------------------------------------------------------------------------------------------------------- */

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

#endif
