/* The tables and views of the results database, as an ordered list of migrations. */
#include "harness/store_schema.h"

#include "base/text.h"

/* Version 1.
 *
 * machine, build, model, workload and config are identified by content hashes; an experiment is one run of one file on one machine.
 * Evidence hangs below it: launch (one start of the engine), run, request. Times of day are UTC nanoseconds since 1970; times
 * inside a run are nanoseconds since it began. A number that was not finite is NULL, and run.nulls says which and why.
 *
 * Experiments and verdicts share one space of numbers (evidence), so that `verdict show 12` has one meaning. */
static const char version_1[] =
	"CREATE TABLE evidence (evidence_id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL CHECK (kind IN ('experiment', "
	"'verdict'))) STRICT;"
	"CREATE TABLE machine (machine_id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, name TEXT NOT NULL, facts TEXT) STRICT;"
	"CREATE TABLE build (build_id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, program TEXT, version TEXT,"
	"  first_seen_utc_ns INTEGER NOT NULL) STRICT;"
	"CREATE TABLE model (model_id INTEGER PRIMARY KEY, hash TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (hash, name)) STRICT;"
	"CREATE TABLE workload (workload_id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, document TEXT) STRICT;"
	"CREATE TABLE config (config_id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, settings TEXT NOT NULL) STRICT;"
	"CREATE TABLE experiment ("
	"  experiment_id INTEGER PRIMARY KEY REFERENCES evidence (evidence_id),"
	"  name TEXT NOT NULL, hash TEXT NOT NULL, protocol_hash TEXT NOT NULL, document TEXT NOT NULL, hypothesis TEXT, adapter "
	"TEXT NOT NULL,"
	"  metric TEXT NOT NULL, quick INTEGER NOT NULL CHECK (quick IN (0, 1)), tags TEXT,"
	"  machine_id INTEGER NOT NULL REFERENCES machine (machine_id), build_id INTEGER NOT NULL REFERENCES build (build_id),"
	"  model_id INTEGER NOT NULL REFERENCES model (model_id),"
	"  started_utc_ns INTEGER NOT NULL, finished_utc_ns INTEGER, imported INTEGER NOT NULL CHECK (imported IN (0, 1)),"
	"  UNIQUE (hash, machine_id, started_utc_ns)) STRICT;" /* so that importing a record twice adds nothing */
	"CREATE INDEX experiment_by_hash ON experiment (hash, machine_id, build_id, model_id);"
	"CREATE TABLE arm (experiment_id INTEGER NOT NULL REFERENCES experiment (experiment_id), arm INTEGER NOT NULL, kind TEXT "
	"NOT NULL"
	"  CHECK (kind IN ('baseline', 'aa_twin', 'candidate')), name TEXT NOT NULL, config_id INTEGER NOT NULL REFERENCES config "
	"(config_id),"
	"  changed TEXT NOT NULL," /* [{"knob", "value", "baseline"}] */
	"  PRIMARY KEY (experiment_id, arm)) STRICT;"
	"CREATE TABLE experiment_workload (experiment_id INTEGER NOT NULL REFERENCES experiment (experiment_id), workload INTEGER "
	"NOT NULL,"
	"  name TEXT NOT NULL, workload_id INTEGER NOT NULL REFERENCES workload (workload_id), PRIMARY KEY (experiment_id, "
	"workload)) STRICT;"
	"CREATE TABLE launch (launch_id INTEGER PRIMARY KEY, experiment_id INTEGER NOT NULL, arm INTEGER NOT NULL, block INTEGER "
	"NOT NULL"
	"  CHECK (block >= 0), attempt INTEGER NOT NULL CHECK (attempt >= 0), position INTEGER, failure TEXT NOT NULL, reason TEXT,"
	"  phase TEXT, machine_dirty INTEGER NOT NULL, exit_code INTEGER, exit_signal INTEGER, started_utc_ns INTEGER NOT NULL,"
	"  spawn_to_ready_ns INTEGER, total_ns INTEGER, peak_memory_bytes INTEGER, log_tail TEXT, command TEXT, effective_config "
	"TEXT,"
	"  probes TEXT, fingerprint TEXT,"
	"  UNIQUE (experiment_id, block, arm, attempt),"
	"  FOREIGN KEY (experiment_id, arm) REFERENCES arm (experiment_id, arm)) STRICT;"
	"CREATE TABLE run (run_id INTEGER PRIMARY KEY, launch_id INTEGER NOT NULL REFERENCES launch (launch_id), workload INTEGER "
	"NOT NULL,"
	"  idx INTEGER NOT NULL, warmup INTEGER NOT NULL, voided INTEGER NOT NULL, void_reason TEXT, duration_ns INTEGER,"
	"  output_tps REAL, steady_tps REAL, request_tps_mean REAL, ttft_ms_p50 REAL, ttft_ms_p90 REAL, tpot_ms_p50 REAL, "
	"tpot_ms_p90 REAL,"
	"  itl_ms_p50 REAL, itl_ms_p99 REAL, e2e_ms_p50 REAL, e2e_ms_p90 REAL, completed_frac REAL, cached_frac REAL, accept_frac "
	"REAL,"
	"  prompt_tokens INTEGER, output_tokens INTEGER, nulls TEXT,"
	"  UNIQUE (launch_id, workload, warmup, idx)) STRICT;"
	"CREATE TABLE request (request_id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL REFERENCES run (run_id), idx INTEGER NOT "
	"NULL,"
	"  ok INTEGER NOT NULL, http_status INTEGER, flags INTEGER NOT NULL, error TEXT, text TEXT, finish_reason TEXT, "
	"prompt_tokens INTEGER,"
	"  completion_tokens INTEGER, cached_tokens INTEGER, drafted INTEGER, accepted INTEGER, sent_ns INTEGER, first_token_ns "
	"INTEGER,"
	"  last_token_ns INTEGER, end_ns INTEGER, events TEXT," /* [[ns, tokens so far], …] */
	"  UNIQUE (run_id, idx)) STRICT;"
	"CREATE TABLE verdict (verdict_id INTEGER PRIMARY KEY REFERENCES evidence (evidence_id), experiment_id INTEGER NOT NULL,"
	"  arm INTEGER NOT NULL, workload INTEGER NOT NULL, verdict TEXT NOT NULL CHECK (verdict IN ('helped', 'hurt', 'neutral', "
	"'failed', 'void')),"
	"  reason TEXT, baseline_metric REAL, arm_metric REAL, effect_pct REAL, ci_low_pct REAL, ci_high_pct REAL, p REAL, "
	"p_adjusted REAL,"
	"  launches INTEGER NOT NULL, blocks INTEGER NOT NULL, min_effect_pct REAL, needed_blocks REAL, std_error_pct REAL, df "
	"REAL, level REAL,"
	"  method TEXT, time_utc_ns INTEGER NOT NULL,"
	"  UNIQUE (experiment_id, arm, workload),"
	"  FOREIGN KEY (experiment_id, arm) REFERENCES arm (experiment_id, arm),"
	"  FOREIGN KEY (experiment_id, workload) REFERENCES experiment_workload (experiment_id, workload)) STRICT;"
	"CREATE INDEX verdict_by_time ON verdict (time_utc_ns DESC, verdict_id DESC);"

	/* One line for each verdict, with the names of everything. Several changed knobs are joined with '+'. */
	"CREATE VIEW verdict_rows AS SELECT v.verdict_id AS evidence_id, v.experiment_id, e.name AS experiment, v.time_utc_ns, "
	"e.quick,"
	"  b.program AS engine, b.version AS engine_version, b.hash AS build_hash, mo.name AS model, mo.hash AS model_hash, "
	"ma.name AS machine,"
	"  ma.hash AS machine_hash, w.name AS workload, wl.hash AS workload_hash, e.metric, a.name AS arm, a.kind AS arm_kind,"
	"  CASE a.kind WHEN 'aa_twin' THEN 'aa_twin' ELSE (SELECT group_concat(json_extract(c.value, '$.knob'), '+') FROM "
	"json_each(a.changed) c) END AS knob,"
	"  (SELECT group_concat(json_extract(c.value, '$.value'), '+') FROM json_each(a.changed) c) AS value,"
	"  (SELECT group_concat(json_extract(c.value, '$.baseline'), '+') FROM json_each(a.changed) c) AS baseline_value, "
	"a.changed,"
	"  v.verdict, v.reason, v.baseline_metric, v.arm_metric, v.effect_pct, v.ci_low_pct, v.ci_high_pct, v.p, v.p_adjusted, "
	"v.launches, v.blocks,"
	"  v.min_effect_pct, v.needed_blocks, v.std_error_pct, v.df, v.level, v.method"
	"  FROM verdict v JOIN experiment e USING (experiment_id) JOIN arm a ON a.experiment_id = v.experiment_id AND a.arm = v.arm"
	"  JOIN experiment_workload w ON w.experiment_id = v.experiment_id AND w.workload = v.workload JOIN workload wl USING "
	"(workload_id)"
	"  JOIN machine ma USING (machine_id) JOIN build b USING (build_id) JOIN model mo USING (model_id);"

	/* How often a setting helped or hurt, for each model and machine: comparisons never cross either. */
	"CREATE VIEW knob_history AS SELECT knob, value, baseline_value, model, model_hash, machine, machine_hash, workload, "
	"metric,"
	"  sum(verdict = 'helped') AS helped, sum(verdict = 'hurt') AS hurt, sum(verdict = 'neutral') AS neutral,"
	"  sum(verdict = 'failed') AS failed, sum(verdict = 'void') AS voided, avg(effect_pct) AS mean_effect_pct, min(effect_pct) "
	"AS min_effect,"
	"  max(effect_pct) AS max_effect, max(time_utc_ns) AS newest_utc_ns"
	"  FROM verdict_rows GROUP BY knob, value, baseline_value, model_hash, machine_hash, workload_hash, metric;"

	/* The setting that helped most, for each model, machine, load and metric. A missing number is never the best. */
	"CREATE VIEW best_known AS SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY model_hash, machine_hash, "
	"workload_hash, metric"
	"  ORDER BY abs(effect_pct) DESC, evidence_id DESC) AS place FROM verdict_rows WHERE verdict = 'helped' AND effect_pct IS "
	"NOT NULL)"
	"  WHERE place = 1;"

	/* One line for each launch, with the mean of its measured runs under each workload. */
	"CREATE VIEW launch_rows AS SELECT l.launch_id, l.experiment_id, e.name AS experiment, l.block, l.position, l.attempt, "
	"a.name AS arm,"
	"  a.kind AS arm_kind, w.name AS workload, l.failure, l.reason, l.started_utc_ns, l.spawn_to_ready_ns, l.total_ns, "
	"l.peak_memory_bytes,"
	"  count(r.run_id) AS runs, avg(r.output_tps) AS output_tps, avg(r.ttft_ms_p50) AS ttft_ms_p50, avg(r.tpot_ms_p50) AS "
	"tpot_ms_p50,"
	"  avg(r.accept_frac) AS accept_frac"
	"  FROM launch l JOIN experiment e USING (experiment_id) JOIN arm a ON a.experiment_id = l.experiment_id AND a.arm = l.arm"
	"  LEFT JOIN run r ON r.launch_id = l.launch_id AND r.warmup = 0 AND r.voided = 0"
	"  LEFT JOIN experiment_workload w ON w.experiment_id = l.experiment_id AND w.workload = r.workload"
	"  GROUP BY l.launch_id, r.workload;"

	/* Verdicts that a newer build of the same engine on the same machine and model has not confirmed. */
	"CREATE VIEW stale_verdicts AS SELECT v.* FROM verdict_rows v JOIN build b ON b.hash = v.build_hash WHERE EXISTS (SELECT 1 "
	"FROM verdict_rows n"
	"  JOIN build nb ON nb.hash = n.build_hash WHERE n.engine IS v.engine AND n.machine_hash = v.machine_hash AND n.model_hash "
	"= v.model_hash"
	"  AND nb.first_seen_utc_ns > b.first_seen_utc_ns) AND NOT EXISTS (SELECT 1 FROM verdict_rows n JOIN build nb ON nb.hash = "
	"n.build_hash"
	"  WHERE n.knob = v.knob AND n.value IS v.value AND n.machine_hash = v.machine_hash AND n.model_hash = v.model_hash"
	"  AND n.workload_hash = v.workload_hash AND nb.first_seen_utc_ns > b.first_seen_utc_ns);";

