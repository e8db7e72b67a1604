/* Products of weight panels with rows for AVX2 with FMA and F16C, bit for bit those of micro_scalar.c. The 16 lanes of a panel
 * are two registers ("halves"): tiles of several rows take one half at a time, tiles of one row both. AVX-512 keeps whole
 * panels, larger tiles and several sums per row in its registers, so only the table of forms is shared with it. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/micro.h"
#include "kernels/cpu/specialize.h"

#define HALF_ROWS 8
#define TILE_SUMS_MAX 12 /* of 16 registers */
#define PREFETCH_BYTES 2048 /* as in product_avx512.c */

/* --- products with quantised weights -------------------------------------------------------------------------------- */

/* Rows of one tile and the panel they meet; sums are [rows][halves], beginning at half `half`. */
struct tile {
	const uint8_t *panel;
	int64_t n_blocks;
	const int16_t *quants; /* of the first row; rows are `stride` apart */
	const struct activation_block *blocks;
	int64_t stride;
	float *out; /* [rows][16] */
	int half;
};

static inline __m256i broadcast_pair(const int16_t *quants)
{
	int32_t pair;

	memcpy(&pair, quants, sizeof pair);
	return _mm256_set1_epi32(pair);
}

static inline __m256 load_f16_scales(const uint8_t *scales, int half)
{
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(scales + 16 * half)));
}

static inline __m256 load_f32_scales(const uint8_t *scales, int half)
{
	return _mm256_loadu_ps((const float *)(const void *)(scales + 32 * half));
}

static inline __m128i load_8_bytes(const uint8_t *bytes, int half)
{
	return _mm_loadl_epi64((const __m128i *)(bytes + 8 * half));
}

/* Integer scales of a block of the K forms times the f16 ones of its header. */
static inline __m256 times_header(__m256i scales, const uint8_t *header, int half)
{
	return _mm256_mul_ps(load_f16_scales(header, half), _mm256_cvtepi32_ps(scales));
}

static inline __m256 negated(__m256 values)
{
	return _mm256_xor_ps(values, _mm256_set1_ps(-0.0f));
}

SPECIALIZED void add_pair_products(
	__m256i weights, const struct tile *tile, int64_t col, int half, const int halves, const int rows, __m256i *dots)
{
	UNROLL
	for (int row = 0; row < rows; row++) {
		__m256i pair = broadcast_pair(tile->quants + row * tile->stride + col);
		int at = row * halves + half;

		dots[at] = _mm256_add_epi32(dots[at], _mm256_madd_epi16(weights, pair));
	}
}

SPECIALIZED void dots_u4(
	const uint8_t *block, const struct tile *tile, int64_t col, const int halves, const int rows, __m256i *dots)
{
	__m256i mask = _mm256_set1_epi32(0x000f000f);

	UNROLL
	for (int z = 0; z < 4; z++) {
		UNROLL
		for (int half = 0; half < halves; half++) {
			__m256i words = _mm256_loadu_si256((const __m256i *)(block + 64 * z + 32 * (tile->half + half)));

			UNROLL
			for (int j = 0; j < 4; j++)
				add_pair_products(_mm256_and_si256(_mm256_srli_epi32(words, 4 * j), mask), tile,
					col + 8 * z + 2 * j, half, halves, rows, dots);
		}
	}
}

SPECIALIZED void dots_i8(const uint8_t *block, const struct tile *tile, int64_t col, const int pair_begin, const int n_pairs,
	const int halves, const int rows, __m256i *dots)
{
	UNROLL
	for (int i = 0; i < rows * halves; i++)
		dots[i] = _mm256_setzero_si256();
	UNROLL
	for (int i = pair_begin; i < pair_begin + n_pairs; i++) {
		UNROLL
		for (int half = 0; half < halves; half++) {
			const uint8_t *bytes = block + 2 * PANEL_ROWS * i + 2 * HALF_ROWS * (tile->half + half);

			add_pair_products(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)bytes)), tile, col + 2 * i, half,
				halves, rows, dots);
		}
	}
}

/* acc = fma(scales * x_scale, (float)dot, acc) for one half of all rows. */
SPECIALIZED void add_scaled(__m256 scales, const struct activation_block *const *x, const __m256i *dots, int half, const int halves,
	const int rows, __m256 *acc)
{
	UNROLL
	for (int row = 0; row < rows; row++) {
		int at = row * halves + half;

		acc[at] = _mm256_fmadd_ps(
			_mm256_mul_ps(scales, _mm256_set1_ps(x[row]->scale)), _mm256_cvtepi32_ps(dots[at]), acc[at]);
	}
}

