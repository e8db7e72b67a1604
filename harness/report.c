/* The answer in words and the table under it. See report.h. */
#include "harness/report.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "harness/metric.h"
#include "harness/report_format.h"

#define REASON_COLUMNS_MAX 76 /* a table line then fits 150 columns; the whole reason is in `show` */

struct report_style report_style_for(int fd, char *const *environment)
{
	struct report_style style = {isatty(fd) == 1};
	for (; environment && *environment; environment++)
		if ((text_starts_with(*environment, "NO_COLOR=") && (*environment)[9]) || text_equal(*environment, "TERM=dumb"))
			style.colour = false;
	return style;
}

enum status report_print(const struct text *text, struct err *err)
{
	return file_write_all(STDOUT_FILENO, text_str(text), text->len, err);
}

enum status report_print_json(const struct json *value, struct err *err)
{
	struct text text = {0};
	json_write(value, JSON_STYLE_PRETTY, &text);
	text_append_char(&text, '\n');
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

/* --- reading a record ----------------------------------------------------------------------------------------------- */

static const char *text_of(const struct json *object, const char *key)
{
	const char *text = json_text(json_get(object, key));
	return text ? text : "";
}

static double number_of(const struct json *object, const char *key)
{
	return json_number(json_get(object, key), NAN);
}

static int64_t int_of(const struct json *object, const char *key)
{
	return json_int(json_get(object, key), -1);
}

static const struct json *arm_of(const struct json *shown, int64_t arm)
{
	const struct json *arms = json_get(shown, "arms");
	for (size_t i = 0; i < json_count(arms); i++)
		if (int_of(json_at(arms, i), "arm") == arm)
			return json_at(arms, i);
	return NULL;
}

static bool is_twin(const struct json *shown, const struct json *verdict)
{
	return text_equal(text_of(arm_of(shown, int_of(verdict, "arm")), "kind"), "aa_twin");
}

static const char *setting_of(const struct json *shown, const struct json *verdict)
{
	return text_of(arm_of(shown, int_of(verdict, "arm")), "name");
}

static const char *metric_of(const struct json *shown)
{
	return text_of(json_get(shown, "experiment"), "metric");
}

static bool reason_starts(const struct json *verdict, const char *prefix)
{
	return text_starts_with(text_of(verdict, "reason"), prefix);
}

/* --- headline ------------------------------------------------------------------------------------------------------- */

/* Sentences come in the order helped, hurt, failed, neutral; settings of which the same is to be said share one. */
enum rank { RANK_HELPED, RANK_HURT, RANK_FAILED, RANK_NEUTRAL, RANK_COUNT };

static enum rank rank_of(const struct json *verdict)
{
	const char *word = text_of(verdict, "verdict");
	return text_equal(word, "helped")    ? RANK_HELPED
		: text_equal(word, "hurt")   ? RANK_HURT
		: text_equal(word, "failed") ? RANK_FAILED
					     : RANK_NEUTRAL;
}

static void say_helped(const struct json *shown, const struct json *verdict, struct text *out)
{
	const char *metric = metric_of(shown);
	if (isnan(number_of(verdict, "effect_pct"))) { /* of 0 nothing is a multiple */
		text_printf(out, "helped: from 0 to %.4g %s", number_of(verdict, "arm_metric"), metric);
		return;
	}
	text_printf(out, "helped: %.2f× the baseline", 1 + number_of(verdict, "effect_pct") / 100);
	if (!text_equal(metric, "output_tps"))
		text_printf(out, "'s %s", metric);
}

static void say_failed(const struct json *verdict, struct text *out)
{
	const char *reason = text_of(verdict, "reason");
	if (reason_starts(verdict, "oom_load") || reason_starts(verdict, "launch_error") || reason_starts(verdict, "ready_timeout"))
		text_append_str(out, "cannot start");
	else if (reason_starts(verdict, "wrong_output"))
		text_append_str(out, "gives other text than the baseline");
	else if (reason_starts(verdict, "inactive"))
		text_append_str(out, "did not take effect");
	else
		text_printf(out, "failed (%.*s)", (int)strcspn(reason, ": "), reason);
}

static void say_neutral(const struct json *verdict, struct text *out)
{
	if (text_equal(text_of(verdict, "verdict"), "void"))
		text_append_str(out, "not measured, the machine was disturbed");
	else if (reason_starts(verdict, "equivalent"))
		text_printf(out, "no difference (within %g %%)", number_of(verdict, "min_effect_pct"));
	else if (reason_starts(verdict, "below_min_effect"))
		text_printf(out, "a difference, but a smaller one than %g %%", number_of(verdict, "min_effect_pct"));
	else
		text_append_str(out, "could not tell");
}

static void say(const struct json *shown, const struct json *verdict, enum rank rank, struct text *out)
{
	if (rank == RANK_HELPED)
		say_helped(shown, verdict, out);
	else if (rank == RANK_HURT)
		text_append_str(out, "hurt");
	else if (rank == RANK_FAILED)
		say_failed(verdict, out);
	else
		say_neutral(verdict, out);
}

/* What came from 0 is above every ratio. */
static double strength_of(const struct json *verdict)
{
	double effect = fabs(number_of(verdict, "effect_pct"));
	return isnan(effect) ? INFINITY : effect;
}

/* The strongest first among those that helped, the others in plan order. */
static const struct json *next_to_say(
	const struct json *shown, const struct json *verdicts, int64_t workload, enum rank rank, bool *said)
{
	size_t best = json_count(verdicts);
	for (size_t i = 0; i < json_count(verdicts); i++) {
		const struct json *verdict = json_at(verdicts, i);
		if (said[i] || is_twin(shown, verdict) || int_of(verdict, "workload") != workload || rank_of(verdict) != rank)
			continue;
		bool first = best == json_count(verdicts);
		if (first || (rank == RANK_HELPED && strength_of(verdict) > strength_of(json_at(verdicts, best))))
			best = i;
	}
	if (best == json_count(verdicts))
		return NULL;
	said[best] = true;
	return json_at(verdicts, best);
}

/* A twin that has a verdict, or differs by the minimum effect, shows that the machine was not quiet enough. */
static void say_noise(const struct json *shown, const struct json *verdicts, struct text *out)
{
	for (size_t i = 0; i < json_count(verdicts); i++) {
		const struct json *verdict = json_at(verdicts, i);
		double effect = number_of(verdict, "effect_pct");
		bool differs = rank_of(verdict) < RANK_FAILED || fabs(effect) >= number_of(verdict, "min_effect_pct");
		if (!is_twin(shown, verdict) || !differs || isnan(effect))
			continue;
		text_append_str(out, " Noisy: the baseline differs from its own twin by ");
		format_signed(out, effect, 1);
		text_append_str(out, " %, so no effect of this size can be trusted.");
		return;
	}
}

/* Attempts stand in order, so a launch counts when no later one of the same arm and block follows. */
static bool is_last_attempt(const struct json *launches, size_t index)
{
	const struct json *launch = json_at(launches, index);
	for (size_t i = index + 1; i < json_count(launches); i++)
		if (int_of(json_at(launches, i), "arm") == int_of(launch, "arm") &&
			int_of(json_at(launches, i), "block") == int_of(launch, "block"))
			return false;
	return true;
}

/* Why the baseline failed, "" when it did not. */
static const char *baseline_failure(const struct json *shown)
{
	const struct json *launches = json_get(shown, "launches");
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i);
		const char *failure = text_of(launch, "failure"), *reason = text_of(launch, "reason");
		bool blameless = text_equal(failure, "none") || int_of(launch, "machine_dirty") == 1;
		if (int_of(launch, "arm") == 0 && !blameless && is_last_attempt(launches, i))
			return reason[0] ? reason : failure;
	}
	return "";
}

