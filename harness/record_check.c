/* The rules of a record. See record_check.h. */
#include "harness/record_check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "harness/experiment.h"
#include "harness/fields.h"
#include "harness/metric.h"
#include "harness/result.h"
#include "harness/store_rows.h"

#define TIME_NS_MAX 9.2e18
#define COUNT_MAX 1e15 /* tokens, bytes and the like: whole in a double */
#define PERCENT_MAX 1e30 /* of an effect; what is larger is no figure */
#define NEEDED FIELD_NEEDED

static const char *const arm_kinds[] = {"baseline", "aa_twin", "candidate", NULL};
static const char *const verdicts[] = {"helped", "hurt", "neutral", "failed", "void", NULL};
static const char *const methods[] = {"pooled", "paired", "confirmation", NULL};
static const char *const schemas[] = {RECORD_SCHEMA, NULL};

static const struct field record_fields[] = {
	FIELD_WORDS("schema", NEEDED, schemas),
	FIELD_OF("experiment", FIELD_OBJECT, NEEDED),
	FIELD_OF("machine", FIELD_OBJECT, NEEDED),
	FIELD_OF("build", FIELD_OBJECT, NEEDED),
	FIELD_OF("model", FIELD_OBJECT, NEEDED),
	FIELD_OF("arms", FIELD_LIST, NEEDED),
	FIELD_OF("workloads", FIELD_LIST, NEEDED),
	FIELD_OF("launches", FIELD_LIST, 0),
	FIELD_OF("extensions", FIELD_LIST, 0),
	FIELD_OF("confirmation", FIELD_LIST, 0),
	FIELD_OF("verdicts", FIELD_LIST, 0),
	{0},
};

