/* Writes records, whether measured here or imported, row by row. */
#include "harness/store_internal.h"

#include <string.h>

#include "base/clock.h"

/* Id of the row of a table of hashed things, inserted first where it is new. insert and find take the same parameters. */
static enum status find_or_insert(struct store *store, const char *insert, const char *find, const struct json *const *values,
	size_t n_insert, size_t n_find, int64_t *id, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status = sql_prepare(store->sql, insert, &statement, err);
	for (size_t i = 0; i < n_insert && !status; i++)
		sql_bind_json(statement, values[i]);
	if (!status)
		status = sql_run(statement, err);
	sql_finish(statement);
	statement = NULL;
	if (!status)
		status = sql_prepare(store->sql, find, &statement, err);
	for (size_t i = 0; i < n_find && !status; i++)
		sql_bind_json(statement, values[i]);
	if (!status)
		status = sql_step(statement, &row, err);
	if (!status && !row)
		status = err_set(err, STATUS_INPUT, "record: a hash or name is missing");
	if (!status)
		*id = sql_int(statement, 0);
	sql_finish(statement);
	return status;
}

static enum status put_machine(struct store *store, const struct json *machine, int64_t *id, struct err *err)
{
	const struct json *values[] = {json_get(machine, "hash"), json_get(machine, "name"), json_get(machine, "facts")};
	return find_or_insert(store, "INSERT OR IGNORE INTO machine (hash, name, facts) VALUES (?, ?, ?)",
		"SELECT machine_id FROM machine WHERE hash = ?", values, 3, 1, id, err);
}

static enum status put_build(struct store *store, const struct json *build, const struct json *seen, int64_t *id, struct err *err)
{
	const struct json *values[] = {json_get(build, "hash"), json_get(build, "program"), json_get(build, "version"), seen};
	return find_or_insert(store, "INSERT OR IGNORE INTO build (hash, program, version, first_seen_utc_ns) VALUES (?, ?, ?, ?)",
		"SELECT build_id FROM build WHERE hash = ?", values, 4, 1, id, err);
}

static enum status put_model(struct store *store, const struct json *model, int64_t *id, struct err *err)
{
	const struct json *values[] = {json_get(model, "hash"), json_get(model, "name")};
	return find_or_insert(store, "INSERT OR IGNORE INTO model (hash, name) VALUES (?, ?)",
		"SELECT model_id FROM model WHERE hash = ? AND name = ?", values, 2, 2, id, err);
}

static enum status put_arm(struct store *store, int64_t experiment_id, const struct json *arm, struct err *err)
{
	static const char *const columns[] = {"experiment_id", "arm", "kind", "name", "config_id", "changed", NULL};
	const struct json *values[] = {json_get(arm, "config_hash"), json_get(arm, "settings")};
	int64_t config_id = 0;
	enum status status = find_or_insert(store, "INSERT OR IGNORE INTO config (hash, settings) VALUES (?, ?)",
		"SELECT config_id FROM config WHERE hash = ?", values, 2, 1, &config_id, err);
	if (status)
		return err_add(err, "arm");
	struct json *row = json_clone(arm);
	json_set(row, "experiment_id", json_new_integer(experiment_id));
	json_set(row, "config_id", json_new_integer(config_id));
	status = sql_insert(store->sql, "arm", columns, row, NULL, err);
	json_free(row);
	return status;
}

static enum status put_workload(struct store *store, int64_t experiment_id, const struct json *workload, struct err *err)
{
	static const char *const columns[] = {"experiment_id", "workload", "name", "workload_id", NULL};
	const struct json *values[] = {json_get(workload, "hash"), json_get(workload, "document")};
	int64_t workload_id = 0;
	enum status status = find_or_insert(store, "INSERT OR IGNORE INTO workload (hash, document) VALUES (?, ?)",
		"SELECT workload_id FROM workload WHERE hash = ?", values, 2, 1, &workload_id, err);
	if (status)
		return err_add(err, "workload");
	struct json *row = json_clone(workload);
	json_set(row, "experiment_id", json_new_integer(experiment_id));
	json_set(row, "workload_id", json_new_integer(workload_id));
	status = sql_insert(store->sql, "experiment_workload", columns, row, NULL, err);
	json_free(row);
	return status;
}

/* A number from the space that experiments and verdicts share. */
static enum status take_evidence_id(struct store *store, const char *kind, int64_t *id, struct err *err)
{
	static const char *const columns[] = {"kind", NULL};
	struct json *row = json_new_object();
	json_set(row, "kind", json_new_string(kind));
	enum status status = sql_insert(store->sql, "evidence", columns, row, id, err);
	json_free(row);
	return status;
}

