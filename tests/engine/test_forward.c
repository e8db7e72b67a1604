/* Forward pass against a double-precision reference, and the promise that a row's bits depend on nothing but its sequence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/random.h"
#include "tests/support/forward_run.h"
#include "tests/support/reference_llama.h"
#include "tests/support/tiny_gguf.h"

#define LEN 50

static void random_tokens(int32_t *tokens, int count, int vocab, uint64_t seed)
{
	for (int i = 0; i < count; i++)
		tokens[i] = (int32_t)random_below(seed, 7, (uint64_t)i, (uint64_t)vocab);
}

static float *logits_of(const struct forward_run *run, const int32_t *tokens, int n, int vocab)
{
	float *logits = mem_calloc((size_t)n * (size_t)vocab, sizeof *logits);
	struct forward_run one = *run;
	one.n_sequences = 1;
	one.tokens[0] = tokens;
	one.n_tokens[0] = n;
	forward_run(&one, &logits);
	return logits;
}

/* The model in a file, whose path the caller gets and unlinks, LEN tokens for it, and the settings to run it. */
static struct forward_run run_of(const struct tiny_model *model, uint64_t seed, char path[TINY_PATH_BYTES], int32_t tokens[LEN])
{
	tiny_model_write_temp(model, path);
	random_tokens(tokens, LEN, model->vocab, seed);
	return forward_run_default(path);
}

/* Relative error of LEN positions against the reference. */
static double error_of(const struct tiny_model *model, const struct forward_run *settings)
{
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	struct source source = {0};
	struct model_config config;
	tiny_model_write_temp(model, path);
	random_tokens(tokens, LEN, model->vocab, model->seed);
	struct forward_run run = *settings;
	run.path = path;
	float *ours = logits_of(&run, tokens, LEN, model->vocab);
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	double *theirs = mem_calloc((size_t)LEN * (size_t)model->vocab, sizeof *theirs);
	reference_llama_logits(&source, &config, tokens, LEN, theirs);
	double error = reference_relative_error(ours, theirs, (int64_t)LEN * model->vocab);
	source_close(&source);
	mem_free(theirs);
	mem_free(ours);
	unlink(path);
	return error;
}

static void assert_error_below(double error, double bound)
{
	if (!(error < bound))
		fail_msg("relative error %.3g, allowed %.3g", error, bound);
}

static void forward_agrees_with_a_double_reference(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	struct tiny_model model = tiny_model_default();
	assert_error_below(error_of(&model, &run), 1e-4);
	run.kv_type = KN_KV_F16;
	assert_error_below(error_of(&model, &run), 2e-3);
}

static void forward_agrees_for_every_stored_type(void **state)
{
	static const enum dtype types[] = {DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q6_K};
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		struct tiny_model model = tiny_model_default();
		model.hidden = 256;
		model.ffn = 512;
		model.head_dim = 64;
		model.dtype = model.value_dtype = model.embedding_dtype = types[i];
		struct forward_run run = forward_run_default(NULL);
		assert_error_below(error_of(&model, &run), 5e-4);
	}
}

static void forward_agrees_for_unusual_models(void **state)
{
	struct forward_run run = forward_run_default(NULL);
	struct tiny_model tied = tiny_model_default(), factors = tied, linear = tied, many = tied, mixed = tied;
	tied.tied = true;
	assert_error_below(error_of(&tied, &run), 1e-4);
	factors.rope_factors = true;
	assert_error_below(error_of(&factors, &run), 1e-4);
	linear.rope_scaling = "linear";
	assert_error_below(error_of(&linear, &run), 1e-4);
	many.n_heads = many.n_kv_heads = 6;
	many.head_dim = 24; /* 144 wide beside a hidden size of 64 */
	assert_error_below(error_of(&many, &run), 1e-4);
	mixed.hidden = mixed.ffn = 256;
	mixed.head_dim = 64;
	mixed.dtype = DTYPE_Q4_K;
	mixed.value_dtype = mixed.embedding_dtype = DTYPE_Q6_K;
	assert_error_below(error_of(&mixed, &run), 5e-4);
}

static const char *const families[] = {"llama", "qwen2", "qwen3"};
#define N_FAMILIES (sizeof families / sizeof families[0])

static void forward_agrees_for_every_family(void **state)
{
	for (size_t i = 0; i < N_FAMILIES; i++) {
		struct tiny_model model = tiny_model_default();
		model.architecture = families[i];
		model.head_dim = 24;
		for (int threads = 1; threads <= 3; threads += 2) {
			struct forward_run run = forward_run_default(NULL);
			run.threads = threads;
			run.graph_max_bs = threads == 3 ? 16 : 0;
			assert_error_below(error_of(&model, &run), 1e-4);
		}
	}
}

