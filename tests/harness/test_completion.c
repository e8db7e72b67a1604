/* Reading answers: every transcript from the field, cut in every way, with a simulated clock; then what they do not cover. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/completion.h"
#include "tests/support/replay_checks.h"

#define FIELD "tests/golden/field/"
#define MS ((int64_t)1000000)
#define SENT_NS (5 * MS)

/* Time at which the byte at offset is read: the sum of the delays that the replay puts before it and its predecessors. */
static int64_t time_of(const struct json *replay, size_t offset)
{
	int64_t at_ns = SENT_NS;
	const struct json *delays = json_get(replay, "delay_before_byte");
	for (size_t i = 0; i < json_count(delays); i++)
		if ((size_t)json_int(json_at(json_at(delays, i), 0), 0) <= offset)
			at_ns += json_int(json_at(json_at(delays, i), 1), 0) * MS;
	return at_ns;
}

/* How many bytes from offset on come in one read: up to the next delay, cut or multiple of step. */
static size_t read_len(const struct json *replay, size_t offset, size_t len, size_t step)
{
	size_t end = offset + step < len ? offset + step : len;
	const struct json *delays = json_get(replay, "delay_before_byte"), *cuts = json_get(replay, "cuts");
	for (size_t i = 0; i < json_count(delays); i++) {
		size_t at = (size_t)json_int(json_at(json_at(delays, i), 0), 0);
		end = at > offset && at < end ? at : end;
	}
	for (size_t i = 0; i < json_count(cuts); i++) {
		size_t at = (size_t)json_int(json_at(cuts, i), 0);
		end = at > offset && at < end ? at : end;
	}
	return end - offset;
}

static void play(const struct text *bytes, const struct json *replay, size_t step, int expected_tokens, const char *transport_error,
	struct request_result *out)
{
	struct completion_answer answer = {0};
	completion_begin(&answer, 200, "text/event-stream; charset=utf-8");
	for (size_t at = 0; at < bytes->len;) {
		size_t len = read_len(replay, at, bytes->len, step);
		assert_int_equal(completion_feed(&answer, bytes->data + at, len, time_of(replay, at), NULL), STATUS_OK);
		at += len;
	}
	*out = (struct request_result){.sent_ns = SENT_NS};
	completion_finish(&answer, expected_tokens, transport_error, out);
	completion_answer_release(&answer);
}

static void play_text(const char *bytes, const char *transport_error, struct request_result *out)
{
	struct text text = {0};
	text_append_str(&text, bytes);
	play(&text, NULL, text.len ? text.len : 1, -1, transport_error, out);
	text_release(&text);
}

static bool has_flag(const struct request_result *result, const char *name)
{
	for (int bit = 0; bit < REQUEST_FLAGS_COUNT; bit++)
		if ((result->flags & (1u << bit)) && text_equal(request_flag_name(1u << bit), name))
			return true;
	return false;
}

static void expect_result(const char *file, const struct json *expect, const struct request_result *result)
{
	print_message("%s: %s\n", file, result->error ? result->error : "ok");
	assert_int_equal(result->ok, json_bool(json_get(expect, "ok"), false));
	const struct json *tokens = json_get(expect, "completion_tokens");
	if (tokens)
		assert_int_equal(result->completion_tokens, json_int(tokens, -1));
	if (json_get(expect, "text"))
		assert_string_equal(result->text, json_text(json_get(expect, "text")));
	if (json_get(expect, "text_so_far"))
		assert_string_equal(result->text, json_text(json_get(expect, "text_so_far")));
	if (json_get(expect, "flag"))
		assert_true(has_flag(result, json_text(json_get(expect, "flag"))));
	if (json_get(expect, "error_contains"))
		assert_non_null(strstr(result->error, json_text(json_get(expect, "error_contains"))));
	const struct json *ttft = json_get(expect, "ttft_ms");
	if (json_is_number(ttft))
		assert_float_equal(request_ttft_ms(result), json_number(ttft, 0), 1e-6);
	else if (ttft)
		assert_true(isnan(request_ttft_ms(result)));
	if (json_get(expect, "tpot_ms"))
		assert_true(isnan(request_tpot_ms(result)));
	if (!result->ok)
		assert_false(json_bool(json_get(expect, "counts_in_throughput"), false));
}

