/* Products of weight panels with rows for AVX-512 with VNNI, bit for bit those of micro_scalar.c. Lanes are the 16 rows of a
 * panel. A tile of up to 8 rows is kept in registers, so that a weight is unpacked once for all of them. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/micro.h"
#include "kernels/cpu/specialize.h"

#define TILE_ROWS_MAX 8
#define TILE_SUMS_MAX 16
/* How far ahead weights are requested: with one row the products outrun the hardware prefetcher, which stops at 4 KiB pages.
 * Measured on a 2-core Zen 4 from 512 bytes to 8 KiB: flat. */
#define PREFETCH_BYTES 2048

/* --- products with quantised weights -------------------------------------------------------------------------------- */

/* Rows of one tile and the panel they meet. */
struct tile {
	const uint8_t *panel;
	int64_t n_blocks;
	const int16_t *quants; /* of the first row; rows are `stride` apart */
	const struct activation_block *blocks;
	int64_t stride;
	float *out; /* [rows][16] */
};

static inline __m512i broadcast_pair(const int16_t *quants)
{
	int32_t pair;

	memcpy(&pair, quants, sizeof pair);
	return _mm512_set1_epi32(pair);
}

static inline __m512 load_f16_scales(const uint8_t *scales)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)scales));
}

static inline __m128i load_16_bytes(const uint8_t *bytes)
{
	return _mm_loadu_si128((const __m128i *)bytes);
}

/* Integer scales of a block of the K forms times the f16 ones of its header. */
static inline __m512 times_header(__m512i scales, const uint8_t *header)
{
	return _mm512_mul_ps(load_f16_scales(header), _mm512_cvtepi32_ps(scales));
}

static inline __m512 negated(__m512 values)
{
	return _mm512_xor_ps(values, _mm512_set1_ps(-0.0f));
}

SPECIALIZED void prefetch_block(const uint8_t *block, const int bytes)
{
	UNROLL
	for (int at = 0; at < bytes; at += 64)
		_mm_prefetch((const char *)block + PREFETCH_BYTES + at, _MM_HINT_T0);
}

/* Adds the exact products of a nibble block with each row's 32 quants to dots. One or two rows use several sums each, since
 * a multiply-add waits five cycles for the one before. */
SPECIALIZED void dots_u4(const uint8_t *block, const struct tile *tile, int64_t col, const int rows, __m512i *dots)
{
	const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
	__m512i partial[TILE_SUMS_MAX], mask = _mm512_set1_epi32(0x000f000f);

	UNROLL
	for (int i = 0; i < rows * chains; i++)
		partial[i] = i % chains == 0 ? dots[i / chains] : _mm512_setzero_si512();
	UNROLL
	for (int z = 0; z < 4; z++) {
		__m512i words = _mm512_loadu_si512(block + 64 * z);

		UNROLL
		for (int j = 0; j < 4; j++) {
			__m512i weights = _mm512_and_si512(_mm512_srli_epi32(words, 4 * j), mask);

			UNROLL
			for (int row = 0; row < rows; row++) {
				int at = row * chains + (4 * z + j) % chains;

				partial[at] = _mm512_dpwssd_epi32(partial[at], weights,
					broadcast_pair(tile->quants + row * tile->stride + col + 8 * z + 2 * j));
			}
		}
	}
	UNROLL
	for (int row = 0; row < rows; row++) {
		dots[row] = partial[row * chains];
		UNROLL
		for (int i = 1; i < chains; i++)
			dots[row] = _mm512_add_epi32(dots[row], partial[row * chains + i]);
	}
}

/* The same for byte pairs pair_begin .. pair_begin + n_pairs - 1. */
SPECIALIZED void dots_i8(const uint8_t *block, const struct tile *tile, int64_t col, const int pair_begin, const int n_pairs,
	const int rows, __m512i *dots)
{
	const int chains = rows == 1 ? 4 : rows == 2 ? 2 : 1;
	__m512i partial[TILE_SUMS_MAX];

	UNROLL
	for (int i = 0; i < rows * chains; i++)
		partial[i] = _mm512_setzero_si512();
	UNROLL
	for (int i = pair_begin; i < pair_begin + n_pairs; i++) {
		__m512i weights = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(block + 2 * PANEL_ROWS * i)));

		UNROLL
		for (int row = 0; row < rows; row++) {
			int at = row * chains + i % chains;

			partial[at] = _mm512_dpwssd_epi32(
				partial[at], weights, broadcast_pair(tile->quants + row * tile->stride + col + 2 * i));
		}
	}
	UNROLL
	for (int row = 0; row < rows; row++) {
		dots[row] = partial[row * chains];
		UNROLL
		for (int i = 1; i < chains; i++)
			dots[row] = _mm512_add_epi32(dots[row], partial[row * chains + i]);
	}
}