/* ---- bits ---- */

static void assert_same_bits(const float *a, const float *b, int64_t count, const char *what)
{
	for (int64_t i = 0; i < count; i++)
		if (memcmp(&a[i], &b[i], sizeof *a) != 0)
			fail_msg("%s: value %lld is %.9g, expected %.9g", what, (long long)i, (double)a[i], (double)b[i]);
}

static struct tiny_model quantised_model(void)
{
	struct tiny_model model = tiny_model_default();
	model.dtype = DTYPE_Q4_1;
	model.value_dtype = DTYPE_Q4_0;
	model.embedding_dtype = DTYPE_Q8_0;
	model.head_dim = 32; /* one block, so that ranks may own single heads */
	return model;
}

static void a_rows_bits_do_not_depend_on_chunks_plans_or_threads(void **state)
{
	static const struct {
		int chunk, graph_max_bs, threads;
		enum kn_kv_type kv_type;
	} cases[] = {
		{1, 0, 1, KN_KV_F16},
		{1, 4, 1, KN_KV_F16},
		{3, 0, 2, KN_KV_F16},
		{3, 4, 2, KN_KV_F16},
		{7, 3, 3, KN_KV_F16},
		{50, 0, 3, KN_KV_F16},
		{50, 64, 2, KN_KV_F16},
	};
	struct tiny_model model = quantised_model();
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	struct forward_run run = run_of(&model, 3, path, tokens);
	run.kv_type = KN_KV_F16;
	float *expected = logits_of(&run, tokens, LEN, model.vocab);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char what[64];
		snprintf(what, sizeof what, "chunk %d, plans to %d, %d threads", cases[i].chunk, cases[i].graph_max_bs,
			cases[i].threads);
		run.chunk = cases[i].chunk;
		run.graph_max_bs = cases[i].graph_max_bs;
		run.threads = cases[i].threads;
		float *logits = logits_of(&run, tokens, LEN, model.vocab);
		assert_same_bits(logits, expected, (int64_t)LEN * model.vocab, what);
		mem_free(logits);
	}
	mem_free(expected);
	unlink(path);
}

static void a_rows_bits_do_not_depend_on_its_neighbours(void **state)
{
	struct tiny_model model = quantised_model();
	char path[TINY_PATH_BYTES];
	int32_t tokens[3][LEN];
	float *together[3], *alone;
	const int lengths[3] = {LEN, 17, 33};
	tiny_model_write_temp(&model, path);
	struct forward_run run = forward_run_default(path);
	run.chunk = 5;
	run.n_sequences = 3;
	run.graph_max_bs = 12; /* the last steps have plans, the first have not */
	for (int s = 0; s < 3; s++) {
		random_tokens(tokens[s], lengths[s], model.vocab, 20 + (uint64_t)s);
		together[s] = mem_calloc((size_t)(lengths[s] * model.vocab), sizeof(float));
		run.tokens[s] = tokens[s];
		run.n_tokens[s] = lengths[s];
	}
	forward_run(&run, together);
	for (int s = 0; s < 3; s++) {
		struct forward_run single = forward_run_default(path);
		alone = logits_of(&single, tokens[s], lengths[s], model.vocab);
		assert_same_bits(together[s], alone, (int64_t)lengths[s] * model.vocab, "three sequences in one step");
		mem_free(alone);
		mem_free(together[s]);
	}
	unlink(path);
}

static void logits_of_few_rows_are_those_of_all(void **state)
{
	struct tiny_model model = quantised_model();
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	struct forward_run run = run_of(&model, 3, path, tokens);
	float *all = logits_of(&run, tokens, LEN, model.vocab);
	run.last_only = true;
	run.chunk = LEN;
	run.graph_max_bs = LEN; /* has a plan for the row count, which is not used: not every row asks */
	float *last = logits_of(&run, tokens, LEN, model.vocab);
	int64_t at = (int64_t)(LEN - 1) * model.vocab;
	assert_same_bits(last + at, all + at, model.vocab, "last row alone");
	mem_free(all);
	mem_free(last);
	unlink(path);
}

static int n_told[2]; /* attention of steps where not every row asks, and where each does */

static enum status attention_that_counts(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	n_told[args->few_rows_each]++;
	return kn_cpu_ops.attention(backend, args, n_rows, err);
}

