/* Attention on the GPU against the CPU backend: every head size, both types of cache, whole prompts, chunks and single rows, steps
 * of several sequences; and the same bits however a sequence is cut into few rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "tests/support/side.h"

static size_t every = 1; /* every so many-th case runs: more than 1 for a tool that watches every access */

/* What attention is told of its steps. Of many rows it has a kernel for each answer: both must be right with any rows. */
static int few_rows_each;

static struct side cpu = {&kn_cpu_ops, NULL}, gpu = {&kn_cuda_ops, NULL};

#define BLOCKS 400
#define STRIDE 300

struct attention_case {
	int heads, kv_heads, head_dim, interleaved;
	enum kn_kv_type kv_type;
};

/* Feeds one sequence of `length` tokens in chunks and keeps the outputs of all rows. */
static void run_attention(
	const struct side *side, const struct attention_case *c, const float *qkv, int length, int chunk, float *out)
{
	struct err err = {0};
	size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
	       attended = (size_t)c->heads * (size_t)c->head_dim;
	size_t cache_bytes = (size_t)BLOCKS * (size_t)c->kv_heads * KN_KV_BLOCK_TOKENS * (size_t)c->head_dim * 4;
	int32_t table[2 * STRIDE] = {0}, map[64];
	for (int i = 0; i < STRIDE; i++)
		table[STRIDE + i] = (int32_t)(1 + (i * 37) % (BLOCKS - 1));
	for (int i = 0; i < c->heads; i++)
		map[i] = i * c->kv_heads / c->heads;
	float *rope = mem_calloc((size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim), 4);
	kn_rope_table_fill(rope, STRIDE * KN_KV_BLOCK_TOKENS, c->head_dim, 10000, NULL);
	void *k = side_put(side, NULL, cache_bytes), *v = side_put(side, NULL, cache_bytes),
	     *drope = side_put(side, rope, (size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim) * 4);
	void *dtable = side_put(side, table, sizeof table), *dmap = side_put(side, map, sizeof map);
	for (int begin = 0; begin < length; begin += chunk) {
		int n = length - begin < chunk ? length - begin : chunk;
		int32_t positions[1024], slots[1024];
		for (int i = 0; i < n; i++) {
			positions[i] = begin + i;
			slots[i] = 1;
		}
		void *dq = side_put(side, qkv + (size_t)begin * width, (size_t)n * width * 4),
		     *dout = side_put(side, NULL, (size_t)n * attended * 4);
		void *dpositions = side_put(side, positions, (size_t)n * 4), *dslots = side_put(side, slots, (size_t)n * 4);
		struct kn_attention args = {.qkv = dq,
			.out = dout,
			.n_heads = c->heads,
			.n_kv_heads = c->kv_heads,
			.head_dim = c->head_dim,
			.kv_head_of_head = dmap,
			.uniform_groups = 1,
			.k_cache = k,
			.v_cache = v,
			.kv_type = c->kv_type,
			.positions = dpositions,
			.slots = dslots,
			.block_tables = dtable,
			.block_table_stride = STRIDE,
			.rope_cos_sin = drope,
			.rope_interleaved = c->interleaved,
			.scale = 1.0f / sqrtf((float)c->head_dim),
			.few_rows_each = few_rows_each};
		side_ok(side->kn->attention(side->backend, &args, n, &err), &err);
		side_ok(side->kn->to_host(side->backend, out + (size_t)begin * attended, dout, (size_t)n * attended * 4, &err),
			&err);
		side->kn->release(side->backend, dq, (size_t)n * width * 4);
		side->kn->release(side->backend, dout, (size_t)n * attended * 4);
		side->kn->release(side->backend, dpositions, (size_t)n * 4);
		side->kn->release(side->backend, dslots, (size_t)n * 4);
	}
	side->kn->release(side->backend, k, cache_bytes);
	side->kn->release(side->backend, v, cache_bytes);
	side->kn->release(side->backend, drope, (size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim) * 4);
	side->kn->release(side->backend, dtable, sizeof table);
	side->kn->release(side->backend, dmap, sizeof map);
	mem_free(rope);
}

