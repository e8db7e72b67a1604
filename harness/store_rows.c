/* Turns measured structs into rows. See store_rows.h. */
#include "harness/store_rows.h"
#include "harness/sampler.h"
#include "harness/saturation.h"

#include <math.h>
#include <string.h>

const char *const rows_experiment[] = {"experiment_id", "name", "hash", "protocol_hash", "document", "hypothesis", "adapter",
	"metric", "quick", "tags", "machine_id", "build_id", "model_id", "started_utc_ns", "finished_utc_ns", "imported", NULL};

const char *const rows_launch[] = {"experiment_id", "arm", "block", "attempt", "position", "failure", "reason", "phase",
	"machine_dirty", "exit_code", "exit_signal", "started_utc_ns", "spawn_to_ready_ns", "total_ns", "peak_memory_bytes",
	"log_tail", "command", "effective_config", "probes", "fingerprint", NULL};

const char *const rows_run[] = {"launch_id", "workload", "idx", "warmup", "voided", "void_reason", "duration_ns", "output_tps",
	"steady_tps", "total_tps", "request_rps", "request_tps_mean", "ttft_ms_p50", "ttft_ms_p90", "ttft_ms_p95", "ttft_ms_p99",
	"tpot_ms_p50", "tpot_ms_p90", "tpot_ms_p95", "tpot_ms_p99", "itl_ms_p50", "itl_ms_p90", "itl_ms_p95", "itl_ms_p99",
	"e2e_ms_p50", "e2e_ms_p90", "e2e_ms_p95", "e2e_ms_p99", "wait_ms_p50", "wait_ms_p99", "goodput_frac", "goodput_rps",
	"completed_frac", "cached_frac", "accept_frac", "accept_length", "client_cpu_frac", "tokens_per_joule", "conditions",
	"prompt_tokens", "output_tokens", "nulls", NULL};

const char *const rows_request[] = {"run_id", "idx", "ok", "http_status", "flags", "error", "text", "finish_reason",
	"prompt_tokens", "completion_tokens", "cached_tokens", "drafted", "accepted", "asked_tokens", "due_ns", "sent_ns",
	"first_token_ns", "last_token_ns", "end_ns", "events", NULL};

const char *const rows_verdict[] = {"verdict_id", "experiment_id", "arm", "workload", "verdict", "reason", "baseline_metric",
	"arm_metric", "effect_pct", "ci_low_pct", "ci_high_pct", "p", "p_adjusted", "launches", "blocks", "min_effect_pct",
	"needed_blocks", "std_error_pct", "df", "level", "method", "time_utc_ns", NULL};

const char *const rows_extension[] = {"experiment_id", "from_blocks", "to_blocks", "time_utc_ns", NULL};

const char *const rows_confirmation[] = {"experiment_id", "arm", "from_block", "blocks", "time_utc_ns", NULL};

const char *const rows_json_columns[] = {"document", "facts", "settings", "changed", "tags", "command", "effective_config",
	"probes", "fingerprint", "nulls", "events", "conditions", NULL};

static void set_text(struct json *row, const char *key, const char *value)
{
	json_set(row, key, json_new_string(value));
}

static void set_int(struct json *row, const char *key, int64_t value)
{
	json_set(row, key, json_new_integer(value));
}

/* A count or code that is -1 where unknown. */
static void set_known(struct json *row, const char *key, int64_t value)
{
	json_set(row, key, value < 0 ? json_new_null() : json_new_integer(value));
}

static void set_json(struct json *row, const char *key, const struct json *value)
{
	json_set(row, key, value ? json_clone(value) : json_new_null());
}

/* Text that should be JSON, such as an argument vector: as JSON where it is. */
static void set_json_text(struct json *row, const char *key, const char *text)
{
	struct json *value = NULL;
	if (text && json_parse(text, strlen(text), key, &value, NULL) == STATUS_OK)
		json_set(row, key, value);
	else
		set_text(row, key, text);
}

/* --- head ----------------------------------------------------------------------------------------------------------- */

