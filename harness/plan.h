/* The order of launches and what they will cost. Pure. */
#ifndef HARNESS_PLAN_H
#define HARNESS_PLAN_H

#include "harness/experiment.h"

/* What an estimate assumes before anything was measured: guesses, about twice the time that SmolLM2-135M takes on two cores of an
 * AMD EPYC. */
#define PLAN_START_S_GUESS 1.0 /* start and stop of an engine */
#define PLAN_TOKENS_PER_S_GUESS 100.0 /* per slot */

struct plan_launch {
	int arm, block;
	int order; /* position within the block, from 0, dropped arms counted: stable over resumes */
};

/* Launches of one block: every arm that is not dropped (dropped may be NULL), in the block's random order, which depends on
 * protocol.order_seed and block alone. With a single candidate every odd block is the mirror of the one before it (ABBA).
 * out must hold experiment->n_arms. Returns the number of launches. */
int plan_block(const struct experiment *experiment, int block, const bool *dropped, struct plan_launch *out);

/* Launches when every block up to the first look, or up to the last, is run. */
int plan_launches(const struct experiment *experiment, bool all_looks);

/* Seconds that one launch of an arm takes: start and stop, warm-up and measured runs, at tokens_per_s per slot. */
double plan_launch_seconds(const struct experiment *experiment, int arm, double start_s, double tokens_per_s);

/* Sum over all launches up to the first look, cool-downs included. */
double plan_seconds(const struct experiment *experiment, double start_s, double tokens_per_s);

#endif
