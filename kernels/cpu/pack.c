/* Repacking of stored tensors into row-interleaved panels, and reading rows back for embeddings. */
#include "kernels/cpu/pack.h"

#include <string.h>

#include "base/mem.h"

#define COLS_MAX ((int64_t)1 << 40) /* guess: keeps panel sizes far from overflow */
#define SEGMENT_ALIGNMENT 64 /* panels begin on cache lines where their size allows */

static const enum dtype dtypes[PANEL_FORMS] = {
	[PANEL_F32] = DTYPE_F32,
	[PANEL_F16] = DTYPE_F16,
	[PANEL_BF16] = DTYPE_BF16,
	[PANEL_Q4_0] = DTYPE_Q4_0,
	[PANEL_Q4_1] = DTYPE_Q4_1,
	[PANEL_Q4_K] = DTYPE_Q4_K,
	[PANEL_Q8_0] = DTYPE_Q8_0,
	[PANEL_Q6_K] = DTYPE_Q6_K,
};

bool pack_is_quantized(enum panel_form form)
{
	return form != PANEL_F32 && form != PANEL_F16 && form != PANEL_BF16;
}

/* Start of the block that holds column `col`, and the header before its group, from the start of a panel. */
static int64_t header_offset(enum panel_form form, int64_t col)
{
	int64_t group = col / BLOCK_COLS / GROUP_BLOCKS;

	return group * (GROUP_BLOCKS * micro_block_bytes(form) + micro_header_bytes(form));
}

static int64_t block_offset(enum panel_form form, int64_t col)
{
	int64_t block = col / BLOCK_COLS;

	if (!pack_is_quantized(form))
		return col * micro_block_bytes(form);
	if (micro_header_bytes(form) == 0)
		return block * micro_block_bytes(form);
	return header_offset(form, col) + micro_header_bytes(form) + block % GROUP_BLOCKS * micro_block_bytes(form);
}

/* F8_E4M3 is multiplied out at packing: its scales belong to blocks of any size, which a slice may cut anywhere. */
static bool form_of(enum dtype dtype, enum panel_form *form)
{
	if (dtype == DTYPE_F8_E4M3) {
		*form = PANEL_F32;
		return true;
	}
	for (int i = 0; i < PANEL_FORMS; i++) {
		if (dtypes[i] == dtype) {
			*form = (enum panel_form)i;
			return true;
		}
	}
	return false;
}

static bool is_range_within(int64_t begin, int64_t end, int64_t size)
{
	return begin >= 0 && begin < end && end <= size;
}

/* Checks one slice by itself. */
static enum status check_slice(const struct kn_slice *slice, enum panel_form *form, struct err *err)
{
	int64_t block = dtype_block_elements(slice->dtype);

	if (!form_of(slice->dtype, form))
		return err_set(err, STATUS_INPUT, "type %d cannot be packed", (int)slice->dtype);
	if (!is_range_within(slice->row_begin, slice->row_end, slice->rows) ||
		!is_range_within(slice->col_begin, slice->col_end, slice->cols))
		return err_set(err, STATUS_INPUT, "rows %lld..%lld, columns %lld..%lld are not within a tensor of %lld x %lld",
			(long long)slice->row_begin, (long long)slice->row_end, (long long)slice->col_begin,
			(long long)slice->col_end, (long long)slice->rows, (long long)slice->cols);
	if (slice->cols % block || slice->col_begin % block || slice->col_end % block)
		return err_set(err, STATUS_INPUT, "columns %lld..%lld of %lld do not fall on blocks of %lld",
			(long long)slice->col_begin, (long long)slice->col_end, (long long)slice->cols, (long long)block);
	if (slice->scales && (slice->scale_rows < 1 || slice->scale_cols < 1))
		return err_set(err, STATUS_INPUT, "scales of %lld rows by %lld columns", (long long)slice->scale_rows,
			(long long)slice->scale_cols);
	if (slice->cols > COLS_MAX)
		return err_set(err, STATUS_INPUT, "%lld columns, at most %lld", (long long)slice->cols, (long long)COLS_MAX);
	return STATUS_OK;
}

/* Lays out the segment of a slice after the rows and bytes that the matrix has so far. */
static enum status add_segment(struct kn_matrix *matrix, struct segment *segment, const struct kn_slice *slice, struct err *err)
{
	int64_t cols = slice->col_end - slice->col_begin, segment_bytes, end;
	enum status status = check_slice(slice, &segment->form, err);

