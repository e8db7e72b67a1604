/* What other servers tell about themselves: counters, versions, settings, switches, and what their logs say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "harness/counters.h"
#include "harness/help_check.h"
#include "harness/measure.h"
#include "harness/target_common.h"
#include "tests/support/golden_file.h"
#include "tests/support/measure_bed.h"
#include "tests/support/replay_checks.h"
#include "tests/support/roles.h"

extern char **environ;

static struct run_counters counters_of(const struct target_ops *ops, const char *name)
{
	struct text text = {0};
	struct run_counters counters;
	golden_file_read("servers", name, &text);
	counters_read(text_str(&text), ops->counters, &counters);
	text_release(&text);
	return counters;
}

static void counters_are_summed_over_labels_and_found_by_their_whole_name(void **state)
{
	struct run_counters c = counters_of(&target_vllm, "vllm_metrics.txt");
	assert_true(c.prompt == 1536 && c.generated == 8128902 && c.looked_up == 1536 && c.cached == 384);
	assert_true(c.drafted == 50 && c.accepted == 20);
	c = counters_of(&target_sglang, "sglang_metrics.txt");
	assert_true(c.prompt == 8128902 && c.generated == 7557572 && c.cached == 128 && c.drafted == -1 && c.accepted == -1);
	c = counters_of(&target_llamacpp, "llamacpp_metrics.txt");
	assert_true(c.prompt == 36 && c.generated == 64 && c.cached == -1);
}

static void broken_metrics_are_unknown_and_never_wrong(void **state)
{
	static const struct counter_names names = {.prompt = "a_total"};
	static const char *const texts[] = {"", "a_total", "a_total ", "a_total{", "a_total{x=\"", "a_total{x=\"\\",
		"a_total{} NaN\n", "a_total x\n", "a_total -1\n", "a_total_more 5\n", "# a_total 5\n", "a_total{x=\"1\"}5\n",
		"b\na_tota 5"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct run_counters c;
		counters_read(texts[i], &names, &c);
		if (c.prompt != -1 || c.generated != -1)
			fail_msg("'%s' reads as %g", texts[i], c.prompt);
	}
	struct run_counters c;
	counters_read("a_total 5 1700000000\r\na_total{x=\"}\"}\t1e2", &names, &c);
	assert_true(c.prompt == 105);
}

static void the_fuzzers_corpus_of_metrics_is_read_safely(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/counters", check_counters_bytes) >= 3);
}

static void a_counter_that_was_reset_tells_nothing(void **state)
{
	struct run_counters before = {10, 20, -1, 5, 0, 7, 2, 0}, after = {15, 3, 4, 5, -1, 7, 5, 0};
	struct run_counters d = counters_difference(&before, &after);
	assert_true(d.prompt == 5 && d.generated == -1 && d.looked_up == -1 && d.cached == 0 && d.drafted == -1 && d.accepted == 0);
}

static void counters_fill_in_what_requests_do_not_tell(void **state)
{
	struct request_result request = {.ok = true,
		.prompt_tokens = 8,
		.completion_tokens = 4,
		.cached_tokens = -1,
		.drafted = -1,
		.accepted = -1,
		.sent_ns = 1,
		.end_ns = 2000};
	struct run_result run = {.requests = &request,
		.n_requests = 1,
		.counted = true,
		.counters = {.looked_up = 8, .cached = 2, .drafted = 10, .accepted = 4, .prompt = -1, .generated = -1}};
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_true(metrics.cached_frac == 0.25 && metrics.accept_frac == 0.4);
	request.cached_tokens = 4;
	run_metrics_compute(&run, 1, &metrics);
	assert_true(metrics.cached_frac == 0.5);
}

static void switches_are_found_as_whole_words(void **state)
{
	struct text help = {0};
	golden_file_read("servers", "vllm_help.txt", &help);
	const char *text = text_str(&help);
	assert_true(help_names_switch(text, "--max-num-seqs"));
	assert_true(help_names_switch(text, "--no-enable-prefix-caching")); /* listed as --disable-prefix-caching */
	assert_true(help_names_switch(text, "--async-scheduling"));
	assert_false(help_names_switch(text, "--no-max-num-seqs"));
	assert_false(help_names_switch(text, "--max-num"));
	assert_false(help_names_switch(text, "--num-seqs"));
	assert_false(help_names_switch(text, "--mem-fraction-static"));
	assert_false(help_names_switch(text, "--no-"));
	text_release(&help);
}

