/* Inner loops in plain C: the definition that the vector versions match bit for bit. Lanes of the vector versions are
 * inner loops here; std fmaf gives the fused operation on every machine. */
#include "kernels/cpu/micro.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/exp.h"

static float scalar_sum_squares(const float *x, int64_t n)
{
	float lanes[PANEL_ROWS] = {0};

	for (int64_t i = 0; i < n; i++)
		lanes[i % PANEL_ROWS] = fmaf(x[i], x[i], lanes[i % PANEL_ROWS]);
	return micro_tree_sum(lanes);
}

static void scalar_normalize(const float *x, float scale, const float *weight, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = (x[i] * scale) * weight[i];
}

static uint32_t magnitude_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits & 0x7fffffff;
}

static void quantize_block(const float *x, int16_t *quants, struct activation_block *block)
{
	uint32_t largest_bits = 0; /* bit patterns of magnitudes order like the magnitudes, with NaN above infinity */
	float largest, inverse;
	int32_t sum = 0;

	for (int i = 0; i < BLOCK_COLS; i++)
		largest_bits = magnitude_bits(x[i]) > largest_bits ? magnitude_bits(x[i]) : largest_bits;
	memcpy(&largest, &largest_bits, sizeof(largest));
	if (largest_bits >= 0x7f800000 || largest < MICRO_QUANTIZE_MIN) {
		memset(quants, 0, BLOCK_COLS * sizeof(*quants));
		block->scale = largest_bits >= 0x7f800000 ? NAN : 0.0f;
		block->sum = block->scale;
		block->minus_8_sum = 0;
		return;
	}
	block->scale = largest / 32767.0f;
	inverse = 32767.0f / largest;
	for (int i = 0; i < BLOCK_COLS; i++) {
		quants[i] = (int16_t)(x[i] * inverse + EXP_ROUND - EXP_ROUND);
		sum += quants[i];
	}
	block->sum = block->scale * (float)sum;
	block->minus_8_sum = -8 * sum;
}

static void scalar_quantize(const float *x, int64_t n, int16_t *quants, struct activation_block *blocks)
{
	for (int64_t i = 0; i < n; i += BLOCK_COLS)
		quantize_block(x + i, quants + i, &blocks[i / BLOCK_COLS]);
}

static float load_f16(const uint8_t *scales, int lane)
{
	uint16_t bits;

	memcpy(&bits, scales + 2 * lane, sizeof(bits));
	return dtype_f16_to_f32(bits);
}

static float load_f32(const uint8_t *scales, int lane)
{
	float value;

	memcpy(&value, scales + 4 * lane, sizeof(value));
	return value;
}

/* Exact product of one lane of a nibble block with 32 quantised activations. */
static int32_t dot_u4(const uint8_t *block, int lane, const int16_t *quants, int32_t start)
{
	int32_t sum = start;

	for (int z = 0; z < 4; z++) {
		uint32_t word;

		memcpy(&word, block + 4 * (PANEL_ROWS * z + lane), sizeof(word));
		for (int j = 0; j < 4; j++) {
			sum += (int32_t)((word >> (4 * j)) & 15) * quants[8 * z + 2 * j];
			sum += (int32_t)((word >> (16 + 4 * j)) & 15) * quants[8 * z + 2 * j + 1];
		}
	}
	return sum;
}

/* The same for pairs of signed bytes: columns 2 * pair_begin .. 2 * pair_end - 1. */
static int32_t dot_i8(const uint8_t *block, int lane, const int16_t *quants, int pair_begin, int pair_end)
{
	int32_t sum = 0;

	for (int i = pair_begin; i < pair_end; i++) {
		const uint8_t *pair = block + 2 * (PANEL_ROWS * i + lane);

		sum += (int8_t)pair[0] * quants[2 * i] + (int8_t)pair[1] * quants[2 * i + 1];
	}
	return sum;
}

/* One block of one lane added to acc. */
static float add_block(enum panel_form form, const uint8_t *header, const uint8_t *block, int lane, const int16_t *quants,
	const struct activation_block *x, float acc)
{
	const uint8_t *scales = block + (micro_has_bytes(form) ? I8_BYTES : U4_BYTES);
	float scale = 0;
	int32_t dot;

	switch (form) {
	case PANEL_Q4_0:
		dot = dot_u4(block, lane, quants, x->minus_8_sum);
		return fmaf(load_f16(scales, lane) * x->scale, (float)dot, acc);
	case PANEL_Q4_1:
		dot = dot_u4(block, lane, quants, 0);
		acc = fmaf(load_f16(scales, lane) * x->scale, (float)dot, acc);
		return fmaf(load_f16(scales + 32, lane), x->sum, acc);
	case PANEL_Q4_K:
		dot = dot_u4(block, lane, quants, 0);
		scale = load_f16(header, lane) * (float)scales[lane];
		acc = fmaf(scale * x->scale, (float)dot, acc);
		return fmaf(-(load_f16(header + 32, lane) * (float)scales[16 + lane]), x->sum, acc);
	case PANEL_Q8_0:
		dot = dot_i8(block, lane, quants, 0, BLOCK_COLS / 2);
		return fmaf(load_f16(scales, lane) * x->scale, (float)dot, acc);
	default:
		for (int part = 0; part < 2; part++) {
			dot = dot_i8(block, lane, quants, part * BLOCK_COLS / 4, (part + 1) * BLOCK_COLS / 4);
			scale = load_f16(header, lane) * (float)(int8_t)scales[16 * part + lane];
			acc = fmaf(scale * x->scale, (float)dot, acc);
		}
		return acc;
	}
}

