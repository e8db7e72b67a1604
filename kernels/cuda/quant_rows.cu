/* Around the product of quantised weights: activations of few rows into a panel, products of many rows through fp16 copies of parts
 * of a matrix, rows of an embedding table. */
#include <cuda_fp8.h>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/quant_decode.cuh"

#define PREPARE_THREADS 512
#define THREADS 256
#define FEW_PASSES 2 /* measured on 8B: reading the weights three times costs more than fp16 copies of them, see QUANT_NOTES.md */

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
static __global__ void __launch_bounds__(PREPARE_THREADS) quant_prepare_kernel(const float *x, int64_t x_stride,
	const int32_t *row_index, const float *norm_weight, float eps, int cols, void *memory, float *scales)
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
		return (float)((int)unit[lane * 16 + half * 8 + depth * 4 + inner % 4] - 128) *
			f16_at(unit + 512 + g * 4 + half * 2);
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
		const uint32_t scale = half ? (word >> 12 & 15) | (rest >> 6) << 4 : word & 63,
			       min = half ? rest & 63 : word >> 6 & 63;
		const float d = f16_at(unit + 2240 + g * 8 + half * 4), dmin = f16_at(unit + 2240 + g * 8 + half * 4 + 2);
		return __fsub_rn(__fmul_rn(__fmul_rn(d, (float)scale), (float)nibble), __fmul_rn(dmin, (float)min));
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
		value = value * segment->unit_scales[units + column / quant_unit_cols(QUANT_F8)] * segment->row_scales[line];
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
static __global__ void __launch_bounds__(THREADS)
	quant_embed_kernel(const struct quant_layout layout, const int32_t *ids, int cols, float *out, int64_t out_stride)
{
	dependency_release();
	dependency_wait();
	const int id = ids[blockIdx.y], column = blockIdx.x * THREADS + threadIdx.x;
	const struct quant_segment *segment = segment_of_row(&layout, id);
	if (column < cols)
		out[blockIdx.y * out_stride + column] = segment_value(segment, id - segment->row_begin, column);
}

enum status kn_cuda_quant_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows,
	float *out, int64_t out_stride, struct err *err)
{
	dim3 grid((unsigned)((table->cols + THREADS - 1) / THREADS), (unsigned)n_rows);
	/* In plain order, as kn_cuda_embed does and for its reason. */
	return cuda_status(launch_after(backend->stream, grid, dim3(THREADS), 0, quant_embed_kernel, table->quant, ids,
				   (int)table->cols, out, out_stride),
		"embed", err);
}

/* --- many rows ---------------------------------------------------------------------------------------------------- */

/* A lane's part of a block of 32 columns, as values in fp16 without offsets, and what makes weights of them: value * scale + min,
 * by [row half][depth]. */
struct quant_block {
	struct quant_fragments f;
	float scale[2][2], min[2][2];

	__device__ __forceinline__ void set(int row, float row_scale, float row_min)
	{
		scale[row][0] = scale[row][1] = row_scale;
		min[row][0] = min[row][1] = row_min;
	}

	__device__ __forceinline__ void from_nibbles(uint2 words)
	{
		f.from_nibbles(words.x, words.y);
#pragma unroll
		for (int depth = 0; depth < 2; depth++)
#pragma unroll
			for (int row = 0; row < 2; row++) {
				f.a[depth][row] = minus(f.a[depth][row], F16_1024);
				f.a[depth][2 + row] = minus(f.a[depth][2 + row], F16_64);
			}
	}