/* " a, b: could not tell." for all verdicts of one rank. True when there was one. */
static bool say_rank(const struct json *shown, int64_t workload, enum rank rank, bool *said, struct text *out)
{
	struct text names = {0}, phrase = {0}, next = {0};
	bool any = false;
	const char *colon = rank == RANK_NEUTRAL ? ":" : "";
	for (const struct json *verdict; (verdict = next_to_say(shown, json_get(shown, "verdicts"), workload, rank, said));
		any = true) {
		text_clear(&next);
		say(shown, verdict, rank, &next);
		if (names.len && !text_equal(text_str(&next), text_str(&phrase))) {
			text_printf(out, " %s%s %s.", text_str(&names), colon, text_str(&phrase));
			text_clear(&names);
		}
		text_printf(&names, "%s%s", names.len ? ", " : "", setting_of(shown, verdict));
		text_clear(&phrase);
		text_append_str(&phrase, text_str(&next));
	}
	if (names.len)
		text_printf(out, " %s%s %s.", text_str(&names), colon, text_str(&phrase));
	text_release(&names);
	text_release(&phrase);
	text_release(&next);
	return any;
}

void report_headline(const struct json *shown, struct text *out)
{
	const struct json *verdicts = json_get(shown, "verdicts"), *workloads = json_get(shown, "workloads");
	struct text sentence = {0};
	const char *failure = baseline_failure(shown);
	if (failure[0]) {
		text_printf(out, "The baseline failed, so nothing can be compared: %s.", failure);
		return;
	}
	bool *said = mem_calloc(json_count(verdicts) + 1, sizeof *said), helped = false;
	for (size_t w = 0; w < json_count(workloads); w++) {
		int64_t workload = int_of(json_at(workloads, w), "workload");
		if (json_count(workloads) > 1)
			text_printf(&sentence, " [%s]", text_of(json_at(workloads, w), "name"));
		for (int rank = 0; rank < RANK_COUNT; rank++) {
			bool any = say_rank(shown, workload, (enum rank)rank, said, &sentence);
			helped = helped || (any && rank == RANK_HELPED);
		}
	}
	bool first = helped || !json_count(verdicts);
	if (!first)
		text_append_str(out, "No setting was found to help.");
	say_noise(shown, verdicts, &sentence);
	text_append_str(out, text_str(&sentence) + (first && sentence.len > 0)); /* no space before the first sentence */
	mem_free(said);
	text_release(&sentence);
}

