/* Matrix product for one row: streams the weights once at close to the memory's read rate.
 *
 * A block owns consecutive weight rows. Its warps split the columns: chunk c of warp w is the 32 * 8 elements from
 * (c * GEMV_WARPS + w) * 256, eight neighbouring ones per lane, so a warp reads whole 512-byte stretches. A lane keeps its slice of
 * x in registers as fp32. Partial sums of every (row, warp) stay in shared memory until the end, so the streaming loop has no
 * barrier. The sum order depends on the column alone: first inside a lane, then over lanes by a fixed butterfly, then over warps.
 * The first rows are loaded before the wait for the kernel in front, whose tail then hides their latency. */
#ifndef KERNELS_CUDA_GEMV_CUH
#define KERNELS_CUDA_GEMV_CUH

#include "kernels/cuda/device.cuh"

struct gemv_args {
	const void *weights;
	const float *x;
	const float *norm_weight; /* NULL: no norm */
	float norm_eps;
	float *y;
	int64_t rows, cols;
	int rows_per_block; /* even */
	enum kn_epilogue epilogue;
};

template <enum pack_form FORM> struct eight;

template <> struct eight<PACK_BF16> {
	uint4 bits;
	__device__ __forceinline__ void load(const char *at)
	{
		bits = __ldcs((const uint4 *)at);
	}
	__device__ __forceinline__ float dot(const float *x) const
	{
		const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
		float sum = 0.0f;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			sum = fmaf(__uint_as_float(words[i] << 16), x[2 * i], sum);
			sum = fmaf(__uint_as_float(words[i] & 0xffff0000u), x[2 * i + 1], sum);
		}
		return sum;
	}
};

template <> struct eight<PACK_F16> {
	uint4 bits;
	__device__ __forceinline__ void load(const char *at)
	{
		bits = __ldcs((const uint4 *)at);
	}
	__device__ __forceinline__ float dot(const float *x) const
	{
		const __half2 *pairs = (const __half2 *)&bits;
		float sum = 0.0f;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			float2 pair = __half22float2(pairs[i]);
			sum = fmaf(pair.x, x[2 * i], sum);
			sum = fmaf(pair.y, x[2 * i + 1], sum);
		}
		return sum;
	}
};

