/* The engine on a device of its own that samples by itself, whose next step begins before the tokens of the one under way are
 * known: texts are those of the plain engine on the CPU, whatever ends, stops or makes way in between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/device.h"
#include "engine/engine_state.h"
#include "engine/plan_sizes.h"
#include "tests/support/device_twin.h"
#include "tests/support/engine_bed.h"

/* This program's GPU. */
static uint64_t memory_free = 1 << 30;

bool device_has_cuda(void)
{
	return true;
}

const struct kn_ops *device_ops(const char *name)
{
	return strcmp(name, "cuda") == 0 ? &device_twin_ops : &kn_cpu_ops;
}

enum status device_gpu_memory(uint64_t *total, uint64_t *free_now, struct err *err)
{
	*total = 1 << 30;
	*free_now = memory_free;
	return STATUS_OK;
}

void device_gpu_others(char *out, size_t out_bytes)
{
	snprintf(out, out_bytes, "pid 7 (python3) 512 MiB");
}

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
	options.device = "cuda";
	return options;
}

static void check_options(const struct engine_options *options, const char *what)
{
	struct engine *engine = bed_open(options, NULL);
	assert_string_equal(engine->setup.rank.device, "cuda");
	bed_check_all(&plain, engine, what, false);
	bed_check_all(&plain, engine, what, true);
	engine_destroy(engine);
}

static void texts_are_those_of_the_plain_engine(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine = bed_open(&options, NULL);
	assert_true(engine->setup.run_ahead);
	engine_destroy(engine);
	check_options(&options, "run ahead");
	options.run_ahead = "off";
	check_options(&options, "not run ahead");
}

static void texts_do_not_depend_on_plans_or_chunks(void **state)
{
	struct engine_options options = defaults();
	static const long long caps[] = {0, 1, 3, 32};
	for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++) {
		options.graph_max_bs = caps[i];
		options.chunk_tokens = 7 + 20 * (long long)i;
		check_options(&options, "plans");
	}
}

static void texts_do_not_depend_on_preemption(void **state)
{
	struct engine_options options = defaults();
	options.mem_budget = bed_budget_for(&options, 18);
	struct engine *engine = bed_open(&options, NULL);
	bed_check_all(&plain, engine, "preemption", true);
	assert_true(bed_metric(engine, "verdict_preemptions_total") > 0);
	engine_destroy(engine);
}

static void speculation_waits_for_the_tokens_it_drafts_from(void **state)
{
	struct engine_options options = defaults();
	options.speculation = "ngram";
	options.spec_ngram_min = 1;
	struct engine *engine = bed_open(&options, NULL);
	assert_false(engine->setup.run_ahead);
	bed_check_all(&plain, engine, "ngram", false);
	bed_check_all(&plain, engine, "ngram, together", true);
	assert_true(bed_metric(engine, "verdict_spec_accepted_tokens_total") > 0);
	engine_destroy(engine);
}

/* The first end token of a run's plain text that is not its first token. */
static void end_tokens_end_a_text_though_its_next_step_has_begun(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run *runs = mem_calloc(8, sizeof *runs), alone;
	bool ended = false;
	for (int i = 0; i < 8; i++) {
		bed_run_init(&runs[i], (uint64_t)(100 + i), 20, 200);
		runs[i].sampling.temperature = 3; /* so that an end token comes soon */
		runs[i].sampling.ignore_eos = false;
		bed_submit(engine, &runs[i]);
	}
	for (int i = 0; i < 8; i++) {
		bed_wait(&runs[i]);
		for (size_t k = 0; k < runs[i].n_tokens; k++)
			assert_int_equal(tokenizer_is_end(engine_tokenizer(engine), runs[i].tokens[k]),
				runs[i].result.finish == FINISH_STOP && k + 1 == runs[i].n_tokens);
		ended = ended || runs[i].result.finish == FINISH_STOP;
	}
	assert_true(ended);
	bed_check_idle(engine);
	engine_destroy(engine);
	options.device = "cpu";
	engine = bed_open(&options, NULL);
	for (int i = 0; i < 8; i++) {
		bed_run_init(&alone, (uint64_t)(100 + i), 20, 200);
		alone.sampling = runs[i].sampling;
		bed_run(engine, &alone);
		assert_int_equal(alone.n_tokens, runs[i].n_tokens);
		assert_memory_equal(alone.tokens, runs[i].tokens, alone.n_tokens * sizeof alone.tokens[0]);
	}
	engine_destroy(engine);
	mem_free(runs);
}

static void cancelled_requests_leave_the_others_as_they_are(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine = bed_open(&options, NULL);
	struct bed_run *runs = mem_calloc(BED_SHAPES, sizeof *runs);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < BED_SHAPES; i++) {
			bed_shape(&runs[i], i);
			runs[i].cancel_after = i % 3 == round ? 1 + i : 0;
			bed_submit(engine, &runs[i]);
		}
		for (int i = 0; i < BED_SHAPES; i++) {
			bed_wait(&runs[i]);
			if (runs[i].cancel_after)
				assert_int_equal(runs[i].result.finish, FINISH_CANCELLED);
			else
				bed_check_text(&plain, &runs[i], i, "beside cancelled ones");
		}
		bed_check_idle(engine);
	}
	mem_free(runs);
	engine_destroy(engine);
}

