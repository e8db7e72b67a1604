/* One launch of a stub engine under every way in which it can go well or wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "harness/measure.h"
#include "tests/support/measure_bed.h"
#include "tests/support/roles.h"

static void a_good_launch_gives_runs_facts_and_a_fingerprint(void **state)
{
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){0}, 0, &result);
	assert_string_equal(result.reason, "");
	assert_int_equal(result.failure, FAILURE_NONE);
	assert_int_equal(result.n_runs, 3);
	assert_true(result.runs[0].warmup && !result.runs[1].warmup && !result.runs[2].warmup);
	assert_int_equal(result.runs[2].index, 1);
	for (size_t i = 0; i < result.n_runs; i++)
		for (size_t r = 0; r < result.runs[i].n_requests; r++)
			assert_int_equal(result.runs[i].requests[r].completion_tokens, 12);
	struct run_metrics metrics;
	run_metrics_compute(&result.runs[1], 2, &metrics);
	assert_true(metrics.output_tps > 100 && metrics.output_tps < 2000);
	assert_int_equal(metrics.prompt_tokens, 4 * 8);
	assert_true(result.spawn_to_ready_ns > 0 && result.total_ns > result.spawn_to_ready_ns);
	assert_true(result.peak_memory_bytes > 100000);
	assert_non_null(strstr(result.log_tail, "stub-server: port"));
	assert_non_null(strstr(result.command, "--speculation\",\"off\""));
	assert_non_null(json_get(result.effective_config, "settings"));
	assert_non_null(json_get(json_get(result.probes, "environment"), "inherited"));
	assert_true(result.exit_signal == SIGTERM);
	struct json *texts = NULL;
	assert_int_equal(json_parse(result.fingerprint, strlen(result.fingerprint), "fingerprint", &texts, NULL), STATUS_OK);
	assert_int_equal(json_count(texts), 2);
	json_free(texts);
	launch_result_release(&result);
}

static void prompts_differ_between_runs_and_agree_between_arms(void **state)
{
	struct launch_result base, candidate;
	measure_bed_arm(&(struct stub_experiment){0}, 0, &base);
	measure_bed_arm(&(struct stub_experiment){0}, 1, &candidate);
	/* The stub's answer depends on the prompt alone. */
	for (size_t i = 0; i < base.n_runs; i++)
		for (size_t r = 0; r < base.runs[i].n_requests; r++)
			assert_string_equal(base.runs[i].requests[r].text, candidate.runs[i].requests[r].text);
	assert_string_not_equal(base.runs[1].requests[0].text, base.runs[2].requests[0].text);
	assert_string_not_equal(base.runs[0].requests[0].text, base.runs[1].requests[0].text);
	assert_string_equal(base.fingerprint, candidate.fingerprint);
	launch_result_release(&base);
	launch_result_release(&candidate);
}

static void ready_is_health_and_one_real_token(void **state)
{
	/* /v1/models answers at once, health after 300 ms, completions after 600 ms; nothing of it counts against the engine. */
	const char *stub[] = {"--health-after-ms", "300", "--completions-after-ms", "600", NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub}, 0, &result);
	assert_int_equal(result.failure, FAILURE_NONE);
	assert_true(result.spawn_to_ready_ns >= 600 * (int64_t)1000000);
	launch_result_release(&result);
}

static void a_server_that_is_never_ready_is_a_timeout_that_says_what_was_seen(void **state)
{
	const char *stub[] = {"--completions-after-ms", "1000000", NULL};
	measure_bed_expect(
		&(struct stub_experiment){.stub = stub, .ready_timeout_s = 2}, 0, FAILURE_READY_TIMEOUT, "ready", "HTTP 503");
}

static void too_little_memory_names_the_fraction_that_works(void **state)
{
	struct stub_experiment options = {.baseline = "{\"mem_fraction\": 0.9}",
		.matrix = "{\"mode\": \"ofat\", \"factors\": {\"mem_fraction\": [0.9, 0.2]}, \"aa_twin\": false}"};
	struct launch_result result;
	measure_bed_arm(&options, 1, &result);
	assert_int_equal(result.failure, FAILURE_OOM_LOAD);
	assert_string_equal(result.reason, "oom_load: needs mem_fraction 0.31");
	assert_string_equal(result.phase, "ready");
	assert_int_equal(result.exit_code, 3);
	launch_result_release(&result);
}

