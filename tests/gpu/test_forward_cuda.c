/* Whole forward passes on the GPU against the double-precision reference: one row a step, a few, many, eager and from plans. */
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

#define LEN 150 /* more than attention decodes row by row */
#define BOUND_ONE_ROW 2e-3 /* keys, values and copies of block-quantised weights in fp16 */
#define BOUND_ROWS 1e-2 /* activations in the weights' type, bf16 at worst */

static size_t every = 1; /* every so many-th case runs: more than 1 for a tool that watches every access */

struct case_of_model {
	char path[TINY_PATH_BYTES];
	int32_t tokens[LEN];
	int vocab;
	double *expected; /* [LEN][vocab] */
};

static void make_case(const struct tiny_model *model, struct case_of_model *out)
{
	struct source source = {0};
	struct model_config config;
	out->vocab = model->vocab;
	for (int i = 0; i < LEN; i++)
		out->tokens[i] = (int32_t)random_below(model->seed, 7, (uint64_t)i, (uint64_t)model->vocab);
	tiny_model_write_temp(model, out->path);
	assert_int_equal(source_open(out->path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	out->expected = mem_calloc((size_t)LEN * (size_t)model->vocab, sizeof *out->expected);
	reference_llama_logits(&source, &config, out->tokens, LEN, out->expected);
	source_close(&source);
}

static void release_case(struct case_of_model *c)
{
	unlink(c->path);
	mem_free(c->expected);
}

/* Logits of n_tokens positions in steps of chunk rows. Caller frees. */
static float *logits_of(const struct case_of_model *c, int n_tokens, int chunk, int graph_max_bs, enum kn_kv_type kv_type)
{
	struct forward_run run = forward_run_default(c->path);
	float *logits = mem_calloc((size_t)n_tokens * (size_t)c->vocab, sizeof *logits);
	run.kn = &kn_cuda_ops;
	run.chunk = chunk;
	run.graph_max_bs = graph_max_bs;
	run.kv_type = kv_type;
	run.n_sequences = 1;
	run.tokens[0] = c->tokens;
	run.n_tokens[0] = n_tokens;
	forward_run(&run, &logits);
	return logits;
}

/* Their relative error. */
static double error_of(const struct case_of_model *c, int n_tokens, int chunk, int graph_max_bs, enum kn_kv_type kv_type)
{
	float *logits = logits_of(c, n_tokens, chunk, graph_max_bs, kv_type);
	double error = reference_relative_error(logits, c->expected, (int64_t)n_tokens * c->vocab);
	mem_free(logits);
	return error;
}

/* The smallest whose heads there are kernels for, and whose matrices every type fits. */
static struct tiny_model small_model(int head_dim)
{
	struct tiny_model model = tiny_model_default();
	model.hidden = 256;
	model.ffn = 512;
	model.head_dim = head_dim;
	return model;
}

static const enum dtype stored_types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_1, DTYPE_Q6_K};
#define N_STORED_TYPES (sizeof stored_types / sizeof stored_types[0])

static void make_typed_case(enum dtype type, struct case_of_model *out)
{
	struct tiny_model model = small_model(64);
	model.dtype = model.value_dtype = model.embedding_dtype = type;
	make_case(&model, out);
}

static void assert_error_below(double error, double bound, const char *what)
{
	if (!(error < bound))
		fail_msg("%s: relative error %.3g, allowed %.3g", what, error, bound);
}

static void forward_agrees_for_every_stored_type_and_size_of_step(void **state)
{
	for (size_t i = 0; i < N_STORED_TYPES; i += every) {
		struct case_of_model c;
		make_typed_case(stored_types[i], &c);
		assert_error_below(error_of(&c, 20, 1, 0, KN_KV_F16), BOUND_ONE_ROW, dtype_name(stored_types[i]));
		assert_error_below(error_of(&c, 20, 1, 1, KN_KV_F16), BOUND_ONE_ROW, dtype_name(stored_types[i]));
		assert_error_below(error_of(&c, 40, 7, 7, KN_KV_F16), BOUND_ROWS, dtype_name(stored_types[i]));
		assert_error_below(error_of(&c, 40, 16, 0, KN_KV_F32), BOUND_ROWS, dtype_name(stored_types[i]));
		assert_error_below(error_of(&c, LEN, LEN, 0, KN_KV_F16), BOUND_ROWS, dtype_name(stored_types[i]));
		release_case(&c);
	}
}

static void forward_agrees_for_every_family(void **state)
{
	static const char *const families[] = {"llama", "qwen2", "qwen3"};
	for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
		struct tiny_model model = small_model(128);
		struct case_of_model c;
		model.architecture = families[i];
		make_case(&model, &c);
		assert_error_below(error_of(&c, 20, 1, 0, KN_KV_F32), BOUND_ONE_ROW, families[i]);
		assert_error_below(error_of(&c, 20, 1, 1, KN_KV_F32), BOUND_ONE_ROW, families[i]);
		assert_error_below(error_of(&c, 40, 7, 7, KN_KV_F32), BOUND_ROWS, families[i]);
		assert_error_below(error_of(&c, LEN, LEN, 0, KN_KV_F16), BOUND_ROWS, families[i]);
		release_case(&c);
	}
}

