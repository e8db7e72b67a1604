/* Stored rows into strips: layout of a matrix, and the kernel that repacks what was copied to the device as it is in the file. */
#include <string.h>

#include "kernels/cuda/device.cuh"

extern "C" {
#include "base/mem.h"
}

#define THREADS 128
#define F8_COLS quant_unit_cols(QUANT_F8)
#define GRID_Y_MAX 65535 /* CUDA C++ Programming Guide, compute capabilities */

/* --- layout ------------------------------------------------------------------------------------------------------- */

static bool form_of(enum dtype dtype, int32_t *form)
{
	switch (dtype) {
	case DTYPE_Q4_0:
		*form = QUANT_Q4_0;
		return true;
	case DTYPE_Q4_1:
		*form = QUANT_Q4_1;
		return true;
	case DTYPE_Q8_0:
		*form = QUANT_Q8_0;
		return true;
	case DTYPE_F8_E4M3:
		*form = QUANT_F8;
		return true;
	case DTYPE_Q4_K:
		*form = QUANT_Q4_K;
		return true;
	case DTYPE_Q6_K:
		*form = QUANT_Q6_K;
		return true;
	default:
		return false;
	}
}

/* F8 scales that are factors of rows, or of whole strips and units. */
static bool scales_fit(const struct kn_slice *slice)
{
	if (!slice->scales)
		return true;
	const bool whole_rows = slice->scale_cols >= slice->cols, whole_columns = slice->scale_rows >= slice->rows;
	if (whole_rows && slice->scale_rows == 1)
		return true;
	return (whole_columns || (slice->scale_rows % QUANT_STRIP_ROWS == 0 && slice->row_begin % QUANT_STRIP_ROWS == 0)) &&
		(whole_rows || (slice->scale_cols % F8_COLS == 0 && slice->col_begin % F8_COLS == 0));
}

static int64_t rows_of(const struct kn_slice *slice)
{
	return slice->row_end - slice->row_begin;
}

static int32_t strips_of(const struct kn_slice *slice)
{
	return (int32_t)((rows_of(slice) + QUANT_STRIP_ROWS - 1) / QUANT_STRIP_ROWS);
}

static size_t strip_bytes(const struct quant_segment *segment)
{
	return (size_t)segment->n_units * (size_t)quant_unit_bytes(segment->form);
}

/* Strips of the slices, one segment for neighbours of one form that meet at a strip's edge. */
static bool add_segments(const struct kn_slice *slices, size_t n_slices, struct quant_layout *out)
{
	int32_t rows = 0;
	for (size_t i = 0; i < n_slices; i++) {
		struct quant_segment *last = &out->segments[out->n_segments - (out->n_segments > 0)];
		int32_t form;
		if (!form_of(slices[i].dtype, &form) || (form == QUANT_F8 && !scales_fit(&slices[i])))
			return false;
		if (out->n_segments == 0 || last->form != form || last->rows % QUANT_STRIP_ROWS != 0) {
			if (out->n_segments == QUANT_SEGMENTS_MAX)
				return false;
			last = &out->segments[out->n_segments++];
			last->form = form;
			last->strip_begin = out->n_strips;
			last->row_begin = rows;
		}
		last->rows += (int32_t)rows_of(&slices[i]);
		last->n_strips += strips_of(&slices[i]);
		rows += (int32_t)rows_of(&slices[i]);
		out->n_strips += strips_of(&slices[i]);
	}
	return true;
}

bool quant_lay_out(const struct kn_slice *slices, size_t n_slices, struct quant_layout *out, uint64_t *bytes)
{
	*out = {};
	if (!add_segments(slices, n_slices, out))
		return false;
	for (int i = out->n_segments; i < QUANT_SEGMENTS_MAX; i++)
		out->segments[i].strip_begin = out->segments[i].row_begin = INT32_MAX;
	out->granule_cols = 64;
	for (int i = 0; i < out->n_segments; i++) {
		const int form = out->segments[i].form;
		const int stage = quant_stage_bytes(form), granule = quant_unit_cols(form);
		out->granule_cols = granule > out->granule_cols ? granule : out->granule_cols;
		out->stage_bytes = stage > out->stage_bytes ? stage : out->stage_bytes;
	}
	const int64_t cols = slices[0].col_end - slices[0].col_begin;
	const int32_t n_granules = (int32_t)((cols + out->granule_cols - 1) / out->granule_cols);
	uintptr_t at = 0;
	for (int i = 0; i < out->n_segments; i++) {
		struct quant_segment *segment = &out->segments[i];
		segment->n_units = n_granules * (out->granule_cols / quant_unit_cols(segment->form));
		segment->units = (const uint8_t *)at;
		at += (uintptr_t)segment->n_strips * strip_bytes(segment);
	}
	for (int i = 0; i < out->n_segments; i++) {
		struct quant_segment *segment = &out->segments[i];
		segment->row_scales = (const float *)at;
		at += segment->form == QUANT_F8 ? (uintptr_t)segment->n_strips * QUANT_STRIP_ROWS * sizeof(float) : 0;
	}
	for (int i = 0; i < out->n_segments; i++) {
		struct quant_segment *segment = &out->segments[i];
		segment->unit_scales = (const float *)at;
		at += segment->form == QUANT_F8 ? (uintptr_t)segment->n_strips * (uintptr_t)segment->n_units * sizeof(float) : 0;
	}
	*bytes = at;
	return true;
}

