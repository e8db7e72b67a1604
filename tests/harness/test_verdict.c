/* harness/verdict: the rules on small made-up launches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/verdict.h"
#include "tests/support/verdict_bench.h"

/* Baseline, twin and two candidates. */
static const char two_candidates[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},"
	"'guards':{'greedy_fingerprint':{'prompts':2,'min_match_frac':1}},'protocol':{'blocks':4,'screening':false}}";

static void large_differences_help_and_hurt(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.3, 0.7});
	verdict_bench_judge(&bench);
	assert_int_equal(bench.n_rows, 3);
	assert_false(bench.baseline_failed);
	assert_int_equal(bench.rows[0].verdict, VERDICT_NEUTRAL);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HELPED);
	assert_int_equal(bench.rows[2].verdict, VERDICT_HURT);
	assert_true(fabs(bench.rows[1].effect_pct - 30) < 0.3);
	assert_true(bench.rows[1].ci_low_pct < bench.rows[1].effect_pct && bench.rows[1].effect_pct < bench.rows[1].ci_high_pct);
	assert_int_equal(bench.rows[1].launches, 4);
	assert_int_equal(bench.rows[1].blocks, 4);
	assert_string_equal(bench.rows[1].method, "pooled");
	assert_true(bench.rows[1].df == 9 && bench.rows[1].level == 0.05);
	assert_true(bench.rows[1].decided && bench.rows[2].decided);
	verdict_bench_release(&bench);
}

static void lower_is_better_turns_the_verdict_not_the_sign(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench,
		"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'verdict':{'primary':{'metric':'ttft_ms_p50'}}}", 4,
		(double[]){1, 1, 1.3, 0.7});
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	assert_true(bench.rows[2].effect_pct < -29);
	verdict_bench_release(&bench);
}

static void small_but_sure_differences_are_equivalent_or_below_the_minimum(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.008, 1.0195});
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "equivalent within 2 %");
	assert_int_equal(bench.rows[2].verdict, VERDICT_NEUTRAL);
	assert_non_null(strstr(bench.rows[2].reason, "below_min_effect"));
	assert_true(bench.rows[2].p_adjusted < 0.05);
	verdict_bench_release(&bench);
}

static void wide_intervals_are_inconclusive_and_say_how_many_blocks_are_missing(void **state)
{
	struct verdict_bench bench;
	static const double wild[4][4] = {
		{1, 1.06, 0.95, 1.01}, {0.96, 1.02, 1.05, 0.94}, {1.05, 0.93, 1.02, 1.04}, {0.97, 1.0, 1.06, 0.95}};
	verdict_bench_init(&bench, two_candidates, 0, NULL);
	for (int arm = 0; arm < 4; arm++)
		for (int block = 0; block < 4; block++)
			verdict_bench_add(&bench, arm, block, 100 * wild[arm][block]);
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_non_null(strstr(bench.rows[1].reason, "inconclusive: about "));
	assert_true(bench.rows[1].needed_blocks >= 1 && !bench.rows[1].decided);
	verdict_bench_release(&bench);
}

static void fewer_than_three_blocks_never_help_or_hurt(void **state)
{
	struct verdict_bench bench;
	for (int blocks = 1; blocks <= 2; blocks++) {
		verdict_bench_init(&bench, two_candidates, blocks, (double[]){1, 1, 1.5, 0.5});
		verdict_bench_judge(&bench);
		for (size_t i = 0; i < bench.n_rows; i++) {
			assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
			assert_non_null(strstr(bench.rows[i].reason, "inconclusive"));
		}
		verdict_bench_release(&bench);
	}
}

static void any_failed_launch_fails_the_arm_with_its_class_first(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.3, 1});
	struct launch_cell *cell = verdict_bench_cell(&bench, 2, 1);
	cell->failure = FAILURE_OOM_LOAD;
	snprintf(cell->reason, sizeof cell->reason, "oom_load: needs mem_fraction 0.31");
	cell->log_metric[0] = NAN;
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	assert_string_equal(bench.rows[1].reason, "oom_load: needs mem_fraction 0.31 (1 of 4 launches)");
	assert_true(isnan(bench.rows[1].effect_pct) && isnan(bench.rows[1].p_adjusted));
	assert_int_equal(bench.rows[2].verdict, VERDICT_NEUTRAL);
	verdict_bench_release(&bench);
}

