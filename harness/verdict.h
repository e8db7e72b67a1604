/* From launch cells to verdicts. Pure: no I/O, no clock. Specification: harness/README.md. */
#ifndef HARNESS_VERDICT_H
#define HARNESS_VERDICT_H

#include "harness/experiment.h"
#include "harness/result.h"

enum verdict { VERDICT_HELPED, VERDICT_HURT, VERDICT_NEUTRAL, VERDICT_FAILED, VERDICT_VOID };
const char *verdict_name(enum verdict verdict);

#define VERDICT_REASON_BYTES 512

/* The one saved launch that counts for a block and arm (its last attempt): the unit of evidence. */
struct launch_cell {
	int arm, block, attempt;
	enum failure failure;
	char reason[VERDICT_REASON_BYTES];
	bool pruned; /* never launched: see prune.h */
	bool voided; /* the machine was disturbed: neither counted nor blamed */
	double log_metric[EXPERIMENT_WORKLOADS_MAX]; /* ln of the primary metric's mean over runs, see metric_mean_log */
	double log_limit[EXPERIMENT_LIMITS_MAX][EXPERIMENT_WORKLOADS_MAX]; /* the same for each of rules.limits */
	double requests[EXPERIMENT_WORKLOADS_MAX], seconds[EXPERIMENT_WORKLOADS_MAX]; /* of these runs; 0 when absent */
	char *fingerprint; /* JSON array of greedy outputs, NULL when not taken; owned by the list that holds the cell */
};

/* What is known about one arm under one workload. Numbers are NaN where undefined. */
struct verdict_row {
	int arm, workload;
	enum verdict verdict;
	char reason[VERDICT_REASON_BYTES]; /* "equivalent within 2 %", "inconclusive: about 4 more blocks needed", "oom_load: …", ""
					    */
	double baseline_metric, metric; /* geometric means over launches; 0 when every launch gave 0 */
	double log_effect; /* ln(arm / baseline), half a request in place of zero */
	/* Percent of the baseline: NaN where that is 0 and the arm's metric is not; -100 where the arm's alone is 0. */
	double effect_pct, ci_low_pct, ci_high_pct, p, p_adjusted;
	int launches, blocks; /* launches that count, and blocks in which both arm and baseline have one */
	double min_effect_pct;
	double needed_blocks; /* further blocks; NaN unless inconclusive */
	double std_error_pct, df, level; /* of the effect (log scale × 100); degrees of freedom; significance level used */
	const char *method; /* "pooled", "paired", "confirmation" (see looks.h), or "" where nothing was tested */
	bool decided; /* more blocks are not expected to change the verdict */
};

struct verdict_input {
	const struct experiment *experiment;
	const struct launch_cell *cells;
	size_t n_cells;
	int n_looks; /* how many looks are planned: decides the level of each */
	const double *aa_effects;
	size_t n_aa_effects; /* percent, for the minimum effect: see verdict_min_effect */
	int confirming; /* the arm that is the only hypothesis of these cells; 0: every candidate is one */
	/* [n_workloads] standard deviation of one launch's ln(metric) between launches that should be the same, from earlier
	 * experiments (store_launch_sd); NaN where too little is known; NULL: nothing is. */
	const double *launch_sd;
};

/* ln of what stands for zero between these cells under a workload, see compare_arms: half a request of the largest of them. */
double verdict_log_half(const struct launch_cell *cells, size_t n_cells, const char *metric, int workload);

/* max(floor, min(5, 95th percentile of |effects|)) when at least 20 are known, else floor. Percentages. */
double verdict_min_effect(double floor_pct, const double *aa_effects, size_t n);

/* Judges the A/A twin and every candidate to which the workload applies, in arm order. rows must hold experiment->n_arms.
 * *baseline_failed says that no comparison is possible because a baseline launch failed (baseline_reason says how, beginning
 * with the class), none was made or none gave a value of the metric; rows are then neutral: inconclusive, except those that
 * failed themselves.
 * The family of Holm's correction is every candidate of the workload, the failed and screened ones included. */
enum status verdict_compute(const struct verdict_input *input, int workload, struct verdict_row *rows, size_t *n_rows,
	bool *baseline_failed, char baseline_reason[VERDICT_REASON_BYTES], struct err *err);

/* Marks the arms that need no further launches: those slower than the baseline over the first two blocks by more than
 * max(15 %, 6 pooled standard deviations) under every workload they run; over the first block alone where launch_sd is known, which
 * then stands for the pooled one. Marks none unless protocol.screening is set, and judges a block only when it is complete. dropped
 * must hold experiment->n_arms. */
enum status verdict_screen(const struct verdict_input *input, bool *dropped, struct err *err);

#endif
