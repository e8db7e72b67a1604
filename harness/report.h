/* What people see: the answer in words, tables, details. Everything is made from rows and records of the store (see store_rows.h),
 * so that a table after a run and the same table a year later are one thing. Pure but for report_print. */
#ifndef HARNESS_REPORT_H
#define HARNESS_REPORT_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"

struct report_style {
	bool colour;
};

/* Colour where fd is a terminal, unless environment (NULL-terminated, as environ) has a non-empty NO_COLOR or TERM=dumb. */
struct report_style report_style_for(int fd, char *const *environment);

/* Writes text to standard output. */
enum status report_print(const struct text *text, struct err *err);

/* Prints a JSON value, indented, and a newline. */
enum status report_print_json(const struct json *value, struct err *err);

/* The answer in one line of words. shown: what store_show gives for an experiment. Says "could not tell" of what is inconclusive,
 * and never that a setting makes no difference unless it is equivalent. */
void report_headline(const struct json *shown, struct text *out);

/* One table for each workload: baseline, candidates, twin. */
void report_table(const struct json *shown, struct report_style style, struct text *out);

/* Headline, tables, and where the evidence is; what `run` ends with. db: path as the user wrote it. */
void report_experiment(const struct json *shown, const char *db, struct report_style style, struct text *out);

/* {"experiment_id", "name", "verdicts": [ROW…]}, what `run --json` ends with. Caller frees. */
struct json *report_run_json(const struct json *shown);

/* A table of rows as store_history gives them. */
void report_history(const struct json *rows, struct report_style style, struct text *out);

/* Everything about one experiment or verdict: facts, tables, arms with their commands, launches, failures with the end of their
 * log. */
void report_details(const struct json *shown, struct report_style style, struct text *out);

#endif