static void transcripts_from_the_field_read_as_expected_however_they_are_cut(void **state)
{
	struct text listing = {0};
	struct json *cases = NULL;
	assert_int_equal(file_read(FIELD "b_expect.json", 1 << 20, &listing, NULL), STATUS_OK);
	assert_int_equal(json_parse(listing.data, listing.len, "b_expect.json", &cases, NULL), STATUS_OK);
	int count = 0;
	for (void *it = json_first(cases); it; it = json_next(cases, it)) {
		const char *file = json_iterator_key(it);
		if (!strstr(file, ".sse"))
			continue;
		char path[256];
		snprintf(path, sizeof(path), FIELD "%s", file);
		struct text bytes = {0};
		assert_int_equal(file_read(path, 1 << 20, &bytes, NULL), STATUS_OK);
		const struct json *entry = json_iterator_value(it), *expect = json_get(entry, "expect");
		int asked = (int)json_int(json_get(expect, "requested_max_tokens"), -1);
		const size_t steps[] = {bytes.len, 1, 2, 7, 64};
		for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
			struct request_result result;
			play(&bytes, json_get(entry, "replay"), steps[i], asked, NULL, &result);
			expect_result(file, expect, &result);
			request_result_release(&result);
		}
		text_release(&bytes);
		count++;
	}
	assert_int_equal(count, 17);
	json_free(cases);
	text_release(&listing);
}

#define HEAD "data: {\"choices\":[{\"index\":0,\"text\":\"A\",\"finish_reason\":null}]}\n\n"
#define STOP "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"stop\"}]}\n\n"

static void expect_failure(const char *bytes, const char *transport_error, const char *contains)
{
	struct request_result result;
	play_text(bytes, transport_error, &result);
	assert_false(result.ok);
	if (!strstr(result.error, contains))
		fail_msg("'%s' does not hold '%s'", result.error, contains);
	request_result_release(&result);
}

static void a_stream_without_a_terminal_event_fails_as_truncated(void **state)
{
	expect_failure(HEAD, NULL, "truncated");
	expect_failure(HEAD, "connection reset", "truncated: connection reset");
	expect_failure(HEAD "data: {\"choi", NULL, "truncated");
}

static void a_200_answer_without_any_event_fails(void **state)
{
	expect_failure("", NULL, "no event");
	expect_failure(": ping\n\n", NULL, "no event");
	expect_failure("data: [DONE]\n\n", NULL, "no event");
	expect_failure("hello\n\n", NULL, "no event");
}

static void an_event_that_is_not_json_fails_the_request(void **state)
{
	expect_failure("data: {\"choi\n\n" HEAD STOP "data: [DONE]\n\n", NULL, "event 1 of the stream is not JSON");
	expect_failure(HEAD "data: NaN\n\ndata: [DONE]\n\n", NULL, "event 2 of the stream is not JSON");
}

static void a_named_error_event_fails_the_request(void **state)
{
	expect_failure(HEAD "event: error\ndata: {\"message\":\"engine gone\"}\n\ndata: [DONE]\n\n", NULL, "engine gone");
	expect_failure(HEAD "data: {\"error\":{\"message\":\"bad \xC3\xA9\"}}\n\n", "connection reset", "bad \xC3\xA9");
}

static void an_ended_connection_does_not_matter_after_the_terminal_event(void **state)
{
	struct request_result result;
	play_text(HEAD STOP "data: [DONE]\n\n", "connection reset", &result);
	assert_true(result.ok);
	request_result_release(&result);
	play_text(HEAD STOP, "connection reset", &result);
	assert_true(result.ok);
	assert_true(has_flag(&result, "no usage"));
	request_result_release(&result);
}

static void counts_that_cannot_be_counts_are_ignored(void **state)
{
	static const char *const usages[] = {"-3", "1.5", "\"7\"", "null", "99999999999"};
	for (size_t i = 0; i < sizeof(usages) / sizeof(usages[0]); i++) {
		char bytes[512];
		snprintf(bytes, sizeof(bytes),
			HEAD STOP "data: {\"choices\":[],\"usage\":{\"completion_tokens\":%s}}\n\ndata: [DONE]\n\n", usages[i]);
		struct request_result result;
		play_text(bytes, NULL, &result);
		assert_true(result.ok);
		assert_int_equal(result.completion_tokens, -1);
		request_result_release(&result);
	}
}

static void a_nul_in_the_text_becomes_a_replacement_character(void **state)
{
	struct request_result result;
	play_text("data: {\"choices\":[{\"text\":\"a\\u0000b\",\"finish_reason\":\"stop\"}]}\n\n", NULL, &result);
	assert_string_equal(result.text,
		"a\xEF\xBF\xBD"
		"b");
	request_result_release(&result);
}

static void reasoning_starts_the_clock_but_is_not_text(void **state)
{
	struct request_result result;
	play_text("data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n"
		  "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n"
		  "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}\n\n",
		NULL, &result);
	assert_true(result.ok);
	assert_int_equal(result.n_times, 2);
	assert_string_equal(result.text, "x");
	request_result_release(&result);
}

