/* harness/store: what is saved comes back: cells, resume, numbers that are none, records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/experiment_text.h"
#include "tests/support/store_bed.h"

static void what_is_saved_comes_back_as_cells(void **state)
{
	struct store_bed *f = *state;
	struct launch_cells cells = {0};
	bool resumed = true;
	store_bed_begin(f, false, &resumed);
	assert_false(resumed);
	store_bed_save(f, 0, 0, 100);
	store_bed_save(f, 2, 0, 120);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 2);
	assert_int_equal(cells.items[1].arm, 2);
	assert_true(fabs(cells.items[1].log_metric[0] - log(120)) < 1e-6);
	assert_true(isnan(cells.items[1].log_metric[1]));
	assert_true(isfinite(cells.items[1].log_limit[0][0]) && isnan(cells.items[1].log_limit[1][0]));
	assert_string_equal(cells.items[0].fingerprint, "[\"a\",\"b\"]");
	assert_true(cells.items[0].failure == FAILURE_NONE && !cells.items[0].voided);
	launch_cells_release(&cells);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM request"), 2 * 3 * 2);
	assert_int_equal(store_bed_ask(f->store, "SELECT json_array_length(events) FROM request LIMIT 1"), 4);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM request WHERE cached_tokens IS NULL"), 12);
}

/* Not as a stand-in that differs from launch to launch. */
static void a_goodput_of_zero_comes_back_as_zero(void **state)
{
	struct store_bed *f = *state;
	struct launch_cells cells = {0};
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save(f, 0, 0, 100);
	store_bed_save(f, 2, 0, 120);
	assert_int_equal(sql_exec(f->store->sql, "UPDATE run SET goodput_rps = 0", NULL), STATUS_OK);
	assert_int_equal(
		sql_exec(f->store->sql, "UPDATE run SET goodput_rps = 3 WHERE launch_id = 2 AND idx = 0", NULL), STATUS_OK);
	f->experiment->rules.metric = "goodput_rps";
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_true(exp(cells.items[0].log_metric[0]) == 0);
	assert_true(fabs(exp(cells.items[1].log_metric[0]) - 1.5) < 1e-9); /* counts add up: 3 and 0 */
	for (int i = 0; i < 2; i++)
		assert_true(cells.items[i].seconds[0] > 0 &&
			cells.items[i].requests[0] == 2 * f->experiment->workloads[0].requests); /* of two runs */
	launch_cells_release(&cells);
}

static void only_the_last_attempt_of_a_launch_counts(void **state)
{
	struct store_bed *f = *state;
	struct launch_cells cells = {0};
	struct launch_result launch;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	launch_make_failed(&launch, 2, 0, FAILURE_CRASH, "crash: signal 11");
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	launch_result_release(&launch);
	launch_make(&launch, f->experiment, 2, 0, 90);
	launch.attempt = 1;
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	launch_result_release(&launch);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 1);
	assert_int_equal(cells.items[0].attempt, 1);
	assert_int_equal(cells.items[0].failure, FAILURE_NONE);
	launch_cells_release(&cells);
}

static void a_launch_is_never_saved_twice(void **state)
{
	struct store_bed *f = *state;
	struct launch_result launch;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	store_bed_save(f, 1, 0, 100);
	launch_make(&launch, f->experiment, 1, 0, 50);
	assert_int_not_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	assert_non_null(strstr(f->err.text, "UNIQUE"));
	launch_result_release(&launch);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM launch"), 1);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM run"), 3);
}

static void voided_runs_and_dirty_failures_are_marked(void **state)
{
	struct store_bed *f = *state;
	struct launch_cells cells = {0};
	struct launch_result launch;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	launch_make(&launch, f->experiment, 0, 0, 100);
	launch.runs[1].voided = true;
	store_save_launch(f->store, f->id, f->experiment, &launch, &f->err);
	launch_result_release(&launch);
	launch_make(&launch, f->experiment, 1, 0, 100);
	launch.runs[1].voided = launch.runs[2].voided = true;
	store_save_launch(f->store, f->id, f->experiment, &launch, &f->err);
	launch_result_release(&launch);
	launch_make_failed(&launch, 2, 0, FAILURE_OOM_LOAD, "oom_load");
	launch.machine_dirty = true;
	store_save_launch(f->store, f->id, f->experiment, &launch, &f->err);
	launch_result_release(&launch);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 3);
	assert_true(!cells.items[0].voided && isfinite(cells.items[0].log_metric[0]));
	assert_true(cells.items[1].voided && cells.items[2].voided);
	launch_cells_release(&cells);
}

