/* Opening the results database, keeping what is measured, and reading it back for verdicts. Queries for people are in
 * store_query.c. */
#include "harness/store.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/store_internal.h"
#include "harness/store_schema.h"

#define HEADER_BYTES 100 /* of every SQLite database */

enum status store_open_waiting(const char *path, int busy_ms, struct store **out, struct err *err)
{
	struct store *store = mem_calloc(1, sizeof *store);
	store->path = mem_strdup(path);
	store->claim_fd = -1;
	enum status status = sql_open(path, busy_ms, &store->sql, err);
	if (!status && store_migrate(store->sql, store_migrations, store_migrations_count, err))
		status = err_add(err, "'%s'", path);
	if (!status) {
		store_save_unsaved(store);
	} else {
		store_close(store);
		store = NULL;
	}
	*out = store;
	return status;
}

enum status store_open(const char *path, struct store **out, struct err *err)
{
	return store_open_waiting(path, STORE_BUSY_MS, out, err);
}

/* The log of a database is made beside it. */
static bool can_write(const char *path)
{
	const char *slash = strrchr(path, '/');
	struct text folder = {0};
	text_append(&folder, slash ? path : ".", slash ? (size_t)(slash + 1 - path) : 1);
	bool can = access(path, W_OK) == 0 && access(text_str(&folder), W_OK) == 0;
	text_release(&folder);
	return can;
}

enum status store_open_to_read(const char *path, struct store **out, struct err *err)
{
	struct sql *sql = NULL;
	struct stat info;
	*out = NULL;
	/* SQLite would take it for a new database and make tables in it. */
	if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size < HEADER_BYTES)
		return err_set(err, STATUS_INPUT, "'%s': the file is no database", path);
	if (can_write(path)) {
		enum status status = store_open(path, out, err);
		if (!status)
			status = sql_begin_to_read((*out)->sql, err);
		if (status) {
			store_close(*out);
			*out = NULL;
		}
		return status;
	}
	enum status status = sql_open_to_read(path, STORE_BUSY_MS, &sql, err);
	if (status)
		return status;
	status = store_check_version(sql, store_migrations_count, err);
	if (!status)
		status = sql_begin_to_read(sql, err);
	if (status) {
		sql_close(sql);
		return err_add(err, "'%s'", path);
	}
	*out = mem_calloc(1, sizeof **out);
	**out = (struct store){.sql = sql, .path = mem_strdup(path), .claim_fd = -1};
	return STATUS_OK;
}

void store_close(struct store *store)
{
	if (!store)
		return;
	sql_close(store->sql);
	store_release_claim(store);
	mem_free(store->path);
	mem_free(store);
}

void store_close_unless_used(struct store *store)
{
	static const char *const endings[] = {"", "-wal", "-shm"};
	struct sql_statement *statement = NULL;
	bool row = false, empty = false;
	if (!store)
		return;
	if (sql_prepare(store->sql, "SELECT NOT EXISTS (SELECT 1 FROM experiment) AND NOT EXISTS (SELECT 1 FROM measurement)",
		    &statement, NULL) == STATUS_OK)
		empty = sql_step(statement, &row, NULL) == STATUS_OK && row && sql_int(statement, 0);
	sql_finish(statement);
	char *path = mem_strdup(store->path);
	store_close(store);
	for (size_t i = 0; empty && i < sizeof endings / sizeof endings[0]; i++) {
		struct text file = {0};
		text_printf(&file, "%s%s", path, endings[i]);
		unlink(text_str(&file));
		text_release(&file);
	}
	mem_free(path);
}

/* --- writing -------------------------------------------------------------------------------------------------------- */

static enum status find_resumable(struct store *store, const struct experiment *experiment, const struct store_subject *subject,
	int64_t *id, bool *found, struct err *err)
{
	struct sql_statement *statement = NULL;
	enum status status = sql_prepare(store->sql,
		"SELECT e.experiment_id FROM experiment e JOIN machine ma USING (machine_id) JOIN build b USING (build_id) JOIN "
		"model mo USING (model_id)"
		" WHERE e.imported = 0 AND e.hash = ? AND ma.hash = ? AND b.hash = ? AND mo.hash = ? ORDER BY e.experiment_id DESC "
		"LIMIT 1",
		&statement, err);
	*found = false;
	if (!status) {
		sql_bind_text(statement, experiment->hash);
		sql_bind_text(statement, subject->machine->hash);
		sql_bind_text(statement, subject->build->hash);
		sql_bind_text(statement, subject->model_hash ? subject->model_hash : "");
		status = sql_step(statement, found, err);
	}
	if (*found)
		*id = sql_int(statement, 0);
	sql_finish(statement);
	return status;
}

