/* `verdict trend`: what has happened to figures that were measured again and again, night after night. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/metric.h"
#include "harness/report.h"
#include "harness/report_format.h"
#include "harness/series.h"
#include "harness/store.h"

#define FINDINGS_MAX 64 /* of one series; later ones are still counted */

static const char trend_help[] = "usage: verdict trend [options]\n"
				 "\n"
				 "Follows every setting through the experiments that measured it under the same load, with the "
				 "same model, on the same machine "
				 "(engines may\n"
				 "differ: that is what one wants to see), and tells steps, and losses that creep. Only the order "
				 "of the measurements counts.\n"
				 "\n"
				 "A step is told when two measurements in a row lie outside what the 14 before them lead to "
				 "expect, so no single night raises "
				 "an alarm; a\n"
				 "drift when two in a row differ from the first of their stretch by more than --drift and more "
				 "than the noise explains. Then "
				 "the new level\n"
				 "is what later measurements are compared with, and the change is not told again. Pure noise of 3 "
				 "% has a finding in about one "
				 "of thirty\n"
				 "series of 30 measurements.\n";

static const char trend_help_end[] =
	"\n"
	"Exit codes: 0 nothing new; 1 the newest measurement of a series confirms that it got worse; 2 bad usage.\n";

struct trend {
	struct series_limits limits;
	struct json *series; /* what is printed as JSON */
	int n_worse; /* series whose newest value confirms a loss */
};

static const char *text_of(const struct json *row, const char *key)
{
	const char *text = json_text(json_get(row, key));
	return text ? text : "";
}

static struct json *describe_finding(const struct json *rows, size_t begin, const struct series_finding *finding, bool worse)
{
	struct json *out = json_new_object();
	const struct json *since = json_at(rows, begin + finding->since), *seen = json_at(rows, begin + finding->seen);
	json_set(out, "kind", json_new_string(finding->kind == SERIES_STEP ? "step" : "drift"));
	json_set(out, "effect_pct", json_new_number(finding->effect_pct));
	json_set(out, "worse", json_new_bool(worse));
	json_set(out, "since_experiment_id", json_clone(json_get(since, "experiment_id")));
	json_set(out, "since_utc", json_clone(json_get(since, "time_utc")));
	json_set(out, "confirmed_by_experiment_id", json_clone(json_get(seen, "experiment_id")));
	return out;
}

/* The n rows of one series, from begin. */
static void scan_series(struct trend *trend, const struct json *rows, size_t begin, size_t n)
{
	static const char *const members[] = {"setting", "workload", "metric", "model", "machine"};
	const struct json *first = json_at(rows, begin);
	const struct metric_spec *metric = metric_by_name(text_of(first, "metric"));
	double *values = mem_calloc(n, sizeof *values);
	struct series_finding found[FINDINGS_MAX];
	struct json *series = json_new_object(), *findings = json_new_array();
	for (size_t i = 0; i < n; i++)
		values[i] = json_number(json_get(json_at(rows, begin + i), "value"), NAN);
	for (size_t i = 0; i < sizeof members / sizeof members[0]; i++)
		json_set(series, members[i], json_clone(json_get(first, members[i])));
	json_set(series, "measurements", json_new_integer((int64_t)n));
	json_set(series, "first", json_new_number(values[0]));
	json_set(series, "newest", json_new_number(values[n - 1]));
	size_t n_found = series_scan(values, n, &trend->limits, found, FINDINGS_MAX);
	for (size_t i = 0; i < n_found && i < FINDINGS_MAX; i++) {
		bool worse = metric && (found[i].effect_pct < 0) == metric->higher_is_better;
		trend->n_worse += worse && found[i].seen == n - 1;
		json_append(findings, describe_finding(rows, begin, &found[i], worse));
	}
	json_set(series, "findings", findings);
	json_append(trend->series, series);
	mem_free(values);
}

