/* harness/store: history, filters, views, and what one number shows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/store_bed.h"

static const struct json *row_with_knob(const struct json *rows, const char *knob)
{
	for (size_t i = 0; i < json_count(rows); i++)
		if (text_equal(json_text(json_get(json_at(rows, i), "knob")), knob))
			return json_at(rows, i);
	return NULL;
}

static void history_rows_have_exactly_the_promised_members(void **state)
{
	static const char *const members[] = {"experiment_id", "experiment", "time_utc", "engine", "model", "machine", "workload",
		"metric", "knob", "value", "baseline_value", "verdict", "reason", "effect_pct", "ci_low_pct", "ci_high_pct",
		"p_adjusted", "launches", "blocks", "min_effect_pct", "evidence_id"};
	struct store_bed *f = *state;
	struct json *rows = NULL;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	assert_int_equal(store_history(f->store, NULL, &rows, &f->err), STATUS_OK);
	assert_int_equal(json_count(rows), 3);
	for (size_t i = 0; i < json_count(rows); i++) {
		size_t k = 0;
		for (void *it = json_first(json_at(rows, i)); it; it = json_next(json_at(rows, i), it))
			assert_string_equal(json_iterator_key(it), members[k++]);
		assert_int_equal(k, sizeof members / sizeof members[0]);
	}
	const struct json *single = row_with_knob(rows, "graph_max_bs"), *joint = row_with_knob(rows, "graph_max_bs+speculation");
	assert_int_equal(json_kind_of(json_get(single, "value")), JSON_KIND_INTEGER);
	assert_int_equal(json_int(json_get(single, "baseline_value"), -1), 8);
	assert_string_equal(json_text(json_get(joint, "value")), "0+ngram");
	assert_string_equal(json_text(json_get(joint, "baseline_value")), "8+off");
	assert_string_equal(json_text(json_get(joint, "verdict")), "helped");
	assert_string_equal(json_text(json_get(joint, "engine")), "verdict-engine 0.1.0");
	assert_string_equal(json_text(json_get(joint, "machine")), "box-000000000000");
	const struct json *twin = row_with_knob(rows, "aa_twin");
	assert_int_equal(json_kind_of(json_get(twin, "value")), JSON_KIND_NULL);
	const char *time = json_text(json_get(twin, "time_utc"));
	assert_true(strlen(time) >= 20 && time[4] == '-' && time[10] == 'T' && time[strlen(time) - 1] == 'Z');
	json_free(rows);
}

static size_t count_history(struct store_bed *f, struct history_filters filters)
{
	struct json *rows = NULL;
	assert_int_equal(store_history(f->store, &filters, &rows, &f->err), STATUS_OK);
	size_t count = json_count(rows);
	json_free(rows);
	return count;
}

static void filters_choose_rows(void **state)
{
	struct store_bed *f = *state;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	assert_int_equal(count_history(f, (struct history_filters){.experiment = "demo"}), 3);
	assert_int_equal(count_history(f, (struct history_filters){.experiment = "dem"}), 0);
	assert_int_equal(count_history(f, (struct history_filters){.knob = "graph_max_bs", .value = "0"}), 1);
	assert_int_equal(count_history(f, (struct history_filters){.value = "0+ngram"}), 1);
	assert_int_equal(count_history(f, (struct history_filters){.model = "gguf", .machine = "box"}), 3);
	assert_int_equal(count_history(f, (struct history_filters){.machine = "cloud"}), 0);
	assert_int_equal(count_history(f, (struct history_filters){.verdict = "helped"}), 1);
	assert_int_equal(count_history(f, (struct history_filters){.limit = 2}), 2);
	assert_int_equal(count_history(f, (struct history_filters){.experiment_id = f->id}), 3);
	assert_int_equal(count_history(f, (struct history_filters){.experiment = "' OR 1 --"}), 0);
}

static void verdicts_keep_their_number_and_their_time_when_nothing_changed(void **state)
{
	struct store_bed *f = *state;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, false);
	int64_t ids = store_bed_ask(f->store, "SELECT sum(verdict_id) FROM verdict"),
		time = store_bed_ask(f->store, "SELECT min(time_utc_ns) FROM verdict");
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM experiment WHERE finished_utc_ns IS NULL"), 1);
	store_bed_judge(f, true);
	assert_int_equal(store_bed_ask(f->store, "SELECT sum(verdict_id) FROM verdict"), ids);
	assert_int_equal(store_bed_ask(f->store, "SELECT min(time_utc_ns) FROM verdict"), time);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM experiment WHERE finished_utc_ns IS NOT NULL"), 1);
	for (int arm = 0; arm < 4; arm++)
		store_bed_save(f, arm, 3, 80 + arm);
	store_bed_judge(f, true);
	assert_int_equal(store_bed_ask(f->store, "SELECT sum(verdict_id) FROM verdict"), ids);
	assert_true(store_bed_ask(f->store, "SELECT max(time_utc_ns) FROM verdict") > time);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM verdict"), 3);
}

static void aa_effects_never_come_from_another_machine_or_load(void **state)
{
	struct store_bed *f = *state;
	double effects[8];
	size_t count = 0;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	int64_t first = f->id;
	store_bed_begin(f, false, &resumed); /* a later experiment knows them */
	const char *workload = f->experiment->workloads[0].hash;
	assert_int_equal(store_aa_effects(f->store, f->id, f->machine.hash, workload, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 1);
	assert_int_equal(store_aa_effects(f->store, first, f->machine.hash, workload, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0); /* its own twin does not count */
	assert_int_equal(store_aa_effects(f->store, f->id, f->build.hash, workload, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
	assert_int_equal(
		store_aa_effects(f->store, f->id, f->machine.hash, f->machine.hash, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
	assert_int_equal(store_aa_effects(f->store, f->id, f->machine.hash, workload, 4, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
	assert_int_equal(store_aa_effects(f->store, f->id, f->machine.hash, workload, 3, effects, 0, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
	/* Nor from an experiment that came to its verdicts after this one began, or that judged another metric. */
	sql_exec(f->store->sql, "UPDATE verdict SET time_utc_ns = time_utc_ns + 3600000000000", NULL);
	assert_int_equal(store_aa_effects(f->store, f->id, f->machine.hash, workload, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
	sql_exec(f->store->sql,
		"UPDATE verdict SET time_utc_ns = 1; UPDATE experiment SET metric = 'ttft_ms_p50' WHERE finished_utc_ns IS NULL",
		NULL);
	assert_int_equal(store_aa_effects(f->store, f->id, f->machine.hash, workload, 3, effects, 8, &count, &f->err), STATUS_OK);
	assert_int_equal(count, 0);
}

static void the_noise_of_launches_is_learnt_from_ten_earlier_pairs(void **state)
{
	struct store_bed *f = *state;
	double sd = 0;
	bool resumed;
	for (int i = 0; i < 4; i++) { /* three pairs each, of a difference of 2 % either way */
		store_bed_begin(f, false, &resumed);
		assert_int_equal(store_launch_sd(f->store, f->id, f->machine.hash, f->experiment, 0, &sd, &f->err), STATUS_OK);
		assert_true(isnan(sd));
		for (int block = 0; block < 3; block++) {
			store_bed_save(f, 0, block, 100);
			store_bed_save(f, 1, block, block % 2 ? 102 : 100 / 1.02);
			store_bed_save(f, 2, block, 50);
		}
	}
	store_bed_begin(f, false, &resumed);
	assert_int_equal(store_launch_sd(f->store, f->id, f->machine.hash, f->experiment, 0, &sd, &f->err), STATUS_OK);
	assert_true(fabs(sd - log(1.02) / sqrt(2)) < 1e-6);
	assert_int_equal(store_launch_sd(f->store, f->id, f->build.hash, f->experiment, 0, &sd, &f->err), STATUS_OK);
	assert_true(isnan(sd)); /* another machine */
	sql_exec(f->store->sql, "UPDATE run SET voided = 1 WHERE run_id % 5 = 0", NULL);
	assert_int_equal(store_launch_sd(f->store, f->id, f->machine.hash, f->experiment, 0, &sd, &f->err), STATUS_OK);
	assert_true(fabs(sd - log(1.02) / sqrt(2)) < 1e-6); /* a run of each launch is left */
}

/* Another machine's faster rows must not make this one's setting look known. */
static void views_never_mix_machines(void **state)
{
	struct store_bed *f = *state;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	f->machine.hash[5] = '7';
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM knob_history WHERE knob = 'aa_twin'"), 2);
	assert_int_equal(store_bed_ask(f->store, "SELECT max(helped) FROM knob_history"), 1);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM best_known"), 2);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM launch_rows WHERE runs = 2"), 24);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM stale_verdicts"), 0);
}

static void show_takes_the_number_of_an_experiment_or_of_a_verdict(void **state)
{
	struct store_bed *f = *state;
	struct json *shown = NULL;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	assert_int_equal(store_show(f->store, f->id, &shown, &f->err), STATUS_OK);
	assert_int_equal(json_count(json_get(shown, "launches")), 12);
	assert_int_equal(json_count(json_get(shown, "rows")), 3);
	int64_t evidence = json_int(json_get(json_at(json_get(shown, "rows"), 2), "evidence_id"), 0);
	json_free(shown);
	assert_int_equal(store_show(f->store, evidence, &shown, &f->err), STATUS_OK);
	assert_int_equal(json_count(json_get(shown, "rows")), 1);
	assert_int_equal(json_count(json_get(shown, "arms")), 2);
	assert_int_equal(json_count(json_get(shown, "launches")), 6);
	assert_int_equal(json_int(json_get(shown, "experiment_id"), 0), f->id);
	json_free(shown);
	assert_int_equal(store_show(f->store, 12345, &shown, &f->err), STATUS_NOT_FOUND);
	assert_string_equal(f->err.text, "there is no experiment or verdict 12345");
}

/* Times written with different offsets, and a later run of an older commit: order follows UTC. */
static void history_is_ordered_by_utc_whatever_the_zone(void **state)
{
	static const int64_t utc_s[] = {1761438600, 1761441000, 1761444000, 1761441600, 1761438601}; /* of r11_time_zones, by id */
	static const int64_t newest_first[] = {3, 4, 2, 5, 1};
	struct store_bed *f = *state;
	struct json *rows = NULL;
	bool resumed, added;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	struct json *record = store_bed_export(f, f->id);
	for (int i = 0; i < 5; i++) {
		char name[8];
		struct json *copy = json_clone(record), *verdicts = json_get(copy, "verdicts");
		snprintf(name, sizeof name, "%d", i + 1);
		json_set(json_get(copy, "experiment"), "name", json_new_string(name));
		json_set(json_get(copy, "experiment"), "started_utc_ns", json_new_integer(utc_s[i] * 1000000000));
		for (size_t k = 0; k < json_count(verdicts); k++)
			json_set(json_at(verdicts, k), "time_utc_ns", json_new_integer(utc_s[i] * 1000000000));
		assert_int_equal(store_import(f->store, copy, &added, &f->err), STATUS_OK);
		json_free(copy);
	}
	assert_int_equal(store_history(f->store, &(struct history_filters){.knob = "aa_twin"}, &rows, &f->err), STATUS_OK);
	for (int i = 0; i < 5; i++) { /* row 0 is the one measured now */
		const char *name = json_text(json_get(json_at(rows, (size_t)i + 1), "experiment"));
		assert_int_equal(name[0] - '0', newest_first[i]);
	}
	assert_non_null(strstr(json_text(json_get(json_at(rows, 5), "time_utc")), "2025-10-26T00:30:00"));
	json_free(rows);
	json_free(record);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(history_rows_have_exactly_the_promised_members),
		STORE_TEST(filters_choose_rows),
		STORE_TEST(verdicts_keep_their_number_and_their_time_when_nothing_changed),
		STORE_TEST(the_noise_of_launches_is_learnt_from_ten_earlier_pairs),
		STORE_TEST(aa_effects_never_come_from_another_machine_or_load),
		STORE_TEST(views_never_mix_machines),
		STORE_TEST(show_takes_the_number_of_an_experiment_or_of_a_verdict),
		STORE_TEST(history_is_ordered_by_utc_whatever_the_zone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