enum status store_begin_experiment(struct store *store, const struct experiment *experiment, const struct store_subject *subject,
	bool resume, int64_t *experiment_id, bool *resumed, struct err *err)
{
	*resumed = false;
	enum status status = sql_begin(store->sql, err);
	if (status)
		return status;
	if (resume)
		status = find_resumable(store, experiment, subject, experiment_id, resumed, err);
	if (!status && !*resumed) {
		struct json *record = record_head(experiment, subject, clock_realtime_ns());
		status = store_insert_head(store, record, false, experiment_id, err);
		json_free(record);
	}
	return sql_end(store->sql, status, err);
}

enum status store_save_launch(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct launch_result *launch, struct err *err)
{
	/* Built before the transaction begins, so that other writers wait for the inserts only. */
	struct json *row = launch_row(experiment, launch);
	enum status status = sql_begin(store->sql, err);
	if (!status)
		status = sql_end(store->sql, store_insert_launch(store, experiment_id, row, err), err);
	if (status == STATUS_UNAVAILABLE) /* minutes of measuring are not thrown away because a disk is full or a lock is held */
		store_keep_unsaved(store, experiment_id, row, NULL);
	json_free(row);
	return status ? err_add(err, "saving the launch of %s in block %d", experiment->arms[launch->arm].name, launch->block + 1)
		      : STATUS_OK;
}

static enum status mark_finished(struct store *store, int64_t experiment_id, int64_t now_ns, struct err *err)
{
	struct sql_statement *statement = NULL;
	enum status status = sql_prepare(store->sql,
		"UPDATE experiment SET finished_utc_ns = ? WHERE experiment_id = ? AND finished_utc_ns IS NULL", &statement, err);
	if (!status) {
		sql_bind_int(statement, now_ns);
		sql_bind_int(statement, experiment_id);
		status = sql_run(statement, err);
	}
	sql_finish(statement);
	return status;
}

enum status store_save_verdicts(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct verdict_row *rows, size_t n_rows, bool final, struct err *err)
{
	int64_t now_ns = clock_realtime_ns();
	enum status status = sql_begin(store->sql, err);
	if (status)
		return status;
	for (size_t i = 0; i < n_rows && !status; i++) {
		struct json *row = verdict_row_json(&rows[i], now_ns);
		status = store_put_verdict(store, experiment_id, row, err);
		json_free(row);
	}
	if (!status && final)
		status = mark_finished(store, experiment_id, now_ns, err);
	status = sql_end(store->sql, status, err);
	return status ? err_add(err, "saving the verdicts of %s", experiment->name) : STATUS_OK;
}

static enum status reopen(struct store *store, int64_t experiment_id, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status = sql_prepare(store->sql,
		"UPDATE experiment SET finished_utc_ns = NULL WHERE experiment_id = ? AND finished_utc_ns IS NOT NULL AND imported "
		"= 0"
		" RETURNING experiment_id",
		&statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		status = sql_step(statement, &row, err);
	}
	sql_finish(statement);
	if (!status && !row)
		status = err_set(err, STATUS_INPUT,
			"experiment %lld is not finished, or was not measured here: blocks cannot be added to it",
			(long long)experiment_id);
	return status;
}

enum status store_extend(struct store *store, int64_t experiment_id, struct store_extension extension, struct err *err)
{
	enum status status = sql_begin(store->sql, err);
	if (status)
		return status;
	struct json *row = json_new_object();
	json_set(row, "from_blocks", json_new_integer(extension.from_blocks));
	json_set(row, "to_blocks", json_new_integer(extension.to_blocks));
	json_set(row, "time_utc_ns", json_new_integer(clock_realtime_ns()));
	status = reopen(store, experiment_id, err);
	if (!status)
		status = store_insert_extension(store, experiment_id, row, err);
	json_free(row);
	return sql_end(store->sql, status, err);
}

enum status store_extensions(
	struct store *store, int64_t experiment_id, struct store_extension *out, size_t out_max, size_t *count, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = true;
	*count = 0;
	enum status status = sql_prepare(store->sql,
		"SELECT from_blocks, to_blocks FROM extension WHERE experiment_id = ? ORDER BY to_blocks LIMIT ?", &statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		sql_bind_int(statement, (int64_t)out_max);
	}
	while (row && !status) {
		status = sql_step(statement, &row, err);
		if (row && !status)
			out[(*count)++] = (struct store_extension){(int)sql_int(statement, 0), (int)sql_int(statement, 1)};
	}
	sql_finish(statement);
	return status;
}

