/* harness/verdict: the rules on small made-up launches, and the false-alarm rate and power of the whole procedure by simulation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "harness/plan.h"
#include "harness/verdict.h"
#include "tests/support/experiment_text.h"

/* Baseline, twin and two candidates. */
static const char two_candidates[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},"
	"'guards':{'greedy_fingerprint':{'prompts':2,'min_match_frac':1}},'protocol':{'blocks':4,'screening':false}}";

#define CELLS_MAX 4096

/* A bench of launches: tok/s by arm and block, changed by the test before it is judged. */
struct bench {
	struct experiment *experiment;
	struct launch_cell *cells;
	size_t n_cells;
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	size_t n_rows;
	bool baseline_failed;
	char baseline_reason[VERDICT_REASON_BYTES];
};

static struct launch_cell *add_cell(struct bench *bench, int arm, int block, double tps)
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

/* Every arm at 100 tok/s times its factor, with ± 0.2 % of made-up noise that differs by arm and block. */
static void bench_init(struct bench *bench, const char *text, int blocks, const double *factors)
{
	static const double noise[7] = {0.002, -0.001, 0.0005, -0.002, 0.0015, -0.0005, 0.001};
	bench->experiment = experiment_from_text(text);
	bench->cells = mem_calloc(CELLS_MAX, sizeof *bench->cells);
	bench->n_cells = 0;
	for (int block = 0; block < blocks; block++)
		for (int arm = 0; arm < bench->experiment->n_arms; arm++)
			add_cell(bench, arm, block,
				100 * factors[arm] * (1 + 0.01 * block) * (1 + noise[(arm * 3 + block * 5) % 7]));
}

static struct launch_cell *cell_of(struct bench *bench, int arm, int block)
{
	for (size_t i = 0; i < bench->n_cells; i++)
		if (bench->cells[i].arm == arm && bench->cells[i].block == block)
			return &bench->cells[i];
	return NULL;
}

static void judge_looks(struct bench *bench, int n_looks)
{
	struct verdict_input input = {
		.experiment = bench->experiment, .cells = bench->cells, .n_cells = bench->n_cells, .n_looks = n_looks};
	struct err err = {0};
	enum status status =
		verdict_compute(&input, 0, bench->rows, &bench->n_rows, &bench->baseline_failed, bench->baseline_reason, &err);
	if (status)
		fail_msg("%s", err.text);
}

static void judge(struct bench *bench)
{
	judge_looks(bench, 1);
}

static void bench_release(struct bench *bench)
{
	experiment_release(bench->experiment);
	mem_free(bench->cells);
}

static void large_differences_help_and_hurt(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.3, 0.7});
	judge(&bench);
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
	bench_release(&bench);
}

static void lower_is_better_turns_the_verdict_not_the_sign(void **state)
{
	struct bench bench;
	bench_init(&bench,
		"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'verdict':{'primary':{'metric':'ttft_ms_p50'}}}", 4,
		(double[]){1, 1, 1.3, 0.7});
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	assert_true(bench.rows[2].effect_pct < -29);
	bench_release(&bench);
}

static void small_but_sure_differences_are_equivalent_or_below_the_minimum(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.008, 1.0195});
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "equivalent within 2 %");
	assert_int_equal(bench.rows[2].verdict, VERDICT_NEUTRAL);
	assert_non_null(strstr(bench.rows[2].reason, "below_min_effect"));
	assert_true(bench.rows[2].p_adjusted < 0.05);
	bench_release(&bench);
}

static void wide_intervals_are_inconclusive_and_say_how_many_blocks_are_missing(void **state)
{
	struct bench bench;
	static const double wild[4][4] = {
		{1, 1.06, 0.95, 1.01}, {0.96, 1.02, 1.05, 0.94}, {1.05, 0.93, 1.02, 1.04}, {0.97, 1.0, 1.06, 0.95}};
	bench_init(&bench, two_candidates, 0, NULL);
	for (int arm = 0; arm < 4; arm++)
		for (int block = 0; block < 4; block++)
			add_cell(&bench, arm, block, 100 * wild[arm][block]);
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_non_null(strstr(bench.rows[1].reason, "inconclusive: about "));
	assert_true(bench.rows[1].needed_blocks >= 1 && !bench.rows[1].decided);
	bench_release(&bench);
}

