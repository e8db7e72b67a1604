/* What is measured as JSON rows whose members are named like the columns of the database. Pure. Private to store*.c.
 *
 * A record is a whole experiment in this form, and what `verdict export` writes and `verdict import` reads:
 *   {"schema": "verdict-record/1", "experiment": {…}, "machine": {…}, "build": {…}, "model": {…}, "arms": […], "workloads": […],
 *    "launches": [{…, "runs": [{…, "requests": […]}]}], "extensions": […], "confirmation": […], "verdicts": […]} */
#ifndef HARNESS_STORE_ROWS_H
#define HARNESS_STORE_ROWS_H

#include "harness/store.h"

#define RECORD_SCHEMA "verdict-record/1"

/* Columns of each table that a row may carry, NULL-terminated; ids and foreign keys are set by the store. */
extern const char *const rows_experiment[],
	*const rows_launch[], *const rows_run[], *const rows_request[], *const rows_verdict[], *const rows_extension[],
												       *const rows_confirmation[];

/* Columns whose text is JSON. */
extern const char *const rows_json_columns[];

/* Head of a record: everything but launches and verdicts. started_utc_ns: now. Caller frees. */
struct json *record_head(const struct experiment *experiment, const struct store_subject *subject, int64_t started_utc_ns);

struct json *launch_row(const struct experiment *experiment, const struct launch_result *launch); /* with "runs" */
struct json *verdict_row_json(const struct verdict_row *row, int64_t time_utc_ns);

#endif