	if (status != STATUS_OK)
		return status;
	if (matrix->rows > 0 && cols != matrix->cols)
		return err_set(err, STATUS_INPUT, "%lld columns beside %lld", (long long)cols, (long long)matrix->cols);
	segment->row_begin = matrix->rows;
	segment->rows = slice->row_end - slice->row_begin;
	segment->panel_begin = matrix->n_panels;
	segment->n_panels = (segment->rows - 1) / PANEL_ROWS + 1;
	/* Forms with headers hold whole groups: the block after the last one would begin a header later. */
	segment->panel_bytes = block_offset(segment->form, cols) - micro_header_bytes(segment->form);
	if (__builtin_mul_overflow(segment->panel_bytes, segment->n_panels, &segment_bytes) ||
		__builtin_add_overflow(segment_bytes, (int64_t)matrix->bytes + SEGMENT_ALIGNMENT, &end))
		return err_set(err, STATUS_INPUT, "its size overflows");
	matrix->bytes += ((uint64_t)segment_bytes + SEGMENT_ALIGNMENT - 1) / SEGMENT_ALIGNMENT * SEGMENT_ALIGNMENT;
	matrix->rows += segment->rows;
	matrix->cols = cols;
	matrix->n_panels += segment->n_panels;
	matrix->has_quantized |= pack_is_quantized(segment->form);
	matrix->has_plain |= !pack_is_quantized(segment->form);
	return STATUS_OK;
}

/* Sixteen stored rows on their way into a panel; rows past the end are NULL and become zeros. */
struct pack_rows {
	const uint8_t *rows[PANEL_ROWS]; /* at the first packed column */
	int64_t cols;
	uint8_t *panel; /* zeroed */
	const struct kn_slice *slice;
	int64_t row; /* of the stored tensor, of the first lane */
};

/* Puts 32 nibbles, given in column order, into lane `lane` of a nibble block. */
static void put_nibbles(uint8_t *block, int lane, const uint8_t nibbles[BLOCK_COLS])
{
	for (int z = 0; z < 4; z++) {
		uint32_t word = 0;

		for (int j = 0; j < 4; j++) {
			word |= (uint32_t)nibbles[8 * z + 2 * j] << (4 * j);
			word |= (uint32_t)nibbles[8 * z + 2 * j + 1] << (16 + 4 * j);
		}
		memcpy(block + 4 * (PANEL_ROWS * z + lane), &word, sizeof(word));
	}
}

/* Q4_0 and Q4_1 store `header` bytes of f16 scale (and minimum), then nibbles: columns 0..15 low, 16..31 high. */
static void pack_q4(const struct pack_rows *pack, int64_t stored_bytes, enum panel_form form)
{
	int64_t header = stored_bytes - BLOCK_COLS / 2;

	for (int lane = 0; lane < PANEL_ROWS; lane++) {
		const uint8_t *stored = pack->rows[lane];
		uint8_t *block = pack->panel;

		for (int64_t col = 0; stored && col < pack->cols;
			col += BLOCK_COLS, stored += stored_bytes, block += micro_block_bytes(form)) {
			uint8_t nibbles[BLOCK_COLS];

			for (int i = 0; i < BLOCK_COLS / 2; i++) {
				nibbles[i] = stored[header + i] & 15;
				nibbles[i + BLOCK_COLS / 2] = stored[header + i] >> 4;
			}
			put_nibbles(block, lane, nibbles);
			for (int64_t i = 0; i < header; i += 2)
				memcpy(block + U4_BYTES + 16 * i + 2 * lane, stored + i, 2);
		}
	}
}

