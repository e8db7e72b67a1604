/* Tests of the whole engine on tiny models: a text depends on prompt, seed and settings of its request, and on nothing else. */
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
#include "engine/commands.h"
#include "tests/support/engine_bed.h"

static struct bed_texts plain;

static int set_up(void **state)
{
	bed_texts_make(&plain);
	return 0;
}

static int tear_down(void **state)
{
	bed_texts_release(&plain);
	return 0;
}

/* All shapes on an engine of these options, one after the other or together, repeats times. */
static void check_all(const struct engine_options *options, const char *what, bool together, int repeats)
{
	struct engine *engine = bed_open(options, NULL);
	for (int k = 0; k < repeats; k++)
		bed_check_all(&plain, engine, what, together);
	engine_destroy(engine);
}

static struct engine_options defaults(void)
{
	struct engine_options options;
	bed_options(plain.path, &options);
	return options;
}

static void the_plain_texts_are_worth_comparing(void **state)
{
	for (int i = 0; i < BED_SHAPES; i++) {
		assert_int_equal(plain.runs[i].n_tokens, 60);
		int distinct = 0;
		for (int k = 1; k < 60; k++)
			distinct += plain.runs[i].tokens[k] != plain.runs[i].tokens[k - 1];
		assert_true(distinct > 10);
	}
}

static void texts_do_not_depend_on_batch_or_plans(void **state)
{
	struct engine_options options = defaults();
	check_all(&options, "together, plans up to 4", true, 1);
	options.graph_max_bs = 0;
	check_all(&options, "together, no plans", true, 1);
	options.graph_max_bs = 32;
	options.max_num_seqs = 3;
	check_all(&options, "three at a time, plans for all", true, 1);
	options.graph_max_bs = 1;
	check_all(&options, "plan for one row", false, 1);
}

static void texts_do_not_depend_on_chunk_or_threads(void **state)
{
	struct engine_options options = defaults();
	for (long long chunk = 1; chunk <= 37; chunk += 12) {
		options.chunk_tokens = chunk;
		check_all(&options, "chunks", true, 1);
	}
	options.threads = 3;
	check_all(&options, "three threads", true, 1);
}

static void texts_do_not_depend_on_prefix_hits(void **state)
{
	struct engine_options options = defaults();
	check_all(&options, "prefix cache", false, 3);
	check_all(&options, "prefix cache, together", true, 3);
	options.prefix_cache = false;
	check_all(&options, "no prefix cache", true, 2);
}

static void texts_do_not_depend_on_speculation(void **state)
{
	struct engine_options options = defaults();
	options.speculation = "ngram";
	options.spec_ngram_min = 1;
	check_all(&options, "ngram", false, 1);
	check_all(&options, "ngram, together", true, 2);
	options.spec_draft_max = 17; /* more drafts than a block has places */
	options.graph_max_bs = 40;
	options.chunk_tokens = 7;
	check_all(&options, "long drafts", true, 2);
}

static void texts_do_not_depend_on_preemption(void **state)
{
	struct engine_options options = defaults();
	options.max_model_len = 208;
	for (int speculate = 0; speculate < 2; speculate++) {
		options.speculation = speculate ? "ngram" : "off";
		options.mem_budget = 64 << 20;
		options.mem_budget = bed_budget_for(&options, 14); /* the longest needs 13 */
		struct engine *engine = bed_open(&options, NULL);
		struct bed_run *runs = mem_calloc(2 * BED_SHAPES, sizeof *runs);
		for (int i = 0; i < 2 * BED_SHAPES; i++) {
			bed_shape(&runs[i], i % BED_SHAPES);
			bed_submit(engine, &runs[i]);
		}
		for (int i = 0; i < 2 * BED_SHAPES; i++) {
			bed_wait(&runs[i]);
			bed_check_text(&plain, &runs[i], i % BED_SHAPES, "preempted");
		}
		assert_true(bed_metric(engine, "verdict_preemptions_total") > 0);
		bed_check_idle(engine);
		mem_free(runs);
		engine_destroy(engine);
	}
}

/* Quantised weights, a prompt of thousands of tokens, a long answer: where state that goes stale slowly would show. */
static void long_texts_of_a_quantised_model_do_not_depend_on_speculation(void **state)
{
	enum { PROMPT = 2600, ANSWER = 300 };
	static int32_t prompt[PROMPT];
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	model.context = 3072;
	model.dtype = DTYPE_Q4_1;
	model.value_dtype = DTYPE_Q4_1;
	model.embedding_dtype = DTYPE_Q8_0;
	tiny_model_write_temp(&model, path);
	for (int i = 0; i < PROMPT; i++)
		prompt[i] = 3 + (int32_t)random_below(9, (uint64_t)(i / 200 % 7), (uint64_t)(i % 200), 200);
	struct bed_run runs[2][2];
	for (int speculate = 0; speculate < 2; speculate++) {
		struct engine_options options = defaults();
		options.model_path = path;
		options.speculation = speculate ? "ngram" : "off";
		options.spec_ngram_min = 1;
		options.chunk_tokens = speculate ? 300 : 512;
		struct engine *engine = bed_open(&options, NULL);
		for (int i = 0; i < 2; i++) {
			struct bed_run *run = &runs[speculate][i];
			bed_run_init(run, 3, 0, ANSWER);
			run->sampling.temperature = i;
			bed_run_long(engine, run, prompt, PROMPT);
			assert_int_equal(run->n_tokens, ANSWER);
		}
		engine_destroy(engine);
	}
	for (int i = 0; i < 2; i++)
		assert_memory_equal(runs[0][i].tokens, runs[1][i].tokens, sizeof runs[0][i].tokens);
	assert_true(runs[1][0].result.drafted > 0);
	unlink(path);
}