static void fewer_than_three_blocks_never_help_or_hurt(void **state)
{
	struct bench bench;
	for (int blocks = 1; blocks <= 2; blocks++) {
		bench_init(&bench, two_candidates, blocks, (double[]){1, 1, 1.5, 0.5});
		judge(&bench);
		for (size_t i = 0; i < bench.n_rows; i++) {
			assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
			assert_non_null(strstr(bench.rows[i].reason, "inconclusive"));
		}
		bench_release(&bench);
	}
}

static void any_failed_launch_fails_the_arm_with_its_class_first(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.3, 1});
	struct launch_cell *cell = cell_of(&bench, 2, 1);
	cell->failure = FAILURE_OOM_LOAD;
	snprintf(cell->reason, sizeof cell->reason, "oom_load: needs mem_fraction 0.31");
	cell->log_metric[0] = NAN;
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	assert_string_equal(bench.rows[1].reason, "oom_load: needs mem_fraction 0.31 (1 of 4 launches)");
	assert_true(isnan(bench.rows[1].effect_pct) && isnan(bench.rows[1].p_adjusted));
	assert_int_equal(bench.rows[2].verdict, VERDICT_NEUTRAL);
	bench_release(&bench);
}

static void a_failed_candidate_stays_in_the_family(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.01, 1});
	judge(&bench);
	double p = bench.rows[1].p;
	assert_true(fabs(bench.rows[1].p_adjusted - fmin(1, 2 * p)) < 1e-12);
	/* Its good launches say nothing about the noise of others: three arms in four blocks are left. */
	cell_of(&bench, 3, 0)->failure = FAILURE_CRASH;
	judge(&bench);
	assert_string_equal(bench.rows[2].reason, "crash (1 of 4 launches)");
	assert_true(fabs(bench.rows[1].df - 6) < 1e-12);
	for (int block = 0; block < 4; block++)
		cell_of(&bench, 3, block)->failure = FAILURE_CRASH;
	judge(&bench);
	assert_string_equal(bench.rows[2].reason, "crash");
	assert_true(fabs(bench.rows[1].p_adjusted - fmin(1, 2 * bench.rows[1].p)) < 1e-12);
	bench_release(&bench);
}

static void a_failed_baseline_leaves_no_verdict(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1.3, 1});
	cell_of(&bench, 0, 2)->failure = FAILURE_CRASH;
	snprintf(cell_of(&bench, 0, 2)->reason, VERDICT_REASON_BYTES, "crash: signal 11");
	judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "crash: signal 11 (1 of 3 launches)");
	for (size_t i = 0; i < bench.n_rows; i++)
		assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
	bench_release(&bench);
}

static void no_launches_at_all_is_a_missing_baseline(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 0, NULL);
	judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "not measured");
	bench_release(&bench);
}

static void void_launches_are_neither_counted_nor_blamed(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 5, (double[]){1, 1, 1.3, 1});
	cell_of(&bench, 2, 1)->voided = true;
	cell_of(&bench, 2, 1)->failure = FAILURE_GUARD;
	cell_of(&bench, 2, 1)->log_metric[0] = log(1);
	cell_of(&bench, 2, 3)->voided = true; /* one that gave a number, such as under a throttled clock */
	cell_of(&bench, 2, 3)->log_metric[0] = log(50);
	for (int block = 0; block < 5; block++)
		cell_of(&bench, 3, block)->voided = true;
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HELPED);
	assert_int_equal(bench.rows[1].launches, 3);
	assert_true(fabs(bench.rows[1].effect_pct - 30) < 0.5);
	assert_int_equal(bench.rows[2].verdict, VERDICT_VOID);
	bench_release(&bench);
}

