/* Inner loops for AVX2 with FMA and F16C: each function makes the bits of its namesake in micro_scalar.c. The 16 lanes that
 * the scalar version counts in are two registers without masks, where AVX-512 has one with a mask: tails, tiles and packing
 * differ, so the loops are written for each instead of once over macros. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"
#include "kernels/cpu/micro.h"
#include "kernels/cpu/specialize.h"

#define HALF_ROWS 8
#define SCORE_QUERIES 6 /* two sums each, of 16 registers */

static __m256i first_lanes(int64_t n)
{
	int lanes = n > HALF_ROWS ? HALF_ROWS : n < 0 ? 0 : (int)n;

	return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static float avx2_sum_squares(const float *x, int64_t n)
{
	__m256 low_sums = _mm256_setzero_ps(), high_sums = _mm256_setzero_ps();
	float lanes[PANEL_ROWS];

	for (int64_t i = 0; i < n; i += PANEL_ROWS) {
		__m256 low = _mm256_maskload_ps(x + i, first_lanes(n - i));
		__m256 high = _mm256_maskload_ps(x + i + HALF_ROWS, first_lanes(n - i - HALF_ROWS));

		low_sums = _mm256_fmadd_ps(low, low, low_sums);
		high_sums = _mm256_fmadd_ps(high, high, high_sums);
	}
	_mm256_storeu_ps(lanes, low_sums);
	_mm256_storeu_ps(lanes + HALF_ROWS, high_sums);
	return micro_tree_sum(lanes);
}

static void avx2_normalize(const float *x, float scale, const float *weight, int64_t n, float *out)
{
	__m256 factor = _mm256_set1_ps(scale);
	int64_t i = 0;

	for (; i + HALF_ROWS <= n; i += HALF_ROWS)
		_mm256_storeu_ps(
			out + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
	for (; i < n; i++)
		out[i] = (x[i] * scale) * weight[i];
}

static int32_t reduce_add(__m256i values)
{
	__m128i sum = _mm_add_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));

	sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
	sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
	return _mm_cvtsi128_si32(sum);
}

static int32_t reduce_max(__m256i values)
{
	__m128i max = _mm_max_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));

	max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0x4e));
	max = _mm_max_epi32(max, _mm_shuffle_epi32(max, 0xb1));
	return _mm_cvtsi128_si32(max);
}

static void quantize_block(const float *x, int16_t *quants, struct activation_block *block)
{
	__m256 values[4];
	__m256i integers[4], largest_lanes = _mm256_setzero_si256(), sums = _mm256_setzero_si256();
	int32_t largest_bits;
	float largest;

	UNROLL
	for (int i = 0; i < 4; i++) {
		values[i] = _mm256_loadu_ps(x + HALF_ROWS * i);
		largest_lanes = _mm256_max_epi32(
			largest_lanes, _mm256_and_si256(_mm256_castps_si256(values[i]), _mm256_set1_epi32(0x7fffffff)));
	}
	largest_bits = reduce_max(largest_lanes);
	memcpy(&largest, &largest_bits, sizeof largest);
	if (largest_bits >= 0x7f800000 || largest < MICRO_QUANTIZE_MIN) {
		memset(quants, 0, BLOCK_COLS * sizeof *quants);
		block->scale = largest_bits >= 0x7f800000 ? NAN : 0.0f;
		block->sum = block->scale;
		block->minus_8_sum = 0;
		return;
	}
	UNROLL
	for (int i = 0; i < 4; i++) {
		integers[i] = _mm256_cvtps_epi32(_mm256_mul_ps(values[i], _mm256_set1_ps(32767.0f / largest)));
		sums = _mm256_add_epi32(sums, integers[i]);
	}
	UNROLL
	for (int i = 0; i < 4; i += 2) /* packs works within 128-bit lanes: put the quarters back in order */
		_mm256_storeu_si256((__m256i *)(quants + HALF_ROWS * i),
			_mm256_permute4x64_epi64(_mm256_packs_epi32(integers[i], integers[i + 1]), 0xd8));
	block->scale = largest / 32767.0f;
	block->sum = block->scale * (float)reduce_add(sums);
	block->minus_8_sum = -8 * reduce_add(sums);
}

static void avx2_quantize(const float *x, int64_t n, int16_t *quants, struct activation_block *blocks)
{
	for (int64_t i = 0; i < n; i += BLOCK_COLS)
		quantize_block(x + i, quants + i, &blocks[i / BLOCK_COLS]);
}

/* --- activation and attention ---------------------------------------------------------------------------------------- */