static const struct json *baseline_value(const struct experiment *experiment, const char *knob)
{
	const struct arm *baseline = &experiment->arms[0];
	for (size_t i = 0; i < baseline->n_settings; i++)
		if (text_equal(baseline->settings[i].knob, knob))
			return baseline->settings[i].value;
	return NULL;
}

static struct json *arm_row(const struct experiment *experiment, int index)
{
	static const char *const kinds[] = {"baseline", "aa_twin", "candidate"};
	const struct arm *arm = &experiment->arms[index];
	struct json *row = json_new_object(), *settings = json_new_object(), *changed = json_new_array();
	for (size_t i = 0; i < arm->n_settings; i++)
		set_json(settings, arm->settings[i].knob, arm->settings[i].value);
	for (size_t i = 0; i < arm->n_changed; i++) {
		struct json *change = json_new_object();
		set_text(change, "knob", arm->changed[i].knob);
		set_json(change, "value", arm->changed[i].value);
		set_json(change, "baseline", baseline_value(experiment, arm->changed[i].knob));
		json_append(changed, change);
	}
	set_int(row, "arm", index);
	set_text(row, "kind", kinds[arm->kind]);
	set_text(row, "name", arm->name);
	set_text(row, "config_hash", arm->config_hash);
	json_set(row, "settings", settings);
	json_set(row, "changed", changed);
	return row;
}

static struct json *workload_row(const struct experiment *experiment, int index)
{
	struct json *row = json_new_object();
	set_int(row, "workload", index);
	set_text(row, "name", experiment->workloads[index].name);
	set_text(row, "hash", experiment->workloads[index].hash);
	json_set(row, "document", workload_json(&experiment->workloads[index]));
	return row;
}

static struct json *experiment_row(const struct experiment *experiment, int64_t started_utc_ns)
{
	struct json *row = json_new_object(), *tags = json_new_array();
	for (size_t i = 0; i < experiment->tags.count; i++)
		json_append(tags, json_new_string(experiment->tags.items[i]));
	set_text(row, "name", experiment->name);
	set_text(row, "hash", experiment->hash);
	set_text(row, "protocol_hash", experiment->protocol.hash);
	set_json(row, "document", experiment->document);
	set_text(row, "hypothesis", experiment->hypothesis);
	set_text(row, "adapter", experiment->engine.adapter);
	set_text(row, "metric", experiment->rules.metric);
	set_int(row, "quick", experiment->protocol.quick);
	json_set(row, "tags", tags);
	set_int(row, "started_utc_ns", started_utc_ns);
	return row;
}

/* "host-0123456789ab": what people call the machine, and what tells it from its state after an upgrade. */
static void set_machine_name(struct json *row, const struct machine_facts *machine)
{
	struct text name = {0};
	const char *host = json_text(json_get(machine->facts, "host"));
	text_printf(&name, "%s%s%.12s", host ? host : "", host ? "-" : "", machine->hash);
	set_text(row, "name", text_str(&name));
	text_release(&name);
}

struct json *record_head(const struct experiment *experiment, const struct store_subject *subject, int64_t started_utc_ns)
{
	const struct machine_facts *machine = subject->machine;
	const struct build_facts *build = subject->build;
	struct json *record = json_new_object(), *machine_row = json_new_object(), *build_row = json_new_object(),
		    *model_row = json_new_object();
	struct json *arms = json_new_array(), *workloads = json_new_array();
	set_text(machine_row, "hash", machine->hash);
	set_machine_name(machine_row, machine);
	set_json(machine_row, "facts", machine->facts);
	set_text(build_row, "hash", build->hash);
	set_text(build_row, "program", build->program);
	set_text(build_row, "version", build->version);
	set_text(model_row, "hash", subject->model_hash ? subject->model_hash : "");
	set_text(model_row, "name", subject->model_name ? subject->model_name : "");
	for (int i = 0; i < experiment->n_arms; i++)
		json_append(arms, arm_row(experiment, i));
	for (int i = 0; i < experiment->n_workloads; i++)
		json_append(workloads, workload_row(experiment, i));
	set_text(record, "schema", RECORD_SCHEMA);
	json_set(record, "experiment", experiment_row(experiment, started_utc_ns));
	json_set(record, "machine", machine_row);
	json_set(record, "build", build_row);
	json_set(record, "model", model_row);
	json_set(record, "arms", arms);
	json_set(record, "workloads", workloads);
	return record;
}

