/* harness/store and harness/sql: what is saved comes back, resume, migrations, concurrency, history and records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "harness/store_internal.h"
#include "harness/store_schema.h"
#include "tests/support/experiment_text.h"
#include "tests/support/launch_make.h"

static const char experiment_text[] =
	"{'name':'demo','baseline':{'params':{'graph_max_bs':8,'speculation':'off'}},'matrix':{'factors':{'graph_max_bs':[8,0]},"
	"'include':[{'name':'both','graph_max_bs':0,'speculation':'ngram'}]},"
	"'workloads':[{'name':'w','concurrency':2,'requests':2,'sampling':{'max_tokens':4}}],"
	"'verdict':{'constraints':[{'metric':'ttft_ms_p90','max_regress_pct':10}]}}";

/* A fresh database in a folder of its own, and an experiment to put into it. */
struct fixture {
	char folder[64], path[96];
	struct experiment *experiment;
	struct store *store;
	struct machine_facts machine;
	struct build_facts build;
	int64_t id;
	struct err err;
};

static int fixture_open(void **state)
{
	struct fixture *f = mem_calloc(1, sizeof *f);
	*state = f;
	snprintf(f->folder, sizeof f->folder, "/tmp/verdict-store-XXXXXX");
	if (!mkdtemp(f->folder))
		return -1;
	snprintf(f->path, sizeof f->path, "%s/r.db", f->folder);
	f->experiment = experiment_from_text(experiment_text);
	f->machine.facts = json_new_object();
	json_set(f->machine.facts, "host", json_new_string("box"));
	snprintf(f->machine.hash, sizeof f->machine.hash, "%064d", 1);
	snprintf(f->build.hash, sizeof f->build.hash, "%064d", 2);
	f->build.program = "/usr/bin/verdict-engine";
	f->build.version = "0.1.0";
	return store_open(f->path, &f->store, &f->err) ? -1 : 0;
}

static int fixture_close(void **state)
{
	struct fixture *f = *state;
	static const char *const names[] = {"r.db", "r.db-wal", "r.db-shm", "other.db", "other.db-wal", "other.db-shm"};
	store_close(f->store);
	experiment_release(f->experiment);
	json_free(f->machine.facts);
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		char path[160];
		snprintf(path, sizeof path, "%s/%s", f->folder, names[i]);
		unlink(path);
	}
	rmdir(f->folder);
	mem_free(f);
	return 0;
}

static void begin(struct fixture *f, bool resume, bool *resumed)
{
	if (store_begin_experiment(
		    f->store, f->experiment, &f->machine, &f->build, "m.gguf", "abc", resume, &f->id, resumed, &f->err))
		fail_msg("%s", f->err.text);
}

static void save(struct fixture *f, int arm, int block, double tps)
{
	struct launch_result launch;
	launch_make(&launch, f->experiment, arm, block, tps);
	enum status status = store_save_launch(f->store, f->id, f->experiment, &launch, &f->err);
	launch_result_release(&launch);
	if (status)
		fail_msg("%s", f->err.text);
}

/* Three blocks of all four arms; both (arm 3) at +30 %. */
static void save_all(struct fixture *f)
{
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++)
			save(f, arm, block, (arm == 3 ? 130 : 100) + 0.1 * (arm * 3 + block * 5 % 7));
}

static void judge_and_save(struct fixture *f, bool final)
{
	struct launch_cells cells = {0};
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	char reason[VERDICT_REASON_BYTES];
	size_t n_rows = 0;
	bool failed = false;
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	const struct verdict_input input = {
		.experiment = f->experiment, .cells = cells.items, .n_cells = cells.count, .n_looks = 1};
	assert_int_equal(verdict_compute(&input, 0, rows, &n_rows, &failed, reason, &f->err), STATUS_OK);
	assert_int_equal(store_save_verdicts(f->store, f->id, f->experiment, rows, n_rows, final, &f->err), STATUS_OK);
	launch_cells_release(&cells);
}

static int64_t ask(struct store *store, const char *question)
{
	struct sql_statement *statement = NULL;
	struct err err = {0};
	bool row = false;
	if (sql_prepare(store->sql, question, &statement, &err) || sql_step(statement, &row, &err) || !row)
		fail_msg("%s: %s", question, err.text);
	int64_t answer = sql_int(statement, 0);
	sql_finish(statement);
	return answer;
}

