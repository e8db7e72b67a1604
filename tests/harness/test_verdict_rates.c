/* harness/verdict: the false-alarm rate and the power of the whole procedure, by simulation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "harness/plan.h"
#include "tests/support/verdict_bench.h"

/* One launch: 0.5 % between runs (two of them), 1 % between launches, 1 % of drift that follows the order of launches with lag-1
 * correlation 0.97. The order is the plan's. */
static void simulate(struct verdict_bench *bench, uint64_t seed, int blocks, double planted)
{
	double drift = 0.01 * random_normal(seed, 0, 0);
	uint64_t draw = 1;
	bench->n_cells = 0;
	struct plan_launch plan[EXPERIMENT_ARMS_MAX];
	bench->experiment->protocol.order_seed = seed;
	for (int block = 0; block < blocks; block++) {
		int launches = plan_block(bench->experiment, block, NULL, plan);
		for (int i = 0; i < launches; i++) {
			drift = 0.97 * drift + 0.01 * sqrt(1 - 0.97 * 0.97) * random_normal(seed, 1, draw);
			double noise = drift + 0.01 * random_normal(seed, 2, draw) + 0.005 / sqrt(2) * random_normal(seed, 3, draw);
			draw++;
			verdict_bench_add(bench, plan[i].arm, block, 100 * exp(noise + (plan[i].arm == 5 ? log1p(planted) : 0)));
		}
	}
}

static const char eight_candidates[] =
	"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,1,2,3,4,5,6,7]}},'protocol':{'blocks':3}}";

#define TRIALS 1500

static void nothing_changed_gives_few_false_verdicts(void **state)
{
	struct verdict_bench bench;
	int false_any = 0, false_all = 0, noisy = 0;
	verdict_bench_init(&bench, eight_candidates, 0, NULL);
	assert_int_equal(bench.experiment->n_arms, 10);
	for (int trial = 0; trial < TRIALS; trial++) {
		simulate(&bench, 1000 + (uint64_t)trial, 3, 0);
		verdict_bench_judge(&bench);
		bool any = false;
		for (size_t i = 1; i < bench.n_rows; i++) {
			bool wrong = bench.rows[i].verdict == VERDICT_HELPED || bench.rows[i].verdict == VERDICT_HURT;
			any = any || wrong;
			false_all += wrong;
		}
		false_any += any;
		noisy += bench.rows[0].verdict != VERDICT_NEUTRAL;
		memset(bench.cells, 0, bench.n_cells * sizeof *bench.cells);
	}
	/* Nothing tells the candidates apart, so all of them tell the rate of one. */
	printf("any false verdict in %.1f %% of null experiments with 8 candidates, for one of them in %.2f %%; twin differs in "
	       "%.1f %%\n",
		100.0 * false_any / TRIALS, 100.0 * false_all / (8 * TRIALS), 100.0 * noisy / TRIALS);
	assert_true(false_any < TRIALS * 5 / 100);
	assert_true(false_all < 8 * TRIALS * 1 / 100);
	assert_true(noisy < TRIALS * 6 / 100);
	verdict_bench_release(&bench);
}

static void check_planted(double planted, enum verdict verdict)
{
	struct verdict_bench bench;
	int found = 0;
	double covered = 0;
	verdict_bench_init(&bench, eight_candidates, 0, NULL);
	for (int trial = 0; trial < TRIALS; trial++) {
		simulate(&bench, 900000 + (uint64_t)trial, 3, planted);
		verdict_bench_judge(&bench);
		const struct verdict_row *row = &bench.rows[4]; /* arm 5 */
		found += row->verdict == verdict;
		covered += row->ci_low_pct <= 100 * planted && 100 * planted <= row->ci_high_pct;
		memset(bench.cells, 0, bench.n_cells * sizeof *bench.cells);
	}
	printf("%+.0f %% found in %.1f %% of experiments; its interval covers it in %.1f %%\n", 100 * planted,
		100.0 * found / TRIALS, 100 * covered / TRIALS);
	assert_true(found >= TRIALS * 95 / 100);
	assert_true(covered > TRIALS * 0.92);
	verdict_bench_release(&bench);
}

static void a_planted_five_percent_is_found(void **state)
{
	check_planted(0.05, VERDICT_HELPED);
	check_planted(-0.05, VERDICT_HURT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_changed_gives_few_false_verdicts),
		cmocka_unit_test(a_planted_five_percent_is_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
