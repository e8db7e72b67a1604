/* Inner loops for AVX-512 with VNNI. Each function makes the bits of its namesake in micro_scalar.c: lanes are the 16 rows
 * of a panel, or 16 elements whose results do not meet. Products keep a tile of rows in registers, so that a weight is
 * unpacked once for up to 8 rows. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/micro.h"

/* Tiles are written once, with sizes as constant arguments, and specialised by inlining. */
#define SPECIALIZED static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define TILE_ROWS_MAX 8
#define TILE_SUMS_MAX 16
/* How far ahead weights are requested: with one row the products outrun the hardware prefetcher, which stops at 4 KiB pages.
 * Measured on a 2-core Zen 4 at 1 to 4 KiB: flat. */
#define PREFETCH_BYTES 2048

static __mmask16 first_lanes(int64_t n)
{
	return n >= PANEL_ROWS ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

static float avx512_sum_squares(const float *x, int64_t n)
{
	__m512 sums = _mm512_setzero_ps();
	float lanes[PANEL_ROWS];

	for (int64_t i = 0; i < n; i += 16) {
		__m512 values = _mm512_maskz_loadu_ps(first_lanes(n - i), x + i);

		sums = _mm512_fmadd_ps(values, values, sums);
	}
	_mm512_storeu_ps(lanes, sums);
	return micro_tree_sum(lanes);
}

static void avx512_normalize(const float *x, float scale, const float *weight, int64_t n, float *out)
{
	__m512 factor = _mm512_set1_ps(scale);

	for (int64_t i = 0; i < n; i += 16) {
		__mmask16 lanes = first_lanes(n - i);
		__m512 scaled = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, x + i), factor);

		_mm512_mask_storeu_ps(out + i, lanes, _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(lanes, weight + i)));
	}
}

static void quantize_block(const float *x, int16_t *quants, struct activation_block *block)
{
	__m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
	__m512i magnitude = _mm512_set1_epi32(0x7fffffff);
	int32_t largest_bits = _mm512_reduce_max_epi32(_mm512_max_epi32(
		_mm512_and_epi32(_mm512_castps_si512(low), magnitude), _mm512_and_epi32(_mm512_castps_si512(high), magnitude)));
	float largest;
	int32_t sum;

	memcpy(&largest, &largest_bits, sizeof largest);
	if (largest_bits >= 0x7f800000 || largest < MICRO_QUANTIZE_MIN) {
		memset(quants, 0, BLOCK_COLS * sizeof *quants);
		block->scale = largest_bits >= 0x7f800000 ? NAN : 0.0f;
		block->sum = block->scale;
		block->minus_8_sum = 0;
		return;
	}
	__m512 inverse = _mm512_set1_ps(32767.0f / largest);
	__m512i low_quants = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
	__m512i high_quants = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));

	_mm256_storeu_si256((__m256i *)quants, _mm512_cvtepi32_epi16(low_quants));
	_mm256_storeu_si256((__m256i *)(quants + 16), _mm512_cvtepi32_epi16(high_quants));
	sum = _mm512_reduce_add_epi32(_mm512_add_epi32(low_quants, high_quants));
	block->scale = largest / 32767.0f;
	block->sum = block->scale * (float)sum;
	block->minus_8_sum = -8 * sum;
}

static void avx512_quantize(const float *x, int64_t n, int16_t *quants, struct activation_block *blocks)
{
	for (int64_t i = 0; i < n; i += BLOCK_COLS)
		quantize_block(x + i, quants + i, &blocks[i / BLOCK_COLS]);
}

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

SPECIALIZED void block_u4(const uint8_t *block, const struct tile *tile, int64_t col, const struct activation_block *const *x,
	const enum panel_form form, const int rows, __m512 *acc)
{
	__m512i dots[TILE_ROWS_MAX];

	UNROLL
	for (int row = 0; row < rows; row++)
		dots[row] = form == PANEL_Q4_0 ? _mm512_set1_epi32(x[row]->minus_8_sum) : _mm512_setzero_si512();
	dots_u4(block, tile, col, rows, dots);
	if (form == PANEL_Q4_K) {
		add_scaled(_mm512_loadu_ps(block + U4_BYTES), x, dots, rows, acc);
		add_minimums(_mm512_loadu_ps(block + U4_BYTES + 64), x, rows, acc);
	} else {
		add_scaled(load_f16_scales(block + U4_BYTES), x, dots, rows, acc);
		if (form == PANEL_Q4_1)
			add_minimums(load_f16_scales(block + U4_BYTES + 32), x, rows, acc);
	}
}

