/* Questions people ask of the results database: history rows, everything about one experiment, records for elsewhere. */
#include <string.h>

#include "base/clock.h"
#include "harness/record_check.h"
#include "harness/store_internal.h"

/* --- rows of the public contract ------------------------------------------------------------------------------------ */

static void append_value_text(struct text *out, const struct json *value)
{
	if (json_text(value))
		text_append(out, json_text(value), json_text_len(value));
	else
		json_write(value, JSON_STYLE_COMPACT, out);
}

/* One changed knob keeps its value's kind; the texts of several are joined with '+'. NULL: nothing changed. */
static struct json *joined(const struct json *changed, const char *key)
{
	if (json_count(changed) == 0)
		return json_new_null();
	if (json_count(changed) == 1) {
		const struct json *value = json_get(json_at(changed, 0), key);
		return value ? json_clone(value) : json_new_null();
	}
	struct text text = {0};
	for (size_t i = 0; i < json_count(changed); i++) {
		text_append_str(&text, i ? "+" : "");
		append_value_text(&text, json_get(json_at(changed, i), key));
	}
	struct json *value = json_new_string_len(text_str(&text), text.len);
	text_release(&text);
	return value;
}

static void copy_members(struct json *row, const struct json *source, const char *const *names)
{
	for (; *names; names++) {
		const struct json *value = json_get(source, *names);
		json_set(row, *names, value ? json_clone(value) : json_new_null());
	}
}

static struct json *engine_name(const struct json *source)
{
	const char *program = json_text(json_get(source, "engine")), *version = json_text(json_get(source, "engine_version"));
	const char *slash = program ? strrchr(program, '/') : NULL;
	program = slash && slash[1] ? slash + 1 : program; /* where a program lies is in the record, but no part of its name */
	struct text text = {0};
	text_printf(&text, "%s%s%s", program ? program : "", program && version && *version ? " " : "", version ? version : "");
	struct json *name = text.len ? json_new_string(text_str(&text)) : json_new_null();
	text_release(&text);
	return name;
}

/* From a row of the view verdict_rows to the members that harness/README.md promises, in its order. */
static struct json *contract_row(const struct json *source)
{
	static const char *const places[] = {"model", "machine", "workload", "metric", NULL};
	static const char *const answers[] = {"verdict", "reason", "effect_pct", "ci_low_pct", "ci_high_pct", "p_adjusted",
		"launches", "blocks", "min_effect_pct", "evidence_id", NULL};
	static const char *const heads[] = {"experiment_id", "experiment", NULL};
	char time[CLOCK_UTC_BYTES];
	struct json *row = json_new_object();
	const struct json *changed = json_get(source, "changed");
	copy_members(row, source, heads);
	clock_format_utc(time, json_int(json_get(source, "time_utc_ns"), 0));
	json_set(row, "time_utc", json_new_string(time));
	json_set(row, "engine", engine_name(source));
	copy_members(row, source, places);
	if (text_equal(json_text(json_get(source, "arm_kind")), "aa_twin"))
		json_set(row, "knob", json_new_string("aa_twin"));
	else
		json_set(row, "knob", joined(changed, "knob"));
	json_set(row, "value", joined(changed, "value"));
	json_set(row, "baseline_value", joined(changed, "baseline"));
	copy_members(row, source, answers);
	return row;
}

/* A filter that is absent adds nothing; bind_filters must follow the same order. */
static void add_filters(const struct history_filters *filters, struct text *text)
{
	if (filters->experiment)
		text_append_str(text, " AND experiment = ?");
	if (filters->knob)
		text_append_str(text, " AND knob = ?");
	if (filters->value)
		text_append_str(text, " AND CAST(value AS TEXT) = ?");
	if (filters->model)
		text_append_str(text, " AND instr(model, ?) > 0");
	if (filters->machine)
		text_append_str(text, " AND instr(machine, ?) > 0");
	if (filters->verdict)
		text_append_str(text, " AND verdict = ?");
	if (filters->experiment_id)
		text_append_str(text, " AND experiment_id = ?");
}

static void bind_filters(const struct history_filters *filters, struct sql_statement *statement)
{
	const char *const texts[] = {
		filters->experiment, filters->knob, filters->value, filters->model, filters->machine, filters->verdict};
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
		if (texts[i])
			sql_bind_text(statement, texts[i]);
	if (filters->experiment_id)
		sql_bind_int(statement, filters->experiment_id);
	sql_bind_int(statement, filters->limit > 0 ? filters->limit : -1);
}

