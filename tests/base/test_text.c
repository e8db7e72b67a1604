/* Tests of base/text, base/utf8 and the locale independence of numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <locale.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "base/utf8.h"

static void text_grows_and_stays_terminated(void **state)
{
	struct text text = {0};
	assert_string_equal(text_str(&text), "");
	for (int i = 0; i < 1000; i++)
		text_printf(&text, "%d,", i);
	assert_int_equal(text.len, 3890);
	assert_int_equal(strlen(text.data), text.len);
	text_truncate(&text, 4);
	assert_string_equal(text_str(&text), "0,1,");
	char *taken = text_take(&text);
	assert_string_equal(taken, "0,1,");
	assert_int_equal(text.len, 0);
	mem_free(taken);
}

static void numbers_are_whole_words_in_range(void **state)
{
	long long i;
	unsigned long long u;
	double d;
	assert_true(text_to_i64("-12", &i) && i == -12);
	assert_true(text_to_u64("18446744073709551615", &u) && u == UINT64_MAX);
	assert_true(text_to_double("0.85", &d) && d == 0.85);
	assert_true(text_to_double("1e-3", &d) && d == 0.001);
	static const char *const bad[] = {"", " 1", "1 ", "1x", "0x10", "nan", "inf", "1e999", "--1", "1,5"};
	for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
		assert_false(text_to_i64(bad[k], &i));
		if (strcmp(bad[k], "0x10") != 0)
			assert_false(text_to_double(bad[k], &d));
	}
	assert_false(text_to_u64("-1", &u));
	assert_false(text_to_i64("9223372036854775808", &i));
}

static void numbers_ignore_the_locale(void **state)
{
	double d;
	char shown[32];
	if (!setlocale(LC_ALL, "de_DE.UTF-8"))
		setlocale(LC_ALL, "");
	assert_true(text_to_double("0.85", &d) && d == 0.85);
	text_format_double(shown, 12.5);
	assert_string_equal(shown, "12.5");
	text_format_double(shown, 0.1);
	assert_string_equal(shown, "0.1");
	text_format_double(shown, 1.0 / 3);
	assert_true(text_to_double(shown, &d) && d == 1.0 / 3);
	static const struct {
		double value;
		const char *text;
	} written[] = {
		{100, "100"}, {-3600000, "-3600000"}, {0, "0"}, {1e15, "1000000000000000"}, {1e300, "1e+300"}, {1e-7, "1e-07"}};
	for (size_t i = 0; i < sizeof(written) / sizeof(written[0]); i++) {
		text_format_double(shown, written[i].value);
		assert_string_equal(shown, written[i].text);
	}
	setlocale(LC_ALL, "C");
}

static void utf8_accepts_exactly_the_well_formed_sequences(void **state)
{
	uint32_t cp;
	char bytes[4];
	for (uint32_t c = 0; c < 0x110000; c++) {
		if (c >= 0xD800 && c < 0xE000)
			continue;
		int length = utf8_encode(c, bytes);
		assert_int_equal(utf8_decode(bytes, (size_t)length, &cp), length);
		assert_int_equal(cp, c);
		for (int cut = 1; cut < length; cut++)
			assert_int_equal(utf8_decode(bytes, (size_t)cut, &cp), -1);
	}
	static const char *const bad[] = {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
		"\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xE2\x28\xA1"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		assert_int_equal(utf8_decode(bad[i], strlen(bad[i]), &cp), 0);
		assert_false(utf8_is_valid(bad[i], strlen(bad[i])));
	}
}

static void utf8_prefix_holds_back_unfinished_code_points(void **state)
{
	const char *euro = "a\xE2\x82\xAC";
	assert_int_equal(utf8_complete_prefix(euro, 1), 1);
	assert_int_equal(utf8_complete_prefix(euro, 2), 1);
	assert_int_equal(utf8_complete_prefix(euro, 3), 1);
	assert_int_equal(utf8_complete_prefix(euro, 4), 4);
	assert_int_equal(utf8_complete_prefix("\xFF", 1), 1);
	assert_int_equal(utf8_complete_prefix("\x80\x80\x80\x80", 4), 4);
}

static void utf8_repair_replaces_each_maximal_subpart(void **state)
{
	struct text out = {0};
	/* Unicode 15, table 3-8: E1 80 E2 F0 91 92 F1 BF 41 gives one replacement per maximal subpart. */
	utf8_append_lossy(&out, "\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", 9);
	assert_string_equal(text_str(&out), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x41");
	text_release(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(text_grows_and_stays_terminated),
		cmocka_unit_test(numbers_are_whole_words_in_range),
		cmocka_unit_test(numbers_ignore_the_locale),
		cmocka_unit_test(utf8_accepts_exactly_the_well_formed_sequences),
		cmocka_unit_test(utf8_prefix_holds_back_unfinished_code_points),
		cmocka_unit_test(utf8_repair_replaces_each_maximal_subpart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
