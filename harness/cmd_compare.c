/* `verdict compare OLD NEW`: the same settings in two experiments, such as before and after an upgrade. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/metric.h"
#include "harness/report.h"
#include "harness/report_format.h"
#include "harness/stats.h"
#include "harness/store.h"

#define LEVEL 0.05

static const char compare_help[] = "usage: verdict compare OLD NEW [options]\n"
				   "\n"
				   "Compares what two experiments measured under the same settings and load: NEW against OLD, in "
				   "terms of their metric, by the means "
				   "of their\n"
				   "launches (Welch's test on logarithms, 95 % intervals). Both must have run on the same machine "
				   "with the same model; otherwise "
				   "there is no\n"
				   "baseline to compare with. The launches of two experiments are not interleaved: what happened "
				   "to the machine in between counts "
				   "as a\n"
				   "difference. To be sure, make both engines settings of one experiment.\n";

struct side {
	int64_t id;
	struct json *head, *runs;
};

static enum status read_side(struct store *store, long long id, struct side *side, struct err *err)
{
	enum status status = store_head(store, id, &side->head, err);
	if (status)
		return status;
	side->id = json_int(json_get(side->head, "experiment_id"), 0);
	return store_run_values(
		store, side->id, json_text(json_get(json_get(side->head, "experiment"), "metric")), &side->runs, err);
}

static const char *member(const struct side *side, const char *part, const char *key)
{
	const char *text = json_text(json_get(json_get(side->head, part), key));
	return text ? text : "";
}

/* What must be the same on both sides; the sets of launches must not. */
static enum status check_sides(const struct side *old, const struct side *new, struct err *err)
{
	static const struct {
		const char *part, *key, *what;
	} facts[] = {{"machine", "hash", "machine"}, {"model", "hash", "model"}, {"experiment", "metric", "metric"}};
	if (old->id == new->id)
		return err_set(err, STATUS_INPUT, "experiment %lld is on both sides: it would be compared with itself",
			(long long)old->id);
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		if (!text_equal(member(old, facts[i].part, facts[i].key), member(new, facts[i].part, facts[i].key)))
			return err_set(err, STATUS_INPUT, "no baseline: experiments %lld and %lld have not the same %s",
				(long long)old->id, (long long)new->id, facts[i].what);
	return STATUS_OK;
}

static bool is_same(const struct json *a, const struct json *b)
{
	return json_same(json_get(a, "config_hash"), json_get(b, "config_hash")) &&
		json_same(json_get(a, "workload_hash"), json_get(b, "workload_hash"));
}

/* The launches of one side with one setting and load. */
struct launches {
	double *logs; /* of their means, see metric_mean_log */
	size_t count, zeros;
	double log_half; /* of the smallest half request */
};

/* Fills out with the launches that have the setting and load of `like`. */
static void collect_launches(
	const struct json *runs, const struct json *like, const struct metric_spec *metric, struct launches *out)
{
	const struct json *last = NULL;
	struct metric_mean mean = {0};
	double requests = 0, seconds = 0;
	*out = (struct launches){.logs = mem_calloc(json_count(runs) + 1, sizeof *out->logs), .log_half = NAN};
	for (size_t i = 0; i < json_count(runs); i++) {
		const struct json *run = json_at(runs, i);
		if (!is_same(run, like))
			continue;
		if (!last || !json_same(json_get(last, "launch_id"), json_get(run, "launch_id"))) {
			mean = (struct metric_mean){0};
			requests = seconds = 0;
			out->count++;
		}
		metric_mean_add(&mean, metric, json_number(json_get(run, "value"), NAN));
		requests += json_number(json_get(run, "requests"), 0);
		seconds += json_number(json_get(run, "seconds"), 0);
		out->logs[out->count - 1] = metric_mean_log(&mean, metric);
		out->log_half = fmin(out->log_half, metric_log_half(metric, requests, seconds));
		last = run;
	}
	for (size_t i = 0; i < out->count; i++)
		out->zeros += isinf(out->logs[i]) != 0;
}

/* Puts log_half in the place of zeros; returns the mean of what the side gave, 0 when that was 0 throughout. */
static double settle_zeros(struct launches *launches, double log_half)
{
	double mean = 0;
	for (size_t i = 0; i < launches->count; i++) {
		launches->logs[i] = isinf(launches->logs[i]) ? log_half : launches->logs[i];
		mean += launches->logs[i] / (double)launches->count;
	}
	return launches->zeros == launches->count ? 0 : exp(mean);
}

static double to_percent(double log_difference)
{
	return 100 * expm1(log_difference);
}

/* Zero against zero is no effect; against a zero that was there before nothing is a percentage (harness/README.md). */
static void set_effect(struct json *row, const struct stats_difference *difference, bool from_zero, bool to_zero)
{
	double half = stats_student_quantile(1 - LEVEL / 2, difference->df) * difference->std_error;
	double effect = to_percent(difference->difference), low = to_percent(difference->difference - half),
	       high = to_percent(difference->difference + half);
	if (from_zero && to_zero)
		effect = low = high = 0;
	else if (from_zero)
		effect = low = high = NAN;
	else if (to_zero)
		effect = low = -100;
	json_set(row, "effect_pct", json_new_number(effect));
	json_set(row, "ci_low_pct", json_new_number(low));
	json_set(row, "ci_high_pct", json_new_number(high));
	json_set(row, "p", json_new_number(from_zero && to_zero ? 1 : difference->p));
}

