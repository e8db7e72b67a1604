/* Around the product of quantised weights: activations of few rows into a panel, products of many rows through fp16 copies of parts
 * of a matrix, rows of an embedding table. */
#include <cuda_fp8.h>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/quant_panel.cuh"

#define PREPARE_THREADS 512
#define THREADS 256
#define FEW_PASSES 4 /* guess: up to 64 rows, reading the weights so often costs less than making fp16 copies of them */

/* --- activations of few rows -------------------------------------------------------------------------------------- */

template <bool MAX> static __device__ float block_reduce(float value, float *partial)
{
	value = MAX ? warp_max(value) : warp_sum(value);
	__syncthreads();
	if (threadIdx.x % CUDA_WARP == 0)
		partial[threadIdx.x / CUDA_WARP] = value;
	__syncthreads();
	value = partial[0];
	for (int i = 1; i < PREPARE_THREADS / CUDA_WARP; i++)
		value = MAX ? fmaxf(value, partial[i]) : value + partial[i];
	return value;
}

static __device__ __forceinline__ void load_eight(float (&v)[8], const float *from, bool inside)
{
#pragma unroll
	for (int i = 0; i < 8; i += 4) {
		const float4 four = inside ? *(const float4 *)(from + i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
		v[i] = four.x;
		v[i + 1] = four.y;
		v[i + 2] = four.z;
		v[i + 3] = four.w;
	}
}

/* Block: one row. */
template <int ROWS>
__global__ void __launch_bounds__(PREPARE_THREADS) quant_prepare_kernel(const float *x, int64_t x_stride, const int32_t *row_index,
	const float *norm_weight, float eps, int cols, void *memory, float *scales)
{
	__shared__ float partial[PREPARE_THREADS / CUDA_WARP];
	const struct quant_panel<ROWS> panel(memory, cols);
	dependency_release();
	dependency_wait();
	const float *from = x + (row_index ? row_index[blockIdx.x] : (int64_t)blockIdx.x) * x_stride;
	float v[8], weight[8], squares = 0.0f, largest = 0.0f;
	for (int base = 0; base < cols; base += PREPARE_THREADS * 8) {
		const int column = base + threadIdx.x * 8;
		load_eight(v, from + column, column < cols);
		if (norm_weight)
			load_eight(weight, norm_weight + column, column < cols);
#pragma unroll
		for (int i = 0; i < 8; i++) {
			squares = fmaf(v[i], v[i], squares);
			largest = fmaxf(largest, fabsf(norm_weight ? v[i] * weight[i] : v[i]));
		}
	}
	float norm = 1.0f;
	if (norm_weight)
		norm = 1.0f / sqrtf(block_reduce<false>(squares, partial) / (float)cols + eps);
	const float2 scale = quant_panel_scale(block_reduce<true>(largest, partial));
	if (threadIdx.x == 0)
		scales[blockIdx.x] = scale.y * norm;
	const int padded = (cols + QUANT_SUPER_COLS - 1) / QUANT_SUPER_COLS * QUANT_SUPER_COLS;
	for (int base = 0; base < padded; base += PREPARE_THREADS * 8) {
		const int column = base + threadIdx.x * 8;
		load_eight(v, from + column, column < cols);
		if (norm_weight)
			load_eight(weight, norm_weight + column, column < cols);
#pragma unroll
		for (int i = 0; i < 8; i++)
			v[i] = (norm_weight ? v[i] * weight[i] : v[i]) * scale.x;
		panel.put(blockIdx.x, column, column < padded, v);
	}
}

cudaError_t quant_prepare(struct kn_backend *backend, const struct kn_matmul *args, int first_row, int n_rows)
{
	const int32_t *index = args->row_index ? args->row_index + first_row : NULL;
	const float *x = args->row_index ? args->x : args->x + first_row * args->x_stride;
	return launch_dependent(backend->stream, dim3(n_rows), dim3(PREPARE_THREADS), 0,
		n_rows <= 8 ? quant_prepare_kernel<8> : quant_prepare_kernel<16>, x, args->x_stride, index, args->norm_weight,
		args->norm_eps, (int)args->w->cols, backend->quant.panel, backend->quant.row_scales);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static __device__ float f16_at(const uint8_t *at)
{
	return __half2float(*(const __half *)at);
}

/* What dtype_dequantize makes of one element, in the same operations: column `column` of row `row` of a strip. */
static __device__ float quant_value(int form, const uint8_t *strip, int row, int column)
{
	const int unit_cols = quant_unit_cols(form), block = column % unit_cols / 32, inner = column % 32;
	const uint8_t *unit = strip + (int64_t)(column / unit_cols) * quant_unit_bytes(form);
	const int g = row % 8, half = row / 8, t = inner % 16 / 4, depth = inner / 16, lane = 4 * g + t;
	const int bit = 4 * (2 * depth + inner % 4 / 2) + 16 * (inner % 2);
	if (form == QUANT_Q8_0)
		return (float)((int)unit[lane * 16 + half * 8 + depth * 4 + inner % 4] - 128) * f16_at(unit + 512 + g * 4 + half * 2);
	if (form == QUANT_F8) {
		const __half_raw raw =
			__nv_cvt_fp8_to_halfraw(unit[block * 512 + lane * 16 + half * 8 + depth * 4 + inner % 4], __NV_E4M3);
		return __half2float(__half(raw));
	}
	/* Sub-blocks lie in chunks of two: which chunk, and which of the two. */
	const int chunk = form == QUANT_Q4_K ? block % 4 : block / 2, second = form == QUANT_Q4_K ? block / 4 : block % 2;
	const int nibble = (int)(((const uint32_t *)(unit + chunk * 512))[lane * 4 + second * 2 + half] >> bit) & 15;
	if (form == QUANT_Q4_0)
		return f16_at(unit + 512 + g * 8 + block * 4 + half * 2) * (float)(nibble - 8);
	if (form == QUANT_Q4_1)
		return __fadd_rn(__fmul_rn(f16_at(unit + 512 + g * 8 + block * 4 + half * 2), (float)nibble),
			f16_at(unit + 576 + g * 8 + block * 4 + half * 2));
	if (form == QUANT_Q4_K) {
		const int owner = 4 * g + chunk;
		const uint32_t word = ((const uint32_t *)(unit + 2048))[owner] >> (16 * second);
		const uint32_t rest = unit[2176 + 2 * owner + second];
		const uint32_t scale = half ? (word >> 12 & 15) | (rest >> 6) << 4 : word & 63, min = half ? rest & 63 : word >> 6 & 63;
		const float d = f16_at(unit + 2240 + g * 8 + half * 4), dmin = f16_at(unit + 2240 + g * 8 + half * 4 + 2);
		return __fsub_rn(
			__fmul_rn(__fmul_rn(d, (float)scale), (float)nibble), __fmul_rn(dmin, (float)min));
	}
	const uint32_t bits = ((const uint32_t *)(unit + 2048 + chunk * 256))[lane * 2 + second];
	const int pair = 2 * depth + inner % 4 / 2, at = (8 * half + 2 * (pair / 2) + 4 + 4 * (pair % 2) + 16 * (inner % 2)) % 32;
	const int quant = (nibble | (int)(bits >> at & 3) << 4) - 32;
	const int scale = (int)unit[3072 + (4 * g + chunk) * 8 + half * 4 + second * 2 + depth] - 128;
	return __fmul_rn(__fmul_rn(f16_at(unit + 3328 + g * 4 + half * 2), (float)scale), (float)quant);
}

/* The same with the factors that F8 has beside it. */
static __device__ float segment_value(const struct quant_segment *segment, int line, int column)
{
	const int strip = line / QUANT_STRIP_ROWS, row = line % QUANT_STRIP_ROWS;
	const int64_t units = (int64_t)strip * segment->n_units;
	float value = quant_value(segment->form, segment->units + units * quant_unit_bytes(segment->form), row, column);
	if (segment->form == QUANT_F8)
		value = value * segment->unit_scales[units / 2 + column / QUANT_F8_SCALE_COLS] * segment->row_scales[line];
	return value;
}

/* Segment that holds a row of the matrix. */
static __device__ const struct quant_segment *segment_of_row(const struct quant_layout *layout, int row)
{
	const struct quant_segment *segment = layout->segments;
	for (int i = 1; i < layout->n_segments; i++)
		if (row >= layout->segments[i].row_begin)
			segment = &layout->segments[i];
	return segment;
}

/* Block: columns of row blockIdx.y. */
__global__ void __launch_bounds__(THREADS) quant_embed_kernel(
	const struct quant_layout layout, const int32_t *ids, int cols, float *out, int64_t out_stride)
{
	dependency_release();
	dependency_wait();
	const int id = ids[blockIdx.y], column = blockIdx.x * THREADS + threadIdx.x;
	const struct quant_segment *segment = segment_of_row(&layout, id);
	if (column < cols)
		out[blockIdx.y * out_stride + column] = segment_value(segment, id - segment->row_begin, column);
}

enum status kn_cuda_quant_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
	int64_t out_stride, struct err *err)
{
	dim3 grid((unsigned)((table->cols + THREADS - 1) / THREADS), (unsigned)n_rows);
	return cuda_status(launch_dependent(backend->stream, grid, dim3(THREADS), 0, quant_embed_kernel, table->quant, ids,
				   (int)table->cols, out, out_stride),
		"embed", err);
}

/* --- many rows ---------------------------------------------------------------------------------------------------- */

/* Block: row blockIdx.y of [row_begin, …) as fp16; thread: four neighbouring columns. */
__global__ void __launch_bounds__(THREADS)
	quant_widen_kernel(const struct quant_layout layout, int row_begin, int cols, __half *out)
{
	dependency_release();
	dependency_wait();
	const int row = row_begin + blockIdx.y, column = (blockIdx.x * THREADS + threadIdx.x) * 4;
	const struct quant_segment *segment = segment_of_row(&layout, row);
	if (column >= cols)
		return;
	__half values[4];
#pragma unroll
	for (int i = 0; i < 4; i++)
		values[i] = __float2half_rn(segment_value(segment, row - segment->row_begin, column + i));
	*(uint2 *)(out + (int64_t)blockIdx.y * cols + column) = *(const uint2 *)values;
}

static cudaError_t widen(struct kn_backend *backend, const struct kn_matrix *w, int row_begin, int n_rows, __half *out)
{
	dim3 grid((unsigned)((w->cols / 4 + THREADS - 1) / THREADS), (unsigned)n_rows);
	return launch_dependent(
		backend->stream, grid, dim3(THREADS), 0, quant_widen_kernel, w->quant, row_begin, (int)w->cols, out);
}

/* Part by part: rows of the matrix (with SwiGLU gates, then the same ups) as fp16 in the workspace, then the library's product. */
static enum status many_rows(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const struct kn_matrix *w = args->w;
	const int halves = args->epilogue == KN_SWIGLU ? 2 : 1;
	const int64_t outputs = w->rows / halves;
	int64_t most = (int64_t)(QUANT_WEIGHTS_BYTES / (sizeof(__half) * (size_t)w->cols * (size_t)halves));
	most = most > 65535 ? 65535 : most; /* of a grid */
	struct kn_matrix part = {};
	part.form = PACK_F16;
	part.cols = w->cols;
	part.data = backend->quant.weights;
	enum status status = most < 1
		? err_set(err, STATUS_UNAVAILABLE, "a product of %lld columns is too wide", (long long)w->cols)
		: kn_cuda_gemm_prepare(backend, args, PACK_F16, n_rows, err);
	for (int64_t row = 0; row < outputs && !status; row += most) {
		const int64_t rows = outputs - row < most ? outputs - row : most;
		for (int half = 0; half < halves && !status; half++)
			status = cuda_status(widen(backend, w, (int)(row + half * outputs), (int)rows,
						     (__half *)backend->quant.weights + half * rows * w->cols),
				"weights as fp16", err);
		struct kn_matmul product = *args;
		part.rows = rows * halves;
		product.w = &part;
		product.y = args->y + row;
		if (!status)
			status = kn_cuda_gemm_product(backend, &product, n_rows, err);
	}
	return status;
}

enum status kn_cuda_quant_matmul(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const struct quant_layout *layout = &args->w->quant;
	if (args->epilogue == KN_SWIGLU && (layout->n_strips % 2 != 0 || args->w->rows % 2 != 0))
		return err_set(err, STATUS_INTERNAL,
			"swiglu over %lld rows: gate and up must be slices of equal shape, or halves of a multiple of %d rows",
			(long long)args->w->rows, 2 * QUANT_STRIP_ROWS);
	if (n_rows > FEW_PASSES * QUANT_FEW_ROWS_MAX)
		return many_rows(backend, args, n_rows, err);
	enum status status = STATUS_OK;
	for (int row = 0; row < n_rows && !status; row += QUANT_FEW_ROWS_MAX)
		status = quant_product(
			backend, args, row, n_rows - row < QUANT_FEW_ROWS_MAX ? n_rows - row : QUANT_FEW_ROWS_MAX, err);
	return status;
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static size_t panel_bytes(const struct kn_options *options)
{
	return (quant_panel<16>::bytes(options->cols_max) + 255) / 256 * 256;
}

uint64_t quant_workspace_bytes(const struct kn_options *options)
{
	return QUANT_WEIGHTS_BYTES + panel_bytes(options) + QUANT_FEW_ROWS_MAX * sizeof(float);
}

enum status quant_init(struct kn_backend *backend, const struct kn_options *options, struct err *err)
{
	cudaError_t error = cudaMalloc(&backend->quant.weights, QUANT_WEIGHTS_BYTES);
	if (!error)
		error = cudaMalloc(&backend->quant.panel, panel_bytes(options));
	if (!error)
		error = cudaMemset(backend->quant.panel, 0, panel_bytes(options));
	if (!error)
		error = cudaMalloc((void **)&backend->quant.row_scales, QUANT_FEW_ROWS_MAX * sizeof(float));
	if (!error)
		error = quant_product_init(backend);
	return cuda_status(error, "device workspace for quantised weights", err);
}

void quant_release(struct kn_backend *backend)
{
	cudaFree(backend->quant.weights);
	cudaFree(backend->quant.panel);
	cudaFree(backend->quant.row_scales);
}
