/* The verdicts of an experiment as its looks gave them: an arm that a look decides is launched no more and keeps that verdict, the
 * others are judged again at the next look. And the winner's confirmation. Pure but for the caller's callback. */
#ifndef HARNESS_LOOKS_H
#define HARNESS_LOOKS_H

#include "harness/verdict.h"

struct looks {
	const struct experiment *experiment;
	const struct launch_cell *cells; /* of any blocks: each look takes those before it */
	size_t n_cells;
	/* A/A effects known for a workload at a number of blocks; NULL: none are. They must not change while the experiment runs.
	 */
	enum status (*known_twins)(
		void *ctx, int workload, int blocks, double *effects, size_t max, size_t *count, struct err *err);
	void *ctx;
	const double *launch_sd; /* see struct verdict_input; NULL: nothing is known */
};

/* The verdicts after so many blocks, which need not be a planned look. rows must hold n_arms × n_workloads; they come in the order
 * of workloads and arms. stopped[n_arms]: after how many blocks an arm was decided under every workload it runs; 0: it is launched
 * on. Baseline and twin are never stopped, and blocks that were added later (see experiment_extend) open every arm again. */
enum status looks_judge(
	const struct looks *looks, int blocks, struct verdict_row *rows, size_t *n_rows, int *stopped, struct err *err);

/* The candidate that helped most, over all workloads it runs, and hurt or failed in none; 0: none. */
int looks_winner(const struct experiment *experiment, const struct verdict_row *rows, size_t n_rows);

/* Judges the winner by the launches of blocks from from_block on alone, against a baseline launched in the same blocks: the best of
 * many is flattered by the choice, and fresh launches are not. One hypothesis and one look, so the level is alpha. Its rows replace
 * those of the search, with method "confirmation" and a reason that says so. */
enum status looks_confirm(const struct looks *looks, int winner, int from_block, int blocks, struct verdict_row *rows,
	size_t n_rows, struct err *err);

/* Says of the winner's rows that they are not to be quoted yet. */
void looks_mark_unconfirmed(const struct experiment *experiment, int winner, struct verdict_row *rows, size_t n_rows);

#endif
