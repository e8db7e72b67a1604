/* harness/race, harness/prune and constraints between knobs: who leaves a race, what is never launched, and by simulation how many
 * launches a race takes against a fixed full design at equal error rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/random.h"
#include "harness/plan.h"
#include "harness/prune.h"
#include "harness/race.h"
#include "harness/run_loop.h"
#include "tests/support/experiment_text.h"
#include "tests/support/experiments.h"
#include "tests/support/roles.h"

#define CELLS_MAX 512

struct bench {
	struct experiment *experiment;
	struct launch_cell cells[CELLS_MAX];
	size_t n_cells;
	struct verdict_row rows[64];
	size_t n_rows;
	int stopped[EXPERIMENT_ARMS_MAX];
	struct race_place places[EXPERIMENT_ARMS_MAX];
};

static struct bench *bench_open(const char *text)
{
	struct bench *bench = mem_calloc(1, sizeof *bench);
	bench->experiment = experiment_from_text(text);
	return bench;
}

static void bench_close(struct bench *bench)
{
	experiment_release(bench->experiment);
	mem_free(bench);
}

static struct launch_cell *add_cell(struct bench *bench, int arm, int block, double log_value)
{
	struct launch_cell *cell = &bench->cells[bench->n_cells++];
	memset(cell, 0, sizeof *cell);
	cell->arm = arm;
	cell->block = block;
	for (int i = 0; i < bench->experiment->n_workloads; i++)
		cell->log_metric[i] = log_value;
	return cell;
}

static void race(struct bench *bench, int blocks)
{
	const struct looks looks = {.experiment = bench->experiment, .cells = bench->cells, .n_cells = bench->n_cells};
	struct err err = {0};
	if (race_run(&looks, blocks, bench->places, &err) ||
		looks_judge(&looks, blocks, bench->rows, &bench->n_rows, bench->stopped, &err))
		fail_msg("%s", err.text);
	race_explain(bench->experiment, bench->places, bench->rows, bench->n_rows);
}

static double noise(int arm, int block)
{
	static const double list[7] = {0.002, -0.001, 0.0005, -0.002, 0.0015, -0.0005, 0.001};
	return list[(arm * 3 + block * 5) % 7];
}

#define FOUR "{'name':'r','matrix':{'mode':'race','factors':{'graph_max_bs':[8,0,1,2,3]}}}"

static void clear_losers_leave_and_the_leader_stays(void **state)
{
	struct bench *bench = bench_open(FOUR);
	static const double gains[6] = {0, 0, 0.10, 0.04, 0.098, -0.2};
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 6; arm++)
			add_cell(bench, arm, block, gains[arm] + noise(arm, block));
	race(bench, 3);
	assert_int_equal(bench->experiment->protocol.max_blocks, 8);
	assert_int_equal(bench->experiment->protocol.n_looks, 3);
	assert_int_equal(bench->experiment->rules.confirm_winner_blocks, 3);
	assert_int_equal(bench->places[5].lost_after, 2);
	assert_int_equal(bench->places[3].lost_after, 2); /* it helps, but it cannot be the best */
	assert_true(bench->places[3].leader == 2 || bench->places[3].leader == 4);
	assert_int_equal(bench->places[2].lost_after + bench->places[4].lost_after, 0);
	assert_int_equal(bench->places[0].lost_after + bench->places[1].lost_after, 0); /* baseline and twin are the measure */
	assert_int_equal(bench->stopped[2], 0); /* helped, and not known to be the best */
	assert_false(race_over(bench->experiment, bench->places, bench->stopped, bench->rows, bench->n_rows));
	bench->places[4].lost_after = 3;
	assert_true(race_over(bench->experiment, bench->places, bench->stopped, bench->rows, bench->n_rows));
	bench_close(bench);
}

static void noise_alone_eliminates_nobody_and_one_block_never_does(void **state)
{
	struct bench *bench = bench_open(FOUR);
	for (int arm = 0; arm < 6; arm++)
		add_cell(bench, arm, 0, -0.1 * arm);
	race(bench, 1);
	for (int arm = 0; arm < 6; arm++)
		assert_int_equal(bench->places[arm].lost_after, 0);
	bench->n_cells = 0;
	for (int block = 0; block < 4; block++)
		for (int arm = 0; arm < 6; arm++)
			add_cell(bench, arm, block, noise(arm, block));
	add_cell(bench, 2, 4, -9)->failure = FAILURE_CRASH; /* failures are the verdict's business */
	race(bench, 5);
	for (int arm = 0; arm < 6; arm++)
		assert_int_equal(bench->places[arm].lost_after, 0);
	bench_close(bench);
}

