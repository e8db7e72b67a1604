/* The real model on a GPU: logits and greedy text against transformers, text and perplexity against the CPU engine. The model does
 * not travel with the tests; where it is not (VERDICT_MODEL, models/), every test is skipped. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/perplexity.h"
#include "tests/support/engine_bed.h"
#include "tests/support/golden_logits.h"
#include "tests/support/real_model.h"
#include "tests/support/requantise.h"

/* Largest distance of logits that may come out in another order. */
#define NEAR_TIE 0.25
#define TEXT_BYTES_MAX ((size_t)64 << 10)
#define ANSWER 64
#define PERPLEXITY_DIFFERENCE 5e-4 /* relative, GPU against CPU; measured on two machines: -7.7e-5 to 8e-5 */

/* Twice what was measured on H200s for one row and for many, or more where builds differed: 1.6e-3 and 3.3e-3 (Q4_1), 1.5e-3
 * and 2.8e-3 (Q8_0), 2.3e-3 and 2.8e-3 (Q4_0), 3.5e-4 and 9.6e-3 (BF16), 5.5e-4 and 1.3e-3 (F16); fp16 keys and values are part of
 * it. Several rows of bf16 weights round their activations to bf16: up to 1.7e-2 in steps of four rows; this model's first position
 * has values 20000 times the others'. */
static const struct {
	const char *name;
	enum dtype dtype; /* DTYPE_Q4_1: the file as it is */
	struct golden_bounds one_row, rows;
} types[] = {
	{"Q4_1", DTYPE_Q4_1, {4e-3, 0.05}, {8e-3, 0.12}},
	{"Q8_0", DTYPE_Q8_0, {4e-3, 0.05}, {8e-3, 0.12}},
	{"Q4_0", DTYPE_Q4_0, {5e-3, 0.05}, {8e-3, 0.12}},
	{"BF16", DTYPE_BF16, {2e-3, 0.02}, {5e-2, 0.5}},
	{"F16", DTYPE_F16, {2e-3, 0.02}, {8e-3, 0.12}},
};
#define TYPES (sizeof types / sizeof types[0])

static const struct golden_bounds bounds_of_f32 = {1e-5, 2e-4}; /* measured: 2.2e-6, 3.2e-5 */
/* transformers in bf16 is 4.6e-2 and 0.25 from itself in fp32 on the same weights (one of the four prompts; 9e-3 on the others);
 * measured here: 4.5e-2 and 0.25 for one row, 5.3e-2 and 0.29 for many. */
static const struct golden_bounds bounds_to_bf16 = {7e-2, 0.5};

/* What is missing with the model is counted as skipped, so that a run without it does not look like one with it. */
static void need_model(void)
{
	if (!real_model_exists())
		skip();
}

static struct forward_run run_on_gpu(const char *path, int chunk, int graph_max_bs)
{
	struct forward_run run = forward_run_default(path);
	run.kn = &kn_cuda_ops;
	run.chunk = chunk;
	run.graph_max_bs = graph_max_bs;
	run.kv_type = KN_KV_F16;
	return run;
}

static void check_type(size_t i, const char *path, const struct json *root, const struct json *holder)
{
	struct text what = {0};
	struct forward_run one = run_on_gpu(path, 1, 1), rows = run_on_gpu(path, 256, 0);
	one.n_sequences = 1;
	text_printf(&what, "%s, one row a step", types[i].name);
	golden_logits_check(text_str(&what), &one, root, holder, types[i].one_row);
	text_clear(&what);
	text_printf(&what, "%s, 256 rows a step", types[i].name);
	golden_logits_check(text_str(&what), &rows, root, holder, types[i].rows);
	text_release(&what);
}

static void logits_agree_with_transformers(void **state)
{
	need_model();
	struct json *root = golden_logits_open("logits.json");
	check_type(0, real_model_path(), root, root);
	json_free(root);
}