/* --- table ---------------------------------------------------------------------------------------------------------- */

/* ln of the metric's mean over the measured runs of a launch under a workload, as metric_mean_log gives it. */
static double launch_log_mean(const struct json *launch, int64_t workload, const char *metric)
{
	const struct metric_spec *spec = metric_by_name(metric);
	const struct json *runs = json_get(launch, "runs");
	struct metric_mean mean = {0};
	for (size_t i = 0; spec && i < json_count(runs); i++) {
		const struct json *run = json_at(runs, i);
		if (int_of(run, "workload") == workload && int_of(run, "warmup") == 0 && int_of(run, "voided") == 0)
			metric_mean_add(&mean, spec, number_of(run, metric));
	}
	return spec ? metric_mean_log(&mean, spec) : NAN;
}

/* Mean and percent standard deviation of the baseline over its launches; zeros among them have no part in a deviation. */
static int baseline_spread(const struct json *shown, int64_t workload, double *mean, double *sd_pct)
{
	const struct json *launches = json_get(shown, "launches");
	double sum = 0, squares = 0;
	int count = 0;
	for (size_t i = 0; i < json_count(launches); i++) {
		double y = int_of(json_at(launches, i), "arm") == 0
			? launch_log_mean(json_at(launches, i), workload, metric_of(shown))
			: NAN;
		if (isnan(y))
			continue;
		sum += y;
		squares += y * y;
		count++;
	}
	*mean = count ? exp(sum / count) : NAN;
	*sd_pct = count > 1 && isfinite(sum) ? 100 * sqrt(fmax(0, (squares - sum * sum / count) / (count - 1))) : NAN;
	return count;
}

static void append_number(struct text *out, double value)
{
	struct text number = {0};
	if (isnan(value))
		text_append_str(&number, "–");
	else if (value == 0)
		text_append_char(&number, '0');
	else
		text_printf(&number, "%.1f", value);
	format_padded(out, text_str(&number), -9);
	text_release(&number);
}

#define EFFECT_COLUMNS 26

static void append_effect(struct text *out, const struct json *verdict)
{
	struct text effect = {0}, whole = {0};
	double value = number_of(verdict, "effect_pct"), low = number_of(verdict, "ci_low_pct"),
	       high = number_of(verdict, "ci_high_pct");
	if (!isnan(value)) {
		format_signed(&effect, value, 1);
		text_append_str(&effect, " %");
		format_padded(&whole, text_str(&effect), -8);
		if (!isnan(low)) {
			text_append_str(&whole, " [");
			format_signed(&whole, low, 1);
			text_append_str(&whole, ", ");
			format_signed(&whole, high, 1);
			text_append_char(&whole, ']');
		}
	}
	format_padded(out, text_str(&whole), EFFECT_COLUMNS);
	text_release(&effect);
	text_release(&whole);
}

static void append_verdict(struct text *out, const struct json *verdict, struct report_style style)
{
	const char *word = text_of(verdict, "verdict"), *reason = text_of(verdict, "reason");
	text_printf(out, "%s%s%s", format_verdict_colour(word, style), word, format_plain(style));
	if (reason[0]) {
		text_append_str(out, ": ");
		format_clipped(out, reason, REASON_COLUMNS_MAX);
	}
	text_append_char(out, '\n');
}