static void a_loser_of_one_load_only_stays(void **state)
{
	struct bench *bench =
		bench_open("{'name':'r','matrix':{'mode':'race','factors':{'graph_max_bs':[8,0,1]}},'workloads':[{'name':'a'},"
			   "{'name':'b'}]}");
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++) {
			struct launch_cell *cell = add_cell(bench, arm, block, (arm == 2 ? 0.3 : 0) + noise(arm, block));
			cell->log_metric[1] = (arm == 3 ? 0.3 : 0) + noise(arm, block);
		}
	race(bench, 3);
	assert_int_equal(bench->places[2].lost_after + bench->places[3].lost_after, 0);
	bench_close(bench);
}

/* --- simulation: a race against every arm in every block ------------------------------------------------------------ */

#define RACERS 12
#define TRIALS 60
#define RACE_TEXT \
	"{'name':'s','matrix':{'mode':'race','factors':{'graph_max_bs':[99,0,1,2,3,4,5,6,7,8,9,10,11]}},'protocol':{'screening':" \
	"false}}"

/* One setting of twelve is best by 3 %: the others are the baseline's equals, smaller gains and losses, as sweeps find them. */
static const double field[RACERS + 2] = {0, 0, 0.06, 0.03, 0.02, 0, 0, 0, 0, -0.02, -0.03, -0.05, -0.10, -0.20};

struct outcome {
	int launches;
	bool best_found, false_verdict;
};

static void tally(struct bench *bench, int winner, struct outcome *outcome)
{
	outcome->best_found = winner == 2;
	for (size_t i = 1; i < bench->n_rows; i++) {
		const struct verdict_row *row = &bench->rows[i];
		double truth = field[row->arm];
		outcome->false_verdict = outcome->false_verdict || (row->verdict == VERDICT_HELPED && truth <= 0) ||
			(row->verdict == VERDICT_HURT && truth >= 0);
	}
}

/* Plays to the end and returns what came of it; full: every arm in every block, judged once at the end. */
static struct outcome play(struct bench *bench, uint64_t seed, bool full)
{
	struct experiment *experiment = bench->experiment;
	bool dropped[EXPERIMENT_ARMS_MAX] = {false};
	struct plan_launch plan[EXPERIMENT_ARMS_MAX];
	struct outcome outcome = {0};
	double drift = 0.01 * random_normal(seed, 0, 0);
	uint64_t draw = 1;
	bench->n_cells = 0;
	experiment->protocol.order_seed = seed;
	experiment->protocol.level_looks = full ? 1 : 3;
	for (int block = 0; block < 8; block++) {
		int n = plan_block(experiment, block, full ? NULL : dropped, plan);
		outcome.launches += n;
		for (int i = 0; i < n; i++, draw++) {
			drift = 0.97 * drift + 0.01 * sqrt(1 - 0.97 * 0.97) * random_normal(seed, 1, draw);
			add_cell(
				bench, plan[i].arm, block, drift + 0.01 * random_normal(seed, 2, draw) + log1p(field[plan[i].arm]));
		}
		if (full)
			continue;
		const struct looks looks = {.experiment = experiment, .cells = bench->cells, .n_cells = bench->n_cells};
		bool look = block == 2 || block == 4 || block == 7;
		if (look)
			race(bench, block + 1);
		else
			assert_int_equal(race_run(&looks, block + 1, bench->places, NULL), STATUS_OK);
		for (int arm = 0; arm < experiment->n_arms; arm++)
			dropped[arm] = dropped[arm] || (look && bench->stopped[arm]) || bench->places[arm].lost_after;
		if (look && race_over(experiment, bench->places, bench->stopped, bench->rows, bench->n_rows))
			break;
	}
	if (full) {
		struct verdict_input input = {
			.experiment = experiment, .cells = bench->cells, .n_cells = bench->n_cells, .n_looks = 1};
		char reason[VERDICT_REASON_BYTES];
		bool failed;
		assert_int_equal(verdict_compute(&input, 0, bench->rows, &bench->n_rows, &failed, reason, NULL), STATUS_OK);
	}
	tally(bench, looks_winner(experiment, bench->rows, bench->n_rows), &outcome);
	return outcome;
}

