/* Matrix product for 2 to 16 rows: streams the weights once, on tensor cores.
 *
 * Weights are the 16-row operand, activations the 8-column one, so eight activation rows cost hardly more than one. A lane's
 * 16-byte load is eight neighbouring columns of one weight row; the depth of a product may be permuted as long as both operands
 * agree, so four lanes' loads are two depths of 16 without a shuffle. Warps split the columns in turns of 64 and their sums meet in
 * shared memory, added in warp order: a row's bits depend neither on the number of rows nor on the other rows. The first weights
 * are loaded before the wait for the kernel in front. */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/mma.cuh"

#define FEW_CHUNK 64 /* columns that a warp takes at a time: a whole 128-byte line of each row */

struct few_args {
	const void *weights, *x; /* [rows][cols] and [n_rows][x_stride] of the same 16-bit type */
	void *y;
	int64_t cols, x_stride, y_stride;
	int rows, n_rows;
	int n_tiles, n_rounds; /* tiles of weight rows; turns of a block's warps over the columns */
	enum kn_epilogue epilogue;
	enum pack_form y_form; /* that of the matrix which reads y, else fp32 */
};

/* Row of the matrix that is line `line` of all tiles' lines: with SwiGLU the upper half of each 16 are ups of the lower half's
 * gates. */
static __device__ __forceinline__ int few_stored_row(const struct few_args &a, int line)
{
	if (a.epilogue != KN_SWIGLU)
		return min(line, a.rows - 1);
	return line / 16 * 8 + line % 8 + (line % 16 < 8 ? 0 : a.rows / 2);
}

static __device__ __forceinline__ uint4 load_streaming(const void *base, int64_t element, bool inside)
{
	return inside ? __ldcs((const uint4 *)((const uint16_t *)base + element)) : make_uint4(0, 0, 0, 0);
}

template <enum pack_form FORM> static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
	if (FORM == PACK_BF16)
		mma_bf16(c, a, b0, b1);
	else
		mma_f16(c, a, b0, b1);
}

static __device__ __forceinline__ void few_store(const struct few_args &a, int64_t at, float value)
{
	if (a.epilogue == KN_ADD)
		((float *)a.y)[at] += value;
	else if (a.y_form == PACK_F32)
		((float *)a.y)[at] = value;
	else if (a.y_form == PACK_BF16)
		((__nv_bfloat16 *)a.y)[at] = __float2bfloat16_rn(value);
	else
		((__half *)a.y)[at] = __float2half_rn(value);
}

/* What a lane loads next: chunks of a tile of 16 weight rows, then of the block's next tile, so that loads stay in flight while a
 * tile is finished. Lines g and g + 8, columns 8t to 8t + 7 of every 32. */
template <int WARPS> struct few_cursor {
	int64_t row_at[2];
	int tile, round;

	__device__ __forceinline__ void enter(const struct few_args &a, int to)
	{
		tile = to;
		round = 0;
#pragma unroll
		for (int line = 0; line < 2; line++)
			row_at[line] = a.cols * few_stored_row(a, to * 16 + line * 8 + threadIdx.x % CUDA_WARP / 4);
	}
	__device__ __forceinline__ int64_t column() const
	{
		return (round * WARPS + threadIdx.x / CUDA_WARP) * FEW_CHUNK + threadIdx.x % 4 * 8;
	}
	__device__ __forceinline__ void advance(const struct few_args &a)
	{
		if (++round == a.n_rounds)
			enter(a, tile + gridDim.x);
	}
};

/* Weights of one chunk: two lines, two stretches of 32 columns. */
struct few_chunk {
	uint4 w[2][2];

	template <int WARPS> __device__ __forceinline__ void load(const struct few_args &a, struct few_cursor<WARPS> &cursor)
	{
		const int64_t column = cursor.column(), end = cursor.tile < a.n_tiles ? a.cols : 0;
#pragma unroll
		for (int line = 0; line < 2; line++)
#pragma unroll
			for (int half = 0; half < 2; half++)
				w[line][half] = load_streaming(
					a.weights, cursor.row_at[line] + column + half * 32, column + half * 32 < end);
		cursor.advance(a);
	}
};

/* Sums of a tile over its warps. Neighbouring threads write neighbouring elements of one activation row. */
template <int TILES, int WARPS>
static __device__ __forceinline__ void few_finish(const struct few_args &a, int tile, const float (*partial)[16][TILES * 8 + 1])
{
	for (int i = threadIdx.x; i < 16 * TILES * 8; i += WARPS * CUDA_WARP) {
		const int line = i % 16, row = i / 16;
		if (row >= a.n_rows || tile * 16 + line >= a.rows)
			continue;
		float value = 0.0f, up = 0.0f;
#pragma unroll
		for (int w = 0; w < WARPS; w++)
			value += partial[w][line][row];
		if (a.epilogue == KN_SWIGLU) {
			if (line >= 8)
				continue;
#pragma unroll
			for (int w = 0; w < WARPS; w++)
				up += partial[w][line + 8][row];
			few_store(a, row * a.y_stride + tile * 8 + line, swiglu(value, up));
		} else {
			few_store(a, row * a.y_stride + tile * 16 + line, value);
		}
	}
}