/* acc[row] = fma(scales * x_scale[row], (float)dots[row], acc[row]). */
SPECIALIZED void add_scaled(
	__m512 scales, const struct activation_block *const *x, const __m512i *dots, const int rows, __m512 *acc)
{
	UNROLL
	for (int row = 0; row < rows; row++)
		acc[row] = _mm512_fmadd_ps(
			_mm512_mul_ps(scales, _mm512_set1_ps(x[row]->scale)), _mm512_cvtepi32_ps(dots[row]), acc[row]);
}

SPECIALIZED void add_minimums(__m512 minimums, const struct activation_block *const *x, const int rows, __m512 *acc)
{
	UNROLL
	for (int row = 0; row < rows; row++)
		acc[row] = _mm512_fmadd_ps(minimums, _mm512_set1_ps(x[row]->sum), acc[row]);
}

SPECIALIZED void block_u4(const uint8_t *header, const uint8_t *block, const struct tile *tile, int64_t col,
	const struct activation_block *const *x, const enum panel_form form, const int rows, __m512 *acc)
{
	__m512i dots[TILE_ROWS_MAX];

	UNROLL
	for (int row = 0; row < rows; row++)
		dots[row] = form == PANEL_Q4_0 ? _mm512_set1_epi32(x[row]->minus_8_sum) : _mm512_setzero_si512();
	dots_u4(block, tile, col, rows, dots);
	if (form == PANEL_Q4_K) {
		__m512i scales = _mm512_cvtepu8_epi32(load_16_bytes(block + U4_BYTES));
		__m512i minimums = _mm512_cvtepu8_epi32(load_16_bytes(block + U4_BYTES + 16));

		add_scaled(times_header(scales, header), x, dots, rows, acc);
		add_minimums(negated(times_header(minimums, header + 32)), x, rows, acc);
	} else {
		add_scaled(load_f16_scales(block + U4_BYTES), x, dots, rows, acc);
		if (form == PANEL_Q4_1)
			add_minimums(load_f16_scales(block + U4_BYTES + 32), x, rows, acc);
	}
}

SPECIALIZED void block_i8(const uint8_t *header, const uint8_t *block, const struct tile *tile, int64_t col,
	const struct activation_block *const *x, const enum panel_form form, const int rows, __m512 *acc)
{
	__m512i dots[TILE_ROWS_MAX];

	if (form == PANEL_Q8_0) {
		dots_i8(block, tile, col, 0, 16, rows, dots);
		add_scaled(load_f16_scales(block + I8_BYTES), x, dots, rows, acc);
	} else {
		UNROLL
		for (int part = 0; part < 2; part++) {
			__m512i scales = _mm512_cvtepi8_epi32(load_16_bytes(block + I8_BYTES + 16 * part));

			dots_i8(block, tile, col, 8 * part, 8, rows, dots);
			add_scaled(times_header(scales, header), x, dots, rows, acc);
		}
	}
}

SPECIALIZED void quantized_tile(const struct tile *tile, const enum panel_form form, const int rows)
{
	const int block_bytes = micro_block_bytes(form);
	const uint8_t *block = tile->panel, *header = tile->panel;
	__m512 acc[TILE_ROWS_MAX];

	UNROLL
	for (int row = 0; row < rows; row++)
		acc[row] = _mm512_setzero_ps();
	for (int64_t i = 0; i < tile->n_blocks; i++, block += block_bytes) {
		const struct activation_block *x[TILE_ROWS_MAX];

		if (micro_header_bytes(form) > 0 && i % GROUP_BLOCKS == 0) {
			header = block;
			block += micro_header_bytes(form);
		}
		UNROLL
		for (int row = 0; row < rows; row++)
			x[row] = tile->blocks + row * (tile->stride / BLOCK_COLS) + i;
		if (rows <= 2)
			prefetch_block(block, block_bytes);
		if (micro_has_bytes(form))
			block_i8(header, block, tile, i * BLOCK_COLS, x, form, rows, acc);
		else
			block_u4(header, block, tile, i * BLOCK_COLS, x, form, rows, acc);
	}
	UNROLL
	for (int row = 0; row < rows; row++)
		_mm512_storeu_ps(tile->out + row * PANEL_ROWS, acc[row]);
}