/* --- Drafters that know ---------------------------------------------------------------------------------------------- */

/* Replays a plain text, right everywhere, wrong everywhere, or wrong at every third position of a draft. */
enum oracle_mode { ORACLE_RIGHT, ORACLE_WRONG, ORACLE_THIRD_WRONG };
static enum oracle_mode oracle_mode;
static int oracle_run;

static enum status oracle_create(const struct drafter_options *options, struct drafter **out, struct err *err)
{
	*out = (struct drafter *)&oracle_mode; /* any address: it keeps nothing */
	return STATUS_OK;
}

static void oracle_destroy(struct drafter *drafter)
{
}

static void oracle_begin(struct drafter *drafter, int32_t slot)
{
}

static int32_t oracle_draft(struct drafter *drafter, int32_t slot, const int32_t *tokens, int32_t count, int32_t max, int32_t *out)
{
	int32_t done = count - (int32_t)plain.runs[oracle_run].n_prompt;
	for (int32_t i = 0; i < max; i++) {
		bool wrong = oracle_mode == ORACLE_WRONG || (oracle_mode == ORACLE_THIRD_WRONG && i % 3 == 2);
		out[i] = plain.runs[oracle_run].tokens[done + i] ^ (int32_t)wrong;
	}
	return max;
}

static const struct drafter_ops oracle_ops = {
	.name = "oracle", .create = oracle_create, .destroy = oracle_destroy, .begin = oracle_begin, .draft = oracle_draft};

static void run_oracle(enum oracle_mode mode, int i, struct bed_run *run)
{
	struct engine_options options = defaults();
	options.speculation = "ngram"; /* makes room for verify rows */
	options.spec_draft_max = 5;
	options.chunk_tokens = 512; /* a rest of one token would be drafted upon */
	oracle_mode = mode;
	oracle_run = i;
	struct engine *engine = bed_open(&options, &oracle_ops);
	bed_shape(run, i);
	bed_run(engine, run);
	bed_check_text(&plain, run, i, "oracle");
	assert_int_equal((int)bed_metric(engine, "verdict_spec_draft_tokens_total"), run->result.drafted);
	assert_int_equal((int)bed_metric(engine, "verdict_spec_accepted_tokens_total"), run->result.accepted);
	assert_int_equal((int)bed_metric(engine, "verdict_spec_drafts_total"), run->result.verify_steps);
	bed_check_idle(engine);
	engine_destroy(engine);
}

static void a_right_drafter_makes_six_tokens_a_step(void **state)
{
	for (int i = 0; i < BED_SHAPES; i++) {
		struct bed_run run;
		run_oracle(ORACLE_RIGHT, i, &run);
		/* One token from the prompt, a step of four, nine of six, and a last token, where a draft would have no room. */
		assert_int_equal(run.result.verify_steps, 10);
		assert_int_equal(run.result.drafted, 48);
		assert_int_equal(run.result.accepted, 48);
		assert_int_equal(run.n_calls, 12);
	}
}

static void a_wrong_drafter_changes_nothing_but_counters(void **state)
{
	for (int i = 0; i < BED_SHAPES; i += 3) {
		struct bed_run run;
		run_oracle(ORACLE_WRONG, i, &run);
		assert_int_equal(run.result.accepted, 0);
		assert_true(run.result.drafted > 0 && run.result.verify_steps < 20);
		assert_int_equal(run.n_calls, 60); /* no step gave more than a token */
		run_oracle(ORACLE_THIRD_WRONG, i, &run);
		assert_true(run.result.accepted > 30 && run.result.accepted < run.result.drafted);
	}
}