static enum status check_help(const char *adapter, const char *flag, struct err *err)
{
	struct text text = {0}, extra = {0};
	struct experiment *experiment = NULL;
	text_printf(&extra, ", \"flags\": {\"k\": \"%s\"}", flag);
	stub_experiment_text(&(struct stub_experiment){.adapter = adapter,
				     .engine_extra = text_str(&extra),
				     .baseline = "{\"k\": 1}",
				     .matrix = "{\"factors\": {\"k\": [1, 2]}, \"aa_twin\": false}"},
		&text);
	assert_int_equal(experiment_parse(text.data, text.len, "e.json", NULL, &experiment, err), STATUS_OK);
	enum status status = help_check(experiment, &runner_local, environ, NULL, err);
	experiment_release(experiment);
	text_release(&text);
	text_release(&extra);
	return status;
}

static void a_switch_that_help_does_not_list_is_refused_before_anything_is_launched(void **state)
{
	struct err err = {0};
	assert_int_equal(check_help("llamacpp", "--parallel", &err), STATUS_OK);
	assert_int_equal(check_help("sglang", "--cuda-graph-max-bs-decode", &err), STATUS_OK);
	assert_int_equal(check_help("sglang", "--frobnicate", &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "uses --frobnicate, which the engine's --help does not list"));
	err = (struct err){0};
	assert_int_equal(check_help("command", "--frobnicate", &err), STATUS_OK); /* of any command nothing is known */
	assert_int_equal(
		check_help("vllm", "--frobnicate", &err), STATUS_OK); /* the stub takes no --help=all: nothing is held against it */
}

static void measure_stub(
	const char *adapter, const char *const *stub, const char *baseline, const char *matrix, struct launch_result *result)
{
	struct text text = {0};
	struct experiment *experiment = NULL;
	struct interrupt interrupt;
	struct err err = {0};
	stub_experiment_text(
		&(struct stub_experiment){.adapter = adapter, .stub = stub, .baseline = baseline, .matrix = matrix}, &text);
	if (experiment_parse(text.data, text.len, "e.json", NULL, &experiment, &err))
		fail_msg("%s", err.text);
	assert_int_equal(interrupt_open(&interrupt, NULL), STATUS_OK);
	struct measure measure = {.experiment = experiment,
		.runner = &runner_local,
		.probe = &probe_linux,
		.interrupt = &interrupt,
		.environment = environ};
	assert_int_equal(client_create(&measure.client, NULL), STATUS_OK);
	if (measure_launch(&measure, 0, result, &err))
		fail_msg("%s", err.text);
	assert_string_equal(result->reason, "");
	client_destroy(measure.client);
	interrupt_close(&interrupt);
	experiment_release(experiment);
	text_release(&text);
}

static void a_run_on_vllm_has_its_counters_acceptance_and_version(void **state)
{
	const char *stub[] = {"--dialect", "vllm", NULL};
	struct launch_result result;
	measure_stub("vllm", stub, "{\"mem_fraction\": 0.9}", "{\"factors\": {\"mem_fraction\": [0.9, 0.8]}, \"aa_twin\": false}",
		&result);
	assert_string_equal(json_text(json_get(result.probes, "engine_version")), "0.12.0");
	const struct run_result *run = &result.runs[1];
	assert_true(run->counted);
	assert_true(run->counters.generated == 48 && run->counters.prompt == 32); /* 4 requests of 8 and 12 tokens */
	struct run_metrics metrics;
	run_metrics_compute(run, 2, &metrics);
	assert_true(metrics.accept_frac == 0.5 && metrics.accept_length == 3); /* two accepted tokens in each round */
	/* What it tells of its settings, pieced together. */
	assert_true(json_number(json_get(result.effective_config, "gpu_memory_utilization"), 0) == 0.9);
	assert_int_equal(json_int(json_get(result.effective_config, "max_model_len"), 0), 4096);
	launch_result_release(&result);
}