enum status store_history(struct store *store, const struct history_filters *filters, struct json **out, struct err *err)
{
	static const struct history_filters none;
	struct sql_statement *statement = NULL;
	struct text text = {0};
	struct json *rows = json_new_array();
	bool row = true;
	filters = filters ? filters : &none;
	text_append_str(&text, "SELECT * FROM verdict_rows WHERE 1");
	add_filters(filters, &text);
	text_append_str(&text, " ORDER BY time_utc_ns DESC, experiment_id DESC, evidence_id LIMIT ?");
	enum status status = sql_prepare(store->sql, text_str(&text), &statement, err);
	if (!status)
		bind_filters(filters, statement);
	while (row && !status) {
		status = sql_step(statement, &row, err);
		if (status || !row)
			break;
		struct json *source = sql_row(statement, rows_json_columns);
		json_append(rows, contract_row(source));
		json_free(source);
	}
	sql_finish(statement);
	text_release(&text);
	if (status) {
		json_free(rows);
		rows = NULL;
	}
	*out = rows;
	return status;
}

/* --- records -------------------------------------------------------------------------------------------------------- */

/* Rows of a query whose one parameter is an id. */
static enum status query(struct store *store, const char *text, int64_t id, struct json **out, struct err *err)
{
	struct sql_statement *statement = NULL;
	*out = NULL;
	enum status status = sql_prepare(store->sql, text, &statement, err);
	if (!status) {
		sql_bind_int(statement, id);
		status = sql_rows(statement, rows_json_columns, out, err);
	}
	sql_finish(statement);
	return status;
}

/* Puts the only row of a query into the record. */
static enum status add_one(struct store *store, struct json *record, const char *key, const char *text, int64_t id, struct err *err)
{
	struct json *rows = NULL;
	enum status status = query(store, text, id, &rows, err);
	if (!status && json_count(rows) == 1)
		json_set(record, key, json_clone(json_at(rows, 0)));
	json_free(rows);
	return status;
}

static enum status add_all(struct store *store, struct json *record, const char *key, const char *text, int64_t id, struct err *err)
{
	struct json *rows = NULL;
	enum status status = query(store, text, id, &rows, err);
	if (!status)
		json_set(record, key, rows);
	return status;
}

/* Moves an id out of a row: it has a meaning in this database only. */
static int64_t take_id(struct json *row, const char *key)
{
	int64_t id = json_int(json_get(row, key), 0);
	json_remove(row, key);
	return id;
}

static enum status add_runs(struct store *store, struct json *launch, struct err *err)
{
	enum status status = add_all(store, launch, "runs",
		"SELECT * FROM run WHERE launch_id = ? ORDER BY workload, warmup DESC, idx", take_id(launch, "launch_id"), err);
	const struct json *runs = json_get(launch, "runs");
	for (size_t i = 0; i < json_count(runs) && !status; i++) {
		struct json *run = json_at(runs, i);
		json_remove(run, "launch_id");
		status = add_all(
			store, run, "requests", "SELECT * FROM request WHERE run_id = ? ORDER BY idx", take_id(run, "run_id"), err);
		const struct json *requests = json_get(run, "requests");
		for (size_t k = 0; k < json_count(requests); k++) {
			json_remove(json_at(requests, k), "run_id");
			json_remove(json_at(requests, k), "request_id");
		}
	}
	return status;
}

static enum status add_evidence(struct store *store, struct json *record, int64_t id, struct err *err)
{
	enum status status = add_all(store, record, "launches",
		"SELECT * FROM launch WHERE experiment_id = ? ORDER BY block, position, attempt", id, err);
	const struct json *launches = json_get(record, "launches");
	for (size_t i = 0; i < json_count(launches) && !status; i++) {
		json_remove(json_at(launches, i), "experiment_id");
		status = add_runs(store, json_at(launches, i), err);
	}
	if (!status)
		status = add_all(
			store, record, "verdicts", "SELECT * FROM verdict WHERE experiment_id = ? ORDER BY workload, arm", id, err);
	const struct json *verdicts = json_get(record, "verdicts");
	for (size_t i = 0; i < json_count(verdicts); i++) {
		json_remove(json_at(verdicts, i), "experiment_id");
		json_remove(json_at(verdicts, i), "verdict_id");
	}
	return status;
}