static void attention_agrees_whole_in_chunks_and_step_by_step(void **state)
{
	static const struct attention_case cases[] = {
		{9, 3, 64, 1, KN_KV_F16},
		{9, 3, 64, 1, KN_KV_F32},
		{32, 8, 128, 0, KN_KV_F16},
		{8, 8, 96, 1, KN_KV_F16},
		{8, 1, 256, 0, KN_KV_F32},
		{5, 1, 64, 0, KN_KV_F16},
		{14, 2, 64, 0, KN_KV_F32},
		{24, 3, 128, 1, KN_KV_F16},
		{4, 4, 64, 0, KN_KV_F16},
		{4, 2, 256, 0, KN_KV_F16},
		{4, 4, 16, 0, KN_KV_F16},
		{6, 2, 24, 1, KN_KV_F16},
		{8, 4, 80, 1, KN_KV_F32},
		{4, 2, 160, 0, KN_KV_F16},
	};
	const int length = every > 1 ? 400 : 700;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct attention_case *c = &cases[i];
		size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
		       count = (size_t)length * (size_t)c->heads * (size_t)c->head_dim;
		float *qkv = side_normals(20 + i, (size_t)length * width), *a = mem_calloc(count, 4), *b = mem_calloc(count, 4);
		run_attention(&cpu, c, qkv, length, 250, b);
		static const int chunks[] = {1000, 350, 129};
		double d = 0;
		for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
			run_attention(&gpu, c, qkv, length, chunks[k], a);
			d = side_distance(a, b, count);
			if (d > 1e-3)
				fail_msg("%d heads, %d KV heads of %d, chunks of %d: relative error %g", c->heads, c->kv_heads,
					c->head_dim, chunks[k], d);
		}
		/* Steps of few rows give the same bits however they are cut. */
		float *cut = mem_calloc(count, 4);
		run_attention(&gpu, c, qkv, length, 16, a);
		run_attention(&gpu, c, qkv, length, 7, cut);
		assert_memory_equal(a, cut, count * 4);
		for (int rows = 16; rows <= 128; rows += 112) {
			few_rows_each = rows == 128;
			run_attention(&gpu, c, qkv, length, rows, a);
			d = side_distance(a, b, count);
			if (d > 2e-4)
				fail_msg("%d heads, %d KV heads of %d, %d rows: relative error %g", c->heads, c->kv_heads,
					c->head_dim, rows, d);
		}
		few_rows_each = 0;
		mem_free(cut);
		mem_free(qkv);
		mem_free(a);
		mem_free(b);
	}
}

/* Splits of more tokens than a block takes in one pass. */
static void attention_agrees_over_a_long_context(void **state)
{
	static const struct attention_case c = {2, 1, 64, 0, KN_KV_F16};
	enum { LENGTH = 4500 };
	size_t count = (size_t)LENGTH * (size_t)(c.heads * c.head_dim);
	float *qkv = side_normals(60, (size_t)LENGTH * (size_t)((c.heads + 2 * c.kv_heads) * c.head_dim));
	float *a = mem_calloc(count, 4), *b = mem_calloc(count, 4);
	run_attention(&gpu, &c, qkv, LENGTH, 100, a);
	run_attention(&gpu, &c, qkv, LENGTH, 128, b);
	assert_memory_equal(a, b, count * 4);
	run_attention(&cpu, &c, qkv, LENGTH, 1000, b);
	double d = side_distance(a, b, count);
	if (d > 2e-4)
		fail_msg("relative error %g", d);
	mem_free(qkv);
	mem_free(a);
	mem_free(b);
}

/* Sequences whose last tokens come in one step. */
struct mixed_step {
	int n_sequences;
	int spans[13][2]; /* the step's tokens of each, [begin, end), after the ones before were fed on their own */
	bool backwards; /* last sequence first */
};

static int rows_of(const struct mixed_step *step)
{
	int n = 0;
	for (int s = 0; s < step->n_sequences; s++)
		n += step->spans[s][1] - step->spans[s][0];
	return n;
}

/* Lines of qkv of all sequences, one sequence after the other. */
static int lines_of(const struct mixed_step *step)
{
	int n = 0;
	for (int s = 0; s < step->n_sequences; s++)
		n += step->spans[s][1];
	return n;
}

/* Runs the step, and before it steps of at most MIXED_ROWS that feed what comes before. out: that many rows; the step's are the
 * first. */