static void set_fingerprints(struct bench *bench, int arm, const char *texts)
{
	for (size_t i = 0; i < bench->n_cells; i++)
		if (bench->cells[i].arm == arm)
			bench->cells[i].fingerprint = (char *)texts;
}

static void other_text_than_the_baselines_is_wrong_output_however_fast(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 4, (double[]){1, 1, 1.5, 1.5});
	set_fingerprints(&bench, 0, "[\"one\",\"two\"]");
	set_fingerprints(&bench, 1, "[\"one\",\"two\"]");
	set_fingerprints(&bench, 2, "[\"one\",\"2\"]");
	set_fingerprints(&bench, 3, "[\"one\",\"two\"]");
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	assert_string_equal(bench.rows[1].reason, "wrong_output: 4 of 8 greedy texts differ from the baseline's");
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	set_fingerprints(&bench, 1, "[\"one\",\"zwei\"]"); /* the engine does not even repeat itself */
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HELPED);
	set_fingerprints(&bench, 2, "[\"one\"]"); /* a missing text is a different text */
	set_fingerprints(&bench, 1, "[\"one\",\"two\"]");
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_FAILED);
	bench_release(&bench);
}

static const char limited[] = "{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},"
			      "'verdict':{'constraints':[{'metric':'ttft_p90_ms','max_regress_pct':10}]}}";

static void a_gain_that_breaks_a_limit_hurts(void **state)
{
	struct bench bench;
	bench_init(&bench, limited, 4, (double[]){1, 1, 1.3, 1.3});
	for (int block = 0; block < 4; block++)
		cell_of(&bench, 2, block)->log_limit[0][0] = log(125 + block);
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_non_null(strstr(bench.rows[1].reason, "ttft_ms_p90 got 26."));
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	bench_release(&bench);
}

static void a_gain_whose_limit_is_doubtful_is_not_a_win(void **state)
{
	static const double wild[4] = {60, 190, 80, 170};
	struct bench bench;
	bench_init(&bench, limited, 4, (double[]){1, 1, 1.3, 1.3});
	for (int block = 0; block < 4; block++)
		cell_of(&bench, 2, block)->log_limit[0][0] = log(wild[block]);
	cell_of(&bench, 3, 0)->log_limit[0][0] = NAN;
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "inconclusive: ttft_ms_p90 may break its limit");
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	bench_release(&bench);
}

static const char screening[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'protocol':{'blocks':3,'max_blocks':8}}";

static void hopeless_arms_are_screened_after_two_blocks(void **state)
{
	struct bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	bench_init(&bench, screening, 2, (double[]){1, 1, 0.8, 0.9});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 3};
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_true(!dropped[0] && !dropped[1] && dropped[2] && !dropped[3]);
	add_cell(&bench, 0, 2, 100);
	add_cell(&bench, 1, 2, 100);
	add_cell(&bench, 3, 2, 90);
	judge_looks(&bench, 3);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_string_equal(bench.rows[1].reason, "screened: hopeless after 2 blocks");
	assert_int_equal(bench.rows[1].blocks, 2);
	input.n_cells = 7; /* the second block is not complete */
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2]);
	bench_release(&bench);
}

static void a_known_noise_screens_after_the_first_block(void **state)
{
	struct bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	bench_init(&bench, screening, 1, (double[]){1, 1, 0.8, 0.9});
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
	add_cell(&bench, 0, 1, 140);
	add_cell(&bench, 1, 1, 140);
	add_cell(&bench, 3, 1, 90);
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
	bench_release(&bench);
}

static void nothing_is_screened_unless_the_protocol_says_so(void **state)
{
	struct bench bench;
	bool dropped[EXPERIMENT_ARMS_MAX];
	bench_init(&bench, two_candidates, 2, (double[]){1, 1, 0.5, 0.5});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 1};
	assert_int_equal(verdict_screen(&input, dropped, NULL), STATUS_OK);
	assert_false(dropped[2] || dropped[3]);
	bench_release(&bench);
}

