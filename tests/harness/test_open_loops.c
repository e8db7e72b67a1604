/* Open loops from the client up to whole launches: requests leave when they are due, and what that does to a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/measure_bed.h"
#include "tests/support/roles.h"

#define MS ((int64_t)1000000)
#define LATE_MS_MAX 200.0 /* on a busy machine */
#define BODIES 8

static const char body_text[] = "{\"prompt\":\"x\",\"max_tokens\":8,\"stream\":true}";

static void run_load(const char *const *arguments, const int64_t *due_ns, int concurrency, double stall_s, struct run_result *run,
	struct client_report *report)
{
	struct stub_process stub;
	char url[128];
	struct client_body bodies[BODIES];
	struct client *client = NULL;
	stub_start(&stub, arguments);
	snprintf(url, sizeof url, "%s/v1/completions", stub.url);
	for (int i = 0; i < BODIES; i++)
		bodies[i] = (struct client_body){body_text, sizeof body_text - 1, 8};
	struct client_load load = {.url = url,
		.bodies = bodies,
		.n_bodies = BODIES,
		.due_ns = due_ns,
		.concurrency = concurrency,
		.run_timeout_s = 20,
		.stall_s = stall_s};
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	*run = (struct run_result){0};
	assert_int_equal(client_run_load(client, &load, run, report, NULL), STATUS_OK);
	client_destroy(client);
	stub_stop(&stub);
}

static void requests_are_sent_when_they_are_due_and_not_before(void **state)
{
	const char *arguments[] = {"--token-ms", "10", NULL};
	int64_t due_ns[BODIES];
	struct run_result run;
	struct client_report report;
	for (int i = 0; i < BODIES; i++)
		due_ns[i] = 25 * MS * i;
	run_load(arguments, due_ns, BODIES, 10, &run, &report);
	assert_int_equal(report.end, CLIENT_COMPLETED);
	for (int i = 0; i < BODIES; i++) {
		const struct request_result *request = &run.requests[i];
		assert_true(request->ok);
		assert_int_equal(request->due_ns, run.begin_ns + due_ns[i]);
		assert_true(request->sent_ns >= request->due_ns);
		assert_true(request->sent_ns < request->due_ns + (int64_t)(LATE_MS_MAX * MS));
	}
	/* An answer takes 80 ms, so the second request was sent while the first was under way. */
	assert_true(run.requests[1].sent_ns < run.requests[0].end_ns);
	assert_true(report.late_ms >= 0 && report.late_ms < LATE_MS_MAX);
	run_result_release(&run);
}

static void a_request_waits_for_a_slot_and_that_is_not_the_clients_fault(void **state)
{
	const char *arguments[] = {"--token-ms", "5", NULL};
	const int64_t due_ns[BODIES] = {0};
	struct run_result run;
	struct client_report report;
	run_load(arguments, due_ns, 1, 10, &run, &report);
	for (int i = 1; i < BODIES; i++)
		assert_true(run.requests[i].sent_ns >= run.requests[i - 1].last_token_ns);
	struct run_metrics metrics;
	run_metrics_compute(&run, 1, &metrics);
	assert_true(metrics.wait_ms_p99 > 6 * 40 && report.late_ms < LATE_MS_MAX);
	run_result_release(&run);
}

static void the_quiet_between_two_requests_is_no_stall(void **state)
{
	const char *arguments[] = {"--token-ms", "1", NULL};
	int64_t due_ns[BODIES];
	struct run_result run;
	struct client_report report;
	for (int i = 0; i < BODIES; i++)
		due_ns[i] = i < 4 ? 0 : 900 * MS;
	run_load(arguments, due_ns, 4, 0.4, &run, &report);
	assert_int_equal(report.end, CLIENT_COMPLETED);
	assert_true(run.requests[7].ok);
	run_result_release(&run);
}

#define OPEN_LOAD \
	"[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"rate\": 40, \"requests\": 12, \"goodput\": {\"e2e_ms\": %s}, " \
	"\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 12, \"jitter\": 0.5}}]"