static void logits_and_logprobs_come_to_the_host_when_asked_for(void **state)
{
	struct engine_options options = defaults();
	struct bed_run device, host;
	for (int logprobs = -1; logprobs <= 5; logprobs += 2) {
		struct engine *engine = bed_open(&options, NULL);
		struct bed_run *runs[] = {&device, &host};
		for (int i = 0; i < 2; i++) {
			bed_run_init(runs[i], 5, 70, 40);
			runs[i]->sampling.logprobs = logprobs;
			runs[i]->sampling.logits = ENGINE_LOGITS_ALL;
			runs[i]->sampling.temperature = 0.8;
			bed_run(engine, runs[i]);
			assert_int_equal(runs[i]->n_logits, 70);
			engine_destroy(engine);
			struct engine_options on_host = options;
			on_host.device = "cpu";
			engine = bed_open(&on_host, NULL);
		}
		engine_destroy(engine);
		assert_memory_equal(device.tokens, host.tokens, 40 * sizeof host.tokens[0]);
		assert_memory_equal(device.logprobs, host.logprobs, 40 * sizeof host.logprobs[0]);
		assert_memory_equal(device.last_logits, host.last_logits, sizeof host.last_logits);
	}
}

static void steps_above_the_largest_plan_are_counted(void **state)
{
	struct engine_options options = defaults();
	options.graph_max_bs = 2;
	struct engine *engine = bed_open(&options, NULL);
	bed_check_all(&plain, engine, "plans of two", false);
	assert_true(bed_metric(engine, "verdict_steps_above_plans_total") == 0);
	bed_check_all(&plain, engine, "plans of two", true);
	assert_true(bed_metric(engine, "verdict_steps_above_plans_total") > 0);
	assert_true(bed_metric(engine, "verdict_device_seconds_total") > 0);
	engine_destroy(engine);
}

static void a_plan_without_memory_is_refused_with_its_size_and_what_others_took(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine;
	struct err err = {0};
	options.graph_max_bs = 8;
	device_twin_fail_plan(4);
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_NO_MEMORY);
	device_twin_fail_plan(0);
	assert_string_equal(err.code, "not_enough_memory");
	assert_non_null(strstr(err.text, "step plan of 8 rows"));
	assert_non_null(strstr(err.text, "the 3 smaller ones hold ")); /* 1, 2, 4; and so many bytes */
	assert_non_null(strstr(err.text, "lower --graph-max-bs to 4"));
}

static void memory_that_others_hold_is_seen_and_named(void **state)
{
	struct engine_options options = defaults();
	struct engine *engine;
	struct err err = {0};
	options.mem_budget_text = NULL;
	options.mem_budget = 0;
	options.mem_fraction = "0.9";
	options.max_num_seqs = 4096;
	options.graph_max_bs = 0;
	options.max_model_len = 256;
	memory_free = (uint64_t)128 << 20; /* of which the driver is left 64 */
	assert_int_equal(engine_create(&options, &engine, &err), STATUS_NO_MEMORY);
	assert_non_null(strstr(err.text, "the rest is held by pid 7 (python3) 512 MiB"));
	assert_non_null(strstr(err.text, "lower --mem-fraction to 0.06"));
	memory_free = 1 << 30;
}

static void settings_of_cpus_say_that_a_gpu_does_not_use_them(void **state)
{
	struct engine_options options = defaults();
	options.isa = "scalar";
	options.threads = 2;
	struct engine *engine = bed_open(&options, NULL);
	struct json *config = engine_config_json(engine);
	static const char *const names[] = {"isa", "threads"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		assert_string_equal(
			json_text(json_get(json_get(json_get(config, "settings"), names[i]), "why")), "not used: the GPU computes");
	json_free(config);
	engine_destroy(engine);
}

static void plan_sizes_end_with_the_cap(void **state)
{
	static const int expected[] = {1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 80, 96, 100};
	int size = 0;
	for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
		size = plan_sizes_next(size, 100, false);
		assert_int_equal(size, expected[i]);
	}
	assert_int_equal(plan_sizes_next(size, 100, false), 0);
	assert_int_equal(plan_sizes_next(0, 0, false), 0);
	assert_int_equal(plan_sizes_next(2, 3, false), 3);
	assert_int_equal(plan_sizes_next(41, 100, true), 42);
	for (int cap = 1; cap < 700; cap++) { /* filling up never takes more rows than a cache block has positions */
		int before = 0;
		for (size = 0; (size = plan_sizes_next(size, cap, false)) > 0; before = size)
			assert_true(size > before && size - before <= 16 && size <= cap);
		assert_int_equal(before, cap);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_those_of_the_plain_engine),
		cmocka_unit_test(texts_do_not_depend_on_plans_or_chunks),
		cmocka_unit_test(texts_do_not_depend_on_preemption),
		cmocka_unit_test(speculation_waits_for_the_tokens_it_drafts_from),
		cmocka_unit_test(end_tokens_end_a_text_though_its_next_step_has_begun),
		cmocka_unit_test(cancelled_requests_leave_the_others_as_they_are),
		cmocka_unit_test(logits_and_logprobs_come_to_the_host_when_asked_for),
		cmocka_unit_test(steps_above_the_largest_plan_are_counted),
		cmocka_unit_test(a_plan_without_memory_is_refused_with_its_size_and_what_others_took),
		cmocka_unit_test(memory_that_others_hold_is_seen_and_named),
		cmocka_unit_test(settings_of_cpus_say_that_a_gpu_does_not_use_them),
		cmocka_unit_test(plan_sizes_end_with_the_cap),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
