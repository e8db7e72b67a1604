/* A whole experiment: blocks of launches in random order, each saved as soon as it ends, with retries, looks and an early end. What
 * is to be done next follows from what is in the store alone, so a run that was killed goes on as if nothing had happened. */
#ifndef HARNESS_RUN_LOOP_H
#define HARNESS_RUN_LOOP_H

#include "harness/experiment.h"
#include "harness/interrupt.h"
#include "harness/measure.h"
#include "harness/progress.h"
#include "harness/store.h"
#include "harness/verdict.h"

#define RUN_LOOP_VOID_RETRIES 2 /* guess: a machine that is disturbed three times in a row is not quiet enough to measure on */

struct run_loop {
	const struct experiment *experiment;
	struct store *store;
	int64_t experiment_id;
	const char *machine_hash;
	struct measure *measure;
	struct progress *progress;
	const struct json *oom_memory; /* set by run_loop_run: see prune_add */
	/* What run_loop_run leaves: the candidate that helped most by the search (see looks_winner), 0 when none did; launches made
	 * for the experiment so far, repetitions included, and the seconds that this took, in earlier processes too. */
	int winner, launches;
	double spent_s;
};

/* Runs what is missing and saves verdicts at every look. Returns STATUS_OK when the experiment is complete, however many candidates
 * failed. STATUS_ANSWER_BAD: a baseline launch failed for good, so nothing can be compared; verdicts are saved all the same.
 * STATUS_UNAVAILABLE: the machine did not come back after a launch. STATUS_INTERRUPTED: a signal; all launches that ended are
 * saved. */
enum status run_loop_run(struct run_loop *loop, struct err *err);

/* Launches that are through, of those planned up to the first look: for the headline. Pure. */
int run_loop_done(const struct experiment *experiment, const struct launch_cells *cells);

/* Whether a cell's launch is to be repeated, by its failure and attempt and the protocol's retries. Pure. */
bool run_loop_wants_retry(const struct protocol *protocol, const struct launch_cell *cell);

/* Marks arms that need no launch in block: those that failed in an earlier block in a way that will not change (oom_load, inactive,
 * launch_error), and those that verdict_screen drops. launch_sd as in struct verdict_input; dropped must hold experiment->n_arms.
 * Pure. */
enum status run_loop_dropped(const struct experiment *experiment, const struct launch_cells *cells, int block,
	const double *launch_sd, bool *dropped, struct err *err);

#endif