/* --- repacking ---------------------------------------------------------------------------------------------------- */

/* Stored rows of one strip, at the slice's first column. */
struct stored_strip {
	const uint8_t *rows;
	int64_t stride;
	int n_rows; /* the others are zeros */
	int n_blocks; /* whole blocks of the stored form in a row; beyond them are zeros */
};

static __device__ const uint8_t *stored_block(const struct stored_strip &strip, int row, int block, int block_bytes)
{
	return row < strip.n_rows && block < strip.n_blocks ? strip.rows + row * strip.stride + (int64_t)block * block_bytes : NULL;
}

static __device__ uint32_t load_u16(const uint8_t *at)
{
	return at ? at[0] | (uint32_t)at[1] << 8 : 0;
}

/* Column within a block of 32 of element e of pair p of lane t. */
static __device__ int pair_column(int t, int p, int e)
{
	return 16 * (p / 2) + 4 * t + 2 * (p % 2) + e;
}

/* Columns 0 to 15 are low nibbles, 16 to 31 high ones. */
static __device__ uint32_t nibbles_q4(const uint8_t *quants, int t)
{
	uint32_t word = 0;
	for (int p = 0; quants && p < 4; p++)
		for (int e = 0; e < 2; e++) {
			const int column = pair_column(t, p, e);
			word |= (uint32_t)(column < 16 ? quants[column] & 15 : quants[column - 16] >> 4) << (4 * p + 16 * e);
		}
	return word;
}

static __device__ uint32_t bytes_word(const uint8_t *bytes, int t, int depth, uint32_t flip)
{
	uint32_t word = 0;
	for (int i = 0; bytes && i < 4; i++)
		word |= (uint32_t)bytes[16 * depth + 4 * t + i] << (8 * i);
	return word ^ flip;
}

/* Words of pairs of f16 values at `at` of the blocks: [8 g][block][row half]. */
static __device__ uint32_t halves_word(const struct stored_strip &strip, int first, int blocks, int block_bytes, int at, int word)
{
	const int g = word / blocks, block = first + word % blocks;
	const uint8_t *low = stored_block(strip, g, block, block_bytes), *high = stored_block(strip, g + 8, block, block_bytes);
	return load_u16(low ? low + at : NULL) | load_u16(high ? high + at : NULL) << 16;
}

static __device__ uint32_t word_q4(const struct stored_strip &strip, int unit, int word, int header)
{
	const int block_bytes = header + 16;
	if (word >= 128)
		return halves_word(strip, 2 * unit, 2, block_bytes, word < 144 ? 0 : 2, (word - 128) % 16);
	const int lane = word / 4;
	const uint8_t *block = stored_block(strip, lane / 4 + 8 * (word % 2), 2 * unit + word / 2 % 2, block_bytes);
	return nibbles_q4(block ? block + header : NULL, lane % 4);
}

static __device__ uint32_t word_q8_0(const struct stored_strip &strip, int unit, int word)
{
	if (word >= 128)
		return halves_word(strip, unit, 1, 34, 0, word - 128);
	const int lane = word / 4;
	const uint8_t *block = stored_block(strip, lane / 4 + 8 * (word / 2 % 2), unit, 34);
	return bytes_word(block ? block + 2 : NULL, lane % 4, word % 2, 0x80808080u);
}