static void resume_finds_the_same_question_only(void **state)
{
	struct store_bed *f = *state;
	bool resumed;
	store_bed_begin(f, true, &resumed);
	assert_false(resumed); /* nothing to resume yet */
	int64_t first = f->id;
	store_bed_begin(f, true, &resumed);
	assert_true(resumed && f->id == first);
	store_bed_begin(f, false, &resumed);
	assert_true(!resumed && f->id != first);
	int64_t second = f->id;
	store_bed_begin(f, true, &resumed);
	assert_true(resumed && f->id == second); /* the newest */
	f->build.hash[0] = '9';
	store_bed_begin(f, true, &resumed);
	assert_false(resumed);
	f->build.hash[0] = '0';
	f->machine.hash[0] = '9';
	store_bed_begin(f, true, &resumed);
	assert_false(resumed);
	f->machine.hash[0] = '0';
	experiment_release(f->experiment);
	f->experiment = experiment_from_text("{'name':'demo','matrix':{'factors':{'graph_max_bs':[8,1]}}}");
	store_bed_begin(f, true, &resumed);
	assert_false(resumed);
}

static void a_finished_experiment_resumes_with_nothing_left(void **state)
{
	struct store_bed *f = *state;
	struct launch_cells cells = {0};
	bool resumed;
	store_bed_begin(f, false, &resumed);
	int64_t id = f->id;
	store_bed_save_all(f);
	store_bed_judge(f, true);
	store_bed_begin(f, true, &resumed);
	assert_true(resumed && f->id == id);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 12);
	launch_cells_release(&cells);
}

static void numbers_that_are_not_finite_become_null_with_a_reason(void **state)
{
	struct store_bed *f = *state;
	struct launch_result launch;
	bool resumed;
	store_bed_begin(f, false, &resumed);
	launch_make(&launch, f->experiment, 0, 0, 100);
	for (size_t i = 0; i < launch.runs[1].n_requests; i++)
		launch.runs[1].requests[i].ok = false;
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	launch_result_release(&launch);
	assert_int_equal(store_bed_ask(f->store,
				 "SELECT count(*) FROM run WHERE warmup = 0 AND output_tps IS NULL AND json_extract(nulls, "
				 "'$.output_tps') = 'undefined'"),
		1);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM run WHERE warmup = 0 AND output_tps IS NOT NULL"), 1);
	struct sql_statement *statement = NULL;
	bool row = false;
	assert_int_equal(
		sql_prepare(f->store->sql, "SELECT ? IS NULL AND ? IS NULL AND ? IS NULL", &statement, &f->err), STATUS_OK);
	sql_bind_real(statement, NAN);
	sql_bind_real(statement, INFINITY);
	sql_bind_real(statement, -INFINITY);
	assert_int_equal(sql_step(statement, &row, &f->err), STATUS_OK);
	assert_int_equal(sql_int(statement, 0), 1);
	sql_finish(statement);
}

static void a_record_survives_the_way_to_another_database(void **state)
{
	struct store_bed *f = *state;
	char other_path[96];
	struct store *other = NULL, *first = f->store;
	bool resumed, added = false;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	struct json *record = store_bed_export(f, f->id), *again = NULL, *rows = NULL;
	snprintf(other_path, sizeof other_path, "%s/other.db", f->folder);
	assert_int_equal(store_open(other_path, &other, &f->err), STATUS_OK);
	if (store_import(other, record, &added, &f->err))
		fail_msg("%s", f->err.text);
	assert_true(added);
	assert_int_equal(store_import(other, record, &added, &f->err), STATUS_OK);
	assert_false(added);
	assert_int_equal(store_history(other, NULL, &rows, &f->err), STATUS_OK);
	assert_int_equal(json_count(rows), 3);
	f->store = other;
	again = store_bed_export(f, json_int(json_get(json_at(rows, 0), "experiment_id"), 0));
	assert_true(json_same(record, again));
	/* An imported record is nobody's to resume, and importing into where it was measured adds nothing. */
	store_bed_begin(f, true, &resumed);
	assert_false(resumed);
	f->store = first;
	assert_int_equal(store_import(first, record, &added, &f->err), STATUS_OK);
	assert_false(added);
	store_close(other);
	json_free(record);
	json_free(again);
	json_free(rows);
}