SPECIALIZED void add_minimums(
	__m256 minimums, const struct activation_block *const *x, int half, const int halves, const int rows, __m256 *acc)
{
	UNROLL
	for (int row = 0; row < rows; row++) {
		int at = row * halves + half;

		acc[at] = _mm256_fmadd_ps(minimums, _mm256_set1_ps(x[row]->sum), acc[at]);
	}
}

SPECIALIZED void block_u4(const uint8_t *header, const uint8_t *block, const struct tile *tile, int64_t col,
	const struct activation_block *const *x, const enum panel_form form, const int halves, const int rows, __m256 *acc)
{
	__m256i dots[TILE_SUMS_MAX];

	UNROLL
	for (int i = 0; i < rows * halves; i++)
		dots[i] = form == PANEL_Q4_0 ? _mm256_set1_epi32(x[i / halves]->minus_8_sum) : _mm256_setzero_si256();
	dots_u4(block, tile, col, halves, rows, dots);
	UNROLL
	for (int half = 0; half < halves; half++) {
		int at = tile->half + half;

		if (form == PANEL_Q4_K) {
			__m256i scales = _mm256_cvtepu8_epi32(load_8_bytes(block + U4_BYTES, at));
			__m256i minimums = _mm256_cvtepu8_epi32(load_8_bytes(block + U4_BYTES + 16, at));

			add_scaled(times_header(scales, header, at), x, dots, half, halves, rows, acc);
			add_minimums(negated(times_header(minimums, header + 32, at)), x, half, halves, rows, acc);
		} else {
			add_scaled(load_f16_scales(block + U4_BYTES, at), x, dots, half, halves, rows, acc);
			if (form == PANEL_Q4_1)
				add_minimums(load_f16_scales(block + U4_BYTES + 32, at), x, half, halves, rows, acc);
		}
	}
}

SPECIALIZED void block_i8(const uint8_t *header, const uint8_t *block, const struct tile *tile, int64_t col,
	const struct activation_block *const *x, const enum panel_form form, const int halves, const int rows, __m256 *acc)
{
	const int parts = form == PANEL_Q8_0 ? 1 : 2; /* Q6_K has a scale per 16 columns */
	__m256i dots[TILE_SUMS_MAX];

	UNROLL
	for (int part = 0; part < parts; part++) {
		dots_i8(block, tile, col, part * 16 / parts, 16 / parts, halves, rows, dots);
		UNROLL
		for (int half = 0; half < halves; half++) {
			const uint8_t *at = block + I8_BYTES + 16 * part;
			__m256 scales = form == PANEL_Q8_0 ? load_f16_scales(at, tile->half + half)
							   : times_header(_mm256_cvtepi8_epi32(load_8_bytes(at, tile->half + half)),
								     header, tile->half + half);

			add_scaled(scales, x, dots, half, halves, rows, acc);
		}
	}
}

SPECIALIZED void quantized_tile(const struct tile *tile, const enum panel_form form, const int halves, const int rows)
{
	const int block_bytes = micro_block_bytes(form);
	const uint8_t *block = tile->panel, *header = tile->panel;
	__m256 acc[TILE_SUMS_MAX];

	UNROLL
	for (int i = 0; i < rows * halves; i++)
		acc[i] = _mm256_setzero_ps();
	for (int64_t i = 0; i < tile->n_blocks; i++, block += block_bytes) {
		const struct activation_block *x[4];

		if (micro_header_bytes(form) > 0 && i % GROUP_BLOCKS == 0) {
			header = block;
			block += micro_header_bytes(form);
		}
		UNROLL
		for (int row = 0; row < rows; row++)
			x[row] = tile->blocks + row * (tile->stride / BLOCK_COLS) + i;
		UNROLL
		for (int at = 0; at < block_bytes && rows == 1; at += 64)
			_mm_prefetch((const char *)block + PREFETCH_BYTES + at, _MM_HINT_T0);
		if (micro_has_bytes(form))
			block_i8(header, block, tile, i * BLOCK_COLS, x, form, halves, rows, acc);
		else
			block_u4(header, block, tile, i * BLOCK_COLS, x, form, halves, rows, acc);
	}
	UNROLL
	for (int i = 0; i < rows * halves; i++)
		_mm256_storeu_ps(tile->out + i / halves * PANEL_ROWS + HALF_ROWS * (tile->half + i % halves), acc[i]);
}