static void attention_is_told_whether_every_row_asks(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct kn_ops ops = kn_cpu_ops;
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	struct forward_run run = run_of(&model, 4, path, tokens);
	ops.attention = attention_that_counts;
	run.kn = &ops;
	run.chunk = LEN;
	for (int planned = 0; planned < 2; planned++)
		for (int all = 0; all < 2; all++) {
			run.graph_max_bs = planned ? LEN : 0;
			run.last_only = !all;
			n_told[0] = n_told[1] = 0;
			mem_free(logits_of(&run, tokens, LEN, model.vocab));
			if (!planned)
				assert_int_equal(n_told[!all], 0);
			assert_true(n_told[all] > 0); /* plans are recorded with 1 */
			assert_true(all || n_told[0] == model.n_layers);
		}
	unlink(path);
}

/* ---- ranks ---- */

static void ranks_agree_with_one_rank(void **state)
{
	static const int worlds[] = {2, 3, 4, 9};
	struct tiny_model model = tiny_model_default();
	model.n_heads = 9;
	model.n_kv_heads = 3;
	model.ffn = 320; /* 10 blocks of 32 */
	model.dtype = DTYPE_Q8_0;
	model.hidden = 96;
	model.head_dim = 32;
	for (size_t family = 0; family < N_FAMILIES; family++) {
		model.architecture = families[family];
		model.tied = family == 1;
		for (size_t i = 0; i < sizeof worlds / sizeof worlds[0]; i++) {
			struct forward_run run = forward_run_default(NULL);
			run.world = worlds[i];
			run.graph_max_bs = i % 2 ? 16 : 0;
			assert_error_below(error_of(&model, &run), 2e-4);
		}
	}
}

static void every_allreduce_gives_the_same_bits(void **state)
{
	struct tiny_model model = quantised_model();
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	tiny_model_write_temp(&model, path);
	random_tokens(tokens, LEN, model.vocab, 3);
	float *expected = NULL;
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct forward_run run = forward_run_default(path);
		run.world = 3;
		run.allreduce = comm_cpu_backends[i]->name;
		run.graph_max_bs = i % 2 ? 16 : 0;
		float *logits = logits_of(&run, tokens, LEN, model.vocab);
		if (expected)
			assert_same_bits(logits, expected, (int64_t)LEN * model.vocab, run.allreduce);
		mem_free(expected);
		expected = logits;
	}
	mem_free(expected);
	unlink(path);
}

/* ---- memory ---- */

static void check_memory(const char *family)
{
	struct tiny_model model = quantised_model();
	char path[TINY_PATH_BYTES];
	model.architecture = family;
	tiny_model_write_temp(&model, path);
	struct source source = {0};
	struct model_config config;
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	float *logits = mem_calloc((size_t)(8 * model.vocab), sizeof *logits);
	for (int world = 1; world <= 3; world++) {
		struct forward_options options = {
			.kn = &kn_cpu_ops,
			.kn_options = {.threads = 2},
			.limits = {.rows_max = 24, .slots_max = 8, .blocks_per_slot_max = 16, .logits_max = 8},
			.rank = world - 1,
			.world = world,
			.kv_type = KN_KV_F16,
			.graph_max_bs = 100,
			.n_blocks = 40,
			.logits = logits,
		};
		struct forward *forward = NULL;
		struct forward_memory needed, held;
		assert_int_equal(forward_memory_needed(&source, &config, &options, &needed, NULL), STATUS_OK);
		assert_int_equal(forward_create(&source, &config, &options, &forward, NULL), STATUS_OK);
		forward_memory(forward, &held);
		assert_int_equal(held.weights, needed.weights);
		assert_int_equal(held.workspace, needed.workspace);
		assert_int_equal(held.kv, 40 * needed.kv);
		assert_in_range(held.plans, 1, needed.plans);
		assert_int_equal(forward_plans_count(forward), 8); /* no step has more rows that all ask for logits */
		forward_destroy(forward);
	}
	mem_free(logits);
	source_close(&source);
	unlink(path);
}

static void memory_held_is_what_was_foretold(void **state)
{
	for (size_t i = 0; i < N_FAMILIES; i++)
		check_memory(families[i]);
}

/* --- a recording that fails ------------------------------------------------------------------------------------------ */

static int n_recording; /* begun and not ended */

static enum status counting_plan_begin(struct kn_backend *backend, struct err *err)
{
	n_recording++;
	return kn_cpu_ops.plan_begin(backend, err);
}

static enum status counting_plan_end(struct kn_backend *backend, struct kn_plan **out, struct err *err)
{
	n_recording--;
	return kn_cpu_ops.plan_end(backend, out, err);
}