static enum status add_head(struct store *store, struct json *record, int64_t id, struct err *err)
{
	static const struct {
		const char *key, *text;
		bool many;
	} parts[] = {
		{"experiment",
			"SELECT name, hash, protocol_hash, document, hypothesis, adapter, metric, quick, tags, started_utc_ns, "
			"finished_utc_ns"
			" FROM experiment WHERE experiment_id = ?",
			false},
		{"machine",
			"SELECT m.hash, m.name, m.facts FROM machine m JOIN experiment USING (machine_id) WHERE experiment_id = ?",
			false},
		{"build",
			"SELECT b.hash, b.program, b.version FROM build b JOIN experiment USING (build_id) WHERE experiment_id = ?",
			false},
		{"model", "SELECT m.hash, m.name FROM model m JOIN experiment USING (model_id) WHERE experiment_id = ?", false},
		{"arms",
			"SELECT arm, kind, name, hash AS config_hash, settings, changed FROM arm JOIN config USING (config_id) "
			"WHERE experiment_id = ?"
			" ORDER BY arm",
			true},
		{"workloads",
			"SELECT workload, name, hash, document FROM experiment_workload JOIN workload USING (workload_id)"
			" WHERE experiment_id = ? ORDER BY workload",
			true},
		{"extensions",
			"SELECT from_blocks, to_blocks, time_utc_ns FROM extension WHERE experiment_id = ? ORDER BY to_blocks",
			true},
		{"confirmation", "SELECT arm, from_block, blocks, time_utc_ns FROM confirmation WHERE experiment_id = ?", true},
	};
	enum status status = STATUS_OK;
	json_set(record, "schema", json_new_string(RECORD_SCHEMA));
	for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !status; i++)
		status = (parts[i].many ? add_all : add_one)(store, record, parts[i].key, parts[i].text, id, err);
	if (!status && !json_get(record, "experiment"))
		status = err_set(err, STATUS_NOT_FOUND, "there is no experiment %lld", (long long)id);
	return status;
}

enum status store_export(struct store *store, int64_t experiment_id, struct json **out, struct err *err)
{
	struct json *record = json_new_object();
	enum status status = add_head(store, record, experiment_id, err);
	if (!status)
		status = add_evidence(store, record, experiment_id, err);
	if (status) {
		json_free(record);
		record = NULL;
	}
	*out = record;
	return status;
}

/* --- show ----------------------------------------------------------------------------------------------------------- */

/* The experiment that a verdict belongs to, and its arm; the id itself and -1 when it is no verdict's. */
static enum status find_verdict(struct store *store, int64_t id, int64_t *experiment_id, int64_t *arm, struct err *err)
{
	struct json *rows = NULL;
	enum status status = query(store, "SELECT experiment_id, arm FROM verdict WHERE verdict_id = ?", id, &rows, err);
	const struct json *row = json_at(rows, 0);
	*experiment_id = row ? json_int(json_get(row, "experiment_id"), 0) : id;
	*arm = row ? json_int(json_get(row, "arm"), -1) : -1;
	json_free(rows);
	return status;
}

/* Of the members of an array, those that belong to the arm or, with the baseline, to arm 0. */
static void keep_arm(struct json *record, const char *key, int64_t arm, bool with_baseline)
{
	struct json *kept = json_new_array();
	const struct json *all = json_get(record, key);
	for (size_t i = 0; i < json_count(all); i++) {
		int64_t is = json_int(json_get(json_at(all, i), "arm"), -1);
		if (is == arm || (with_baseline && is == 0))
			json_append(kept, json_clone(json_at(all, i)));
	}
	json_set(record, key, kept);
}

static struct json *keep_row(struct json *rows, int64_t evidence_id)
{
	struct json *kept = json_new_array();
	for (size_t i = 0; i < json_count(rows); i++)
		if (json_int(json_get(json_at(rows, i), "evidence_id"), 0) == evidence_id)
			json_append(kept, json_clone(json_at(rows, i)));
	json_free(rows);
	return kept;
}