static void a_launch_under_an_open_loop_keeps_its_times_and_its_goodput(void **state)
{
	const char *stub[] = {"--token-ms", "2", NULL};
	char workloads[400];
	snprintf(workloads, sizeof workloads, OPEN_LOAD, "10000");
	struct stub_experiment options = {.stub = stub, .workloads = workloads, .guards = "{\"client_late_ms_max\": 5000}"};
	struct launch_result first, other;
	measure_bed_arm(&options, 0, &first);
	measure_bed_arm(&options, 1, &other);
	assert_string_equal(first.reason, "");
	assert_int_equal(first.n_runs, 3);
	const struct run_result *run = &first.runs[1];
	bool lengths_differ = false;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		assert_true(request->due_ns >= run->begin_ns && request->sent_ns >= request->due_ns);
		assert_int_equal(request->completion_tokens, request->asked_tokens);
		lengths_differ = lengths_differ || request->asked_tokens != run->requests[0].asked_tokens;
		/* The other arm meets the same load. */
		assert_int_equal(other.runs[1].requests[i].due_ns - other.runs[1].begin_ns, request->due_ns - run->begin_ns);
		assert_int_equal(other.runs[1].requests[i].asked_tokens, request->asked_tokens);
	}
	assert_true(lengths_differ);
	assert_int_equal(first.runs[0].requests[0].due_ns, 0); /* warm-up is a closed loop */
	struct run_metrics metrics;
	run_metrics_compute(run, 12, &metrics);
	assert_float_equal(metrics.goodput_frac, 1, 0);
	assert_true(metrics.goodput_rps > 1 && isfinite(metrics.wait_ms_p50) && metrics.e2e_ms_p95 > 0);
	launch_result_release(&first);
	launch_result_release(&other);
}

static void a_client_that_is_too_late_voids_the_run(void **state)
{
	char workloads[400];
	snprintf(workloads, sizeof workloads, OPEN_LOAD, "10000");
	struct stub_experiment options = {.workloads = workloads, .guards = "{\"client_late_ms_max\": 0.1}"};
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &options);
	bed.experiment->guards.client_late_ms_max = 1e-6; /* less than any machine can do */
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	assert_int_equal(result.failure, FAILURE_NONE);
	assert_true(result.runs[1].voided);
	assert_true(text_starts_with(result.runs[1].void_reason, "void: the client sent requests "));
	launch_result_release(&result);
	measure_bed_close(&bed);
}

static void warm_up_goes_on_until_three_passes_agree_or_time_is_up(void **state)
{
	static const char workloads[] =
		"[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 2, "
		"\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 4}}]";
	static const struct {
		const char *protocol;
		size_t passes_min, passes_max;
	} cases[] = {
		{"{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1}}", 1, 1},
		/* Anything agrees within a factor of two, but for a stall of the machine in just this moment. */
		{"{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1, "
		 "\"until_stable_pct\": "
		 "100}}",
			3, 100},
		{"{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": {\"requests_per_slot\": 1, "
		 "\"until_stable_pct\": "
		 "0.000001, \"max_s\": 0.1}}",
			1, 100},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct launch_result result;
		measure_bed_arm(&(struct stub_experiment){.workloads = workloads, .protocol = cases[i].protocol}, 0, &result);
		assert_string_equal(result.reason, "");
		size_t passes = 0;
		while (passes < result.n_runs && result.runs[passes].warmup)
			passes++;
		assert_int_equal(passes + 1, result.n_runs);
		assert_in_range(passes, cases[i].passes_min, cases[i].passes_max);
		for (size_t pass = 0; pass < passes; pass++)
			assert_int_equal(result.runs[pass].index, pass);
		launch_result_release(&result);
	}
}

static void an_answer_of_more_events_than_tokens_breaks_a_guard(void **state)
{
	const char *stub[] = {"--fraud", "split-tokens", NULL};
	measure_bed_expect(&(struct stub_experiment){.stub = stub}, 0, FAILURE_GUARD, "warmup",
		"the stream of 2 of 2 answers does not fit the server's count: 12 tokens in 24 events");
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub, .guards = "{\"token_count_mismatch_pct\": 100}"}, 0, &result);
	assert_int_equal(result.failure, FAILURE_NONE);
	launch_result_release(&result);
}