static void settings_that_vllm_and_llama_server_tell_otherwise_are_inactive(void **state)
{
	static const struct {
		const char *adapter, *baseline, *matrix, *reason;
	} cases[] = {
		{"vllm", "{\"mem_fraction\": 0.9}", "{\"factors\": {\"mem_fraction\": [0.9, 0.8]}, \"aa_twin\": false}",
			"inactive: mem_fraction=0.9 was asked, 0.5 is in effect"},
		{"vllm", "{\"max_num_seqs\": 64}", "{\"factors\": {\"max_num_seqs\": [64, 32]}, \"aa_twin\": false}",
			"inactive: max_num_seqs=64 was asked, 160 is in effect"},
		{"llamacpp", "{\"parallel\": 4}", "{\"factors\": {\"parallel\": [4, 8]}, \"aa_twin\": false}",
			"inactive: parallel=4 was asked, 1 is in effect"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const char *stub[] = {"--dialect", cases[i].adapter, "--config-lies", NULL};
		struct launch_result result;
		measure_bed_arm(&(struct stub_experiment){.adapter = cases[i].adapter,
					.stub = stub,
					.baseline = cases[i].baseline,
					.matrix = cases[i].matrix},
			0, &result);
		assert_int_equal(result.failure, FAILURE_INACTIVE);
		assert_string_equal(result.reason, cases[i].reason);
		launch_result_release(&result);
	}
}

/* What cannot be proven to be in effect is not measured. */
static void an_engine_that_does_not_tell_its_settings_is_inactive(void **state)
{
	measure_bed_expect(&(struct stub_experiment){.engine_extra = ", \"readback\": \"/nowhere\""}, 1, FAILURE_INACTIVE, "ready",
		"/nowhere does not tell the settings in effect");
}

static void labels_of_a_metric_are_values_of_their_kind(void **state)
{
	struct text text = {0};
	golden_file_read("servers", "vllm_metrics.txt", &text);
	struct json *labels = counters_labels(text_str(&text), "vllm:cache_config_info");
	assert_int_equal(json_number(json_get(labels, "block_size"), 0), 16);
	assert_true(json_number(json_get(labels, "gpu_memory_utilization"), 0) == 0.9);
	assert_true(json_bool(json_get(labels, "enable_prefix_caching"), false));
	assert_string_equal(json_text(json_get(labels, "cache_dtype")), "auto");
	assert_true(json_get(labels, "sliding_window") && json_kind_of(json_get(labels, "sliding_window")) == JSON_KIND_NULL);
	json_free(labels);
	assert_null(counters_labels(text_str(&text), "vllm:cache_config"));
	text_release(&text);
	static const char *const broken[] = {"m{", "m{a", "m{a=", "m{a=\"", "m{a=\"b", "m{a=\"b\\", "m{=\"x\"}", "m{}", "m{,,}",
		"m{a=b}", "m{\xff=\"1\"}", "m{a b=\"1\"}"};
	for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
		labels = counters_labels(broken[i], "m");
		assert_non_null(labels);
		assert_int_equal(json_count(labels), 0);
		json_free(labels);
	}
	labels = counters_labels("x\nm{a=\"b \\\"}{\",c=\"2\"} 1", "m");
	assert_string_equal(json_text(json_get(labels, "a")), "b \"}{");
	assert_true(json_number(json_get(labels, "c"), 0) == 2);
	json_free(labels);
}

static void a_run_on_sglang_has_its_settings_from_either_path(void **state)
{
	const char *newer[] = {"--dialect", "sglang", NULL}, *older[] = {"--dialect", "sglang", "--older", NULL};
	const char *const *stubs[] = {newer, older};
	for (int i = 0; i < 2; i++) {
		struct launch_result result;
		measure_stub("sglang", stubs[i], "{\"graph_max_bs\": 32}",
			"{\"factors\": {\"graph_max_bs\": [32, 8]}, \"aa_twin\": false}", &result);
		assert_int_equal(json_int(json_get(result.effective_config, "cuda_graph_max_bs_decode"), 0), 32);
		assert_string_equal(json_text(json_get(result.probes, "engine_version")), "0.5.4");
		assert_true(result.runs[1].counted && result.runs[1].counters.generated == 48);
		assert_true(result.runs[1].counters.accept_length == 2.5);
		launch_result_release(&result);
	}
}