SPECIALIZED void block_i8(const uint8_t *block, const struct tile *tile, int64_t col, const struct activation_block *const *x,
	const enum panel_form form, const int rows, __m512 *acc)
{
	__m512i dots[TILE_ROWS_MAX];

	if (form == PANEL_Q8_0) {
		dots_i8(block, tile, col, 0, 16, rows, dots);
		add_scaled(load_f16_scales(block + I8_BYTES), x, dots, rows, acc);
	} else {
		dots_i8(block, tile, col, 0, 8, rows, dots);
		add_scaled(_mm512_loadu_ps(block + I8_BYTES), x, dots, rows, acc);
		dots_i8(block, tile, col, 8, 8, rows, dots);
		add_scaled(_mm512_loadu_ps(block + I8_BYTES + 64), x, dots, rows, acc);
	}
}

SPECIALIZED void quantized_tile(const struct tile *tile, const enum panel_form form, const int block_bytes, const int rows)
{
	const uint8_t *block = tile->panel;
	__m512 acc[TILE_ROWS_MAX];

	UNROLL
	for (int row = 0; row < rows; row++)
		acc[row] = _mm512_setzero_ps();
	for (int64_t i = 0; i < tile->n_blocks; i++, block += block_bytes) {
		const struct activation_block *x[TILE_ROWS_MAX];

		UNROLL
		for (int row = 0; row < rows; row++)
			x[row] = tile->blocks + row * (tile->stride / BLOCK_COLS) + i;
		if (rows <= 2)
			prefetch_block(block, block_bytes);
		if (form == PANEL_Q8_0 || form == PANEL_Q6_K)
			block_i8(block, tile, i * BLOCK_COLS, x, form, rows, acc);
		else
			block_u4(block, tile, i * BLOCK_COLS, x, form, rows, acc);
	}
	UNROLL
	for (int row = 0; row < rows; row++)
		_mm512_storeu_ps(tile->out + row * PANEL_ROWS, acc[row]);
}

SPECIALIZED void multiply_quantized(const struct micro_product *p, const enum panel_form form, const int block_bytes)
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
				quantized_tile(&tile, form, block_bytes, 8);
				row += 8;
			} else if (left >= 4) {
				quantized_tile(&tile, form, block_bytes, 4);
				row += 4;
			} else if (left >= 2) {
				quantized_tile(&tile, form, block_bytes, 2);
				row += 2;
			} else {
				quantized_tile(&tile, form, block_bytes, 1);
				row += 1;
			}
		}
	}
}

static void avx512_multiply_q4_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_0, Q4_0_BLOCK_BYTES);
}

static void avx512_multiply_q4_1(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_1, Q4_1_BLOCK_BYTES);
}

static void avx512_multiply_q4_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_K, Q4_K_BLOCK_BYTES);
}

static void avx512_multiply_q8_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q8_0, Q8_0_BLOCK_BYTES);
}

static void avx512_multiply_q6_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q6_K, Q6_K_BLOCK_BYTES);
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
		plain_tile(p, panel, row, form, panels > 2 ? 1 : panels, 8);
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

static void avx512_multiply_f32(const struct micro_product *p)
{
	multiply_plain(p, PANEL_F32);
}

static void avx512_multiply_f16(const struct micro_product *p)
{
	multiply_plain(p, PANEL_F16);
}

static void avx512_multiply_bf16(const struct micro_product *p)
{
	multiply_plain(p, PANEL_BF16);
}

/* --- activation and attention ---------------------------------------------------------------------------------------- */

static inline __m512 exp_of(__m512 x)
{
	__m512 round = _mm512_set1_ps(EXP_ROUND), rounded, n, r, y;
	__m512i power;

	x = _mm512_min_ps(_mm512_set1_ps(EXP_MAX), x); /* the second operand is the result for NaN */
	x = _mm512_max_ps(_mm512_set1_ps(EXP_MIN), x);
	rounded = _mm512_fmadd_ps(x, _mm512_set1_ps(EXP_LOG2E), round);
	n = _mm512_sub_ps(rounded, round);
	r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_HIGH), x);
	r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2_LOW), r);
	y = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C0), r, _mm512_set1_ps(EXP_C1));
	y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(EXP_C2));
	y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(EXP_C3));
	y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(EXP_C4));
	y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(EXP_C5));
	y = _mm512_add_ps(_mm512_fmadd_ps(y, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
	power = _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(rounded), _mm512_set1_epi32(127)), 23);
	return _mm512_mul_ps(y, _mm512_castsi512_ps(power));
}

static void avx512_swiglu(const float *gate, const float *up, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i += 16) {
		__m512 g = _mm512_loadu_ps(gate + i);
		__m512 minus_g = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(g), _mm512_set1_epi32(INT32_MIN)));
		__m512 silu = _mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_of(minus_g)));

		_mm512_storeu_ps(out + i, _mm512_mul_ps(silu, _mm512_loadu_ps(up + i)));
	}
}

