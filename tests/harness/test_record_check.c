/* Records that are not sound: each is refused with its place and a reason, none reaches SQLite, and nothing of it stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "harness/record_check.h"
#include "tests/support/replay_checks.h"
#include "tests/support/store_bed.h"

/* A record with everything that one can have: failures, requests with events, an extension, a confirmation, verdicts. */
static struct json *full_record(struct store_bed *f)
{
	struct launch_result failed;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	launch_make_failed(&failed, 2, 3, FAILURE_OOM_LOAD, "oom_load: x");
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &failed, NULL), STATUS_OK);
	launch_result_release(&failed);
	store_bed_judge(f, true);
	assert_int_equal(store_extend(f->store, f->id, (struct store_extension){3, 4}, NULL), STATUS_OK);
	assert_int_equal(store_confirm(f->store, f->id, (struct store_confirmation){3, 4, 2}, NULL), STATUS_OK);
	struct json *record = store_bed_export(f, f->id);
	json_set(json_get(record, "experiment"), "started_utc_ns", json_new_integer(5)); /* so that it is new */
	return record;
}

/* Imports into a transaction that is undone. */
static enum status try_import(struct store_bed *f, const struct json *record)
{
	bool added = false;
	err_clear(&f->err);
	assert_int_equal(store_begin_import(f->store, NULL), STATUS_OK);
	enum status status = store_import(f->store, record, &added, &f->err);
	assert_true(status || added);
	store_end_import(f->store, STATUS_INTERRUPTED, NULL);
	return status;
}

/* The value at a path of keys and indexes, such as "launches.0.runs.1"; *last is its parent's key, *parent that parent. */
static struct json *follow(struct json *root, const char *path, struct json **parent, char last[64])
{
	struct json *at = root;
	*parent = NULL;
	while (*path) {
		size_t len = strcspn(path, ".");
		snprintf(last, 64, "%.*s", (int)len, path);
		*parent = at;
		long long index;
		at = text_to_i64(last, &index) ? json_at(at, (size_t)index) : json_get(at, last);
		path += len + (path[len] == '.');
	}
	return at;
}

static struct json *value_from(const char *text)
{
	struct json *value = NULL;
	struct err err = {0};
	if (json_parse(text, strlen(text), "value", &value, &err))
		fail_msg("%s", err.text);
	return value;
}

