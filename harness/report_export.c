/* Records as CSV and as AIPerf-like aggregates. */
#include "harness/report_export.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "harness/metric.h"
#include "harness/stats.h"

#define CONFIDENCE 0.95
#define AIPERF_SCHEMA "1.0" /* of profile_export_aiperf_aggregate.json, AIPerf 0.13.0 */

static const struct json *named(const struct json *list, const char *key, const struct json *number)
{
	for (size_t i = 0; i < json_count(list); i++)
		if (json_same(json_get(json_at(list, i), key), number))
			return json_at(list, i);
	return NULL;
}

static bool is_measured(const struct json *run)
{
	return json_int(json_get(run, "warmup"), 0) == 0 && json_int(json_get(run, "voided"), 0) == 0;
}

/* --- CSV ------------------------------------------------------------------------------------------------------------ */

static void append_field(struct text *out, const struct json *value)
{
	struct text text = {0};
	if (json_text(value))
		text_append(&text, json_text(value), json_text_len(value));
	else if (json_kind_of(value) != JSON_KIND_NULL)
		json_write(value, JSON_STYLE_COMPACT, &text);
	bool quoted = strpbrk(text_str(&text), ",\"\r\n") != NULL;
	if (out->len && out->data[out->len - 1] != '\n')
		text_append_char(out, ',');
	else if (!text.len)
		text_append_str(out, "\"\""); /* an empty first field must not look like the start of a line */
	if (quoted)
		text_append_char(out, '"');
	for (size_t i = 0; i < text.len; i++) {
		if (text.data[i] == '"')
			text_append_char(out, '"');
		text_append_char(out, text.data[i]);
	}
	if (quoted)
		text_append_char(out, '"');
	text_release(&text);
}

static const char *const launch_columns[] = {"block", "attempt", "failure", "started_utc_ns"};
static const char *const run_columns[] = {"idx", "duration_ns", "prompt_tokens", "output_tokens"};
#define N(array) (sizeof(array) / sizeof((array)[0]))

void export_csv(const struct json *record, struct text *out)
{
	const struct json *launches = json_get(record, "launches");
	text_append_str(out,
		"experiment,arm,kind,workload,block,attempt,failure,started_utc_ns,run,duration_ns,prompt_tokens,output_tokens");
	for (size_t i = 0; i < metric_specs_count; i++)
		text_printf(out, ",%s", metric_specs[i].name);
	text_append_char(out, '\n');
	for (size_t l = 0; l < json_count(launches); l++) {
		const struct json *launch = json_at(launches, l), *runs = json_get(launch, "runs");
		const struct json *arm = named(json_get(record, "arms"), "arm", json_get(launch, "arm"));
		for (size_t r = 0; r < json_count(runs); r++) {
			const struct json *run = json_at(runs, r);
			if (!is_measured(run))
				continue;
			append_field(out, json_get(json_get(record, "experiment"), "name"));
			append_field(out, json_get(arm, "name"));
			append_field(out, json_get(arm, "kind"));
			append_field(
				out, json_get(named(json_get(record, "workloads"), "workload", json_get(run, "workload")), "name"));
			for (size_t i = 0; i < N(launch_columns); i++)
				append_field(out, json_get(launch, launch_columns[i]));
			for (size_t i = 0; i < N(run_columns); i++)
				append_field(out, json_get(run, run_columns[i]));
			for (size_t i = 0; i < metric_specs_count; i++)
				append_field(out, json_get(run, metric_specs[i].name));
			text_append_char(out, '\n');
		}
	}
}

/* --- AIPerf --------------------------------------------------------------------------------------------------------- */

/* Mean of a metric over the measured runs of a launch under a workload; NaN when none tells it. */
static double launch_mean(const struct json *launch, const struct json *workload, const char *metric)
{
	const struct json *runs = json_get(launch, "runs");
	double sum = 0;
	size_t count = 0;
	for (size_t r = 0; r < json_count(runs); r++) {
		const struct json *run = json_at(runs, r);
		if (!is_measured(run) || !json_same(json_get(run, "workload"), workload) || !json_is_number(json_get(run, metric)))
			continue;
		sum += json_number(json_get(run, metric), 0);
		count++;
	}
	return count ? sum / (double)count : NAN;
}