/* Block: every gridDim.x-th tile of 16 weight rows. Warp: every WARPS-th chunk of the columns. Lane (g, t): weight rows g and g +
 * 8, activation row g of each 8, columns 8t to 8t + 7 of every 32. */
template <enum pack_form FORM, int TILES, int WARPS, int BLOCKS_PER_SM>
static __global__ void __launch_bounds__(WARPS *CUDA_WARP, BLOCKS_PER_SM) few_kernel(const struct few_args a)
{
	__shared__ float partial[2][WARPS][16][TILES * 8 + 1]; /* in turns, so that a tile needs one barrier */
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP, g = lane / 4, t = lane % 4;
	struct few_cursor<WARPS> cursor;
	struct few_chunk now, next;
	cursor.enter(a, blockIdx.x);
	now.load(a, cursor);
	next.load(a, cursor);
	dependency_release();
	dependency_wait();
	const uint16_t *x_at[TILES];
#pragma unroll
	for (int n = 0; n < TILES; n++)
		x_at[n] = (const uint16_t *)a.x + min(n * 8 + g, a.n_rows - 1) * a.x_stride;
	int buffer = 0;
#pragma unroll 1
	for (int tile = blockIdx.x; tile < a.n_tiles; tile += gridDim.x, buffer ^= 1) {
		float sums[TILES][4] = {};
#pragma unroll 2
		for (int round = 0; round < a.n_rounds; round++) { /* the same for all lanes: products need them all */
			const int64_t column = (round * WARPS + warp) * FEW_CHUNK + t * 8;
			uint4 x[TILES][2];
#pragma unroll
			for (int n = 0; n < TILES; n++)
#pragma unroll
				for (int half = 0; half < 2; half++)
					x[n][half] = column + half * 32 < a.cols ? *(const uint4 *)(x_at[n] + column + half * 32)
										 : make_uint4(0, 0, 0, 0);
#pragma unroll
			for (int half = 0; half < 2; half++) {
				const uint4 low = now.w[0][half], high = now.w[1][half];
				const uint32_t first[4] = {low.x, high.x, low.y, high.y},
					       second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
				for (int n = 0; n < TILES; n++) {
					mma<FORM>(sums[n], first, x[n][half].x, x[n][half].y);
					mma<FORM>(sums[n], second, x[n][half].z, x[n][half].w);
				}
			}
			now = next;
			next.load(a, cursor);
		}
#pragma unroll
		for (int n = 0; n < TILES; n++)
#pragma unroll
			for (int i = 0; i < 4; i++)
				partial[buffer][warp][g + i / 2 * 8][n * 8 + 2 * t + i % 2] = sums[n][i];
		__syncthreads();
		few_finish<TILES, WARPS>(a, tile, partial[buffer]);
	}
}

template <enum pack_form FORM, int TILES, int WARPS, int BLOCKS_PER_SM>
static cudaError_t launch(struct kn_backend *backend, struct few_args args)
{
	const int most = backend->n_sms * BLOCKS_PER_SM;
	args.n_rounds = (int)((args.cols + WARPS * FEW_CHUNK - 1) / (WARPS * FEW_CHUNK));
	return launch_dependent(backend->stream, dim3(args.n_tiles < most ? args.n_tiles : most), dim3(WARPS * CUDA_WARP), 0,
		few_kernel<FORM, TILES, WARPS, BLOCKS_PER_SM>, args);
}

/* One block a processor where that takes all tiles, three where only they hold them all at once, else two: measured, see NOTES.md.
 */
template <enum pack_form FORM, int TILES> static cudaError_t launch_for(struct kn_backend *backend, struct few_args args)
{
	args.n_tiles = (args.rows + 15) / 16;
	if (args.n_tiles <= backend->n_sms)
		return launch<FORM, TILES, 16, 1>(backend, args);
	if (args.n_tiles > 2 * backend->n_sms && args.n_tiles <= 3 * backend->n_sms)
		return launch<FORM, TILES, 8, 3>(backend, args);
	return launch<FORM, TILES, 8, 2>(backend, args);
}

enum status kn_cuda_few(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const struct kn_matrix *w = args->w;
	ASSERT(n_rows <= FEW_ROWS_MAX && w->form != PACK_F32);
	struct few_args few = {};
	cudaError_t error = elementwise_input(backend, args, n_rows, &few.x, &few.x_stride);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	few.weights = w->data;
	few.y_form = form_for(args->reader, n_rows);
	few.y = args->y;
	few.cols = w->cols;
	few.y_stride = args->y_stride;
	few.rows = (int)w->rows;
	few.n_rows = n_rows;
	few.epilogue = args->epilogue;
	if (w->form == PACK_BF16)
		error = n_rows <= 8 ? launch_for<PACK_BF16, 1>(backend, few) : launch_for<PACK_BF16, 2>(backend, few);
	else
		error = n_rows <= 8 ? launch_for<PACK_F16, 1>(backend, few) : launch_for<PACK_F16, 2>(backend, few);
	return cuda_status(error, "matrix product of few rows", err);
}
