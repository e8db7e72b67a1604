/* Tests of engine/tokenizer_pre with engine/regex and engine/normalise: pieces, classes of code points, normal forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "engine/normalise.h"
#include "engine/regex.h"
#include "engine/tokenizer_pre.h"

#define GOLDEN "tests/golden/tokenizer/"

struct splitter {
	struct pre_rule rule;
	struct regex *regex;
	struct regex_scan *scan;
};

static struct splitter splitter_open(const char *name)
{
	struct splitter splitter = {0};
	struct err err = {0};

	if (pre_rule_find((struct gguf_string){name, strlen(name)}, &splitter.rule, &err) ||
		regex_compile(splitter.rule.pattern, false, &splitter.regex, &err) ||
		regex_scan_create(splitter.regex, &splitter.scan, &err))
		fail_msg("%s", err.text);
	return splitter;
}

static void splitter_close(struct splitter *splitter)
{
	regex_scan_free(splitter->scan);
	regex_free(splitter->regex);
}

/* Length of the first piece of text[from..len). */
static size_t next_piece(const struct splitter *splitter, const char *text, size_t len, size_t from)
{
	size_t begin = 0, end = 0;
	struct err err = {0};

	if (regex_find(splitter->scan, text, len, from, &begin, &end, &err))
		fail_msg("%s", err.text);
	assert_true(end > from);
	return begin > from ? begin - from : end - from;
}

static struct json *read_json(const char *path)
{
	struct text file = {0};
	struct json *root = NULL;
	struct err err = {0};

	if (file_read(path, (size_t)1 << 20, &file, &err) || json_parse(file.data, file.len, path, &root, &err))
		fail_msg("%s", err.text);
	text_release(&file);
	return root;
}

/* Pieces. ----------------------------------------------------------------------------------------------------------- */

static void check_pieces(const struct splitter *splitter, const struct json *row, const struct json *pieces)
{
	const struct json *string = json_get(row, "text");
	struct text text = {0};
	size_t from = 0;

	if (splitter->rule.nfc)
		normalise_nfc(json_text(string), json_text_len(string), &text);
	else
		text_append(&text, json_text(string), json_text_len(string));
	for (size_t i = 0; i < json_count(pieces); i++) {
		const struct json *piece = json_at(pieces, i);
		size_t len = next_piece(splitter, text.data, text.len, from);

		if (len != json_text_len(piece) || memcmp(text.data + from, json_text(piece), len) != 0)
			fail_msg("%s: piece %zu of '%s' is '%.*s', expected '%s'", splitter->rule.name, i, json_text(string),
				(int)len, text.data + from, json_text(piece));
		from += len;
	}
	assert_int_equal(from, text.len);
	text_release(&text);
}

static void pieces_are_those_of_each_family(void **state)
{
	static const char *const names[][2] = {{"gpt2", "gpt-2"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}};
	struct json *rows = read_json(GOLDEN "presplit.json");

	assert_int_equal(json_count(rows), 21);
	for (size_t r = 0; r < 3; r++) {
		struct splitter splitter = splitter_open(names[r][1]);

		for (size_t i = 0; i < json_count(rows); i++)
			check_pieces(&splitter, json_at(rows, i), json_get(json_at(rows, i), names[r][0]));
		splitter_close(&splitter);
	}
	json_free(rows);
}

/* Classes. ---------------------------------------------------------------------------------------------------------- */

/* Whether first and second stay in one piece; both are one code point. */
static bool stay_together(const struct splitter *splitter, uint32_t first, uint32_t second)
{
	char text[8];
	size_t len = (size_t)utf8_encode(first, text);

	len += (size_t)utf8_encode(second, text + len);
	return next_piece(splitter, text, len, 0) == len;
}

static bool in_ranges(const struct json *ranges, uint32_t code_point, size_t *cursor)
{
	while (*cursor < json_count(ranges) && json_int(json_at(json_at(ranges, *cursor), 1), 0) < code_point)
		++*cursor;
	return *cursor < json_count(ranges) && json_int(json_at(json_at(ranges, *cursor), 0), 0) <= code_point;
}

/* Each class shows in what a code point sticks to: letters to letters, numbers to numbers, spaces to a newline before
 * the end, digits to nothing. */
static void every_code_point_has_the_class_that_hugging_face_gives_it(void **state)
{
	struct json *classes = read_json(GOLDEN "classes.json");
	struct splitter gpt2 = splitter_open("gpt-2"), smollm = splitter_open("smollm");
	size_t letter = 0, number = 0, space = 0, digit = 0, wrong = 0;

	for (uint32_t c = 0; c <= 0x10ffff; c++) {
		bool right;

		if (c >= 0xd800 && c <= 0xdfff)
			continue;
		right = stay_together(&gpt2, 'a', c) == in_ranges(json_get(classes, "letter"), c, &letter) &&
			stay_together(&gpt2, '1', c) == in_ranges(json_get(classes, "number"), c, &number) &&
			stay_together(&gpt2, '\n', c) == in_ranges(json_get(classes, "space"), c, &space) &&
			!stay_together(&smollm, c, c) == in_ranges(json_get(classes, "digit"), c, &digit);
		if (!right && ++wrong <= 10)
			print_error("U+%04X\n", c);
	}
	assert_int_equal(wrong, 0);
	splitter_close(&gpt2);
	splitter_close(&smollm);
	json_free(classes);
}

/* Normal form C. ---------------------------------------------------------------------------------------------------- */

static void texts_come_out_in_form_c(void **state)
{
	/* Examples of UAX 15: composition, canonical order, Hangul, singletons, exclusions, and what form C leaves alone. */
	static const char *const cases[][2] = {
		{"", ""},
		{"plain", "plain"},
		{"e\xcc\x81", "\xc3\xa9"},
		{"\xe2\x84\xab", "\xc3\x85"},
		{"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},
		{"\xe1\xb8\x8b\xcc\xa3", "\xe1\xb8\x8d\xcc\x87"},
		{"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"},
		{"\xe0\xa4\x95\xe0\xa4\xbc", "\xe0\xa4\x95\xe0\xa4\xbc"},
		{"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},
		{"\xef\xac\x81", "\xef\xac\x81"},
		{"\xcc\x81", "\xcc\x81"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct text out = {0};

		normalise_nfc(cases[i][0], strlen(cases[i][0]), &out);
		assert_string_equal(text_str(&out), cases[i][1]);
		if (normalise_is_nfc_quick(cases[i][0], strlen(cases[i][0])))
			assert_string_equal(cases[i][0], cases[i][1]);
		text_release(&out);
	}
}

/* Two marks in turn, the wrong way round: ordering by exchange of neighbours would need 10^10 steps. */
static void runs_of_marks_are_ordered_fast(void **state)
{
	struct text text = {0}, out = {0};
	int64_t start = clock_monotonic_ns();

	for (int i = 0; i < 150000; i++)
		text_append_str(&text, "\xcc\x81\xcc\x96");
	normalise_nfc(text.data, text.len, &out);
	assert_int_equal(out.len, text.len);
	assert_memory_equal(out.data, "\xcc\x96\xcc\x96", 4);
	assert_memory_equal(out.data + out.len - 4, "\xcc\x81\xcc\x81", 4);
	assert_true(clock_monotonic_ns() - start < 5000000000ll);
	text_release(&text);
	text_release(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_are_those_of_each_family),
		cmocka_unit_test(every_code_point_has_the_class_that_hugging_face_gives_it),
		cmocka_unit_test(texts_come_out_in_form_c),
		cmocka_unit_test(runs_of_marks_are_ordered_fast),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
