/* The interpreter of chat templates: texts by transformers, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "engine/jinja.h"

#define GOLDEN "tests/golden/jinja/rendered.json"
#define MESSAGES_MAX 16

static enum status render_list(const char *template, size_t len, const struct json *conversation, const struct json *tools,
	struct text *out, struct err *err)
{
	struct jinja_message messages[MESSAGES_MAX];
	struct jinja_input input = {.messages = messages,
		.n_messages = json_count(conversation),
		.tools = tools,
		.bos_token = "<s>",
		.eos_token = "</s>"};
	struct jinja *jinja;
	assert_true(input.n_messages <= MESSAGES_MAX);
	for (size_t i = 0; i < input.n_messages; i++) {
		const struct json *content = json_get(json_at(conversation, i), "content");
		messages[i] = (struct jinja_message){json_text(json_get(json_at(conversation, i), "role")), json_text(content),
			json_text_len(content), json_at(conversation, i)};
	}
	enum status status = jinja_parse(template, len, &jinja, err);
	if (status == STATUS_OK)
		status = jinja_render(jinja, &input, out, err);
	jinja_free(jinja);
	return status;
}

/* The message of what a row's template raised, or of what failed in it, with its line; empty where there is a text. */
static void expected_error(const struct json *row, char *out, size_t size)
{
	const char *words = json_text(json_get(row, "error"));
	const struct json *line = json_get(row, "line");

	if (words && line)
		snprintf(out, size, "line %lld: %s", (long long)json_int(line, 0), words);
	else if (words)
		snprintf(out, size, "%s", words);
}

static void texts_are_those_of_transformers(void **state)
{
	struct text bytes = {0};
	struct json *root = NULL;
	struct err err = {0};
	if (file_read(GOLDEN, 1 << 20, &bytes, &err) || json_parse(text_str(&bytes), bytes.len, GOLDEN, &root, &err))
		fail_msg("%s", err.text);
	const struct json *rows = json_get(root, "rows");
	assert_true(json_count(rows) > 0);
	for (size_t i = 0; i < json_count(rows); i++) {
		const struct json *row = json_at(rows, i);
		const char *name = json_text(json_get(row, "template"));
		const struct json *template = json_get(json_get(root, "templates"), name);
		size_t number = (size_t)json_int(json_get(row, "conversation"), 0);
		struct text out = {0};
		struct err failure = {0};
		enum status status =
			render_list(json_text(template), json_text_len(template), json_at(json_get(root, "conversations"), number),
				json_get(json_get(root, "tools"), json_text(json_get(row, "tools"))), &out, &failure);
		char raised[256] = "";

		expected_error(row, raised, sizeof raised);
		if (raised[0] && (status != STATUS_INPUT || strcmp(failure.text, raised) != 0))
			fail_msg("%s, conversation %zu: '%s', expected to raise '%s'", name, number, failure.text, raised);
		if (!raised[0] && status != STATUS_OK)
			fail_msg("%s, conversation %zu: %s", name, number, failure.text);
		if (!raised[0] && strcmp(text_str(&out), json_text(json_get(row, "text"))) != 0)
			fail_msg("%s, conversation %zu:\n%s\nexpected:\n%s", name, number, text_str(&out),
				json_text(json_get(row, "text")));
		text_release(&out);
	}
	json_free(root);
	text_release(&bytes);
}

static enum status render(const char *template, struct text *out, struct err *err)
{
	struct json *conversation = NULL;
	static const char text[] = "[{\"role\":\"user\",\"content\":\"hi\"}]";
	assert_int_equal(json_parse(text, sizeof text - 1, "text", &conversation, NULL), STATUS_OK);
	enum status status = render_list(template, strlen(template), conversation, NULL, out, err);
	json_free(conversation);
	return status;
}

