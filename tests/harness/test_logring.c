/* The capped log: what is kept, what is told to be missing, and how its end is read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"
#include "harness/logring.h"

static void append_str(struct logring *ring, const char *text)
{
	logring_append(ring, text, strlen(text));
}

static void a_short_log_is_kept_whole(void **state)
{
	struct logring ring;
	struct text text = {0};
	assert_int_equal(logring_create(&ring, NULL), STATUS_OK);
	logring_read(&ring, &text);
	assert_int_equal(text.len, 0);
	append_str(&ring, "one\n");
	append_str(&ring, "two\n");
	logring_read(&ring, &text);
	assert_string_equal(text_str(&text), "one\ntwo\n");
	assert_int_equal(logring_total_bytes(&ring), 8);
	text_release(&text);
	logring_close(&ring);
}

/* Bytes of a log that says its own offsets: line i is "%08d\n" of i. */
static void append_lines(struct logring *ring, size_t bytes)
{
	struct text text = {0};
	for (size_t line = 0; text.len < bytes; line++)
		text_printf(&text, "%08zu\n", line);
	/* In uneven pieces, as a pipe gives them. */
	for (size_t at = 0, step = 1; at < bytes; at += step, step = step * 7 % 65521 + 1)
		logring_append(ring, text.data + at, bytes - at < step ? bytes - at : step);
	text_release(&text);
}

static void head_and_tail_are_kept_and_the_gap_is_told(void **state)
{
	const size_t sizes[] = {LOGRING_HEAD_BYTES, LOGRING_TAIL_BYTES + 1, LOGRING_HEAD_BYTES + LOGRING_TAIL_BYTES,
		LOGRING_HEAD_BYTES + LOGRING_TAIL_BYTES + 9, 5000000};
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct logring ring;
		struct text text = {0}, expected = {0};
		assert_int_equal(logring_create(&ring, NULL), STATUS_OK);
		append_lines(&ring, sizes[i]);
		assert_int_equal(logring_total_bytes(&ring), sizes[i]);
		for (size_t line = 0; expected.len < sizes[i]; line++)
			text_printf(&expected, "%08zu\n", line);
		logring_read(&ring, &text);
		size_t kept = LOGRING_HEAD_BYTES + LOGRING_TAIL_BYTES;
		if (sizes[i] <= kept) {
			assert_int_equal(text.len, sizes[i]);
			assert_memory_equal(text.data, expected.data, sizes[i]);
		} else {
			char gap[80];
			snprintf(gap, sizeof(gap), "\n[... %zu bytes of log were not kept ...]\n", sizes[i] - kept);
			assert_int_equal(text.len, kept + strlen(gap));
			assert_memory_equal(text.data, expected.data, LOGRING_HEAD_BYTES);
			assert_memory_equal(text.data + LOGRING_HEAD_BYTES, gap, strlen(gap));
			assert_memory_equal(text.data + text.len - LOGRING_TAIL_BYTES,
				expected.data + sizes[i] - LOGRING_TAIL_BYTES, LOGRING_TAIL_BYTES);
		}
		text_release(&text);
		text_release(&expected);
		logring_close(&ring);
	}
}

static void the_tail_begins_with_a_line_and_is_text(void **state)
{
	struct logring ring;
	struct text text = {0};
	assert_int_equal(logring_create(&ring, NULL), STATUS_OK);
	append_str(&ring, "first line\nsecond\n");
	logring_append(&ring, "a\0b\xFF\n", 5);
	logring_read_tail(&ring, 100, &text);
	assert_string_equal(text_str(&text), "first line\nsecond\na b\xEF\xBF\xBD\n");
	text_clear(&text);
	logring_read_tail(&ring, 14, &text);
	assert_string_equal(text_str(&text), "second\na b\xEF\xBF\xBD\n");
	text_clear(&text);
	logring_read_tail(&ring, 3, &text); /* no line begins in it: better a part than nothing */
	assert_true(utf8_is_valid(text_str(&text), text.len));
	assert_true(text.len > 0);
	text_release(&text);
	logring_close(&ring);
}

static void two_sides_share_one_log(void **state)
{
	struct logring reader, writer;
	struct text text = {0};
	assert_int_equal(logring_create(&reader, NULL), STATUS_OK);
	assert_int_equal(logring_attach(reader.fd, &writer, NULL), STATUS_OK);
	append_str(&writer, "from the guard\n");
	logring_close(&writer); /* the guard is gone; the log is not */
	logring_read_tail(&reader, 100, &text);
	assert_string_equal(text_str(&text), "from the guard\n");
	assert_int_equal(logring_attach(-1, &writer, NULL), STATUS_UNAVAILABLE);
	text_release(&text);
	logring_close(&reader);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_short_log_is_kept_whole),
		cmocka_unit_test(head_and_tail_are_kept_and_the_gap_is_told),
		cmocka_unit_test(the_tail_begins_with_a_line_and_is_text),
		cmocka_unit_test(two_sides_share_one_log),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