static void several_looks_use_the_pocock_level(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1.3, 1});
	judge_looks(&bench, 3);
	assert_true(fabs(bench.rows[1].level - 0.02205) < 1e-4);
	double wide = bench.rows[1].ci_high_pct - bench.rows[1].ci_low_pct;
	judge_looks(&bench, 1);
	assert_true(bench.rows[1].ci_high_pct - bench.rows[1].ci_low_pct < wide);
	bench_release(&bench);
}

/* r13_first_run_outlier: the first of five launches paid for lazy loading. Its mean is 40 % lower, which proves nothing. */
static void an_outlier_makes_noise_and_no_verdict(void **state)
{
	static const double field[] = {8026.1, 42899.4, 42934.0, 42990.2, 42911.7};
	static const double steady[] = {42950.3, 42880.2, 42990.6, 42921.5, 42933.8};
	struct bench bench;
	bench_init(&bench, two_candidates, 0, NULL);
	for (int arm = 0; arm < bench.experiment->n_arms; arm++)
		for (int block = 0; block < 5; block++)
			add_cell(&bench, arm, block, arm == 2 ? field[block] : steady[(block + arm) % 5]);
	judge(&bench);
	for (size_t i = 0; i < bench.n_rows; i++)
		assert_int_equal(bench.rows[i].verdict, VERDICT_NEUTRAL);
	assert_true(bench.rows[1].effect_pct < -25 && bench.rows[1].ci_high_pct > 0);
	assert_non_null(strstr(bench.rows[1].reason, "inconclusive: "));
	bench_release(&bench);
}

static void a_metric_without_a_value_is_said_to_have_none(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 3, (double[]){1, 1, 0, 1});
	judge(&bench);
	assert_false(bench.baseline_failed);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_string_equal(bench.rows[1].reason, "inconclusive: no launch gave a value above 0 of output_tps");
	assert_string_not_equal(bench.rows[2].reason, bench.rows[1].reason);
	bench_release(&bench);

	bench_init(&bench, two_candidates, 3, (double[]){NAN, NAN, 1, 1});
	judge(&bench);
	assert_true(bench.baseline_failed);
	assert_string_equal(bench.baseline_reason, "no launch gave a value above 0 of output_tps");
	assert_string_equal(bench.rows[1].reason, "inconclusive: the baseline gave no value above 0 of this metric");
	bench_release(&bench);
}

static void workloads_that_do_not_apply_give_no_row(void **state)
{
	struct bench bench;
	bench_init(&bench,
		"{'name':'v','matrix':{'factors':{'speculation':['off','ngram'],'graph_max_bs':[8,0]}},"
		"'workloads':[{'name':'a','applies_to':[{'speculation':'ngram'}]},{'name':'b'}]}",
		3, (double[]){1, 1, 1.3, 1});
	judge(&bench);
	assert_int_equal(bench.n_rows, 2);
	assert_int_equal(bench.rows[1].arm, 2);
	bench_release(&bench);
}

static void cells_of_unknown_arms_are_our_own_bug(void **state)
{
	struct bench bench;
	bench_init(&bench, two_candidates, 3, (double[]){1, 1, 1, 1});
	struct verdict_input input = {.experiment = bench.experiment, .cells = bench.cells, .n_cells = bench.n_cells, .n_looks = 1};
	bench.cells[0].arm = 4;
	assert_int_equal(verdict_compute(&input, 0, bench.rows, &bench.n_rows, &bench.baseline_failed, bench.baseline_reason, NULL),
		STATUS_INTERNAL);
	bench.cells[0].arm = 0;
	assert_int_equal(verdict_compute(&input, 1, bench.rows, &bench.n_rows, &bench.baseline_failed, bench.baseline_reason, NULL),
		STATUS_INTERNAL);
	bench_release(&bench);
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

/* --- simulation ----------------------------------------------------------------------------------------------------- */

/* One launch: 0.5 % between runs (two of them), 1 % between launches, 1 % of drift that follows the order of launches with lag-1
 * correlation 0.97. The order is the plan's. */
static void simulate(struct bench *bench, uint64_t seed, int blocks, double planted)
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
			add_cell(bench, plan[i].arm, block, 100 * exp(noise + (plan[i].arm == 5 ? log1p(planted) : 0)));
		}
	}
}