/* --- evidence ------------------------------------------------------------------------------------------------------- */

/* Times within a run count from its beginning; 0 in the struct means that it did not happen. */
static void set_time(struct json *row, const char *key, int64_t at_ns, int64_t begin_ns)
{
	json_set(row, key, at_ns ? json_new_integer(at_ns - begin_ns) : json_new_null());
}

static struct json *events_of(const struct request_result *request, int64_t begin_ns)
{
	struct json *events = json_new_array();
	for (size_t i = 0; i < request->n_times; i++) {
		struct json *event = json_new_array();
		json_append(event, json_new_integer(request->token_times_ns[i] - begin_ns));
		json_append(event, json_new_integer(request->token_counts ? request->token_counts[i] : 0));
		json_append(events, event);
	}
	return events;
}

static struct json *request_row(const struct request_result *request, size_t index, int64_t begin_ns)
{
	struct json *row = json_new_object();
	set_int(row, "idx", (int64_t)index);
	set_int(row, "ok", request->ok);
	set_int(row, "http_status", request->http_status);
	set_int(row, "flags", request->flags);
	set_text(row, "error", request->error);
	set_text(row, "text", request->text);
	set_text(row, "finish_reason", request->finish_reason[0] ? request->finish_reason : NULL);
	set_known(row, "prompt_tokens", request->prompt_tokens);
	set_known(row, "completion_tokens", request->completion_tokens);
	set_known(row, "cached_tokens", request->cached_tokens);
	set_known(row, "drafted", request->drafted);
	set_known(row, "accepted", request->accepted);
	set_known(row, "asked_tokens", request->asked_tokens > 0 ? request->asked_tokens : -1);
	set_time(row, "due_ns", request->due_ns, begin_ns);
	set_time(row, "sent_ns", request->sent_ns, begin_ns);
	set_time(row, "first_token_ns", request->first_token_ns, begin_ns);
	set_time(row, "last_token_ns", request->last_token_ns, begin_ns);
	set_time(row, "end_ns", request->end_ns, begin_ns);
	json_set(row, "events", events_of(request, begin_ns));
	return row;
}

/* Numbers that are not finite become NULL, and nulls says what each was, so that none is ever ranked or mistaken for missing. */
static void set_metrics(struct json *row, const struct run_result *run, int concurrency)
{
	struct run_metrics metrics;
	struct json *nulls = json_new_object();
	run_metrics_compute(run, concurrency, &metrics);
	for (size_t i = 0; i < metric_specs_count; i++) {
		const char *name = metric_specs[i].name;
		double value = run_metric_by_name(&metrics, name);
		json_set(row, name, json_new_number(value));
		if (!isfinite(value))
			set_text(nulls, name, isnan(value) ? "undefined" : "infinite");
	}
	set_int(row, "prompt_tokens", metrics.prompt_tokens);
	set_int(row, "output_tokens", metrics.output_tokens);
	if (json_count(nulls))
		json_set(row, "nulls", nulls);
	else
		json_free(nulls);
}

static struct json *counters_json(const struct run_counters *counters)
{
	struct json *object = json_new_object();
	const struct {
		const char *name;
		double value;
	} members[] = {{"prompt_tokens", counters->prompt}, {"generated_tokens", counters->generated},
		{"cache_lookup_tokens", counters->looked_up}, {"cached_tokens", counters->cached},
		{"drafted_tokens", counters->drafted}, {"accepted_tokens", counters->accepted}, {"draft_rounds", counters->rounds}};
	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
		if (members[i].value >= 0)
			json_set(object, members[i].name, json_new_number(members[i].value));
	return object;
}

