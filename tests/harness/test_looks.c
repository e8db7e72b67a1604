/* harness/looks: which arms stop when, what their verdicts rest on, and by simulation what looks at 3, 5 and 8 blocks cost in false
 * verdicts and save in launches; the winner's confirmation, by itself and in a whole run against the stub engine. */
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
#include "harness/looks.h"
#include "harness/plan.h"
#include "harness/store.h"
#include "tests/support/experiment_text.h"
#include "tests/support/experiments.h"
#include "tests/support/roles.h"

#define CELLS_MAX 512

struct bench {
	struct experiment *experiment;
	struct launch_cell cells[CELLS_MAX];
	size_t n_cells;
	struct verdict_row rows[32];
	size_t n_rows;
	int stopped[EXPERIMENT_ARMS_MAX];
};

/* One bench is as large as a small stack. */
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

static void add_cell(struct bench *bench, int arm, int block, double log_value)
{
	struct launch_cell *cell = &bench->cells[bench->n_cells++];
	memset(cell, 0, sizeof *cell);
	cell->arm = arm;
	cell->block = block;
	for (int i = 0; i < bench->experiment->n_workloads; i++)
		cell->log_metric[i] = log_value;
}

static struct looks looks_of(struct bench *bench)
{
	return (struct looks){.experiment = bench->experiment, .cells = bench->cells, .n_cells = bench->n_cells};
}

static void judge(struct bench *bench, int blocks)
{
	struct looks looks = looks_of(bench);
	struct err err = {0};
	if (looks_judge(&looks, blocks, bench->rows, &bench->n_rows, bench->stopped, &err))
		fail_msg("%s", err.text);
}

/* ± 0.2 % that differs by arm and block. */
static double noise(int arm, int block)
{
	static const double list[7] = {0.002, -0.001, 0.0005, -0.002, 0.0015, -0.0005, 0.001};
	return list[(arm * 3 + block * 5) % 7];
}

#define LOOKS_TEXT \
	"{'name':'l','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'workloads':[{'name':'a'},{'name':'b'}],'protocol':{'looks':[" \
	"3,5,8]}}"

static void an_arm_that_is_decided_stops_and_keeps_its_verdict(void **state)
{
	struct bench *bench = bench_open(LOOKS_TEXT);
	for (int block = 0; block < 5; block++)
		for (int arm = 0; arm < 4; arm++)
			if (arm != 2 || block < 3)
				add_cell(bench, arm, block,
					(arm == 2                  ? 0.3
							: arm == 3 ? 0.02 * (block % 2)
								   : 0) +
						noise(arm, block));
	judge(bench, 3);
	assert_int_equal(bench->n_rows, 6);
	assert_int_equal(bench->stopped[2], 3);
	assert_int_equal(bench->stopped[0] + bench->stopped[1] + bench->stopped[3], 0);
	struct verdict_row early = bench->rows[1];
	assert_int_equal(early.arm, 2);
	assert_int_equal(early.verdict, VERDICT_HELPED);
	assert_true(fabs(early.level - 0.02205) < 1e-4);
	judge(bench, 5);
	assert_int_equal(bench->stopped[2], 3);
	assert_memory_equal(&bench->rows[1].effect_pct, &early.effect_pct, sizeof early.effect_pct);
	assert_int_equal(bench->rows[1].blocks, 3);
	assert_int_equal(bench->rows[2].blocks, 5);
	bench_close(bench);
}

static void a_look_knows_nothing_of_later_launches(void **state)
{
	struct bench *bench = bench_open(LOOKS_TEXT);
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++)
			add_cell(bench, arm, block, (arm == 2 ? 0.021 : 0) + noise(arm, block));
	judge(bench, 3);
	struct verdict_row before = bench->rows[1];
	for (int arm = 0; arm < 4; arm++) /* a block that was begun when the run was killed */
		add_cell(bench, arm, 3, arm == 2 ? 5 : 0);
	judge(bench, 3);
	assert_memory_equal(&bench->rows[1].effect_pct, &before.effect_pct, sizeof before.effect_pct);
	assert_int_equal(bench->rows[1].blocks, 3);
	bench_close(bench);
}