static void pack_q4_k(const struct pack_rows *pack)
{
	for (int lane = 0; lane < PANEL_ROWS; lane++) {
		for (int64_t col = 0; pack->rows[lane] && col < pack->cols; col += BLOCK_COLS) {
			const uint8_t *stored = pack->rows[lane] + col / 256 * dtype_block_bytes(DTYPE_Q4_K);
			int sub = (int)(col / BLOCK_COLS % GROUP_BLOCKS);
			const uint8_t *quants = stored + 16 + 32 * (sub / 2);
			uint8_t *block = pack->panel + block_offset(PANEL_Q4_K, col);
			uint8_t *header = pack->panel + header_offset(PANEL_Q4_K, col);
			uint8_t nibbles[BLOCK_COLS];

			for (int i = 0; i < BLOCK_COLS; i++)
				nibbles[i] = (quants[i] >> (4 * (sub % 2))) & 15;
			put_nibbles(block, lane, nibbles);
			dtype_q4_k_scale_min(stored, sub, block + U4_BYTES + lane, block + U4_BYTES + 16 + lane);
			memcpy(header + 2 * lane, stored, 2);
			memcpy(header + 32 + 2 * lane, stored + 2, 2);
		}
	}
}

static void put_pair(uint8_t *block, int lane, int pair, int8_t first, int8_t second)
{
	block[2 * (PANEL_ROWS * pair + lane)] = (uint8_t)first;
	block[2 * (PANEL_ROWS * pair + lane) + 1] = (uint8_t)second;
}

static void pack_q8_0(const struct pack_rows *pack)
{
	for (int lane = 0; lane < PANEL_ROWS; lane++) {
		const uint8_t *stored = pack->rows[lane];
		uint8_t *block = pack->panel;

		for (int64_t col = 0; stored && col < pack->cols;
			col += BLOCK_COLS, stored += 34, block += micro_block_bytes(PANEL_Q8_0)) {
			for (int i = 0; i < BLOCK_COLS / 2; i++)
				put_pair(block, lane, i, (int8_t)stored[2 + 2 * i], (int8_t)stored[3 + 2 * i]);
			memcpy(block + I8_BYTES + 2 * lane, stored, 2);
		}
	}
}

static void pack_q6_k(const struct pack_rows *pack)
{
	for (int lane = 0; lane < PANEL_ROWS; lane++) {
		for (int64_t col = 0; pack->rows[lane] && col < pack->cols; col += BLOCK_COLS) {
			const uint8_t *stored = pack->rows[lane] + col / 256 * dtype_block_bytes(DTYPE_Q6_K);
			int first = (int)(col % 256);
			uint8_t *block = pack->panel + block_offset(PANEL_Q6_K, col);

			for (int i = 0; i < BLOCK_COLS / 2; i++)
				put_pair(block, lane, i, (int8_t)dtype_q6_k_quant(stored, first + 2 * i),
					(int8_t)dtype_q6_k_quant(stored, first + 2 * i + 1));
			block[I8_BYTES + lane] = stored[192 + first / 16];
			block[I8_BYTES + 16 + lane] = stored[192 + first / 16 + 1];
			memcpy(pack->panel + header_offset(PANEL_Q6_K, col) + 2 * lane, stored + 208, 2);
		}
	}
}

static void pack_plain(const struct pack_rows *pack, int64_t element_bytes)
{
	for (int lane = 0; lane < PANEL_ROWS; lane++)
		for (int64_t col = 0; pack->rows[lane] && col < pack->cols; col++)
			memcpy(pack->panel + (PANEL_ROWS * col + lane) * element_bytes, pack->rows[lane] + col * element_bytes,
				(size_t)element_bytes);
}

/* Each byte as a number times its scale, rounded to fp32. */
static void pack_f8(const struct pack_rows *pack)
{
	const struct kn_slice *slice = pack->slice;
	int64_t per_line = slice->scales ? (slice->cols + slice->scale_cols - 1) / slice->scale_cols : 0;

	for (int lane = 0; lane < PANEL_ROWS; lane++) {
		const float *line = NULL;

		if (!pack->rows[lane])
			continue;
		if (slice->scales)
			line = slice->scales + (pack->row + lane) / slice->scale_rows * per_line;
		for (int64_t col = 0; col < pack->cols; col++) {
			float value;

			dtype_dequantize(DTYPE_F8_E4M3, pack->rows[lane] + col, &value, 1);
			if (line)
				value *= line[(slice->col_begin + col) / slice->scale_cols];
			memcpy(pack->panel + (PANEL_ROWS * col + lane) * 4, &value, sizeof(value));
		}
	}
}