static void an_engine_that_does_not_start_is_a_launch_error(void **state)
{
	const char *stub[] = {"--exit-code", "5", NULL}, *unknown[] = {"--no-such-switch", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_LAUNCH_ERROR, "ready",
		"exit code 5: stub-server: ends as ordered");
	measure_bed_expect(&(struct stub_experiment){.stub = unknown}, 0, FAILURE_LAUNCH_ERROR, "ready", "no-such-switch");
}

static void a_program_that_is_not_there_is_a_launch_error(void **state)
{
	struct text text = {0};
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &(struct stub_experiment){0});
	const char *words[] = {"/no/such/engine"};
	bed.experiment->engine.command = (struct string_list){words, 1};
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_LAUNCH_ERROR);
	assert_non_null(strstr(result.reason, "cannot run '/no/such/engine': No such file"));
	launch_result_release(&result);
	measure_bed_close(&bed);
	text_release(&text);
}

static void a_stranger_on_the_port_is_not_measured(void **state)
{
	const char *stub[] = {"--wrong-nonce", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_LAUNCH_ERROR, "ready", "another server answers");
}

static int stranger_port;

static enum status port_of_the_stranger(int *port, struct err *err)
{
	*port = stranger_port;
	return STATUS_OK;
}

static bool port_always_free(int port)
{
	return true;
}

/* Without a nonce the listening socket decides: here the launch only sleeps, and an older server answers on its port. */
static void an_older_server_on_the_port_is_not_measured_by_an_adapter_without_a_nonce(void **state)
{
	struct stub_process other;
	struct measure_bed bed;
	struct launch_result result;
	stub_start(&other, NULL);
	measure_bed_open(&bed,
		&(struct stub_experiment){
			.adapter = "command", .engine_extra = ", \"flags\": {\"speculation\": \"--speculation\"}"});
	struct runner_ops runner = runner_local;
	runner.free_port = port_of_the_stranger;
	runner.port_is_free = port_always_free; /* the stranger stays, and is not waited for */
	stranger_port = other.port;
	bed.measure.runner = &runner;
	const char *words[] = {"/bin/sleep", "30"};
	bed.experiment->engine.command = (struct string_list){words, 2};
	bed.experiment->arms[0].n_settings = 0;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_LAUNCH_ERROR);
	assert_non_null(strstr(result.reason, "no process of this launch listens there"));
	assert_int_equal(result.n_runs, 0);
	assert_int_equal(kill(other.pid, 0), 0);
	launch_result_release(&result);
	measure_bed_close(&bed);
	stub_stop(&other);
}

static void a_setting_that_is_not_in_effect_fails_as_inactive(void **state)
{
	const char *stub[] = {"--config-lies", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 1, FAILURE_INACTIVE, "ready",
		"speculation=ngram was asked, off is in effect");
}

static void an_engine_that_dies_while_measured_is_a_crash_noticed_at_once(void **state)
{
	const char *stub[] = {"--die-after", "5", NULL};
	int64_t begin_ns = clock_monotonic_ns();
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_CRASH, "run", "SIGKILL");
	assert_true(clock_monotonic_ns() - begin_ns < (int64_t)10000000000);
}

/* A kernel that has killed one more process at every look. */
static struct json *reading_after_a_kill(void *session)
{
	static int64_t kills;
	struct json *reading = probe_linux.reading(session);
	json_set(reading, "oom_kills", json_new_integer(kills++));
	return reading;
}

static void an_engine_that_the_kernel_killed_for_memory_ran_out_of_it(void **state)
{
	const char *stub[] = {"--die-after", "5", NULL};
	struct probe_ops probe = probe_linux;
	struct measure_bed bed;
	struct launch_result result;
	probe.reading = reading_after_a_kill;
	measure_bed_open(&bed, &(struct stub_experiment){.stub = stub});
	bed.measure.probe = &probe;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_OOM_RUN);
	assert_string_equal(result.reason, "oom_run: the kernel ran out of memory and killed 1 process");
	launch_result_release(&result);
	measure_bed_close(&bed);
}

static struct json *reading_without_a_count(void *session)
{
	struct json *reading = probe_linux.reading(session);
	json_set(reading, "oom_kills", json_new_null());
	return reading;
}