static void an_arm_undecided_under_one_load_goes_on(void **state)
{
	struct bench *bench = bench_open(LOOKS_TEXT);
	for (int block = 0; block < 3; block++)
		for (int arm = 0; arm < 4; arm++) {
			add_cell(bench, arm, block, (arm == 2 ? 0.3 : 0) + noise(arm, block));
			bench->cells[bench->n_cells - 1].log_metric[1] = arm == 2 ? 0.06 * block : noise(arm, block);
		}
	judge(bench, 3);
	assert_int_equal(bench->rows[1].verdict, VERDICT_HELPED);
	assert_int_equal(bench->stopped[2], 0);
	bench_close(bench);
}

static void added_blocks_open_every_arm_again(void **state)
{
	struct bench *bench = bench_open(LOOKS_TEXT);
	for (int block = 0; block < 4; block++)
		for (int arm = 0; arm < 4; arm++)
			add_cell(bench, arm, block, (arm == 2 ? 0.3 : 0) + noise(arm, block));
	assert_int_equal(experiment_extend(bench->experiment, 3, 4, NULL), STATUS_OK);
	judge(bench, 4);
	assert_int_equal(bench->rows[1].blocks, 4);
	assert_int_equal(bench->stopped[2], 4);
	bench_close(bench);
}

static void the_winner_is_the_largest_gain_that_spoils_nothing(void **state)
{
	struct bench *bench = bench_open(LOOKS_TEXT);
	struct verdict_row rows[] = {
		{.arm = 1, .workload = 0, .verdict = VERDICT_HELPED, .log_effect = 0.4}, /* the twin wins nothing */
		{.arm = 2, .workload = 0, .verdict = VERDICT_HELPED, .log_effect = 0.086},
		{.arm = 3, .workload = 0, .verdict = VERDICT_HELPED, .log_effect = 0.049},
		{.arm = 2, .workload = 1, .verdict = VERDICT_HURT, .log_effect = -0.03},
		{.arm = 3, .workload = 1, .verdict = VERDICT_NEUTRAL, .log_effect = 0.001},
	};
	assert_int_equal(looks_winner(bench->experiment, rows, 5), 3);
	rows[3].verdict = VERDICT_NEUTRAL;
	assert_int_equal(looks_winner(bench->experiment, rows, 5), 2);
	rows[1].verdict = rows[2].verdict = VERDICT_NEUTRAL;
	assert_int_equal(looks_winner(bench->experiment, rows, 5), 0);
	bench_close(bench);
}

static void a_confirmation_rests_on_its_own_launches_alone(void **state)
{
	struct bench *bench = bench_open("{'name':'l','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'protocol':{'blocks':3},"
					 "'verdict':{'confirm_winner_blocks':3}}");
	for (int block = 0; block < 6; block++)
		for (int arm = 0; arm < 4; arm++)
			if (block < 3 || arm != 3)
				add_cell(bench, arm, block, (arm == 2 ? (block < 3 ? 0.1 : 0.06) : 0) + noise(arm, block));
	judge(bench, 3);
	assert_int_equal(looks_winner(bench->experiment, bench->rows, bench->n_rows), 2);
	assert_true(bench->rows[1].effect_pct > 10);
	looks_mark_unconfirmed(bench->experiment, 2, bench->rows, bench->n_rows);
	assert_string_equal(bench->rows[1].reason, "to be confirmed with fresh launches in 3 blocks");
	struct looks looks = looks_of(bench);
	assert_int_equal(looks_confirm(&looks, 2, 3, 3, bench->rows, bench->n_rows, NULL), STATUS_OK);
	assert_int_equal(bench->rows[1].verdict, VERDICT_HELPED);
	assert_string_equal(bench->rows[1].reason, "confirmed with fresh launches in 3 blocks");
	assert_string_equal(bench->rows[1].method, "confirmation");
	assert_true(fabs(bench->rows[1].effect_pct - 6.2) < 0.4);
	assert_true(bench->rows[1].level == 0.05 && bench->rows[1].p_adjusted == bench->rows[1].p);
	for (size_t i = 0; i < bench->n_cells; i++) /* nothing is left of it */
		if (bench->cells[i].block >= 3)
			bench->cells[i].log_metric[0] = noise(bench->cells[i].arm, bench->cells[i].block);
	looks = looks_of(bench);
	assert_int_equal(looks_confirm(&looks, 2, 3, 3, bench->rows, bench->n_rows, NULL), STATUS_OK);
	assert_int_equal(bench->rows[1].verdict, VERDICT_NEUTRAL);
	assert_non_null(strstr(bench->rows[1].reason, "not confirmed: equivalent"));
	bench_close(bench);
}