static void what_cannot_be_read_is_refused_with_its_line(void **state)
{
	static const struct {
		const char *template, *expected;
	} cases[] = {
		{"a\nb\n{{ x", "line 3 of the chat template: a tag does not end"},
		{"{# x", "a tag does not end"},
		{"{% if x %}", "ends before 'elif'"},
		{"{% endif %}", "found endif, expected a statement"},
		{"\n{% raw %}\n{{ x }}{% endraw x %}", "line 2 of the chat template: a raw block does not end"},
		{"{% raw +%}x{% endraw %}", "found raw, expected a statement"},
		{"{% raw x %}{% endraw %}", "found raw, expected a statement"},
		{"{% if true %}{% raw %}{% endif %}", "a raw block does not end"},
		{"{% endraw %}", "found endraw, expected a statement"},
		{"\n{% frobnicate %}", "line 2 of the chat template: found frobnicate"},
		{"{% if %}{% endif %}", "found the end of the tag, expected an expression"},
		{"{% for x %}{% endfor %}", "expected in"},
		{"{% set 1 = 2 %}", "found a number, expected a name"},
		{"{{ a b }}", "found b, expected the end of the tag"},
		{"{{ a + }}", "expected an expression"},
		{"{{ (a }}", "expected )"},
		{"{{ a[ ] }}", "an index is empty"},
		{"{{ a[1:2:3:4] }}", "expected ]"},
		{"{{ f(a b) }}", "expected )"},
		{"{% if false %}\n{{ frob() }}{% endif %}", "line 2 of the chat template: function 'frob' is not supported"},
		{"\n\n{{ 'a'.frob() }}", "line 3 of the chat template: method 'frob' is not supported"},
		{"{{ 'a' | frob }}", "line 1 of the chat template: filter 'frob' is not supported"},
		{"{{ 'a' is frob }}", "test 'frob' is not supported"},
		{"{% macro f(a %}", "expected )"},
		{"{% macro f(1) %}", "found a number, expected a name"},
		{"{% macro f() %}", "ends before 'endmacro'"},
		{"{% macro f() %}{{ caller() }}{% endmacro %}", "'caller' is not supported"},
		{"{% macro f() %}{{ varargs }}{% endmacro %}", "'varargs' is not supported"},
		{"{% call f() %}{% endcall %}", "found call, expected a statement"},
		{"{% include 'x' %}", "found include, expected a statement"},
		{"{% filter upper %}", "found filter, expected a statement"},
		{"{% for x in y recursive %}", "found recursive"},
		{"{{ {1: 2} }}", "a string as key"},
		{"{{ 1.5 }}", "only whole numbers"},
		{"{{ 99999999999999999999 }}", "a number is too large"},
		{"{{ 'a\\q' }}", "escape"},
		{"{{ a.1 }}", "expected a name after '.'"},
		{"{{ f() ? }}", "byte 0x3f"},
		{"{{ 1 < 2 < 3 }}", "in a chain"},
		{"{{ 1 == 2 == 3 }}", "in a chain"},
		{"{{ 1 == 2 not in [3] }}", "in a chain"},
		{"{{ 1 in [1] in [true] }}", "in a chain"},
		{"{{ f(a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a) }}", "more than 16 arguments"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text out = {0};
		struct err err = {0};
		if (render(cases[i].template, &out, &err) != STATUS_INPUT || !strstr(err.text, cases[i].expected))
			fail_msg("%s: expected '%s' in: %s", cases[i].template, cases[i].expected, err.text);
		text_release(&out);
	}
}

static void what_cannot_be_computed_is_refused(void **state)
{
	static const struct {
		const char *template, *expected;
	} cases[] = {
		{"{{ missing.member }}", "'member' is asked of something that is not defined"},
		{"{{ missing + 'a' }}", "'+' is not supported"},
		{"{{ 1 + 'a' }}", "'+'"},
		{"\n\n{{ 1 + 'a' }}", "line 3: '+' is not supported between these"},
		{"{% for i in [1] %}{{ loop.cycle(a=1) }}{% endfor %}", "method 'cycle' has an argument that is not supported"},
		{"{{ messages[0].cycle(1) }}", "method 'cycle' is not supported here"},
		{"{{ 'a' ~ range }}", "'~'"},
		{"{{ range }}", "printed as it is"},
		{"{{ f() }}{% macro f() %}{% endmacro %}", "line 1: 'f' is undefined"},
		{"{{ 1 // 0 }}", "'//'"},
		{"{{ 9223372036854775807 + 1 }}", "'+'"},
		{"{{ 1 < 'a' }}", "'<'"},
		{"{{ messages }}", "a list or a dict is printed"},
		{"{{ messages ~ 'a' }}", "'~'"},
		{"{{ 'a'() }}", "something that is no function is called"},
		{"{{ 'a'[[]] }}", "an index is no number"},
		{"{{ [1][::0] }}", "in steps of 1"},
		{"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "macro 'f' is called with arguments that it does not take"},
		{"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "macro 'f' is called with arguments that it does not take"},
		{"{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", "loops, macros and blocks are nested deeper than 100"},
		{"{% macro f(a) %}{% if a %}{% if a %}{{ 'x' ~ ('y' ~ f(a)) }}{% endif %}{% endif %}{% endmacro %}{{ f(1) }}",
			"deeper than 400 levels"},
		{"{% macro f() %}{{ item }}{% endmacro %}{% for item in [1] %}{{ f() + 1 }}{% endfor %}", "'+' is not supported"},
		{"{{ missing | tojson }}", "Object of type Undefined is not JSON serializable"},
		{"{{ messages | tojson(sort_keys=true) }}", "tojson is supported with"},
		{"{{ messages | map('frob') }}", "map needs"},
		{"{{ range(1000000000) | length }}", "range is supported"},
		{"{% for x in 'abc' %}{% endfor %}", "no list"},
		{"{% for a, b in [1] %}{% endfor %}", "a loop over pairs"},
		{"{% set x.y = 1 %}", "'x' is no namespace"},
		{"{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}", "too much memory"},
		{"{% for i in range(9999) %}{% set x = range(99999) %}{% endfor %}", "too many steps"},
		{"{{ 'aaa'|replace('a', 'b', 'c') }}", "replace needs a number as count"},
		{"{{ 'a'.split(',', 'x') }}", "split needs a number"},
		{"{{ 'a'|upper(1) }}", "filter 'upper' has an argument that is not supported"},
		{"{{ 'a'.upper(1) }}", "method 'upper' has an argument that is not supported"},
		{"{{ 'a'|trim(set='x') }}", "filter 'trim' has an argument that is not supported"},
		{"{{ 'abc'.startswith('b', 1) }}", "method 'startswith' has an argument that is not supported"},
		{"{{ {'a': 1}|dictsort(by='value') }}", "filter 'dictsort' has an argument that is not supported"},
		{"{{ [[1]]|join }}", "join meets a list"},
		{"{{ ['a']|join([1]) }}", "join needs a string between"},
		{"{{ ','.join([1]) }}", "join needs a list of strings"},
		{"{{ '99999999999999999999'|int }}", "int is supported for numbers of 64 bits"},
		{"{{ '-1e30'|int }}", "int is supported for numbers of 64 bits"},
		{"{{ '1'|int(0, 37) }}", "a base of 2 to 36"},
		{"{% for i in range(99999) %}{% for j in range(99999) %}{% set x = j %}{% endfor %}{% endfor %}", "too many steps"},
		{"{% set n = namespace(s='aaaaaaaa') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
			"too many steps or"},
		{"{{ raise_exception('') }}", "raises an exception without words"},
		{"{{ raise_exception(1) }}", "raises an exception without words"},
		{"{% set n = namespace(s='long words ') %}{% for i in range(9) %}{% set n.s = n.s + n.s %}{% endfor %}"
		 "{{ raise_exception(n.s) }}",
			"long words long words"},
		{"{{ strftime_now('') }}", "strftime_now needs a format"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text out = {0};
		struct err err = {0};
		if (render(cases[i].template, &out, &err) != STATUS_INPUT || !strstr(err.text, cases[i].expected))
			fail_msg("%s: expected '%s' in: %s", cases[i].template, cases[i].expected, err.text);
		text_release(&out);
	}
}

/* Work that one step can multiply is counted by the bytes it goes over: none of these may take for ever or fill the memory. */
static void work_that_grows_with_values_is_limited(void **state)
{
	static const char large[] =
		"{% set n = namespace(s='aaaaaaaa') %}{% for i in range(16) %}{% set n.s = n.s + n.s %}{% endfor %}"
		"{% set s = n.s %}{% set t = s ~ '' %}{% set l = range(100000) %}";
	static const char *const cases[] = {
		"{% set n.a = n %}{% set n.b = n %}{{ n | tojson }}",
		"{{ s.replace('a', s) }}",
		"{{ s | replace('a', s) }}",
		"{% for i in l %}{% set x = s.split('a') %}{% endfor %}",
		"{{ l | join(s) }}",
		"{% for i in l %}{% set x = l | selectattr('x') %}{% endfor %}",
		"{% for i in l %}{% if s | length == 1 %}{% endif %}{% endfor %}",
		"{% for i in l %}{% if s == t %}{% endif %}{% endfor %}",
		"{% for i in l %}{% if s < t %}{% endif %}{% endfor %}",
		"{% for i in l %}{% if s is eq(t) %}{% endif %}{% endfor %}",
		"{% for i in l %}{% if 'b' in s %}{% endif %}{% endfor %}",
		"{% for i in l %}{% if -1 in l %}{% endif %}{% endfor %}",
		"{% for i in l %}{% set x = s.strip(s) %}{% endfor %}",
		"{% for i in l %}{% set x = s[1:2] %}{% endfor %}",
		"{% for i in l %}{% set x %}{{ s }}{% endset %}{% endfor %}",
		"{% for i in l + l + l %}{% endfor %}",
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text template = {0}, out = {0};
		struct err err = {0};
		text_append_str(&template, large);
		text_append_str(&template, cases[i]);
		if (render(text_str(&template), &out, &err) != STATUS_INPUT ||
			!(strstr(err.text, "too many steps") || strstr(err.text, "too long a text")))
			fail_msg("%s: %s", cases[i], err.text);
		text_release(&template);
		text_release(&out);
	}
}

/* Nesting by brackets, by chains, by statements, by branches: each ends in a message, none on the stack. */
static void deep_templates_are_refused(void **state)
{
	static const struct {
		const char *before, *middle, *after;
	} cases[] = {
		{"{{ ", "(", "1 }}"},
		{"{{ 1", " + 1", " }}"},
		{"{{ a", ".b", " }}"},
		{"{{ a", "|trim", " }}"},
		{"{{ ", "not ", "a }}"},
		{"{{ ", "- ", "a }}"},
		{"", "{% if a %}", " "},
		{"{% if a %}", "{% elif b %}", "{% endif %}"},
		{"{{ ", "a if b else ", "c }}"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text template = {0}, out = {0};
		struct err err = {0};
		text_append_str(&template, cases[i].before);
		for (int k = 0; k < 10000; k++)
			text_append_str(&template, cases[i].middle);
		text_append_str(&template, cases[i].after);
		assert_int_equal(render(text_str(&template), &out, &err), STATUS_INPUT);
		if (!strstr(err.text, "100"))
			fail_msg("%s: %s", cases[i].middle, err.text);
		text_release(&template);
		text_release(&out);
	}
}

static void dates_are_written_as_asked(void **state)
{
	struct text out = {0};
	struct err err = {0};
	if (render("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% endif %}", &out, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	/* Second 0 of 1970, here or a few hours west. */
	assert_true(strcmp(text_str(&out), "1970") == 0 || strcmp(text_str(&out), "1969") == 0);
	text_release(&out);
}

static void a_template_of_every_length_is_survived(void **state)
{
	static const char template[] =
		"{%- for m in messages[::-1] if m.role != 'x' %}{{ m['content'].split('\\n', 1)[-1]|trim ~ loop.index0 }}"
		"{%- elif not a is defined or [1, {'k': 2}] %}{% set ns.x = 'q' if y else 3 %}{%- endfor -%}";
	for (size_t len = 0; len < sizeof template; len++) {
		char *copy = mem_strndup(template, len); /* a block of its own, so that a sanitizer sees reads past the end */
		struct jinja *jinja;
		struct err err = {0};
		if (jinja_parse(copy, len, &jinja, &err) != STATUS_OK)
			assert_true(err.text[0] != '\0');
		jinja_free(jinja);
		mem_free(copy);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(texts_are_those_of_transformers),
		cmocka_unit_test(what_cannot_be_read_is_refused_with_its_line),
		cmocka_unit_test(what_cannot_be_computed_is_refused),
		cmocka_unit_test(work_that_grows_with_values_is_limited),
		cmocka_unit_test(deep_templates_are_refused),
		cmocka_unit_test(dates_are_written_as_asked),
		cmocka_unit_test(a_template_of_every_length_is_survived),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
