/* Tests of the engine's dealings with requests and clients: ends, refusals, reports. Texts are compared with plain ones. */
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

static struct engine_options defaults(void)
{
	struct engine_options options;
	bed_options(plain.path, &options);
	return options;
}

/* --- Cancelling, refusing, churning ---------------------------------------------------------------------------------- */

static void a_cancelled_request_ends_once_and_frees_its_blocks(void **state)
{
	struct engine_options options = defaults();
	options.speculation = "ngram";
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run run, other;
	bed_shape(&other, 9);
	bed_submit(engine, &other);
	bed_shape(&run, 8);
	run.cancel_after = 7;
	bed_run(engine, &run);
	assert_int_equal(run.result.finish, FINISH_CANCELLED);
	assert_true(run.n_tokens >= 7 && run.n_tokens < 20);
	assert_int_equal(run.result.completion_tokens, run.n_tokens);
	bed_wait(&other);
	bed_check_text(&plain, &other, 9, "beside a cancelled one");
	engine_cancel(engine, run.id); /* long gone */
	engine_cancel(engine, 123456);
	bed_check_idle(engine);
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
		bed_run_init(
			&runs[i], seed, 1 + random_below(5, 1, (uint64_t)i, 150), 1 + (int)random_below(5, 2, (uint64_t)i, 50));
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
	bed_check_idle(engine);
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
		bed_shape(&quitter, 11);
		bed_submit(engine, &quitter);
		engine_cancel(engine, quitter.id);
		bed_wait(&quitter);
		bed_run_init(&filler, 900 + (uint64_t)round, 150, 20);
		bed_run(engine, &filler);
		bed_shape(&again, 11);
		bed_run(engine, &again);
		bed_check_text(&plain, &again, 11, "sent again");
	}
	bed_check_idle(engine);
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
		bed_shape(&run, i);
		bed_run(engine, &run);
		bed_check_text(&plain, &run, i, "churn");
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
	const struct {
		size_t prompt;
		int answer;
	} lengths[] = {{90, 7}, {96, 1}, {500, 1}, {1, 2000000000}, {0, 5}, {5, 0}, {5, -3}};
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		bed_run_init(&run, 1, lengths[i].prompt, 1);
		run.sampling.max_tokens = lengths[i].answer;
		struct err err = {0};
		assert_int_equal(try_submit(engine, &run, &err), STATUS_INPUT);
		assert_string_not_equal(err.text, "");
	}
	const struct sampling bad[] = {
		{.temperature = -1, .top_p = 1, .max_tokens = 1, .logprobs = -1},
		{.temperature = 0.0 / 0.0, .top_p = 1, .max_tokens = 1, .logprobs = -1},
		{.temperature = 1.0 / 0.0, .top_p = 1, .max_tokens = 1, .logprobs = -1},
		{.top_p = 1.1, .max_tokens = 1, .logprobs = -1},
		{.top_p = -0.1, .max_tokens = 1, .logprobs = -1},
		{.top_p = 1, .min_p = 2, .max_tokens = 1, .logprobs = -1},
		{.top_p = 1, .top_k = -1, .max_tokens = 1, .logprobs = -1},
		{.top_p = 1, .logprobs = 21, .max_tokens = 1},
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
	bed_check_idle(engine);
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
		bed_shape(&last, 10);
		last.sampling.logits = ENGINE_LOGITS_LAST;
		bed_run(engine, &last);
		bed_check_text(&plain, &last, 10, "last logits");
		assert_int_equal(last.n_logits, 1);
		assert_int_equal(last.result.cached_tokens, round == 0 ? 0 : 128);
		bed_shape(&all, 10);
		all.sampling.logits = ENGINE_LOGITS_ALL;
		bed_run(engine, &all);
		bed_check_text(&plain, &all, 10, "all logits");
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
		bed_shape(&run, 6);
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
		"max_model_len", "max_num_seqs", "chunk_tokens", "isa", "device", "prefix_cache", "spec_draft_max",
		"spec_ngram_min", "spec_ngram_max", "queue_max", "mem_budget", "tokenizer_pre", "rank_timeout_ms"};
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_cancelled_request_ends_once_and_frees_its_blocks),
		cmocka_unit_test(two_hundred_requests_cancelled_anywhere_leave_nothing_behind),
		cmocka_unit_test(a_prompt_given_up_half_way_is_right_when_sent_again),
		cmocka_unit_test(twenty_rounds_of_eviction_leave_texts_as_they_were),
		cmocka_unit_test(requests_that_cannot_be_are_refused_at_once),
		cmocka_unit_test(a_full_queue_refuses),
		cmocka_unit_test(logits_are_reported_once_for_each_position),
		cmocka_unit_test(results_and_metrics_add_up),
		cmocka_unit_test(config_says_what_is_in_effect_and_why),
		cmocka_unit_test(a_model_that_gives_nan_is_refused_at_its_first_token),
		cmocka_unit_test(engines_that_cannot_be_are_refused_with_a_code),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
