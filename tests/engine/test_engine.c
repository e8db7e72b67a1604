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

#define RUNS 12

static char model_path[TINY_PATH_BYTES];
static struct bed_run *plain; /* [RUNS] texts of the plainest engine, one request at a time */

static void shape_run(struct bed_run *run, int i)
{
	static const size_t prompts[RUNS] = {1, 2, 15, 16, 17, 33, 64, 65, 90, 100, 130, 140};
	bed_run_init(run, (uint64_t)i / 2, prompts[i], 60); /* pairs of prompts with a common beginning */
	run->sampling.temperature = i % 2 ? 1.0 : 0;
	run->sampling.top_k = i % 4 == 3 ? 20 : 0;
	run->sampling.top_p = i % 3 == 2 ? 0.9 : 1;
	run->sampling.logprobs = i == 5 ? 3 : -1;
}

static int set_up(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct engine_options options;
	tiny_model_write_temp(&model, model_path);
	bed_options(model_path, &options);
	options.graph_max_bs = 0;
	options.prefix_cache = false;
	options.chunk_tokens = 512;
	options.max_num_seqs = 1;
	struct engine *engine = bed_open(&options, NULL);
	plain = mem_calloc(RUNS, sizeof *plain);
	for (int i = 0; i < RUNS; i++) {
		shape_run(&plain[i], i);
		bed_run(engine, &plain[i]);
	}
	engine_destroy(engine);
	return 0;
}

static int tear_down(void **state)
{
	mem_free(plain);
	unlink(model_path);
	return 0;
}

static void check_idle(const struct engine *engine)
{
	assert_int_equal((int)bed_metric(engine, "verdict_running"), 0);
	assert_int_equal((int)bed_metric(engine, "verdict_waiting"), 0);
	assert_int_equal((int)bed_metric(engine, "verdict_kv_blocks{state=\"used\"}"), 0);
}

static void check_text(const struct bed_run *run, int i, const char *what)
{
	if (run->n_tokens != plain[i].n_tokens || memcmp(run->tokens, plain[i].tokens, run->n_tokens * sizeof *run->tokens) != 0)
		fail_msg("%s: text %d differs from the one made plainly (%zu and %zu tokens)", what, i, run->n_tokens, plain[i].n_tokens);
	assert_memory_equal(run->logprobs, plain[i].logprobs, run->n_tokens * sizeof *run->logprobs);
}

/* All runs, one after the other or together, repeats times; then nothing is held. */
static void check_all(const struct engine_options *options, const char *what, bool together, int repeats)
{
	struct engine *engine = bed_open(options, NULL);
	struct bed_run *runs = mem_calloc(RUNS, sizeof *runs);
	for (int k = 0; k < repeats; k++) {
		for (int i = 0; i < RUNS; i++) {
			shape_run(&runs[i], i);
			bed_submit(engine, &runs[i]);
			if (!together)
				bed_wait(&runs[i]);
		}
		for (int i = 0; i < RUNS; i++) {
			bed_wait(&runs[i]);
			check_text(&runs[i], i, what);
			assert_int_equal(runs[i].result.finish, FINISH_LENGTH);
			assert_int_equal(runs[i].result.completion_tokens, 60);
		}
	}
	check_idle(engine);
	mem_free(runs);
	engine_destroy(engine);
}

static struct engine_options defaults(void)
{
	struct engine_options options;
	bed_options(model_path, &options);
	return options;
}

