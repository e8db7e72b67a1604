/* Tests of base/uri: which paths are taken, what they decode to, and why others are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/uri.h"

static void paths_are_decoded_once(void **state)
{
	static const char *const cases[][2] = {
		{"/", "/"},
		{"/v1/models", "/v1/models"},
		{"/a%20b", "/a b"},
		{"/h%65alth", "/health"},
		{"/%25zz", "/%zz"},
		{"/%2566", "/%66"}, /* not decoded twice */
		{"/%C3%A4/%e2%82%AC", "/\xc3\xa4/\xe2\x82\xac"},
		{"/\xc3\xa4", "/\xc3\xa4"},
		{"/a%2Fb%2fc", "/a%2Fb%2Fc"},
		{"/..%2f..%2Fetc", "/..%2F..%2Fetc"},
		{"http://host:80/health", "/health"},
		{"HTTP://host", "/"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text out = {0};
		const char *why = NULL;
		if (!uri_decode_path(cases[i][0], &out, &why))
			fail_msg("%s: %s", cases[i][0], why);
		assert_string_equal(text_str(&out), cases[i][1]);
		text_release(&out);
	}
}

static void assert_refused(const char *target, const char *reason)
{
	struct text out = {0};
	const char *why = NULL;
	if (uri_decode_path(target, &out, &why))
		fail_msg("'%s' is taken", target);
	assert_non_null(strstr(why, reason));
	text_release(&out);
}

static void control_characters_are_refused_as_bytes_and_as_escapes(void **state)
{
	for (int byte = 0; byte < 0x100; byte++) {
		char target[32];
		if (byte >= 0x20 && byte != 0x7f)
			continue;
		snprintf(target, sizeof target, "/health%%%02x", byte);
		assert_refused(target, "control character");
		snprintf(target, sizeof target, "/%%%02Xhealth", byte);
		assert_refused(target, "control character");
		if (byte == 0)
			continue;
		snprintf(target, sizeof target, "/health%c", byte);
		assert_refused(target, "control character");
	}
}

static void malformed_paths_are_refused_with_the_reason(void **state)
{
	static const char *const cases[][2] = {
		{"", "begin"},
		{"health", "begin"},
		{"*", "begin"},
		{"https://host/health", "begin"},
		{"%2Fhealth", "begin"},
		{"/%", "hexadecimal"},
		{"/%4", "hexadecimal"},
		{"/%4/", "hexadecimal"},
		{"/%g0", "hexadecimal"},
		{"/%0x", "hexadecimal"},
		{"/%%41", "hexadecimal"},
		{"/%C3%28", "UTF-8"},
		{"/%c0%80", "UTF-8"}, /* NUL in too many bytes */
		{"/%C3", "UTF-8"},
		{"/%ed%a0%80", "UTF-8"},
		{"/\xff", "UTF-8"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_refused(cases[i][0], cases[i][1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths_are_decoded_once),
		cmocka_unit_test(control_characters_are_refused_as_bytes_and_as_escapes),
		cmocka_unit_test(malformed_paths_are_refused_with_the_reason),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