static void logits_of_other_weight_types_agree_with_transformers(void **state)
{
	need_model();
	struct json *root = golden_logits_open("types.json");
	for (size_t i = 1; i < TYPES; i++) {
		const struct json *golden_type = json_at(json_get(root, "types"), i - 1);
		struct requantised file = requantise(real_model_path(), types[i].dtype);
		assert_string_equal(json_text(json_get(golden_type, "type")), types[i].name);
		assert_string_equal(file.digest, json_text(json_get(golden_type, "digest")));
		check_type(i, file.path, root, golden_type);
		requantised_release(&file);
	}
	json_free(root);
}

/* The model requantised to dtype, in steps of one row and of 256. golden: of the texts in `texts`. */
static void check_requantised(enum dtype dtype, enum kn_kv_type kv_type, const char *name, const struct json *texts,
	const struct json *golden, struct golden_bounds bounds)
{
	struct requantised file = requantise(real_model_path(), dtype);
	struct forward_run one = run_on_gpu(file.path, 1, 1), rows = run_on_gpu(file.path, 256, 0);
	char what[80];
	one.kv_type = rows.kv_type = kv_type;
	one.n_sequences = 1;
	snprintf(what, sizeof what, "%s, one row a step", name);
	golden_logits_check(what, &one, texts, golden, bounds);
	snprintf(what, sizeof what, "%s, 256 rows a step", name);
	golden_logits_check(what, &rows, texts, golden, bounds);
	requantised_release(&file);
}

/* All in fp32: weights, keys and values. */
static void logits_in_fp32_agree_with_transformers_in_fp32(void **state)
{
	need_model();
	struct json *root = golden_logits_open("logits.json");
	check_requantised(DTYPE_F32, KN_KV_F32, "F32", root, root, bounds_of_f32);
	json_free(root);
}

/* The same bf16 weights, computed in bf16 there: what lies between them and us is their rounding of every product. */
static void logits_of_bf16_weights_agree_with_transformers_in_bf16(void **state)
{
	need_model();
	struct json *root = golden_logits_open("types.json");
	check_requantised(DTYPE_BF16, KN_KV_F16, "BF16 and bf16 transformers", root, json_get(root, "bf16"), bounds_to_bf16);
	json_free(root);
}

static void greedy_text_is_that_of_transformers_but_for_near_ties(void **state)
{
	need_model();
	struct json *root = golden_logits_open("logits.json");
	int vocab = (int)json_int(json_get(root, "vocab"), 0);
	const struct json *cases = json_get(root, "cases");
	const struct forward_run one = run_on_gpu(real_model_path(), 1, 1), rows = run_on_gpu(real_model_path(), 64, 0);
	for (size_t c = 0; c < json_count(cases); c++)
		if (json_count(json_get(json_at(cases, c), "greedy"))) {
			golden_logits_check_greedy(&one, json_at(cases, c), vocab, NEAR_TIE);
			golden_logits_check_greedy(&rows, json_at(cases, c), vocab, NEAR_TIE);
		}
	json_free(root);
}

/* ---- beside the CPU engine ---- */

static struct engine *open_engine(const char *device)
{
	struct engine_options options;
	bed_options(real_model_path(), &options);
	options.device = device;
	options.threads = 0;
	options.mem_budget_text = NULL;
	options.mem_budget = 0;
	options.mem_fraction = "auto";
	options.max_num_seqs = 2;
	options.max_model_len = 1024;
	options.kv_type = "f16";
	return bed_open(&options, NULL);
}

/* The CPU's text is fed to the GPU, so that one near tie does not end the comparison; returns how many choices differ. */
static int count_other_choices(const struct bed_run *text, int vocab)
{
	static int32_t ids[BED_TOKENS_MAX * 2];
	struct forward_run run = run_on_gpu(real_model_path(), 1, 1);
	int n = (int)(text->n_prompt + text->n_tokens), other = 0;
	float *logits = mem_calloc((size_t)n * (size_t)vocab, sizeof *logits);
	memcpy(ids, text->prompt, text->n_prompt * sizeof ids[0]);
	memcpy(ids + text->n_prompt, text->tokens, text->n_tokens * sizeof ids[0]);
	run.n_sequences = 1;
	run.tokens[0] = ids;
	run.n_tokens[0] = n;
	forward_run(&run, &logits);
	for (size_t i = 0; i < text->n_tokens; i++) {
		const float *row = logits + (text->n_prompt + i - 1) * (size_t)vocab;
		int32_t best = 0;
		for (int32_t id = 1; id < vocab; id++)
			best = row[id] > row[best] ? id : best;
		other += best != text->tokens[i];
		if (row[best] - row[text->tokens[i]] > (float)NEAR_TIE)
			fail_msg("choice %zu is %d, on the CPU %d, by %g", i, best, text->tokens[i],
				(double)(row[best] - row[text->tokens[i]]));
	}
	mem_free(logits);
	return other;
}