static void the_plain_texts_are_worth_comparing(void **state)
{
	for (int i = 0; i < RUNS; i++) {
		assert_int_equal(plain[i].n_tokens, 60);
		int distinct = 0;
		for (int k = 1; k < 60; k++)
			distinct += plain[i].tokens[k] != plain[i].tokens[k - 1];
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
		struct bed_run *runs = mem_calloc(2 * RUNS, sizeof *runs);
		for (int i = 0; i < 2 * RUNS; i++) {
			shape_run(&runs[i], i % RUNS);
			bed_submit(engine, &runs[i]);
		}
		for (int i = 0; i < 2 * RUNS; i++) {
			bed_wait(&runs[i]);
			check_text(&runs[i], i % RUNS, "preempted");
		}
		assert_true(bed_metric(engine, "verdict_preemptions_total") > 0);
		check_idle(engine);
		mem_free(runs);
		engine_destroy(engine);
	}
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
	int32_t done = count - (int32_t)plain[oracle_run].n_prompt;
	for (int32_t i = 0; i < max; i++) {
		bool wrong = oracle_mode == ORACLE_WRONG || (oracle_mode == ORACLE_THIRD_WRONG && i % 3 == 2);
		out[i] = plain[oracle_run].tokens[done + i] ^ (int32_t)wrong;
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
	shape_run(run, i);
	bed_run(engine, run);
	check_text(run, i, "oracle");
	assert_int_equal((int)bed_metric(engine, "verdict_spec_draft_tokens_total"), run->result.drafted);
	assert_int_equal((int)bed_metric(engine, "verdict_spec_accepted_tokens_total"), run->result.accepted);
	assert_int_equal((int)bed_metric(engine, "verdict_spec_drafts_total"), run->result.verify_steps);
	check_idle(engine);
	engine_destroy(engine);
}

static void a_right_drafter_makes_six_tokens_a_step(void **state)
{
	for (int i = 0; i < RUNS; i++) {
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
	for (int i = 0; i < RUNS; i += 3) {
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

	struct bed_run kept = plain[0];
	plain[0] = longer; /* drafts run over the end token */
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
	check_idle(engine);
	engine_destroy(engine);
	plain[0] = kept;
}

/* --- Cancelling, refusing, churning ---------------------------------------------------------------------------------- */

static void a_cancelled_request_ends_once_and_frees_its_blocks(void **state)
{
	struct engine_options options = defaults();
	options.speculation = "ngram";
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run run, other;
	shape_run(&other, 9);
	bed_submit(engine, &other);
	shape_run(&run, 8);
	run.cancel_after = 7;
	bed_run(engine, &run);
	assert_int_equal(run.result.finish, FINISH_CANCELLED);
	assert_true(run.n_tokens >= 7 && run.n_tokens < 20);
	assert_int_equal(run.result.completion_tokens, run.n_tokens);
	bed_wait(&other);
	check_text(&other, 9, "beside a cancelled one");
	engine_cancel(engine, run.id); /* long gone */
	engine_cancel(engine, 123456);
	check_idle(engine);
	assert_int_equal((int)bed_metric(engine, "verdict_requests_total{finish=\"cancelled\"}"), 1);
	engine_destroy(engine);
}

static void two_hundred_requests_cancelled_anywhere_leave_nothing_behind(void **state)
{
	enum { COUNT = 200 };
	struct engine_options options = defaults();
	options.speculation = "ngram";
	options.max_model_len = 208;
	options.chunk_tokens = 24;
	options.mem_budget = bed_budget_for(&options, 20);
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run *runs = mem_calloc(COUNT, sizeof *runs);
	double total = bed_metric(engine, "verdict_kv_blocks{state=\"free\"}");
	assert_int_equal((int)total, 20);
	for (int i = 0; i < COUNT; i++) {
		uint64_t seed = random_below(5, 0, (uint64_t)i, 10);
		bed_run_init(&runs[i], seed, 1 + random_below(5, 1, (uint64_t)i, 150), 1 + (int)random_below(5, 2, (uint64_t)i, 50));
		runs[i].sampling.temperature = i % 2;
		uint64_t fate = random_below(5, 3, (uint64_t)i, 4);
		runs[i].cancel_after = fate == 1 ? 1 + i % 9 : 0;
		bed_submit(engine, &runs[i]);
		if (fate == 2)
			engine_cancel(engine, runs[random_below(5, 4, (uint64_t)i, (uint64_t)i + 1)].id);
		if (i % 50 == 49)
			engine_flush_cache(engine);
	}
	int cancelled = 0;
	for (int i = 0; i < COUNT; i++) {
		bed_wait(&runs[i]);
		assert_true(runs[i].result.finish == FINISH_LENGTH || runs[i].result.finish == FINISH_CANCELLED);
		cancelled += runs[i].result.finish == FINISH_CANCELLED;
	}
	assert_in_range(cancelled, 20, COUNT - 20);
	check_idle(engine);
	double free = bed_metric(engine, "verdict_kv_blocks{state=\"free\"}");
	assert_int_equal((int)(free + bed_metric(engine, "verdict_kv_blocks{state=\"cached\"}")), (int)total);
	engine_flush_cache(engine);
	assert_int_equal((int)bed_metric(engine, "verdict_kv_blocks{state=\"free\"}"), (int)total);
	mem_free(runs);
	engine_destroy(engine);
}

/* A prompt given up in the middle, its blocks reused by others, and sent again. */
static void a_prompt_given_up_half_way_is_right_when_sent_again(void **state)
{
	struct engine_options options = defaults();
	options.max_model_len = 208;
	options.chunk_tokens = 4;
	options.mem_budget = bed_budget_for(&options, 14);
	struct engine *engine = bed_open(&options, NULL);
	for (int round = 0; round < 5; round++) {
		struct bed_run quitter, filler, again;
		shape_run(&quitter, 11);
		bed_submit(engine, &quitter);
		engine_cancel(engine, quitter.id);
		bed_wait(&quitter);
		bed_run_init(&filler, 900 + (uint64_t)round, 150, 20);
		bed_run(engine, &filler);
		shape_run(&again, 11);
		bed_run(engine, &again);
		check_text(&again, 11, "sent again");
	}
	check_idle(engine);
	engine_destroy(engine);
}

static void twenty_rounds_of_eviction_leave_texts_as_they_were(void **state)
{
	struct engine_options options = defaults();
	options.max_model_len = 208;
	options.mem_budget = bed_budget_for(&options, 16);
	struct engine *engine = bed_open(&options, NULL);
	for (int round = 0; round < 20; round++) {
		struct bed_run run, pressure;
		int i = round % 2 ? 10 : 8;
		shape_run(&run, i);
		bed_run(engine, &run);
		check_text(&run, i, "churn");
		for (int k = 0; k < 3; k++) {
			bed_run_init(&pressure, 500 + (uint64_t)(round * 3 + k), 140, 2);
			bed_run(engine, &pressure);
		}
	}
	assert_true(bed_metric(engine, "verdict_kv_evictions_total") > 100);
	engine_destroy(engine);
}

static enum status try_submit(struct engine *engine, const struct bed_run *run, struct err *err)
{
	const struct engine_listener none = {0};
	uint64_t id;
	return engine_submit(engine, run->prompt, run->n_prompt, &run->sampling, &none, &id, err);
}

static void requests_that_cannot_be_are_refused_at_once(void **state)
{
	struct engine_options options = defaults();
	options.max_model_len = 96;
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run run;
	bed_run_init(&run, 1, 90, 6);
	bed_run(engine, &run); /* exactly the context */
	assert_int_equal(run.n_tokens, 6);
	const struct { size_t prompt; int answer; } lengths[] = {{90, 7}, {96, 1}, {500, 1}, {1, 2000000000}, {0, 5}, {5, 0}, {5, -3}};
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		bed_run_init(&run, 1, lengths[i].prompt, 1);
		run.sampling.max_tokens = lengths[i].answer;
		struct err err = {0};
		assert_int_equal(try_submit(engine, &run, &err), STATUS_INPUT);
		assert_string_not_equal(err.text, "");
	}
	const struct sampling bad[] = {
		{.temperature = -1, .top_p = 1, .max_tokens = 1, .logprobs = -1}, {.temperature = 0.0 / 0.0, .top_p = 1, .max_tokens = 1, .logprobs = -1},
		{.temperature = 1.0 / 0.0, .top_p = 1, .max_tokens = 1, .logprobs = -1}, {.top_p = 1.1, .max_tokens = 1, .logprobs = -1},
		{.top_p = -0.1, .max_tokens = 1, .logprobs = -1}, {.top_p = 1, .min_p = 2, .max_tokens = 1, .logprobs = -1},
		{.top_p = 1, .top_k = -1, .max_tokens = 1, .logprobs = -1}, {.top_p = 1, .logprobs = 21, .max_tokens = 1},
		{.top_p = 0.0 / 0.0, .max_tokens = 1, .logprobs = -1},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		bed_run_init(&run, 1, 5, 1);
		run.sampling = bad[i];
		assert_int_equal(try_submit(engine, &run, NULL), STATUS_INPUT);
	}
	const int32_t ids[] = {-1, 288, INT32_MAX, INT32_MIN};
	for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
		bed_run_init(&run, 1, 5, 1);
		run.prompt[3] = ids[i];
		assert_int_equal(try_submit(engine, &run, NULL), STATUS_INPUT);
	}
	check_idle(engine);
	engine_destroy(engine);
}

static void a_full_queue_refuses(void **state)
{
	struct engine_options options = defaults();
	options.max_num_seqs = 1;
	options.queue_max = 2;
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run *runs = mem_calloc(40, sizeof *runs);
	int queued = 0, refused = 0;
	for (int i = 0; i < 40 && refused == 0; i++) {
		bed_run_init(&runs[queued], (uint64_t)i, 100, 100);
		const enum status status = try_submit(engine, &runs[queued], NULL); /* nobody listens to this one */
		assert_true(status == STATUS_OK || status == STATUS_UNAVAILABLE);
		refused += status == STATUS_UNAVAILABLE;
		queued += status == STATUS_OK;
	}
	assert_int_equal(refused, 1);
	assert_in_range(queued, 2, 20);
	engine_destroy(engine); /* with requests in every state */
	mem_free(runs);
}

/* --- Facts for clients ----------------------------------------------------------------------------------------------- */

static void logits_are_reported_once_for_each_position(void **state)
{
	struct engine_options options = defaults();
	options.chunk_tokens = 23;
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run last, all;
	for (int round = 0; round < 2; round++) { /* the second finds its prompt cached */
		shape_run(&last, 10);
		last.sampling.logits = ENGINE_LOGITS_LAST;
		bed_run(engine, &last);
		check_text(&last, 10, "last logits");
		assert_int_equal(last.n_logits, 1);
		assert_int_equal(last.result.cached_tokens, round == 0 ? 0 : 128);
		shape_run(&all, 10);
		all.sampling.logits = ENGINE_LOGITS_ALL;
		bed_run(engine, &all);
		check_text(&all, 10, "all logits");
		assert_int_equal(all.n_logits, 130);
		assert_int_equal(all.result.cached_tokens, 0);
		assert_memory_equal(all.last_logits, last.last_logits, 288 * sizeof(float));
	}
	engine_destroy(engine);
}

static void results_and_metrics_add_up(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine = bed_open(&options, NULL);
	assert_true(engine_is_ready(engine));
	assert_int_equal((int)bed_metric(engine, "verdict_generation_tokens_total"), 0); /* the proof does not count */
	struct bed_run run;
	for (int i = 0; i < 3; i++) {
		shape_run(&run, 6);
		bed_run(engine, &run);
	}
	assert_int_equal(run.result.prompt_tokens, 64);
	assert_int_equal(run.result.cached_tokens, 48);
	assert_true(run.result.queued_ns >= 0 && run.result.prefill_ns > 0 && run.result.decode_ns > 0);
	assert_int_equal((int)bed_metric(engine, "verdict_requests_total{finish=\"length\"}"), 3);
	assert_int_equal((int)bed_metric(engine, "verdict_prompt_tokens_total"), 3 * 64);
	assert_int_equal((int)bed_metric(engine, "verdict_generation_tokens_total"), 3 * 60);
	assert_int_equal((int)bed_metric(engine, "verdict_cached_prompt_tokens_total"), 2 * 48);
	assert_int_equal((int)bed_metric(engine, "verdict_steps_total{kind=\"decode\",plan=\"yes\"}"), 3 * 59);
	assert_int_equal((int)bed_metric(engine, "verdict_steps_total{kind=\"prefill\",plan=\"no\"}"), 3);
	assert_int_equal((int)bed_metric(engine, "verdict_steps_total{kind=\"decode\",plan=\"no\"}"), 0);
	assert_true(bed_metric(engine, "verdict_step_seconds_total{phase=\"forward\"}") > 0);
	assert_int_equal((int)bed_metric(engine, "verdict_allreduce_calls_total"), 0);
	engine_destroy(engine);
}

static const char *setting(const struct json *config, const char *name, const char *member)
{
	const struct json *value = json_get(json_get(json_get(config, "settings"), name), member);
	if (!value)
		fail_msg("no settings.%s.%s", name, member);
	return json_text(value);
}

static void config_says_what_is_in_effect_and_why(void **state)
{
	struct engine_options options = defaults();
	options.speculation = "ngram";
	options.graph_max_bs = 3;
	struct engine *engine = bed_open(&options, NULL);
	struct json *config = engine_config_json(engine);
	static const char *const names[] = {"allreduce", "graph_max_bs", "mem_fraction", "speculation", "tp", "threads", "kv_type",
		"max_model_len", "max_num_seqs", "chunk_tokens", "isa", "device", "prefix_cache", "spec_draft_max", "spec_ngram_min",
		"spec_ngram_max", "queue_max", "mem_budget", "tokenizer_pre", "rank_timeout_ms"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		assert_non_null(setting(config, names[i], "requested"));
		assert_string_not_equal(setting(config, names[i], "why"), "");
	}
	assert_string_equal(setting(config, "speculation", "value"), "ngram");
	assert_string_equal(setting(config, "allreduce", "value"), "none");
	assert_string_equal(setting(config, "allreduce", "requested"), "auto");
	assert_string_equal(setting(config, "graph_max_bs", "requested"), "3");
	const struct json *graph = json_get(json_get(json_get(config, "settings"), "graph_max_bs"), "value");
	assert_int_equal((int)json_number(graph, -1), 3);
	assert_int_equal((int)json_number(json_get(json_get(json_get(config, "memory"), "rank_0"), "plans"), -1), 3);
	assert_int_equal((int)json_number(json_at(json_get(config, "rank_pids"), 0), -1), getpid());
	assert_int_equal(json_count(json_get(config, "rank_pids")), 1);
	json_free(config);
	engine_destroy(engine);
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
			shape_run(&run, 4 * i + 1);
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
			snprintf(sample, sizeof sample, "verdict_steps_total{kind=\"%s\",plan=\"%s\"}", kinds[kind / 2], kind % 2 ? "yes" : "no");
			steps += bed_metric(engine, sample);
		}
		assert_true(steps > 0);
		assert_int_equal((int)bed_metric(engine, "verdict_allreduce_calls_total"), (int)(steps * 2 * 2)); /* two a layer */
		assert_true(bed_metric(engine, "verdict_allreduce_bytes_total") >= steps * 4 * 64 * 4);
		assert_true(bed_metric(engine, "verdict_step_seconds_total{phase=\"allreduce\"}") > 0);
		engine_destroy(engine);
	}
}