static void a_failed_candidate_stays_in_the_family(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.01, 1});
	verdict_bench_judge(&bench);
	double p = bench.rows[1].p;
	assert_true(fabs(bench.rows[1].p_adjusted - fmin(1, 2 * p)) < 1e-12);
	/* Its good launches say nothing about the noise of others: three arms in four blocks are left. */
	verdict_bench_cell(&bench, 3, 0)->failure = FAILURE_CRASH;
	verdict_bench_judge(&bench);
	assert_string_equal(bench.rows[2].reason, "crash (1 of 4 launches)");
	assert_true(fabs(bench.rows[1].df - 6) < 1e-12);
	for (int block = 0; block < 4; block++)
		verdict_bench_cell(&bench, 3, block)->failure = FAILURE_CRASH;
	verdict_bench_judge(&bench);
	assert_string_equal(bench.rows[2].reason, "crash");
	assert_true(fabs(bench.rows[1].p_adjusted - fmin(1, 2 * bench.rows[1].p)) < 1e-12);
	verdict_bench_release(&bench);
}

static void a_failed_baseline_leaves_no_verdict(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1.3, 1});
	verdict_bench_cell(&bench, 0, 2)->failure = FAILURE_CRASH;
	snprintf(verdict_bench_cell(&bench, 0, 2)->reason, VERDICT_REASON_BYTES, "crash: signal 11");
	verdict_bench_judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "crash: signal 11 (1 of 3 launches)");
	for (size_t i = 0; i < bench.n_rows; i++)
		assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
	verdict_bench_release(&bench);
}

static void no_launches_at_all_is_a_missing_baseline(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 0, NULL);
	verdict_bench_judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "not measured");
	verdict_bench_release(&bench);
}

static void void_launches_are_neither_counted_nor_blamed(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 5, (double[]){1, 1, 1.3, 1});
	verdict_bench_cell(&bench, 2, 1)->voided = true;
	verdict_bench_cell(&bench, 2, 1)->failure = FAILURE_GUARD;
	verdict_bench_cell(&bench, 2, 1)->log_metric[0] = log(1);
	verdict_bench_cell(&bench, 2, 3)->voided = true; /* one that gave a number, such as under a throttled clock */
	verdict_bench_cell(&bench, 2, 3)->log_metric[0] = log(50);
	for (int block = 0; block < 5; block++)
		verdict_bench_cell(&bench, 3, block)->voided = true;
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HELPED);
	assert_int_equal(bench.rows[1].launches, 3);
	assert_true(fabs(bench.rows[1].effect_pct - 30) < 0.5);
	assert_int_equal(bench.rows[2].verdict, VERDICT_VOID);
	verdict_bench_release(&bench);
}

static void set_fingerprints(struct verdict_bench *bench, int arm, const char *texts)
{
	for (size_t i = 0; i < bench->n_cells; i++)
		if (bench->cells[i].arm == arm)
			bench->cells[i].fingerprint = (char *)texts;
}

static void other_text_than_the_baselines_is_wrong_output_however_fast(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.5, 1.5});
	set_fingerprints(&bench, 0, "[\"one\",\"two\"]");
	set_fingerprints(&bench, 1, "[\"one\",\"two\"]");
	set_fingerprints(&bench, 2, "[\"one\",\"2\"]");
	set_fingerprints(&bench, 3, "[\"one\",\"two\"]");
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	assert_string_equal(bench.rows[1].reason, "wrong_output: 4 of 8 greedy texts differ from the baseline's");
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	set_fingerprints(&bench, 1, "[\"one\",\"zwei\"]"); /* the engine does not even repeat itself */
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HELPED);
	set_fingerprints(&bench, 2, "[\"one\"]"); /* a missing text is a different text */
	set_fingerprints(&bench, 1, "[\"one\",\"two\"]");
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	verdict_bench_release(&bench);
}

static const char limited[] = "{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},"
			      "'verdict':{'constraints':[{'metric':'ttft_p90_ms','max_regress_pct':10}]}}";

static void a_gain_that_breaks_a_limit_hurts(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, limited, 4, (double[]){1, 1, 1.3, 1.3});
	for (int block = 0; block < 4; block++)
		verdict_bench_cell(&bench, 2, block)->log_limit[0][0] = log(125 + block);
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_non_null(strstr(bench.rows[1].reason, "ttft_ms_p90 got 26."));
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	verdict_bench_release(&bench);
}