static void where_the_kernel_keeps_no_count_a_kill_may_have_been_its(void **state)
{
	const char *stub[] = {"--die-after", "5", NULL};
	struct probe_ops probe = probe_linux;
	struct measure_bed bed;
	struct launch_result result;
	probe.reading = reading_without_a_count;
	measure_bed_open(&bed, &(struct stub_experiment){.stub = stub});
	bed.measure.probe = &probe;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_CRASH);
	assert_string_equal(result.reason,
		"crash: killed by SIGKILL, which this program did not send (perhaps the kernel, for lack of "
		"memory: it keeps no count here)");
	launch_result_release(&result);
	measure_bed_close(&bed);
}

static void an_engine_that_goes_silent_is_a_hang(void **state)
{
	const char *stub[] = {"--hang-after", "6", NULL};
	struct stub_experiment options = {.stub = stub,
		.protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 2, "
			    "\"warmup\": {\"requests_per_slot\": 1}, \"stall_s\": 0.3, \"run_timeout_s\": 20}"};
	measure_bed_expect(&options, 0, FAILURE_HANG, "run", "no event for 0.3 s");
}

/* Events keep coming, too slowly: no stall, and no end either. */
static void a_run_that_does_not_end_in_time_is_a_hang(void **state)
{
	const char *stub[] = {"--token-ms", "200", NULL};
	struct stub_experiment options = {.stub = stub,
		.protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 2, "
			    "\"warmup\": {\"requests_per_slot\": 0}, \"stall_s\": 20, \"run_timeout_s\": 0.7}",
		.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"};
	measure_bed_expect(&options, 0, FAILURE_HANG, "run", "the run did not end within 0.7 s");
}

static void answers_of_the_wrong_length_break_a_guard(void **state)
{
	const char *stub[] = {"--output-tokens", "5", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_GUARD, "warmup", "5 tokens instead of 12");
}

static void a_server_that_tells_no_counts_breaks_a_guard(void **state)
{
	const char *stub[] = {"--no-usage", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_GUARD, "warmup", "no token counts");
}

static void a_warm_cache_breaks_the_guard_of_a_cold_workload(void **state)
{
	const char *stub[] = {"--cached-tokens", "4", NULL};
	struct stub_experiment options = {.stub = stub, .guards = "{\"cached_prompt_frac_max\": 0.01}"};
	measure_bed_expect(&options, 0, FAILURE_GUARD, "warmup", "50.0 % of the prompt tokens");
}

static void refused_requests_are_a_client_error(void **state)
{
	struct stub_process stub;
	const char *arguments[] = {"--transcript", "tests/golden/field/b14a_error_after_tokens.sse", NULL};
	stub_start(&stub, arguments);
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &(struct stub_experiment){0});
	bed.experiment->engine.adapter = "attach";
	bed.experiment->engine.url = stub.url;
	bed.experiment->engine.ready_timeout_s = 1;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_READY_TIMEOUT); /* an error in the stream is no token */
	assert_non_null(strstr(result.reason, "engine stopped"));
	launch_result_release(&result);
	measure_bed_close(&bed);
	stub_stop(&stub);
}

static void an_attached_server_is_measured_and_left_alone(void **state)
{
	struct stub_process stub;
	stub_start(&stub, NULL);
	struct measure_bed bed;
	struct launch_result result;
	char url[96];
	snprintf(url, sizeof(url), "%s/v1/", stub.url);
	measure_bed_open(&bed, &(struct stub_experiment){0});
	bed.experiment->engine.adapter = "attach";
	bed.experiment->engine.url = url;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_string_equal(result.reason, "");
	assert_int_equal(result.n_runs, 3);
	assert_int_equal(kill(stub.pid, 0), 0);
	launch_result_release(&result);
	measure_bed_close(&bed);
	stub_stop(&stub);
}

static void a_command_adapter_proves_identity_by_the_socket(void **state)
{
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.adapter = "command",
				.engine_extra = ", \"flags\": {\"speculation\": \"--speculation\"}"},
		1, &result);
	assert_string_equal(result.reason, "");
	assert_non_null(strstr(result.command, "--speculation\",\"ngram\""));
	launch_result_release(&result);
}

