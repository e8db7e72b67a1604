/* `verdict bench` as a user meets it: documents, lines, exit codes, and what the server saw of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "tests/support/roles.h"

#define FIELD "tests/golden/field/"

/* Runs bench against a stub with these arguments; the document is NULL when nothing that parses was printed. */
static int bench(const char *const *stub_arguments, const char *const *extra, struct json **document, struct text *errors)
{
	struct stub_process stub;
	stub_start(&stub, stub_arguments);
	const char *arguments[24] = {"bench", stub.url, "--json"};
	for (int i = 0; extra && extra[i]; i++)
		arguments[3 + i] = extra[i];
	struct text out = {0};
	int code = support_run(arguments, &out, errors);
	stub_stop(&stub);
	*document = NULL;
	json_parse(text_str(&out), out.len, "output", document, NULL);
	text_release(&out);
	return code;
}

static const struct json *first_request(const struct json *document)
{
	return json_at(json_get(document, "requests"), 0);
}

static bool has_flag(const struct json *request, const char *name)
{
	const struct json *flags = json_get(request, "flags");
	for (size_t i = 0; i < json_count(flags); i++)
		if (text_equal(json_text(json_at(flags, i)), name))
			return true;
	return false;
}

static void a_run_counts_tokens_and_time(void **state)
{
	const char *stub[] = {"--token-ms", "1", NULL},
		   *extra[] = {
			   "--runs", "2", "--warmup", "1", "--requests", "3", "--concurrency", "2", "--output-tokens", "16", NULL};
	struct json *document;
	struct text errors = {0};
	assert_int_equal(bench(stub, extra, &document, &errors), 0);
	assert_int_equal(json_count(json_get(document, "runs")), 2);
	assert_int_equal(json_count(json_get(document, "requests")), 6);
	assert_int_equal(json_int(json_get(json_get(document, "overall"), "completion_tokens"), 0), 96);
	double rate = json_number(json_get(json_get(document, "overall"), "tok_per_s"), 0);
	assert_true(rate > 50 && rate < 2000);
	const struct json *request = first_request(document);
	assert_true(json_bool(json_get(request, "ok"), false));
	assert_int_equal(json_int(json_get(request, "status"), 0), 200);
	assert_true(json_number(json_get(request, "ttft_ms"), 0) > 0);
	assert_int_equal(json_count(json_get(request, "flags")), 0);
	assert_string_equal(json_text(json_get(request, "finish_reason")), "length");
	json_free(document);
	text_release(&errors);
}

static void transcripts_from_the_field_come_out_as_expected(void **state)
{
	struct text listing = {0};
	struct json *cases = NULL;
	assert_int_equal(file_read(FIELD "b_expect.json", 1 << 20, &listing, NULL), STATUS_OK);
	assert_int_equal(json_parse(listing.data, listing.len, "b_expect.json", &cases, NULL), STATUS_OK);
	for (void *it = json_first(cases); it; it = json_next(cases, it)) {
		const struct json *expect = json_get(json_iterator_value(it), "expect");
		char path[256], asked[16];
		snprintf(path, sizeof(path), FIELD "%s", json_iterator_key(it));
		snprintf(asked, sizeof(asked), "%lld", (long long)json_int(json_get(expect, "requested_max_tokens"), 8));
		const char *stub[] = {"--transcript", path, NULL};
		const char *extra[] = {"--runs", "1", "--warmup", "0", "--protocol", "chat", "--output-tokens", asked, NULL};
		struct json *document;
		struct text errors = {0};
		int code = bench(stub, extra, &document, &errors);
		print_message("%s: exit %d %s", json_iterator_key(it), code, text_str(&errors));
		bool ok = json_bool(json_get(expect, "ok"), false);
		const struct json *request = first_request(document);
		assert_int_equal(code, ok ? 0 : 3);
		assert_int_equal(json_bool(json_get(request, "ok"), !ok), ok);
		if (json_get(expect, "completion_tokens"))
			assert_true(json_same(json_get(request, "completion_tokens"), json_get(expect, "completion_tokens")));
		if (json_get(expect, "text"))
			assert_string_equal(json_text(json_get(request, "text")), json_text(json_get(expect, "text")));
		if (json_get(expect, "flag"))
			assert_true(has_flag(request, json_text(json_get(expect, "flag"))));
		if (json_get(expect, "tpot_ms"))
			assert_int_equal(json_kind_of(json_get(request, "tpot_ms")), JSON_KIND_NULL);
		if (json_get(expect, "error_contains"))
			assert_non_null(
				strstr(json_text(json_get(request, "error")), json_text(json_get(expect, "error_contains"))));
		if (json_get(expect, "status")) {
			assert_true(json_same(json_get(request, "status"), json_get(expect, "status")));
			assert_int_equal(
				json_int(json_get(json_get(json_get(document, "overall"), "failed_by_status"), "503"), 0), 1);
		}
		if (!ok)
			assert_int_equal(json_int(json_get(json_at(json_get(document, "runs"), 0), "failed"), 0), 1);
		json_free(document);
		text_release(&errors);
	}
	json_free(cases);
	text_release(&listing);
}