/* Version 2: blocks that were added to a finished experiment. The look at their end counts in the level of its verdicts. */
static const char version_2[] =
	"CREATE TABLE extension (experiment_id INTEGER NOT NULL REFERENCES experiment (experiment_id), from_blocks INTEGER NOT NULL"
	"  CHECK (from_blocks > 0), to_blocks INTEGER NOT NULL CHECK (to_blocks > from_blocks), time_utc_ns INTEGER NOT NULL,"
	"  PRIMARY KEY (experiment_id, to_blocks)) STRICT;";

/* Version 3: what the machine was like during a run, and the output tokens for each joule where it tells its energy. */
static const char version_3[] = "ALTER TABLE run ADD COLUMN tokens_per_joule REAL; ALTER TABLE run ADD COLUMN conditions TEXT;";

/* Version 4: the winner of an experiment and the fresh blocks that confirm it; its verdict rests on their launches alone. */
static const char version_4[] =
	"CREATE TABLE confirmation (experiment_id INTEGER PRIMARY KEY REFERENCES experiment (experiment_id), arm INTEGER NOT NULL,"
	"  from_block INTEGER NOT NULL CHECK (from_block > 0), blocks INTEGER NOT NULL CHECK (blocks > 0), time_utc_ns INTEGER NOT "
	"NULL,"
	"  FOREIGN KEY (experiment_id, arm) REFERENCES arm (experiment_id, arm)) STRICT;";

