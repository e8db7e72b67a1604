/* What products with quantised weights do with the sums of their warps. */
#ifndef KERNELS_CUDA_QUANT_OUTPUT_CUH
#define KERNELS_CUDA_QUANT_OUTPUT_CUH

#include "kernels/cuda/quant_stream.cuh"

#define QUANT_SUMS_STRIDE 20 /* of 16 sums: lanes of a warp store to different banks */

/* Where row `row` of an item's strip goes, and what its sums (with SwiGLU of gate and up) are to be multiplied by; at < 0: padding.
 * Looked up before the sums are there, since the factors of 8-bit floats come from far away. */
struct quant_place {
	int at = -1;
	float factors[2] = {1.0f, 1.0f};

	__device__ __forceinline__ void look_up(const struct product_args &args, int item, int row)
	{
		const struct quant_segment segment = quant_segment_of(&args.layout, item);
		const int line = (item - segment.strip_begin) * QUANT_STRIP_ROWS + row;
		if (item >= args.n_items || line >= segment.rows)
			return;
		at = segment.row_begin + line;
		if (segment.form == QUANT_F8)
			factors[0] = segment.row_scales[line];
		if (args.epilogue != KN_SWIGLU)
			return;
		const int strip = item + args.n_items;
		const struct quant_segment of = quant_segment_of(&args.layout, strip);
		if (of.form == QUANT_F8)
			factors[1] = of.row_scales[(strip - of.strip_begin) * QUANT_STRIP_ROWS + row];
	}
};

/* y at `place` of activation row `column`, from the sums of the warps: [2 halves][warps][COLUMNS][QUANT_SUMS_STRIDE]. */
template <int COLUMNS>
static __device__ __forceinline__ void finish(const struct product_args &args, const struct quant_place &place, const float *sums,
	int n_warps, int row, int column, float scale)
{
	float values[2] = {0.0f, 0.0f};
	if (place.at < 0)
		return;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		if (half == 1 && args.epilogue != KN_SWIGLU)
			break;
#pragma unroll 8
		for (int warp = 0; warp < n_warps; warp++)
			values[half] += sums[((half * n_warps + warp) * COLUMNS + column) * QUANT_SUMS_STRIDE + row];
		values[half] *= scale * place.factors[half];
	}
	const int64_t at = column * args.y_stride + place.at;
	float value = values[0];
	if (args.epilogue == KN_SWIGLU)
		value = value / (1.0f + __expf(-value)) * values[1];
	if (args.epilogue == KN_ADD)
		atomicAdd((float *)args.y + at, value); /* nobody else adds to it; it need not be waited for */
	else if (args.y_form == PACK_F32)
		((float *)args.y)[at] = value;
	else if (args.y_form == PACK_BF16)
		((__nv_bfloat16 *)args.y)[at] = __float2bfloat16_rn(value);
	else
		((__half *)args.y)[at] = __float2half_rn(value);
}

#endif