static void what_is_saved_comes_back_as_cells(void **state)
{
	struct fixture *f = *state;
	struct launch_cells cells = {0};
	bool resumed = true;
	begin(f, false, &resumed);
	assert_false(resumed);
	save(f, 0, 0, 100);
	save(f, 2, 0, 120);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 2);
	assert_int_equal(cells.items[1].arm, 2);
	assert_true(fabs(cells.items[1].log_metric[0] - log(120)) < 1e-6);
	assert_true(isnan(cells.items[1].log_metric[1]));
	assert_true(isfinite(cells.items[1].log_limit[0][0]) && isnan(cells.items[1].log_limit[1][0]));
	assert_string_equal(cells.items[0].fingerprint, "[\"a\",\"b\"]");
	assert_true(cells.items[0].failure == FAILURE_NONE && !cells.items[0].voided);
	launch_cells_release(&cells);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM request"), 2 * 3 * 2);
	assert_int_equal(ask(f->store, "SELECT json_array_length(events) FROM request LIMIT 1"), 4);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM request WHERE cached_tokens IS NULL"), 12);
}

static void only_the_last_attempt_of_a_launch_counts(void **state)
{
	struct fixture *f = *state;
	struct launch_cells cells = {0};
	struct launch_result launch;
	bool resumed;
	begin(f, false, &resumed);
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
	struct fixture *f = *state;
	struct launch_result launch;
	bool resumed;
	begin(f, false, &resumed);
	save(f, 1, 0, 100);
	launch_make(&launch, f->experiment, 1, 0, 50);
	assert_int_not_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	assert_non_null(strstr(f->err.text, "UNIQUE"));
	launch_result_release(&launch);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM launch"), 1);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM run"), 3);
}

static void voided_runs_and_dirty_failures_are_marked(void **state)
{
	struct fixture *f = *state;
	struct launch_cells cells = {0};
	struct launch_result launch;
	bool resumed;
	begin(f, false, &resumed);
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
	struct fixture *f = *state;
	bool resumed;
	begin(f, true, &resumed);
	assert_false(resumed); /* nothing to resume yet */
	int64_t first = f->id;
	begin(f, true, &resumed);
	assert_true(resumed && f->id == first);
	begin(f, false, &resumed);
	assert_true(!resumed && f->id != first);
	int64_t second = f->id;
	begin(f, true, &resumed);
	assert_true(resumed && f->id == second); /* the newest */
	f->build.hash[0] = '9';
	begin(f, true, &resumed);
	assert_false(resumed);
	f->build.hash[0] = '0';
	f->machine.hash[0] = '9';
	begin(f, true, &resumed);
	assert_false(resumed);
	f->machine.hash[0] = '0';
	experiment_release(f->experiment);
	f->experiment = experiment_from_text("{'name':'demo','matrix':{'factors':{'graph_max_bs':[8,1]}}}");
	begin(f, true, &resumed);
	assert_false(resumed);
}

static void a_finished_experiment_resumes_with_nothing_left(void **state)
{
	struct fixture *f = *state;
	struct launch_cells cells = {0};
	bool resumed;
	begin(f, false, &resumed);
	int64_t id = f->id;
	save_all(f);
	judge_and_save(f, true);
	begin(f, true, &resumed);
	assert_true(resumed && f->id == id);
	assert_int_equal(store_load_cells(f->store, f->id, f->experiment, &cells, &f->err), STATUS_OK);
	assert_int_equal(cells.count, 12);
	launch_cells_release(&cells);
}

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
	struct fixture *f = *state;
	struct json *rows = NULL;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
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

static size_t count_history(struct fixture *f, struct history_filters filters)
{
	struct json *rows = NULL;
	assert_int_equal(store_history(f->store, &filters, &rows, &f->err), STATUS_OK);
	size_t count = json_count(rows);
	json_free(rows);
	return count;
}

static void filters_choose_rows(void **state)
{
	struct fixture *f = *state;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
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
	struct fixture *f = *state;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, false);
	int64_t ids = ask(f->store, "SELECT sum(verdict_id) FROM verdict"),
		time = ask(f->store, "SELECT min(time_utc_ns) FROM verdict");
	assert_int_equal(ask(f->store, "SELECT count(*) FROM experiment WHERE finished_utc_ns IS NULL"), 1);
	judge_and_save(f, true);
	assert_int_equal(ask(f->store, "SELECT sum(verdict_id) FROM verdict"), ids);
	assert_int_equal(ask(f->store, "SELECT min(time_utc_ns) FROM verdict"), time);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM experiment WHERE finished_utc_ns IS NOT NULL"), 1);
	for (int arm = 0; arm < 4; arm++)
		save(f, arm, 3, 80 + arm);
	judge_and_save(f, true);
	assert_int_equal(ask(f->store, "SELECT sum(verdict_id) FROM verdict"), ids);
	assert_true(ask(f->store, "SELECT max(time_utc_ns) FROM verdict") > time);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM verdict"), 3);
}