static void scan_all(struct trend *trend, const struct json *rows)
{
	size_t count = json_count(rows);
	for (size_t begin = 0, end; begin < count; begin = end) {
		for (end = begin + 1; end < count; end++)
			if (!text_equal(text_of(json_at(rows, end), "series"), text_of(json_at(rows, begin), "series")))
				break;
		if (end - begin > 1)
			scan_series(trend, rows, begin, end - begin);
	}
}

static void say_finding(const struct json *finding, struct text *out)
{
	text_printf(out, "  %s of ", text_of(finding, "kind"));
	format_signed(out, json_number(json_get(finding, "effect_pct"), NAN), 1);
	text_printf(out, " %% with experiment %lld (%.10s), confirmed by experiment %lld\n",
		(long long)json_int(json_get(finding, "since_experiment_id"), 0), text_of(finding, "since_utc"),
		(long long)json_int(json_get(finding, "confirmed_by_experiment_id"), 0));
}

static void say_all(const struct json *all, struct text *out)
{
	for (size_t i = 0; i < json_count(all); i++) {
		const struct json *series = json_at(all, i), *findings = json_get(series, "findings");
		text_printf(out, "%s · %s · %s · %s: %lld measurements, first %.4g, newest %.4g%s\n", text_of(series, "setting"),
			text_of(series, "workload"), text_of(series, "model"), text_of(series, "metric"),
			(long long)json_int(json_get(series, "measurements"), 0), json_number(json_get(series, "first"), NAN),
			json_number(json_get(series, "newest"), NAN), json_count(findings) ? "" : ": steady");
		for (size_t f = 0; f < json_count(findings); f++)
			say_finding(json_at(findings, f), out);
	}
	if (!json_count(all))
		text_append_str(out, "nothing was measured twice yet\n");
}

static enum status print_trend(const struct trend *trend, bool as_json, struct err *err)
{
	struct text text = {0};
	if (as_json)
		return report_print_json(trend->series, err);
	say_all(trend->series, &text);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

static enum status follow(
	struct store *store, const struct history_filters *filters, struct trend *trend, bool as_json, struct err *err)
{
	struct json *rows = NULL;
	enum status status = store_series(store, filters, &rows, err);
	trend->series = json_new_array();
	if (!status)
		scan_all(trend, rows);
	if (!status)
		status = print_trend(trend, as_json, err);
	if (!status && trend->n_worse)
		status = err_set(err, STATUS_ANSWER_BAD, "%d series got worse, the newest measurement confirms it", trend->n_worse);
	json_free(rows);
	json_free(trend->series);
	return status;
}

enum status cmd_trend(int argc, char **argv, struct err *err)
{
	struct history_filters filters = {0};
	struct trend trend = {.limits = {.min_effect_pct = 2, .drift_pct = 5}};
	const char *db = "results.db", *words[1];
	bool as_json = false, help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database (default results.db)."},
		{"experiment", OPTION_STRING, &filters.experiment, 1, 0, "NAME", "Only this experiment."},
		{"model", OPTION_STRING, &filters.model, 1, 0, "TEXT", "Only models whose name contains this."},
		{"machine", OPTION_STRING, &filters.machine, 1, 0, "TEXT", "Only machines whose name contains this."},
		{"min-effect", OPTION_DOUBLE, &trend.limits.min_effect_pct, 0.01, 90, "PCT", "Smallest step told (default 2)."},
		{"drift", OPTION_DOUBLE, &trend.limits.drift_pct, 0.01, 90, "PCT", "Sum of small changes told (default 5)."},
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL, "Print the series and their findings as JSON."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	struct store *store = NULL;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 1, &n_words, err);
	if (!status && help)
		return cmd_print_help(trend_help, options, n_options, trend_help_end, err);
	if (!status && n_words)
		status = err_set(err, STATUS_INPUT, "trend takes options only, got '%s' (see verdict trend --help)", words[0]);
	if (!status)
		status = cmd_require_database(db, err);
	if (!status)
		status = store_open_to_read(db, &store, err);
	if (!status)
		status = follow(store, &filters, &trend, as_json, err);
	store_close(store);
	return status;
}