enum status store_head(struct store *store, int64_t id, struct json **out, struct err *err)
{
	int64_t experiment_id = 0, arm = -1;
	struct json *record = json_new_object();
	enum status status = find_verdict(store, id, &experiment_id, &arm, err);
	if (!status)
		status = add_head(store, record, experiment_id, err);
	json_set(record, "experiment_id", json_new_integer(experiment_id));
	if (status) {
		json_free(record);
		record = NULL;
	}
	*out = record;
	return status;
}

enum status store_show(struct store *store, int64_t id, struct json **out, struct err *err)
{
	int64_t experiment_id = 0, arm = -1;
	struct json *rows = NULL;
	*out = NULL;
	enum status status = find_verdict(store, id, &experiment_id, &arm, err);
	if (!status)
		status = store_export(store, experiment_id, out, err);
	if (status == STATUS_NOT_FOUND) {
		err_clear(err);
		return err_set(err, STATUS_NOT_FOUND, "there is no experiment or verdict %lld", (long long)id);
	}
	const struct history_filters filters = {.experiment_id = experiment_id};
	if (!status)
		status = store_history(store, &filters, &rows, err);
	if (status) {
		json_free(*out);
		*out = NULL;
		return status;
	}
	if (arm >= 0) {
		keep_arm(*out, "arms", arm, true);
		keep_arm(*out, "launches", arm, true);
		keep_arm(*out, "verdicts", arm, false);
		rows = keep_row(rows, id);
	}
	json_set(*out, "experiment_id", json_new_integer(experiment_id));
	json_set(*out, "evidence_id", json_new_integer(id));
	json_set(*out, "rows", rows);
	return STATUS_OK;
}

/* --- import --------------------------------------------------------------------------------------------------------- */

static enum status is_known(struct store *store, const struct json *record, bool *known, struct err *err)
{
	const struct json *experiment = json_get(record, "experiment");
	struct sql_statement *statement = NULL;
	*known = false;
	enum status status = sql_prepare(store->sql,
		"SELECT 1 FROM experiment e JOIN machine m USING (machine_id) WHERE e.hash = ? AND m.hash = ? AND e.started_utc_ns "
		"= ?",
		&statement, err);
	if (!status) {
		sql_bind_json(statement, json_get(experiment, "hash"));
		sql_bind_json(statement, json_get(json_get(record, "machine"), "hash"));
		sql_bind_json(statement, json_get(experiment, "started_utc_ns"));
		status = sql_step(statement, known, err);
	}
	sql_finish(statement);
	return status;
}

static enum status insert_record(struct store *store, const struct json *record, struct err *err)
{
	const struct json *launches = json_get(record, "launches"), *verdicts = json_get(record, "verdicts"),
			  *extensions = json_get(record, "extensions");
	int64_t experiment_id = 0;
	enum status status = store_insert_head(store, record, true, &experiment_id, err);
	for (size_t i = 0; i < json_count(launches) && !status; i++)
		if (store_insert_launch(store, experiment_id, json_at(launches, i), err))
			status = err_add(err, "launches[%zu]", i);
	for (size_t i = 0; i < json_count(extensions) && !status; i++)
		if (store_insert_extension(store, experiment_id, json_at(extensions, i), err))
			status = err_add(err, "extensions[%zu]", i);
	const struct json *confirmation = json_get(record, "confirmation");
	for (size_t i = 0; i < json_count(confirmation) && !status; i++)
		if (store_insert_confirmation(store, experiment_id, json_at(confirmation, i), err))
			status = err_add(err, "confirmation[%zu]", i);
	for (size_t i = 0; i < json_count(verdicts) && !status; i++)
		if (store_put_verdict(store, experiment_id, json_at(verdicts, i), err))
			status = err_add(err, "verdicts[%zu]", i);
	return status;
}

enum status store_begin_import(struct store *store, struct err *err)
{
	return sql_begin(store->sql, err);
}

enum status store_end_import(struct store *store, enum status status, struct err *err)
{
	return sql_end(store->sql, status, err);
}

enum status store_import(struct store *store, const struct json *record, bool *added, struct err *err)
{
	bool known = false;
	*added = false;
	enum status status = record_check(record, NULL, err);
	if (!status)
		status = sql_begin(store->sql, err);
	if (status)
		return status;
	status = is_known(store, record, &known, err);
	if (!status && !known)
		status = insert_record(store, record, err);
	*added = !status && !known;
	return sql_end(store->sql, status, err);
}
