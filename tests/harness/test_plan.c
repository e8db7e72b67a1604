/* harness/plan: order of launches and estimates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "harness/plan.h"
#include "tests/support/experiment_text.h"

static const char four_arms[] =
	"{'name':'p','matrix':{'factors':{'graph_max_bs':[8,0,16]}},'protocol':{'blocks':4,'order_seed':7}}";

static void every_block_launches_every_arm_once(void **state)
{
	struct experiment *experiment = experiment_from_text(four_arms);
	struct plan_launch launches[EXPERIMENT_ARMS_MAX];
	assert_int_equal(experiment->n_arms, 4);
	for (int block = 0; block < 20; block++) {
		bool seen[4] = {false};
		assert_int_equal(plan_block(experiment, block, NULL, launches), 4);
		for (int i = 0; i < 4; i++) {
			assert_int_equal(launches[i].block, block);
			assert_int_equal(launches[i].order, i);
			assert_false(seen[launches[i].arm]);
			seen[launches[i].arm] = true;
		}
	}
	experiment_release(experiment);
}

static void the_order_depends_on_seed_and_block_alone(void **state)
{
	struct experiment *experiment = experiment_from_text(four_arms);
	struct plan_launch first[EXPERIMENT_ARMS_MAX], again[EXPERIMENT_ARMS_MAX];
	int different = 0;
	for (int block = 0; block < 20; block++) {
		plan_block(experiment, block, NULL, first);
		plan_block(experiment, block, NULL, again);
		assert_memory_equal(first, again, 4 * sizeof first[0]);
		plan_block(experiment, block + 1, NULL, again);
		for (int i = 0; i < 4; i++)
			different += first[i].arm != again[i].arm;
	}
	assert_true(different > 20);
	experiment_release(experiment);
}

/* Over many blocks each arm stands in each place about equally often, or drift would favour some. */
static void places_are_shared_evenly(void **state)
{
	struct experiment *experiment = experiment_from_text(four_arms);
	struct plan_launch launches[EXPERIMENT_ARMS_MAX];
	int count[4][4] = {{0}};
	for (int block = 0; block < 4000; block++) {
		plan_block(experiment, block, NULL, launches);
		for (int i = 0; i < 4; i++)
			count[launches[i].arm][i]++;
	}
	for (int i = 0; i < 16; i++)
		assert_in_range(count[i / 4][i % 4], 880, 1120); /* 1000 expected, sd 27 */
	experiment_release(experiment);
}

static void dropped_arms_leave_the_others_in_place(void **state)
{
	struct experiment *experiment = experiment_from_text(four_arms);
	struct plan_launch all[EXPERIMENT_ARMS_MAX], some[EXPERIMENT_ARMS_MAX];
	const bool dropped[4] = {false, false, true, false};
	plan_block(experiment, 3, NULL, all);
	assert_int_equal(plan_block(experiment, 3, dropped, some), 3);
	for (int i = 0, k = 0; i < 4; i++)
		if (all[i].arm != 2)
			assert_memory_equal(&all[i], &some[k++], sizeof all[i]);
	experiment_release(experiment);
}

static void a_single_candidate_is_mirrored_in_odd_blocks(void **state)
{
	struct experiment *experiment =
		experiment_from_text("{'name':'p','matrix':{'factors':{'graph_max_bs':[8,0]},'aa_twin':false}}");
	struct plan_launch even[EXPERIMENT_ARMS_MAX], odd[EXPERIMENT_ARMS_MAX];
	for (int block = 0; block < 8; block += 2) {
		plan_block(experiment, block, NULL, even);
		plan_block(experiment, block + 1, NULL, odd);
		assert_int_equal(even[0].arm, odd[1].arm);
		assert_int_equal(even[1].arm, odd[0].arm);
	}
	experiment_release(experiment);
}

static void estimates_add_up(void **state)
{
	struct experiment *experiment = experiment_from_text(
		"{'name':'p','matrix':{'factors':{'speculation':['off','ngram']}},"
		"'workloads':[{'name':'a','concurrency':2,'requests':8,'sampling':{'max_tokens':50}},"
		"{'name':'b','applies_to':[{'speculation':'ngram'}],'requests':1,'sampling':{'max_tokens':100}}],"
		"'protocol':{'blocks':3,'max_blocks':5,'runs_per_launch':2,'cooldown_s':1,'warmup':{'requests_per_slot':1}}}");
	/* a: (8 / 2 × 2 + 1) × 50 tokens = 450; b: (1 × 2 + 1) × 100 = 300. */
	assert_true(fabs(plan_launch_seconds(experiment, 2, 3, 100) - (3 + 4.5 + 3)) < 1e-9);
	assert_true(fabs(plan_launch_seconds(experiment, 0, 3, 100) - (3 + 4.5 + 3)) < 1e-9);
	assert_true(fabs(plan_seconds(experiment, 3, 100) - 3 * (3 * 11.5)) < 1e-9);
	assert_int_equal(plan_launches(experiment, false), 9);
	assert_int_equal(plan_launches(experiment, true), 15);
	experiment_release(experiment);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_block_launches_every_arm_once),
		cmocka_unit_test(the_order_depends_on_seed_and_block_alone),
		cmocka_unit_test(places_are_shared_evenly),
		cmocka_unit_test(dropped_arms_leave_the_others_in_place),
		cmocka_unit_test(a_single_candidate_is_mirrored_in_odd_blocks),
		cmocka_unit_test(estimates_add_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
