/* Tests of base/json and base/json_locate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/json.h"

static struct json *parse(const char *text)
{
	struct json *root;
	struct err err = {0};
	assert_int_equal(json_parse(text, strlen(text), "t.json", &root, &err), STATUS_OK);
	return root;
}

static void syntax_errors_name_source_line_and_column(void **state)
{
	static const struct {
		const char *text, *place;
	} bad[] = {
		{"{\n  \"a\": 1,\n  \"a\": 2}", "t.json:3:"},
		{"{\"a\": }", "t.json:1:"},
		{"", "t.json:1:"},
		{"[1,2", "t.json:1:"},
		{"{} x", "t.json:1:"},
		{"\"\\ud800\"", "t.json:1:"},
		{"\"\xff\"", "t.json:1:"},
		{"[1e999]", "t.json:1:"},
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct json *root;
		struct err err = {0};
		assert_int_equal(json_parse(bad[i].text, strlen(bad[i].text), "t.json", &root, &err), STATUS_INPUT);
		assert_null(root);
		assert_memory_equal(err.text, bad[i].place, strlen(bad[i].place));
	}
}

static void deep_nesting_is_refused_not_a_crash(void **state)
{
	static char deep[200001];
	memset(deep, '[', sizeof deep - 1);
	struct json *root;
	struct err err = {0};
	assert_int_equal(json_parse(deep, sizeof deep - 1, "deep", &root, &err), STATUS_INPUT);
}

static void readers_accept_the_wrong_kind(void **state)
{
	struct json *root = parse("{\"s\":\"a\\u0000b\",\"i\":3,\"r\":2.5,\"b\":true,\"n\":null,\"a\":[1]}");
	assert_int_equal(json_text_len(json_get(root, "s")), 3);
	assert_int_equal(json_int(json_get(root, "i"), -1), 3);
	assert_int_equal(json_int(json_get(root, "r"), -1), -1);
	assert_true(json_number(json_get(root, "r"), 0) == 2.5);
	assert_true(json_number(json_get(root, "s"), 7) == 7);
	assert_true(json_bool(json_get(root, "b"), false));
	assert_null(json_text(json_get(root, "i")));
	assert_null(json_get(root, "absent"));
	assert_null(json_get(json_get(root, "absent"), "x"));
	assert_null(json_at(json_get(root, "a"), 1));
	assert_int_equal(json_kind_of(json_get(root, "n")), JSON_KIND_NULL);
	assert_int_equal(json_kind_of(NULL), JSON_KIND_NULL);
	assert_int_equal(json_count(NULL), 0);
	json_free(root);
}

static void numbers_that_json_cannot_hold_become_null(void **state)
{
	struct json *array = json_new_array();
	struct text out = {0};
	json_append(array, json_new_number(NAN));
	json_append(array, json_new_number(-INFINITY));
	json_append(array, json_new_number(12.5));
	json_append(array, json_new_string("\xff ok"));
	json_append(array, json_new_string(NULL));
	json_write(array, JSON_STYLE_COMPACT, &out);
	assert_string_equal(text_str(&out), "[null,null,12.5,\"\xEF\xBF\xBD ok\",null]");
	text_release(&out);
	json_free(array);
}

static void equality_ignores_key_order_and_number_form(void **state)
{
	struct json *a = parse("{\"x\":1,\"y\":[1.0,\"s\",null]}"), *b = parse("{\"y\":[1,\"s\",null],\"x\":1.0}");
	struct json *c = parse("{\"y\":[1,\"t\",null],\"x\":1.0}");
	struct text ta = {0}, tb = {0};
	assert_true(json_same(a, b));
	assert_false(json_same(a, c));
	json_write(a, JSON_STYLE_CANONICAL, &ta);
	assert_string_equal(text_str(&ta), "{\"x\":1,\"y\":[1.0,\"s\",null]}");
	text_release(&ta);
	text_release(&tb);
	json_free(a);
	json_free(b);
	json_free(c);
}

static void positions_are_found_by_path(void **state)
{
	const char *text = "{\n"
			   "  \"a\": {\"b.c\": [10, {\"spec=ngram\": true}, \"}]\\\"\"]},\n"
			   "  \"d\" : -1.5\n"
			   "}\n";
	static const struct {
		const char *path;
		bool of_key;
		int line, column;
	} places[] = {
		{"", false, 1, 1},
		{"a", false, 2, 8},
		{"a", true, 2, 3},
		{"a.b.c", false, 2, 16},
		{"a.b.c[0]", false, 2, 17},
		{"a.b.c[1].spec=ngram", false, 2, 36},
		{"a.b.c[1].spec=ngram", true, 2, 22},
		{"a.b.c[2]", false, 2, 43},
		{"d", false, 3, 9},
	};
	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		int line = 0, column = 0;
		assert_true(json_locate(text, strlen(text), places[i].path, places[i].of_key, &line, &column));
		assert_int_equal(line, places[i].line);
		assert_int_equal(column, places[i].column);
	}
	static const char *const absent[] = {"x", "a.x", "a.b.c[3]", "d.x", "d[0]", "a[0]"};
	for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
		int line, column;
		assert_false(json_locate(text, strlen(text), absent[i], false, &line, &column));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(syntax_errors_name_source_line_and_column),
		cmocka_unit_test(deep_nesting_is_refused_not_a_crash),
		cmocka_unit_test(readers_accept_the_wrong_kind),
		cmocka_unit_test(numbers_that_json_cannot_hold_become_null),
		cmocka_unit_test(equality_ignores_key_order_and_number_form),
		cmocka_unit_test(positions_are_found_by_path),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
