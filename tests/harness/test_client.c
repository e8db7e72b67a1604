/* The client against a stub server on loopback: transcripts with their delays, refusals, silence, proxies, counts of what was sent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/client.h"
#include "tests/support/roles.h"

#define FIELD "tests/golden/field/"
#define MS ((int64_t)1000000)

static const char body_text[] = "{\"prompt\":\"x\",\"max_tokens\":8,\"stream\":true}";
#define BODIES_MAX 64

static struct client_load load_of(
	const struct stub_process *stub, char url[128], struct client_body bodies[BODIES_MAX], size_t n, int concurrency)
{
	snprintf(url, 128, "%s/v1/completions", stub->url);
	for (size_t i = 0; i < n; i++)
		bodies[i] = (struct client_body){body_text, sizeof(body_text) - 1, 8};
	return (struct client_load){
		.url = url, .bodies = bodies, .n_bodies = n, .concurrency = concurrency, .run_timeout_s = 20, .stall_s = 10};
}

static void run_one_load(
	const char *const *arguments, size_t n, int concurrency, struct run_result *run, struct client_report *report)
{
	struct stub_process stub;
	stub_start(&stub, arguments);
	char url[128];
	struct client_body bodies[BODIES_MAX];
	struct client_load load = load_of(&stub, url, bodies, n, concurrency);
	struct client *client = NULL;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	*run = (struct run_result){0};
	assert_int_equal(client_run_load(client, &load, run, report, NULL), STATUS_OK);
	client_destroy(client);
	stub_stop(&stub);
}

static void run_transcript(const char *file, struct run_result *run)
{
	char path[256];
	snprintf(path, sizeof(path), FIELD "%s", file);
	const char *arguments[] = {"--transcript", path, NULL};
	struct client_report report;
	run_one_load(arguments, 1, 1, run, &report);
	assert_int_equal(report.end, CLIENT_COMPLETED);
}

/* Loopback and a busy machine: later than the server waited, by at most this much; never earlier. */
#define LATE_MS_MAX 200.0

static void times_of_transcripts_are_those_of_their_delays(void **state)
{
	static const struct {
		const char *file;
		double ttft_ms;
	} cases[] = {
		{"b06_role_only_first.sse", 300},
		{"b08_buffered_tokens_continuous_usage.sse", 100},
		{"b10_comment_keepalive.sse", 250},
		{"b18a_one_token.sse", 40},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct run_result run;
		run_transcript(cases[i].file, &run);
		assert_true(run.requests[0].ok);
		double ttft_ms = request_ttft_ms(&run.requests[0]);
		if (ttft_ms < cases[i].ttft_ms - 1 || ttft_ms > cases[i].ttft_ms + LATE_MS_MAX)
			fail_msg("%s: first token after %.1f ms", cases[i].file, ttft_ms);
		run_result_release(&run);
	}
}

static void done_ends_the_request_though_the_socket_stays_open(void **state)
{
	struct run_result run;
	int64_t begin_ns = clock_monotonic_ns();
	run_transcript("b15b_open_after_done.sse", &run);
	assert_true(run.requests[0].ok);
	assert_true(run.end_ns - run.begin_ns < 500 * MS);
	assert_true(clock_monotonic_ns() - begin_ns < (int64_t)15000 * MS);
	run_result_release(&run);
}

static void a_refusal_is_counted_once_and_never_repeated(void **state)
{
	char log_path[] = "/tmp/verdict-client-XXXXXX";
	int fd = mkstemp(log_path);
	assert_true(fd >= 0);
	close(fd);
	const char *arguments[] = {"--transcript", FIELD "b16_503.http", "--request-log", log_path, NULL};
	struct run_result run;
	struct client_report report;
	run_one_load(arguments, 5, 2, &run, &report);
	for (size_t i = 0; i < run.n_requests; i++) {
		assert_false(run.requests[i].ok);
		assert_int_equal(run.requests[i].http_status, 503);
		assert_non_null(strstr(run.requests[i].error, "no free slot"));
	}
	struct run_metrics metrics;
	run_metrics_compute(&run, 2, &metrics);
	assert_true(isnan(metrics.output_tps));
	assert_float_equal(metrics.completed_frac, 0, 0);
	struct text text = {0};
	assert_int_equal(file_read(log_path, 1 << 20, &text, NULL), STATUS_OK);
	assert_int_equal(text.len, 5 * strlen("POST /v1/completions\n"));
	text_release(&text);
	unlink(log_path);
	run_result_release(&run);
}