SPECIALIZED void multiply_quantized(const struct micro_product *p, const enum panel_form form)
{
	int64_t stride = p->activations->col_stride;

	for (int panel = 0; panel < p->n_panels; panel++) {
		for (int row = 0; row < p->n_rows;) {
			int64_t at = (p->row_begin + row) * stride;
			int left = p->n_rows - row;
			struct tile tile = {p->panels + panel * p->panel_bytes, p->n_cols / BLOCK_COLS, p->activations->quants + at,
				p->activations->blocks + at / BLOCK_COLS, stride,
				p->out + ((int64_t)panel * p->n_rows + row) * PANEL_ROWS};

			if (left >= 8) {
				quantized_tile(&tile, form, 8);
				row += 8;
			} else if (left >= 4) {
				quantized_tile(&tile, form, 4);
				row += 4;
			} else if (left >= 2) {
				quantized_tile(&tile, form, 2);
				row += 2;
			} else {
				quantized_tile(&tile, form, 1);
				row += 1;
			}
		}
	}
}

/* --- products with plain weights ------------------------------------------------------------------------------------ */

SPECIALIZED __m512 load_column(const uint8_t *column, const enum panel_form form)
{
	if (form == PANEL_F32)
		return _mm512_loadu_ps(column);
	if (form == PANEL_F16)
		return load_f16_scales(column);
	return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)column)), 16));
}

/* One sum per panel and row: with one row, four panels keep four fused multiply-adds in flight. */
SPECIALIZED void plain_tile(
	const struct micro_product *p, int panel, int row, const enum panel_form form, const int panels, const int rows)
{
	const int col_bytes = form == PANEL_F32 ? 64 : 32;
	const uint8_t *column = p->panels + panel * p->panel_bytes;
	int64_t stride = p->activations->col_stride, panel_bytes = p->panel_bytes;
	const float *x = p->activations->values + (p->row_begin + row) * stride;
	__m512 acc[TILE_SUMS_MAX], weights[4];

	UNROLL
	for (int i = 0; i < panels * rows; i++)
		acc[i] = _mm512_setzero_ps();
	for (int64_t col = 0; col < p->n_cols; col++, column += col_bytes) {
		UNROLL
		for (int i = 0; i < panels; i++) {
			weights[i] = load_column(column + i * panel_bytes, form);
			if (rows <= 2)
				_mm_prefetch((const char *)column + i * panel_bytes + PREFETCH_BYTES, _MM_HINT_T0);
		}
		UNROLL
		for (int r = 0; r < rows; r++) {
			__m512 value = _mm512_set1_ps(x[r * stride + col]);

			UNROLL
			for (int i = 0; i < panels; i++)
				acc[i * rows + r] = _mm512_fmadd_ps(weights[i], value, acc[i * rows + r]);
		}
	}
	UNROLL
	for (int i = 0; i < panels; i++) {
		UNROLL
		for (int r = 0; r < rows; r++)
			_mm512_storeu_ps(p->out + ((int64_t)(panel + i) * p->n_rows + row + r) * PANEL_ROWS, acc[i * rows + r]);
	}
}

SPECIALIZED int plain_rows(const struct micro_product *p, int panel, int row, const enum panel_form form, const int panels)
{
	int left = p->n_rows - row;

	if (left >= 8 && panels <= 2) {
		/* The second choice is never run: it keeps the branch that is dead for four panels within the registers. */
		plain_tile(p, panel, row, form, panels <= 2 ? panels : 1, 8);
		return 8;
	}
	if (left >= 4) {
		plain_tile(p, panel, row, form, panels, 4);
		return 4;
	}
	if (left >= 2) {
		plain_tile(p, panel, row, form, panels, 2);
		return 2;
	}
	plain_tile(p, panel, row, form, panels, 1);
	return 1;
}

SPECIALIZED void multiply_plain(const struct micro_product *p, const enum panel_form form)
{
	for (int panel = 0; panel < p->n_panels;) {
		int left = p->n_panels - panel, panels = left >= 4 && p->n_rows < 8 ? 4 : left >= 2 ? 2 : 1;

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

#define PRODUCT_TABLE product_avx512
#include "kernels/cpu/product_forms.h"
