/* harness/verdict: settings that gave nothing at all, whose logarithm is no number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/verdict_bench.h"

static const char goodput[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'verdict':{'primary':{'metric':'goodput_rps'}},"
	"'workloads':[{'concurrency':1,'goodput':{'ttft_ms':50}}],'protocol':{'blocks':4,'screening':false}}";

/* Launches of different lengths, whose arms give so many requests a second; 0 as the store loads it. */
static void bench_init_goodput(struct verdict_bench *bench, const double *rates)
{
	verdict_bench_init(bench, goodput, 4, (double[]){1, 1, 1, 1});
	for (size_t i = 0; i < bench->n_cells; i++) {
		struct launch_cell *cell = &bench->cells[i];
		cell->requests[0] = 40;
		cell->seconds[0] = 10 + 3 * cell->block + cell->arm; /* half a request is another rate in each launch */
		cell->log_metric[0] = rates[cell->arm] > 0 ? cell->log_metric[0] + log(rates[cell->arm] / 100) : -INFINITY;
	}
}

static void zero_against_zero_is_no_effect_and_prints_as_zero(void **state)
{
	struct verdict_bench bench;
	bench_init_goodput(&bench, (double[]){0, 0, 0, 3});
	verdict_bench_judge(&bench);
	assert_false(bench.baseline_failed);
	for (int i = 0; i < 2; i++) {
		const struct verdict_row *row = &bench.rows[i];
		assert_int_equal(row->verdict, VERDICT_NEUTRAL);
		assert_string_equal(row->reason, "equivalent: 0 on both sides");
		assert_true(row->metric == 0 && row->baseline_metric == 0);
		assert_true(row->effect_pct == 0 && row->ci_low_pct == 0 && row->ci_high_pct == 0 && row->p == 1);
	}
	verdict_bench_release(&bench);
}

static void a_gain_over_a_baseline_of_zero_helped_without_a_percentage(void **state)
{
	struct verdict_bench bench;
	bench_init_goodput(&bench, (double[]){0, 0, 3, 0.5});
	verdict_bench_judge(&bench);
	for (int i = 1; i < 3; i++) {
		const struct verdict_row *row = &bench.rows[i];
		assert_int_equal(row->verdict, VERDICT_HELPED);
		assert_string_equal(row->reason, "the baseline gave 0 in every launch");
		assert_true(isnan(row->effect_pct) && isnan(row->ci_low_pct) && isnan(row->ci_high_pct));
		assert_true(row->p_adjusted < 0.05 && row->metric > 0.4 && row->baseline_metric == 0);
	}
	assert_true(bench.rows[1].log_effect > bench.rows[2].log_effect); /* the winner is still told */
	verdict_bench_release(&bench);
}

static void a_loss_of_everything_hurt_by_a_hundred_percent(void **state)
{
	struct verdict_bench bench;
	bench_init_goodput(&bench, (double[]){2, 2, 0, 3});
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_string_equal(bench.rows[1].reason, "0 in every launch");
	assert_true(bench.rows[1].effect_pct == -100 && bench.rows[1].ci_low_pct == -100);
	assert_true(bench.rows[1].ci_high_pct > -100 && bench.rows[1].ci_high_pct < -90);
	assert_true(bench.rows[1].metric == 0);
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	assert_true(fabs(bench.rows[2].effect_pct - 50) < 1);
	verdict_bench_release(&bench);
}

/* Their own spread is nothing, and would make the noise of the others look half as large. */
static void settings_that_gave_nothing_do_not_narrow_the_intervals_of_others(void **state)
{
	struct verdict_bench all, zero;
	bench_init_goodput(&all, (double[]){2, 2, 2, 2});
	verdict_bench_judge(&all);
	bench_init_goodput(&zero, (double[]){2, 2, 2, 0});
	verdict_bench_judge(&zero);
	double width = all.rows[1].ci_high_pct - all.rows[1].ci_low_pct;
	assert_true(zero.rows[1].ci_high_pct - zero.rows[1].ci_low_pct > 0.8 * width);
	assert_true(zero.rows[1].df == 6); /* three arms in four blocks */
	verdict_bench_release(&all);
	verdict_bench_release(&zero);
}

/* 0 in one launch of four: too little to tell, and no launch is left out. */
static void a_zero_among_others_counts_as_half_a_request(void **state)
{
	struct verdict_bench bench;
	bench_init_goodput(&bench, (double[]){2, 2, 2, 2});
	verdict_bench_cell(&bench, 2, 1)->log_metric[0] = -INFINITY;
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_int_equal(bench.rows[1].launches, 4);
	assert_true(bench.rows[1].metric > 0 && bench.rows[1].metric < 1.2);
	assert_true(bench.rows[1].effect_pct < -40 && bench.rows[1].p > 0.05);
	verdict_bench_release(&bench);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(zero_against_zero_is_no_effect_and_prints_as_zero),
		cmocka_unit_test(a_gain_over_a_baseline_of_zero_helped_without_a_percentage),
		cmocka_unit_test(a_loss_of_everything_hurt_by_a_hundred_percent),
		cmocka_unit_test(settings_that_gave_nothing_do_not_narrow_the_intervals_of_others),
		cmocka_unit_test(a_zero_among_others_counts_as_half_a_request),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