static void resolved_arguments_of_sglang_are_compared(void **state)
{
	struct text text = {0};
	struct json *info = NULL;
	golden_file_read("servers", "sglang_server_info_0_5_4.json", &text);
	assert_int_equal(json_parse(text_str(&text), text.len, "info", &info, NULL), STATUS_OK);
	assert_int_equal(json_int(target_sglang.effective(&target_sglang, info, "graph_max_bs"), 0), 128);
	assert_int_equal(json_int(target_sglang.effective(&target_sglang, info, "tp"), 0), 2);
	assert_true(json_number(target_sglang.effective(&target_sglang, info, "mem_fraction"), 0) == 0.88);
	json_free(info);
	text_release(&text);
}

static void every_line_of_a_pattern_file_is_a_class_and_a_text(void **state)
{
	const char *const files[] = {
		target_patterns_llamacpp, target_patterns_vllm, target_patterns_sglang, target_patterns_command};
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		int lines = 0;
		for (const char *line = files[i]; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n')) {
			size_t word = strcspn(line, " \n");
			bool known = *line == '#' || (word == 3 && text_starts_with(line, "oom ")) ||
				text_starts_with(line, "refused ") || text_starts_with(line, "fatal ");
			if (!known || (*line != '#' && (line[word] != ' ' || line[word + 1] == '\n')))
				fail_msg("'%.*s'", (int)strcspn(line, "\n"), line);
			lines += *line != '#';
		}
		assert_true(lines >= 4);
	}
}

static void known_fatal_lines_are_told_from_lack_of_memory(void **state)
{
	static const struct {
		const struct target_ops *ops;
		const char *log;
		bool running;
		const char *reason;
	} cases[] = {
		{&target_vllm, "x\nRuntimeError: NCCL error: unhandled system error\n", true,
			"crash: RuntimeError: NCCL error: unhandled system error"},
		{&target_sglang, "Scheduler hit an exception: Traceback\ntorch.OutOfMemoryError: CUDA out of memory.\n", true,
			"oom_run: torch.OutOfMemoryError: CUDA out of memory."},
		{&target_sglang, "[TP0] Scheduler hit an exception: Traceback\n", false,
			"launch_error: [TP0] Scheduler hit an exception: Traceback"},
		{&target_llamacpp, "main: error: failed to load model 'x'\n", false,
			"launch_error: main: error: failed to load model 'x'"},
		{&target_llamacpp_python, "__main__.py: error: argument --n_ctx: invalid int value: 'x'\n", false,
			"launch_error: __main__.py: error: argument --n_ctx: invalid int value: 'x'"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		enum failure failure;
		char reason[512] = "";
		assert_true(cases[i].ops->explain(cases[i].ops, cases[i].log, cases[i].running, &failure, reason));
		assert_string_equal(reason, cases[i].reason);
	}
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters_are_summed_over_labels_and_found_by_their_whole_name),
		cmocka_unit_test(broken_metrics_are_unknown_and_never_wrong),
		cmocka_unit_test(the_fuzzers_corpus_of_metrics_is_read_safely),
		cmocka_unit_test(a_counter_that_was_reset_tells_nothing),
		cmocka_unit_test(counters_fill_in_what_requests_do_not_tell),
		cmocka_unit_test(switches_are_found_as_whole_words),
		cmocka_unit_test(a_switch_that_help_does_not_list_is_refused_before_anything_is_launched),
		cmocka_unit_test(a_run_on_vllm_has_its_counters_acceptance_and_version),
		cmocka_unit_test(settings_that_vllm_and_llama_server_tell_otherwise_are_inactive),
		cmocka_unit_test(an_engine_that_does_not_tell_its_settings_is_inactive),
		cmocka_unit_test(labels_of_a_metric_are_values_of_their_kind),
		cmocka_unit_test(a_run_on_sglang_has_its_settings_from_either_path),
		cmocka_unit_test(resolved_arguments_of_sglang_are_compared),
		cmocka_unit_test(every_line_of_a_pattern_file_is_a_class_and_a_text),
		cmocka_unit_test(known_fatal_lines_are_told_from_lack_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
