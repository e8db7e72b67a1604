/* Tests of attention over the paged cache: against naive double-precision arithmetic, and bit for bit between instruction
 * sets, thread counts and ways of cutting the same rows into steps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "kernels/kn.h"
#include "tests/support/random_tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define SEQUENCES_MAX 4
#define CONTEXT 640
#define BLOCKS_PER_SLOT (CONTEXT / KN_KV_BLOCK_TOKENS)
#define N_BLOCKS (1 + SEQUENCES_MAX * BLOCKS_PER_SLOT)

static const char *const all_isas[] = {"scalar", "avx2", "avx512"};

/* Sequences that are attended from their first token to their last. */
struct shape {
	int n_heads, n_kv_heads, head_dim, rope_interleaved;
	enum kn_kv_type kv_type;
	int n_sequences;
	int lengths[SEQUENCES_MAX];
};

/* Order in which rows go through: steps of at most `chunk` rows of one sequence, or one row of every sequence in turn. */
struct manner {
	const char *isa;
	int threads, chunk;
	bool together; /* each step holds a chunk of every sequence */
	bool planned;
};

static int total_rows(const struct shape *shape)
{
	int rows = 0;

	for (int s = 0; s < shape->n_sequences; s++)
		rows += shape->lengths[s];
	return rows;
}

static int row_width(const struct shape *shape)
{
	return (shape->n_heads + 2 * shape->n_kv_heads) * shape->head_dim;
}

/* First row of a sequence in the arrays of all rows. */
static int first_row(const struct shape *shape, int sequence)
{
	int row = 0;

	for (int s = 0; s < sequence; s++)
		row += shape->lengths[s];
	return row;
}

static int kv_head_of(const struct shape *shape, int head)
{
	return head * shape->n_kv_heads / shape->n_heads;
}

static float *make_inputs(const struct shape *shape)
{
	int64_t n = (int64_t)total_rows(shape) * row_width(shape);
	float *qkv = mem_calloc((size_t)n, sizeof *qkv);

	for (int64_t i = 0; i < n; i++)
		qkv[i] = (float)random_normal(11, 1, (uint64_t)i);
	return qkv;
}

/* --- the backend ----------------------------------------------------------------------------------------------------- */

struct bench {
	const struct shape *shape;
	struct kn_backend *backend;
	void *k_cache, *v_cache;
	size_t cache_bytes;
	float *rope, *step_qkv, *step_out;
	int32_t *positions, *slots, *block_tables, *kv_head_of_head;
	int done[SEQUENCES_MAX];
};