template <> struct eight<PACK_F32> {
	float4 low, high;
	__device__ __forceinline__ void load(const char *at)
	{
		low = __ldcs((const float4 *)at);
		high = __ldcs((const float4 *)at + 1);
	}
	__device__ __forceinline__ float dot(const float *x) const
	{
		const float w[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
		float sum = 0.0f;
#pragma unroll
		for (int i = 0; i < 8; i++)
			sum = fmaf(w[i], x[i], sum);
		return sum;
	}
};

/* Bytes from an even row that is worked on to the next but one, and to its odd neighbour: with SwiGLU gates and ups take turns, so
 * that a block has both. */
struct row_steps {
	uint32_t pair;
	int64_t odd;
};

template <enum pack_form FORM> static __device__ __forceinline__ struct row_steps row_steps(const struct gemv_args &args)
{
	const uint32_t row = (uint32_t)args.cols * (FORM == PACK_F32 ? 4 : 2);
	return args.epilogue == KN_SWIGLU ? (struct row_steps){row, args.rows / 2 * row} : (struct row_steps){2 * row, row};
}

/* Loads this lane's slice of row r of the ROWS that begin at `at`. Columns past the end are left as they are. */
template <enum pack_form FORM, int WARPS, int CHUNKS>
static __device__ __forceinline__ void load_row(
	const char *at, const struct row_steps &steps, int r, int n_chunks, struct eight<FORM> (&w)[CHUNKS])
{
	constexpr int CHUNK_BYTES = WARPS * CUDA_WARP * (int)sizeof(struct eight<FORM>);
#pragma unroll
	for (int c = 0; c < CHUNKS; c++)
		if (c < n_chunks)
			w[c].load(at + r / 2 * steps.pair + (r % 2 ? steps.odd : 0) + c * CHUNK_BYTES);
}

/* Block: (WARPS * CUDA_WARP) threads. Shared: partial sums [rows_per_block + 1][WARPS]; the extra line is the sum of squares. */
template <enum pack_form FORM, int WARPS, int CHUNKS, int ROWS, int BLOCKS_PER_SM>
static __global__ void __launch_bounds__(WARPS *CUDA_WARP, BLOCKS_PER_SM) gemv_kernel(const struct gemv_args args)
{
	extern __shared__ float partials[];
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	static_assert(ROWS == 1 || ROWS % 2 == 0, "rows come in pairs");
	constexpr int CHUNK = WARPS * CUDA_WARP * 8;
	const int row_begin = blockIdx.x * args.rows_per_block;
	const int n_rows = min(args.rows_per_block, (int)args.rows - row_begin);
	const int lane_element = threadIdx.x * 8;
	const int n_chunks = (int)args.cols > lane_element ? ((int)args.cols - lane_element + CHUNK - 1) / CHUNK : 0;
	const struct row_steps steps = row_steps<FORM>(args);
	const char *at = (const char *)args.weights + (int64_t)(row_begin / 2) * steps.pair +
		lane_element * (int)(sizeof(struct eight<FORM>) / 8);
	struct eight<FORM> w[ROWS][CHUNKS] = {};
#pragma unroll
	for (int r = 0; r < ROWS; r++)
		if (r < n_rows)
			load_row<FORM, WARPS, CHUNKS>(at, steps, r, n_chunks, w[r]);
	dependency_release();
	dependency_wait();

	float x[CHUNKS][8];
	float squares = 0.0f;
#pragma unroll
	for (int c = 0; c < CHUNKS; c++) {
		const int element = lane_element + c * CHUNK;
		const bool inside = c < n_chunks;
#pragma unroll
		for (int i = 0; i < 8; i += 4) {
			float4 four = inside ? *(const float4 *)(args.x + element + i) : make_float4(0, 0, 0, 0);
			x[c][i] = four.x;
			x[c][i + 1] = four.y;
			x[c][i + 2] = four.z;
			x[c][i + 3] = four.w;
		}
		if (args.norm_weight && inside) {
#pragma unroll
			for (int i = 0; i < 8; i++) {
				squares = fmaf(x[c][i], x[c][i], squares);
				x[c][i] *= __ldg(args.norm_weight + element + i);
			}
		}
	}

#pragma unroll 1
	for (int row = 0; row < n_rows; row += ROWS) {
		if (ROWS % 2 == 0)
			at += ROWS / 2 * steps.pair;
		else
			at += row % 2 ? steps.pair - steps.odd : steps.odd;
		/* A row's registers take its successor as soon as they have been used. */
		float sums[ROWS];
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			sums[r] = 0.0f;
#pragma unroll
			for (int c = 0; c < CHUNKS; c++)
				sums[r] += w[r][c].dot(x[c]);
			if (row + ROWS + r < n_rows)
				load_row<FORM, WARPS, CHUNKS>(at, steps, r, n_chunks, w[r]);
		}
#pragma unroll
		for (int r = 0; r < ROWS; r++) {
			float sum = warp_sum(sums[r]);
			if (lane == 0 && row + r < n_rows)
				partials[(row + r) * WARPS + warp] = sum;
		}
	}
	if (args.norm_weight) {
		squares = warp_sum(squares);
		if (lane == 0)
			partials[args.rows_per_block * WARPS + warp] = squares;
	}
	__syncthreads();

	float scale = 1.0f;
	if (args.norm_weight) {
		float total = 0.0f;
#pragma unroll
		for (int i = 0; i < WARPS; i++)
			total += partials[args.rows_per_block * WARPS + i];
		scale = 1.0f / sqrtf(total / (float)args.cols + args.norm_eps);
	}
	const int step = args.epilogue == KN_SWIGLU ? 2 : 1;
	for (int i = threadIdx.x * step; i < n_rows; i += WARPS * CUDA_WARP * step) {
		float value = 0.0f, up = 0.0f;
#pragma unroll
		for (int k = 0; k < WARPS; k++)
			value += partials[i * WARPS + k];
		value *= scale;
		const int row = row_begin + i;
		if (args.epilogue == KN_SWIGLU) {
#pragma unroll
			for (int k = 0; k < WARPS; k++)
				up += partials[(i + 1) * WARPS + k];
			args.y[row / 2] = value / (1.0f + __expf(-value)) * (up * scale);
		} else if (args.epilogue == KN_ADD) {
			args.y[row] += value;
		} else {
			args.y[row] = value;
		}
	}
}

#endif