/* Of one value the spread is 0 and the interval is the value itself, as AIPerf has it; the metadata says "single_run" then. */
static struct json *summary(const double *values, size_t count, const char *unit)
{
	double mean = 0, squares = 0, low = INFINITY, high = -INFINITY;
	for (size_t i = 0; i < count; i++) {
		mean += values[i] / (double)count;
		low = fmin(low, values[i]);
		high = fmax(high, values[i]);
	}
	for (size_t i = 0; i < count; i++)
		squares += (values[i] - mean) * (values[i] - mean);
	double std = count > 1 ? sqrt(squares / (double)(count - 1)) : 0, se = std / sqrt((double)count);
	double t = count > 1 ? stats_student_quantile(1 - (1 - CONFIDENCE) / 2, (double)(count - 1)) : NAN;
	struct json *object = json_new_object();
	json_set(object, "mean", json_new_number(mean));
	json_set(object, "std", json_new_number(std));
	json_set(object, "min", json_new_number(low));
	json_set(object, "max", json_new_number(high));
	json_set(object, "cv", json_new_number(mean != 0 ? std / mean : NAN));
	json_set(object, "se", json_new_number(se));
	double half = count > 1 ? t * se : 0;
	json_set(object, "ci_low", json_new_number(mean - half));
	json_set(object, "ci_high", json_new_number(mean + half));
	json_set(object, "t_critical", json_new_number(t));
	json_set(object, "unit", json_new_string(unit));
	return object;
}

static bool belongs(const struct json *launch, const struct json *arm)
{
	return json_same(json_get(launch, "arm"), arm);
}

static struct json *metadata_of(const struct json *launches, const struct json *arm)
{
	struct json *metadata = json_new_object(), *labels = json_new_array(), *failed = json_new_array();
	int64_t total = 0, good = 0;
	for (size_t l = 0; l < json_count(launches); l++) {
		const struct json *launch = json_at(launches, l);
		if (!belongs(launch, arm))
			continue;
		struct text label = {0};
		text_printf(&label, "block-%lld-attempt-%lld", (long long)json_int(json_get(launch, "block"), 0),
			(long long)json_int(json_get(launch, "attempt"), 0));
		bool is_good = text_equal(json_text(json_get(launch, "failure")), "none");
		total++;
		good += is_good;
		if (is_good) {
			json_append(labels, json_new_string(text_str(&label)));
		} else {
			struct json *one = json_new_object();
			json_set(one, "label", json_new_string(text_str(&label)));
			json_set(one, "error", json_new_string(json_text(json_get(launch, "reason"))));
			json_append(failed, one);
		}
		text_release(&label);
	}
	json_set(metadata, "aggregation_type", json_new_string("confidence"));
	json_set(metadata, "num_profile_runs", json_new_integer(total));
	json_set(metadata, "num_successful_runs", json_new_integer(good));
	json_set(metadata, "failed_runs", failed);
	json_set(metadata, "confidence_level", json_new_number(CONFIDENCE));
	json_set(metadata, "run_labels", labels);
	if (good == 1)
		json_set(metadata, "single_run", json_new_bool(true));
	return metadata;
}

static struct json *metrics_of(const struct json *launches, const struct json *arm, const struct json *workload)
{
	struct json *object = json_new_object();
	double *values = mem_calloc(json_count(launches) + 1, sizeof *values);
	for (size_t m = 0; m < metric_specs_count; m++) {
		size_t count = 0;
		for (size_t l = 0; l < json_count(launches); l++) {
			const struct json *launch = json_at(launches, l);
			if (!belongs(launch, arm) || !text_equal(json_text(json_get(launch, "failure")), "none"))
				continue;
			double mean = launch_mean(launch, workload, metric_specs[m].name);
			if (isfinite(mean))
				values[count++] = mean;
		}
		if (count)
			json_set(object, metric_specs[m].name, summary(values, count, metric_specs[m].unit));
	}
	mem_free(values);
	return object;
}

struct json *export_aiperf(const struct json *record)
{
	const struct json *arms = json_get(record, "arms"), *workloads = json_get(record, "workloads"),
			  *launches = json_get(record, "launches");
	struct json *list = json_new_array();
	for (size_t a = 0; a < json_count(arms); a++)
		for (size_t w = 0; w < json_count(workloads); w++) {
			const struct json *arm = json_get(json_at(arms, a), "arm"),
					  *workload = json_get(json_at(workloads, w), "workload");
			struct json *metrics_object = metrics_of(launches, arm, workload);
			struct json *one = json_new_object(), *metadata = metadata_of(launches, arm);
			json_set(metadata, "arm", json_clone(json_get(json_at(arms, a), "name")));
			json_set(metadata, "workload", json_clone(json_get(json_at(workloads, w), "name")));
			json_set(one, "schema_version", json_new_string(AIPERF_SCHEMA));
			json_set(one, "metadata", metadata);
			json_set(one, "metrics", metrics_object);
			json_append(list, one);
		}
	return list;
}