/* Each change of a sound record makes it one that is refused, and leaves the database as it was. */
static void unsound_records_are_refused_whole(void **state)
{
	static const struct {
		const char *where, *key;
	} removed[] = {
		{NULL, "schema"},
		{NULL, "experiment"},
		{NULL, "machine"},
		{NULL, "build"},
		{NULL, "model"},
		{NULL, "arms"},
		{NULL, "workloads"},
		{"experiment", "hash"},
		{"experiment", "started_utc_ns"},
		{"machine", "hash"},
		{"build", "hash"},
	};
	struct store_bed *f = *state;
	bool resumed, added;
	store_bed_begin(f, false, &resumed);
	store_bed_save_all(f);
	store_bed_judge(f, true);
	struct json *record = store_bed_export(f, f->id);
	json_set(json_get(record, "experiment"), "started_utc_ns", json_new_integer(5)); /* so that it is new */
	int64_t before = store_bed_ask(f->store, "SELECT count(*) FROM evidence");
	for (size_t i = 0; i < sizeof removed / sizeof removed[0]; i++) {
		struct json *bad = json_clone(record);
		json_remove(removed[i].where ? json_get(bad, removed[i].where) : bad, removed[i].key);
		err_clear(&f->err);
		if (store_import(f->store, bad, &added, &f->err) != STATUS_INPUT)
			fail_msg("accepted without %s: %s", removed[i].key, f->err.text);
		json_free(bad);
	}
	struct json *bad = json_clone(record), *launch = json_at(json_get(bad, "launches"), 0);
	json_set(launch, "block", json_new_string("first"));
	assert_int_equal(store_import(f->store, bad, &added, &f->err), STATUS_INPUT);
	json_set(launch, "block", json_new_integer(-1));
	assert_int_equal(store_import(f->store, bad, &added, &f->err), STATUS_INPUT);
	json_set(launch, "block", json_new_integer(1));
	json_set(launch, "arm", json_new_integer(9));
	assert_int_equal(store_import(f->store, bad, &added, &f->err), STATUS_INPUT);
	static const char *const named[] = {"experiment", "model", "arms", "workloads"};
	for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
		struct json *escape = json_clone(record), *part = json_get(escape, named[i]);
		json_set(json_kind_of(part) == JSON_KIND_ARRAY ? json_at(part, 0) : part, "name", json_new_string("a\033[31m"));
		err_clear(&f->err);
		if (store_import(f->store, escape, &added, &f->err) != STATUS_INPUT || !strstr(f->err.text, "control characters"))
			fail_msg("%s: %s", named[i], f->err.text);
		json_free(escape);
	}
	err_clear(&f->err);
	assert_int_equal(store_bed_ask(f->store, "SELECT count(*) FROM evidence"), before);
	/* A metric's name becomes part of a query: one that is not known gets no further than the record. */
	struct json *values = NULL, *odd = json_get(record, "experiment");
	json_set(odd, "metric", json_new_string("output_tps FROM run r; --"));
	assert_int_equal(store_import(f->store, record, &added, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "experiment.metric: 'output_tps FROM run r; --' is not known"));
	err_clear(&f->err);
	assert_int_equal(store_run_values(f->store, 1, json_text(json_get(odd, "metric")), &values, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "is not known"));
	assert_null(values);
	json_free(bad);
	json_free(record);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(what_is_saved_comes_back_as_cells),
		STORE_TEST(a_goodput_of_zero_comes_back_as_zero),
		STORE_TEST(only_the_last_attempt_of_a_launch_counts),
		STORE_TEST(a_launch_is_never_saved_twice),
		STORE_TEST(voided_runs_and_dirty_failures_are_marked),
		STORE_TEST(resume_finds_the_same_question_only),
		STORE_TEST(a_finished_experiment_resumes_with_nothing_left),
		STORE_TEST(numbers_that_are_not_finite_become_null_with_a_reason),
		STORE_TEST(a_record_survives_the_way_to_another_database),
		STORE_TEST(unsound_records_are_refused_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
