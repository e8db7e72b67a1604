/* From launch cells to verdicts. Pure: no I/O, no clock. Specification: README "How a verdict is reached". */
#ifndef HARNESS_VERDICT_H
#define HARNESS_VERDICT_H

#include "harness/experiment.h"
#include "harness/result.h"

enum verdict { VERDICT_HELPED, VERDICT_HURT, VERDICT_NEUTRAL, VERDICT_FAILED, VERDICT_VOID };
const char *verdict_name(enum verdict verdict);

struct verdict_row {
	int arm, workload;
	enum verdict verdict;
	char reason[512];      /* "equivalent within 2 %", "inconclusive: about 4 more blocks needed", "oom_load: …" */
	double baseline_metric, metric; /* geometric means over launches; NaN when failed */
	double effect_pct, ci_low_pct, ci_high_pct, p, p_adjusted; /* NaN where undefined */
	int launches, blocks;
	double min_effect_pct;
	double needed_blocks;  /* NaN unless inconclusive */
};

struct launch_cell; /* harness/store.h */
struct verdict_input {
	const struct experiment *experiment;
	const struct launch_cell *cells; size_t n_cells;
	int look, n_looks;              /* which planned look this is, from 0; decides the level */
	const double *aa_effects; size_t n_aa_effects; /* percent, for the minimum effect of each workload: see verdict_min_effect */
};

/* max(2, 95th percentile of |effects|) capped at 5 when at least 20 are known, else 2; the file's own value is the floor. */
double verdict_min_effect(double floor_pct, const double *aa_effects, size_t n);

/* One row per candidate and twin of one workload, in arm order. rows must hold experiment->n_arms. *n_rows set. *baseline_failed set with
 * the baseline's reason in rows[0] semantics documented in verdict.c. */
enum status verdict_compute(const struct verdict_input *input, int workload, struct verdict_row *rows, size_t *n_rows, bool *baseline_failed,
	char baseline_reason[512], struct err *err);

#endif