static const struct field experiment_fields[] = {
	FIELD_OF("name", FIELD_NAME, NEEDED),
	FIELD_OF("hash", FIELD_NAME, NEEDED),
	FIELD_OF("protocol_hash", FIELD_NAME, NEEDED),
	FIELD_OF("document", FIELD_OBJECT, NEEDED),
	FIELD_OF("hypothesis", FIELD_TEXT, 0),
	FIELD_OF("adapter", FIELD_NAME, NEEDED),
	FIELD_OF("metric", FIELD_NAME, NEEDED),
	FIELD_OF("quick", FIELD_FLAG, NEEDED),
	FIELD_OF("tags", FIELD_LIST, 0),
	FIELD_WITHIN("started_utc_ns", FIELD_INTEGER, NEEDED, 0, TIME_NS_MAX),
	FIELD_WITHIN("finished_utc_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	{0},
};

static const struct field machine_fields[] = {
	FIELD_OF("hash", FIELD_NAME, NEEDED),
	FIELD_OF("name", FIELD_NAME, NEEDED),
	FIELD_OF("facts", FIELD_OBJECT, 0),
	{0},
};

static const struct field build_fields[] = {
	FIELD_OF("hash", FIELD_NAME, NEEDED),
	FIELD_OF("program", FIELD_TEXT, 0),
	FIELD_OF("version", FIELD_TEXT, 0),
	{0},
};

/* Both may be empty: an engine that was attached does not tell its model. */
static const struct field model_fields[] = {
	FIELD_OF("hash", FIELD_NAME, NEEDED | FIELD_OR_EMPTY),
	FIELD_OF("name", FIELD_NAME, NEEDED | FIELD_OR_EMPTY),
	{0},
};

static const struct field arm_fields[] = {
	FIELD_WITHIN("arm", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_ARMS_MAX - 1),
	FIELD_WORDS("kind", NEEDED, arm_kinds),
	FIELD_OF("name", FIELD_NAME, NEEDED),
	FIELD_OF("config_hash", FIELD_NAME, NEEDED),
	FIELD_OF("settings", FIELD_OBJECT, NEEDED),
	FIELD_OF("changed", FIELD_LIST, NEEDED),
	{0},
};

static const struct field changed_fields[] = {
	FIELD_OF("knob", FIELD_NAME, NEEDED),
	FIELD_OF("value", FIELD_ANY, 0),
	FIELD_OF("baseline", FIELD_ANY, 0),
	{0},
};

static const struct field workload_fields[] = {
	FIELD_WITHIN("workload", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_WORKLOADS_MAX - 1),
	FIELD_OF("name", FIELD_NAME, NEEDED),
	FIELD_OF("hash", FIELD_NAME, NEEDED),
	FIELD_OF("document", FIELD_OBJECT, 0),
	{0},
};

static const struct field launch_fields[] = {
	FIELD_WITHIN("arm", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_ARMS_MAX - 1),
	FIELD_WITHIN("block", FIELD_INTEGER, NEEDED, 0, RECORD_BLOCKS_MAX - 1),
	FIELD_WITHIN("attempt", FIELD_INTEGER, NEEDED, 0, 1000),
	FIELD_WITHIN("position", FIELD_INTEGER, 0, 0, EXPERIMENT_ARMS_MAX - 1),
	FIELD_OF("failure", FIELD_NAME, NEEDED),
	FIELD_OF("reason", FIELD_TEXT, 0),
	FIELD_OF("phase", FIELD_TEXT, 0),
	FIELD_OF("machine_dirty", FIELD_FLAG, NEEDED),
	FIELD_WITHIN("exit_code", FIELD_INTEGER, 0, 0, 255),
	FIELD_WITHIN("exit_signal", FIELD_INTEGER, 0, 0, 64),
	FIELD_WITHIN("started_utc_ns", FIELD_INTEGER, NEEDED, 0, TIME_NS_MAX),
	FIELD_WITHIN("spawn_to_ready_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_WITHIN("total_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_WITHIN("peak_memory_bytes", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_OF("log_tail", FIELD_TEXT, 0),
	FIELD_OF("command", FIELD_ANY, 0),
	FIELD_OF("effective_config", FIELD_ANY, 0),
	FIELD_OF("probes", FIELD_ANY, 0),
	FIELD_OF("fingerprint", FIELD_ANY, 0),
	FIELD_OF("runs", FIELD_LIST, 0),
	{0},
};

/* Its metrics are checked by their own table. */
static const struct field run_fields[] = {
	FIELD_WITHIN("workload", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_WORKLOADS_MAX - 1),
	FIELD_WITHIN("idx", FIELD_INTEGER, NEEDED, 0, 1e6),
	FIELD_OF("warmup", FIELD_FLAG, NEEDED),
	FIELD_OF("voided", FIELD_FLAG, NEEDED),
	FIELD_OF("void_reason", FIELD_TEXT, 0),
	FIELD_WITHIN("duration_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_OF("conditions", FIELD_OBJECT, 0),
	FIELD_WITHIN("prompt_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("output_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_OF("nulls", FIELD_OBJECT, 0),
	FIELD_OF("requests", FIELD_LIST, 0),
	{0},
};

static const struct field request_fields[] = {
	FIELD_WITHIN("idx", FIELD_INTEGER, NEEDED, 0, 1e9),
	FIELD_OF("ok", FIELD_FLAG, NEEDED),
	FIELD_WITHIN("http_status", FIELD_INTEGER, 0, 0, 999),
	FIELD_WITHIN("flags", FIELD_INTEGER, NEEDED, 0, (1U << REQUEST_FLAGS_COUNT) - 1),
	FIELD_OF("error", FIELD_TEXT, 0),
	FIELD_OF("text", FIELD_TEXT, 0),
	FIELD_OF("finish_reason", FIELD_TEXT, 0),
	FIELD_WITHIN("prompt_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("completion_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("cached_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("drafted", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("accepted", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("asked_tokens", FIELD_INTEGER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("due_ns", FIELD_INTEGER, 0, -TIME_NS_MAX, TIME_NS_MAX),
	FIELD_WITHIN("sent_ns", FIELD_INTEGER, 0, -TIME_NS_MAX, TIME_NS_MAX),
	FIELD_WITHIN("first_token_ns", FIELD_INTEGER, 0, -TIME_NS_MAX, TIME_NS_MAX),
	FIELD_WITHIN("last_token_ns", FIELD_INTEGER, 0, -TIME_NS_MAX, TIME_NS_MAX),
	FIELD_WITHIN("end_ns", FIELD_INTEGER, 0, -TIME_NS_MAX, TIME_NS_MAX),
	FIELD_OF("events", FIELD_LIST, 0),
	{0},
};

static const struct field verdict_fields[] = {
	FIELD_WITHIN("arm", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_ARMS_MAX - 1),
	FIELD_WITHIN("workload", FIELD_INTEGER, NEEDED, 0, EXPERIMENT_WORKLOADS_MAX - 1),
	FIELD_WORDS("verdict", NEEDED, verdicts),
	FIELD_OF("reason", FIELD_TEXT, 0),
	FIELD_WITHIN("baseline_metric", FIELD_NUMBER, 0, 0, PERCENT_MAX),
	FIELD_WITHIN("arm_metric", FIELD_NUMBER, 0, 0, PERCENT_MAX),
	FIELD_WITHIN("effect_pct", FIELD_NUMBER, 0, -100, PERCENT_MAX),
	FIELD_WITHIN("ci_low_pct", FIELD_NUMBER, 0, -100, PERCENT_MAX),
	FIELD_WITHIN("ci_high_pct", FIELD_NUMBER, 0, -100, PERCENT_MAX),
	FIELD_WITHIN("p", FIELD_NUMBER, 0, 0, 1),
	FIELD_WITHIN("p_adjusted", FIELD_NUMBER, 0, 0, 1),
	FIELD_WITHIN("launches", FIELD_INTEGER, NEEDED, 0, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("blocks", FIELD_INTEGER, NEEDED, 0, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("min_effect_pct", FIELD_NUMBER, 0, 0, PERCENT_MAX),
	FIELD_WITHIN("needed_blocks", FIELD_NUMBER, 0, 0, PERCENT_MAX),
	FIELD_WITHIN("std_error_pct", FIELD_NUMBER, 0, 0, PERCENT_MAX),
	FIELD_WITHIN("df", FIELD_NUMBER, 0, 0, COUNT_MAX),
	FIELD_WITHIN("level", FIELD_NUMBER, 0, 0, 1),
	FIELD_WORDS("method", 0, methods),
	FIELD_WITHIN("time_utc_ns", FIELD_INTEGER, NEEDED, 0, TIME_NS_MAX),
	{0},
};

static const struct field extension_fields[] = {
	FIELD_WITHIN("from_blocks", FIELD_INTEGER, NEEDED, 1, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("to_blocks", FIELD_INTEGER, NEEDED, 1, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("time_utc_ns", FIELD_INTEGER, NEEDED, 0, TIME_NS_MAX),
	{0},
};

static const struct field confirmation_fields[] = {
	FIELD_WITHIN("arm", FIELD_INTEGER, NEEDED, 1, EXPERIMENT_ARMS_MAX - 1),
	FIELD_WITHIN("from_block", FIELD_INTEGER, NEEDED, 1, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("blocks", FIELD_INTEGER, NEEDED, 1, RECORD_BLOCKS_MAX),
	FIELD_WITHIN("time_utc_ns", FIELD_INTEGER, NEEDED, 0, TIME_NS_MAX),
	{0},
};

/* Where a check is in the record, and what there is to refer to. */
struct checking {
	char path[RECORD_PATH_BYTES];
	bool of_entry; /* the complaint is about the entry as a whole, not about a member of it */
	size_t n_arms, n_workloads;
	struct err *err;
};

/* An index of the path, to be taken back by leave. */
static size_t enter(struct checking *checking, const char *list, size_t index)
{
	size_t before = strlen(checking->path);
	snprintf(checking->path + before, sizeof checking->path - before, "%s%s[%zu]", before ? "." : "", list, index);
	return before;
}

static enum status complain(struct checking *checking, const char *reason)
{
	checking->of_entry = true;
	return err_set(checking->err, STATUS_INPUT, "%s", reason);
}

/* --- what no two entries of a list may share ------------------------------------------------------------------------ */

struct key {
	int64_t parts[3];
	size_t index;
};

static int compare_keys(const void *a, const void *b)
{
	const struct key *left = a, *right = b;
	for (int i = 0; i < 3; i++)
		if (left->parts[i] != right->parts[i])
			return left->parts[i] < right->parts[i] ? -1 : 1;
	return left->index < right->index ? -1 : left->index > right->index;
}

static bool same_parts(const struct key *a, const struct key *b)
{
	return memcmp(a->parts, b->parts, sizeof a->parts) == 0;
}

/* names: up to three integers of each entry that together tell it from the others. */
static enum status check_apart(struct checking *checking, const struct json *list, const char *what, const char *const names[3])
{
	size_t count = json_count(list);
	struct key *keys = mem_calloc(count + 1, sizeof *keys);
	enum status status = STATUS_OK;
	for (size_t i = 0; i < count; i++) {
		keys[i].index = i;
		for (int k = 0; k < 3 && names[k]; k++)
			keys[i].parts[k] = json_int(json_get(json_at(list, i), names[k]), 0);
	}
	qsort(keys, count, sizeof *keys, compare_keys);
	for (size_t i = 1; i < count && !status; i++)
		if (same_parts(&keys[i - 1], &keys[i])) {
			struct text reason = {0};
			enter(checking, what, keys[i].index);
			text_printf(&reason, "has the same %s", names[0]);
			for (int k = 1; k < 3 && names[k]; k++)
				text_printf(&reason, "%s%s", k == 2 || !names[k + 1] ? " and " : ", ", names[k]);
			text_printf(&reason, " as %s[%zu]", what, keys[i - 1].index);
			status = complain(checking, text_str(&reason));
			text_release(&reason);
		}
	mem_free(keys);
	return status;
}

/* --- lists ---------------------------------------------------------------------------------------------------------- */

typedef enum status check_entry(struct checking *checking, const struct json *entry, size_t index);

/* Checks every entry by its table, and then by check (NULL: there is no more to it). */
static enum status check_list(
	struct checking *checking, const struct json *list, const char *what, const struct field *fields, check_entry *check)
{
	enum status status = STATUS_OK;
	for (size_t i = 0; i < json_count(list) && !status; i++) {
		const struct json *entry = json_at(list, i);
		size_t before = enter(checking, what, i);
		if (json_kind_of(entry) != JSON_KIND_OBJECT)
			status = complain(checking, "must be an object");
		if (!status)
			status = fields_check(entry, fields, fields != run_fields, checking->err);
		if (!status && check)
			status = check(checking, entry, i);
		if (!status)
			checking->path[before] = '\0';
	}
	return status;
}

/* Entries stand in the order of their own numbers, so that a reference is sound when it is below their count. */
static enum status check_number(struct checking *checking, const struct json *entry, const char *name, size_t index)
{
	if (json_int(json_get(entry, name), -1) == (int64_t)index)
		return STATUS_OK;
	return err_set(checking->err, STATUS_INPUT, "%s: must be %zu, the place in the list", name, index);
}

static enum status check_reference(struct checking *checking, const struct json *entry, const char *name, size_t count)
{
	int64_t number = json_int(json_get(entry, name), 0);
	if (number < (int64_t)count)
		return STATUS_OK;
	return err_set(checking->err, STATUS_INPUT, "%s: there is no %s %lld in this record", name, name, (long long)number);
}

static enum status check_arm(struct checking *checking, const struct json *arm, size_t index)
{
	bool is_baseline = text_equal(json_text(json_get(arm, "kind")), "baseline");
	enum status status = check_number(checking, arm, "arm", index);
	if (!status && is_baseline != (index == 0))
		status = err_set(checking->err, STATUS_INPUT, "kind: the first arm, and no other, is the baseline");
	return status ? status : check_list(checking, json_get(arm, "changed"), "changed", changed_fields, NULL);
}

static enum status check_workload(struct checking *checking, const struct json *workload, size_t index)
{
	return check_number(checking, workload, "workload", index);
}

/* [[ns, tokens so far], …] */
static enum status check_request(struct checking *checking, const struct json *request, size_t index)
{
	const struct json *events = json_get(request, "events");
	for (size_t i = 0; i < json_count(events); i++) {
		const struct json *event = json_at(events, i), *tokens = json_at(event, 1);
		bool sound = json_count(event) == 2 && json_kind_of(event) == JSON_KIND_ARRAY &&
			json_kind_of(json_at(event, 0)) == JSON_KIND_INTEGER && json_kind_of(tokens) == JSON_KIND_INTEGER &&
			json_int(tokens, -1) >= 0;
		if (!sound)
			return err_set(checking->err, STATUS_INPUT, "events[%zu]: must be [nanoseconds, tokens so far]", i);
	}
	return STATUS_OK;
}

static enum status check_metrics(struct checking *checking, const struct json *run)
{
	enum status status = STATUS_OK;
	for (size_t i = 0; i < metric_specs_count && !status; i++) {
		const struct metric_spec *spec = &metric_specs[i];
		bool share = text_equal(spec->unit, "fraction") && !text_equal(spec->name, "client_cpu_frac");
		const struct field field[] = {FIELD_WITHIN(spec->name, FIELD_NUMBER, 0, 0, share ? 1 : PERCENT_MAX), {0}};
		status = fields_check(run, field, false, checking->err);
	}
	for (void *it = json_first(run); it && !status; it = json_next(run, it)) {
		const char *name = json_iterator_key(it);
		const struct metric_spec *spec = metric_by_name(name);
		bool known = spec && text_equal(spec->name, name);
		for (const struct field *field = run_fields; field->name && !known; field++)
			known = text_equal(field->name, name);
		if (!known)
			status = err_set(checking->err, STATUS_INPUT, "%.60s: is no member that is known here", name);
	}
	return status;
}

static enum status check_run(struct checking *checking, const struct json *run, size_t index)
{
	static const char *const apart[3] = {"idx"};
	const struct json *requests = json_get(run, "requests");
	enum status status = check_reference(checking, run, "workload", checking->n_workloads);
	if (!status)
		status = check_metrics(checking, run);
	if (!status)
		status = check_list(checking, requests, "requests", request_fields, check_request);
	return status ? status : check_apart(checking, requests, "requests", apart);
}

static enum status check_launch(struct checking *checking, const struct json *launch, size_t index)
{
	static const char *const apart[3] = {"workload", "warmup", "idx"};
	const struct json *runs = json_get(launch, "runs");
	const char *class = json_text(json_get(launch, "failure"));
	enum failure failure;
	enum status status = check_reference(checking, launch, "arm", checking->n_arms);
	if (!status && !failure_from_name(class, &failure))
		status = err_set(checking->err, STATUS_INPUT, "failure: there is no class '%.40s'", class);
	if (!status)
		status = check_list(checking, runs, "runs", run_fields, check_run);
	return status ? status : check_apart(checking, runs, "runs", apart);
}

static enum status check_verdict(struct checking *checking, const struct json *verdict, size_t index)
{
	enum status status = check_reference(checking, verdict, "arm", checking->n_arms);
	return status ? status : check_reference(checking, verdict, "workload", checking->n_workloads);
}

static enum status check_extension(struct checking *checking, const struct json *extension, size_t index)
{
	if (json_int(json_get(extension, "to_blocks"), 0) > json_int(json_get(extension, "from_blocks"), 0))
		return STATUS_OK;
	return err_set(checking->err, STATUS_INPUT, "to_blocks: must be above from_blocks");
}

static enum status check_confirmation(struct checking *checking, const struct json *confirmation, size_t index)
{
	if (index)
		return complain(checking, "there is one confirmation at most");
	return check_reference(checking, confirmation, "arm", checking->n_arms);
}

/* --- the whole ------------------------------------------------------------------------------------------------------ */

static enum status check_heads(struct checking *checking, const struct json *record)
{
	static const struct {
		const char *name;
		const struct field *fields;
	} heads[] = {
		{"experiment", experiment_fields}, {"machine", machine_fields}, {"build", build_fields}, {"model", model_fields}};
	enum status status = fields_check(record, record_fields, true, checking->err);
	for (size_t i = 0; i < sizeof heads / sizeof heads[0] && !status; i++) {
		snprintf(checking->path, sizeof checking->path, "%s", heads[i].name);
		status = fields_check(json_get(record, heads[i].name), heads[i].fields, true, checking->err);
	}
	const struct json *experiment = json_get(record, "experiment"), *tags = json_get(experiment, "tags");
	if (!status) /* it becomes part of queries */
		snprintf(checking->path, sizeof checking->path, "experiment");
	const char *metric = json_text(json_get(experiment, "metric"));
	if (!status && !(metric_by_name(metric) && text_equal(metric_by_name(metric)->name, metric)))
		status = err_set(checking->err, STATUS_INPUT, "metric: '%.40s' is not known", metric);
	for (size_t i = 0; i < json_count(tags) && !status; i++)
		if (!json_text(json_at(tags, i)))
			status = err_set(checking->err, STATUS_INPUT, "tags[%zu]: must be a text", i);
	if (!status)
		checking->path[0] = '\0';
	return status;
}

static enum status check_lists(struct checking *checking, const struct json *record)
{
	static const struct {
		const char *name;
		const struct field *fields;
		check_entry *check;
		const char *apart[3];
	} lists[] = {
		{"arms", arm_fields, check_arm, {"arm"}},
		{"workloads", workload_fields, check_workload, {"workload"}},
		{"launches", launch_fields, check_launch, {"block", "arm", "attempt"}},
		{"extensions", extension_fields, check_extension, {"to_blocks"}},
		{"confirmation", confirmation_fields, check_confirmation, {"arm"}},
		{"verdicts", verdict_fields, check_verdict, {"workload", "arm"}},
	};
	enum status status = STATUS_OK;
	for (size_t i = 0; i < sizeof lists / sizeof lists[0] && !status; i++) {
		const struct json *list = json_get(record, lists[i].name);
		status = check_list(checking, list, lists[i].name, lists[i].fields, lists[i].check);
		if (!status)
			status = check_apart(checking, list, lists[i].name, lists[i].apart);
	}
	return status;
}

enum status record_check(const struct json *record, char path[RECORD_PATH_BYTES], struct err *err)
{
	struct err own = {0};
	struct checking checking = {.n_arms = json_count(json_get(record, "arms")),
		.n_workloads = json_count(json_get(record, "workloads")),
		.err = &own};
	enum status status = STATUS_OK;
	if (json_kind_of(record) != JSON_KIND_OBJECT)
		status = complain(&checking, "the record must be an object");
	if (!status)
		status = check_heads(&checking, record);
	if (!status && (!checking.n_arms || !checking.n_workloads))
		status = err_set(&own, STATUS_INPUT, "%s: must not be empty", checking.n_arms ? "workloads" : "arms");
	if (!status)
		status = check_lists(&checking, record);
	if (path)
		snprintf(path, RECORD_PATH_BYTES, "%s", checking.path);
	if (!status)
		return STATUS_OK;
	return err_set(err, STATUS_INPUT, "%s%s%s", checking.path,
		!checking.path[0]           ? ""
			: checking.of_entry ? ": "
					    : ".",
		own.text);
}