enum status store_confirm(struct store *store, int64_t experiment_id, struct store_confirmation confirmation, struct err *err)
{
	enum status status = sql_begin(store->sql, err);
	if (status)
		return status;
	struct json *row = json_new_object();
	json_set(row, "arm", json_new_integer(confirmation.arm));
	json_set(row, "from_block", json_new_integer(confirmation.from_block));
	json_set(row, "blocks", json_new_integer(confirmation.blocks));
	json_set(row, "time_utc_ns", json_new_integer(clock_realtime_ns()));
	status = store_insert_confirmation(store, experiment_id, row, err);
	json_free(row);
	return sql_end(store->sql, status, err);
}

enum status store_confirmation(
	struct store *store, int64_t experiment_id, struct store_confirmation *out, bool *found, struct err *err)
{
	struct sql_statement *statement = NULL;
	*found = false;
	enum status status = sql_prepare(
		store->sql, "SELECT arm, from_block, blocks FROM confirmation WHERE experiment_id = ?", &statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		status = sql_step(statement, found, err);
	}
	if (*found)
		*out = (struct store_confirmation){
			(int)sql_int(statement, 0), (int)sql_int(statement, 1), (int)sql_int(statement, 2)};
	sql_finish(statement);
	return status;
}

/* --- reading back --------------------------------------------------------------------------------------------------- */

/* "SELECT workload, voided, seconds, METRIC, LIMIT… FROM run": metric names come from the parser's fixed table, never from outside.
 */
static enum status prepare_runs(struct store *store, const struct verdict_rules *rules, struct sql_statement **out, struct err *err)
{
	struct text text = {0};
	text_printf(&text, "SELECT workload, voided, duration_ns / 1e9, %s", rules->metric);
	for (int i = 0; i < rules->n_limits; i++)
		text_printf(&text, ", %s", rules->limits[i].metric);
	text_append_str(&text, " FROM run WHERE launch_id = ? AND warmup = 0");
	enum status status = sql_prepare(store->sql, text_str(&text), out, err);
	text_release(&text);
	return status;
}

/* Over the runs that count, for each workload. */
struct launch_means {
	struct metric_mean of[EXPERIMENT_WORKLOADS_MAX];
};

static void take_means(const struct launch_means *means, const char *metric, double out[EXPERIMENT_WORKLOADS_MAX])
{
	for (int i = 0; i < EXPERIMENT_WORKLOADS_MAX; i++)
		out[i] = metric_mean_log(&means->of[i], metric_by_name(metric));
}

/* The metric that verdicts rest on, and after it those of the limits. */
static const char *rules_metric(const struct verdict_rules *rules, int index)
{
	return index ? rules->limits[index - 1].metric : rules->metric;
}

static enum status load_runs(struct sql_statement *runs, int64_t launch_id, const struct experiment *experiment, bool dirty,
	struct launch_cell *cell, struct err *err)
{
	const struct verdict_rules *rules = &experiment->rules;
	struct launch_means *means = mem_calloc(1 + EXPERIMENT_LIMITS_MAX, sizeof *means);
	int measured = 0, voided = 0;
	bool row = true;
	enum status status = STATUS_OK;
	sql_bind_int(runs, launch_id);
	while (row && !status) {
		status = sql_step(runs, &row, err);
		int64_t workload = row ? sql_int(runs, 0) : -1;
		if (status || workload < 0 || workload >= experiment->n_workloads)
			continue;
		measured++;
		if (sql_int(runs, 1)) {
			voided++;
			continue;
		}
		cell->requests[workload] += experiment->workloads[workload].requests;
		cell->seconds[workload] += fmax(0, sql_real(runs, 2));
		for (int i = 0; i <= rules->n_limits; i++)
			metric_mean_add(&means[i].of[workload], metric_by_name(rules_metric(rules, i)), sql_real(runs, 3 + i));
	}
	take_means(&means[0], rules->metric, cell->log_metric);
	for (int i = 0; i < EXPERIMENT_LIMITS_MAX; i++)
		take_means(&means[i + 1], i < rules->n_limits ? rules->limits[i].metric : rules->metric, cell->log_limit[i]);
	/* A launch that failed on a machine that did not come back says nothing about its setting. */
	cell->voided = (measured && voided == measured) || (dirty && cell->failure != FAILURE_NONE);
	mem_free(means);
	return status;
}

