/* Differences that nobody asked for are named, and only those. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/text.h"
#include "harness/effective.h"

static struct json *parse(const char *text)
{
	struct json *document = NULL;
	assert_int_equal(json_parse(text, strlen(text), "text", &document, NULL), STATUS_OK);
	return document;
}

static void expect(
	const struct target_ops *target, const char *baseline, const char *other, const char *changed, const char *expected)
{
	struct json *left = parse(baseline), *right = parse(other), *knobs = parse(changed);
	struct json *differences = effective_differences(target, left, right, knobs);
	struct text text = {0};
	json_write(differences, JSON_STYLE_COMPACT, &text);
	assert_string_equal(text_str(&text), expected);
	text_release(&text);
	json_free(left);
	json_free(right);
	json_free(knobs);
	json_free(differences);
}

static void a_setting_that_moved_with_another_is_named(void **state)
{
	expect(&target_builtin,
		"{\"settings\": {\"mem_fraction\": {\"value\": 0.8}, \"allreduce\": {\"value\": \"shm-flag\", \"why\": "
		"\"measured\"}}}",
		"{\"settings\": {\"mem_fraction\": {\"value\": 0.5}, \"allreduce\": {\"value\": \"shm-2shot\", \"why\": "
		"\"measured\"}}}",
		"[{\"knob\": \"mem_fraction\"}]",
		"[{\"setting\":\"allreduce\",\"baseline\":\"shm-flag\",\"value\":\"shm-2shot\"}]");
}

static void what_was_asked_for_is_not_named_under_any_of_its_names(void **state)
{
	expect(&target_sglang, "{\"mem_fraction_static\": 0.8, \"chunked_prefill_size\": 8192}",
		"{\"mem_fraction_static\": 0.9, \"chunked_prefill_size\": 4096}", "[{\"knob\": \"mem_fraction\"}]",
		"[{\"setting\":\"chunked_prefill_size\",\"baseline\":8192,\"value\":4096}]");
}

static void what_every_start_changes_or_one_side_keeps_to_itself_is_no_difference(void **state)
{
	expect(&target_sglang, "{\"port\": 1, \"random_seed\": 5, \"only_here\": 1, \"list\": [1], \"same\": 1}",
		"{\"port\": 2, \"random_seed\": 6, \"only_there\": 1, \"list\": [2], \"same\": 1.0}", "[]", "[]");
	expect(&target_builtin, "null", "{\"settings\": {\"a\": 1}}", "[]", "[]");
	expect(&target_builtin, "{\"settings\": {\"a\": 1}}", "null", "null", "[]");
	expect(&target_builtin, "[]", "7", "{}", "[]");
}

static void every_launch_is_held_against_the_baseline_of_its_block(void **state)
{
	struct json *shown = parse(
		"{\"experiment\": {\"adapter\": \"builtin\"}, \"arms\": [{\"arm\": 0, \"name\": \"baseline\", \"changed\": []}, "
		"{\"arm\": 2, \"name\": \"a=1\", \"changed\": [{\"knob\": \"a\"}]}], \"launches\": ["
		"{\"arm\": 0, \"block\": 0, \"effective_config\": {\"settings\": {\"a\": 0, \"b\": 5}}},"
		"{\"arm\": 0, \"block\": 1, \"effective_config\": {\"settings\": {\"a\": 0, \"b\": 6}}},"
		"{\"arm\": 2, \"block\": 0, \"effective_config\": {\"settings\": {\"a\": 1, \"b\": 6}}},"
		"{\"arm\": 2, \"block\": 1, \"effective_config\": {\"settings\": {\"a\": 1, \"b\": 6}}},"
		"{\"arm\": 2, \"block\": 2, \"effective_config\": null}]}");
	struct json *unasked = effective_unasked(shown), *nothing = effective_unasked(NULL);
	struct text text = {0};
	json_write(unasked, JSON_STYLE_COMPACT, &text);
	assert_string_equal(
		text_str(&text), "[{\"setting\":\"b\",\"baseline\":5,\"value\":6,\"block\":0,\"arm\":2,\"name\":\"a=1\"}]");
	assert_int_equal(json_count(nothing), 0);
	text_release(&text);
	json_free(unasked);
	json_free(nothing);
	json_free(shown);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_setting_that_moved_with_another_is_named),
		cmocka_unit_test(what_was_asked_for_is_not_named_under_any_of_its_names),
		cmocka_unit_test(every_launch_is_held_against_the_baseline_of_its_block),
		cmocka_unit_test(what_every_start_changes_or_one_side_keeps_to_itself_is_no_difference),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
