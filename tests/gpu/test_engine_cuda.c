/* The whole engine on a GPU: with --deterministic a text, and every logit on its way, has the same bits alone and in any batch,
 * from plans and without, in chunks of any length, with speculation and without; drafts are verified from plans; memory plans say
 * which way to move. How close the default mode stays is in test_forward_cuda.c, test_families_cuda.c and test_smollm2_cuda.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/engine_state.h"
#include "tests/support/engine_bed.h"
#include "tests/support/forward_run.h"

#define RUNS 12
#define ANSWER 80
#define LEN 300 /* more than attention takes at once in any way */

static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16, DTYPE_F32};
#define TYPES (sizeof types / sizeof types[0])
static size_t n_types = TYPES;
static bool few; /* for a tool that watches every access */
static char paths[TYPES][TINY_PATH_BYTES];

static int set_up(void **state)
{
	for (size_t i = 0; i < TYPES; i++) {
		struct tiny_model model = tiny_model_default();
		model.hidden = 256;
		model.ffn = 512;
		model.head_dim = 64;
		model.context = 512;
		model.dtype = model.value_dtype = model.embedding_dtype = types[i];
		tiny_model_write_temp(&model, paths[i]);
	}
	return 0;
}

static int tear_down(void **state)
{
	for (size_t i = 0; i < TYPES; i++)
		unlink(paths[i]);
	return 0;
}

/* --- logits ----------------------------------------------------------------------------------------------------------- */

static void run_forward(const char *path, int chunk, int graph_max_bs, int n_sequences, float *const *logits)
{
	struct forward_run run = forward_run_default(path);
	static int32_t tokens[4][LEN];
	run.kn = &kn_cuda_ops;
	run.chunk = chunk;
	run.graph_max_bs = graph_max_bs;
	run.kv_type = KN_KV_F16;
	run.deterministic = true;
	run.n_sequences = n_sequences;
	for (int s = 0; s < n_sequences; s++) {
		for (int i = 0; i < LEN; i++)
			tokens[s][i] = (int32_t)random_below(3, (uint64_t)s, (uint64_t)i, 288);
		run.tokens[s] = tokens[s];
		run.n_tokens[s] = s == 0 ? LEN : LEN / (s + 1);
	}
	forward_run(&run, logits);
}

static void logits_have_the_same_bits_however_a_text_is_cut(void **state)
{
	static const struct {
		int chunk, graph_max_bs, n_sequences;
	} cuts[] = {{1, 1, 1}, {7, 0, 1}, {7, 16, 1}, {16, 16, 1}, {61, 64, 1}, {LEN, 0, 1}, {5, 32, 4}, {40, 0, 3}};
	for (size_t t = 0; t < n_types; t++) {
		float *expected = mem_calloc((size_t)LEN * 288, sizeof *expected), *logits[4];
		for (int s = 0; s < 4; s++)
			logits[s] = mem_calloc((size_t)LEN * 288, sizeof(float));
		run_forward(paths[t], 1, 0, 1, &expected);
		for (size_t i = few ? 2 : 0; i < sizeof cuts / sizeof cuts[0]; i += few ? 3 : 1) {
			memset(logits[0], 0, (size_t)LEN * 288 * sizeof(float));
			run_forward(paths[t], cuts[i].chunk, cuts[i].graph_max_bs, cuts[i].n_sequences, logits);
			for (size_t k = 0; k < (size_t)LEN * 288; k++)
				if (memcmp(&logits[0][k], &expected[k], sizeof(float)) != 0)
					fail_msg("%s, chunk %d, plans to %d, %d sequences: logit %zu of position %zu is %a, alone "
						 "%a",
						dtype_name(types[t]), cuts[i].chunk, cuts[i].graph_max_bs, cuts[i].n_sequences,
						k % 288, k / 288, (double)logits[0][k], (double)expected[k]);
		}
		for (int s = 0; s < 4; s++)
			mem_free(logits[s]);
		mem_free(expected);
	}
}

/* --- texts ------------------------------------------------------------------------------------------------------------ */

static struct engine_options options_for(const char *path)
{
	struct engine_options options;
	bed_options(path, &options);
	options.device = "cuda";
	options.mem_budget_text = NULL;
	options.mem_budget = 0;
	options.mem_fraction = "auto";
	options.max_num_seqs = RUNS;
	options.deterministic = true;
	return options;
}

static void shape(struct bed_run *run, int i)
{
	static const size_t prompts[RUNS] = {1, 2, 15, 16, 17, 33, 64, 65, 90, 100, 140, 200};
	bed_run_init(run, (uint64_t)i, prompts[i], ANSWER);
	run->sampling.temperature = i % 3 == 0 ? 0 : 0.9;
	run->sampling.top_p = i % 3 == 1 ? 0.8 : 1;
	run->sampling.top_k = i % 3 == 2 ? 30 : 0;
	run->sampling.logprobs = i % 4 == 3 ? 0 : -1;
}