static void it_posts_exactly_what_it_says_and_nothing_else(void **state)
{
	char log_path[] = "/tmp/verdict-bench-XXXXXX";
	int fd = mkstemp(log_path);
	assert_true(fd >= 0);
	close(fd);
	const char *stub[] = {"--no-models", "--request-log", log_path, NULL};
	const char *extra[] = {
		"--runs", "3", "--warmup", "2", "--concurrency", "2", "--output-tokens", "4", "--protocol", "chat", NULL};
	struct json *document;
	struct text errors = {0}, log = {0};
	assert_int_equal(bench(stub, extra, &document, &errors), 0);
	assert_int_equal(file_read(log_path, 1 << 20, &log, NULL), STATUS_OK);
	const char *line = "POST /v1/chat/completions\n";
	assert_int_equal(log.len, (3 + 2) * 2 * strlen(line));
	for (const char *at = log.data; *at; at += strlen(line))
		assert_true(text_starts_with(at, line));
	unlink(log_path);
	text_release(&log);
	text_release(&errors);
	json_free(document);
}

static void people_get_one_line_per_run_and_the_overall(void **state)
{
	struct stub_process stub;
	stub_start(&stub, NULL);
	const char *arguments[] = {"bench", stub.url, "--runs", "2", "--warmup", "1", "--output-tokens", "8", NULL};
	struct text out = {0}, errors = {0};
	assert_int_equal(support_run(arguments, &out, &errors), 0);
	assert_true(text_starts_with(text_str(&out), "warm-up 1/1  8 tokens"));
	assert_non_null(strstr(text_str(&out), "\nrun 1/2  8 tokens  "));
	assert_non_null(strstr(text_str(&out), "\nrun 2/2  8 tokens  "));
	assert_non_null(strstr(text_str(&out), "\noverall  16 tokens  "));
	assert_non_null(strstr(text_str(&out), "  prompt 10"));
	assert_int_equal(errors.len, 0);
	stub_stop(&stub);
	text_release(&out);
	text_release(&errors);
}

static void output_is_the_same_under_any_locale_and_proxy(void **state)
{
	setenv("LC_ALL", "de_DE.UTF-8", 1);
	setenv("http_proxy", "http://127.0.0.1:9", 1);
	setenv("ALL_PROXY", "http://127.0.0.1:9", 1);
	const char *extra[] = {"--runs", "1", "--warmup", "0", "--output-tokens", "4", NULL};
	struct json *document;
	struct text errors = {0};
	assert_int_equal(bench(NULL, extra, &document, &errors), 0);
	assert_true(json_number(json_get(json_get(document, "overall"), "tok_per_s"), -1) > 0);
	json_free(document);
	text_release(&errors);
	unsetenv("LC_ALL");
	unsetenv("http_proxy");
	unsetenv("ALL_PROXY");
}