enum { MIXED_ROWS = 1000 };
static void run_mixed(
	const struct side *side, const struct attention_case *c, const float *qkv, const struct mixed_step *step, float *out)
{
	enum { SLOT_BLOCKS = 100 };
	struct err err = {0};
	size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
	       attended = (size_t)c->heads * (size_t)c->head_dim;
	size_t cache_bytes = (size_t)BLOCKS * (size_t)c->kv_heads * KN_KV_BLOCK_TOKENS * (size_t)c->head_dim * 4;
	int32_t table[13 * SLOT_BLOCKS] = {0}, map[64], positions[MIXED_ROWS], slots[MIXED_ROWS];
	for (int s = 0, used = 0; s < step->n_sequences; s++)
		for (int i = 0; i <= step->spans[s][1] / KN_KV_BLOCK_TOKENS; i++, used++)
			table[s * SLOT_BLOCKS + i] = (int32_t)(1 + (used * 37) % (BLOCKS - 1));
	for (int i = 0; i < c->heads; i++)
		map[i] = i * c->kv_heads / c->heads;
	size_t rope_bytes = (size_t)(SLOT_BLOCKS * KN_KV_BLOCK_TOKENS * c->head_dim) * 4;
	float *rope = mem_calloc(rope_bytes, 1), *lines = mem_calloc(MIXED_ROWS * width, 4);
	kn_rope_table_fill(rope, SLOT_BLOCKS * KN_KV_BLOCK_TOKENS, c->head_dim, 10000, NULL);
	float *dq = side_put(side, NULL, MIXED_ROWS * width * 4), *dout = side_put(side, NULL, MIXED_ROWS * attended * 4);
	int32_t *dpositions = side_put(side, NULL, sizeof positions), *dslots = side_put(side, NULL, sizeof slots);
	struct kn_attention args = {.n_heads = c->heads,
		.n_kv_heads = c->kv_heads,
		.head_dim = c->head_dim,
		.qkv = dq,
		.out = dout,
		.positions = dpositions,
		.slots = dslots,
		.kv_head_of_head = side_put(side, map, sizeof map),
		.uniform_groups = 1,
		.k_cache = side_put(side, NULL, cache_bytes),
		.v_cache = side_put(side, NULL, cache_bytes),
		.kv_type = c->kv_type,
		.block_tables = side_put(side, table, sizeof table),
		.block_table_stride = SLOT_BLOCKS,
		.rope_cos_sin = side_put(side, rope, rope_bytes),
		.rope_interleaved = c->interleaved,
		.scale = 1.0f / sqrtf((float)c->head_dim),
		.few_rows_each = few_rows_each};
	int n = 0, n_last = rows_of(step);
	for (int pass = 0; pass < 2; pass++)
		for (int k = 0; k < step->n_sequences; k++) {
			const int s = step->backwards ? step->n_sequences - 1 - k : k, *span = step->spans[s];
			int line = 0;
			for (int before = 0; before < s; before++)
				line += step->spans[before][1];
			for (int i = pass == 0 ? 0 : span[0]; i < span[pass]; i++) {
				positions[n] = i;
				slots[n] = s;
				memcpy(lines + (size_t)n++ * width, qkv + (size_t)(line + i) * width, width * 4);
				if (n < MIXED_ROWS && (pass == 0 ? i + 1 < span[0] : n < n_last))
					continue;
				side_ok(side->kn->to_device(side->backend, dq, lines, (size_t)n * width * 4, &err), &err);
				side_ok(side->kn->to_device(side->backend, dpositions, positions, (size_t)n * 4, &err), &err);
				side_ok(side->kn->to_device(side->backend, dslots, slots, (size_t)n * 4, &err), &err);
				side_ok(side->kn->attention(side->backend, &args, n, &err), &err);
				side_ok(side->kn->to_host(side->backend, out, dout, (size_t)n * attended * 4, &err), &err);
				n = 0;
			}
		}
	side->kn->release(side->backend, (void *)args.kv_head_of_head, sizeof map);
	side->kn->release(side->backend, args.k_cache, cache_bytes);
	side->kn->release(side->backend, args.v_cache, cache_bytes);
	side->kn->release(side->backend, (void *)args.block_tables, sizeof table);
	side->kn->release(side->backend, (void *)args.rope_cos_sin, rope_bytes);
	side->kn->release(side->backend, dq, MIXED_ROWS * width * 4);
	side->kn->release(side->backend, dout, MIXED_ROWS * attended * 4);
	side->kn->release(side->backend, dpositions, sizeof positions);
	side->kn->release(side->backend, dslots, sizeof slots);
	mem_free(rope);
	mem_free(lines);
}