static void run_all(const struct engine_options *options, bool together, struct bed_run *runs)
{
	struct engine *engine = bed_open(options, NULL);
	assert_string_equal(engine->setup.rank.device, "cuda");
	for (int i = 0; i < RUNS; i++) {
		shape(&runs[i], i);
		bed_submit(engine, &runs[i]);
		if (!together)
			bed_wait(&runs[i]);
	}
	for (int i = 0; i < RUNS; i++) {
		bed_wait(&runs[i]);
		assert_int_equal(runs[i].result.finish, FINISH_LENGTH);
		assert_int_equal(runs[i].n_tokens, ANSWER);
	}
	bed_check_idle(engine);
	engine_destroy(engine);
}

static void check_same(const struct bed_run *plain, const struct bed_run *runs, const char *what)
{
	for (int i = 0; i < RUNS; i++) {
		if (memcmp(plain[i].tokens, runs[i].tokens, ANSWER * sizeof plain[i].tokens[0]) != 0)
			fail_msg("%s: text %d is another one", what, i);
		assert_memory_equal(plain[i].logprobs, runs[i].logprobs, ANSWER * sizeof plain[i].logprobs[0]);
	}
}

static void deterministic_texts_depend_on_nothing_but_their_request(void **state)
{
	struct bed_run *plain = mem_calloc(RUNS, sizeof *plain), *runs = mem_calloc(RUNS, sizeof *runs);
	for (size_t t = 0; t < n_types; t++) {
		struct engine_options options = options_for(paths[t]);
		options.graph_max_bs = 0;
		run_all(&options, false, plain);
		run_all(&options, true, runs);
		check_same(plain, runs, "together, eager");
		options.graph_max_bs = 32;
		if (few)
			continue;
		run_all(&options, false, runs);
		check_same(plain, runs, "alone, from plans");
		run_all(&options, true, runs);
		check_same(plain, runs, "together, from plans");
		options.run_ahead = "off";
		options.chunk_tokens = 24;
		run_all(&options, true, runs);
		check_same(plain, runs, "together, short chunks, not run ahead");
		options.speculation = "ngram";
		options.spec_ngram_min = 1;
		run_all(&options, false, runs);
		check_same(plain, runs, "alone, speculation");
		run_all(&options, true, runs);
		check_same(plain, runs, "together, speculation");
	}
	mem_free(plain);
	mem_free(runs);
}

static void speculation_verifies_from_plans(void **state)
{
	struct engine_options options = options_for(paths[0]);
	struct bed_run run;
	options.speculation = "ngram";
	options.spec_ngram_min = 1;
	options.graph_max_bs = 16;
	struct engine *engine = bed_open(&options, NULL);
	bed_run_init(&run, 1, 100, 200);
	for (int i = 0; i < 100; i++)
		run.prompt[i] = 3 + i % 5;
	bed_run(engine, &run);
	assert_true(bed_metric(engine, "verdict_spec_draft_tokens_total") > 0);
	assert_true(bed_metric(engine, "verdict_step_seconds_total{phase=\"verify\"}") > 0);
	assert_true(bed_metric(engine, "verdict_steps_total{kind=\"decode\",plan=\"no\"}") == 0);
	engine_destroy(engine);
}

/* Everything that is on one GPU and can fail in its memory plan says which way to move. */
static void memory_plans_of_the_gpu_say_which_way_to_move(void **state)
{
	struct engine_options options = options_for(paths[0]);
	struct engine *engine;
	struct err err = {0};
	options.deterministic = false;
	options.mem_fraction = "0.0001";
	options.mem_budget_text = "1GiB";
	options.mem_budget = 1 << 30;
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	assert_non_null(strstr(err.text, "raise --mem-fraction to 0."));
	err_clear(&err);
	options.mem_budget_text = "64TiB"; /* more than any GPU has */
	options.mem_budget = (long long)64 << 40;
	options.mem_fraction = "1";
	options.max_num_seqs = 4096;
	options.max_model_len = 512;
	options.graph_max_bs = 4;
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_OK); /* the pool is what sequences can use */
	engine_destroy(engine);
}

/* usage: test_engine_cuda [few] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_have_the_same_bits_however_a_text_is_cut),
		cmocka_unit_test(deterministic_texts_depend_on_nothing_but_their_request),
		cmocka_unit_test(speculation_verifies_from_plans),
		cmocka_unit_test(memory_plans_of_the_gpu_say_which_way_to_move),
	};
	few = argc > 1 && strcmp(argv[1], "few") == 0;
	if (few)
		n_types = 1;
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