static void an_end_token_inside_a_draft_ends_the_text(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run run, longer;
	/* A random model says the end token now and then at a high temperature: look for a seed where it does, in the middle. */
	uint64_t seed = 0;
	for (; seed < 400; seed++) {
		bed_run_init(&run, 77, 20, 60);
		run.sampling.temperature = 3;
		run.sampling.seed = seed;
		run.sampling.ignore_eos = false;
		bed_run(engine, &run);
		if (run.result.finish == FINISH_STOP && run.n_tokens > 10)
			break;
	}
	assert_int_equal(run.result.finish, FINISH_STOP);
	assert_true(tokenizer_is_end(engine_tokenizer(engine), run.tokens[run.n_tokens - 1]));
	assert_int_equal(run.result.completion_tokens, run.n_tokens);
	longer = run;
	longer.sampling.ignore_eos = true;
	longer.n_tokens = 0;
	atomic_store(&longer.done, 0);
	bed_run(engine, &longer);
	assert_int_equal(longer.n_tokens, 60); /* the same beginning, and on */
	assert_memory_equal(longer.tokens, run.tokens, run.n_tokens * sizeof *run.tokens);
	engine_destroy(engine);

	struct bed_run kept = plain.runs[0];
	plain.runs[0] = longer; /* drafts run over the end token */
	options.speculation = "ngram";
	oracle_mode = ORACLE_RIGHT;
	oracle_run = 0;
	engine = bed_open(&options, &oracle_ops);
	struct bed_run again = run;
	again.n_tokens = 0;
	atomic_store(&again.done, 0);
	bed_run(engine, &again);
	assert_int_equal(again.result.finish, FINISH_STOP);
	assert_int_equal(again.n_tokens, run.n_tokens);
	assert_memory_equal(again.tokens, run.tokens, run.n_tokens * sizeof *run.tokens);
	bed_check_idle(engine);
	engine_destroy(engine);
	plain.runs[0] = kept;
}

/* --- Several ranks --------------------------------------------------------------------------------------------------- */

static const char *setting(const struct json *config, const char *name, const char *member)
{
	const struct json *value = json_get(json_get(json_get(config, "settings"), name), member);
	if (!value)
		fail_msg("no settings.%s.%s", name, member);
	return json_text(value);
}

/* Every allreduce gives the same bits, so two ranks give the same texts through each of them, drafts or not. */
static void two_ranks_give_one_text_through_every_allreduce(void **state)
{
	static const char *const names[] = {"ref-socket", "shm-flag", "shm-lamport", "shm-2shot", "auto"};
	struct bed_run first[3], run;
	for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
		struct engine_options options = defaults();
		options.tp = 2;
		options.allreduce = names[k];
		options.speculation = k % 2 ? "ngram" : "off";
		options.mem_budget = 256 << 20;
		struct engine *engine = bed_open(&options, NULL);
		struct json *config = engine_config_json(engine);
		assert_int_equal(json_count(json_get(config, "rank_pids")), 2);
		assert_int_equal((int)json_number(json_at(json_get(config, "rank_pids"), 0), -1), getpid());
		if (k < 4)
			assert_string_equal(setting(config, "allreduce", "value"), names[k]);
		assert_string_equal(setting(config, "allreduce", "requested"), names[k]);
		json_free(config);
		for (int i = 0; i < 3; i++) {
			bed_shape(&run, 4 * i + 1);
			run.sampling.logprobs = 0;
			bed_run(engine, &run);
			assert_int_equal(run.n_tokens, 60);
			if (k == 0)
				first[i] = run;
			assert_memory_equal(run.tokens, first[i].tokens, sizeof run.tokens);
			assert_memory_equal(run.logprobs, first[i].logprobs, sizeof run.logprobs);
		}
		double steps = 0;
		static const char *const kinds[] = {"decode", "prefill", "mixed"};
		for (int kind = 0; kind < 6; kind++) {
			char sample[64];
			snprintf(sample, sizeof sample, "verdict_steps_total{kind=\"%s\",plan=\"%s\"}", kinds[kind / 2],
				kind % 2 ? "yes" : "no");
			steps += bed_metric(engine, sample);
		}
		assert_true(steps > 0);
		assert_int_equal((int)bed_metric(engine, "verdict_allreduce_calls_total"), (int)(steps * 2 * 2)); /* two a layer */
		assert_true(bed_metric(engine, "verdict_allreduce_bytes_total") >= steps * 4 * 64 * 4);
		assert_true(bed_metric(engine, "verdict_step_seconds_total{phase=\"allreduce\"}") > 0);
		engine_destroy(engine);
	}
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "rank") == 0) { /* this program, started again as another rank */
		struct err err = {0};
		enum status status = cmd_rank(argc - 1, argv + 1, &err);
		if (status != STATUS_OK)
			fprintf(stderr, "%s\n", err.text);
		return status_exit_code(status);
	}
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_plain_texts_are_worth_comparing),
		cmocka_unit_test(texts_do_not_depend_on_batch_or_plans),
		cmocka_unit_test(texts_do_not_depend_on_chunk_or_threads),
		cmocka_unit_test(texts_do_not_depend_on_prefix_hits),
		cmocka_unit_test(texts_do_not_depend_on_speculation),
		cmocka_unit_test(texts_do_not_depend_on_preemption),
		cmocka_unit_test(long_texts_of_a_quantised_model_do_not_depend_on_speculation),
		cmocka_unit_test(a_right_drafter_makes_six_tokens_a_step),
		cmocka_unit_test(a_wrong_drafter_changes_nothing_but_counters),
		cmocka_unit_test(an_end_token_inside_a_draft_ends_the_text),
		cmocka_unit_test(two_ranks_give_one_text_through_every_allreduce),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
