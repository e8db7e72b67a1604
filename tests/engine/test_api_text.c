/* Tests of stop strings over every way to cut the text, and of JSON strings written by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/random.h"
#include "engine/api_error.h"
#include "engine/api_stop.h"

/* Feeds text in pieces of the given sizes (cycled) and returns what came out. */
static struct text run(
	const struct stop_string *stops, size_t count, const char *text, const size_t *sizes, size_t n_sizes, bool *matched)
{
	struct stop_filter filter = {.strings = stops, .count = count};
	struct text out = {0};
	size_t len = strlen(text);

	for (size_t at = 0, i = 0; at < len; i++) {
		size_t size = sizes[i % n_sizes] < len - at ? sizes[i % n_sizes] : len - at;
		stop_filter_push(&filter, text + at, size, &out);
		at += size;
	}
	*matched = filter.matched;
	if (!filter.matched)
		stop_filter_finish(&filter, &out);
	stop_filter_release(&filter);
	return out;
}

static void check(const char *const *stops, size_t count, const char *text, const char *expected, bool expect_match)
{
	struct stop_string strings[STOP_STRINGS_MAX];

	for (size_t i = 0; i < count; i++)
		strings[i] = (struct stop_string){stops[i], strlen(stops[i])};
	for (size_t size = 1; size <= strlen(text); size++) {
		bool matched;
		struct text out = run(strings, count, text, &size, 1, &matched);
		assert_string_equal(text_str(&out), expected);
		assert_int_equal(matched, expect_match);
		text_release(&out);
	}
}

static void stop_string_is_found_however_the_text_is_cut(void **state)
{
	static const char *const fox[] = {"own fox"};
	check(fox, 1, "The quick brown fox jumps", "The quick br", true);
	check(fox, 1, "own fox", "", true);
	check(fox, 1, "own fo", "own fo", false);
	check(fox, 1, "oown fox", "o", true);
	static const char *const repeated[] = {"aab"};
	check(repeated, 1, "aaaab!", "aa", true);
	static const char *const umlaut[] = {"ü!"};
	check(umlaut, 1, "grün ü!", "grün ", true);
}

static void longer_of_two_nested_stop_strings_leaves_nothing_behind(void **state)
{
	static const char *const nested[] = {">>>>>>> UPDATED", ">>>>>>> UPDATED\n"};
	check(nested, 2, "x>>>>>>> UPDATED\nend", "x", true);
	check(nested, 2, "x>>>>>>> UPD", "x>>>>>>> UPD", false);
	check(nested, 2, ">>>>>>>>> UPDATED", ">>", true);
}

static void first_complete_match_wins_however_the_text_is_cut(void **state)
{
	static const char *const several[] = {"c", "bcd", "zzz"};
	check(several, 3, "abcd", "ab", true);
	static const char *const same_end[] = {"cd", "bcd", "d"};
	check(same_end, 3, "abcd", "a", true);
	static const char *const later[] = {"dd", "b"};
	check(later, 2, "abcdd", "a", true);
}

static void text_is_not_held_back_longer_than_needed(void **state)
{
	struct stop_string stop = {"END", 3};
	struct stop_filter filter = {.strings = &stop, .count = 1};
	struct text out = {0};

	assert_false(stop_filter_push(&filter, "hello E", 7, &out));
	assert_string_equal(text_str(&out), "hello ");
	assert_false(stop_filter_push(&filter, "N", 1, &out));
	assert_string_equal(text_str(&out), "hello ");
	assert_false(stop_filter_push(&filter, "x", 1, &out));
	assert_string_equal(text_str(&out), "hello ENx");
	assert_true(stop_filter_push(&filter, "END more", 8, &out));
	assert_true(stop_filter_push(&filter, "even more", 9, &out));
	assert_string_equal(text_str(&out), "hello ENx");
	text_release(&out);
	stop_filter_release(&filter);
}