static void append_line(
	const struct json *shown, const struct json *verdict, int name_columns, struct report_style style, struct text *out)
{
	text_append_str(out, "  ");
	format_padded(out, setting_of(shown, verdict), name_columns);
	append_number(out, number_of(verdict, "arm_metric"));
	text_append_str(out, "  ");
	append_effect(out, verdict);
	append_verdict(out, verdict, style);
}

static void append_baseline(const struct json *shown, int64_t workload, int name_columns, struct text *out)
{
	double mean, sd_pct;
	baseline_spread(shown, workload, &mean, &sd_pct);
	text_append_str(out, "  ");
	format_padded(out, text_of(arm_of(shown, 0), "name"), name_columns);
	append_number(out, mean);
	if (!isnan(sd_pct))
		text_printf(out, "    ±%.1f %% between launches", sd_pct);
	text_append_char(out, '\n');
}

static int longest_name(const struct json *shown)
{
	const struct json *arms = json_get(shown, "arms");
	size_t longest = strlen("setting");
	for (size_t i = 0; i < json_count(arms); i++) {
		size_t columns = format_columns(text_of(json_at(arms, i), "name"));
		longest = columns > longest ? columns : longest;
	}
	return (int)longest;
}

static void append_workload(const struct json *shown, const struct json *workload, struct report_style style, struct text *out)
{
	const struct json *verdicts = json_get(shown, "verdicts");
	int64_t index = int_of(workload, "workload");
	int columns = longest_name(shown) + 1;
	if (json_count(json_get(shown, "workloads")) > 1)
		text_printf(out, "  %s\n", text_of(workload, "name"));
	text_printf(out, "%s  ", format_dim(style));
	format_padded(out, "setting", columns);
	format_padded(out, format_unit(metric_of(shown)), -9);
	text_append_str(out, "  ");
	format_padded(out, " against baseline", EFFECT_COLUMNS);
	text_printf(out, "verdict%s\n", format_plain(style));
	append_baseline(shown, index, columns, out);
	for (int twins = 0; twins < 2; twins++) /* the twin closes the table */
		for (size_t i = 0; i < json_count(verdicts); i++)
			if (int_of(json_at(verdicts, i), "workload") == index &&
				is_twin(shown, json_at(verdicts, i)) == (twins == 1))
				append_line(shown, json_at(verdicts, i), columns, style, out);
}

void report_table(const struct json *shown, struct report_style style, struct text *out)
{
	const struct json *workloads = json_get(shown, "workloads");
	for (size_t i = 0; i < json_count(workloads); i++) {
		if (i)
			text_append_char(out, '\n');
		append_workload(shown, json_at(workloads, i), style, out);
	}
}

/* The blocks that every inconclusive setting would have enough with; 0: there is none, or it cannot be told. */
static int blocks_needed(const struct json *shown)
{
	const struct json *verdicts = json_get(shown, "verdicts");
	double most = 0;
	for (size_t i = 0; i < json_count(verdicts); i++)
		if (!is_twin(shown, json_at(verdicts, i)) && reason_starts(json_at(verdicts, i), "inconclusive: about "))
			most = fmax(most, number_of(json_at(verdicts, i), "needed_blocks"));
	return (int)ceil(most);
}

void report_experiment(const struct json *shown, const char *db, struct report_style style, struct text *out)
{
	struct text headline = {0};
	report_headline(shown, &headline);
	text_printf(out, "%s\n\n", text_str(&headline));
	text_release(&headline);
	report_table(shown, style, out);
	int needed = blocks_needed(shown);
	if (needed > 0)
		text_printf(out, "\n%sverdict more %lld --blocks %d adds what the inconclusive settings need%s\n",
			format_dim(style), (long long)int_of(shown, "experiment_id"), needed, format_plain(style));
	text_printf(out, "\n%s%s · verdict show %lld for the evidence%s%s\n", format_dim(style), db,
		(long long)int_of(shown, "experiment_id"),
		int_of(json_get(shown, "experiment"), "quick") == 1 ? " · quick run: a first look, not a measurement to quote" : "",
		format_plain(style));
}

struct json *report_run_json(const struct json *shown)
{
	struct json *document = json_new_object();
	const struct json *rows = json_get(shown, "rows");
	json_set(document, "experiment_id", json_new_integer(int_of(shown, "experiment_id")));
	json_set(document, "name", json_new_string(text_of(json_get(shown, "experiment"), "name")));
	json_set(document, "verdicts", rows ? json_clone(rows) : json_new_array());
	return document;
}