static struct json *run_row(const struct experiment *experiment, const struct run_result *run)
{
	struct json *row = json_new_object(), *requests = json_new_array();
	set_int(row, "workload", run->workload);
	set_int(row, "idx", run->index);
	set_int(row, "warmup", run->warmup);
	set_int(row, "voided", run->voided);
	set_text(row, "void_reason", run->voided ? run->void_reason : NULL);
	set_int(row, "duration_ns", run->end_ns - run->begin_ns);
	struct json *conditions = conditions_json(&run->conditions);
	if (saturation_of(run))
		json_set(conditions, "saturated", json_new_bool(true));
	if (run->counted)
		json_set(conditions, "counters", counters_json(&run->counters));
	json_set(row, "conditions", conditions);
	set_metrics(row, run, workload_slots(&experiment->workloads[run->workload]));
	for (size_t i = 0; i < run->n_requests; i++)
		json_append(requests, request_row(&run->requests[i], i, run->begin_ns));
	json_set(row, "requests", requests);
	return row;
}

struct json *launch_row(const struct experiment *experiment, const struct launch_result *launch)
{
	struct json *row = json_new_object(), *runs = json_new_array();
	set_int(row, "arm", launch->arm);
	set_int(row, "block", launch->block);
	set_int(row, "attempt", launch->attempt);
	set_int(row, "position", launch->order);
	set_text(row, "failure", failure_name(launch->failure));
	set_text(row, "reason", launch->reason[0] ? launch->reason : NULL);
	set_text(row, "phase", launch->phase[0] ? launch->phase : NULL);
	set_int(row, "machine_dirty", launch->machine_dirty);
	set_known(row, "exit_code", launch->exit_code);
	set_known(row, "exit_signal", launch->exit_signal);
	set_int(row, "started_utc_ns", launch->started_utc_ns);
	json_set(row, "spawn_to_ready_ns",
		launch->spawn_to_ready_ns ? json_new_integer(launch->spawn_to_ready_ns) : json_new_null());
	set_int(row, "total_ns", launch->total_ns);
	json_set(row, "peak_memory_bytes",
		launch->peak_memory_bytes ? json_new_integer((int64_t)launch->peak_memory_bytes) : json_new_null());
	set_text(row, "log_tail", launch->log_tail);
	set_json_text(row, "command", launch->command);
	set_json(row, "effective_config", launch->effective_config);
	set_json(row, "probes", launch->probes);
	set_json_text(row, "fingerprint", launch->fingerprint);
	for (size_t i = 0; i < launch->n_runs; i++)
		json_append(runs, run_row(experiment, &launch->runs[i]));
	json_set(row, "runs", runs);
	return row;
}

struct json *verdict_row_json(const struct verdict_row *verdict, int64_t time_utc_ns)
{
	struct json *row = json_new_object();
	set_int(row, "arm", verdict->arm);
	set_int(row, "workload", verdict->workload);
	set_text(row, "verdict", verdict_name(verdict->verdict));
	set_text(row, "reason", verdict->reason[0] ? verdict->reason : NULL);
	json_set(row, "baseline_metric", json_new_number(verdict->baseline_metric));
	json_set(row, "arm_metric", json_new_number(verdict->metric));
	json_set(row, "effect_pct", json_new_number(verdict->effect_pct));
	json_set(row, "ci_low_pct", json_new_number(verdict->ci_low_pct));
	json_set(row, "ci_high_pct", json_new_number(verdict->ci_high_pct));
	json_set(row, "p", json_new_number(verdict->p));
	json_set(row, "p_adjusted", json_new_number(verdict->p_adjusted));
	set_int(row, "launches", verdict->launches);
	set_int(row, "blocks", verdict->blocks);
	json_set(row, "min_effect_pct", json_new_number(verdict->min_effect_pct));
	json_set(row, "needed_blocks", json_new_number(verdict->needed_blocks));
	json_set(row, "std_error_pct", json_new_number(verdict->std_error_pct));
	json_set(row, "df", json_new_number(verdict->df));
	json_set(row, "level", json_new_number(verdict->level));
	set_text(row, "method", verdict->method[0] ? verdict->method : NULL);
	set_int(row, "time_utc_ns", time_utc_ns);
	return row;
}