static void each_fault_is_named_with_its_place(void **state)
{
	static const struct {
		const char *path, *value; /* NULL: the member is taken out */
		const char *complaint;
	} cases[] = {
		{"schema", "\"verdict-record/2\"", "schema: must be one of verdict-record/1, is 'verdict-record/2'"},
		{"schema", NULL, "schema: is missing"},
		{"new", "1", "new: is no member that is known here"},
		{"experiment", "[]", "experiment: must be an object, is array"},
		{"experiment.name", "\"\"", "experiment.name: must not be empty"},
		{"experiment.name", "\"a\\u001b[31m\"", "experiment.name: must not contain control characters"},
		{"experiment.name", "\"a\\u0000b\"", "experiment.name: must not contain a NUL character"},
		{"experiment.hash", "7", "experiment.hash: must be a text, is 7"},
		{"experiment.document", "\"x\"", "experiment.document: must be an object, is 'x'"},
		{"experiment.metric", "\"speed\"", "experiment.metric: 'speed' is not known"},
		{"experiment.metric", "\"ttft_p50_ms\"", "experiment.metric: 'ttft_p50_ms' is not known"},
		{"experiment.quick", "2", "experiment.quick: must be 0 or 1, is 2"},
		{"experiment.tags", "[\"a\", 1]", "experiment.tags[1]: must be a text"},
		{"experiment.started_utc_ns", "-1", "experiment.started_utc_ns: must be an integer from 0"},
		{"experiment.started_utc_ns", "\"2026-11-30\"", "experiment.started_utc_ns: must be an integer from 0"},
		{"experiment.started_utc_ns", "1.5", "experiment.started_utc_ns: must be an integer from 0"},
		{"machine.hash", "null", "machine.hash: is null"},
		{"machine.facts", "\"many\"", "machine.facts: must be an object"},
		{"build.version", "3", "build.version: must be a text, is 3"},
		{"model.name", NULL, "model.name: is missing"},
		{"arms", "[]", "arms: must not be empty"},
		{"arms", "{}", "arms: must be a list, is object"},
		{"arms.0", "1", "arms[0]: must be an object"},
		{"arms.0.kind", "\"candidate\"", "arms[0].kind: the first arm, and no other, is the baseline"},
		{"arms.2.kind", "\"baseline\"", "arms[2].kind: the first arm, and no other, is the baseline"},
		{"arms.2.kind", "\"best\"", "arms[2].kind: must be one of baseline, aa_twin, candidate, is 'best'"},
		{"arms.1.arm", "0", "arms[1].arm: must be 1, the place in the list"},
		{"arms.1.arm", "1000000000000000000", "arms[1].arm: must be an integer from 0 to 255, is 1000000000000000000"},
		{"arms.2.changed", "[{\"knob\": 1}]", "arms[2].changed[0].knob: must be a text, is 1"},
		{"workloads", "[]", "workloads: must not be empty"},
		{"workloads.0.workload", "1", "workloads[0].workload: must be 0, the place in the list"},
		{"launches", "\"none\"", "launches: must be a list, is 'none'"},
		{"launches.0.block", "1000000000000000000", "launches[0].block: must be an integer from 0 to 99999, is 1000"},
		{"launches.0.block", "\"first\"", "launches[0].block: must be an integer from 0 to 99999, is 'first'"},
		{"launches.1.block", "-1", "launches[1].block: must be an integer from 0 to 99999, is -1"},
		{"launches.2.arm", "9", "launches[2].arm: there is no arm 9 in this record"},
		{"launches.2.failure", "\"meltdown\"", "launches[2].failure: there is no class 'meltdown'"},
		{"launches.2.failure", "null", "launches[2].failure: is null"},
		{"launches.2.machine_dirty", "true", "launches[2].machine_dirty: must be 0 or 1, is true"},
		{"launches.2.exit_code", "256", "launches[2].exit_code: must be an integer from 0 to 255, is 256"},
		{"launches.2.total_ns", "-5", "launches[2].total_ns: must be an integer from 0"},
		{"launches.2.runs", "\"two\"", "launches[2].runs: must be a list, is 'two'"},
		{"launches.2.runs.0", "[]", "launches[2].runs[0]: must be an object"},
		{"launches.2.runs.0.workload", "63", "launches[2].runs[0].workload: there is no workload 63 in this record"},
		{"launches.2.runs.1.output_tps", "-3.5", "launches[2].runs[1].output_tps: must be a number from 0"},
		{"launches.2.runs.1.output_tps", "\"inf\"", "launches[2].runs[1].output_tps: must be a number from 0"},
		{"launches.2.runs.1.output_tps", "1e300", "launches[2].runs[1].output_tps: must be a number from 0"},
		{"launches.2.runs.1.completed_frac", "1.5",
			"launches[2].runs[1].completed_frac: must be a number from 0 to 1, is 1.5"},
		{"launches.2.runs.1.speed", "1", "launches[2].runs[1].speed: is no member that is known here"},
		{"launches.2.runs.1.ttft_p50_ms", "1", "launches[2].runs[1].ttft_p50_ms: is no member that is known here"},
		{"launches.2.runs.1.duration_ns", "1.5", "launches[2].runs[1].duration_ns: must be an integer from 0"},
		{"launches.2.runs.1.warmup", "\"no\"", "launches[2].runs[1].warmup: must be 0 or 1, is 'no'"},
		{"launches.0.runs.1.requests.1.completion_tokens", "-1",
			"launches[0].runs[1].requests[1].completion_tokens: must be an integer from 0"},
		{"launches.0.runs.1.requests.1.flags", "64",
			"launches[0].runs[1].requests[1].flags: must be an integer from 0 to 63"},
		{"launches.0.runs.1.requests.1.ok", "\"yes\"", "launches[0].runs[1].requests[1].ok: must be 0 or 1, is 'yes'"},
		{"launches.0.runs.1.requests.1.events.0", "[1]",
			"launches[0].runs[1].requests[1].events[0]: must be [nanoseconds, tokens so far]"},
		{"launches.0.runs.1.requests.1.idx", "0", "launches[0].runs[1].requests[1]: has the same idx as requests[0]"},
		{"launches.0.runs.2.idx", "0", "launches[0].runs[2]: has the same workload, warmup and idx as runs[1]"},
		{"launches.1.arm", "0", NULL}, /* whichever other it collides with */
		{"extensions.0.to_blocks", "3", "extensions[0].to_blocks: must be above from_blocks"},
		{"extensions.0.from_blocks", "0", "extensions[0].from_blocks: must be an integer from 1"},
		{"confirmation.0.arm", "7", "confirmation[0].arm: there is no arm 7 in this record"},
		{"confirmation.0.blocks", "0", "confirmation[0].blocks: must be an integer from 1"},
		{"verdicts.0.verdict", "\"great\"",
			"verdicts[0].verdict: must be one of helped, hurt, neutral, failed, void, is 'great'"},
		{"verdicts.0.p", "1.01", "verdicts[0].p: must be a number from 0 to 1, is 1.01"},
		{"verdicts.0.effect_pct", "-101", "verdicts[0].effect_pct: must be a number from -100"},
		{"verdicts.0.launches", "null", "verdicts[0].launches: is null"},
		{"verdicts.0.method", "\"guessed\"",
			"verdicts[0].method: must be one of pooled, paired, confirmation, is 'guessed'"},
		{"verdicts.1.arm", "3", NULL},
	};
	struct store_bed *f = *state;
	struct json *record = full_record(f);
	int64_t before = store_bed_ask(f->store, "SELECT count(*) FROM evidence");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct json *bad = json_clone(record), *parent, *copy;
		char last[64];
		long long index;
		follow(bad, cases[i].path, &parent, last);
		if (text_to_i64(last, &index)) { /* an entry of a list, which is made anew around it */
			copy = json_new_array();
			for (size_t k = 0; k < json_count(parent); k++)
				json_append(copy, k == (size_t)index ? value_from(cases[i].value) : json_clone(json_at(parent, k)));
			char up[128];
			snprintf(up, sizeof up, "%.*s", (int)(strlen(cases[i].path) - strlen(last) - 1), cases[i].path);
			follow(bad, up, &parent, last);
			json_set(parent, last, copy);
		} else if (cases[i].value) {
			json_set(parent, last, value_from(cases[i].value));
		} else {
			json_remove(parent, last);
		}
		enum status status = try_import(f, bad);
		if (status != STATUS_INPUT || (cases[i].complaint && !text_starts_with(f->err.text, cases[i].complaint)))
			fail_msg("%s = %s: %d, %s", cases[i].path, cases[i].value ? cases[i].value : "(none)", (int)status,
				f->err.text);
		json_free(bad);
	}
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM evidence"), before);
	assert_int_equal(try_import(f, record), STATUS_OK);
	json_free(record);
}