static void a_gain_whose_limit_is_doubtful_is_not_a_win(void **state)
{
	static const double wild[4] = {60, 190, 80, 170};
	struct verdict_bench bench;
	verdict_bench_init(&bench, limited, 4, (double[]){1, 1, 1.3, 1.3});
	for (int block = 0; block < 4; block++)
		verdict_bench_cell(&bench, 2, block)->log_limit[0][0] = log(wild[block]);
	verdict_bench_cell(&bench, 3, 0)->log_limit[0][0] = NAN;
	verdict_bench_judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "inconclusive: ttft_ms_p90 may break its limit");
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	verdict_bench_release(&bench);
}

static const char screening[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'protocol':{'blocks':3,'max_blocks':8}}";

static void hopeless_arms_are_screened_after_two_blocks(void **state)
{
	struct verdict_bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	verdict_bench_init(&bench, screening, 2, (double[]){1, 1, 0.8, 0.9});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 3};
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_true(!dropped[0] && !dropped[1] && dropped[2] && !dropped[3]);
	verdict_bench_add(&bench, 0, 2, 100);
	verdict_bench_add(&bench, 1, 2, 100);
	verdict_bench_add(&bench, 3, 2, 90);
	verdict_bench_judge_looks(&bench, 3);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_string_equal(bench.rows[1].reason, "screened: hopeless after 2 blocks");
	assert_int_equal(bench.rows[1].blocks, 2);
	input.n_cells = 7; /* the second block is not complete */
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2]);
	verdict_bench_release(&bench);
}

static void a_known_noise_screens_after_the_first_block(void **state)
{
	struct verdict_bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	verdict_bench_init(&bench, screening, 1, (double[]){1, 1, 0.8, 0.9});
	double unknown = NAN, quiet = 0.01, loud = 0.05;
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 3};
	input.launch_sd = &unknown;
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2]);
	input.launch_sd = &loud; /* six of them are more than the loss of a fifth */
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2]);
	input.launch_sd = &quiet;
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_true(!dropped[0] && !dropped[1] && dropped[2] && !dropped[3]);
	/* The dropped one is absent from the second block, in which another one shows to be hopeless. */
	verdict_bench_add(&bench, 0, 1, 140);
	verdict_bench_add(&bench, 1, 1, 140);
	verdict_bench_add(&bench, 3, 1, 90);
	input.n_cells = bench.n_cells;
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_true(dropped[2]);
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	char reason[VERDICT_REASON_BYTES];
	bool failed;
	size_t n_rows;
	assert_int_equal(verdict_compute(&input, 0, rows, &n_rows, &failed, reason, NULL), STATUS_OK);
	assert_int_equal(rows[1].verdict, VERDICT_HURT);
	assert_string_equal(rows[1].reason, "screened: hopeless after 1 block");
	input.n_cells = 3; /* the first block is not complete */
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2]);
	verdict_bench_release(&bench);
}

static void nothing_is_screened_unless_the_protocol_says_so(void **state)
{
	struct verdict_bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	verdict_bench_init(&bench, two_candidates, 2, (double[]){1, 1, 0.5, 0.5});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 1};
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2] || dropped[3]);
	verdict_bench_release(&bench);
}

static void several_looks_use_the_pocock_level(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1.3, 1});
	verdict_bench_judge_looks(&bench, 3);
	assert_true(fabs(bench.rows[1].level - 0.02205) < 1e-4);
	double wide = bench.rows[1].ci_high_pct - bench.rows[1].ci_low_pct;
	verdict_bench_judge_looks(&bench, 1);
	assert_true(bench.rows[1].ci_high_pct - bench.rows[1].ci_low_pct < wide);
	verdict_bench_release(&bench);
}

/* r13_first_run_outlier: the first of five launches paid for lazy loading. Its mean is 40 % lower, which proves nothing. */
static void an_outlier_makes_noise_and_no_verdict(void **state)
{
	static const double field[] = {8026.1, 42899.4, 42934.0, 42990.2, 42911.7};
	static const double steady[] = {42950.3, 42880.2, 42990.6, 42921.5, 42933.8};
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 0, NULL);
	for (int arm = 0; arm < bench.experiment->n_arms; arm++)
		for (int block = 0; block < 5; block++)
			verdict_bench_add(&bench, arm, block, arm == 2 ? field[block] : steady[(block + arm) % 5]);
	verdict_bench_judge(&bench);
	for (size_t i = 0; i < bench.n_rows; i++)
		assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
	assert_true(bench.rows[1].effect_pct < -25 && bench.rows[1].ci_high_pct > 0);
	assert_non_null(strstr(bench.rows[1].reason, "inconclusive: "));
	verdict_bench_release(&bench);
}

