/* Makes and judges them. */
#include "tests/support/verdict_bench.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>

#include "base/mem.h"
#include "tests/support/experiment_text.h"

struct launch_cell *verdict_bench_add(struct verdict_bench *bench, int arm, int block, double tps)
{
	struct launch_cell *cell = &bench->cells[bench->n_cells++];
	cell->arm = arm;
	cell->block = block;
	for (int i = 0; i < bench->experiment->n_workloads; i++)
		cell->log_metric[i] = log(tps);
	for (int i = 0; i < bench->experiment->rules.n_limits; i++)
		cell->log_limit[i][0] = log(100);
	return cell;
}

void verdict_bench_init(struct verdict_bench *bench, const char *text, int blocks, const double *factors)
{
	static const double noise[7] = {0.002, -0.001, 0.0005, -0.002, 0.0015, -0.0005, 0.001};
	bench->experiment = experiment_from_text(text);
	bench->cells = mem_calloc(VERDICT_BENCH_CELLS_MAX, sizeof *bench->cells);
	bench->n_cells = 0;
	for (int block = 0; block < blocks; block++)
		for (int arm = 0; arm < bench->experiment->n_arms; arm++)
			verdict_bench_add(bench, arm, block,
				100 * factors[arm] * (1 + 0.01 * block) * (1 + noise[(arm * 3 + block * 5) % 7]));
}

struct launch_cell *verdict_bench_cell(struct verdict_bench *bench, int arm, int block)
{
	for (size_t i = 0; i < bench->n_cells; i++)
		if (bench->cells[i].arm == arm && bench->cells[i].block == block)
			return &bench->cells[i];
	return NULL;
}

void verdict_bench_judge_looks(struct verdict_bench *bench, int n_looks)
{
	struct verdict_input input = {
		.experiment = bench->experiment, .cells = bench->cells, .n_cells = bench->n_cells, .n_looks = n_looks};
	struct err err = {0};
	enum status status =
		verdict_compute(&input, 0, bench->rows, &bench->n_rows, &bench->baseline_failed, bench->baseline_reason, &err);
	if (status)
		fail_msg("%s", err.text);
}

void verdict_bench_judge(struct verdict_bench *bench)
{
	verdict_bench_judge_looks(bench, 1);
}

void verdict_bench_release(struct verdict_bench *bench)
{
	experiment_release(bench->experiment);
	mem_free(bench->cells);
}