/* A block of F8 is one byte: columns are looked at one by one. */
static __device__ uint32_t word_f8(const struct stored_strip &strip, int unit, int word)
{
	const int lane = word / 4 % 32, row = lane / 4 + 8 * (word / 2 % 2);
	const int column = F8_COLS * unit + 32 * (word / 128) + 16 * (word % 2) + 4 * (lane % 4);
	uint32_t out = 0;
	for (int i = 0; i < 4; i++) {
		const uint8_t *at = stored_block(strip, row, column + i, 1);
		out |= (at ? *at : 0u) << (8 * i);
	}
	return out;
}

static __device__ uint32_t nibbles_q4_k(const uint8_t *block, int sub, int t)
{
	uint32_t word = 0;
	for (int p = 0; block && p < 4; p++)
		for (int e = 0; e < 2; e++)
			word |= (uint32_t)((block[16 + 32 * (sub / 2) + pair_column(t, p, e)] >> (4 * (sub % 2))) & 15)
				<< (4 * p + 16 * e);
	return word;
}

/* 6-bit scale and minimum of a sub-block, as in dtype_q4_k_scale_min. */
static __device__ void scale_min_q4_k(const uint8_t *block, int sub, uint32_t *scale, uint32_t *min)
{
	*scale = *min = 0;
	if (!block)
		return;
	const uint8_t *packed = block + 4;
	if (sub < 4) {
		*scale = packed[sub] & 63;
		*min = packed[sub + 4] & 63;
	} else {
		*scale = (packed[sub + 4] & 15) | ((packed[sub - 4] >> 6) << 4);
		*min = (packed[sub + 4] >> 4) | ((packed[sub] >> 6) << 4);
	}
}

/* Scales s and minimums m of rows g and g + 8, of sub-blocks t and t + 4 in the lower and upper half:
 *   word: s(g) bits 0 to 5, m(g) bits 6 to 11, low four bits of s(g + 8) bits 12 to 15; the same 16 bits higher for t + 4.
 *   half word: m(g + 8) bits 0 to 5, high two bits of s(g + 8) bits 6 and 7; the same 8 bits higher for t + 4. */
static __device__ uint32_t scales_q4_k(const struct stored_strip &strip, int unit, int lane, bool half_word)
{
	uint32_t word = 0, half = 0;
	for (int e = 0; e < 2; e++) {
		uint32_t scale_low, min_low, scale_high, min_high;
		scale_min_q4_k(stored_block(strip, lane / 4, unit, 144), lane % 4 + 4 * e, &scale_low, &min_low);
		scale_min_q4_k(stored_block(strip, lane / 4 + 8, unit, 144), lane % 4 + 4 * e, &scale_high, &min_high);
		word |= (scale_low | min_low << 6 | (scale_high & 15) << 12) << (16 * e);
		half |= (min_high | (scale_high >> 4) << 6) << (8 * e);
	}
	return half_word ? half : word;
}

static __device__ uint32_t word_q4_k(const struct stored_strip &strip, int unit, int word)
{
	if (word < 512) {
		const int chunk = word / 128, lane = word / 4 % 32;
		return nibbles_q4_k(
			stored_block(strip, lane / 4 + 8 * (word % 2), unit, 144), chunk + 4 * (word / 2 % 2), lane % 4);
	}
	if (word < 544)
		return scales_q4_k(strip, unit, word - 512, false);
	if (word < 560)
		return scales_q4_k(strip, unit, 2 * (word - 544), true) |
			scales_q4_k(strip, unit, 2 * (word - 544) + 1, true) << 16;
	const uint8_t *block = stored_block(strip, (word - 560) / 2 + 8 * (word % 2), unit, 144);
	return load_u16(block) | load_u16(block ? block + 2 : NULL) << 16;
}

/* As dtype_q6_k_quant, without the offset of 32. */
static __device__ uint32_t quant_q6_k(const uint8_t *block, int sub, int column)
{
	const int half = sub / 4, group = sub % 4;
	const uint32_t low = (block[64 * half + 32 * (group % 2) + column] >> (4 * (group / 2))) & 15;
	return low | ((block[128 + 32 * half + column] >> (2 * group)) & 3u) << 4;
}

static __device__ uint32_t nibbles_q6_k(const uint8_t *block, int sub, int t)
{
	uint32_t word = 0;
	for (int p = 0; block && p < 4; p++)
		for (int e = 0; e < 2; e++)
			word |= (quant_q6_k(block, sub, pair_column(t, p, e)) & 15) << (4 * p + 16 * e);
	return word;
}