static float multiply_lane(const struct micro_product *p, enum panel_form form, const uint8_t *panel, int lane, int64_t row)
{
	const int16_t *quants = p->activations->quants + row * p->activations->col_stride;
	const struct activation_block *x = p->activations->blocks + row * p->activations->col_stride / BLOCK_COLS;
	const uint8_t *block = panel, *header = panel;
	float acc = 0;

	for (int64_t i = 0; i < p->n_cols / BLOCK_COLS; i++, block += micro_block_bytes(form)) {
		if (i % GROUP_BLOCKS == 0) {
			header = block;
			block += micro_header_bytes(form);
		}
		acc = add_block(form, header, block, lane, quants + i * BLOCK_COLS, x + i, acc);
	}
	return acc;
}

static void multiply_quantized(const struct micro_product *p, enum panel_form form)
{
	for (int panel = 0; panel < p->n_panels; panel++)
		for (int row = 0; row < p->n_rows; row++)
			for (int lane = 0; lane < PANEL_ROWS; lane++)
				p->out[((int64_t)panel * p->n_rows + row) * PANEL_ROWS + lane] =
					multiply_lane(p, form, p->panels + panel * p->panel_bytes, lane, p->row_begin + row);
}

static void scalar_multiply_q4_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_0);
}

static void scalar_multiply_q4_1(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_1);
}

static void scalar_multiply_q4_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q4_K);
}

static void scalar_multiply_q8_0(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q8_0);
}

static void scalar_multiply_q6_k(const struct micro_product *p)
{
	multiply_quantized(p, PANEL_Q6_K);
}

static float load_bf16(const uint8_t *values, int lane)
{
	uint16_t bits;

	memcpy(&bits, values + 2 * lane, sizeof(bits));
	return dtype_bf16_to_f32(bits);
}

static void multiply_plain(const struct micro_product *p, int64_t col_bytes, float (*load)(const uint8_t *, int))
{
	for (int panel = 0; panel < p->n_panels; panel++) {
		for (int row = 0; row < p->n_rows; row++) {
			const float *x = p->activations->values + (p->row_begin + row) * p->activations->col_stride;
			const uint8_t *column = p->panels + panel * p->panel_bytes;
			float *out = p->out + ((int64_t)panel * p->n_rows + row) * PANEL_ROWS;

			memset(out, 0, PANEL_ROWS * sizeof(*out));
			for (int64_t col = 0; col < p->n_cols; col++, column += col_bytes)
				for (int lane = 0; lane < PANEL_ROWS; lane++)
					out[lane] = fmaf(load(column, lane), x[col], out[lane]);
		}
	}
}

static void scalar_multiply_f32(const struct micro_product *p)
{
	multiply_plain(p, 64, load_f32);
}
static void scalar_multiply_f16(const struct micro_product *p)
{
	multiply_plain(p, 32, load_f16);
}
static void scalar_multiply_bf16(const struct micro_product *p)
{
	multiply_plain(p, 32, load_bf16);
}

static float exp_of(float x)
{
	float rounded, n, r, y, power;
	uint32_t power_bits;

	x = EXP_MAX < x ? EXP_MAX : x; /* written so that NaN stays NaN */
	x = EXP_MIN > x ? EXP_MIN : x;
	rounded = fmaf(x, EXP_LOG2E, EXP_ROUND);
	n = rounded - EXP_ROUND;
	r = fmaf(n, -EXP_LN2_LOW, fmaf(n, -EXP_LN2_HIGH, x));
	y = fmaf(EXP_C0, r, EXP_C1);
	y = fmaf(y, r, EXP_C2);
	y = fmaf(y, r, EXP_C3);
	y = fmaf(y, r, EXP_C4);
	y = fmaf(y, r, EXP_C5);
	y = fmaf(y, r * r, r) + 1.0f;
	memcpy(&power_bits, &rounded, sizeof(power_bits));
	power_bits = (power_bits + 127) << 23;
	memcpy(&power, &power_bits, sizeof(power));
	return y * power;
}