/* --- simulation ----------------------------------------------------------------------------------------------------- */

#define EIGHT "{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,1,2,3,4,5,6,7]}},'protocol':{'looks':[3,5,8]}}"
#define TRIALS 200

/* Plays an experiment to its end: 1 % between launches, 1 % of drift with lag-1 correlation 0.97 in the plan's order. Arm 5 is
 * better by planted. Returns launches. */
static int play(struct bench *bench, uint64_t seed, double planted)
{
	struct experiment *experiment = bench->experiment;
	bool dropped[EXPERIMENT_ARMS_MAX] = {false};
	struct plan_launch plan[EXPERIMENT_ARMS_MAX];
	double drift = 0.01 * random_normal(seed, 0, 0);
	uint64_t draw = 1;
	int launches = 0;
	bench->n_cells = 0;
	experiment->protocol.order_seed = seed;
	for (int block = 0; block < experiment->protocol.max_blocks; block++) {
		int n = plan_block(experiment, block, dropped, plan), live = 0;
		launches += n;
		for (int i = 0; i < n; i++) {
			drift = 0.97 * drift + 0.01 * sqrt(1 - 0.97 * 0.97) * random_normal(seed, 1, draw);
			add_cell(bench, plan[i].arm, block,
				drift + 0.01 * random_normal(seed, 2, draw) + (plan[i].arm == 5 ? log1p(planted) : 0));
			draw++;
		}
		if (block != 2 && block != 4 && block != 7)
			continue;
		judge(bench, block + 1);
		for (int arm = 0; arm < experiment->n_arms; arm++) {
			dropped[arm] = bench->stopped[arm] > 0;
			live += experiment->arms[arm].kind == ARM_CANDIDATE && !dropped[arm];
		}
		if (!live)
			break;
	}
	return launches;
}

static void looks_keep_false_verdicts_rare_and_save_launches(void **state)
{
	struct bench *bench = bench_open(EIGHT);
	int families = 0, candidates = 0, found = 0;
	long launches = 0, planted_launches = 0;
	for (uint64_t trial = 0; trial < TRIALS; trial++) {
		bool any = false;
		launches += play(bench, 5000 + trial, 0);
		for (size_t i = 1; i < bench->n_rows; i++) {
			bool wrong = bench->rows[i].verdict == VERDICT_HELPED || bench->rows[i].verdict == VERDICT_HURT;
			candidates += wrong;
			any = any || wrong;
		}
		families += any;
		planted_launches += play(bench, 700000 + trial, 0.05);
		found += bench->rows[4].arm == 5 && bench->rows[4].verdict == VERDICT_HELPED;
	}
	double full = (double)TRIALS * bench->experiment->n_arms * 8;
	printf("looks at 3, 5, 8 blocks, 8 candidates: false verdicts in %.1f %% of families, %.2f %% of candidates; +5 %% found "
	       "in "
	       "%.1f %%; launches %.0f %% (nothing changed) and %.0f %% (+5 %%) of 8 full blocks\n",
		100.0 * families / TRIALS, 100.0 * candidates / (8.0 * TRIALS), 100.0 * found / TRIALS,
		100 * (double)launches / full, 100 * (double)planted_launches / full);
	assert_true(families <= TRIALS * 5 / 100);
	assert_true(candidates <= 8 * TRIALS / 100);
	assert_true(found >= TRIALS * 95 / 100);
	bench_close(bench);
}

/* What an extension of an inconclusive experiment adds to false verdicts: see harness/README.md. */
static void extending_what_is_inconclusive_adds_few_false_verdicts(void **state)
{
	struct bench *bench =
		bench_open("{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,1,2,3,4,5,6,7]}},'protocol':{'blocks':3,"
			   "'max_blocks':3}}");
	struct protocol before = bench->experiment->protocol;
	int families = 0;
	for (uint64_t trial = 0; trial < TRIALS; trial++) {
		bool any = false, open = false;
		bench->experiment->protocol = before;
		play(bench, 90000 + trial, 0);
		for (size_t i = 1; i < bench->n_rows; i++) {
			any = any || bench->rows[i].verdict == VERDICT_HELPED || bench->rows[i].verdict == VERDICT_HURT;
			open = open || !bench->rows[i].decided;
		}
		if (open) { /* three more blocks, as a user adds who wants an answer */
			assert_int_equal(experiment_extend(bench->experiment, 3, 6, NULL), STATUS_OK);
			bench->experiment->protocol.max_blocks = 6;
			play(bench, 90000 + trial, 0);
			judge(bench, 6);
			for (size_t i = 1; i < bench->n_rows; i++)
				any = any || bench->rows[i].verdict == VERDICT_HELPED || bench->rows[i].verdict == VERDICT_HURT;
		}
		families += any;
	}
	printf("extended where inconclusive: any false verdict, before or after, in %.1f %% of families of 8\n",
		100.0 * families / TRIALS);
	assert_true(families <= TRIALS * 7 / 100);
	bench_close(bench);
}