/* The two upper bits of both rows, where rotating by 0, 2, 8 and 10 brings pairs 0 and 1 of row g, 2 and 3 of row g, 0 and 1 of row
 * g + 8, 2 and 3 of row g + 8 to bits 4 (even pairs) and 8 (odd ones), and 16 bits higher. */
static __device__ uint32_t high_bits_q6_k(const uint8_t *low, const uint8_t *high, int sub, int t)
{
	uint32_t word = 0;
	for (int row = 0; row < 2; row++)
		for (int p = 0; (row ? high : low) && p < 4; p++)
			for (int e = 0; e < 2; e++) {
				const uint32_t bits = quant_q6_k(row ? high : low, sub, pair_column(t, p, e)) >> 4;
				const int at = (8 * row + 2 * (p / 2) + 4 + 4 * (p % 2) + 16 * e) % 32;
				word |= bits << at;
			}
	return word;
}

static __device__ uint32_t word_q6_k(const struct stored_strip &strip, int unit, int word)
{
	const int bytes = 210;
	if (word < 512) {
		const int chunk = word / 128, lane = word / 4 % 32;
		return nibbles_q6_k(
			stored_block(strip, lane / 4 + 8 * (word % 2), unit, bytes), 2 * chunk + word / 2 % 2, lane % 4);
	}
	if (word < 768) {
		const int chunk = (word - 512) / 64, lane = word / 2 % 32;
		return high_bits_q6_k(stored_block(strip, lane / 4, unit, bytes), stored_block(strip, lane / 4 + 8, unit, bytes),
			2 * chunk + word % 2, lane % 4);
	}
	if (word < 832) {
		const int lane = (word - 768) / 2;
		const uint8_t *block = stored_block(strip, lane / 4 + 8 * (word % 2), unit, bytes);
		uint32_t out = 0;
		for (int i = 0; block && i < 4; i++)
			out |= (uint32_t)block[192 + 4 * (lane % 4) + i] << (8 * i);
		return out ^ 0x80808080u;
	}
	return halves_word(strip, unit, 1, bytes, 208, word - 832);
}

/* Block: unit blockIdx.x of strip blockIdx.y. */
static __global__ void __launch_bounds__(THREADS)
	pack_kernel(int form, const uint8_t *stored, int64_t stride, int n_rows, int n_blocks, uint8_t *units)
{
	const int unit = blockIdx.x, first_row = blockIdx.y * QUANT_STRIP_ROWS;
	const struct stored_strip strip = {
		stored + first_row * stride, stride, min(n_rows - first_row, QUANT_STRIP_ROWS), n_blocks};
	uint32_t *to = (uint32_t *)(units + ((int64_t)blockIdx.y * gridDim.x + unit) * quant_unit_bytes(form));
	for (int word = threadIdx.x; word < quant_unit_bytes(form) / 4; word += THREADS) {
		uint32_t value = 0;
		switch (form) {
		case QUANT_Q4_0:
			value = word_q4(strip, unit, word, 2);
			break;
		case QUANT_Q4_1:
			value = word_q4(strip, unit, word, 4);
			break;
		case QUANT_Q8_0:
			value = word_q8_0(strip, unit, word);
			break;
		case QUANT_F8:
			value = word_f8(strip, unit, word);
			break;
		case QUANT_Q4_K:
			value = word_q4_k(strip, unit, word);
			break;
		case QUANT_Q6_K:
			value = word_q6_k(strip, unit, word);
			break;
		}
		to[word] = value;
	}
}