static inline __m256 exp_of(__m256 x)
{
	__m256 round = _mm256_set1_ps(EXP_ROUND), rounded, n, r, y;
	__m256i power;

	x = _mm256_min_ps(_mm256_set1_ps(EXP_MAX), x); /* the second operand is the result for NaN */
	x = _mm256_max_ps(_mm256_set1_ps(EXP_MIN), x);
	rounded = _mm256_fmadd_ps(x, _mm256_set1_ps(EXP_LOG2E), round);
	n = _mm256_sub_ps(rounded, round);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_HIGH), x);
	r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2_LOW), r);
	y = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C0), r, _mm256_set1_ps(EXP_C1));
	y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(EXP_C2));
	y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(EXP_C3));
	y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(EXP_C4));
	y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(EXP_C5));
	y = _mm256_add_ps(_mm256_fmadd_ps(y, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
	power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_castps_si256(rounded), _mm256_set1_epi32(127)), 23);
	return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

static void avx2_swiglu(const float *gate, const float *up, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i += HALF_ROWS) {
		__m256 g = _mm256_loadu_ps(gate + i);
		__m256 minus_g = _mm256_xor_ps(g, _mm256_set1_ps(-0.0f));
		__m256 silu = _mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1.0f), exp_of(minus_g)));

		_mm256_storeu_ps(out + i, _mm256_mul_ps(silu, _mm256_loadu_ps(up + i)));
	}
}

static void avx2_to_f16(const float *x, int64_t n, uint16_t *out)
{
	for (int64_t i = 0; i < n; i += HALF_ROWS) /* n is a multiple of 8: head sizes are */
		_mm_storeu_si128((__m128i *)(out + i),
			_mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Eight elements of a key or value block, from element `at`. */
SPECIALIZED __m256 load_kv(const void *block, int64_t at, const enum kn_kv_type type)
{
	if (type == KN_KV_F32)
		return _mm256_loadu_ps((const float *)block + at);
	return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const uint16_t *)block + at)));
}

/* Requests the cache line of an element of a block. One line at a time, between multiplications: the processor drops
 * requests beyond what it can track. */
SPECIALIZED void prefetch_kv(const void *block, int64_t at, const enum kn_kv_type type)
{
	_mm_prefetch((const char *)block + at * (type == KN_KV_F32 ? 4 : 2), _MM_HINT_T0);
}

SPECIALIZED void score_tile(const struct score_args *args, int first, const enum kn_kv_type type, const int n)
{
	__m256 acc[2 * SCORE_QUERIES];

	UNROLL
	for (int i = 0; i < 2 * n; i++)
		acc[i] = _mm256_setzero_ps();
	for (int d = 0; d < args->head_dim; d++) {
		prefetch_kv(args->ahead, d * KN_KV_BLOCK_TOKENS, type);
		__m256 low = load_kv(args->keys, d * KN_KV_BLOCK_TOKENS, type);
		__m256 high = load_kv(args->keys, d * KN_KV_BLOCK_TOKENS + HALF_ROWS, type);

		UNROLL
		for (int q = 0; q < n; q++) {
			__m256 query = _mm256_set1_ps(args->queries[first + q][d]);

			acc[2 * q] = _mm256_fmadd_ps(query, low, acc[2 * q]);
			acc[2 * q + 1] = _mm256_fmadd_ps(query, high, acc[2 * q + 1]);
		}
	}
	UNROLL
	for (int i = 0; i < 2 * n; i++)
		_mm256_storeu_ps(args->out + (first + i / 2) * args->out_stride + i % 2 * HALF_ROWS,
			_mm256_mul_ps(acc[i], _mm256_set1_ps(args->scale)));
}

static float max_score(const float *scores, int n, float so_far)
{
	__m256 maxima = _mm256_set1_ps(so_far);
	float lanes[HALF_ROWS], max = so_far;

	for (int i = 0; i < n; i += HALF_ROWS) {
		__m256 valid = _mm256_castsi256_ps(first_lanes(n - i));
		__m256 values = _mm256_blendv_ps(maxima, _mm256_loadu_ps(scores + i), valid);

		maxima = _mm256_max_ps(values, maxima); /* the second operand is the result for NaN */
	}
	_mm256_storeu_ps(lanes, maxima);
	for (int i = 0; i < HALF_ROWS; i++)
		max = lanes[i] > max ? lanes[i] : max;
	return max;
}

