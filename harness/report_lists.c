/* History tables, and everything about one experiment. See report.h. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "harness/effective.h"
#include "harness/report_format.h"
#include "harness/target.h"

#define LOG_LINES_SHOWN 12

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

/* --- history -------------------------------------------------------------------------------------------------------- */

static void append_setting(struct text *out, const struct json *row)
{
	const char *knob = text_of(row, "knob");
	const struct json *value = json_get(row, "value");
	text_append_str(out, knob);
	if (json_kind_of(value) == JSON_KIND_NULL)
		return;
	text_append_char(out, '=');
	target_value_text(value, out);
}

/* One line of the table, cell by cell; the same cells are measured first and printed then. */
enum { CELL_TIME, CELL_EXPERIMENT, CELL_SETTING, CELL_WORKLOAD, CELL_EFFECT, CELL_COUNT };

static void fill_cells(const struct json *row, struct text cells[CELL_COUNT])
{
	double effect = number_of(row, "effect_pct");
	for (int i = 0; i < CELL_COUNT; i++)
		text_clear(&cells[i]);
	const char *time = text_of(row, "time_utc");
	if (strlen(time) >= 16)
		text_printf(&cells[CELL_TIME], "%.10s %.5s", time, time + 11);
	text_append_str(&cells[CELL_EXPERIMENT], text_of(row, "experiment"));
	append_setting(&cells[CELL_SETTING], row);
	text_append_str(&cells[CELL_WORKLOAD], text_of(row, "workload"));
	if (!isnan(effect)) {
		format_signed(&cells[CELL_EFFECT], effect, 1);
		text_append_str(&cells[CELL_EFFECT], " %");
	}
}

void report_history(const struct json *rows, struct report_style style, struct text *out)
{
	static const char *const titles[CELL_COUNT] = {"time (UTC)", "experiment", "setting", "workload", "effect"};
	struct text cells[CELL_COUNT] = {{0}};
	int columns[CELL_COUNT];
	if (!json_count(rows)) {
		text_append_str(out, "no verdicts\n");
		return;
	}
	for (int i = 0; i < CELL_COUNT; i++)
		columns[i] = (int)format_columns(titles[i]);
	for (size_t r = 0; r < json_count(rows); r++) {
		fill_cells(json_at(rows, r), cells);
		for (int i = 0; i < CELL_COUNT; i++)
			if ((int)format_columns(text_str(&cells[i])) > columns[i])
				columns[i] = (int)format_columns(text_str(&cells[i]));
	}
	text_append_str(out, format_dim(style));
	for (int i = 0; i < CELL_COUNT; i++) {
		format_padded(out, titles[i], i == CELL_EFFECT ? -columns[i] : columns[i]);
		text_append_str(out, "  ");
	}
	text_printf(out, "    id  verdict%s\n", format_plain(style));
	for (size_t r = 0; r < json_count(rows); r++) {
		const struct json *row = json_at(rows, r);
		const char *verdict = text_of(row, "verdict"), *reason = text_of(row, "reason");
		fill_cells(row, cells);
		for (int i = 0; i < CELL_COUNT; i++) {
			format_padded(out, text_str(&cells[i]), i == CELL_EFFECT ? -columns[i] : columns[i]);
			text_append_str(out, "  ");
		}
		text_printf(out, "%6lld  %s%s%s%s", (long long)int_of(row, "evidence_id"), format_verdict_colour(verdict, style),
			verdict, format_plain(style), reason[0] ? ": " : "");
		format_clipped(out, reason, 60);
		text_append_char(out, '\n');
	}
	for (int i = 0; i < CELL_COUNT; i++)
		text_release(&cells[i]);
}

/* --- details -------------------------------------------------------------------------------------------------------- */

static void append_fact(struct text *out, const char *name, const char *value)
{
	if (!value[0])
		return;
	format_padded(out, name, 12);
	text_printf(out, "%s\n", value);
}

static void append_time(struct text *out, const char *name, const struct json *time_ns)
{
	char time[CLOCK_UTC_BYTES];
	if (json_kind_of(time_ns) != JSON_KIND_INTEGER)
		return;
	clock_format_utc(time, json_int(time_ns, 0));
	append_fact(out, name, time);
}

static void append_facts(struct text *out, const struct json *shown)
{
	const struct json *experiment = json_get(shown, "experiment"), *build = json_get(shown, "build"),
			  *model = json_get(shown, "model");
	struct text text = {0};
	append_fact(out, "experiment", text_of(experiment, "name"));
	if (int_of(experiment, "quick") == 1)
		append_fact(out, "", "quick run: a first look, not a measurement to quote");
	append_fact(out, "hypothesis", text_of(experiment, "hypothesis"));
	append_time(out, "started", json_get(experiment, "started_utc_ns"));
	append_time(out, "finished", json_get(experiment, "finished_utc_ns"));
	append_fact(out, "machine", text_of(json_get(shown, "machine"), "name"));
	text_printf(&text, "%s %s (%.12s)", text_of(build, "program"), text_of(build, "version"), text_of(build, "hash"));
	append_fact(out, "engine", text_str(&text));
	text_clear(&text);
	text_printf(&text, "%s (%.12s)", text_of(model, "name"), text_of(model, "hash"));
	append_fact(out, "model", text_str(&text));
	append_fact(out, "metric", text_of(experiment, "metric"));
	text_release(&text);
}