static void every_body_is_sent_once_at_the_given_concurrency(void **state)
{
	const char *arguments[] = {"--token-ms", "2", NULL};
	struct run_result run;
	struct client_report report;
	run_one_load(arguments, 12, 4, &run, &report);
	assert_int_equal(run.n_requests, 12);
	for (size_t i = 0; i < run.n_requests; i++) {
		assert_true(run.requests[i].ok);
		assert_int_equal(run.requests[i].completion_tokens, 8);
		assert_int_equal(run.requests[i].n_times, 8);
		int in_flight = 0;
		for (size_t j = 0; j < run.n_requests; j++)
			in_flight += run.requests[j].sent_ns <= run.requests[i].sent_ns &&
				run.requests[j].end_ns > run.requests[i].sent_ns;
		assert_true(in_flight <= 4 + 1); /* a request's end is its last token, a little before its slot is free */
	}
	struct run_metrics metrics;
	run_metrics_compute(&run, 4, &metrics);
	assert_int_equal(metrics.output_tokens, 96);
	assert_true(metrics.output_tps > 96 / 2.0 && metrics.output_tps < 4 / 0.002);
	run_result_release(&run);
}

static void a_silent_server_is_a_stall_and_what_came_before_it_counts(void **state)
{
	const char *arguments[] = {"--hang-after", "2", NULL};
	struct stub_process stub;
	stub_start(&stub, arguments);
	char url[128];
	struct client_body bodies[BODIES_MAX];
	struct client_load load = load_of(&stub, url, bodies, 5, 1);
	load.stall_s = 0.3;
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_OK);
	assert_int_equal(report.end, CLIENT_STALLED);
	assert_true(run.requests[0].ok && run.requests[1].ok);
	assert_string_equal(run.requests[2].error, "no event for 0.3 s");
	assert_string_equal(run.requests[4].error, "not sent: the run had ended");
	run_result_release(&run);
	client_destroy(client);
	stub_stop(&stub);
}

static void a_run_that_takes_too_long_is_cut(void **state)
{
	const char *arguments[] = {"--token-ms", "100", NULL};
	struct stub_process stub;
	stub_start(&stub, arguments);
	char url[128];
	struct client_body bodies[BODIES_MAX];
	struct client_load load = load_of(&stub, url, bodies, 2, 1);
	load.run_timeout_s = 0.4;
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_OK);
	assert_int_equal(report.end, CLIENT_TIMED_OUT);
	assert_false(run.requests[0].ok);
	assert_true(run.requests[0].flags & REQUEST_TRUNCATED);
	run_result_release(&run);
	client_destroy(client);
	stub_stop(&stub);
}

static bool always(void *ctx)
{
	return true;
}

static void a_watched_descriptor_ends_the_run_at_once(void **state)
{
	const char *arguments[] = {"--hang-after", "0", NULL};
	struct stub_process stub;
	stub_start(&stub, arguments);
	char url[128];
	struct client_body bodies[BODIES_MAX];
	struct client_load load = load_of(&stub, url, bodies, 1, 1);
	struct client_watch watch = {.fds = {eventfd(1, EFD_CLOEXEC)}, .n_fds = 1, .stop = always};
	load.watch = &watch;
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_OK);
	assert_int_equal(report.end, CLIENT_STOPPED);
	assert_string_equal(run.requests[0].error, "the run was stopped");
	run_result_release(&run);
	char health[128];
	snprintf(health, sizeof(health), "%s/v1/completions", stub.url);
	struct client_answer answer;
	struct err err = {0};
	assert_int_equal(client_request(client, health, NULL, &bodies[0], 5, &watch, &answer, &err), STATUS_INTERRUPTED);
	text_release(&answer.body);
	close(watch.fds[0]);
	client_destroy(client);
	stub_stop(&stub);
}