static void read_cell(struct sql_statement *launches, struct launch_cell *cell)
{
	*cell = (struct launch_cell){
		.arm = (int)sql_int(launches, 1), .block = (int)sql_int(launches, 2), .attempt = (int)sql_int(launches, 3)};
	if (!failure_from_name(sql_text(launches, 4), &cell->failure))
		cell->failure = FAILURE_GUARD; /* a class that a newer program knows */
	snprintf(cell->reason, sizeof cell->reason, "%s", sql_is_null(launches, 5) ? "" : sql_text(launches, 5));
	cell->fingerprint = sql_is_null(launches, 7) ? NULL : mem_strdup(sql_text(launches, 7));
}

static enum status load_each(struct sql_statement *launches, struct sql_statement *runs, const struct experiment *experiment,
	struct launch_cells *out, struct err *err)
{
	size_t capacity = 0;
	bool row = true;
	enum status status = STATUS_OK;
	while (row && !status) {
		status = sql_step(launches, &row, err);
		if (status || !row)
			break;
		if (out->count == capacity) {
			capacity = capacity ? capacity * 2 : 32;
			out->items = mem_realloc(out->items, capacity, sizeof *out->items);
		}
		struct launch_cell *cell = &out->items[out->count++];
		read_cell(launches, cell);
		status = load_runs(runs, sql_int(launches, 0), experiment, sql_int(launches, 6) != 0, cell, err);
	}
	return status;
}

enum status store_load_cells(
	struct store *store, int64_t experiment_id, const struct experiment *experiment, struct launch_cells *out, struct err *err)
{
	struct sql_statement *launches = NULL, *runs = NULL;
	*out = (struct launch_cells){0};
	enum status status = sql_prepare(store->sql,
		"SELECT launch_id, arm, block, max(attempt), failure, reason, machine_dirty, fingerprint FROM launch"
		" WHERE experiment_id = ? GROUP BY block, arm ORDER BY block, position",
		&launches, err);
	if (!status)
		status = prepare_runs(store, &experiment->rules, &runs, err);
	if (!status) {
		sql_bind_int(launches, experiment_id);
		status = load_each(launches, runs, experiment, out, err);
	}
	sql_finish(launches);
	sql_finish(runs);
	if (status)
		launch_cells_release(out);
	return status;
}

void launch_cells_release(struct launch_cells *cells)
{
	for (size_t i = 0; i < cells->count; i++)
		mem_free(cells->items[i].fingerprint);
	mem_free(cells->items);
	*cells = (struct launch_cells){0};
}

enum status store_aa_effects(struct store *store, int64_t experiment_id, const char *machine_hash, const char *workload_hash,
	int blocks, double *effects, size_t effects_max, size_t *count, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = true;
	*count = 0;
	enum status status = sql_prepare(store->sql,
		"SELECT v.effect_pct FROM verdict_rows v JOIN experiment own ON own.experiment_id = ? WHERE v.arm_kind = 'aa_twin'"
		" AND v.experiment_id <> own.experiment_id AND v.metric = own.metric AND v.time_utc_ns <= own.started_utc_ns"
		" AND v.machine_hash = ? AND v.workload_hash = ? AND v.blocks = ? AND v.effect_pct IS NOT NULL"
		" ORDER BY v.time_utc_ns DESC LIMIT ?",
		&statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		sql_bind_text(statement, machine_hash);
		sql_bind_text(statement, workload_hash);
		sql_bind_int(statement, blocks);
		sql_bind_int(statement, (int64_t)effects_max);
	}
	while (row && !status) {
		status = sql_step(statement, &row, err);
		if (row && !status)
			effects[(*count)++] = sql_real(statement, 0);
	}
	sql_finish(statement);
	return status;
}

/* Launch means of baseline and twin while rows of their runs come in, block by block. */
struct twin_pairs {
	int64_t experiment_id, block;
	const struct metric_spec *spec;
	struct metric_mean means[2]; /* of the baseline, of the twin */
	double squares; /* of the differences */
	int pairs;
};

static void close_pair(struct twin_pairs *pairs)
{
	double difference = metric_mean_log(&pairs->means[1], pairs->spec) - metric_mean_log(&pairs->means[0], pairs->spec);
	if (isfinite(difference)) { /* launches of zero tell nothing about noise */
		pairs->squares += difference * difference;
		pairs->pairs++;
	}
	pairs->means[0] = pairs->means[1] = (struct metric_mean){0};
}

