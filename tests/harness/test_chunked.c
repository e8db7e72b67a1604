/* Chunked bodies in any cut, and bytes that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/text.h"
#include "harness/chunked.h"
#include "tests/support/replay_checks.h"

/* Feeds bytes in pieces of step and appends the body; false when it is refused. */
static bool decode(const char *bytes, size_t step, struct chunked *chunked, struct text *body)
{
	struct err err = {0};
	*chunked = (struct chunked){0};
	text_clear(body);
	for (size_t at = 0, all = strlen(bytes); at < all; at += step) {
		const char *piece = bytes + at, *data;
		size_t len = all - at < step ? all - at : step, data_len;
		while (chunked_next(chunked, &piece, &len, &data, &data_len, &err))
			text_append(body, data, data_len);
		if (err.status)
			return false;
	}
	return true;
}

static void any_cut_gives_the_same_body(void **state)
{
	static const char *const bodies[] = {
		"5\r\nhello\r\n6;name=\"x\"\r\n world\r\n0\r\n\r\n",
		"005\r\nhello\r\n6 \r\n world\r\n0\r\nTrailer: yes\r\nX:\r\n\r\n",
		"b\nhello world\n0\n\n",
		"B\r\nhello world\r\n0;last\r\n\r\nwhat follows is not of it",
	};
	struct text body = {0};
	struct chunked chunked;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		for (size_t step = 1; step <= strlen(bodies[i]); step++) {
			assert_true(decode(bodies[i], step, &chunked, &body));
			assert_int_equal(chunked.state, CHUNKED_DONE);
			assert_string_equal(text_str(&body), "hello world");
		}
	text_release(&body);
}

static void a_body_that_is_cut_is_not_over(void **state)
{
	static const char *const bodies[] = {"", "5", "5\r\nhel", "5\r\nhello\r\n", "5\r\nhello\r\n0\r\n", "0\r\nTrailer: yes\r\n"};
	struct text body = {0};
	struct chunked chunked;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
		assert_true(decode(bodies[i], 3, &chunked, &body));
		assert_int_not_equal(chunked.state, CHUNKED_DONE);
	}
	text_release(&body);
}

static void bytes_that_are_no_chunks_are_refused(void **state)
{
	static const char *const bodies[] = {
		"data: x\n\n", "\r\n", "g\r\n", "-1\r\n", "1000000000000000\r\n", "5\r\nhelloX", "5x\r\n", ";\r\n"};
	struct text body = {0}, endless = {0};
	struct chunked chunked;
	for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++)
		for (size_t step = 1; step < 5; step++)
			if (decode(bodies[i], step, &chunked, &body))
				fail_msg("'%s' is taken", bodies[i]);
	text_append_str(&endless, "5;");
	for (int i = 0; i < CHUNKED_LINE_BYTES_MAX; i++)
		text_append_char(&endless, 'x');
	assert_false(decode(text_str(&endless), 100, &chunked, &body));
	text_release(&body);
	text_release(&endless);
}

static void the_corpus_holds(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/chunked", check_chunked_bytes) >= 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_cut_gives_the_same_body),
		cmocka_unit_test(a_body_that_is_cut_is_not_over),
		cmocka_unit_test(bytes_that_are_no_chunks_are_refused),
		cmocka_unit_test(the_corpus_holds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
