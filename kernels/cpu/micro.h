/* Inner loops of the CPU backend, one table per instruction set. Every table gives the same bits: integer sums are exact,
 * and each fp32 result is made by the same sequence of correctly rounded operations, whatever the vector width. */
#ifndef KERNELS_CPU_MICRO_H
#define KERNELS_CPU_MICRO_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/kn.h"

#define PANEL_ROWS 16 /* weight rows interleaved in a panel: fp32 lanes of one 512-bit register */
#define BLOCK_COLS 32 /* columns that share one activation scale: block of the Q4 and Q8 formats */

/* Packed forms of weights. A panel holds 16 rows; quantised panels are a run of blocks of 32 columns, plain ones a run of
 * columns of 16 values. Lane r of every vector belongs to row r.
 *   Q4_*: 64 dwords of nibbles, then 16 scales, then 16 minimums (not Q4_0). Dword 16 z + r has, at bit 4 j, the value of
 *         column 8 z + 2 j and, at bit 16 + 4 j, that of column 8 z + 2 j + 1: one shift and one mask give 16-bit pairs.
 *   Q8_0, Q6_K: 16 runs of 16 byte pairs (columns 2 i and 2 i + 1 of row r), then 16 scales (Q6_K: 16 for columns 0..15, then
 *         16 for columns 16..31).
 * Scales and minimums are f16, but for the K forms: theirs are bytes, factors of the f16 values in a header before every
 * eight blocks (16 of d and, for Q4_K, 16 of dmin). */
enum panel_form { PANEL_F32, PANEL_F16, PANEL_BF16, PANEL_Q4_0, PANEL_Q4_1, PANEL_Q4_K, PANEL_Q8_0, PANEL_Q6_K, PANEL_FORMS };

#define U4_BYTES (BLOCK_COLS / 2 * PANEL_ROWS) /* nibbles of one block */
#define I8_BYTES (BLOCK_COLS * PANEL_ROWS) /* bytes of one block */
#define GROUP_BLOCKS 8 /* blocks after one header: a super-block of the K formats */

static inline bool micro_has_bytes(enum panel_form form)
{
	return form == PANEL_Q8_0 || form == PANEL_Q6_K;
}

/* Bytes of one block of 32 columns; of a plain form, of one column. */
static inline int micro_block_bytes(enum panel_form form)
{
	switch (form) {
	case PANEL_F32:
		return PANEL_ROWS * 4;
	case PANEL_F16:
	case PANEL_BF16:
		return PANEL_ROWS * 2;
	case PANEL_Q4_0:
		return U4_BYTES + PANEL_ROWS * 2;
	case PANEL_Q4_1:
		return U4_BYTES + PANEL_ROWS * 4;
	case PANEL_Q4_K:
		return U4_BYTES + PANEL_ROWS * 2;
	case PANEL_Q8_0:
		return I8_BYTES + PANEL_ROWS * 2;
	case PANEL_Q6_K:
		return I8_BYTES + PANEL_ROWS * 2;
	case PANEL_FORMS:
		break;
	}
	return 0;
}

/* Bytes before every GROUP_BLOCKS blocks. */
static inline int micro_header_bytes(enum panel_form form)
{
	return form == PANEL_Q4_K ? PANEL_ROWS * 4 : form == PANEL_Q6_K ? PANEL_ROWS * 2 : 0;
}

/* What a product needs of one block of 32 quantised activations: x ~= scale * q. */
struct activation_block {
	float scale; /* max |x| / 32767; NaN when an input is not finite */
	float sum; /* scale * sum(q), for the minimum term */
	int32_t minus_8_sum; /* -8 * sum(q), the offset of Q4_0 */
};

/* Rows prepared for a product. Quantised and plain forms read different members; members not needed may be stale. */
struct activations {
	int16_t *quants; /* [rows][col_stride] */
	struct activation_block *blocks; /* [rows][col_stride / 32] */
	float *values; /* [rows][col_stride] */
	int64_t col_stride; /* a multiple of 32 */
};

/* out[panel][row][lane] = sum over columns. Plain forms: acc = fma(w, x, acc) in ascending column order from 0. Quantised
 * forms: per block in ascending order, with dot the exact integer product, acc = fma(w_scale * x_scale, (float)dot, acc),
 * then acc = fma(min, sum, acc) where there is a minimum (Q4_K: -min, which its format subtracts). */
struct micro_product {
	const uint8_t *panels;
	int64_t panel_bytes;
	int n_panels;
	int64_t n_cols; /* quantised forms: a multiple of 32 */
	const struct activations *activations;
	int64_t row_begin;
	int n_rows;
	float *out; /* [n_panels][n_rows][16] */
};