static void other_engines_are_driven_by_their_own_names_and_words(void **state)
{
	static const struct {
		const char *adapter, *baseline, *matrix, *argument;
	} cases[] = {
		{"vllm", "{\"mem_fraction\": 0.9}", "{\"factors\": {\"mem_fraction\": [0.9, 0.8]}, \"aa_twin\": false}",
			"--gpu-memory-utilization\",\"0.9\""},
		{"sglang", "{\"graph_max_bs\": 32}", "{\"factors\": {\"graph_max_bs\": [32, 8]}, \"aa_twin\": false}",
			"--cuda-graph-max-bs-decode\",\"32\""},
		{"llamacpp", "{\"parallel\": 4}", "{\"factors\": {\"parallel\": [4, 8]}, \"aa_twin\": false}",
			"--parallel\",\"4\""},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *stub[] = {"--dialect", cases[i].adapter, NULL};
		struct launch_result result;
		measure_bed_arm(&(struct stub_experiment){.adapter = cases[i].adapter,
					.stub = stub,
					.baseline = cases[i].baseline,
					.matrix = cases[i].matrix},
			0, &result);
		assert_string_equal(result.reason, "");
		assert_non_null(strstr(result.command, cases[i].argument));
		const struct request_result *request = &result.runs[1].requests[0];
		assert_int_equal(request->completion_tokens, 12);
		assert_int_equal(request->token_counts[11], strcmp(cases[i].adapter, "llamacpp") == 0 ? 0 : 12);
		launch_result_release(&result);
	}
}

static void an_engine_that_counts_in_whole_answers_is_asked_for_those(void **state)
{
	/* The word that tells the Python front of llama.cpp from its C++ server. */
	const char *stub[] = {"--dialect", "llamacpp", "llama_cpp.server", NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.adapter = "llamacpp",
				.stub = stub,
				.baseline = "{\"threads\": 1}",
				.matrix = "{\"factors\": {\"threads\": [1, 2]}, \"aa_twin\": false}"},
		0, &result);
	assert_string_equal(result.reason, "");
	assert_non_null(strstr(result.command, "--n_threads\",\"1\""));
	const struct request_result *request = &result.runs[1].requests[0];
	assert_int_equal(request->completion_tokens, 12);
	assert_int_equal(request->flags, REQUEST_NOT_STREAMED);
	assert_int_equal(request->first_token_ns, 0);
	struct run_metrics metrics;
	run_metrics_compute(&result.runs[1], 2, &metrics);
	assert_true(metrics.output_tps > 0 && isnan(metrics.ttft_ms_p50));
	launch_result_release(&result);
}

static void arms_of_one_experiment_can_be_different_engines(void **state)
{
	struct text text = {0};
	text_printf(&text,
		"{\"name\": \"e\", \"engines\": {"
		"\"a\": {\"adapter\": \"vllm\", \"command\": [\"%s\", \"stub-server\", \"--dialect\", \"vllm\"]},"
		"\"b\": {\"adapter\": \"builtin\", \"command\": [\"%s\", \"stub-server\"], \"params\": {\"speculation\": "
		"\"ngram\"}}},"
		"\"matrix\": {\"factors\": {\"engine\": [\"a\", \"b\"]}, \"aa_twin\": false},"
		"\"workloads\": [{\"name\": \"w\", \"concurrency\": 1, \"requests\": 1, \"sampling\": {\"max_tokens\": 4}}],"
		"\"protocol\": {\"blocks\": 1, \"runs_per_launch\": 1}, \"guards\": {\"greedy_fingerprint\": {\"prompts\": 0}}}",
		support_program(), support_program());
	struct measure_bed bed;
	struct launch_result result;
	struct err err = {0};
	measure_bed_open(&bed, &(struct stub_experiment){0});
	experiment_release(bed.experiment);
	if (experiment_parse(text.data, text.len, "e.json", NULL, &bed.experiment, &err))
		fail_msg("%s", err.text);
	bed.measure.experiment = bed.experiment;
	for (int arm = 0; arm < 2; arm++) {
		assert_int_equal(measure_launch(&bed.measure, arm, &result, NULL), STATUS_OK);
		assert_string_equal(result.reason, "");
		assert_true(arm == 1 ? strstr(result.command, "\"--speculation\",\"ngram\"") != NULL
				     : strstr(result.command, "speculation") == NULL);
		assert_true((json_get(result.effective_config, "settings") != NULL) == (arm == 1));
		assert_true((json_get(result.effective_config, "max_model_len") != NULL) == (arm == 0));
		launch_result_release(&result);
	}
	text_release(&text);
	measure_bed_close(&bed);
}