static void proxies_of_the_environment_are_not_used(void **state)
{
	static const char *const names[] = {"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		setenv(names[i], "http://127.0.0.1:9", 1);
	struct run_result run;
	struct client_report report;
	run_one_load(NULL, 1, 1, &run, &report);
	assert_true(run.requests[0].ok);
	run_result_release(&run);
	struct stub_process stub;
	stub_start(&stub, NULL);
	char url[128];
	snprintf(url, sizeof(url), "%s/health", stub.url);
	struct client *client = NULL;
	struct client_answer answer;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_request(client, url, NULL, NULL, 5, NULL, &answer, NULL), STATUS_OK);
	assert_int_equal(answer.http_status, 200);
	text_release(&answer.body);
	client_destroy(client);
	stub_stop(&stub);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		unsetenv(names[i]);
}

static void nobody_listening_is_an_error_that_says_so(void **state)
{
	struct stub_process stub;
	stub_start(&stub, NULL);
	struct stub_process gone = stub;
	stub_stop(&stub);
	char url[128];
	struct client_body bodies[BODIES_MAX];
	struct client_load load = load_of(&gone, url, bodies, 3, 2);
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_OK);
	assert_int_equal(report.end, CLIENT_COMPLETED);
	for (size_t i = 0; i < 3; i++) {
		assert_false(run.requests[i].ok);
		assert_int_equal(run.requests[i].http_status, 0);
		assert_non_null(strstr(run.requests[i].error, "onnect"));
	}
	run_result_release(&run);
	struct client_answer answer;
	assert_int_equal(client_request(client, url, NULL, NULL, 5, NULL, &answer, NULL), STATUS_UNAVAILABLE);
	text_release(&answer.body);
	client_destroy(client);
}

static void a_server_that_dies_fails_its_requests(void **state)
{
	const char *arguments[] = {"--die-after", "1", NULL};
	struct run_result run;
	struct client_report report;
	run_one_load(arguments, 3, 1, &run, &report);
	assert_true(run.requests[0].ok);
	assert_false(run.requests[1].ok);
	assert_false(run.requests[2].ok);
	run_result_release(&run);
}

static void bad_loads_are_refused(void **state)
{
	struct client *client = NULL;
	struct run_result run = {0};
	struct client_report report;
	struct client_load load = {.url = "http://127.0.0.1:1", .concurrency = 0, .run_timeout_s = 1, .stall_s = 1};
	assert_int_equal(client_create(&client, NULL), STATUS_OK);
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_INPUT);
	load.concurrency = CLIENT_CONCURRENCY_MAX + 1;
	assert_int_equal(client_run_load(client, &load, &run, &report, NULL), STATUS_INPUT);
	struct client_answer answer;
	assert_int_equal(client_request(client, "file:///etc/passwd", NULL, NULL, 1, NULL, &answer, NULL), STATUS_UNAVAILABLE);
	text_release(&answer.body);
	client_destroy(client);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(times_of_transcripts_are_those_of_their_delays),
		cmocka_unit_test(done_ends_the_request_though_the_socket_stays_open),
		cmocka_unit_test(a_refusal_is_counted_once_and_never_repeated),
		cmocka_unit_test(every_body_is_sent_once_at_the_given_concurrency),
		cmocka_unit_test(a_silent_server_is_a_stall_and_what_came_before_it_counts),
		cmocka_unit_test(a_run_that_takes_too_long_is_cut),
		cmocka_unit_test(a_watched_descriptor_ends_the_run_at_once),
		cmocka_unit_test(proxies_of_the_environment_are_not_used),
		cmocka_unit_test(nobody_listening_is_an_error_that_says_so),
		cmocka_unit_test(a_server_that_dies_fails_its_requests),
		cmocka_unit_test(bad_loads_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