static void aa_effects_never_come_from_another_machine_or_load(void **state)
{
	struct fixture *f = *state;
	double effects[8];
	size_t count = 0;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	int64_t first = f->id;
	begin(f, false, &resumed); /* a later experiment knows them */
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

/* Another machine's faster rows must not make this one's setting look known. */
static void views_never_mix_machines(void **state)
{
	struct fixture *f = *state;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	f->machine.hash[5] = '7';
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM knob_history WHERE knob = 'aa_twin'"), 2);
	assert_int_equal(ask(f->store, "SELECT max(helped) FROM knob_history"), 1);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM best_known"), 2);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM launch_rows WHERE runs = 2"), 24);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM stale_verdicts"), 0);
}

static void numbers_that_are_not_finite_become_null_with_a_reason(void **state)
{
	struct fixture *f = *state;
	struct launch_result launch;
	bool resumed;
	begin(f, false, &resumed);
	launch_make(&launch, f->experiment, 0, 0, 100);
	for (size_t i = 0; i < launch.runs[1].n_requests; i++)
		launch.runs[1].requests[i].ok = false;
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_OK);
	launch_result_release(&launch);
	assert_int_equal(ask(f->store,
				 "SELECT count(*) FROM run WHERE warmup = 0 AND output_tps IS NULL AND json_extract(nulls, "
				 "'$.output_tps') = 'undefined'"),
		1);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM run WHERE warmup = 0 AND output_tps IS NOT NULL"), 1);
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

/* --- records -------------------------------------------------------------------------------------------------------- */

static struct json *export_record(struct fixture *f, int64_t id)
{
	struct json *record = NULL;
	if (store_export(f->store, id, &record, &f->err))
		fail_msg("%s", f->err.text);
	return record;
}

static void a_record_survives_the_way_to_another_database(void **state)
{
	struct fixture *f = *state;
	char other_path[96];
	struct store *other = NULL, *first = f->store;
	bool resumed, added = false;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	struct json *record = export_record(f, f->id), *again = NULL, *rows = NULL;
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
	again = export_record(f, json_int(json_get(json_at(rows, 0), "experiment_id"), 0));
	assert_true(json_same(record, again));
	/* An imported record is nobody's to resume, and importing into where it was measured adds nothing. */
	begin(f, true, &resumed);
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
	struct fixture *f = *state;
	bool resumed, added;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	struct json *record = export_record(f, f->id);
	json_set(json_get(record, "experiment"), "started_utc_ns", json_new_integer(5)); /* so that it is new */
	int64_t before = ask(f->store, "SELECT count(*) FROM evidence");
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
	assert_int_equal(ask(f->store, "SELECT count(*) FROM evidence"), before);
	assert_int_equal(store_import(f->store, record, &added, &f->err), STATUS_OK);
	assert_true(added);
	json_free(bad);
	json_free(record);
}