static void what_other_engines_say_is_a_failure_class(void **state)
{
	const char *vllm[] = {"--dialect", "vllm", NULL}, *sglang[] = {"--dialect", "sglang", "--config-lies", NULL};
	measure_bed_expect(&(struct stub_experiment){.adapter = "vllm",
				   .stub = vllm,
				   .baseline = "{\"mem_fraction\": 0.2}",
				   .matrix = "{\"factors\": {\"mem_fraction\": [0.2, 0.9]}, \"aa_twin\": false}"},
		0, FAILURE_OOM_LOAD, "ready", "No available memory for the cache blocks");
	measure_bed_expect(&(struct stub_experiment){.adapter = "sglang",
				   .stub = sglang,
				   .baseline = "{\"graph_max_bs\": 32}",
				   .matrix = "{\"factors\": {\"graph_max_bs\": [32, 8]}, \"aa_twin\": false}"},
		0, FAILURE_INACTIVE, "ready", "graph_max_bs=32 was asked, 160 is in effect");
}

static bool port_never_free(int port)
{
	return false;
}

static void a_port_that_does_not_come_back_makes_the_machine_dirty_and_blames_nobody(void **state)
{
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &(struct stub_experiment){0});
	struct runner_ops stuck = runner_local;
	stuck.port_is_free = port_never_free;
	bed.measure.runner = &stuck;
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_true(result.machine_dirty);
	assert_int_equal(result.failure, FAILURE_NONE);
	assert_int_equal(result.n_runs, 3);
	launch_result_release(&result);
	measure_bed_close(&bed);
}

/* A machine whose CPUs count one more throttling at every look. */
static void sample_throttled(void *session, struct probe_sample *out)
{
	probe_linux.sample(session, out);
	out->throttle_count = out->at_ns;
}

static void a_clock_throttled_in_one_arm_only_voids_that_arms_runs(void **state)
{
	struct probe_ops throttled = probe_linux;
	throttled.sample = sample_throttled;
	const struct probe_ops *probes[] = {&probe_linux, &throttled};
	for (int arm = 0; arm < 2; arm++) {
		struct measure_bed bed;
		struct launch_result result;
		measure_bed_open(&bed, &(struct stub_experiment){0});
		bed.measure.probe = probes[arm];
		assert_int_equal(measure_launch(&bed.measure, arm, &result, NULL), STATUS_OK);
		assert_int_equal(result.failure, FAILURE_NONE);
		assert_int_equal(result.n_runs, 3);
		for (size_t i = 0; i < result.n_runs; i++) {
			assert_int_equal(result.runs[i].voided, arm == 1);
			if (arm == 1)
				assert_true(text_starts_with(result.runs[i].void_reason, "void: clocks were throttled in 100 %"));
		}
		launch_result_release(&result);
		measure_bed_close(&bed);
	}
}

static void another_process_that_loads_the_machine_voids_the_run(void **state)
{
	const char *stub[] = {"--token-ms", "50", NULL};
	struct launch_result result;
	pid_t spinner = fork();
	assert_true(spinner >= 0);
	if (spinner == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (volatile long i = 0;; i++)
			;
	}
	measure_bed_arm(&(struct stub_experiment){.stub = stub, .guards = "{\"foreign_cpu_frac_max\": 0.02}"}, 0, &result);
	kill(spinner, SIGKILL);
	waitpid(spinner, NULL, 0);
	print_message("%s\n", result.runs[1].void_reason);
	assert_int_equal(result.failure, FAILURE_NONE);
	assert_true(result.runs[1].voided);
	assert_true(text_starts_with(result.runs[1].void_reason, "void: other processes took "));
	launch_result_release(&result);
}

static void the_conditions_of_a_run_are_known(void **state)
{
	const char *stub[] = {"--token-ms", "20", NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub}, 0, &result);
	const struct run_conditions *conditions = &result.runs[1].conditions;
	assert_true(conditions->samples >= 2);
	assert_true(conditions->seconds > 0.2);
	assert_true(conditions->client_cpu_frac > 0 && conditions->client_cpu_frac < 0.8);
	assert_true(conditions->engine_cpu_frac >= 0 && conditions->engine_cpu_frac < 0.9);
	assert_true(conditions->foreign_cpu_frac >= 0 && conditions->foreign_cpu_frac <= 1);
	assert_true(conditions->memory_available_mib_min > 0);
	launch_result_release(&result);
}

