/* The measured choice of a collective: the rule, the agreement of all ranks, the collective it leaves behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "base/wait.h"
#include "kernels/comm/auto.h"
#include "tests/support/comm_group.h"

#define DECODE_COUNT 576
#define PREFILL_COUNT (32 * 576)

static int complain(const struct comm_group_member *member, const char *text)
{
	snprintf(member->text, COMM_GROUP_TEXT_BYTES, "%s", text);
	return 100;
}

/* The choice must be the same everywhere, explained, and work. Returns 0, or 100 and a text. */
static int choose_and_use(const struct comm_group_member *member)
{
	const struct comm_auto_sizes sizes = {.decode_count = DECODE_COUNT, .prefill_count = PREFILL_COUNT};
	struct comm_auto_choice choice;
	struct err err = {0};
	if (comm_auto_create(&member->options, &sizes, &choice, &err) != STATUS_OK)
		return complain(member, err.text);
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		if (choice.rows[i].ops != comm_cpu_backends[i] || !(choice.rows[i].decode_us > 0) ||
			!(choice.rows[i].prefill_us > 0) || strstr(choice.why, comm_cpu_backends[i]->name) == NULL)
			return complain(member, choice.why);
	}
	if (choice.ops != choice.rows[comm_auto_pick(choice.rows, choice.n_rows)].ops)
		return complain(member, "another backend than the rule picks");
	float *data = mem_calloc(PREFILL_COUNT, sizeof(float));
	int world = member->options.world, code = 0;
	for (int call = 0; call < 20 && code == 0; call++) {
		for (size_t i = 0; i < PREFILL_COUNT; i++)
			data[i] = (float)(call + member->options.rank);
		if (choice.ops->allreduce(choice.comm, data, call % 2 ? PREFILL_COUNT : DECODE_COUNT, &err) != STATUS_OK)
			code = complain(member, err.text);
		else if (data[DECODE_COUNT - 1] != (float)(world * call + world * (world - 1) / 2))
			code = complain(member, "wrong sum");
	}
	struct comm_stats stats;
	choice.ops->stats(choice.comm, &stats);
	if (code == 0 && stats.calls != 20)
		code = complain(member, "measuring calls are counted as the user's");
	mem_free(data);
	choice.ops->destroy(choice.comm);
	return code;
}

static void auto_leaves_a_working_collective_that_all_ranks_agree_on(void **state)
{
	static const int worlds[] = {2, 3, 4, 9};
	for (size_t i = 0; i < 2 * sizeof(worlds) / sizeof(worlds[0]); i++) {
		int world = worlds[i / 2];
		struct comm_group group = {
			.kind = i % 2 ? COMM_GROUP_THREADS : COMM_GROUP_PROCESSES,
			.world = world,
			.count_max = PREFILL_COUNT,
			.region_bytes = comm_auto_shared_bytes(world, PREFILL_COUNT),
			.spins = wait_default_spins(world),
			.body = choose_and_use,
		};
		if (!comm_group_run(&group))
			fail_msg("%d ranks: %s", world, comm_group_complaint(&group));
	}
}

static int create_alone(const struct comm_group_member *member)
{
	const struct comm_auto_sizes sizes = {.decode_count = 1, .prefill_count = 1};
	struct comm_auto_choice choice;
	struct err err = {0};
	return member->options.rank == 1 ? 0 : (int)comm_auto_create(&member->options, &sizes, &choice, &err);
}

static void auto_fails_in_time_when_a_rank_does_not_come(void **state)
{
	struct comm_group group = {
		.kind = COMM_GROUP_PROCESSES,
		.world = 2,
		.count_max = 16,
		.region_bytes = comm_auto_shared_bytes(2, 16),
		.timeout_ns = 50000000,
		.body = create_alone,
	};
	assert_false(comm_group_run(&group));
	assert_int_equal(group.code[0], STATUS_RANK_DIED);
}

static void auto_measures_nothing_for_one_rank(void **state)
{
	const struct comm_options options = {.rank = 0, .world = 1, .count_max = 16, .timeout_ns = 1};
	const struct comm_auto_sizes sizes = {.decode_count = 1, .prefill_count = 16};
	struct comm_auto_choice choice;
	struct err err = {0};
	assert_int_equal(comm_auto_shared_bytes(1, 16), 0);
	assert_int_equal(comm_auto_create(&options, &sizes, &choice, &err), STATUS_OK);
	assert_null(choice.comm);
	assert_null(choice.ops);
	assert_string_equal(choice.why, "one rank needs none");
}

static void auto_refuses_sizes_beyond_the_limit(void **state)
{
	const struct comm_options options = {.rank = 0, .world = 2, .count_max = 16, .timeout_ns = 1};
	static const struct comm_auto_sizes bad[] = {{0, 16}, {17, 16}, {1, 0}, {1, 17}};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct comm_auto_choice choice;
		struct err err = {0};
		assert_int_equal(comm_auto_create(&options, &bad[i], &choice, &err), STATUS_INTERNAL);
	}
}

static size_t pick(double a, double a_prefill, double b, double b_prefill, double c, double c_prefill)
{
	const struct comm_auto_row rows[] = {{.decode_us = a, .prefill_us = a_prefill}, {.decode_us = b, .prefill_us = b_prefill},
		{.decode_us = c, .prefill_us = c_prefill}};
	return comm_auto_pick(rows, 3);
}

static void auto_picks_by_decode_time_and_among_near_ones_by_prefill_time(void **state)
{
	assert_int_equal(pick(20, 900, 1.0, 500, 2.0, 300), 1); /* clear at decode: prefill does not matter */
	assert_int_equal(pick(20, 900, 1.0, 500, 1.05, 300), 2); /* near at decode: prefill decides */
	assert_int_equal(pick(1.0, 500, 1.05, 500, 1.1, 500), 0); /* no reason to leave the fastest */
	assert_int_equal(pick(5, 5, 5, 5, 5, 5), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(auto_leaves_a_working_collective_that_all_ranks_agree_on),
		cmocka_unit_test(auto_fails_in_time_when_a_rank_does_not_come),
		cmocka_unit_test(auto_measures_nothing_for_one_rank),
		cmocka_unit_test(auto_refuses_sizes_beyond_the_limit),
		cmocka_unit_test(auto_picks_by_decode_time_and_among_near_ones_by_prefill_time),
	};
	return cmocka_run_group_tests_name("comm_auto", tests, NULL, NULL);
}
