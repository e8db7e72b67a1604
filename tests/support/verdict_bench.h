/* Made-up launches of an experiment, changed by a test before they are judged. */
#ifndef TESTS_SUPPORT_VERDICT_BENCH_H
#define TESTS_SUPPORT_VERDICT_BENCH_H

#include "harness/verdict.h"

#define VERDICT_BENCH_CELLS_MAX 4096

struct verdict_bench {
	struct experiment *experiment;
	struct launch_cell *cells; /* [VERDICT_BENCH_CELLS_MAX] */
	size_t n_cells;
	struct verdict_row rows[EXPERIMENT_ARMS_MAX]; /* [n_rows] of the last judgement */
	size_t n_rows;
	bool baseline_failed;
	char baseline_reason[VERDICT_REASON_BYTES];
};

/* Every arm at 100 tok/s times its factor, with ± 0.2 % of made-up noise that differs by arm and block, in so many blocks. text: as
 * experiment_from_text takes it. */
void verdict_bench_init(struct verdict_bench *bench, const char *text, int blocks, const double *factors);
void verdict_bench_release(struct verdict_bench *bench);

/* One more launch, with so many tok/s under every workload and 100 for every limit. */
struct launch_cell *verdict_bench_add(struct verdict_bench *bench, int arm, int block, double tps);

/* NULL when there is none. */
struct launch_cell *verdict_bench_cell(struct verdict_bench *bench, int arm, int block);

/* Judges at the level of one look, or of so many; fails the test when that fails. */
void verdict_bench_judge(struct verdict_bench *bench);
void verdict_bench_judge_looks(struct verdict_bench *bench, int n_looks);

#endif