static void a_race_finds_the_best_with_far_fewer_launches_than_a_full_design(void **state)
{
	struct bench *bench = bench_open(RACE_TEXT);
	long launches[2] = {0, 0};
	int best[2] = {0, 0}, wrong[2] = {0, 0};
	for (uint64_t trial = 0; trial < TRIALS; trial++)
		for (int full = 0; full < 2; full++) {
			struct outcome outcome = play(bench, 31000 + trial, full == 1);
			launches[full] += outcome.launches;
			best[full] += outcome.best_found;
			wrong[full] += outcome.false_verdict;
		}
	double share = 100.0 * (double)launches[0] / (double)launches[1];
	printf("race: %.1f launches, best of %d found in %.1f %%, a false verdict in %.1f %%; full design: %.1f launches, %.1f %%, "
	       "%.1f %%; the "
	       "race takes %.0f %%\n",
		(double)launches[0] / TRIALS, RACERS, 100.0 * best[0] / TRIALS, 100.0 * wrong[0] / TRIALS,
		(double)launches[1] / TRIALS, 100.0 * best[1] / TRIALS, 100.0 * wrong[1] / TRIALS, share);
	assert_true(share <= 60);
	assert_true(best[0] >= TRIALS * 95 / 100);
	assert_true(wrong[0] <= TRIALS * 5 / 100);
	bench_close(bench);
}

/* --- constraints ---------------------------------------------------------------------------------------------------- */

static void expect_arms(const char *text, const char *expected)
{
	struct experiment *experiment = experiment_from_text(text);
	struct text names = {0};
	for (int i = 2; i < experiment->n_arms; i++)
		text_printf(&names, "%s%s", i > 2 ? " " : "", experiment->arms[i].name);
	assert_string_equal(text_str(&names), expected);
	text_release(&names);
	experiment_release(experiment);
}

#define GRID \
	"{'name':'c','engine':{'adapter':'llamacpp','command':['llama-server']},'matrix':{'mode':'grid','factors':{'batch_size':[" \
	"512,256]," \
	"'ubatch_size':[128,512],'threads':[4,3]},'constraints':["

static void settings_that_break_a_constraint_are_left_out(void **state)
{
	expect_arms(GRID
		"{'left':'ubatch_size','is':'at_most','right':'batch_size'},{'left':'threads','is':'divides','right':512}]}}",
		"ubatch_size=512 batch_size=256");
	expect_arms(GRID "{'left':['threads','ubatch_size'],'is':'at_most','right':512},{'when':{'batch_size':256},'require':{'"
			 "threads':4}}]}}",
		"threads=3 batch_size=256");
	expect_arms(GRID "{'when':{'threads':3},'left':'batch_size','is':'equal','right':0},{'left':'ubatch_size','is':'not_equal',"
			 "'right':512}]}}",
		"batch_size=256");
}

static void malformed_constraints_are_told_with_their_place(void **state)
{
	static const char *const cases[][2] = {
		{GRID "{'left':'ubatch','is':'at_most','right':1}]}}", "'ubatch' is no knob"},
		{GRID "{'left':'threads','is':'below','right':1}]}}", "is"},
		{GRID "{'left':'threads','right':1}]}}", "must have left, is and right"},
		{GRID "{'require':{'threads':4}}]}}", "must have left, is and right"},
		{GRID "{'left':'threads','is':'at_most','right':3}]}}", "the baseline breaks"},
		{GRID "{'left':[],'is':'at_most','right':3}]}}", "must be a knob"},
		{GRID "{'left':[['threads']],'is':'at_most','right':3}]}}", "must be a knob or a number"},
		{GRID "{'left':'threads','is':'at_most','right':9,'unless':1}]}}", "unknown key"},
		{GRID "3]}}", "must be"},
		{"{'name':'c','matrix':{'factors':{'mem_fraction':[0.8,0.9]},'monotone_oom':{'mem_fraction':'left'}}}",
			"must be \"up\""},
		{"{'name':'c','matrix':{'factors':{'mem_fraction':[0.8,0.9]},'monotone_oom':{'kv':'up'}}}", "'kv' is no knob"},
	};
	struct err err = {0};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (!strstr(experiment_complaint(cases[i][0], &err), cases[i][1]))
			fail_msg("case %zu: %s", i, err.text);
}