static void avx512_to_f16(const float *x, int64_t n, uint16_t *out)
{
	for (int64_t i = 0; i < n; i += 16) {
		__mmask16 lanes = first_lanes(n - i);
		__m256i halves =
			_mm512_cvtps_ph(_mm512_maskz_loadu_ps(lanes, x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);

		_mm256_mask_storeu_epi16(out + i, lanes, halves);
	}
}

/* Sixteen elements of a key or value block, from element `at`; lanes outside the mask are 0. */
SPECIALIZED __m512 load_kv(const void *block, int64_t at, const enum kn_kv_type type, __mmask16 lanes)
{
	if (type == KN_KV_F32)
		return _mm512_maskz_loadu_ps(lanes, (const float *)block + at);
	return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, (const uint16_t *)block + at));
}

struct score_args {
	const float *const *queries;
	const void *keys;
	int head_dim;
	float scale;
	float *out;
	int64_t out_stride;
};

SPECIALIZED void score_tile(const struct score_args *args, int first, const enum kn_kv_type type, const int n)
{
	__m512 acc[ATTENTION_QUERIES_MAX];

	UNROLL
	for (int q = 0; q < n; q++)
		acc[q] = _mm512_setzero_ps();
	for (int d = 0; d < args->head_dim; d++) {
		__m512 keys = load_kv(args->keys, d * KN_KV_BLOCK_TOKENS, type, 0xffff);

		UNROLL
		for (int q = 0; q < n; q++)
			acc[q] = _mm512_fmadd_ps(_mm512_set1_ps(args->queries[first + q][d]), keys, acc[q]);
	}
	UNROLL
	for (int q = 0; q < n; q++)
		_mm512_storeu_ps(args->out + (first + q) * args->out_stride, _mm512_mul_ps(acc[q], _mm512_set1_ps(args->scale)));
}

SPECIALIZED void score_all(const struct score_args *args, int n_queries, const enum kn_kv_type type)
{
	for (int q = 0; q < n_queries;) {
		int left = n_queries - q;

		if (left >= 12) {
			score_tile(args, q, type, 12);
			q += 12;
		} else if (left >= 6) {
			score_tile(args, q, type, 6);
			q += 6;
		} else if (left >= 3) {
			score_tile(args, q, type, 3);
			q += 3;
		} else {
			score_tile(args, q, type, 1);
			q += 1;
		}
	}
}

static void avx512_scores(const float *const *queries, int n_queries, const void *keys, enum kn_kv_type type, int head_dim,
	float scale, float *out, int64_t out_stride)
{
	struct score_args args = {queries, keys, head_dim, scale, out, out_stride};

	if (type == KN_KV_F16)
		score_all(&args, n_queries, KN_KV_F16);
	else
		score_all(&args, n_queries, KN_KV_F32);
}

static void avx512_softmax(float *scores, int n, struct softmax_state *state, float *sums, int head_dim)
{
	__m512 maxima = _mm512_set1_ps(state->max), partial = _mm512_loadu_ps(state->sums);
	float max;

	for (int i = 0; i < n; i += 16) /* the second operand is the result for NaN */
		maxima = _mm512_mask_max_ps(maxima, first_lanes(n - i), _mm512_loadu_ps(scores + i), maxima);
	max = _mm512_reduce_max_ps(maxima);
	if (max != state->max) {
		__m512 factor = exp_of(_mm512_set1_ps(state->max - max));

		partial = _mm512_mul_ps(partial, factor);
		for (int d = 0; d < head_dim; d += 16) {
			__mmask16 lanes = first_lanes(head_dim - d);

			_mm512_mask_storeu_ps(sums + d, lanes, _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, sums + d), factor));
		}
		state->max = max;
	}
	for (int i = 0; i < n; i += 16) {
		__m512 weights = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), _mm512_set1_ps(max)));

		weights = _mm512_maskz_mov_ps(first_lanes(n - i), weights);
		_mm512_storeu_ps(scores + i, weights);
		partial = _mm512_add_ps(partial, weights);
	}
	_mm512_storeu_ps(state->sums, partial);
}

struct accumulate_args {
	const float *weights;
	int64_t weights_stride;
	const void *values;
	int head_dim, token_begin, token_end;
	float *sums;
	int64_t sums_stride;
};