static void extra_counters_of_engines_are_read(void **state)
{
	struct request_result result;
	play_text(HEAD STOP "data: "
			    "{\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":9,\"prompt_tokens_details\":{"
			    "\"cached_tokens\":16}},"
			    "\"verdict\":{\"drafted\":6,\"accepted\":4}}\n\ndata: [DONE]\n\n",
		NULL, &result);
	assert_int_equal(result.prompt_tokens, 40);
	assert_int_equal(result.cached_tokens, 16);
	assert_int_equal(result.drafted, 6);
	assert_int_equal(result.accepted, 4);
	request_result_release(&result);
	play_text(HEAD "data: "
		       "{\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}],\"timings\":{\"cache_n\":3,\"predicted_n\":5,"
		       "\"draft_n\":8,"
		       "\"draft_n_accepted\":2}}\n\n",
		NULL, &result);
	assert_int_equal(result.completion_tokens, 5);
	assert_int_equal(result.cached_tokens, 3);
	assert_int_equal(result.drafted, 8);
	assert_int_equal(result.accepted, 2);
	request_result_release(&result);
}

static void read_one_document(
	int status, const char *type, const char *body, const char *transport_error, struct request_result *out)
{
	struct completion_answer answer = {0};
	completion_begin(&answer, status, type);
	assert_int_equal(completion_feed(&answer, body, strlen(body), 9 * MS, NULL), STATUS_OK);
	*out = (struct request_result){.sent_ns = SENT_NS};
	completion_finish(&answer, 4, transport_error, out);
	completion_answer_release(&answer);
}

static void a_refusal_reports_its_status_and_words(void **state)
{
	struct request_result result;
	read_one_document(503, "application/json", "{\"error\":{\"message\":\"no free slot\",\"code\":503}}", NULL, &result);
	assert_false(result.ok);
	assert_int_equal(result.http_status, 503);
	assert_string_equal(result.error, "HTTP 503: no free slot");
	request_result_release(&result);
	read_one_document(502, "text/html", "<html>Bad Gateway</html>", NULL, &result);
	assert_string_equal(result.error, "HTTP 502: <html>Bad Gateway</html>");
	request_result_release(&result);
	read_one_document(500, NULL, "\xFF\xFE", NULL, &result);
	assert_string_equal(result.error, "HTTP 500: no readable body");
	request_result_release(&result);
}

static void a_document_that_was_not_streamed_is_read_and_flagged(void **state)
{
	struct request_result result;
	read_one_document(200, "application/json; charset=utf-8",
		"{\"choices\":[{\"message\":{\"content\":\"hi\"},\"finish_reason\":\"stop\"}],\"usage\":{\"completion_tokens\":2}}",
		NULL, &result);
	assert_true(result.ok);
	assert_string_equal(result.text, "hi");
	assert_true(has_flag(&result, "not streamed"));
	assert_true(has_flag(&result, "short output"));
	assert_true(isnan(request_ttft_ms(&result)));
	assert_float_equal(request_e2e_ms(&result), 4.0, 1e-9);
	request_result_release(&result);
	read_one_document(200, "application/json", "{\"status\":\"ok\"}", NULL, &result);
	assert_false(result.ok);
	request_result_release(&result);
	read_one_document(200, "application/json", "{\"choices\":[{\"te", "connection reset", &result);
	assert_false(result.ok);
	request_result_release(&result);
}

static void no_answer_at_all_is_a_failure_with_the_reason(void **state)
{
	struct completion_answer answer = {0};
	struct request_result result = {.sent_ns = SENT_NS};
	completion_finish(&answer, -1, "connection refused", &result);
	assert_false(result.ok);
	assert_int_equal(result.http_status, 0);
	assert_string_equal(result.error, "connection refused");
	request_result_release(&result);
	completion_answer_release(&answer);
}

static void bytes_after_done_are_dropped(void **state)
{
	struct request_result result;
	play_text(HEAD STOP "data: [DONE]\n\ndata: {\"error\":\"late\"}\n\n", NULL, &result);
	assert_true(result.ok);
	request_result_release(&result);
}

static void the_fuzzers_corpus_is_read_without_harm(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/completion", check_completion_bytes) >= 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(transcripts_from_the_field_read_as_expected_however_they_are_cut),
		cmocka_unit_test(a_stream_without_a_terminal_event_fails_as_truncated),
		cmocka_unit_test(a_200_answer_without_any_event_fails),
		cmocka_unit_test(an_event_that_is_not_json_fails_the_request),
		cmocka_unit_test(a_named_error_event_fails_the_request),
		cmocka_unit_test(an_ended_connection_does_not_matter_after_the_terminal_event),
		cmocka_unit_test(counts_that_cannot_be_counts_are_ignored),
		cmocka_unit_test(a_nul_in_the_text_becomes_a_replacement_character),
		cmocka_unit_test(reasoning_starts_the_clock_but_is_not_text),
		cmocka_unit_test(extra_counters_of_engines_are_read),
		cmocka_unit_test(a_refusal_reports_its_status_and_words),
		cmocka_unit_test(a_document_that_was_not_streamed_is_read_and_flagged),
		cmocka_unit_test(no_answer_at_all_is_a_failure_with_the_reason),
		cmocka_unit_test(bytes_after_done_are_dropped),
		cmocka_unit_test(the_fuzzers_corpus_is_read_without_harm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