/* --- memory ------------------------------------------------------------------------------------------------------------ */

#define MONOTONE \
	"{'name':'m','baseline':{'params':{'mem_fraction':0.8,'graph_max_bs':8,'speculation':'off'}},'matrix':{'mode':'grid','" \
	"factors':{" \
	"'mem_fraction':[0.8,0.9,0.95],'graph_max_bs':[8,32],'speculation':['off','ngram']}," \
	"'monotone_oom':{'mem_fraction':'up','graph_max_bs':'up'}}}"

static int arm_named(const struct experiment *experiment, const char *name)
{
	for (int i = 0; i < experiment->n_arms; i++)
		if (strcmp(experiment->arms[i].name, name) == 0)
			return i;
	fail_msg("no arm %s", name);
	return -1;
}

static const struct launch_cell *pruned_cell(const struct launch_cells *cells, int arm)
{
	for (size_t i = 0; i < cells->count; i++)
		if (cells->items[i].arm == arm)
			return &cells->items[i];
	return NULL;
}

static void what_asks_more_memory_than_a_failure_is_not_launched(void **state)
{
	struct experiment *experiment = experiment_from_text(MONOTONE);
	struct launch_cells cells = {mem_calloc(1, sizeof *cells.items), 1};
	cells.items[0] =
		(struct launch_cell){.arm = arm_named(experiment, "mem_fraction=0.9"), .block = 1, .failure = FAILURE_OOM_RUN};
	prune_add(experiment, NULL, &cells);
	assert_int_equal(cells.count, 4);
	static const char *const pruned[] = {
		"mem_fraction=0.95", "mem_fraction=0.9+graph_max_bs=32", "mem_fraction=0.95+graph_max_bs=32"};
	bool dropped[EXPERIMENT_ARMS_MAX];
	assert_int_equal(run_loop_dropped(experiment, &cells, 0, NULL, dropped, NULL), STATUS_OK);
	for (size_t i = 0; i < 3; i++) {
		const struct launch_cell *cell = pruned_cell(&cells, arm_named(experiment, pruned[i]));
		assert_non_null(cell);
		assert_string_equal(cell->reason, "oom_run: not launched: mem_fraction=0.9 asks less, and ran out of memory");
		assert_true(cell->pruned && dropped[cell->arm]);
	}
	assert_false(dropped[arm_named(experiment, "mem_fraction=0.95+speculation=ngram")]); /* another knob differs */
	assert_int_equal(run_loop_done(experiment, &cells), 1);
	/* Its verdict says why, and counts no launches. */
	struct verdict_row rows[EXPERIMENT_ARMS_MAX];
	struct verdict_input input = {.experiment = experiment, .cells = cells.items, .n_cells = cells.count, .n_looks = 1};
	char reason[VERDICT_REASON_BYTES];
	bool failed;
	size_t n_rows;
	assert_int_equal(verdict_compute(&input, 0, rows, &n_rows, &failed, reason, NULL), STATUS_OK);
	const struct verdict_row *row = &rows[arm_named(experiment, "mem_fraction=0.95") - 1];
	assert_int_equal(row->verdict, VERDICT_FAILED);
	assert_int_equal(row->launches, 0);
	assert_true(strncmp(row->reason, "oom_run: not launched", 21) == 0);
	launch_cells_release(&cells);
	experiment_release(experiment);
}