/* Those of no tensor core kernel take the plain one, of fp16 keys and values too. */
static void forward_agrees_for_heads_of_any_even_size(void **state)
{
	static const int sizes[] = {16, 24, 32, 48, 80, 112, 160, 192};
	for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += every) {
		struct tiny_model model = tiny_model_default();
		struct case_of_model c;
		char name[32];
		snprintf(name, sizeof name, "heads of %d", sizes[i]);
		model.head_dim = sizes[i];
		make_case(&model, &c);
		assert_error_below(error_of(&c, 20, 1, 1, KN_KV_F16), BOUND_ONE_ROW, name);
		assert_error_below(error_of(&c, 40, 7, 0, KN_KV_F32), BOUND_ROWS, name);
		assert_error_below(error_of(&c, LEN, LEN, 0, KN_KV_F16), BOUND_ROWS, name);
		release_case(&c);
	}
}

static void a_step_has_the_same_bits_from_a_plan_and_as_it_comes(void **state)
{
	static const int chunks[] = {1, 2, 7, 24};
	enum { TOKENS = 48 };
	for (size_t i = 0; i < N_STORED_TYPES; i += every) {
		struct case_of_model c;
		make_typed_case(stored_types[i], &c);
		for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
			int n = TOKENS / chunks[k] * chunks[k];
			float *planned = logits_of(&c, n, chunks[k], chunks[k], KN_KV_F16),
			      *eager = logits_of(&c, n, chunks[k], 0, KN_KV_F16);
			if (memcmp(planned, eager, (size_t)n * (size_t)c.vocab * sizeof *eager) != 0)
				fail_msg(
					"%s: steps of %d rows have other bits from a plan", dtype_name(stored_types[i]), chunks[k]);
			mem_free(planned);
			mem_free(eager);
		}
		release_case(&c);
	}
}

static void forward_refuses_head_sizes_without_a_kernel(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct case_of_model c;
	model.head_dim = 264;
	struct source source = {0};
	struct model_config config;
	struct forward *forward = NULL;
	struct err err = {0};
	float logits[288];
	make_case(&model, &c);
	assert_int_equal(source_open(c.path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	struct forward_options options = {
		.kn = &kn_cuda_ops, .limits = {1, 1, 2, 1}, .world = 1, .graph_max_bs = 1, .n_blocks = 3, .logits = logits};
	assert_int_equal(forward_create(&source, &config, &options, &forward, &err), STATUS_INPUT);
	assert_non_null(
		strstr(err.text, "is 264, and device 'cuda' computes only with head sizes that are multiples of 2 up to 256"));
	source_close(&source);
	release_case(&c);
}

/* usage: test_forward_cuda [few] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(forward_agrees_for_every_stored_type_and_size_of_step),
		cmocka_unit_test(forward_agrees_for_every_family),
		cmocka_unit_test(forward_agrees_for_heads_of_any_even_size),
		cmocka_unit_test(a_step_has_the_same_bits_from_a_plan_and_as_it_comes),
		cmocka_unit_test(forward_refuses_head_sizes_without_a_kernel),
	};
	if (argc > 1 && strcmp(argv[1], "few") == 0)
		every = 3;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