static void a_run_that_cannot_be_saved_is_not_sent_to_its_end(void **state)
{
	static const char workloads[] =
		"[{\"name\": \"w\", \"endpoint\": \"/v1/completions\", \"concurrency\": 2, \"requests\": 60, "
		"\"dataset\": {\"kind\": \"random_ids\", \"input_len\": 8, \"output_len\": 4}}]";
	const char *stub[] = {"--fraud", "half-failing", NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub,
				.workloads = workloads,
				.protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"warmup\": "
					    "{\"requests_per_slot\": 0}}",
				.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"},
		0, &result);
	assert_int_equal(result.failure, FAILURE_CLIENT_ERROR);
	if (!strstr(result.reason, "of 60 requests failed, after which no more were sent: HTTP 500"))
		fail_msg("%s", result.reason);
	size_t sent = 0, cut = 0;
	for (size_t i = 0; i < 60; i++) {
		const struct request_result *request = &result.runs[0].requests[i];
		sent += request->sent_ns > 0;
		/* What was under way when it was decided is heard to its end. */
		cut += request->sent_ns > 0 && !request->ok && request->http_status != 500;
		if (!request->sent_ns)
			assert_string_equal(request->error, "not sent: too many requests had failed");
	}
	assert_true(sent >= 9 && sent < 40 && cut == 0);
	launch_result_release(&result);
}

static void several_tokens_in_one_event_are_no_mismatch(void **state)
{
	const char *stub[] = {"--fraud", "chunks", NULL};
	struct launch_result result;
	measure_bed_arm(&(struct stub_experiment){.stub = stub}, 0, &result);
	assert_string_equal(result.reason, "");
	launch_result_release(&result);
}

static void client_and_engine_run_on_the_cpus_they_were_given(void **state)
{
	struct cpu_list allowed, one = {0}, rest;
	assert_int_equal(cpu_list_allowed(0, &allowed, NULL), STATUS_OK);
	if (cpu_list_count(&allowed) < 2)
		skip();
	rest = allowed;
	for (int cpu = 0; cpu < CPU_LIST_CPUS_MAX && !cpu_list_count(&one); cpu++)
		if (allowed.bits[cpu / 64] >> (cpu % 64) & 1) {
			one.bits[cpu / 64] = (uint64_t)1 << (cpu % 64);
			rest.bits[cpu / 64] &= ~one.bits[cpu / 64];
		}
	struct text client = {0}, engine = {0}, pin = {0};
	cpu_list_text(&one, &client);
	cpu_list_text(&rest, &engine);
	struct measure_bed bed;
	struct launch_result result;
	measure_bed_open(&bed, &(struct stub_experiment){0});
	bed.experiment->pin =
		(struct pin){.client_text = text_str(&client), .engine_text = text_str(&engine), .client = one, .engine = rest};
	assert_int_equal(measure_launch(&bed.measure, 0, &result, NULL), STATUS_OK);
	const struct json *record = json_get(result.probes, "pin");
	assert_string_equal(json_text(json_get(record, "client")), text_str(&client));
	assert_string_equal(json_text(json_get(record, "engine")), text_str(&engine));
	struct cpu_list after;
	assert_int_equal(cpu_list_allowed(0, &after, NULL), STATUS_OK);
	assert_memory_equal(&after, &allowed, sizeof allowed);
	launch_result_release(&result);
	measure_bed_close(&bed);
	text_release(&client);
	text_release(&engine);
	text_release(&pin);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_are_sent_when_they_are_due_and_not_before),
		cmocka_unit_test(a_request_waits_for_a_slot_and_that_is_not_the_clients_fault),
		cmocka_unit_test(the_quiet_between_two_requests_is_no_stall),
		cmocka_unit_test(a_launch_under_an_open_loop_keeps_its_times_and_its_goodput),
		cmocka_unit_test(a_client_that_is_too_late_voids_the_run),
		cmocka_unit_test(warm_up_goes_on_until_three_passes_agree_or_time_is_up),
		cmocka_unit_test(an_answer_of_more_events_than_tokens_breaks_a_guard),
		cmocka_unit_test(a_run_that_cannot_be_saved_is_not_sent_to_its_end),
		cmocka_unit_test(several_tokens_in_one_event_are_no_mismatch),
		cmocka_unit_test(client_and_engine_run_on_the_cpus_they_were_given),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
