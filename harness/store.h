/* The results database: SQLite, WAL, STRICT tables, foreign keys, migrations by user_version. The only file that knows SQLite is
 * store*.c through this header. Every write is one short transaction; everything is saved after each launch. */
#ifndef HARNESS_STORE_H
#define HARNESS_STORE_H

#include "harness/experiment.h"
#include "harness/result.h"
#include "harness/verdict.h"

struct store;

/* Opens or creates, migrates each version in one transaction. A newer schema than ours is refused. */
enum status store_open(const char *path, struct store **out, struct err *err);
void store_close(struct store *store);

/* Who measured: all text may be ''. Hashes are content hashes. */
struct machine_facts { char hash[65]; struct json *facts; /* host, cpu, cores, memory, kernel, gpus, drivers, … */ };
struct build_facts { char hash[65]; const char *program, *version; /* of the engine under test */ };

struct experiment_key { int64_t experiment_id; };

/* Starts a new experiment record, or with resume finds the newest unfinished one with the same experiment, machine, build, model hashes. *resumed says which. */
enum status store_begin_experiment(struct store *store, const struct experiment *experiment, const struct machine_facts *machine,
	const struct build_facts *build, const char *model_name, const char *model_hash, bool resume, int64_t *experiment_id, bool *resumed, struct err *err);

/* Saves a launch with all runs, requests and events in one transaction. (experiment, block, arm, attempt) is unique. */
enum status store_save_launch(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct launch_result *launch, struct err *err);

/* What is already there, for resume and for verdicts: one cell per block and arm, from its last attempt. */
struct launch_cells { struct launch_cell *items; size_t count; };
enum status store_load_cells(struct store *store, int64_t experiment_id, const struct experiment *experiment, struct launch_cells *out, struct err *err);
void launch_cells_release(struct launch_cells *cells);

/* A/A effects (percent) known on this machine and workload at this block count, for the minimum effect. */
enum status store_aa_effects(struct store *store, const char *machine_hash, const char *workload_hash, int blocks,
	double *effects, size_t effects_max, size_t *count, struct err *err);

/* Replaces the verdicts of an experiment (one row per arm and workload) and marks it finished when final. */
enum status store_save_verdicts(struct store *store, int64_t experiment_id, const struct experiment *experiment,
	const struct verdict_row *rows, size_t n_rows, bool final, struct err *err);

/* Rows as the public contract names them (see README "Rows"), newest first. Caller frees. filters may be NULL. */
struct history_filters { const char *experiment, *knob, *value, *model, *machine, *verdict; int64_t experiment_id; long long limit; };
enum status store_history(struct store *store, const struct history_filters *filters, struct json **out, struct err *err);

/* Everything about one experiment: facts, arms, launches, runs, failures with log tails, verdicts. Caller frees. */
enum status store_show(struct store *store, int64_t experiment_id, struct json **out, struct err *err);

#endif