/* Version 5: measurements that other benchmarks recorded, which no verdict rests on; and what was measured here in the table that
 * llama.cpp's compare-llama-bench.py reads. Its keys are the configuration ("build_commit": start of the hashes of engine and
 * settings) and what both sides of a comparison share; columns that are settings of one side stay 0, since rows that differ there
 * are never compared. One row for each launch and workload, kept by a trigger. */
#define LLAMA_BENCH_COLUMNS \
	"build_commit, build_number, cpu_info, gpu_info, backends, model_filename, model_type, model_size, model_n_params, " \
	"n_batch, " \
	"n_ubatch, n_threads, cpu_mask, cpu_strict, poll, type_k, type_v, n_gpu_layers, n_cpu_moe, split_mode, main_gpu, " \
	"no_kv_offload, flash_attn, devices, tensor_split, tensor_buft_overrides, load_mode, use_mmap, embeddings, " \
	"no_op_offload, " \
	"no_host, fit_target, fit_min_ctx, n_prompt, n_gen, n_depth, test_time, avg_ns, stddev_ns, avg_ts, stddev_ts, launch_id, " \
	"workload"
#define LLAMA_BENCH_ROWS(condition) \
	"INSERT OR REPLACE INTO llama_bench (" LLAMA_BENCH_COLUMNS \
	") SELECT substr(b.hash, 1, 8) || '-' || substr(c.hash, 1, 8), 0," \
	"  ma.name, '', e.adapter, mo.name, mo.name || ' ' || w.name, 0, 0, 0, 0, 0, '', 0, 0, '', '', 0, 0, '', 0, 0, 0, '', " \
	"'', ''," \
	"  '', 0, 0, 0, 0, 0, 0, coalesce(json_extract(wl.document, '$.input_len'), 0)," \
	"  coalesce(json_extract(wl.document, '$.output_len'), 0), 0," \
	"  strftime('%Y-%m-%dT%H:%M:%SZ', l.started_utc_ns / 1000000000, 'unixepoch')," \
	"  CAST(avg(r.duration_ns) AS INTEGER), 0, avg(r.output_tps), CASE WHEN count(*) > 1 THEN" \
	"  sqrt(max(0.0, (sum(r.output_tps * r.output_tps) - sum(r.output_tps) * sum(r.output_tps) / count(*)) / (count(*) - 1)))" \
	"  ELSE 0.0 END, l.launch_id, r.workload FROM run r JOIN launch l USING (launch_id) JOIN experiment e USING " \
	"(experiment_id)" \
	"  JOIN arm a ON a.experiment_id = l.experiment_id AND a.arm = l.arm JOIN config c USING (config_id)" \
	"  JOIN build b USING (build_id) JOIN machine ma USING (machine_id) JOIN model mo USING (model_id)" \
	"  JOIN experiment_workload w ON w.experiment_id = l.experiment_id AND w.workload = r.workload JOIN workload wl USING" \
	"  (workload_id) WHERE r.warmup = 0 AND r.voided = 0 AND r.output_tps IS NOT NULL AND l.failure = 'none'" condition \
	"  GROUP BY l.launch_id, r.workload;"