static void attention_agrees_for_steps_of_several_sequences(void **state)
{
	static const struct attention_case cases[] = {
		{32, 8, 128, 0, KN_KV_F16},
		{9, 3, 64, 1, KN_KV_F16},
		{8, 8, 96, 1, KN_KV_F16},
	};
	static const struct mixed_step steps[] = {
		{3, {{0, 300}, {17, 18}, {100, 170}}, false}, /* a prefill, a decoded row, a chunk after a prefix */
		{3, {{15, 16}, {16, 17}, {127, 300}}, false}, /* block edges */
		{3, {{0, 33}, {128, 129}, {255, 257}}, false}, /* few rows */
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		for (size_t k = i % every; k < sizeof steps / sizeof steps[0]; k += every) {
			const struct attention_case *c = &cases[i];
			size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
			       attended = (size_t)c->heads * (size_t)c->head_dim, count = (size_t)rows_of(&steps[k]) * attended;
			float *qkv = side_normals(40 + i, (size_t)lines_of(&steps[k]) * width),
			      *a = mem_calloc(MIXED_ROWS * attended, 4), *b = mem_calloc(MIXED_ROWS * attended, 4);
			run_mixed(&cpu, c, qkv, &steps[k], b);
			run_mixed(&gpu, c, qkv, &steps[k], a);
			double d = side_distance(a, b, count);
			if (d > 1e-3)
				fail_msg("%d heads of %d, step %d: relative error %g", c->heads, c->head_dim, (int)k, d);
			mem_free(qkv);
			mem_free(a);
			mem_free(b);
		}
}

/* So many rows that a warp has one to itself: of few keys and of several splits, at the edges of blocks and of splits, one and
 * several of a sequence; and a row's bits do not depend on its place in the step. */
static void attention_of_many_rows_agrees_and_has_the_same_bits_in_any_order(void **state)
{
	static const struct attention_case cases[] = {
		{8, 8, 128, 0, KN_KV_F16},
		{32, 8, 64, 1, KN_KV_F16},
		{8, 8, 96, 1, KN_KV_F16},
		{8, 8, 256, 0, KN_KV_F16},
	};
	struct mixed_step step = {13,
		{{0, 12}, {15, 17}, {100, 116}, {255, 265}, {500, 520}, {511, 514}, {40, 41}, {1400, 1410}, {600, 616}, {200, 219},
			{31, 33}, {700, 716}, {5, 6}},
		false};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += every) {
		const struct attention_case *c = &cases[i];
		size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
		       attended = (size_t)c->heads * (size_t)c->head_dim;
		float *qkv = side_normals(80 + i, (size_t)lines_of(&step) * width), *a = mem_calloc(MIXED_ROWS * attended, 4),
		      *b = mem_calloc(MIXED_ROWS * attended, 4);
		assert_int_equal(rows_of(&step), 128);
		step.backwards = false;
		run_mixed(&cpu, c, qkv, &step, b);
		for (few_rows_each = 0; few_rows_each < 2; few_rows_each++) {
			run_mixed(&gpu, c, qkv, &step, a);
			double d = side_distance(a, b, 128 * attended);
			if (d > 2e-4)
				fail_msg("%d heads of %d, told %d: relative error %g", c->heads, c->head_dim, few_rows_each, d);
		}
		few_rows_each = 1;
		step.backwards = true;
		run_mixed(&gpu, c, qkv, &step, b);
		for (int s = 0, at = 0, end = 128; s < step.n_sequences; s++) {
			const int n = step.spans[s][1] - step.spans[s][0];
			end -= n;
			assert_memory_equal(a + (size_t)at * attended, b + (size_t)end * attended, (size_t)n * attended * 4);
			at += n;
		}
		few_rows_each = 0;
		mem_free(qkv);
		mem_free(a);
		mem_free(b);
	}
}

static int setup(void **state)
{
	struct kn_options options = {.threads = every > 1 ? 1 : 2, .rows_max = 1024, .cols_max = 14336};
	side_open(&cpu, &options);
	side_open(&gpu, &options);
	return 0;
}

/* usage: test_attention_cuda [few | pattern of test names] */
int main(int argc, char **argv)
{
	every = side_every(argc, argv);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attention_agrees_for_steps_of_several_sequences),
		cmocka_unit_test(attention_of_many_rows_agrees_and_has_the_same_bits_in_any_order),
		cmocka_unit_test(attention_agrees_whole_in_chunks_and_step_by_step),
		cmocka_unit_test(attention_agrees_over_a_long_context),
	};
	return cmocka_run_group_tests(tests, setup, NULL);
}
