/* The event splitter: line ends, comments, fields, cuts anywhere, limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/text.h"
#include "harness/sse.h"
#include "tests/support/replay_checks.h"

/* Events written as "type|data;" so that one string states them all. */
static void write_event(void *ctx, const struct sse_event *event)
{
	struct text *out = ctx;
	text_printf(out, "%s|", event->type);
	text_append(out, event->data, event->len);
	text_append_char(out, ';');
}

static void split(const char *bytes, size_t len, size_t step, struct text *out)
{
	struct sse_parser parser = {0};
	for (size_t at = 0; at < len; at += step)
		assert_int_equal(
			sse_feed(&parser, bytes + at, len - at < step ? len - at : step, write_event, out, NULL), STATUS_OK);
	sse_finish(&parser, write_event, out);
	sse_release(&parser);
}

static void expect_events(const char *bytes, const char *expected)
{
	size_t len = strlen(bytes);
	for (size_t step = 1; step <= len; step++) {
		struct text out = {0};
		split(bytes, len, step, &out);
		assert_string_equal(text_str(&out), expected);
		text_release(&out);
	}
}

static void every_line_end_gives_the_same_events(void **state)
{
	expect_events("data: a\n\ndata: b\n\n", "|a;|b;");
	expect_events("data: a\r\n\r\ndata: b\r\n\r\n", "|a;|b;");
	expect_events("data: a\r\rdata: b\r\r", "|a;|b;");
	expect_events("data: a\n\r\ndata: b\r\n\r", "|a;|b;");
}

static void one_space_after_the_colon_is_optional_and_only_one_goes(void **state)
{
	expect_events("data:a\n\ndata: a\n\ndata:  a\n\n", "|a;|a;| a;");
}

static void data_lines_of_one_event_are_joined_by_a_line_feed(void **state)
{
	expect_events("data: a\ndata: b\ndata\ndata:\n\n", "|a\nb\n\n;");
}

static void comments_and_unknown_fields_are_skipped(void **state)
{
	expect_events(":\n: keep-alive\n\nid: 4\nretry: 10\nfoo: bar\nfoo\n\ndata: a\n:x\ndata: b\n\n", "|a\nb;");
}

static void an_event_type_belongs_to_its_event_only(void **state)
{
	expect_events("event: error\ndata: a\n\ndata: b\n\nevent: lost\n\ndata: c\n\n", "error|a;|b;|c;");
}

static void a_byte_order_mark_is_skipped_at_the_start_only(void **state)
{
	expect_events("\xEF\xBB\xBF"
		      "data: a\n\n\xEF\xBB\xBF"
		      "data: b\n\n",
		"|a;");
}

static void unicode_separators_do_not_end_a_line(void **state)
{
	expect_events("data: a\xC2\x85"
		      "b\xE2\x80\xA8"
		      "c\n\n",
		"|a\xC2\x85"
		"b\xE2\x80\xA8"
		"c;");
}

static void the_last_event_needs_no_blank_line_when_the_stream_ends(void **state)
{
	expect_events("data: a\n\ndata: [DONE]", "|a;|[DONE];");
	expect_events("data: a\n\ndata: [DONE]\n", "|a;|[DONE];");
}

static void an_empty_stream_has_no_events(void **state)
{
	expect_events("\n\n\r\r\n", "");
}

static void an_event_above_the_limit_is_refused_whatever_it_is_made_of(void **state)
{
	struct text line = {0}, out = {0};
	text_append_str(&line, "data: ");
	for (int i = 0; i < 1000; i++)
		text_append_str(&line, "0123456789");
	for (int joined = 0; joined < 2; joined++) {
		struct sse_parser parser = {0};
		enum status status = STATUS_OK;
		size_t fed = 0;
		while (!status && fed < 2 * SSE_EVENT_BYTES_MAX) {
			status = sse_feed(&parser, line.data, line.len, write_event, &out, NULL);
			if (joined && !status)
				status = sse_feed(&parser, "\n", 1, write_event, &out, NULL);
			fed += line.len;
		}
		assert_int_equal(status, STATUS_INPUT);
		assert_true(fed <= SSE_EVENT_BYTES_MAX + 2 * line.len);
		sse_release(&parser);
	}
	assert_int_equal(out.len, 0);
	text_release(&line);
	text_release(&out);
}

static void the_fuzzers_corpus_is_read_without_harm(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/sse", check_sse_bytes) >= 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_line_end_gives_the_same_events),
		cmocka_unit_test(one_space_after_the_colon_is_optional_and_only_one_goes),
		cmocka_unit_test(data_lines_of_one_event_are_joined_by_a_line_feed),
		cmocka_unit_test(comments_and_unknown_fields_are_skipped),
		cmocka_unit_test(an_event_type_belongs_to_its_event_only),
		cmocka_unit_test(a_byte_order_mark_is_skipped_at_the_start_only),
		cmocka_unit_test(unicode_separators_do_not_end_a_line),
		cmocka_unit_test(the_last_event_needs_no_blank_line_when_the_stream_ends),
		cmocka_unit_test(an_empty_stream_has_no_events),
		cmocka_unit_test(the_fuzzers_corpus_is_read_without_harm),
		cmocka_unit_test(an_event_above_the_limit_is_refused_whatever_it_is_made_of),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
