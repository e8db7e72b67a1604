/* Activations of a few rows as products with quantised weights take them: scaled fp16 in the order of the tensor core's fragments,
 * with sums.
 *
 * A row is scaled by a power of two so that its largest magnitude lies in [32, 64): no sum below leaves fp16, and what fp16 drops
 * is relative to that. Sums are of the rounded values, so weights with an offset inside the product (see quant_decode.cuh) lose it
 * again to the last bit but fp32 rounding. Layout, for ROWS rows and columns rounded up to 256:
 *   x        [block of 32 columns][ROWS][32] f16, lane t's columns 4t to 4t + 3, then 16 + 4t to 16 + 4t + 3, for t = 0 to 3
 *   offsets  [block][ROWS] f32: minus what the offset of nibbles adds
 *   sums     [block][ROWS] f32: S, the sum of the block
 *   parts    [256 columns][ROWS][4 t][4] f16: S of blocks t and t + 4, then what fp16 dropped of them */
#ifndef KERNELS_CUDA_QUANT_PANEL_CUH
#define KERNELS_CUDA_QUANT_PANEL_CUH

#include "kernels/cuda/device.cuh"

template <int ROWS> struct quant_panel {
	__half *x;
	float *offsets, *sums;
	__half *parts;

	static __host__ __device__ constexpr size_t bytes(int64_t cols)
	{
		const size_t padded = (size_t)(cols + QUANT_SUPER_COLS - 1) / QUANT_SUPER_COLS * QUANT_SUPER_COLS;
		return padded * ROWS * 2 + padded / 32 * 2 * ROWS * 4 + padded / QUANT_SUPER_COLS * ROWS * 32;
	}

	__host__ __device__ quant_panel(void *memory, int64_t cols)
	{
		const size_t padded = (size_t)(cols + QUANT_SUPER_COLS - 1) / QUANT_SUPER_COLS * QUANT_SUPER_COLS;
		x = (__half *)memory;
		offsets = (float *)(x + padded * ROWS);
		sums = offsets + padded / 32 * ROWS;
		parts = (__half *)(sums + padded / 32 * ROWS);
	}

	/* A lane's eight neighbouring columns of a row, beginning at a multiple of 8; four neighbouring lanes hold a block, and the
	 * whole warp calls. Nothing is stored for a lane that is not inside. */
	__device__ __forceinline__ void put(int row, int column, bool inside, const float (&v)[8]) const
	{
		const int block = column / 32, j = column % 32 / 8, t = 2 * (j % 2), depth = j / 2;
		__half2 pairs[4];
		float sum = 0.0f, even = 0.0f; /* of all columns, and of pairs 0 and 2 */
#pragma unroll
		for (int i = 0; i < 4; i++) {
			pairs[i] = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
			const float2 held = __half22float2(pairs[i]);
			sum += held.x + held.y;
			even += i % 2 == 0 ? held.x + held.y : 0.0f;
		}
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		sum += __shfl_xor_sync(0xffffffffu, sum, 2);
		even += __shfl_xor_sync(0xffffffffu, even, 1);
		even += __shfl_xor_sync(0xffffffffu, even, 2);
		if (!inside)
			return;
		__half *to = x + ((size_t)block * ROWS + row) * 32 + 8 * t + 4 * depth;
		*(uint2 *)to = make_uint2(*(uint32_t *)&pairs[0], *(uint32_t *)&pairs[1]);
		*(uint2 *)(to + 8) = make_uint2(*(uint32_t *)&pairs[2], *(uint32_t *)&pairs[3]);
		if (j != 0)
			return;
		const float offset = -(960.0f * even + 64.0f * sum); /* 1024 of even pairs, 64 of odd ones */
		offsets[(size_t)block * ROWS + row] = offset;
		sums[(size_t)block * ROWS + row] = sum;
		const __half high = __float2half_rn(sum);
		__half *part = parts + (((size_t)block / 8 * ROWS + row) * 4 + block % 4) * 4 + block % 8 / 4;
		part[0] = high;
		part[2] = __float2half_rn(sum - __half2float(high));
	}
};

/* The power of two that brings `largest` to [32, 64), and its inverse. */
static __device__ __forceinline__ float2 quant_panel_scale(float largest)
{
	const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 6u), 254u);
	return make_float2(__uint_as_float((259 - exponent) << 23), __uint_as_float((exponent - 5) << 23));
}

static __device__ __forceinline__ float warp_max(float value)
{
	for (int offset = CUDA_WARP / 2; offset > 0; offset /= 2)
		value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
	return value;
}

/* Fills the panel of backend->quant from the rows of a product, normalised when it says so. */
cudaError_t quant_prepare(struct kn_backend *backend, const struct kn_matmul *args, int first_row, int n_rows);

#endif