static const char eight_candidates[] =
	"{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,1,2,3,4,5,6,7]}},'protocol':{'blocks':3}}";

#define TRIALS 1500

static void nothing_changed_gives_few_false_verdicts(void **state)
{
	struct bench bench;
	int false_any = 0, false_all = 0, noisy = 0;
	bench_init(&bench, eight_candidates, 0, NULL);
	assert_int_equal(bench.experiment->n_arms, 10);
	for (int trial = 0; trial < TRIALS; trial++) {
		simulate(&bench, 1000 + (uint64_t)trial, 3, 0);
		judge(&bench);
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
	bench_release(&bench);
}

static void check_planted(double planted, enum verdict verdict)
{
	struct bench bench;
	int found = 0;
	double covered = 0;
	bench_init(&bench, eight_candidates, 0, NULL);
	for (int trial = 0; trial < TRIALS; trial++) {
		simulate(&bench, 900000 + (uint64_t)trial, 3, planted);
		judge(&bench);
		const struct verdict_row *row = &bench.rows[4]; /* arm 5 */
		found += row->verdict == verdict;
		covered += row->ci_low_pct <= 100 * planted && 100 * planted <= row->ci_high_pct;
		memset(bench.cells, 0, bench.n_cells * sizeof *bench.cells);
	}
	printf("%+.0f %% found in %.1f %% of experiments; its interval covers it in %.1f %%\n", 100 * planted,
		100.0 * found / TRIALS, 100 * covered / TRIALS);
	assert_true(found >= TRIALS * 95 / 100);
	assert_true(covered > TRIALS * 0.92);
	bench_release(&bench);
}

static void a_planted_five_percent_is_found(void **state)
{
	check_planted(0.05, VERDICT_HELPED);
	check_planted(-0.05, VERDICT_HURT);
}

static const char goodput[] =
	"{'name':'v','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'verdict':{'primary':{'metric':'goodput_rps'}},"
	"'workloads':[{'concurrency':1,'goodput':{'ttft_ms':50}}],'protocol':{'blocks':4,'screening':false}}";

/* Launches of different lengths, whose arms give so many requests a second; 0 as the store loads it. */
static void bench_init_goodput(struct bench *bench, const double *rates)
{
	bench_init(bench, goodput, 4, (double[]){1, 1, 1, 1});
	for (size_t i = 0; i < bench->n_cells; i++) {
		struct launch_cell *cell = &bench->cells[i];
		cell->requests[0] = 40;
		cell->seconds[0] = 10 + 3 * cell->block + cell->arm; /* half a request is another rate in each launch */
		cell->log_metric[0] = rates[cell->arm] > 0 ? cell->log_metric[0] + log(rates[cell->arm] / 100) : -INFINITY;
	}
}

static void zero_against_zero_is_no_effect_and_prints_as_zero(void **state)
{
	struct bench bench;
	bench_init_goodput(&bench, (double[]){0, 0, 0, 3});
	judge(&bench);
	assert_false(bench.baseline_failed);
	for (int i = 0; i < 2; i++) {
		const struct verdict_row *row = &bench.rows[i];
		assert_int_equal(row->verdict, VERDICT_NEUTRAL);
		assert_string_equal(row->reason, "equivalent: 0 on both sides");
		assert_true(row->metric == 0 && row->baseline_metric == 0);
		assert_true(row->effect_pct == 0 && row->ci_low_pct == 0 && row->ci_high_pct == 0 && row->p == 1);
	}
	bench_release(&bench);
}

static void a_gain_over_a_baseline_of_zero_helped_without_a_percentage(void **state)
{
	struct bench bench;
	bench_init_goodput(&bench, (double[]){0, 0, 3, 0.5});
	judge(&bench);
	for (int i = 1; i < 3; i++) {
		const struct verdict_row *row = &bench.rows[i];
		assert_int_equal(row->verdict, VERDICT_HELPED);
		assert_string_equal(row->reason, "the baseline gave 0 in every launch");
		assert_true(isnan(row->effect_pct) && isnan(row->ci_low_pct) && isnan(row->ci_high_pct));
		assert_true(row->p_adjusted < 0.05 && row->metric > 0.4 && row->baseline_metric == 0);
	}
	assert_true(bench.rows[1].log_effect > bench.rows[2].log_effect); /* the winner is still told */
	bench_release(&bench);
}

static void a_loss_of_everything_hurt_by_a_hundred_percent(void **state)
{
	struct bench bench;
	bench_init_goodput(&bench, (double[]){2, 2, 0, 3});
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_HURT);
	assert_string_equal(bench.rows[1].reason, "0 in every launch");
	assert_true(bench.rows[1].effect_pct == -100 && bench.rows[1].ci_low_pct == -100);
	assert_true(bench.rows[1].ci_high_pct > -100 && bench.rows[1].ci_high_pct < -90);
	assert_true(bench.rows[1].metric == 0);
	assert_int_equal(bench.rows[2].verdict, VERDICT_HELPED);
	assert_true(fabs(bench.rows[2].effect_pct - 50) < 1);
	bench_release(&bench);
}