static void scalar_swiglu(const float *gate, const float *up, int64_t n, float *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
}

static void scalar_to_f16(const float *x, int64_t n, uint16_t *out)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = dtype_f32_to_f16(x[i]);
}

/* Element i of a key or value block. */
static float load_kv(const void *block, enum kn_kv_type type, int i)
{
	return type == KN_KV_F16 ? dtype_f16_to_f32(((const uint16_t *)block)[i]) : ((const float *)block)[i];
}

static void scalar_scores(const struct score_args *args, int n_queries, enum kn_kv_type type)
{
	for (int q = 0; q < n_queries; q++) {
		for (int t = 0; t < KN_KV_BLOCK_TOKENS; t++) {
			float acc = 0;

			for (int d = 0; d < args->head_dim; d++)
				acc = fmaf(args->queries[q][d], load_kv(args->keys, type, d * KN_KV_BLOCK_TOKENS + t), acc);
			args->out[q * args->out_stride + t] = acc * args->scale;
		}
	}
}

static void scalar_softmax(float *scores, int n, struct softmax_state *state, float *sums, int head_dim)
{
	float max = state->max;
	int padded = (n + PANEL_ROWS - 1) / PANEL_ROWS * PANEL_ROWS;

	for (int i = 0; i < n; i++)
		max = scores[i] > max ? scores[i] : max;
	if (max != state->max) {
		float factor = exp_of(state->max - max);

		for (int lane = 0; lane < PANEL_ROWS; lane++)
			state->sums[lane] *= factor;
		for (int d = 0; d < head_dim; d++)
			sums[d] *= factor;
		state->max = max;
	}
	for (int i = 0; i < padded; i++) {
		scores[i] = i < n ? exp_of(scores[i] - max) : 0.0f;
		state->sums[i % PANEL_ROWS] += scores[i];
	}
}

static void scalar_accumulate(const struct accumulate_args *args, int n_queries, enum kn_kv_type type)
{
	for (int q = 0; q < n_queries; q++) {
		const float *weights = args->weights + q * args->weights_stride;
		float *sums = args->sums + q * args->sums_stride;

		for (int t = args->token_begin; t < args->token_end; t++)
			for (int d = 0; d < args->head_dim; d++)
				sums[d] = fmaf(weights[t], load_kv(args->values, type, t * args->head_dim + d), sums[d]);
	}
}

#define LIMIT_CHAINS 4

static float scalar_run_fma(int64_t rounds)
{
	float sums[LIMIT_CHAINS] = {1, 2, 3, 4}, factor = 0.999f;

	for (int64_t i = 0; i < rounds; i++)
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] = fmaf(sums[k], factor, factor);
	return sums[0] + sums[1] + sums[2] + sums[3];
}

static int32_t scalar_run_dot16(int64_t rounds)
{
	uint32_t sums[LIMIT_CHAINS] = {1, 2, 3, 4}; /* unsigned: they wrap */

	for (int64_t i = 0; i < rounds; i++)
		for (int k = 0; k < LIMIT_CHAINS; k++)
			sums[k] += sums[k] * 3;
	return (int32_t)(sums[0] + sums[1] + sums[2] + sums[3]);
}

static micro_multiply *const product_scalar[PANEL_FORMS] = {
	[PANEL_F32] = scalar_multiply_f32,
	[PANEL_F16] = scalar_multiply_f16,
	[PANEL_BF16] = scalar_multiply_bf16,
	[PANEL_Q4_0] = scalar_multiply_q4_0,
	[PANEL_Q4_1] = scalar_multiply_q4_1,
	[PANEL_Q4_K] = scalar_multiply_q4_k,
	[PANEL_Q8_0] = scalar_multiply_q8_0,
	[PANEL_Q6_K] = scalar_multiply_q6_k,
};

static int64_t scalar_run_read(const void *memory, int64_t n)
{
	const int64_t *words = memory;
	int64_t sum = 0;

	for (int64_t i = 0; i < n / 8; i++)
		sum ^= words[i];
	return sum;
}

const struct micro micro_scalar = {
	.name = "scalar",
	.run_fma = scalar_run_fma,
	.run_dot16 = scalar_run_dot16,
	.run_read = scalar_run_read,
	.fma_per_round = LIMIT_CHAINS,
	.dot16_per_round = LIMIT_CHAINS,
	.sum_squares = scalar_sum_squares,
	.normalize = scalar_normalize,
	.quantize = scalar_quantize,
	.multiply = product_scalar,
	.swiglu = scalar_swiglu,
	.to_f16 = scalar_to_f16,
	.scores = scalar_scores,
	.softmax = scalar_softmax,
	.accumulate = scalar_accumulate,
};