typedef void micro_multiply(const struct micro_product *product);
extern micro_multiply *const product_avx2[PANEL_FORMS];
extern micro_multiply *const product_avx512[PANEL_FORMS];

#define ATTENTION_QUERIES_MAX 12 /* queries that share each load of keys and values */
#define ATTENTION_CHUNK 256 /* tokens between rescalings of the running softmax: the scores of a chunk stay in L1 */
#define ATTENTION_HEAD_DIM_MAX 256
#define ATTENTION_HEAD_DIM_STEP 8 /* fp32 lanes of the narrowest vectors */

/* Running softmax of one query: weights are exp(score - max), 16 partial sums by token number modulo 16. */
struct softmax_state {
	float max;
	float sums[PANEL_ROWS];
};

/* Queries against the keys of one block of 16 tokens: out[q][t] = scale * sum over d of queries[q][d] * keys[d][t], fma in
 * ascending d from 0. */
struct score_args {
	const float *const *queries; /* [n_queries][head_dim] */
	const void *keys; /* [head_dim][16] */
	const void *ahead; /* a block that will be needed soon: requested from memory meanwhile */
	int head_dim;
	float scale;
	float *out; /* [n_queries], out_stride apart */
	int64_t out_stride;
};

/* Weighted values of one block: sums[q][d] = fma(weights[q][t], values[t][d], sums[q][d]) for t = token_begin .. token_end - 1
 * in ascending order. */
struct accumulate_args {
	const float *weights; /* [n_queries], weights_stride apart */
	int64_t weights_stride;
	const void *values; /* [16][head_dim] */
	const void *ahead; /* as for scores */
	int head_dim, token_begin, token_end;
	float *sums; /* [n_queries], sums_stride apart */
	int64_t sums_stride;
};

struct micro {
	const char *name;

	/* Multiply-adds between registers as fast as they go, to measure the limit: `rounds` times *_per_round of them. The
	 * result only keeps the work from being left out. */
	float (*run_fma)(int64_t rounds);
	int32_t (*run_dot16)(int64_t rounds);
	int fma_per_round, dot16_per_round;
	/* Reads n bytes, a multiple of 256, to measure the limit; the result as above. */
	int64_t (*run_read)(const void *memory, int64_t n);

	/* Sum of squares in 16 partial sums by element number modulo 16 (fma), then micro_tree_sum's order. */
	float (*sum_squares)(const float *x, int64_t n);
	/* out = (x * scale) * weight. out may be x. */
	void (*normalize)(const float *x, float scale, const float *weight, int64_t n, float *out);
	/* Quantises n values, a multiple of 32, rounding to nearest even. A block whose largest magnitude is under
	 * MICRO_QUANTIZE_MIN counts as zeros. */
	void (*quantize)(const float *x, int64_t n, int16_t *quants, struct activation_block *blocks);
	micro_multiply *const *multiply; /* [PANEL_FORMS] */
	/* out = gate / (1 + exp(-gate)) * up, for n a multiple of 16. */
	void (*swiglu)(const float *gate, const float *up, int64_t n, float *out);
	/* Rounds n values to f16, nearest even. */
	void (*to_f16)(const float *x, int64_t n, uint16_t *out);

	void (*scores)(const struct score_args *args, int n_queries, enum kn_kv_type type);
	/* Turns n scores into weights, in place, and brings state and the sums made so far to the new maximum. Up to the
	 * next multiple of 16, weights after n become 0. */
	void (*softmax)(float *scores, int n, struct softmax_state *state, float *sums, int head_dim);
	void (*accumulate)(const struct accumulate_args *args, int n_queries, enum kn_kv_type type);
};

/* Smallest block magnitude that is quantised: 32767 / it must stay finite with room to spare. */
#define MICRO_QUANTIZE_MIN 0x1p-100f

extern const struct micro micro_scalar;
extern const struct micro micro_avx2;
extern const struct micro micro_avx512;

/* Table for a name ("scalar", "avx2", "avx512"), or the best for this machine for NULL and "auto". An instruction set this
 * machine lacks is STATUS_UNAVAILABLE, an unknown name STATUS_INPUT. */
enum status micro_choose(const char *isa, const struct micro **out, struct err *err);

/* ((0+8)+(4+12)) + ((2+10)+(6+14)) + …: halves added lane by lane, as folding a register does. */
static inline float micro_tree_sum(const float lanes[PANEL_ROWS])
{
	float eight[8], four[4];

	for (int i = 0; i < 8; i++)
		eight[i] = lanes[i] + lanes[i + 8];
	for (int i = 0; i < 4; i++)
		four[i] = eight[i] + eight[i + 4];
	return (four[0] + four[2]) + (four[1] + four[3]);
}

#endif