/* Copies the slice piece by piece into the workspace and repacks it from there. */
static cudaError_t upload_units(
	struct kn_backend *backend, const struct kn_slice *slice, const struct quant_segment *segment, int strip)
{
	const size_t block = (size_t)dtype_block_elements(slice->dtype), block_bytes = (size_t)dtype_block_bytes(slice->dtype);
	const size_t stored_stride = (size_t)slice->cols / block * block_bytes;
	const size_t stride = (size_t)(slice->col_end - slice->col_begin) / block * block_bytes;
	const uint8_t *from = (const uint8_t *)slice->data + (size_t)slice->row_begin * stored_stride +
		(size_t)slice->col_begin / block * block_bytes;
	const int64_t room = (int64_t)(QUANT_WEIGHTS_BYTES / stride / QUANT_STRIP_ROWS);
	const int64_t strips_at_once = room < GRID_Y_MAX ? room : GRID_Y_MAX;
	cudaError_t error = strips_at_once > 0 ? cudaSuccess : cudaErrorInvalidValue;
	for (int64_t row = 0; row < rows_of(slice) && !error; row += strips_at_once * QUANT_STRIP_ROWS) {
		const int64_t left = rows_of(slice) - row, most = strips_at_once * QUANT_STRIP_ROWS;
		const int n_rows = (int)(left < most ? left : most);
		error = cudaMemcpy2DAsync(backend->quant.weights, stride, from + (size_t)row * stored_stride, stored_stride, stride,
			(size_t)n_rows, cudaMemcpyHostToDevice, backend->stream);
		if (error)
			break;
		dim3 grid((unsigned)segment->n_units, (unsigned)((n_rows + QUANT_STRIP_ROWS - 1) / QUANT_STRIP_ROWS));
		pack_kernel<<<grid, THREADS, 0, backend->stream>>>(segment->form, (const uint8_t *)backend->quant.weights,
			(int64_t)stride, n_rows, (int)(stride / block_bytes),
			(uint8_t *)segment->units + (size_t)(strip + row / QUANT_STRIP_ROWS) * strip_bytes(segment));
		error = cudaGetLastError();
	}
	return error;
}

/* Factors of the strips of a slice, which begin at strip `strip` of the segment. */
static cudaError_t upload_scales(const struct kn_slice *slice, const struct quant_segment *segment, int strip)
{
	const size_t n_strips = (size_t)strips_of(slice), n_units = (size_t)segment->n_units;
	float *rows = (float *)mem_calloc(n_strips * QUANT_STRIP_ROWS, sizeof *rows);
	float *units = (float *)mem_calloc(n_strips * n_units, sizeof *units);
	const bool by_row = slice->scales && slice->scale_rows == 1 && slice->rows > 1;
	for (size_t i = 0; i < n_strips * QUANT_STRIP_ROWS; i++)
		rows[i] = by_row && (int64_t)i < rows_of(slice) ? slice->scales[slice->row_begin + (int64_t)i] : 1.0f;
	const int64_t per_line = slice->scales ? (slice->cols + slice->scale_cols - 1) / slice->scale_cols : 0;
	for (size_t i = 0; i < n_strips * n_units; i++) {
		int64_t row = slice->row_begin + (int64_t)(i / n_units) * QUANT_STRIP_ROWS;
		int64_t col = slice->col_begin + (int64_t)(i % n_units) * F8_COLS;
		units[i] = 1.0f;
		if (slice->scales && !by_row && col < slice->cols)
			units[i] = slice->scales[row / slice->scale_rows * per_line + col / slice->scale_cols];
	}
	cudaError_t error = cudaMemcpy((void *)(segment->row_scales + (size_t)strip * QUANT_STRIP_ROWS), rows,
		n_strips * QUANT_STRIP_ROWS * sizeof *rows, cudaMemcpyHostToDevice);
	if (!error)
		error = cudaMemcpy((void *)(segment->unit_scales + (size_t)strip * n_units), units,
			n_strips * n_units * sizeof *units, cudaMemcpyHostToDevice);
	mem_free(rows);
	mem_free(units);
	return error;
}

enum status quant_upload(
	struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices, struct kn_matrix *matrix, struct err *err)
{
	struct quant_layout *layout = &matrix->quant;
	uint64_t bytes;
	ASSERT(quant_lay_out(slices, n_slices, layout, &bytes) && bytes == matrix->bytes);
	for (int i = 0; i < layout->n_segments; i++) {
		struct quant_segment *segment = &layout->segments[i];
		segment->units = (const uint8_t *)matrix->data + (uintptr_t)segment->units;
		segment->row_scales = (const float *)((const uint8_t *)matrix->data + (uintptr_t)segment->row_scales);
		segment->unit_scales = (const float *)((const uint8_t *)matrix->data + (uintptr_t)segment->unit_scales);
	}
	int strip = 0;
	cudaError_t error = cudaSuccess;
	for (size_t i = 0; i < n_slices && !error; i++) {
		const struct quant_segment segment = quant_segment_of(layout, strip);
		error = upload_units(backend, &slices[i], &segment, strip - segment.strip_begin);
		if (!error && segment.form == QUANT_F8)
			error = upload_scales(&slices[i], &segment, strip - segment.strip_begin);
		strip += strips_of(&slices[i]);
	}
	if (!error)
		error = cudaStreamSynchronize(backend->stream);
	return cuda_status(error, "weights to the GPU", err);
}