	/* block: of the segment's units, in order of columns. */
	__device__ __forceinline__ void load(const struct quant_segment &segment, int strip, int block, int lane)
	{
		const int form = segment.form, per_unit = quant_unit_cols(form) / 32, inner = block % per_unit, g = lane / 4;
		const int64_t at = (int64_t)strip * segment.n_units + block / per_unit;
		const uint8_t *unit = segment.units + at * quant_unit_bytes(form);
		/* Sub-blocks of the K forms lie in chunks of two: which chunk, and which of the two. */
		const int chunk = form == QUANT_Q4_K ? inner % 4 : inner / 2, second = form == QUANT_Q4_K ? inner / 4 : inner % 2;
		const uint2 words = *(const uint2 *)(unit + chunk * 512 + lane * 16 + second * 8);
		switch (form) {
		case QUANT_Q4_0:
		case QUANT_Q4_1: {
			const float2 d = to_floats(*(const uint32_t *)(unit + 512 + g * 8 + inner * 4));
			const float2 m = form == QUANT_Q4_0 ? make_float2(-8.0f * d.x, -8.0f * d.y)
							    : to_floats(*(const uint32_t *)(unit + 576 + g * 8 + inner * 4));
			from_nibbles(words);
			set(0, d.x, m.x);
			set(1, d.y, m.y);
			break;
		}
		case QUANT_Q8_0: {
			const float2 d = to_floats(*(const uint32_t *)(unit + 512 + g * 4));
			f.from_bytes(*(const uint4 *)(unit + lane * 16));
			set(0, d.x, 0.0f);
			set(1, d.y, 0.0f);
			break;
		}
		case QUANT_F8: {
			const float scale = segment.unit_scales[at];
			f.from_f8(*(const uint4 *)(unit + inner * 512 + lane * 16));
			set(0, scale * segment.row_scales[strip * QUANT_STRIP_ROWS + g], 0.0f);
			set(1, scale * segment.row_scales[strip * QUANT_STRIP_ROWS + 8 + g], 0.0f);
			break;
		}
		case QUANT_Q4_K: {
			const int owner = 4 * g + chunk;
			const uint32_t word = *(const uint32_t *)(unit + 2048 + owner * 4) >> (16 * second);
			const uint32_t rest = unit[2176 + 2 * owner + second];
			const float2 low = to_floats(*(const uint32_t *)(unit + 2240 + g * 8)),
				     high = to_floats(*(const uint32_t *)(unit + 2244 + g * 8));
			from_nibbles(words);
			set(0, low.x * (float)(word & 63), -low.y * (float)(word >> 6 & 63));
			set(1, high.x * (float)((word >> 12 & 15) | (rest >> 6) << 4), -high.y * (float)(rest & 63));
			break;
		}
		default: {
			const uint32_t bits = *(const uint32_t *)(unit + 2048 + chunk * 256 + lane * 8 + second * 4);
			const uint8_t *scales = unit + 3072 + (4 * g + chunk) * 8 + second * 2;
			const float2 d = to_floats(*(const uint32_t *)(unit + 3328 + g * 4));
			f.from_six_bits(words.x, words.y, bits);
#pragma unroll
			for (int row = 0; row < 2; row++)
#pragma unroll
				for (int depth = 0; depth < 2; depth++) {
					scale[row][depth] = (row ? d.y : d.x) * (float)((int)scales[4 * row + depth] - 128);
					min[row][depth] = 0.0f;
				}
		}
		}
	}

	/* Four neighbouring columns of a row as fp16. */
	__device__ __forceinline__ uint2 four(int row, int depth) const
	{
		const float2 first = to_floats(f.a[depth][row]), next = to_floats(f.a[depth][2 + row]);
		const float s = scale[row][depth], m = min[row][depth];
		return make_uint2(
			pack_f16(fmaf(first.x, s, m), fmaf(first.y, s, m)), pack_f16(fmaf(next.x, s, m), fmaf(next.y, s, m)));
	}
};

/* Rows [row_begin, row_end) as fp16. Block: strip strip_begin + blockIdx.y; warp: a block of 32 columns of it. */
static __global__ void __launch_bounds__(THREADS)
	quant_widen_kernel(const struct quant_layout layout, int strip_begin, int row_begin, int row_end, int cols, __half *out)
{
	dependency_release();
	dependency_wait();
	const int strip = strip_begin + blockIdx.y, lane = threadIdx.x % CUDA_WARP, t = lane % 4;
	const int block = blockIdx.x * (THREADS / CUDA_WARP) + threadIdx.x / CUDA_WARP;
	const struct quant_segment segment = quant_segment_of(&layout, strip);
	if (block * 32 >= cols)
		return;
	struct quant_block values;
	values.load(segment, strip - segment.strip_begin, block, lane);
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const int line = (strip - segment.strip_begin) * QUANT_STRIP_ROWS + 8 * half + lane / 4;
		const int row = segment.row_begin + line;
		if (line >= segment.rows || row < row_begin || row >= row_end)
			continue;
#pragma unroll
		for (int depth = 0; depth < 2; depth++) {
			const int column = block * 32 + 16 * depth + 4 * t;
			if (column < cols)
				*(uint2 *)(out + (int64_t)(row - row_begin) * cols + column) = values.four(half, depth);
		}
	}
}

