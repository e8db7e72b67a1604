/* The results database: SQLite (through harness/sql), WAL, STRICT tables, foreign keys, migrations by user_version. Every write is
 * one short transaction; everything is saved after each launch. Several processes may read and write at once. */
#ifndef HARNESS_STORE_H
#define HARNESS_STORE_H

#include "harness/experiment.h"
#include "harness/result.h"
#include "harness/verdict.h"

struct store;

#define STORE_BUSY_MS 30000 /* longest wait for another writer, whose transactions take milliseconds; guess */

/* Opens or creates, migrates each version in one transaction. A newer schema than ours, and any other database, is refused. */
enum status store_open(const char *path, struct store **out, struct err *err);

/* For questions, whose answers are all of one moment, whatever is measured meanwhile: as store_open where the database and its
 * folder can be written; elsewhere it is only read (see sql_open_to_read), and has to be of our version. */
enum status store_open_to_read(const char *path, struct store **out, struct err *err);
void store_close(struct store *store);

/* Closes a database, and removes its files when nothing has been put into it: for a command that made it and then failed. */
void store_close_unless_used(struct store *store);

/* Who measured: all text may be ''. Hashes are content hashes. */
struct machine_facts {
	char hash[65];
	struct json *facts; /* host, cpu, cores, memory, kernel, gpus, drivers, … */
};
struct build_facts {
	char hash[65];
	const char *program, *version; /* of the engine under test */
};

/* What an experiment measures, and where. */
struct store_subject {
	const struct machine_facts *machine;
	const struct build_facts *build;
	const char *model_name, *model_hash; /* NULL: unknown */
};

/* Starts a new experiment record, or with resume finds the newest one measured here with the same experiment, machine, build and
 * model hashes; *resumed says which. A record that is already finished is resumed too: there is nothing left to launch then. */
enum status store_begin_experiment(struct store *store, const struct experiment *experiment, const struct store_subject *subject,
	bool resume, int64_t *experiment_id, bool *resumed, struct err *err);

/* Makes this program the one that measures the experiment, until it claims another or closes the store. STATUS_UNAVAILABLE: another
 * one does; two would disturb each other's launches and save the same ones. Seen on one machine only. */
enum status store_claim(struct store *store, int64_t experiment_id, struct err *err);

/* Saves a launch with all runs, requests and events in one transaction. (experiment, block, arm, attempt) is unique. A launch that
 * cannot be saved (STATUS_UNAVAILABLE: the database is locked for too long, the disk is full) is kept in a file in DB.unsaved/, and
 * saved when the database is opened next. */
enum status store_save_launch(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct launch_result *launch, struct err *err);

/* What is already there, for resume and for verdicts: one cell per block and arm, from its last attempt. */
struct launch_cells {
	struct launch_cell *items;
	size_t count;
};
enum status store_load_cells(
	struct store *store, int64_t experiment_id, const struct experiment *experiment, struct launch_cells *out, struct err *err);
void launch_cells_release(struct launch_cells *cells);

/* A/A effects (percent) known on this machine and workload at this block count, for the minimum effect; newest first. They are
 * those of the same metric that were known when experiment_id began: an experiment must not move its own bar, nor have it moved
 * while it runs. */
enum status store_aa_effects(struct store *store, int64_t experiment_id, const char *machine_hash, const char *workload_hash,
	int blocks, double *effects, size_t effects_max, size_t *count, struct err *err);

/* Standard deviation of one launch's ln(metric) around what it should be: from the difference of baseline and twin in the same
 * block of experiments that began before this one, under the same load and metric on this machine. NaN below STORE_TWIN_PAIRS_MIN
 * such pairs. */
#define STORE_TWIN_PAIRS_MIN 10
enum status store_launch_sd(struct store *store, int64_t experiment_id, const char *machine_hash,
	const struct experiment *experiment, int workload, double *sd, struct err *err);

/* Puts the verdicts of an experiment (one row per arm and workload; a row that exists keeps its id, and its time when nothing
 * changed) and marks the experiment finished when final. */
enum status store_save_verdicts(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct verdict_row *rows, size_t n_rows, bool final, struct err *err);

/* Rows as the public contract names them (harness/README.md), newest first. Caller frees. filters may be NULL; model and machine
 * match a part of the name, the others the whole. limit 0: all. */