static void add_to_pair(struct twin_pairs *pairs, int64_t experiment_id, int64_t block, bool twin, double value)
{
	if (experiment_id != pairs->experiment_id || block != pairs->block)
		close_pair(pairs);
	pairs->experiment_id = experiment_id;
	pairs->block = block;
	metric_mean_add(&pairs->means[twin], pairs->spec, value);
}

enum status store_launch_sd(struct store *store, int64_t experiment_id, const char *machine_hash,
	const struct experiment *experiment, int workload, double *sd, struct err *err)
{
	const struct workload *load = &experiment->workloads[workload];
	const struct metric_spec *spec = metric_by_name(experiment->rules.metric);
	struct sql_statement *statement = NULL;
	struct twin_pairs pairs = {.spec = spec};
	struct text text = {0};
	bool row = true;
	/* The newest only: machines change, and ten times as many as are needed are enough. */
	text_printf(&text,
		"SELECT e.experiment_id, l.block, a.kind = 'aa_twin', r.%s FROM run r JOIN launch l USING "
		"(launch_id)"
		" JOIN experiment e USING (experiment_id) JOIN experiment own ON own.experiment_id = ?"
		" JOIN arm a ON a.experiment_id = l.experiment_id AND a.arm = l.arm AND a.kind IN ('baseline', 'aa_twin')"
		" JOIN experiment_workload w ON w.experiment_id = l.experiment_id AND w.workload = r.workload"
		" JOIN workload wl USING (workload_id) JOIN machine ma ON ma.machine_id = e.machine_id"
		" WHERE r.warmup = 0 AND r.voided = 0 AND l.failure = 'none' AND ma.hash = ? AND wl.hash = ?"
		" AND e.experiment_id <> own.experiment_id AND e.started_utc_ns < own.started_utc_ns"
		" ORDER BY e.started_utc_ns DESC, e.experiment_id, l.block LIMIT 1000",
		spec->name);
	enum status status = sql_prepare(store->sql, text_str(&text), &statement, err);
	text_release(&text);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		sql_bind_text(statement, machine_hash);
		sql_bind_text(statement, load->hash);
	}
	while (row && !status) {
		status = sql_step(statement, &row, err);
		if (row && !status)
			add_to_pair(&pairs, sql_int(statement, 0), sql_int(statement, 1), sql_int(statement, 2) != 0,
				sql_real(statement, 3));
	}
	close_pair(&pairs);
	sql_finish(statement);
	/* A difference carries the noise of two launches, and should be zero. */
	*sd = pairs.pairs >= STORE_TWIN_PAIRS_MIN ? sqrt(pairs.squares / (2 * pairs.pairs)) : NAN;
	return status;
}

enum status store_oom_memory(struct store *store, int64_t experiment_id, struct json **out, struct err *err)
{
	struct sql_statement *statement = NULL;
	*out = NULL;
	enum status status = sql_prepare(store->sql,
		"SELECT DISTINCT o.experiment_id, o.settings, o.reason FROM oom_memory o JOIN experiment own ON own.experiment_id "
		"= ?"
		" WHERE o.failure = 'oom_load' AND o.experiment_id <> own.experiment_id AND o.started_utc_ns < own.started_utc_ns"
		" AND o.machine_id = own.machine_id AND o.model_id = own.model_id AND o.build_id = own.build_id AND o.adapter = "
		"own.adapter"
		" AND o.command IS json_extract(own.document, '$.engine.command') AND o.env IS json_extract(own.document, "
		"'$.engine.env')"
		" ORDER BY o.experiment_id",
		&statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		status = sql_rows(statement, rows_json_columns, out, err);
	}
	sql_finish(statement);
	return status;
}

enum status store_spent_seconds(struct store *store, int64_t experiment_id, double *seconds, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status =
		sql_prepare(store->sql, "SELECT total(total_ns) / 1e9 FROM launch WHERE experiment_id = ?", &statement, err);
	if (!status) {
		sql_bind_int(statement, experiment_id);
		status = sql_step(statement, &row, err);
	}
	*seconds = row ? sql_real(statement, 0) : 0;
	sql_finish(statement);
	return status;
}

enum status store_launch_seconds(struct store *store, const char *experiment_hash, double *seconds, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status = sql_prepare(store->sql,
		"SELECT avg(l.total_ns) / 1e9 FROM launch l JOIN experiment e USING (experiment_id) WHERE e.hash = ?", &statement,
		err);
	if (!status) {
		sql_bind_text(statement, experiment_hash);
		status = sql_step(statement, &row, err);
	}
	*seconds = row ? sql_real(statement, 0) : NAN;
	sql_finish(statement);
	return status;
}