enum status store_insert_head(
	struct store *store, const struct json *record, bool imported, int64_t *experiment_id, struct err *err)
{
	const struct json *experiment = json_get(record, "experiment"), *arms = json_get(record, "arms"),
			  *workloads = json_get(record, "workloads");
	int64_t machine_id = 0, build_id = 0, model_id = 0;
	enum status status = put_machine(store, json_get(record, "machine"), &machine_id, err);
	if (!status)
		status = put_build(store, json_get(record, "build"), json_get(experiment, "started_utc_ns"), &build_id, err);
	if (!status)
		status = put_model(store, json_get(record, "model"), &model_id, err);
	if (!status)
		status = take_evidence_id(store, "experiment", experiment_id, err);
	if (status)
		return status;
	struct json *row = json_kind_of(experiment) == JSON_KIND_OBJECT ? json_clone(experiment) : json_new_object();
	json_set(row, "experiment_id", json_new_integer(*experiment_id));
	json_set(row, "machine_id", json_new_integer(machine_id));
	json_set(row, "build_id", json_new_integer(build_id));
	json_set(row, "model_id", json_new_integer(model_id));
	json_set(row, "imported", json_new_integer(imported));
	status = sql_insert(store->sql, "experiment", rows_experiment, row, NULL, err);
	json_free(row);
	for (size_t i = 0; i < json_count(arms) && !status; i++)
		status = put_arm(store, *experiment_id, json_at(arms, i), err);
	for (size_t i = 0; i < json_count(workloads) && !status; i++)
		status = put_workload(store, *experiment_id, json_at(workloads, i), err);
	return status;
}

/* A table whose rows belong to those of another, and the column that says to which. */
struct child_table {
	const char *name;
	const char *const *columns;
	const char *parent;
};

/* Inserts a row after setting its foreign key; its own id goes to id where that is not NULL. */
static enum status insert_with_parent(struct store *store, const struct child_table *table, int64_t parent_id,
	const struct json *object, int64_t *id, struct err *err)
{
	struct json *row = json_kind_of(object) == JSON_KIND_OBJECT ? json_clone(object) : json_new_object();
	json_set(row, table->parent, json_new_integer(parent_id));
	enum status status = sql_insert(store->sql, table->name, table->columns, row, id, err);
	json_free(row);
	return status;
}

enum status store_insert_launch(struct store *store, int64_t experiment_id, const struct json *launch, struct err *err)
{
	const struct child_table launch_table = {"launch", rows_launch, "experiment_id"},
				 run_table = {"run", rows_run, "launch_id"}, request_table = {"request", rows_request, "run_id"};
	const struct json *runs = json_get(launch, "runs");
	int64_t launch_id = 0;
	enum status status = insert_with_parent(store, &launch_table, experiment_id, launch, &launch_id, err);
	for (size_t i = 0; i < json_count(runs) && !status; i++) {
		const struct json *requests = json_get(json_at(runs, i), "requests");
		int64_t run_id = 0;
		status = insert_with_parent(store, &run_table, launch_id, json_at(runs, i), &run_id, err);
		for (size_t k = 0; k < json_count(requests) && !status; k++)
			status = insert_with_parent(store, &request_table, run_id, json_at(requests, k), NULL, err);
	}
	return status;
}

enum status store_insert_extension(struct store *store, int64_t experiment_id, const struct json *extension, struct err *err)
{
	const struct child_table table = {"extension", rows_extension, "experiment_id"};
	return insert_with_parent(store, &table, experiment_id, extension, NULL, err);
}

enum status store_insert_confirmation(struct store *store, int64_t experiment_id, const struct json *confirmation, struct err *err)
{
	const struct child_table table = {"confirmation", rows_confirmation, "experiment_id"};
	return insert_with_parent(store, &table, experiment_id, confirmation, NULL, err);
}

/* Id of the verdict of this arm and workload, 0 when there is none. *same: it says what the new one says. */
static enum status find_verdict(
	struct store *store, int64_t experiment_id, const struct json *verdict, int64_t *id, bool *same, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status = sql_prepare(store->sql,
		"SELECT verdict_id, verdict IS ? AND reason IS ? AND effect_pct IS ? AND launches IS ? FROM verdict"
		" WHERE experiment_id = ? AND arm = ? AND workload = ?",
		&statement, err);
	if (status)
		return status;
	sql_bind_json(statement, json_get(verdict, "verdict"));
	sql_bind_json(statement, json_get(verdict, "reason"));
	sql_bind_json(statement, json_get(verdict, "effect_pct"));
	sql_bind_json(statement, json_get(verdict, "launches"));
	sql_bind_int(statement, experiment_id);
	sql_bind_json(statement, json_get(verdict, "arm"));
	sql_bind_json(statement, json_get(verdict, "workload"));
	status = sql_step(statement, &row, err);
	*id = row ? sql_int(statement, 0) : 0;
	*same = row && sql_int(statement, 1);
	sql_finish(statement);
	return status;
}

static enum status delete_verdict(struct store *store, int64_t id, struct err *err)
{
	struct sql_statement *statement = NULL;
	enum status status = sql_prepare(store->sql, "DELETE FROM verdict WHERE verdict_id = ?", &statement, err);
	if (!status) {
		sql_bind_int(statement, id);
		status = sql_run(statement, err);
	}
	sql_finish(statement);
	return status;
}

enum status store_put_verdict(struct store *store, int64_t experiment_id, const struct json *verdict, struct err *err)
{
	int64_t id = 0;
	bool same = false;
	enum status status = find_verdict(store, experiment_id, verdict, &id, &same, err);
	if (status || same)
		return status;
	if (id)
		status = delete_verdict(store, id, err); /* its number goes on to the row that replaces it */
	else
		status = take_evidence_id(store, "verdict", &id, err);
	if (status)
		return status;
	struct json *row = json_clone(verdict);
	json_set(row, "verdict_id", json_new_integer(id));
	json_set(row, "experiment_id", json_new_integer(experiment_id));
	status = sql_insert(store->sql, "verdict", rows_verdict, row, NULL, err);
	json_free(row);
	return status;
}