/* --- every member of every object ----------------------------------------------------------------------------------- */

static size_t tried, refused;

/* What the check lets through, SQLite must take: its own words are nothing for the person who imports. */
static void try_values(struct store_bed *f, const struct json *record, struct json *parent, const char *key)
{
	static const char *const values[] = {"null", "\"\"", "\"x\"", "\"9\"", "-1", "0", "1", "1000000000000000000", "-1e300",
		"0.5", "1e300", "true", "[]", "{}", "[null]", "[1, \"a\", {}]", "{\"a\": [1]}"};
	struct json *kept = json_clone(json_get(parent, key));
	for (size_t i = 0; i <= sizeof values / sizeof values[0]; i++) {
		if (i < sizeof values / sizeof values[0])
			json_set(parent, key, value_from(values[i]));
		else
			json_remove(parent, key);
		enum status status = try_import(f, record);
		bool named = status == STATUS_OK || (status == STATUS_INPUT && strchr(f->err.text, ':'));
		if (!named || strstr(f->err.text, "database") || strstr(f->err.text, "constraint"))
			fail_msg("%s = %s: %d, %s", key, values[i % 17], (int)status, f->err.text);
		tried++;
		refused += status == STATUS_INPUT;
	}
	json_set(parent, key, kept);
}

/* The first and the last entry of a list stand for all. */
static void try_object(struct store_bed *f, const struct json *record, struct json *object, int depth)
{
	size_t count = json_count(object), n = 0;
	char **keys = mem_calloc(count + 1, sizeof *keys);
	for (void *it = json_first(object); it; it = json_next(object, it))
		keys[n++] = mem_strdup(json_iterator_key(it));
	for (size_t i = 0; i < n; i++) {
		const struct json *value = json_get(object, keys[i]);
		for (size_t k = 0; json_kind_of(value) == JSON_KIND_ARRAY && depth < 3 && k < json_count(value); k++)
			if ((k == 0 || k + 1 == json_count(value)) && json_kind_of(json_at(value, k)) == JSON_KIND_OBJECT)
				try_object(f, record, json_at(value, k), depth + 1);
		if (depth == 0 && json_kind_of(value) == JSON_KIND_OBJECT)
			try_object(f, record, json_get(object, keys[i]), depth + 1);
		try_values(f, record, object, keys[i]);
		mem_free(keys[i]);
	}
	mem_free(keys);
}

/* One launch of each kind is enough, and fast. */
static void shorten(struct json *record)
{
	struct json *few = json_new_array(), *launches = json_get(record, "launches");
	json_append(few, json_clone(json_at(launches, 0)));
	json_append(few, json_clone(json_at(launches, json_count(launches) - 1)));
	json_set(record, "launches", few);
}

static void whatever_a_member_becomes_sqlite_never_has_to_complain(void **state)
{
	struct store_bed *f = *state;
	struct json *record = full_record(f);
	shorten(record);
	assert_int_equal(try_import(f, record), STATUS_OK);
	tried = refused = 0;
	try_object(f, record, record, 0);
	printf("%zu values tried, %zu refused\n", tried, refused);
	assert_true(refused > tried / 2 && tried > 2000);
	assert_int_equal(try_import(f, record), STATUS_OK); /* all is as it was */
	json_free(record);
}

static void the_fuzzers_corpus_is_read_safely(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/record", check_record_bytes) >= 9);
}

static void what_is_no_object_is_no_record(void **state)
{
	static const char *const texts[] = {"null", "1", "[]", "\"verdict-record/1\"", "{}"};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
		struct json *value = value_from(texts[i]);
		char path[RECORD_PATH_BYTES];
		struct err err = {0};
		assert_int_equal(record_check(value, path, &err), STATUS_INPUT);
		assert_true(err.text[0] && !path[0]);
		json_free(value);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(each_fault_is_named_with_its_place),
		STORE_TEST(whatever_a_member_becomes_sqlite_never_has_to_complain),
		cmocka_unit_test(what_is_no_object_is_no_record),
		cmocka_unit_test(the_fuzzers_corpus_is_read_safely),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