static const char version_5[] =
	"CREATE TABLE measurement (measurement_id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, tool TEXT NOT NULL, "
	"source TEXT,"
	"  time_utc TEXT, engine TEXT, build TEXT, model TEXT, machine TEXT, label TEXT, concurrency INTEGER, input_len "
	"INTEGER,"
	"  output_len INTEGER, completed INTEGER, failed INTEGER, tokens_per_s REAL, tokens_per_s_gpu REAL, ttft_ms_p50 "
	"REAL,"
	"  tpot_ms_p50 REAL, document TEXT NOT NULL) STRICT;"
	"CREATE TABLE llama_bench (build_commit TEXT, build_number INTEGER, cpu_info TEXT, gpu_info TEXT, backends TEXT,"
	"  model_filename TEXT, model_type TEXT, model_size INTEGER, model_n_params INTEGER, n_batch INTEGER, n_ubatch "
	"INTEGER,"
	"  n_threads INTEGER, cpu_mask TEXT, cpu_strict INTEGER, poll INTEGER, type_k TEXT, type_v TEXT, n_gpu_layers "
	"INTEGER,"
	"  n_cpu_moe INTEGER, split_mode TEXT, main_gpu INTEGER, no_kv_offload INTEGER, flash_attn INTEGER, devices TEXT,"
	"  tensor_split TEXT, tensor_buft_overrides TEXT, load_mode TEXT, use_mmap INTEGER, embeddings INTEGER, "
	"no_op_offload INTEGER,"
	"  no_host INTEGER, fit_target INTEGER, fit_min_ctx INTEGER, n_prompt INTEGER, n_gen INTEGER, n_depth INTEGER, "
	"test_time TEXT,"
	"  avg_ns INTEGER, stddev_ns INTEGER, avg_ts REAL, stddev_ts REAL, launch_id INTEGER NOT NULL REFERENCES launch "
	"(launch_id),"
	"  workload INTEGER NOT NULL, PRIMARY KEY (launch_id, workload)) STRICT;" LLAMA_BENCH_ROWS(
		"") "CREATE TRIGGER llama_bench_follows_run AFTER INSERT ON run WHEN NEW.warmup = 0 "
		    "BEGIN " LLAMA_BENCH_ROWS(" AND l.launch_id = NEW.launch_id AND r.workload = NEW.workload") " END;";