SPECIALIZED void accumulate_tile(const struct accumulate_args *args, int first, const enum kn_kv_type type, const int n)
{
	for (int d = 0; d < args->head_dim; d += 16) {
		__mmask16 lanes = first_lanes(args->head_dim - d);
		__m512 acc[ATTENTION_QUERIES_MAX];

		UNROLL
		for (int q = 0; q < n; q++)
			acc[q] = _mm512_maskz_loadu_ps(lanes, args->sums + (first + q) * args->sums_stride + d);
		for (int t = args->token_begin; t < args->token_end; t++) {
			__m512 values = load_kv(args->values, (int64_t)t * args->head_dim + d, type, lanes);

			UNROLL
			for (int q = 0; q < n; q++)
				acc[q] = _mm512_fmadd_ps(
					_mm512_set1_ps(args->weights[(first + q) * args->weights_stride + t]), values, acc[q]);
		}
		UNROLL
		for (int q = 0; q < n; q++)
			_mm512_mask_storeu_ps(args->sums + (first + q) * args->sums_stride + d, lanes, acc[q]);
	}
}

SPECIALIZED void accumulate_all(const struct accumulate_args *args, int n_queries, const enum kn_kv_type type)
{
	for (int q = 0; q < n_queries;) {
		int left = n_queries - q;

		if (left >= 12) {
			accumulate_tile(args, q, type, 12);
			q += 12;
		} else if (left >= 6) {
			accumulate_tile(args, q, type, 6);
			q += 6;
		} else if (left >= 3) {
			accumulate_tile(args, q, type, 3);
			q += 3;
		} else {
			accumulate_tile(args, q, type, 1);
			q += 1;
		}
	}
}

static void avx512_accumulate(const float *weights, int64_t weights_stride, int n_queries, const void *values, enum kn_kv_type type,
	int head_dim, int token_begin, int token_end, float *sums, int64_t sums_stride)
{
	struct accumulate_args args = {weights, weights_stride, values, head_dim, token_begin, token_end, sums, sums_stride};

	if (type == KN_KV_F16)
		accumulate_all(&args, n_queries, KN_KV_F16);
	else
		accumulate_all(&args, n_queries, KN_KV_F32);
}

#define LIMIT_CHAINS 12 /* covers latency 5 with two units */

static float avx512_run_fma(int64_t rounds)
{
	__m512 sums[LIMIT_CHAINS], factor = _mm512_set1_ps(0.999f);

	UNROLL
	for (int k = 0; k < LIMIT_CHAINS; k++)
		sums[k] = _mm512_set1_ps((float)k);
	for (int64_t i = 0; i < rounds; i++) {
		UNROLL
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] = _mm512_fmadd_ps(sums[k], factor, factor);
	}
	for (int k = 1; k < LIMIT_CHAINS; k++)
		sums[0] = _mm512_add_ps(sums[0], sums[k]);
	return _mm512_cvtss_f32(sums[0]);
}

static int32_t avx512_run_dot16(int64_t rounds)
{
	__m512i sums[LIMIT_CHAINS], factor = _mm512_set1_epi16(3), weights = _mm512_set1_epi16(5);

	UNROLL
	for (int k = 0; k < LIMIT_CHAINS; k++)
		sums[k] = _mm512_set1_epi32(k);
	for (int64_t i = 0; i < rounds; i++) {
		UNROLL
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] = _mm512_dpwssd_epi32(sums[k], weights, factor);
	}
	for (int k = 1; k < LIMIT_CHAINS; k++)
		sums[0] = _mm512_add_epi32(sums[0], sums[k]);
	return _mm_cvtsi128_si32(_mm512_castsi512_si128(sums[0]));
}

const struct micro micro_avx512 = {
	.name = "avx512",
	.run_fma = avx512_run_fma,
	.run_dot16 = avx512_run_dot16,
	.fma_per_round = LIMIT_CHAINS * 16,
	.dot16_per_round = LIMIT_CHAINS * 32,
	.sum_squares = avx512_sum_squares,
	.normalize = avx512_normalize,
	.quantize = avx512_quantize,
	.multiply =
		{
			[PANEL_F32] = avx512_multiply_f32,
			[PANEL_F16] = avx512_multiply_f16,
			[PANEL_BF16] = avx512_multiply_bf16,
			[PANEL_Q4_0] = avx512_multiply_q4_0,
			[PANEL_Q4_1] = avx512_multiply_q4_1,
			[PANEL_Q4_K] = avx512_multiply_q4_k,
			[PANEL_Q8_0] = avx512_multiply_q8_0,
			[PANEL_Q6_K] = avx512_multiply_q6_k,
		},
	.swiglu = avx512_swiglu,
	.to_f16 = avx512_to_f16,
	.scores = avx512_scores,
	.softmax = avx512_softmax,
	.accumulate = avx512_accumulate,
};