/* Their own spread is nothing, and would make the noise of the others look half as large. */
static void settings_that_gave_nothing_do_not_narrow_the_intervals_of_others(void **state)
{
	struct bench all, zero;
	bench_init_goodput(&all, (double[]){2, 2, 2, 2});
	judge(&all);
	bench_init_goodput(&zero, (double[]){2, 2, 2, 0});
	judge(&zero);
	double width = all.rows[1].ci_high_pct - all.rows[1].ci_low_pct;
	assert_true(zero.rows[1].ci_high_pct - zero.rows[1].ci_low_pct > 0.8 * width);
	assert_true(zero.rows[1].df == 6); /* three arms in four blocks */
	bench_release(&all);
	bench_release(&zero);
}

/* 0 in one launch of four: too little to tell, and no launch is left out. */
static void a_zero_among_others_counts_as_half_a_request(void **state)
{
	struct bench bench;
	bench_init_goodput(&bench, (double[]){2, 2, 2, 2});
	cell_of(&bench, 2, 1)->log_metric[0] = -INFINITY;
	judge(&bench);
	assert_int_equal(bench.rows[1].verdict, VERDICT_NEUTRAL);
	assert_int_equal(bench.rows[1].launches, 4);
	assert_true(bench.rows[1].metric > 0 && bench.rows[1].metric < 1.2);
	assert_true(bench.rows[1].effect_pct < -40 && bench.rows[1].p > 0.05);
	bench_release(&bench);
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
		cmocka_unit_test(zero_against_zero_is_no_effect_and_prints_as_zero),
		cmocka_unit_test(a_gain_over_a_baseline_of_zero_helped_without_a_percentage),
		cmocka_unit_test(a_loss_of_everything_hurt_by_a_hundred_percent),
		cmocka_unit_test(settings_that_gave_nothing_do_not_narrow_the_intervals_of_others),
		cmocka_unit_test(a_zero_among_others_counts_as_half_a_request),
		cmocka_unit_test(workloads_that_do_not_apply_give_no_row),
		cmocka_unit_test(cells_of_unknown_arms_are_our_own_bug),
		cmocka_unit_test(the_minimum_effect_follows_known_twins_within_bounds),
		cmocka_unit_test(nothing_changed_gives_few_false_verdicts),
		cmocka_unit_test(a_planted_five_percent_is_found),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