/* Version 6: settings that ran out of memory here, by machine, model, build and engine section: what asks as much need not be
 * tried. */
static const char version_6[] =
	"CREATE VIEW oom_memory AS SELECT l.experiment_id, l.failure, l.reason, l.started_utc_ns, c.settings, e.machine_id, "
	"e.model_id, e.build_id,"
	"  e.adapter, json_extract(e.document, '$.engine.command') AS command, json_extract(e.document, '$.engine.env') AS env"
	"  FROM launch l JOIN experiment e USING (experiment_id) JOIN arm a ON a.experiment_id = l.experiment_id AND a.arm = l.arm"
	"  JOIN config c USING (config_id) WHERE l.failure IN ('oom_load', 'oom_run') AND l.machine_dirty = 0 AND e.imported = 0;";

/* Version 7: more metrics of a run, and of a request what was asked and when an open loop wanted it sent. */
#define ADD_METRIC(name) "ALTER TABLE run ADD COLUMN " name " REAL;"
static const char version_7[] = ADD_METRIC("total_tps") ADD_METRIC("request_rps") ADD_METRIC("ttft_ms_p95")
	ADD_METRIC("ttft_ms_p99") ADD_METRIC("tpot_ms_p95") ADD_METRIC("tpot_ms_p99") ADD_METRIC("itl_ms_p90")
		ADD_METRIC("itl_ms_p95") ADD_METRIC("e2e_ms_p95") ADD_METRIC("e2e_ms_p99") ADD_METRIC("wait_ms_p50")
			ADD_METRIC("wait_ms_p99") ADD_METRIC("goodput_frac") ADD_METRIC("goodput_rps")
				ADD_METRIC("client_cpu_frac") "ALTER TABLE request ADD COLUMN asked_tokens INTEGER; ALTER TABLE "
							      "request ADD COLUMN due_ns INTEGER;";