static void greedy_text_is_that_of_the_cpu_but_for_near_ties(void **state)
{
	need_model();
	struct json *root = golden_logits_open("logits.json");
	const struct json *cases = json_get(root, "cases");
	struct bed_run *text = mem_calloc(1, sizeof *text);
	struct engine *cpu = open_engine("cpu");
	int other = 0, choices = 0;
	for (size_t c = 0; c < json_count(cases); c++) {
		static int32_t ids[GOLDEN_TOKENS_MAX];
		int n = golden_logits_ids(json_get(json_at(cases, c), "ids"), ids);
		if (n > BED_TOKENS_MAX)
			continue;
		bed_run_init(text, 0, (size_t)n, ANSWER);
		memcpy(text->prompt, ids, (size_t)n * sizeof ids[0]);
		bed_run(cpu, text);
		other += count_other_choices(text, (int)json_int(json_get(root, "vocab"), 0));
		choices += (int)text->n_tokens;
	}
	print_message("%d of %d choices differ, each a near tie\n", other, choices);
	assert_true(other <= choices / 100); /* measured on two machines: 0 and 1 of 576 */
	engine_destroy(cpu);
	mem_free(text);
	json_free(root);
}

static double perplexity_on(struct engine *engine, const char *path)
{
	struct text text = {0};
	struct token_list ids = {0};
	struct perplexity result;
	struct err err = {0};
	if (file_read(path, TEXT_BYTES_MAX, &text, &err) != STATUS_OK ||
		tokenizer_encode(engine_tokenizer(engine), text_str(&text), text.len, false, &ids, &err) != STATUS_OK ||
		perplexity_run(engine, ids.ids, ids.count, 512, &result, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	token_list_release(&ids);
	text_release(&text);
	return result.perplexity;
}

static void perplexity_is_that_of_the_cpu(void **state)
{
	static const char *const paths[] = {"tests/golden/text/prose.txt", "tests/golden/text/code.txt"};
	need_model();
	struct engine *cpu = open_engine("cpu"), *gpu = open_engine("cuda");
	for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
		double theirs = perplexity_on(cpu, paths[i]), ours = perplexity_on(gpu, paths[i]);
		print_message(
			"%s: perplexity %.5f, on the CPU %.5f (%+.4f %%)\n", paths[i], ours, theirs, 100 * (ours / theirs - 1));
		assert_true(fabs(ours / theirs - 1) < PERPLEXITY_DIFFERENCE);
	}
	engine_destroy(gpu);
	engine_destroy(cpu);
}

/* usage: test_smollm2_cuda [few] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_agree_with_transformers),
		cmocka_unit_test(logits_of_other_weight_types_agree_with_transformers),
		cmocka_unit_test(logits_in_fp32_agree_with_transformers_in_fp32),
		cmocka_unit_test(logits_of_bf16_weights_agree_with_transformers_in_bf16),
		cmocka_unit_test(greedy_text_is_that_of_transformers_but_for_near_ties),
		cmocka_unit_test(greedy_text_is_that_of_the_cpu_but_for_near_ties),
		cmocka_unit_test(perplexity_is_that_of_the_cpu),
	};
	if (argc > 1 && strcmp(argv[1], "few") == 0)
		cmocka_set_test_filter("logits_agree_with_transformers");
	if (!real_model_exists())
		print_message("the real model is not here (models/, VERDICT_MODEL): every test is skipped\n");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
