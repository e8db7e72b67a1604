/* Keeps measurements that other benchmarks recorded. See foreign.h. */
#include "harness/store_internal.h"

static enum status put_measurement(struct store *store, const struct json *row, const char *source, bool *added, struct err *err)
{
	static const char *const columns[] = {"hash", "tool", "source", "time_utc", "engine", "build", "model", "machine", "label",
		"concurrency", "input_len", "output_len", "completed", "failed", "tokens_per_s", "tokens_per_s_gpu", "ttft_ms_p50",
		"tpot_ms_p50", "document", NULL};
	struct sql_statement *statement = NULL;
	bool known = false;
	enum status status = sql_prepare(store->sql, "SELECT 1 FROM measurement WHERE hash = ?", &statement, err);
	if (!status) {
		sql_bind_json(statement, json_get(row, "hash"));
		status = sql_step(statement, &known, err);
	}
	sql_finish(statement);
	*added = !status && !known;
	if (status || known)
		return status;
	struct json *with_source = json_clone(row);
	json_set(with_source, "source", json_new_string(source));
	status = sql_insert(store->sql, "measurement", columns, with_source, NULL, err);
	json_free(with_source);
	return status;
}

enum status store_import_measurements(
	struct store *store, const struct json *rows, const char *source, size_t *added, size_t *known, struct err *err)
{
	size_t new_rows = 0;
	enum status status = sql_begin(store->sql, err);
	if (status)
		return status;
	for (size_t i = 0; i < json_count(rows) && !status; i++) {
		bool is_new = false;
		status = put_measurement(store, json_at(rows, i), source, &is_new, err);
		new_rows += is_new;
		if (status)
			err_add(err, "%s: entry %zu", source, i + 1);
	}
	status = sql_end(store->sql, status, err);
	*added = status ? 0 : new_rows;
	*known = status ? 0 : json_count(rows) - new_rows;
	return status;
}