/* Strip that holds a row. */
static int strip_of(const struct quant_layout *layout, int64_t row)
{
	int i = 0;
	while (i + 1 < layout->n_segments && row >= layout->segments[i + 1].row_begin)
		i++;
	return layout->segments[i].strip_begin + (int)((row - layout->segments[i].row_begin) / QUANT_STRIP_ROWS);
}

static cudaError_t widen(struct kn_backend *backend, const struct kn_matrix *w, int64_t row_begin, int64_t row_end, __half *out)
{
	const int first = strip_of(&w->quant, row_begin), last = strip_of(&w->quant, row_end - 1);
	const int64_t warps = THREADS / CUDA_WARP, blocks = (w->cols + 31) / 32;
	dim3 grid((unsigned)((blocks + warps - 1) / warps), (unsigned)(last - first + 1));
	return launch_dependent(backend->stream, grid, dim3(THREADS), 0, quant_widen_kernel, w->quant, first, (int)row_begin,
		(int)row_end, (int)w->cols, out);
}

/* Part by part: rows of the matrix (with SwiGLU gates, then the same ups) as fp16 in the workspace, then the library's product. */
static enum status many_rows(
	struct kn_backend *backend, const struct kn_matmul *args, int n_rows, enum pack_form reader_form, struct err *err)
{
	const struct kn_matrix *w = args->w;
	const int halves = args->epilogue == KN_SWIGLU ? 2 : 1;
	const int64_t outputs = w->rows / halves;
	const int64_t most = (int64_t)(QUANT_WEIGHTS_BYTES / (sizeof(__half) * (size_t)w->cols * (size_t)halves)) / 16 * 16;
	struct kn_matrix part = {};
	part.form = PACK_F16;
	part.cols = w->cols;
	part.data = backend->quant.weights;
	enum status status = most < 1
		? err_set(err, STATUS_UNAVAILABLE, "a product of %lld columns is too wide", (long long)w->cols)
		: cuda_status(elementwise_prepare(backend, args, PACK_F16, n_rows), "input of a matrix product", err);
	for (int64_t row = 0; row < outputs && !status; row += most) {
		const int64_t rows = outputs - row < most ? outputs - row : most;
		for (int half = 0; half < halves && !status; half++)
			status = cuda_status(widen(backend, w, row + half * outputs, row + half * outputs + rows,
						     (__half *)backend->quant.weights + half * rows * w->cols),
				"weights as fp16", err);
		struct kn_matmul product = *args;
		part.rows = rows * halves;
		product.w = &part;
		product.y = (float *)((char *)args->y + row * (reader_form == PACK_F32 ? 4 : 2));
		if (!status)
			status = kn_cuda_gemm_of(backend, &product, n_rows, backend->prepared, w->cols, err);
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
	/* What reads y in steps of few rows, for rows of one bit pattern in steps of any size, takes fp32. */
	const enum pack_form reader_form = backend->deterministic ? PACK_F32 : form_for(args->reader, n_rows);
	if (n_rows > FEW_PASSES * QUANT_FEW_ROWS_MAX && !backend->deterministic)
		return many_rows(backend, args, n_rows, reader_form, err);
	enum status status = STATUS_OK;
	for (int row = 0; row < n_rows && !status; row += QUANT_FEW_ROWS_MAX)
		status = quant_product(backend, args, row, n_rows - row < QUANT_FEW_ROWS_MAX ? n_rows - row : QUANT_FEW_ROWS_MAX,
			reader_form, err);
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