static bool bench_open(struct bench *b, const struct shape *shape, struct manner manner)
{
	struct kn_options options = {
		.threads = manner.threads, .rows_max = SEQUENCES_MAX * CONTEXT, .cols_max = 64, .isa = manner.isa};
	struct err err = {0};
	size_t rows = SEQUENCES_MAX * CONTEXT;
	enum status status = kn_cpu_ops.create(&options, &b->backend, &err);

	if (status == STATUS_UNAVAILABLE)
		return false;
	assert_int_equal(status, STATUS_OK);
	b->shape = shape;
	b->cache_bytes = (size_t)N_BLOCKS * (size_t)shape->n_kv_heads * KN_KV_BLOCK_TOKENS * (size_t)shape->head_dim * 4;
	assert_int_equal(kn_cpu_ops.alloc(b->backend, b->cache_bytes, &b->k_cache, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.alloc(b->backend, b->cache_bytes, &b->v_cache, &err), STATUS_OK);
	memset(b->k_cache, 0xff, b->cache_bytes); /* NaN wherever nothing was written */
	memset(b->v_cache, 0xff, b->cache_bytes);
	b->rope = mem_calloc((size_t)(CONTEXT * shape->head_dim), sizeof(float));
	kn_rope_table_fill(b->rope, CONTEXT, shape->head_dim, 10000.0, NULL);
	b->step_qkv = mem_calloc(rows * (size_t)row_width(shape), sizeof(float));
	b->step_out = mem_calloc(rows * (size_t)(shape->n_heads * shape->head_dim), sizeof(float));
	b->positions = mem_calloc(rows, sizeof(int32_t));
	b->slots = mem_calloc(rows, sizeof(int32_t));
	b->block_tables = mem_calloc(SEQUENCES_MAX * BLOCKS_PER_SLOT, sizeof(int32_t));
	b->kv_head_of_head = mem_calloc((size_t)shape->n_heads, sizeof(int32_t));
	for (int i = 0; i < SEQUENCES_MAX * BLOCKS_PER_SLOT; i++) /* scattered: 7 and the count of blocks have no common divisor */
		b->block_tables[i] = 1 + i * 7 % (N_BLOCKS - 1);
	for (int head = 0; head < shape->n_heads; head++)
		b->kv_head_of_head[head] = kv_head_of(shape, head);
	memset(b->done, 0, sizeof b->done);
	return true;
}

static void bench_close(struct bench *b)
{
	kn_cpu_ops.release(b->backend, b->k_cache, b->cache_bytes);
	kn_cpu_ops.release(b->backend, b->v_cache, b->cache_bytes);
	mem_free(b->rope);
	mem_free(b->step_qkv);
	mem_free(b->step_out);
	mem_free(b->positions);
	mem_free(b->slots);
	mem_free(b->block_tables);
	mem_free(b->kv_head_of_head);
	kn_cpu_ops.destroy(b->backend);
}

static struct kn_attention arguments(const struct bench *b)
{
	return (struct kn_attention){
		.qkv = b->step_qkv,
		.out = b->step_out,
		.n_heads = b->shape->n_heads,
		.n_kv_heads = b->shape->n_kv_heads,
		.head_dim = b->shape->head_dim,
		.kv_head_of_head = b->kv_head_of_head,
		.k_cache = b->k_cache,
		.v_cache = b->v_cache,
		.kv_type = b->shape->kv_type,
		.positions = b->positions,
		.slots = b->slots,
		.block_tables = b->block_tables,
		.block_table_stride = BLOCKS_PER_SLOT,
		.rope_cos_sin = b->rope,
		.rope_interleaved = b->shape->rope_interleaved,
		.scale = 1.0f / sqrtf((float)b->shape->head_dim),
	};
}

/* Runs the rows collected in the step and copies their results out. rows[i] is the number of step row i among all rows. */
static void run_step(struct bench *b, const int *rows, int n_rows, bool planned, float *out)
{
	int width = b->shape->n_heads * b->shape->head_dim;
	struct kn_attention args = arguments(b);
	struct kn_plan *plan;
	struct err err = {0};

	for (int i = 0; i < n_rows * width; i++)
		b->step_out[i] = NAN;
	if (planned)
		assert_int_equal(kn_cpu_ops.plan_begin(b->backend, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.attention(b->backend, &args, n_rows, &err), STATUS_OK);
	if (planned) {
		assert_int_equal(kn_cpu_ops.plan_end(b->backend, &plan, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.plan_run(b->backend, plan, &err), STATUS_OK);
		kn_cpu_ops.plan_destroy(b->backend, plan);
	}
	for (int i = 0; i < n_rows; i++)
		memcpy(out + (int64_t)rows[i] * width, b->step_out + (int64_t)i * width, (size_t)width * sizeof(float));
}

/* Adds up to `chunk` next rows of a sequence to the step; returns the new row count. */
static int collect(struct bench *b, const float *qkv, int sequence, int chunk, int *rows, int n_rows)
{
	int width = row_width(b->shape);

	for (int i = 0; i < chunk && b->done[sequence] < b->shape->lengths[sequence]; i++, n_rows++) {
		rows[n_rows] = first_row(b->shape, sequence) + b->done[sequence];
		memcpy(b->step_qkv + (int64_t)n_rows * width, qkv + (int64_t)rows[n_rows] * width, (size_t)width * sizeof(float));
		b->positions[n_rows] = b->done[sequence]++;
		b->slots[n_rows] = sequence;
	}
	return n_rows;
}

static bool run(const struct shape *shape, const float *qkv, struct manner manner, float *out)
{
	int rows[SEQUENCES_MAX * CONTEXT];
	struct bench b;
	int left = total_rows(shape);

	if (!bench_open(&b, shape, manner))
		return false;
	while (left > 0) {
		int n_rows = 0;

		for (int s = 0; s < shape->n_sequences; s++) {
			n_rows = collect(&b, qkv, s, manner.chunk, rows, n_rows);
			if (!manner.together && n_rows > 0)
				break;
		}
		run_step(&b, rows, n_rows, manner.planned, out);
		left -= n_rows;
	}
	bench_close(&b);
	return true;
}

/* --- the reference --------------------------------------------------------------------------------------------------- */

static double stored(const struct shape *shape, double value)
{
	return shape->kv_type == KN_KV_F16 ? (double)dtype_f16_to_f32(dtype_f32_to_f16((float)value)) : value;
}

static void rotate(const struct shape *shape, const float *head, int position, double *out)
{
	for (int i = 0; i < shape->head_dim / 2; i++) {
		int a = shape->rope_interleaved ? 2 * i : i, b = shape->rope_interleaved ? 2 * i + 1 : i + shape->head_dim / 2;
		double angle = position * pow(10000.0, -2.0 * i / shape->head_dim);

		out[a] = (double)head[a] * cos(angle) - (double)head[b] * sin(angle);
		out[b] = (double)head[a] * sin(angle) + (double)head[b] * cos(angle);
	}
}

static void reference_head(const struct shape *shape, const float *qkv, int sequence, int position, int head, double *out)
{
	int width = row_width(shape), dim = shape->head_dim, begin = first_row(shape, sequence);
	const float *key = qkv + (int64_t)begin * width + (shape->n_heads + kv_head_of(shape, head)) * dim;
	const float *value = key + shape->n_kv_heads * dim;
	double query[256], rotated[256], weights[CONTEXT], max = -INFINITY, sum = 0;

	rotate(shape, qkv + (int64_t)(begin + position) * width + head * dim, position, query);
	for (int t = 0; t <= position; t++) {
		weights[t] = 0;
		rotate(shape, key + (int64_t)t * width, t, rotated);
		for (int d = 0; d < dim; d++)
			weights[t] += query[d] * stored(shape, rotated[d]) / sqrt(dim);
		max = fmax(max, weights[t]);
	}
	for (int t = 0; t <= position; t++)
		sum += weights[t] = exp(weights[t] - max);
	memset(out, 0, (size_t)dim * sizeof *out);
	for (int t = 0; t <= position; t++)
		for (int d = 0; d < dim; d++)
			out[d] += weights[t] / sum * stored(shape, (double)value[(int64_t)t * width + d]);
}

/* Values are of unit size and weights add up to one, so errors are absolute: fp32 scores of about 10 with rounding errors of
 * 64 terms, and a key that rounds to the neighbouring half-precision number where fp32 and double differ in the last bit. */
static void check_against_double(const struct shape *shape, const float *qkv, const float *out, int step)
{
	double expected[256], tolerance = shape->kv_type == KN_KV_F16 ? 1e-3 : 1e-5;

	for (int s = 0; s < shape->n_sequences; s++) {
		for (int position = 0; position < shape->lengths[s]; position += position + step < shape->lengths[s] ? step : 1) {
			for (int head = 0; head < shape->n_heads; head++) {
				const float *got =
					out + ((int64_t)(first_row(shape, s) + position) * shape->n_heads + head) * shape->head_dim;

				reference_head(shape, qkv, s, position, head, expected);
				for (int d = 0; d < shape->head_dim; d++)
					if (!(fabs((double)got[d] - expected[d]) <= tolerance))
						fail_msg("sequence %d position %d head %d [%d]: %.9g, expected %.9g", s, position,
							head, d, (double)got[d], expected[d]);
			}
		}
	}
}

/* --- tests ----------------------------------------------------------------------------------------------------------- */

static void check_manners(const struct shape *shape, const struct manner *manners, size_t n_manners, int reference_step)
{
	size_t n = (size_t)total_rows(shape) * (size_t)(shape->n_heads * shape->head_dim);
	float *qkv = make_inputs(shape), *expected = mem_calloc(n, sizeof *expected), *out = mem_calloc(n, sizeof *out);
	bool have_expected = false;

	for (size_t i = 0; i < n_manners; i++) {
		struct manner manner = manners[i];

		if (!run(shape, qkv, manner, have_expected ? out : expected))
			continue;
		if (!have_expected)
			check_against_double(shape, qkv, expected, reference_step);
		else if (memcmp(out, expected, n * sizeof *out) != 0)
			fail_msg("other bits with %s, %d threads, chunks of %d%s", manner.isa, manner.threads, manner.chunk,
				manner.together ? " together" : "");
		have_expected = true;
	}
	mem_free(qkv);
	mem_free(expected);
	mem_free(out);
}

static void every_manner_gives_the_same_bits_near_double_arithmetic(void **state)
{
	static const struct shape shapes[] = {
		{9, 3, 64, 1, KN_KV_F16, 3, {37, 1, 20}},
		{9, 3, 64, 0, KN_KV_F32, 2, {16, 33}},
		{5, 2, 24, 0, KN_KV_F16, 2, {18, 31}}, /* not divisible, as on two ranks; head size not a multiple of 16 */
		{4, 4, 8, 1, KN_KV_F32, 2, {40, 17}},
		{16, 1, 128, 0, KN_KV_F16, 1, {35}}, /* more heads in a group than are attended together */
		{2, 1, 256, 1, KN_KV_F16, 1, {19}},
		{1, 1, 40, 0, KN_KV_F32, 4, {1, 15, 16, 17}},
	};

	for (size_t s = 0; s < COUNT(shapes); s++) {
		for (size_t i = 0; i < COUNT(all_isas); i++) {
			const struct manner manners[] = {
				{"auto", 1, CONTEXT, false, false},
				{all_isas[i], 1, CONTEXT, true, false},
				{all_isas[i], 2, 1, true, false},
				{all_isas[i], 5, 7, true, true},
				{all_isas[i], 2, 16, false, false},
				{all_isas[i], 1, 1, false, true},
			};

			check_manners(&shapes[s], manners, COUNT(manners), 1);
		}
	}
}

static void long_sequences_cross_softmax_chunks(void **state)
{
	static const struct shape shape = {3, 1, 64, 1, KN_KV_F16, 2, {600, 258}};
	static const struct manner manners[] = {{"auto", 2, CONTEXT, false, false}, {"avx512", 1, 1, true, false},
		{"avx2", 2, 100, true, false}, {"scalar", 5, 256, false, false}};

	check_manners(&shape, manners, COUNT(manners), 97);
}

static void misuse_of_attention_is_refused(void **state)
{
	static const struct shape shape = {4, 2, 16, 0, KN_KV_F16, 1, {4}};
	struct err err = {0};
	struct bench b;

	assert_true(bench_open(&b, &shape, (struct manner){"auto", 1, 1, false, false}));
	struct kn_attention good = arguments(&b), bad = good;
	bad.head_dim = 12;
	assert_int_equal(kn_cpu_ops.attention(b.backend, &bad, 1, &err), STATUS_INPUT);
	bad.head_dim = 264;
	assert_int_equal(kn_cpu_ops.attention(b.backend, &bad, 1, &err), STATUS_INPUT);
	bad = good;
	bad.block_tables = NULL;
	assert_int_equal(kn_cpu_ops.attention(b.backend, &bad, 1, &err), STATUS_INPUT); /* the first error is kept */
	err_clear(&err);
	assert_int_equal(kn_cpu_ops.attention(b.backend, &bad, 1, &err), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.attention(b.backend, &good, 0, &err), STATUS_INTERNAL);
	b.kv_head_of_head[3] = 2;
	err_clear(&err);
	assert_int_equal(kn_cpu_ops.attention(b.backend, &good, 1, &err), STATUS_INTERNAL);
	assert_non_null(strstr(err.text, "head 3 reads KV head 2 of 2"));
	bench_close(&b);
}

static void rope_table_divides_by_frequency_factors(void **state)
{
	static const float factors[] = {1, 2, 4, 8};
	float table[3 * 8];

	kn_rope_table_fill(table, 3, 8, 100.0, factors);
	for (int position = 0; position < 3; position++) {
		for (int i = 0; i < 4; i++) {
			double angle = position * pow(100.0, -i / 4.0) / (double)factors[i];

			assert_true(fabs((double)table[position * 8 + 2 * i] - cos(angle)) < 1e-7);
			assert_true(fabs((double)table[position * 8 + 2 * i + 1] - sin(angle)) < 1e-7);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_manner_gives_the_same_bits_near_double_arithmetic),
		cmocka_unit_test(long_sequences_cross_softmax_chunks),
		cmocka_unit_test(misuse_of_attention_is_refused),
		cmocka_unit_test(rope_table_divides_by_frequency_factors),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