static void avx2_softmax(float *scores, int n, struct softmax_state *state, float *sums, int head_dim)
{
	__m256 partial[2] = {_mm256_loadu_ps(state->sums), _mm256_loadu_ps(state->sums + HALF_ROWS)};
	float max = max_score(scores, n, state->max);

	if (max != state->max) {
		__m256 factor = exp_of(_mm256_set1_ps(state->max - max));

		partial[0] = _mm256_mul_ps(partial[0], factor);
		partial[1] = _mm256_mul_ps(partial[1], factor);
		for (int d = 0; d < head_dim; d += HALF_ROWS)
			_mm256_storeu_ps(sums + d, _mm256_mul_ps(_mm256_loadu_ps(sums + d), factor));
		state->max = max;
	}
	for (int i = 0; i < n; i += PANEL_ROWS) {
		UNROLL
		for (int half = 0; half < 2; half++) {
			float *at = scores + i + half * HALF_ROWS;
			__m256 valid = _mm256_castsi256_ps(first_lanes(n - i - half * HALF_ROWS));
			__m256 weights = _mm256_and_ps(exp_of(_mm256_sub_ps(_mm256_loadu_ps(at), _mm256_set1_ps(max))), valid);

			_mm256_storeu_ps(at, weights);
			partial[half] = _mm256_add_ps(partial[half], weights);
		}
	}
	_mm256_storeu_ps(state->sums, partial[0]);
	_mm256_storeu_ps(state->sums + HALF_ROWS, partial[1]);
}

SPECIALIZED void accumulate_tile(const struct accumulate_args *args, int first, const enum kn_kv_type type, const int n)
{
	for (int d = 0; d < args->head_dim; d += HALF_ROWS) {
		__m256 acc[ATTENTION_QUERIES_MAX];

		UNROLL
		for (int q = 0; q < n; q++)
			acc[q] = _mm256_loadu_ps(args->sums + (first + q) * args->sums_stride + d);
		for (int t = args->token_begin; t < args->token_end; t++) {
			prefetch_kv(args->ahead, (int64_t)t * args->head_dim + d, type);
			__m256 values = load_kv(args->values, (int64_t)t * args->head_dim + d, type);

			UNROLL
			for (int q = 0; q < n; q++)
				acc[q] = _mm256_fmadd_ps(
					_mm256_set1_ps(args->weights[(first + q) * args->weights_stride + t]), values, acc[q]);
		}
		UNROLL
		for (int q = 0; q < n; q++)
			_mm256_storeu_ps(args->sums + (first + q) * args->sums_stride + d, acc[q]);
	}
}

#include "kernels/cpu/attention_tiles.h"

/* --- limits of this machine ------------------------------------------------------------------------------------------ */

#define LIMIT_CHAINS 12 /* covers latency 5 with two units */
#define LIMIT_PREFETCH_BYTES 2048 /* as far as the products of one row prefetch */

static float avx2_run_fma(int64_t rounds)
{
	__m256 sums[LIMIT_CHAINS], factor = _mm256_set1_ps(0.999f);

	UNROLL
	for (int k = 0; k < LIMIT_CHAINS; k++)
		sums[k] = _mm256_set1_ps((float)k);
	for (int64_t i = 0; i < rounds; i++) {
		UNROLL
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] = _mm256_fmadd_ps(sums[k], factor, factor);
	}
	for (int k = 1; k < LIMIT_CHAINS; k++)
		sums[0] = _mm256_add_ps(sums[0], sums[k]);
	return _mm256_cvtss_f32(sums[0]);
}

static int32_t avx2_run_dot16(int64_t rounds)
{
	__m256i sums[LIMIT_CHAINS], factor = _mm256_set1_epi16(3);

	UNROLL
	for (int k = 0; k < LIMIT_CHAINS; k++)
		sums[k] = _mm256_set1_epi32(k);
	for (int64_t i = 0; i < rounds; i++) {
		UNROLL
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(sums[k], factor));
	}
	for (int k = 1; k < LIMIT_CHAINS; k++)
		sums[0] = _mm256_add_epi32(sums[0], sums[k]);
	return _mm256_cvtsi256_si32(sums[0]);
}

static int64_t avx2_run_read(const void *memory, int64_t n)
{
	__m256i sums[8];

	UNROLL
	for (int k = 0; k < 8; k++)
		sums[k] = _mm256_setzero_si256();
	for (const char *at = memory, *end = at + n; at < end; at += 256) {
		UNROLL
		for (int k = 0; k < 8; k++) {
			_mm_prefetch(at + 32 * k + LIMIT_PREFETCH_BYTES, _MM_HINT_T0);
			sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256((const __m256i *)(at + 32 * k)));
		}
	}
	for (int k = 1; k < 8; k++)
		sums[0] = _mm256_xor_si256(sums[0], sums[k]);
	return _mm256_extract_epi64(sums[0], 0);
}

const struct micro micro_avx2 = {
	.name = "avx2",
	.run_fma = avx2_run_fma,
	.run_dot16 = avx2_run_dot16,
	.run_read = avx2_run_read,
	.fma_per_round = LIMIT_CHAINS * 8,
	.dot16_per_round = LIMIT_CHAINS * 16,
	.sum_squares = avx2_sum_squares,
	.normalize = avx2_normalize,
	.quantize = avx2_quantize,
	.multiply = product_avx2,
	.swiglu = avx2_swiglu,
	.to_f16 = avx2_to_f16,
	.scores = scores,
	.softmax = avx2_softmax,
	.accumulate = accumulate,
};