static struct json *compare_setting(const struct side *old, const struct side *new, const struct json *like)
{
	const struct metric_spec *metric = metric_by_name(member(old, "experiment", "metric"));
	struct launches a, b;
	struct json *row = NULL;
	collect_launches(old->runs, like, metric, &a);
	collect_launches(new->runs, like, metric, &b);
	if (a.count && b.count) {
		double log_half = fmin(a.log_half, b.log_half);
		double from = settle_zeros(&a, log_half), to = settle_zeros(&b, log_half);
		struct stats_difference difference = stats_welch(a.logs, a.count, b.logs, b.count);
		row = json_new_object();
		json_set(row, "setting", json_clone(json_get(like, "setting")));
		json_set(row, "workload", json_clone(json_get(like, "workload")));
		json_set(row, "old", json_new_number(from));
		json_set(row, "new", json_new_number(to));
		set_effect(row, &difference, from == 0, to == 0);
		json_set(row, "old_launches", json_new_integer((int64_t)a.count));
		json_set(row, "new_launches", json_new_integer((int64_t)b.count));
	}
	mem_free(a.logs);
	mem_free(b.logs);
	return row;
}

/* A row for every setting and load that both sides measured, in the order of the old side. */
static struct json *compare_all(const struct side *old, const struct side *new)
{
	struct json *rows = json_new_array();
	for (size_t i = 0; i < json_count(old->runs); i++) {
		const struct json *like = json_at(old->runs, i);
		bool seen = false;
		for (size_t k = 0; k < i && !seen; k++)
			seen = is_same(json_at(old->runs, k), like);
		struct json *row = seen ? NULL : compare_setting(old, new, like);
		if (row)
			json_append(rows, row);
	}
	return rows;
}

static double number_of(const struct json *row, const char *key)
{
	return json_number(json_get(row, key), NAN);
}

static void say_rows(const struct json *rows, const struct side *old, const struct side *new, struct text *out)
{
	text_printf(out, "experiment %lld against %lld, %s:\n", (long long)new->id, (long long)old->id,
		member(old, "experiment", "metric"));
	for (size_t i = 0; i < json_count(rows); i++) {
		const struct json *row = json_at(rows, i);
		double low = number_of(row, "ci_low_pct"), high = number_of(row, "ci_high_pct");
		text_printf(out, "  %s · %s: %.4g to %.4g, ", json_text(json_get(row, "setting")),
			json_text(json_get(row, "workload")), number_of(row, "old"), number_of(row, "new"));
		if (number_of(row, "old") == 0 && number_of(row, "new") > 0) {
			text_append_str(out, "from 0, of which nothing is a percentage\n");
			continue;
		}
		format_signed(out, number_of(row, "effect_pct"), 1);
		if (isnan(low)) {
			text_append_str(out, " %: too few launches to judge\n");
			continue;
		}
		text_append_str(out, " % [");
		format_signed(out, low, 1);
		text_append_str(out, ", ");
		format_signed(out, high, 1);
		text_append_str(out, low > 0 || high < 0 ? "]\n" : "]: could not tell\n");
	}
	text_append_str(
		out, "These launches were not interleaved: a change of the machine in between is part of the difference.\n");
}

static enum status compare(struct store *store, const long long ids[2], bool as_json, struct err *err)
{
	struct side old = {0}, new = {0};
	struct json *rows = NULL;
	struct text text = {0};
	enum status status = read_side(store, ids[0], &old, err);
	if (!status)
		status = read_side(store, ids[1], &new, err);
	if (!status)
		status = check_sides(&old, &new, err);
	if (!status) {
		rows = compare_all(&old, &new);
		if (!json_count(rows))
			status = err_set(err, STATUS_INPUT,
				"no baseline: experiments %lld and %lld have no setting in common that was measured under the same "
				"load",
				(long long)old.id, (long long)new.id);
	}
	if (!status && as_json) {
		status = report_print_json(rows, err);
	} else if (!status) {
		say_rows(rows, &old, &new, &text);
		status = report_print(&text, err);
	}
	text_release(&text);
	json_free(rows);
	struct side *sides[] = {&old, &new};
	for (int i = 0; i < 2; i++) {
		json_free(sides[i]->head);
		json_free(sides[i]->runs);
	}
	return status;
}

enum status cmd_compare(int argc, char **argv, struct err *err)
{
	const char *db = "results.db", *words[3];
	bool as_json = false, help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database (default results.db)."},
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL, "Print the rows as JSON."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	long long ids[2] = {0};
	struct store *store = NULL;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 3, &n_words, err);
	if (!status && help)
		return cmd_print_help(compare_help, options, n_options, "", err);
	if (!status && (n_words != 2 || !text_to_i64(words[0], &ids[0]) || !text_to_i64(words[1], &ids[1])))
		status = err_set(err, STATUS_INPUT,
			"compare takes the numbers of two experiments, the older first (see verdict compare --help)");
	if (!status)
		status = cmd_require_database(db, err);
	if (!status)
		status = store_open_to_read(db, &store, err);
	if (!status)
		status = compare(store, ids, as_json, err);
	store_close(store);
	return status;
}