static void show_takes_the_number_of_an_experiment_or_of_a_verdict(void **state)
{
	struct fixture *f = *state;
	struct json *shown = NULL;
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
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
	struct fixture *f = *state;
	struct json *rows = NULL;
	bool resumed, added;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	struct json *record = export_record(f, f->id);
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

/* --- opening and migrating ------------------------------------------------------------------------------------------ */

static void a_newer_or_foreign_database_is_refused(void **state)
{
	struct fixture *f = *state;
	struct store *store = NULL;
	assert_int_equal(sql_exec(f->store->sql, "PRAGMA user_version = 99", &f->err), STATUS_OK);
	assert_int_equal(store_open(f->path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "version 99"));
	assert_int_equal(sql_exec(f->store->sql, "PRAGMA user_version = 0", NULL), STATUS_OK);
	err_clear(&f->err);
	assert_int_equal(store_open(f->path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "another program"));
	char text_path[96];
	snprintf(text_path, sizeof text_path, "%s/other.db", f->folder);
	file_write_atomic(text_path, "this is no database, but long enough to be taken for one at first sight", 71, NULL);
	err_clear(&f->err);
	assert_int_equal(store_open(text_path, &store, &f->err), STATUS_INPUT);
	assert_non_null(strstr(f->err.text, "not a database"));
	err_clear(&f->err);
	assert_int_equal(store_open("", &store, &f->err), STATUS_INPUT);
	err_clear(&f->err);
	assert_int_not_equal(store_open("/no/such/folder/r.db", &store, &f->err), STATUS_OK);
}

static const char *const half_bad[] = {
	"CREATE TABLE one (x INTEGER) STRICT;", "CREATE TABLE two (x INTEGER) STRICT; CREATE TABLE one (y INTEGER);"};
static const char *const all_good[] = {
	"CREATE TABLE one (x INTEGER) STRICT;", "CREATE TABLE two (x INTEGER) STRICT; CREATE TABLE three (y INTEGER);"};

static int64_t number(struct sql *sql, const char *question)
{
	struct store store = {sql, NULL};
	return ask(&store, question);
}

static void a_failed_migration_leaves_the_older_version_whole(void **state)
{
	struct fixture *f = *state;
	struct sql *sql = NULL;
	char path[96];
	snprintf(path, sizeof path, "%s/other.db", f->folder);
	assert_int_equal(sql_open(path, 1000, &sql, &f->err), STATUS_OK);
	assert_int_not_equal(store_migrate(sql, half_bad, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 1);
	assert_int_equal(number(sql, "SELECT count(*) FROM sqlite_master"), 1);
	err_clear(&f->err);
	assert_int_equal(store_migrate(sql, all_good, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 2);
	assert_int_equal(number(sql, "SELECT count(*) FROM sqlite_master"), 3);
	sql_close(sql);
}

static void a_migration_killed_half_way_is_done_again(void **state)
{
	struct fixture *f = *state;
	struct sql *sql = NULL;
	char path[96];
	snprintf(path, sizeof path, "%s/other.db", f->folder);
	pid_t child = fork();
	if (child == 0) {
		struct sql *mine = NULL;
		sql_open(path, 1000, &mine, NULL);
		store_migrate(mine, all_good, 1, NULL);
		sql_begin(mine, NULL);
		sql_exec(mine, "CREATE TABLE two (x INTEGER) STRICT; PRAGMA user_version = 2", NULL);
		raise(SIGKILL);
	}
	int status = 0;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(sql_open(path, 1000, &sql, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 1);
	assert_int_equal(store_migrate(sql, all_good, 2, &f->err), STATUS_OK);
	assert_int_equal(number(sql, "PRAGMA user_version"), 2);
	sql_close(sql);
}

/* --- several processes ---------------------------------------------------------------------------------------------- */

#define WRITER_LAUNCHES 12
#define READERS 4

/* Saves launches of its own experiment; exit code 0 when every one was taken. */
static void write_in_child(struct fixture *f)
{
	struct store *store = NULL;
	bool resumed;
	if (store_open(f->path, &store, NULL))
		_exit(1);
	f->store = store;
	if (store_begin_experiment(store, f->experiment, &f->machine, &f->build, "m", "h", false, &f->id, &resumed, NULL))
		_exit(2);
	for (int i = 0; i < WRITER_LAUNCHES; i++) {
		struct launch_result launch;
		launch_make(&launch, f->experiment, i % 4, i / 4, 100);
		if (store_save_launch(store, f->id, f->experiment, &launch, NULL))
			_exit(3);
		launch_result_release(&launch);
	}
	_exit(0);
}

static void read_in_child(struct fixture *f)
{
	struct store *store = NULL;
	if (store_open(f->path, &store, NULL))
		_exit(1);
	for (int i = 0; i < 40; i++) {
		struct json *rows = NULL;
		if (store_history(store, NULL, &rows, NULL))
			_exit(2);
		json_free(rows);
	}
	_exit(0);
}

static void two_writers_and_many_readers_lose_nothing(void **state)
{
	struct fixture *f = *state;
	pid_t children[2 + READERS];
	bool resumed;
	begin(f, false, &resumed);
	save_all(f);
	judge_and_save(f, true);
	store_close(f->store); /* SQLite connections must not cross a fork */
	f->store = NULL;
	for (int i = 0; i < 2 + READERS; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			if (i < 2)
				write_in_child(f);
			read_in_child(f);
		}
	}
	for (int i = 0; i < 2 + READERS; i++) {
		int status = 0;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM experiment"), 3);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM launch"), 12 + 2 * WRITER_LAUNCHES);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM request"), (12 + 2 * WRITER_LAUNCHES) * 6);
}

/* A database that stays locked: the launch waits in a file and is there after the next opening. */
static void a_launch_that_cannot_be_saved_is_kept_and_saved_later(void **state)
{
	struct fixture *f = *state;
	struct sql *other = NULL;
	struct launch_result launch;
	bool resumed;
	begin(f, false, &resumed);
	save(f, 0, 0, 100);
	store_close(f->store);
	assert_int_equal(store_open_waiting(f->path, 20, &f->store, &f->err), STATUS_OK);
	assert_int_equal(sql_open(f->path, 1000, &other, &f->err), STATUS_OK);
	assert_int_equal(sql_begin(other, &f->err), STATUS_OK);
	launch_make(&launch, f->experiment, 2, 0, 123);
	assert_int_equal(store_save_launch(f->store, f->id, f->experiment, &launch, &f->err), STATUS_UNAVAILABLE);
	assert_non_null(strstr(f->err.text, "locked"));
	launch_result_release(&launch);
	sql_rollback(other);
	sql_close(other);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM launch"), 1);
	store_close(f->store);
	err_clear(&f->err);
	assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM launch"), 2);
	assert_int_equal(ask(f->store, "SELECT count(*) FROM request"), 12);
	char folder[128];
	snprintf(folder, sizeof folder, "%s.unsaved", f->path);
	assert_false(file_exists(folder));
}

/* A writer killed at any moment: what it said was saved is there, nothing is half there, and the rest can be saved afterwards. */
static void a_writer_killed_at_any_moment_leaves_whole_launches(void **state)
{
	struct fixture *f = *state;
	bool resumed;
	begin(f, false, &resumed);
	int64_t id = f->id;
	store_close(f->store);
	f->store = NULL;
	for (int round = 0; round < 6; round++) {
		int pipes[2];
		assert_int_equal(pipe(pipes), 0);
		pid_t child = fork();
		if (child == 0) {
			struct store *store = NULL;
			store_open(f->path, &store, NULL);
			for (int i = 0; i < 40; i++) {
				struct launch_result launch;
				launch_make(&launch, f->experiment, i % 4, round * 10 + i / 4, 100);
				if (store_save_launch(store, id, f->experiment, &launch, NULL) || write(pipes[1], "s", 1) != 1)
					_exit(1);
				launch_result_release(&launch);
			}
			_exit(0);
		}
		char said = 0;
		for (int i = 0; i < 1 + 2 * round;
			i++) /* each round is killed after another number of launches, in the middle of the next */
			assert_int_equal(read(pipes[0], &said, 1), 1);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		close(pipes[0]);
		close(pipes[1]);
		assert_int_equal(store_open(f->path, &f->store, &f->err), STATUS_OK);
		assert_true(ask(f->store, "SELECT count(*) FROM launch") >= (round + 1) * (round + 1)); /* 1 + 3 + 5 + … */
		assert_int_equal(ask(f->store,
					 "SELECT count(*) FROM (SELECT l.launch_id FROM launch l LEFT JOIN run USING (launch_id)"
					 " LEFT JOIN request USING (run_id) GROUP BY l.launch_id HAVING count(request_id) <> 6)"),
			0);
		assert_int_equal(ask(f->store, "SELECT count(*) FROM pragma_foreign_key_check"), 0);
		store_close(f->store);
		f->store = NULL;
	}
}

#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, fixture_open, fixture_close)

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(what_is_saved_comes_back_as_cells),
		STORE_TEST(only_the_last_attempt_of_a_launch_counts),
		STORE_TEST(a_launch_is_never_saved_twice),
		STORE_TEST(voided_runs_and_dirty_failures_are_marked),
		STORE_TEST(resume_finds_the_same_question_only),
		STORE_TEST(a_finished_experiment_resumes_with_nothing_left),
		STORE_TEST(history_rows_have_exactly_the_promised_members),
		STORE_TEST(filters_choose_rows),
		STORE_TEST(verdicts_keep_their_number_and_their_time_when_nothing_changed),
		STORE_TEST(aa_effects_never_come_from_another_machine_or_load),
		STORE_TEST(views_never_mix_machines),
		STORE_TEST(numbers_that_are_not_finite_become_null_with_a_reason),
		STORE_TEST(a_record_survives_the_way_to_another_database),
		STORE_TEST(unsound_records_are_refused_whole),
		STORE_TEST(show_takes_the_number_of_an_experiment_or_of_a_verdict),
		STORE_TEST(history_is_ordered_by_utc_whatever_the_zone),
		STORE_TEST(a_newer_or_foreign_database_is_refused),
		STORE_TEST(a_failed_migration_leaves_the_older_version_whole),
		STORE_TEST(a_migration_killed_half_way_is_done_again),
		STORE_TEST(two_writers_and_many_readers_lose_nothing),
		STORE_TEST(a_launch_that_cannot_be_saved_is_kept_and_saved_later),
		STORE_TEST(a_writer_killed_at_any_moment_leaves_whole_launches),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
