/* Figures over time, and runs behind them, across experiments. See store.h. */
#include <stdio.h>

#include "base/clock.h"
#include "harness/metric.h"
#include "harness/store_internal.h"

/* Every verdict row has its arm's metric and its baseline's. Candidates come from the first, the baseline from any row of its
 * experiment and load. */
static const char series_query[] =
	"SELECT series, experiment_id, experiment, time_utc_ns, machine, model, workload, metric, setting, value FROM ("
	"SELECT r.machine_hash || r.model_hash || r.workload_hash || r.metric || c.hash AS series, r.experiment_id, r.experiment, "
	"e.started_utc_ns AS time_utc_ns, r.machine, r.model, r.workload, r.metric, r.arm AS setting, r.arm_metric AS value "
	"FROM verdict_rows r JOIN experiment e USING (experiment_id) JOIN verdict v ON v.verdict_id = r.evidence_id "
	"JOIN arm a ON a.experiment_id = v.experiment_id AND a.arm = v.arm JOIN config c USING (config_id) "
	"WHERE r.arm_kind = 'candidate' AND r.quick = 0 "
	"UNION SELECT r.machine_hash || r.model_hash || r.workload_hash || r.metric || c.hash, r.experiment_id, r.experiment, "
	"e.started_utc_ns, r.machine, r.model, r.workload, r.metric, 'baseline', max(r.baseline_metric) "
	"FROM verdict_rows r JOIN experiment e USING (experiment_id) JOIN arm a ON a.experiment_id = r.experiment_id AND a.arm = 0 "
	"JOIN config c USING (config_id) WHERE r.quick = 0 GROUP BY r.experiment_id, r.workload_hash) "
	"WHERE value > 0";

static void add_times(struct json *rows)
{
	for (size_t i = 0; i < json_count(rows); i++) {
		char time[CLOCK_UTC_BYTES];
		struct json *row = json_at(rows, i);
		clock_format_utc(time, json_int(json_get(row, "time_utc_ns"), 0));
		json_set(row, "time_utc", json_new_string(time));
	}
}

enum status store_series(struct store *store, const struct history_filters *filters, struct json **out, struct err *err)
{
	struct sql_statement *statement = NULL;
	struct text text = {0};
	*out = NULL;
	text_append_str(&text, series_query);
	if (filters->experiment)
		text_append_str(&text, " AND experiment = ?");
	if (filters->model)
		text_append_str(&text, " AND instr(model, ?) > 0");
	if (filters->machine)
		text_append_str(&text, " AND instr(machine, ?) > 0");
	text_append_str(&text,
		" ORDER BY machine, model, workload, metric, setting <> 'baseline', setting, series, time_utc_ns, "
		"experiment_id");
	enum status status = sql_prepare(store->sql, text_str(&text), &statement, err);
	const char *const bound[] = {filters->experiment, filters->model, filters->machine};
	for (size_t i = 0; i < sizeof bound / sizeof bound[0] && !status; i++)
		if (bound[i])
			sql_bind_text(statement, bound[i]);
	if (!status)
		status = sql_rows(statement, rows_json_columns, out, err);
	if (!status)
		add_times(*out);
	sql_finish(statement);
	text_release(&text);
	return status;
}

enum status store_run_values(struct store *store, int64_t experiment_id, const char *metric, struct json **out, struct err *err)
{
	struct sql_statement *statement = NULL;
	struct text text = {0};
	const struct metric_spec *known = metric ? metric_by_name(metric) : NULL;
	*out = NULL;
	if (!known) /* it becomes part of a query, and imported records say what they like */
		return err_set(err, STATUS_INPUT, "experiment %lld has the metric '%.40s', which is not known",
			(long long)experiment_id, metric ? metric : "");
	text_printf(&text,
		"SELECT c.hash AS config_hash, wl.hash AS workload_hash, CASE a.kind WHEN 'candidate' THEN a.name ELSE 'baseline' "
		"END "
		"AS setting, w.name AS workload, l.launch_id, r.%s AS value, r.duration_ns / 1e9 AS seconds, (SELECT count(*) FROM "
		"request q WHERE q.run_id = r.run_id) AS requests FROM run r JOIN launch l USING (launch_id) "
		"JOIN arm a ON a.experiment_id = l.experiment_id AND a.arm = l.arm JOIN config c USING (config_id) "
		"JOIN experiment_workload w ON w.experiment_id = l.experiment_id AND w.workload = r.workload "
		"JOIN workload wl USING (workload_id) WHERE l.experiment_id = ? AND l.failure = 'none' AND r.warmup = 0 AND "
		"r.voided = 0 "
		"AND r.%s >= 0 ORDER BY w.workload, a.kind = 'candidate', a.arm, l.launch_id, r.idx",
		known->name, known->name);
	enum status status = sql_prepare(store->sql, text_str(&text), &statement, err);
	if (!status)
		sql_bind_int(statement, experiment_id);
	if (!status)
		status = sql_rows(statement, rows_json_columns, out, err);
	sql_finish(statement);
	text_release(&text);
	return status;
}