static void pack_panel(enum panel_form form, const struct pack_rows *pack)
{
	if (pack->slice->dtype == DTYPE_F8_E4M3) {
		pack_f8(pack);
		return;
	}
	switch (form) {
	case PANEL_F32:
		pack_plain(pack, 4);
		break;
	case PANEL_F16:
	case PANEL_BF16:
		pack_plain(pack, 2);
		break;
	case PANEL_Q4_0:
		pack_q4(pack, 18, PANEL_Q4_0);
		break;
	case PANEL_Q4_1:
		pack_q4(pack, 20, PANEL_Q4_1);
		break;
	case PANEL_Q4_K:
		pack_q4_k(pack);
		break;
	case PANEL_Q8_0:
		pack_q8_0(pack);
		break;
	case PANEL_Q6_K:
		pack_q6_k(pack);
		break;
	case PANEL_FORMS:
		break;
	}
}

struct pack_job {
	const struct kn_slice *slices;
	struct kn_matrix *matrix;
	int threads;
};

static void pack_segment(const struct kn_slice *slice, const struct segment *segment, int thread, int threads)
{
	int64_t block = dtype_block_elements(slice->dtype), block_bytes = dtype_block_bytes(slice->dtype);
	int64_t row_bytes = slice->cols / block * block_bytes;
	const uint8_t *first = (const uint8_t *)slice->data + slice->row_begin * row_bytes + slice->col_begin / block * block_bytes;

	for (int64_t panel = segment->n_panels * thread / threads; panel < segment->n_panels * (thread + 1) / threads; panel++) {
		/* The one writer of the data while it is still private to this file. */
		struct pack_rows pack = {.cols = slice->col_end - slice->col_begin,
			.panel = (uint8_t *)segment->panels + panel * segment->panel_bytes,
			.slice = slice,
			.row = slice->row_begin + panel * PANEL_ROWS};

		for (int lane = 0; lane < PANEL_ROWS; lane++)
			if (panel * PANEL_ROWS + lane < segment->rows)
				pack.rows[lane] = first + (panel * PANEL_ROWS + lane) * row_bytes;
		pack_panel(segment->form, &pack);
	}
}

static void pack_run(void *ctx, int thread)
{
	const struct pack_job *job = ctx;

	for (size_t i = 0; i < job->matrix->n_segments; i++)
		pack_segment(&job->slices[i], &job->matrix->segments[i], thread, job->threads);
}

static enum status lay_out(const struct kn_slice *slices, size_t n_slices, struct kn_matrix *matrix, struct err *err)
{
	if (n_slices == 0)
		return err_set(err, STATUS_INPUT, "a matrix of no slices");
	for (size_t i = 0; i < n_slices; i++)
		if (add_segment(matrix, &matrix->segments[i], &slices[i], err) != STATUS_OK)
			return err_add(err, "slice %zu of a matrix", i);
	matrix->n_segments = n_slices;
	return STATUS_OK;
}

static struct kn_matrix *new_matrix(size_t n_slices)
{
	return mem_calloc(1, sizeof(struct kn_matrix) + n_slices * sizeof(struct segment));
}

const struct segment *pack_segment_of_panel(const struct kn_matrix *matrix, int64_t panel)
{
	const struct segment *segment = matrix->segments;

	while (panel >= segment->panel_begin + segment->n_panels)
		segment++;
	return segment;
}

static int64_t panel_first_row(const struct kn_matrix *matrix, int64_t panel)
{
	const struct segment *segment = pack_segment_of_panel(matrix, panel);

	return segment->row_begin + (panel - segment->panel_begin) * PANEL_ROWS;
}

/* Panels of each half when panel i of the first half of the rows covers the same rows of its half as panel i of the second
 * half does; otherwise 0. */
static int64_t paired_panels(const struct kn_matrix *matrix)
{
	int64_t half = matrix->n_panels / 2;

	if (matrix->rows % 2 != 0 || matrix->n_panels % 2 != 0)
		return 0;
	for (int64_t i = 0; i < half; i++)
		if (panel_first_row(matrix, half + i) != panel_first_row(matrix, i) + matrix->rows / 2)
			return 0;
	return half;
}

enum status pack_create(struct pool *pool, struct store *store, const struct kn_slice *slices, size_t n_slices,
	struct kn_matrix **out, struct err *err)
{
	struct kn_matrix *matrix = new_matrix(n_slices);
	struct pack_job job = {.slices = slices, .matrix = matrix, .threads = pool_threads(pool)};
	uint8_t *at;
	void *data;
	enum status status;