/* A model whose numbers are broken never becomes ready. */
static void a_model_that_gives_nan_is_refused_at_its_first_token(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct gguf gguf;
	struct err err = {0};
	tiny_model_write_temp(&model, path);
	assert_int_equal(gguf_open(path, &gguf, &err), STATUS_OK);
	long offset = (long)(gguf_find_tensor(&gguf, "output_norm.weight")->data - gguf.map.data);
	gguf_close(&gguf);
	FILE *file = fopen(path, "r+b");
	const float broken = 0.0f / 0.0f;
	assert_true(file && fseek(file, offset, SEEK_SET) == 0 && fwrite(&broken, sizeof broken, 1, file) == 1);
	fclose(file);
	struct engine_options options = defaults();
	options.model_path = path;
	struct engine *engine;
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_INTERNAL);
	assert_non_null(strstr(err.text, "NaN"));
	unlink(path);
}

static void engines_that_cannot_be_are_refused_with_a_code(void **state)
{
	const struct engine_options good = defaults();
	struct engine *engine;
	struct err err = {0};
	struct engine_options options = good;
	options.speculation = "crystal-ball";
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_INPUT);
	assert_null(engine);
	assert_string_equal(err.code, "bad_option");
	options = good;
	options.mem_budget = 1 << 16;
	err = (struct err){0};
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	options = good;
	options.tp = 3; /* of 4 heads and 2 KV heads that works; 64 does not */
	options.tp = 64;
	err = (struct err){0};
	assert_int_not_equal(engine_create(&options, &engine, &err), STATUS_OK);
	assert_string_equal(err.code, "cannot_shard");
	options = good;
	options.model_path = "/nonexistent.gguf";
	assert_int_not_equal(engine_create(&options, &engine, NULL), STATUS_OK);
	assert_null(engine);
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
		cmocka_unit_test(a_right_drafter_makes_six_tokens_a_step),
		cmocka_unit_test(a_wrong_drafter_changes_nothing_but_counters),
		cmocka_unit_test(an_end_token_inside_a_draft_ends_the_text),
		cmocka_unit_test(a_cancelled_request_ends_once_and_frees_its_blocks),
		cmocka_unit_test(two_hundred_requests_cancelled_anywhere_leave_nothing_behind),
		cmocka_unit_test(a_prompt_given_up_half_way_is_right_when_sent_again),
		cmocka_unit_test(twenty_rounds_of_eviction_leave_texts_as_they_were),
		cmocka_unit_test(requests_that_cannot_be_are_refused_at_once),
		cmocka_unit_test(a_full_queue_refuses),
		cmocka_unit_test(logits_are_reported_once_for_each_position),
		cmocka_unit_test(results_and_metrics_add_up),
		cmocka_unit_test(config_says_what_is_in_effect_and_why),
		cmocka_unit_test(two_ranks_give_one_text_through_every_allreduce),
		cmocka_unit_test(a_model_that_gives_nan_is_refused_at_its_first_token),
		cmocka_unit_test(engines_that_cannot_be_are_refused_with_a_code),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
