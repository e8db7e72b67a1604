/* Inner loops for AVX-512: each function makes the bits of its namesake in micro_scalar.c. Lanes are 16 elements whose results
 * do not meet, or meet in the order of micro_tree_sum. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/specialize.h"

#define SCORE_QUERIES 12 /* of 32 registers */

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

/* Requests the cache line of an element of a block. One line at a time, between multiplications: the processor drops
 * requests beyond what it can track. */
SPECIALIZED void prefetch_kv(const void *block, int64_t at, const enum kn_kv_type type)
{
	_mm_prefetch((const char *)block + at * (type == KN_KV_F32 ? 4 : 2), _MM_HINT_T0);
}

SPECIALIZED void score_tile(const struct score_args *args, int first, const enum kn_kv_type type, const int n)
{
	__m512 acc[SCORE_QUERIES];

	UNROLL
	for (int q = 0; q < n; q++)
		acc[q] = _mm512_setzero_ps();
	for (int d = 0; d < args->head_dim; d++) {
		prefetch_kv(args->ahead, d * KN_KV_BLOCK_TOKENS, type);
		__m512 keys = load_kv(args->keys, d * KN_KV_BLOCK_TOKENS, type, 0xffff);

		UNROLL
		for (int q = 0; q < n; q++)
			acc[q] = _mm512_fmadd_ps(_mm512_set1_ps(args->queries[first + q][d]), keys, acc[q]);
	}
	UNROLL
	for (int q = 0; q < n; q++)
		_mm512_storeu_ps(args->out + (first + q) * args->out_stride, _mm512_mul_ps(acc[q], _mm512_set1_ps(args->scale)));
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

SPECIALIZED void accumulate_tile(const struct accumulate_args *args, int first, const enum kn_kv_type type, const int n)
{
	for (int d = 0; d < args->head_dim; d += 16) {
		__mmask16 lanes = first_lanes(args->head_dim - d);
		__m512 acc[ATTENTION_QUERIES_MAX];

		UNROLL
		for (int q = 0; q < n; q++)
			acc[q] = _mm512_maskz_loadu_ps(lanes, args->sums + (first + q) * args->sums_stride + d);
		for (int t = args->token_begin; t < args->token_end; t++) {
			prefetch_kv(args->ahead, (int64_t)t * args->head_dim + d, type);
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

#include "kernels/cpu/attention_tiles.h"

/* --- limits of this machine ------------------------------------------------------------------------------------------ */

#define LIMIT_CHAINS 12 /* covers latency 5 with two units */
#define LIMIT_PREFETCH_BYTES 2048 /* as far as the products of one row prefetch */

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

static int64_t avx512_run_read(const void *memory, int64_t n)
{
	__m512i sums[4];

	UNROLL
	for (int k = 0; k < 4; k++)
		sums[k] = _mm512_setzero_si512();
	for (const char *at = memory, *end = at + n; at < end; at += 256) {
		UNROLL
		for (int k = 0; k < 4; k++) {
			_mm_prefetch(at + 64 * k + LIMIT_PREFETCH_BYTES, _MM_HINT_T0);
			sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(at + 64 * k));
		}
	}
	for (int k = 1; k < 4; k++)
		sums[0] = _mm512_xor_si512(sums[0], sums[k]);
	return _mm_cvtsi128_si64(_mm512_castsi512_si128(sums[0]));
}

const struct micro micro_avx512 = {
	.name = "avx512",
	.run_fma = avx512_run_fma,
	.run_dot16 = avx512_run_dot16,
	.run_read = avx512_run_read,
	.fma_per_round = LIMIT_CHAINS * 16,
	.dot16_per_round = LIMIT_CHAINS * 32,
	.sum_squares = avx512_sum_squares,
	.normalize = avx512_normalize,
	.quantize = avx512_quantize,
	.multiply = product_avx512,
	.swiglu = avx512_swiglu,
	.to_f16 = avx512_to_f16,
	.scores = scores,
	.softmax = avx512_softmax,
	.accumulate = accumulate,
};