/* The stub refuses mem_fraction below what it needs: there smaller asks more of the weights' share. */
static void memory_that_ran_out_is_remembered_by_the_next_experiment(void **state)
{
	char folder[] = "/tmp/verdict-race-XXXXXX", file[64], db[64];
	struct text text = {0}, errors = {0};
	assert_non_null(mkdtemp(folder));
	snprintf(file, sizeof file, "%s/e.json", folder);
	snprintf(db, sizeof db, "%s/r.db", folder);
	struct stub_experiment options = {.baseline = "{\"mem_fraction\": 0.9}",
		.matrix = "{\"factors\": {\"mem_fraction\": [0.9, 0.2, 0.1]}, \"monotone_oom\": {\"mem_fraction\": \"down\"}, "
			  "\"aa_twin\": false}",
		.protocol = "{\"blocks\": 1, \"max_blocks\": 1, \"runs_per_launch\": 1, \"order_seed\": 3}",
		.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"};
	stub_experiment_text(&options, &text);
	assert_int_equal(file_write_atomic(file, text.data, text.len, NULL), STATUS_OK);
	const char *const arguments[] = {"run", file, "--db", db, NULL};
	for (int again = 0; again < 2; again++) {
		text_clear(&text);
		text_clear(&errors);
		assert_int_equal(support_run(arguments, &text, &errors), 0);
		struct store *store = NULL;
		struct json *rows = NULL;
		assert_int_equal(store_open(db, &store, NULL), STATUS_OK);
		assert_int_equal(store_history(store, NULL, &rows, NULL), STATUS_OK);
		assert_int_equal(json_count(rows), 2 * (size_t)(again + 1));
		for (size_t i = 0; i < 2; i++) {
			assert_string_equal(json_text(json_get(json_at(rows, i), "verdict")), "failed");
			if (again)
				assert_non_null(strstr(
					json_text(json_get(json_at(rows, i), "reason")), "ran out of memory in experiment 1"));
		}
		json_free(rows);
		store_close(store);
	}
	assert_non_null(strstr(text_str(&errors), "not launched"));
	text_release(&text);
	text_release(&errors);
	static const char *const names[] = {"e.json", "r.db", "r.db-wal", "r.db-shm"};
	for (size_t i = 0; i < 4; i++) {
		snprintf(file, sizeof file, "%s/%s", folder, names[i]);
		unlink(file);
	}
	assert_int_equal(rmdir(folder), 0);
}

static void a_budget_of_launches_ends_the_run_with_verdicts(void **state)
{
	char folder[] = "/tmp/verdict-race-XXXXXX", file[64], db[64];
	struct text text = {0}, errors = {0};
	assert_non_null(mkdtemp(folder));
	snprintf(file, sizeof file, "%s/e.json", folder);
	snprintf(db, sizeof db, "%s/r.db", folder);
	stub_experiment_text(
		&(struct stub_experiment){.protocol = "{\"blocks\": 3, \"runs_per_launch\": 1, \"budget_launches\": 5}",
			.guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}"},
		&text);
	assert_int_equal(file_write_atomic(file, text.data, text.len, NULL), STATUS_OK);
	const char *const arguments[] = {"run", file, "--db", db, NULL};
	text_clear(&text);
	assert_int_equal(support_run(arguments, &text, &errors), 0);
	assert_non_null(strstr(text_str(&errors), "the budget of 5 launches allows no block after block 2"));
	assert_non_null(strstr(text_str(&text), "inconclusive"));
	text_release(&text);
	text_release(&errors);
	static const char *const names[] = {"e.json", "r.db", "r.db-wal", "r.db-shm"};
	for (size_t i = 0; i < 4; i++) {
		snprintf(file, sizeof file, "%s/%s", folder, names[i]);
		unlink(file);
	}
	assert_int_equal(rmdir(folder), 0);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clear_losers_leave_and_the_leader_stays),
		cmocka_unit_test(noise_alone_eliminates_nobody_and_one_block_never_does),
		cmocka_unit_test(a_loser_of_one_load_only_stays),
		cmocka_unit_test(a_race_finds_the_best_with_far_fewer_launches_than_a_full_design),
		cmocka_unit_test(settings_that_break_a_constraint_are_left_out),
		cmocka_unit_test(malformed_constraints_are_told_with_their_place),
		cmocka_unit_test(what_asks_more_memory_than_a_failure_is_not_launched),
		cmocka_unit_test(memory_that_ran_out_is_remembered_by_the_next_experiment),
		cmocka_unit_test(a_budget_of_launches_ends_the_run_with_verdicts),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