static void random_texts_agree_with_a_plain_search(void **state)
{
	for (uint64_t seed = 0; seed < 3000; seed++) {
		char text[41] = {0}, stop_bytes[5] = {0};
		size_t sizes[8], stop_len = 1 + random_below(seed, 0, 0, 4);
		for (int i = 0; i < 40; i++)
			text[i] = (char)('a' + random_below(seed, 1, (uint64_t)i, 2));
		for (size_t i = 0; i < stop_len; i++)
			stop_bytes[i] = (char)('a' + random_below(seed, 2, i, 2));
		for (int i = 0; i < 8; i++)
			sizes[i] = 1 + random_below(seed, 3, (uint64_t)i, 5);
		struct stop_string stop = {stop_bytes, stop_len};
		bool matched;
		struct text out = run(&stop, 1, text, sizes, 8, &matched);
		const char *at = strstr(text, stop_bytes);
		size_t expected = at ? (size_t)(at - text) : 40;
		assert_int_equal(out.len, expected);
		assert_int_equal(matched, at != NULL);
		assert_memory_equal(text_str(&out), text, expected);
		text_release(&out);
	}
}

/* The JSON library reads back what the writer wrote. */
static void assert_reads_back(const char *bytes, size_t len, const char *expected, size_t expected_len)
{
	struct text out = {0};
	struct json *value = NULL;
	struct err err = {0};

	api_write_string(&out, bytes, len);
	assert_int_equal(json_parse(out.data, out.len, "string", &value, &err), STATUS_OK);
	assert_int_equal(json_text_len(value), expected_len);
	assert_memory_equal(json_text(value), expected, expected_len);
	json_free(value);
	text_release(&out);
}

static void every_character_is_written_as_valid_json(void **state)
{
	char all[128];
	for (int i = 0; i < 128; i++)
		all[i] = (char)i;
	assert_reads_back(all, 128, all, 128);
	for (size_t i = 0; i < 128; i++)
		assert_reads_back(all + i, 1, all + i, 1);
	static const char *const texts[] = {"", "a\"b\\c/d", "tab\tnewline\nreturn\r", "żółć 日本語 🙂",
		"a\xC2\x85"
		"b\u2028c\u2029d",
		"\xEF\xBF\xBF\xF4\x8F\xBF\xBF"};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		assert_reads_back(texts[i], strlen(texts[i]), texts[i], strlen(texts[i]));
}

static void invalid_bytes_become_replacement_characters(void **state)
{
	assert_reads_back("a\xC3\x28z", 4, "a\uFFFD(z", 6);
	assert_reads_back("\xF0\x9F", 2, "\uFFFD", 3);
	assert_reads_back("\xED\xA0\xBD", 3, "\uFFFD\uFFFD\uFFFD", 9);
	for (uint64_t seed = 0; seed < 2000; seed++) {
		char bytes[24];
		struct text out = {0};
		struct json *value = NULL;
		size_t len = random_below(seed, 0, 0, sizeof(bytes) + 1);
		for (size_t i = 0; i < len; i++)
			bytes[i] = (char)random_below(seed, 1, i, 256);
		api_write_string(&out, bytes, len);
		assert_int_equal(json_parse(out.data, out.len, "string", &value, NULL), STATUS_OK);
		json_free(value);
		text_release(&out);
	}
}

static void error_object_has_openai_form(void **state)
{
	struct api_error error = {0};
	struct text out = {0};
	struct json *value = NULL;

	api_error_set(&error, 400, "invalid_value", "n", "bad \"n\" \xC3\x28");
	api_error_set(&error, 500, NULL, NULL, "a later error does not replace the first");
	api_error_write(&error, &out);
	assert_int_equal(json_parse(out.data, out.len, "error", &value, NULL), STATUS_OK);
	const struct json *object = json_get(value, "error");
	assert_string_equal(json_text(json_get(object, "message")), "bad \"n\" \uFFFD(");
	assert_string_equal(json_text(json_get(object, "type")), "invalid_request_error");
	assert_string_equal(json_text(json_get(object, "param")), "n");
	assert_string_equal(json_text(json_get(object, "code")), "invalid_value");
	json_free(value);
	text_release(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stop_string_is_found_however_the_text_is_cut),
		cmocka_unit_test(longer_of_two_nested_stop_strings_leaves_nothing_behind),
		cmocka_unit_test(first_complete_match_wins_however_the_text_is_cut),
		cmocka_unit_test(text_is_not_held_back_longer_than_needed),
		cmocka_unit_test(random_texts_agree_with_a_plain_search),
		cmocka_unit_test(every_character_is_written_as_valid_json),
		cmocka_unit_test(invalid_bytes_become_replacement_characters),
		cmocka_unit_test(error_object_has_openai_form),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