/* Version 8: how long the accepted drafts of speculation are. */
static const char version_8[] = ADD_METRIC("accept_length");

const char *const store_migrations[] = {version_1, version_2, version_3, version_4, version_5, version_6, version_7, version_8};
const int store_migrations_count = sizeof store_migrations / sizeof store_migrations[0];

static enum status read_number(struct sql *sql, const char *question, int64_t *out, struct err *err)
{
	struct sql_statement *statement = NULL;
	bool row = false;
	enum status status = sql_prepare(sql, question, &statement, err);
	if (!status)
		status = sql_step(statement, &row, err);
	*out = row ? sql_int(statement, 0) : 0;
	sql_finish(statement);
	return status;
}

static enum status read_version(struct sql *sql, int count, int64_t *version, struct err *err)
{
	int64_t tables = 0;
	enum status status = read_number(sql, "PRAGMA user_version", version, err);
	if (!status)
		status = read_number(sql, "SELECT count(*) FROM sqlite_master", &tables, err);
	if (!status && *version > count)
		status = err_set(err, STATUS_INPUT,
			"the database has version %lld, this program knows versions up to %d: use a newer program",
			(long long)*version, count);
	if (!status && *version == 0 && tables)
		status = err_set(err, STATUS_INPUT, "the file is a database of another program");
	return status;
}

enum status store_check_version(struct sql *sql, int count, struct err *err)
{
	int64_t version = 0;
	enum status status = read_version(sql, count, &version, err);
	if (!status && version != count)
		status = err_set(err, STATUS_UNAVAILABLE,
			"the database has version %lld and may only be read: open it once where it can be written, to bring it to "
			"version %d",
			(long long)version, count);
	return status;
}

/* The version is read inside the transaction: another process may have migrated since. */
static enum status migrate_once(struct sql *sql, const char *const *migrations, int count, bool *done, struct err *err)
{
	int64_t version = 0;
	enum status status = sql_begin(sql, err);
	if (status)
		return status;
	status = read_version(sql, count, &version, err);
	*done = !status && version == count;
	if (!status && !*done) {
		struct text bump = {0};
		text_printf(&bump, "PRAGMA user_version = %lld", (long long)version + 1);
		status = sql_exec(sql, migrations[version], err);
		if (!status)
			status = sql_exec(sql, text_str(&bump), err);
		text_release(&bump);
	}
	return sql_end(sql, status, err);
}

enum status store_migrate(struct sql *sql, const char *const *migrations, int count, struct err *err)
{
	bool done = false;
	enum status status = STATUS_OK;
	while (!done && !status)
		status = migrate_once(sql, migrations, count, &done, err);
	return status;
}