static void real_text_goes_to_the_chat_endpoint(void **state)
{
	char path[] = "/tmp/verdict-measure-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	const char *stub[] = {"--request-log", path, NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub,
				.workloads = "[{\"name\": \"t\", \"concurrency\": 1, \"requests\": 2, "
					     "\"dataset\": {\"kind\": \"text\", \"prompts\": [\"one\", \"two\"]}, \"sampling\": "
					     "{\"max_tokens\": 4}}]"},
		0, &result);
	assert_string_equal(result.reason, "");
	struct text log = {0};
	assert_int_equal(file_read(path, 1 << 20, &log, NULL), STATUS_OK);
	assert_null(strstr(text_str(&log), "/v1/completions"));
	assert_non_null(strstr(text_str(&log), "POST /v1/chat/completions\n"));
	assert_non_null(strstr(text_str(&log), "POST /flush_cache\n"));
	text_release(&log);
	launch_result_release(&result);
	unlink(path);
}

static void a_signal_stops_the_engine_and_gives_no_result(void **state)
{
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &(struct stub_experiment){0});
	kill(getpid(), SIGINT); /* blocked, and read at the first wait */
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_INTERRUPTED);
	launch_result_release(&result);
	measure_bed_close(&bed);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_good_launch_gives_runs_facts_and_a_fingerprint),
		cmocka_unit_test(prompts_differ_between_runs_and_agree_between_arms),
		cmocka_unit_test(ready_is_health_and_one_real_token),
		cmocka_unit_test(too_little_memory_names_the_fraction_that_works),
		cmocka_unit_test(an_engine_that_does_not_start_is_a_launch_error),
		cmocka_unit_test(a_program_that_is_not_there_is_a_launch_error),
		cmocka_unit_test(a_stranger_on_the_port_is_not_measured),
		cmocka_unit_test(an_older_server_on_the_port_is_not_measured_by_an_adapter_without_a_nonce),
		cmocka_unit_test(a_setting_that_is_not_in_effect_fails_as_inactive),
		cmocka_unit_test(an_engine_that_dies_while_measured_is_a_crash_noticed_at_once),
		cmocka_unit_test(an_engine_that_the_kernel_killed_for_memory_ran_out_of_it),
		cmocka_unit_test(where_the_kernel_keeps_no_count_a_kill_may_have_been_its),
		cmocka_unit_test(an_engine_that_goes_silent_is_a_hang),
		cmocka_unit_test(a_run_that_does_not_end_in_time_is_a_hang),
		cmocka_unit_test(answers_of_the_wrong_length_break_a_guard),
		cmocka_unit_test(a_server_that_tells_no_counts_breaks_a_guard),
		cmocka_unit_test(a_warm_cache_breaks_the_guard_of_a_cold_workload),
		cmocka_unit_test(refused_requests_are_a_client_error),
		cmocka_unit_test(an_attached_server_is_measured_and_left_alone),
		cmocka_unit_test(a_command_adapter_proves_identity_by_the_socket),
		cmocka_unit_test(other_engines_are_driven_by_their_own_names_and_words),
		cmocka_unit_test(an_engine_that_counts_in_whole_answers_is_asked_for_those),
		cmocka_unit_test(arms_of_one_experiment_can_be_different_engines),
		cmocka_unit_test(what_other_engines_say_is_a_failure_class),
		cmocka_unit_test(a_port_that_does_not_come_back_makes_the_machine_dirty_and_blames_nobody),
		cmocka_unit_test(a_clock_throttled_in_one_arm_only_voids_that_arms_runs),
		cmocka_unit_test(another_process_that_loads_the_machine_voids_the_run),
		cmocka_unit_test(the_conditions_of_a_run_are_known),
		cmocka_unit_test(real_text_goes_to_the_chat_endpoint),
		cmocka_unit_test(a_signal_stops_the_engine_and_gives_no_result),
		cmocka_unit_test(a_server_that_is_never_ready_is_a_timeout_that_says_what_was_seen),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