static void a_server_that_stops_early_is_flagged(void **state)
{
	const char *stub[] = {"--output-tokens", "1", NULL},
		   *extra[] = {"--runs", "1", "--warmup", "0", "--output-tokens", "64", NULL};
	struct json *document;
	struct text errors = {0};
	assert_int_equal(bench(stub, extra, &document, &errors), 0);
	assert_true(has_flag(first_request(document), "short output"));
	assert_int_equal(json_kind_of(json_get(first_request(document), "tpot_ms")), JSON_KIND_NULL);
	json_free(document);
	text_release(&errors);
}

static void bad_usage_is_exit_code_2_and_names_the_option(void **state)
{
	static const struct {
		const char *arguments[8];
		const char *names;
	} cases[] = {
		{{"bench", NULL}, "URL"},
		{{"bench", "a", "b", NULL}, "URL"},
		{{"bench", "ftp://x", NULL}, "ftp://x"},
		{{"bench", "http://127.0.0.1:99999", NULL}, "127.0.0.1:99999"},
		{{"bench", "http://127.0.0.1:1", "--runs", "0", NULL}, "runs"},
		{{"bench", "http://127.0.0.1:1", "--protocol", "grpc", NULL}, "protocol"},
		{{"bench", "http://127.0.0.1:1", "--frobnicate", NULL}, "frobnicate"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct text out = {0}, errors = {0};
		assert_int_equal(support_run(cases[i].arguments, &out, &errors), 2);
		assert_non_null(strstr(text_str(&errors), cases[i].names));
		assert_int_equal(out.len, 0);
		text_release(&out);
		text_release(&errors);
	}
}

static void nobody_there_is_exit_code_3(void **state)
{
	const char *arguments[] = {"bench", "http://127.0.0.1:1", "--runs", "1", "--warmup", "0", NULL};
	struct text out = {0}, errors = {0};
	assert_int_equal(support_run(arguments, &out, &errors), 3);
	assert_non_null(strstr(text_str(&errors), "no request succeeded"));
	text_release(&out);
	text_release(&errors);
}

static void an_interrupt_is_exit_code_130_at_once(void **state)
{
	const char *hang[] = {"--hang-after", "0", NULL};
	char log_path[] = "/tmp/verdict-bench-XXXXXX";
	int fd = mkstemp(log_path);
	assert_true(fd >= 0);
	close(fd);
	const char *stub_arguments[] = {hang[0], hang[1], "--request-log", log_path, NULL};
	struct stub_process stub;
	stub_start(&stub, stub_arguments);
	const char *arguments[] = {"bench", stub.url, NULL};
	pid_t pid = support_spawn(arguments);
	/* The first POST shows that it is at work. */
	struct text log = {0};
	int64_t until_ns = clock_monotonic_ns() + (int64_t)10000000000;
	while (log.len == 0 && clock_monotonic_ns() < until_ns) {
		clock_sleep_ns(5000000);
		file_read(log_path, 1 << 20, &log, NULL);
	}
	assert_true(log.len > 0);
	kill(pid, SIGINT);
	int wait_status = 0;
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	assert_true(WIFEXITED(wait_status));
	assert_int_equal(WEXITSTATUS(wait_status), 130);
	text_release(&log);
	unlink(log_path);
	stub_stop(&stub);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_run_counts_tokens_and_time),
		cmocka_unit_test(transcripts_from_the_field_come_out_as_expected),
		cmocka_unit_test(it_posts_exactly_what_it_says_and_nothing_else),
		cmocka_unit_test(people_get_one_line_per_run_and_the_overall),
		cmocka_unit_test(output_is_the_same_under_any_locale_and_proxy),
		cmocka_unit_test(a_server_that_stops_early_is_flagged),
		cmocka_unit_test(bad_usage_is_exit_code_2_and_names_the_option),
		cmocka_unit_test(nobody_there_is_exit_code_3),
		cmocka_unit_test(an_interrupt_is_exit_code_130_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