/* --- a whole run ---------------------------------------------------------------------------------------------------- */

static void a_run_confirms_its_winner_and_publishes_that_alone(void **state)
{
	char folder[] = "/tmp/verdict-looks-XXXXXX", file[64], db[64];
	const char *stub[] = {"--tells-acceptance", NULL}; /* which no busy machine changes */
	struct text text = {0}, errors = {0};
	assert_non_null(mkdtemp(folder));
	snprintf(file, sizeof file, "%s/e.json", folder);
	snprintf(db, sizeof db, "%s/r.db", folder);
	stub_experiment_text(&(struct stub_experiment){.stub = stub,
				     .baseline = "{\"speculation\": \"off\", \"allreduce\": \"shm-flag\"}",
				     .matrix = "{\"factors\": {\"speculation\": [\"off\", \"ngram\"], \"allreduce\": "
					       "[\"shm-flag\", \"ref-socket\"]}, "
					       "\"aa_twin\": false}",
				     .protocol = "{\"looks\": [3, 5], \"screening\": false, \"runs_per_launch\": 1, \"warmup\": "
						 "{\"requests_per_slot\": "
						 "0}, \"stall_s\": 5}",
				     .guards = "{\"greedy_fingerprint\": {\"prompts\": 0}}",
				     .verdict = "{\"primary\": {\"metric\": \"accept_frac\"}, \"confirm_winner_blocks\": 3}"},
		&text);
	assert_int_equal(file_write_atomic(file, text.data, text.len, NULL), STATUS_OK);
	const char *const arguments[] = {"run", file, "--db", db, "--resume", NULL};
	for (int again = 0; again < 2; again++) { /* the second finds nothing to do and says the same */
		text_clear(&text);
		text_clear(&errors);
		assert_int_equal(support_run(arguments, &text, &errors), 0);
		struct store *store = NULL;
		struct json *record = NULL;
		assert_int_equal(store_open(db, &store, NULL), STATUS_OK);
		assert_int_equal(store_export(store, 1, &record, NULL), STATUS_OK);
		assert_int_equal(json_count(json_get(record, "launches")), 3 * 3 + 3 * 2);
		const struct json *verdict = json_at(json_get(record, "verdicts"), 0);
		assert_string_equal(json_text(json_get(verdict, "verdict")), "helped");
		assert_string_equal(json_text(json_get(verdict, "method")), "confirmation");
		assert_int_equal(json_int(json_get(verdict, "launches"), 0), 3);
		assert_int_equal(json_int(json_get(json_at(json_get(record, "confirmation"), 0), "from_block"), 0), 3);
		assert_non_null(strstr(text_str(&text), "confirmed with fresh launches in 3 blocks"));
		json_free(record);
		store_close(store);
	}
	const char *const more[] = {"more", "1", "--blocks", "1", "--db", db, NULL};
	text_clear(&errors);
	assert_int_equal(support_run(more, &text, &errors), 2);
	assert_non_null(strstr(text_str(&errors), "confirmation of its winner"));
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
		cmocka_unit_test(an_arm_that_is_decided_stops_and_keeps_its_verdict),
		cmocka_unit_test(a_look_knows_nothing_of_later_launches),
		cmocka_unit_test(an_arm_undecided_under_one_load_goes_on),
		cmocka_unit_test(added_blocks_open_every_arm_again),
		cmocka_unit_test(the_winner_is_the_largest_gain_that_spoils_nothing),
		cmocka_unit_test(a_confirmation_rests_on_its_own_launches_alone),
		cmocka_unit_test(looks_keep_false_verdicts_rare_and_save_launches),
		cmocka_unit_test(extending_what_is_inconclusive_adds_few_false_verdicts),
		cmocka_unit_test(a_run_confirms_its_winner_and_publishes_that_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