struct history_filters {
	const char *experiment, *knob, *value, *model, *machine, *verdict;
	int64_t experiment_id;
	long long limit;
};
enum status store_history(struct store *store, const struct history_filters *filters, struct json **out, struct err *err);

/* What was measured again and again: a row for each experiment, setting and load, [{"series", "experiment_id", "experiment",
 * "time_utc_ns", "time_utc", "machine", "model", "workload", "metric", "setting", "value"}]. Rows of one series (same machine,
 * model, load, metric and configuration, whatever the engine's build) stand together, oldest first. Of filters only experiment,
 * model and machine count. Quick runs and twins are left out. Caller frees. */
enum status store_series(struct store *store, const struct history_filters *filters, struct json **out, struct err *err);

/* The measured runs of one experiment's good launches, in terms of its metric: [{"config_hash", "workload_hash", "setting",
 * "workload", "launch_id", "value", "seconds", "requests"}], launch by launch; twins count as the baseline that they are. metric: a
 * name of metric.h. Caller frees. */
enum status store_run_values(struct store *store, int64_t experiment_id, const char *metric, struct json **out, struct err *err);

/* Everything about one experiment, or about one verdict with the launches behind it: the record (see store_rows.h),
 * "experiment_id", "evidence_id" and "rows" as store_history gives them. id: of an experiment or a verdict. STATUS_NOT_FOUND.
 * Caller frees. */
enum status store_show(struct store *store, int64_t id, struct json **out, struct err *err);

/* The head of a record: experiment, machine, build, model, arms, workloads and extensions, with "experiment_id". id: of an
 * experiment or one of its verdicts. STATUS_NOT_FOUND. Caller frees. */
enum status store_head(struct store *store, int64_t id, struct json **out, struct err *err);

/* Blocks that were added to a finished experiment: it had from_blocks, and is to have to_blocks. */
struct store_extension {
	int from_blocks, to_blocks;
};

/* Notes an extension, and that the experiment is not finished any more. STATUS_INPUT: it is not finished yet, or came from
 * elsewhere. */
enum status store_extend(struct store *store, int64_t experiment_id, struct store_extension extension, struct err *err);

/* The extensions of an experiment, oldest first. */
enum status store_extensions(
	struct store *store, int64_t experiment_id, struct store_extension *out, size_t out_max, size_t *count, struct err *err);

/* Settings that could not be loaded for want of memory in experiments that began before this one, on the same machine, with the
 * same model, build, command and environment: [{"experiment_id", "settings": {…}, "reason"}]. Caller frees. */
enum status store_oom_memory(struct store *store, int64_t experiment_id, struct json **out, struct err *err);

/* The winner that fresh blocks are to confirm, one for each experiment. */
struct store_confirmation {
	int arm, from_block, blocks;
};
enum status store_confirm(struct store *store, int64_t experiment_id, struct store_confirmation confirmation, struct err *err);
enum status store_confirmation(
	struct store *store, int64_t experiment_id, struct store_confirmation *out, bool *found, struct err *err);

/* The whole record of an experiment, to be imported elsewhere. Caller frees. */
enum status store_export(struct store *store, int64_t experiment_id, struct json **out, struct err *err);

/* Several imports as one: between the two nothing is seen by others, and when any fails nothing of any stays. */
enum status store_begin_import(struct store *store, struct err *err);
enum status store_end_import(struct store *store, enum status status, struct err *err);

/* Adds a record, all or nothing. *added is false when the database has it already. STATUS_INPUT: it is not a sound record (see
 * record_check.h). */
enum status store_import(struct store *store, const struct json *record, bool *added, struct err *err);

/* Adds measurements of other benchmarks (rows of foreign_read), all or nothing; those that are known already are left as they are.
 * No verdict rests on them. source: name of their file. */
enum status store_import_measurements(
	struct store *store, const struct json *rows, const char *source, size_t *added, size_t *known, struct err *err);

/* Seconds that the saved launches of an experiment took, whoever made them; 0 when there are none. */
enum status store_spent_seconds(struct store *store, int64_t experiment_id, double *seconds, struct err *err);

/* Mean seconds of the saved launches of experiments with this hash, or NaN: what a plan is estimated from. */
enum status store_launch_seconds(struct store *store, const char *experiment_hash, double *seconds, struct err *err);

#endif