static void a_metric_without_a_value_is_said_to_have_none(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 3, (double[]){1, 1, 0, 1});
	verdict_bench_judge(&bench);
	assert_false(bench.baseline_failed);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "inconclusive: no launch gave a value above 0 of output_tps");
	assert_string_not_equal(bench.rows[2].reason, bench.rows[1].reason);
	verdict_bench_release(&bench);

	verdict_bench_init(&bench, two_candidates, 3, (double[]){NAN, NAN, 1, 1});
	verdict_bench_judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "no launch gave a value above 0 of output_tps");
	assert_string_equal(bench.rows[1].reason, "inconclusive: the baseline gave no value above 0 of this metric");
	verdict_bench_release(&bench);
}

static void workloads_that_do_not_apply_give_no_row(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench,
		"{'name':'v','matrix':{'factors':{'speculation':['off','ngram'],'graph_max_bs':[8,0]}},"
		"'workloads':[{'name':'a','applies_to':[{'speculation':'ngram'}]},{'name':'b'}]}",
		3, (double[]){1, 1, 1.3, 1});
	verdict_bench_judge(&bench);
	assert_int_equal(bench.n_rows, 2);
	assert_int_equal(bench.rows[1].arm, 2);
	verdict_bench_release(&bench);
}

static void cells_of_unknown_arms_are_our_own_bug(void **state)
{
	struct verdict_bench bench;
	verdict_bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1, 1});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 1};
	bench.cells[0].arm = 4;
	assert_int_equal(verdict_compute(&input, 0, bench.rows, &bench.n_rows, &bench.baseline_failed, bench.baseline_reason, NULL),
		STATUS_INTERNAL);
	bench.cells[0].arm = 0;
	assert_int_equal(verdict_compute(&input, 1, bench.rows, &bench.n_rows, &bench.baseline_failed, bench.baseline_reason, NULL),
		STATUS_INTERNAL);
	verdict_bench_release(&bench);
}

static void the_minimum_effect_follows_known_twins_within_bounds(void **state)
{
	double effects[40];
	for (int i = 0; i < 40; i++)
		effects[i] = (i % 2 ? -1 : 1) * 0.1 * i; /* |effects| 0 … 3.9 % */
	assert_true(verdict_min_effect(2, effects, 19) == 2);
	assert_true(fabs(verdict_min_effect(2, effects, 40) - 3.705) < 1e-9);
	assert_true(verdict_min_effect(2, effects, 20) == 2);
	effects[38] = effects[39] = effects[37] = 90;
	assert_true(verdict_min_effect(2, effects, 40) == 5);
	assert_true(verdict_min_effect(8, effects, 40) == 8);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(large_differences_help_and_hurt),
		cmocka_unit_test(lower_is_better_turns_the_verdict_not_the_sign),
		cmocka_unit_test(small_but_sure_differences_are_equivalent_or_below_the_minimum),
		cmocka_unit_test(wide_intervals_are_inconclusive_and_say_how_many_blocks_are_missing),
		cmocka_unit_test(fewer_than_three_blocks_never_help_or_hurt),
		cmocka_unit_test(any_failed_launch_fails_the_arm_with_its_class_first),
		cmocka_unit_test(a_failed_candidate_stays_in_the_family),
		cmocka_unit_test(a_failed_baseline_leaves_no_verdict),
		cmocka_unit_test(no_launches_at_all_is_a_missing_baseline),
		cmocka_unit_test(void_launches_are_neither_counted_nor_blamed),
		cmocka_unit_test(other_text_than_the_baselines_is_wrong_output_however_fast),
		cmocka_unit_test(a_gain_that_breaks_a_limit_hurts),
		cmocka_unit_test(a_gain_whose_limit_is_doubtful_is_not_a_win),
		cmocka_unit_test(hopeless_arms_are_screened_after_two_blocks),
		cmocka_unit_test(a_known_noise_screens_after_the_first_block),
		cmocka_unit_test(nothing_is_screened_unless_the_protocol_says_so),
		cmocka_unit_test(several_looks_use_the_pocock_level),
		cmocka_unit_test(an_outlier_makes_noise_and_no_verdict),
		cmocka_unit_test(a_metric_without_a_value_is_said_to_have_none),
		cmocka_unit_test(workloads_that_do_not_apply_give_no_row),
		cmocka_unit_test(cells_of_unknown_arms_are_our_own_bug),
		cmocka_unit_test(the_minimum_effect_follows_known_twins_within_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