SPECIALIZED void multiply_quantized(const struct micro_product *p, const enum panel_form form)
{
	int64_t stride = p->activations->col_stride;

	for (int panel = 0; panel < p->n_panels; panel++) {
		for (int row = 0; row < p->n_rows;) {
			int64_t at = (p->row_begin + row) * stride;
			struct tile tile = {p->panels + panel * p->panel_bytes, p->n_cols / BLOCK_COLS, p->activations->quants + at,
				p->activations->blocks + at / BLOCK_COLS, stride,
				p->out + ((int64_t)panel * p->n_rows + row) * PANEL_ROWS, 0};

			if (p->n_rows - row >= 4) {
				quantized_tile(&tile, form, 1, 4);
				tile.half = 1;
				quantized_tile(&tile, form, 1, 4);
				row += 4;
			} else {
				quantized_tile(&tile, form, 2, 1);
				row += 1;
			}
		}
	}
}

/* --- products with plain weights ------------------------------------------------------------------------------------ */

SPECIALIZED __m256 load_column(const uint8_t *column, const enum panel_form form, const int half)
{
	if (form == PANEL_F32)
		return load_f32_scales(column, half);
	if (form == PANEL_F16)
		return load_f16_scales(column, half);
	return _mm256_castsi256_ps(
		_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(column + 16 * half))), 16));
}

SPECIALIZED void plain_tile(
	const struct micro_product *p, int panel, int row, const enum panel_form form, const int panels, const int rows)
{
	const int col_bytes = form == PANEL_F32 ? 64 : 32, registers = 2 * panels;
	const uint8_t *column = p->panels + panel * p->panel_bytes;
	int64_t stride = p->activations->col_stride, panel_bytes = p->panel_bytes;
	const float *x = p->activations->values + (p->row_begin + row) * stride;
	__m256 acc[TILE_SUMS_MAX];

	UNROLL
	for (int i = 0; i < registers * rows; i++)
		acc[i] = _mm256_setzero_ps();
	for (int64_t col = 0; col < p->n_cols; col++, column += col_bytes) {
		__m256 weights[8];

		UNROLL
		for (int i = 0; i < registers; i++)
			weights[i] = load_column(column + i / 2 * panel_bytes, form, i % 2);
		UNROLL
		for (int i = 0; i < panels && rows == 1; i++)
			_mm_prefetch((const char *)column + i * panel_bytes + PREFETCH_BYTES, _MM_HINT_T0);
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m256 value = _mm256_set1_ps(x[r * stride + col]);

			UNROLL
			for (int i = 0; i < registers; i++)
				acc[r * registers + i] = _mm256_fmadd_ps(weights[i], value, acc[r * registers + i]);
		}
	}
	UNROLL
	for (int i = 0; i < registers * rows; i++) {
		int64_t tile = (int64_t)(panel + i % registers / 2) * p->n_rows + row + i / registers;

		_mm256_storeu_ps(p->out + tile * PANEL_ROWS + i % 2 * HALF_ROWS, acc[i]);
	}
}

/* Tiles of as many sums as registers allow: eight or more hide the latency of a fused multiply-add. */
SPECIALIZED int plain_rows(const struct micro_product *p, int panel, int row, const enum panel_form form, const int panels)
{
	int left = p->n_rows - row;

	if (left >= 6 && panels == 1) {
		plain_tile(p, panel, row, form, 1, 6);
		return 6;
	}
	if (left >= 4 && panels == 1) {
		plain_tile(p, panel, row, form, 1, 4);
		return 4;
	}
	if (left >= 2 && panels <= 2) {
		/* The second choice is never run: it keeps the branch that is dead for four panels within the registers. */
		plain_tile(p, panel, row, form, panels <= 2 ? panels : 1, 2);
		return 2;
	}
	plain_tile(p, panel, row, form, panels, 1);
	return 1;
}

SPECIALIZED void multiply_plain(const struct micro_product *p, const enum panel_form form)
{
	for (int panel = 0; panel < p->n_panels;) {
		int left = p->n_panels - panel, panels = p->n_rows == 1 && left >= 4 ? 4 : p->n_rows < 4 && left >= 2 ? 2 : 1;

		for (int row = 0; row < p->n_rows;) {
			if (panels == 4)
				row += plain_rows(p, panel, row, form, 4);
			else if (panels == 2)
				row += plain_rows(p, panel, row, form, 2);
			else
				row += plain_rows(p, panel, row, form, 1);
		}
		panel += panels;
	}
}

#define PRODUCT_TABLE product_avx2
#include "kernels/cpu/product_forms.h"