static const struct json *launch_of_arm(const struct json *shown, int64_t arm)
{
	const struct json *launches = json_get(shown, "launches");
	for (size_t i = 0; i < json_count(launches); i++)
		if (int_of(json_at(launches, i), "arm") == arm)
			return json_at(launches, i);
	return NULL;
}

/* Words with spaces or nothing in them are quoted for the reader; nothing ever runs this line. */
static void append_command(struct text *out, const struct json *command)
{
	for (size_t i = 0; i < json_count(command); i++) {
		const char *word = json_text(json_at(command, i));
		bool quoted = !word || !*word || strpbrk(word, " \t\n'\"\\$`") != NULL;
		text_printf(out, "%s%s%s%s", i ? " " : "", quoted ? "'" : "", word ? word : "", quoted ? "'" : "");
	}
}

static void append_arms(struct text *out, const struct json *shown)
{
	const struct json *arms = json_get(shown, "arms");
	text_append_str(out, "\ncommands\n");
	for (size_t i = 0; i < json_count(arms); i++) {
		const struct json *arm = json_at(arms, i);
		text_printf(out, "  %s\n    ", text_of(arm, "name"));
		append_command(out, json_get(launch_of_arm(shown, int_of(arm, "arm")), "command"));
		text_append_char(out, '\n');
	}
}

static const char *arm_name(const struct json *shown, int64_t arm)
{
	const struct json *arms = json_get(shown, "arms");
	for (size_t i = 0; i < json_count(arms); i++)
		if (int_of(json_at(arms, i), "arm") == arm)
			return text_of(json_at(arms, i), "name");
	return "?";
}

/* Settings that differ from the baseline's in effect, though the arm did not ask for it: the cause may be one of them. */
static void append_unasked(struct text *out, const struct json *shown)
{
	struct json *differences = effective_unasked(shown);
	for (size_t i = 0; i < json_count(differences); i++) {
		const struct json *difference = json_at(differences, i);
		text_printf(out, "%s  block %lld  %s: %s ", i ? "" : "\nin effect, though nobody asked for it\n",
			(long long)int_of(difference, "block") + 1, text_of(difference, "name"), text_of(difference, "setting"));
		target_value_text(json_get(difference, "baseline"), out);
		text_append_str(out, " → ");
		target_value_text(json_get(difference, "value"), out);
		text_append_char(out, '\n');
	}
	json_free(differences);
}

static void append_runs(struct text *out, const struct json *launch, const char *metric)
{
	const struct json *runs = json_get(launch, "runs");
	for (size_t i = 0; i < json_count(runs); i++) {
		const struct json *run = json_at(runs, i);
		double value = number_of(run, metric);
		if (int_of(run, "warmup") == 1)
			continue;
		if (int_of(run, "voided") == 1)
			text_printf(out, " void(%s)", text_of(run, "void_reason"));
		else if (isnan(value))
			text_append_str(out, " –");
		else
			text_printf(out, " %.1f", value);
	}
}

/* The last lines of a log, each behind a margin. */
static void append_log(struct text *out, const char *log)
{
	size_t len = strlen(log);
	while (len && log[len - 1] == '\n')
		len--;
	size_t begin = len;
	for (int lines = 0; begin && lines<LOG_LINES_SHOWN; begin -= begin> 0) {
		while (begin && log[begin - 1] != '\n')
			begin--;
		lines++;
		if (lines == LOG_LINES_SHOWN)
			break;
	}
	while (begin < len) {
		const char *end = memchr(log + begin, '\n', len - begin);
		size_t line = end ? (size_t)(end - log) - begin : len - begin;
		text_append_str(out, "      | ");
		text_append(out, log + begin, line);
		text_append_char(out, '\n');
		begin += line + 1;
	}
}

static void append_launches(struct text *out, const struct json *shown, struct report_style style)
{
	const struct json *launches = json_get(shown, "launches");
	const char *metric = text_of(json_get(shown, "experiment"), "metric");
	text_printf(out, "\nlaunches (%s of each measured run)\n", metric);
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i);
		bool failed = !text_equal(text_of(launch, "failure"), "none");
		text_printf(out, "  block %lld  ", (long long)int_of(launch, "block") + 1);
		format_padded(out, arm_name(shown, int_of(launch, "arm")), 28);
		if (int_of(launch, "attempt") > 0)
			text_printf(out, " (attempt %lld)", (long long)int_of(launch, "attempt") + 1);
		text_append_str(out, " ");
		format_seconds(out, number_of(launch, "total_ns") / 1e9);
		append_runs(out, launch, metric);
		if (failed)
			text_printf(out, "  %sfailed: %s%s", format_verdict_colour("failed", style),
				text_of(launch, "reason")[0] ? text_of(launch, "reason") : text_of(launch, "failure"),
				format_plain(style));
		text_append_char(out, '\n');
		if (failed)
			append_log(out, text_of(launch, "log_tail"));
	}
}

void report_details(const struct json *shown, struct report_style style, struct text *out)
{
	append_facts(out, shown);
	text_append_char(out, '\n');
	report_headline(shown, out);
	text_append_str(out, "\n\n");
	report_table(shown, style, out);
	append_arms(out, shown);
	append_unasked(out, shown);
	append_launches(out, shown, style);
}