static enum status attention_that_cannot_be_recorded(
	struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	return n_recording > 0 && n_rows == 3 ? err_set(err, STATUS_UNAVAILABLE, "no third row")
					      : kn_cpu_ops.attention(backend, args, n_rows, err);
}

static void a_recording_is_ended_when_an_operation_fails(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct kn_ops ops = kn_cpu_ops;
	char path[TINY_PATH_BYTES];
	struct source source = {0};
	struct model_config config;
	struct forward *forward = NULL;
	struct err err = {0};
	tiny_model_write_temp(&model, path);
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	ops.plan_begin = counting_plan_begin;
	ops.plan_end = counting_plan_end;
	ops.attention = attention_that_cannot_be_recorded;
	float *logits = mem_calloc((size_t)(8 * model.vocab), sizeof *logits);
	const struct forward_options options = {
		.kn = &ops,
		.kn_options = {.threads = 1},
		.limits = {.rows_max = 8, .slots_max = 8, .blocks_per_slot_max = 4, .logits_max = 8},
		.world = 1,
		.kv_type = KN_KV_F32,
		.graph_max_bs = 8,
		.n_blocks = 10,
		.logits = logits,
	};
	assert_int_equal(forward_create(&source, &config, &options, &forward, &err), STATUS_UNAVAILABLE);
	assert_string_equal(err.text, "step plan for 3 rows: no third row");
	assert_int_equal(n_recording, 0);
	mem_free(logits);
	source_close(&source);
	unlink(path);
}

static enum status backend_that_nobody_asked_for(const struct kn_options *options, struct kn_backend **out, struct err *err)
{
	return err_set(err, STATUS_INTERNAL, "made a backend");
}

/* A size that the CPU does not take and a GPU would, by key and by division. */
static void head_sizes_without_a_kernel_are_refused_before_anything_is_made(void **state)
{
	static const struct {
		const char *without_key, *expected;
	} cases[] = {
		{NULL,
			"key 'llama.attention.key_length' is 20, and device 'cpu' computes only with head sizes that are multiples "
			"of 8 up to 256"},
		{"llama.attention.key_length",
			"embedding_length / attention.head_count is 20, and device 'cpu' computes only with head sizes that are "
			"multiples of 8 up to 256"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct tiny_model model = tiny_model_default();
		struct kn_ops ops = kn_cpu_ops;
		char path[TINY_PATH_BYTES];
		struct source source = {0};
		struct model_config config;
		struct forward *forward = NULL;
		struct forward_memory needed;
		struct err err = {0}, plan_err = {0};
		model.hidden = 80;
		model.head_dim = 20;
		model.without_key = cases[i].without_key;
		tiny_model_write_temp(&model, path);
		assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
		assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
		ops.create = backend_that_nobody_asked_for;
		struct forward_options options = {.kn = &ops,
			.limits = {.rows_max = 1, .slots_max = 1, .blocks_per_slot_max = 1, .logits_max = 1},
			.world = 1,
			.n_blocks = 2};
		assert_int_equal(forward_memory_needed(&source, &config, &options, &needed, &plan_err), STATUS_INPUT);
		assert_string_equal(plan_err.text, cases[i].expected);
		assert_string_equal(plan_err.code, "unsupported_model");
		assert_int_equal(forward_create(&source, &config, &options, &forward, &err), STATUS_INPUT);
		assert_string_equal(err.text, cases[i].expected);
		ops.head_dim_step = 2;
		assert_int_equal(forward_memory_needed(&source, &config, &options, &needed, NULL), STATUS_OK);
		ops.head_dim_max = 18;
		assert_int_equal(forward_memory_needed(&source, &config, &options, &needed, NULL), STATUS_INPUT);
		source_close(&source);
		unlink(path);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forward_agrees_with_a_double_reference),
		cmocka_unit_test(forward_agrees_for_every_stored_type),
		cmocka_unit_test(forward_agrees_for_unusual_models),
		cmocka_unit_test(forward_agrees_for_every_family),
		cmocka_unit_test(a_rows_bits_do_not_depend_on_chunks_plans_or_threads),
		cmocka_unit_test(a_rows_bits_do_not_depend_on_its_neighbours),
		cmocka_unit_test(logits_of_few_rows_are_those_of_all),
		cmocka_unit_test(attention_is_told_whether_every_row_asks),
		cmocka_unit_test(ranks_agree_with_one_rank),
		cmocka_unit_test(every_allreduce_gives_the_same_bits),
		cmocka_unit_test(memory_held_is_what_was_foretold),
		cmocka_unit_test(a_recording_is_ended_when_an_operation_fails),
		cmocka_unit_test(head_sizes_without_a_kernel_are_refused_before_anything_is_made),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