	*out = NULL;
	status = lay_out(slices, n_slices, matrix, err);
	if (status == STATUS_OK)
		status = store_take(store, matrix->bytes, &data, err);
	if (status != STATUS_OK) {
		mem_free(matrix);
		return status;
	}
	matrix->data = data;
	matrix->paired_panels = paired_panels(matrix);
	at = data;
	for (size_t i = 0; i < n_slices; i++) {
		matrix->segments[i].panels = at;
		at += (matrix->segments[i].panel_bytes * matrix->segments[i].n_panels + SEGMENT_ALIGNMENT - 1) / SEGMENT_ALIGNMENT *
			SEGMENT_ALIGNMENT;
	}
	pool_run(pool, pack_run, &job);
	*out = matrix;
	return STATUS_OK;
}

void pack_destroy(struct store *store, struct kn_matrix *matrix)
{
	if (!matrix)
		return;
	store_put(store, matrix->data);
	mem_free(matrix);
}

uint64_t pack_bytes_needed(const struct kn_slice *slices, size_t n_slices)
{
	struct kn_matrix *matrix = new_matrix(n_slices);
	uint64_t bytes = lay_out(slices, n_slices, matrix, NULL) == STATUS_OK ? matrix->bytes : 0;

	mem_free(matrix);
	return bytes;
}

static float get_f32(const uint8_t *values, int lane)
{
	float value;

	memcpy(&value, values + 4 * lane, sizeof(value));
	return value;
}

static uint16_t get_u16(const uint8_t *values, int lane)
{
	uint16_t bits;

	memcpy(&bits, values + 2 * lane, sizeof(bits));
	return bits;
}

static float get_f16(const uint8_t *values, int lane)
{
	return dtype_f16_to_f32(get_u16(values, lane));
}

static float get_nibble(const uint8_t *block, int lane, int col)
{
	uint32_t word;

	memcpy(&word, block + 4 * (PANEL_ROWS * (col / 8) + lane), sizeof(word));
	return (float)((word >> (16 * (col % 2) + 4 * (col % 8 / 2))) & 15);
}

static float get_byte(const uint8_t *block, int lane, int col)
{
	return (float)(int8_t)block[2 * (PANEL_ROWS * (col / 2) + lane) + col % 2];
}

/* Value of one column of one lane, in the operations of dtype_dequantize. */
static float read_element(enum panel_form form, const uint8_t *panel, int lane, int64_t col)
{
	const uint8_t *block = panel + block_offset(form, col), *header = panel + header_offset(form, col);
	const uint8_t *scales = block + (micro_has_bytes(form) ? I8_BYTES : U4_BYTES);
	int at = (int)(col % BLOCK_COLS);

	switch (form) {
	case PANEL_F32:
		return get_f32(block, lane);
	case PANEL_F16:
		return get_f16(block, lane);
	case PANEL_BF16:
		return dtype_bf16_to_f32(get_u16(block, lane));
	case PANEL_Q4_0:
		return get_f16(scales, lane) * (get_nibble(block, lane, at) - 8);
	case PANEL_Q4_1:
		return get_f16(scales, lane) * get_nibble(block, lane, at) + get_f16(scales + 32, lane);
	case PANEL_Q4_K:
		return get_f16(header, lane) * (float)scales[lane] * get_nibble(block, lane, at) -
			get_f16(header + 32, lane) * (float)scales[16 + lane];
	case PANEL_Q8_0:
		return get_f16(scales, lane) * get_byte(block, lane, at);
	case PANEL_Q6_K:
		return get_f16(header, lane) * (float)(int8_t)scales[at / 16 * 16 + lane] * get_byte(block, lane, at);
	case PANEL_FORMS:
		break;
	}
	return 0;
}

void pack_read_row(const struct kn_matrix *matrix, int64_t row, float *out)
{
	const struct segment *segment = matrix->segments;
	const uint8_t *panel;

	while (row >= segment->row_begin + segment->rows)
		segment++;
	row -= segment->row_begin;
	panel = segment->panels + row / PANEL_ROWS * segment->panel_bytes;
	for (int64_t col = 0; col < matrix->cols; col++)
		out[col] = read_element(segment->form, panel, (int)(row % PANEL_ROWS), col);
}
