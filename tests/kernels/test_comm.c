/* Results of the CPU collectives: every backend against a sum computed elsewhere, over worlds, sizes, values, skew and wrap. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/support/comm_script.h"

static const int worlds[] = {1, 2, 3, 4, 9};
#define N_WORLDS (sizeof(worlds) / sizeof(worlds[0]))

static void run_script(const struct comm_script *script, const struct comm_ops *ops, enum comm_group_kind kind, int world,
	size_t count_max, uint32_t first_epoch)
{
	const char *complaint = comm_script_run(script, ops, kind, world, count_max, first_epoch);
	if (complaint != NULL)
		fail_msg("%s, %d ranks as %s: %s", ops->name, world, kind == COMM_GROUP_THREADS ? "threads" : "processes",
			complaint);
}

static void run_everywhere(const struct comm_script *script, size_t count_max, uint32_t first_epoch)
{
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++) {
		for (size_t i = 0; i < N_WORLDS; i++) {
			run_script(script, comm_cpu_backends[backend], COMM_GROUP_THREADS, worlds[i], count_max, first_epoch);
			run_script(script, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, worlds[i], count_max, first_epoch);
		}
	}
}

static void comm_sums_in_rank_order_bit_for_bit_on_every_rank_with_every_backend(void **state)
{
	const struct comm_script script = {.sizes = {1, 2, 3, 4, 15, 16, 17, 31, 33, 100, 576, 577, 1000, 5003, 1, 512},
		.n_sizes = 16,
		.calls = 48,
		.values = COMM_VALUES_ORDINARY};
	run_everywhere(&script, 5003, 0);
}

static void comm_treats_zeros_subnormals_infinities_and_nans_alike_in_every_backend(void **state)
{
	const struct comm_script script = {.sizes = {576, 1, 7, 64}, .n_sizes = 4, .calls = 40, .values = COMM_VALUES_SPECIAL};
	run_everywhere(&script, 576, 0);
}

static void comm_is_right_when_sizes_shrink_and_grow(void **state)
{
	const struct comm_script script = {
		.sizes = {576, 6 * 576, 12 * 576, 8 * 576, 16 * 576, 3 * 576, 5 * 576, 2 * 576, 4 * 576, 1},
		.n_sizes = 10,
		.calls = 30,
		.values = COMM_VALUES_ORDINARY};
	run_everywhere(&script, 16 * 576, 0);
}

static void comm_survives_the_wrap_of_its_call_counter(void **state)
{
	const struct comm_script script = {.sizes = {3, 40, 17}, .n_sizes = 3, .calls = 60, .values = COMM_VALUES_ORDINARY};
	run_everywhere(&script, 40, UINT32_MAX - 20);
}

static void comm_is_right_over_many_calls(void **state)
{
	const struct comm_script script = {.sizes = {16, 1, 48, 5}, .n_sizes = 4, .calls = 20000, .values = COMM_VALUES_SPECIAL};
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++)
		run_script(&script, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, 2, 48, 0);
}

static void comm_is_right_with_ranks_delayed_at_random(void **state)
{
	/* A large call, then smaller ones, as often as shm-lamport has thirds: what the large one left in its third must not be
	 * taken for the next large one's. */
	const struct comm_script steep = {
		.sizes = {48, 5, 1}, .n_sizes = 3, .calls = 3000, .values = COMM_VALUES_ORDINARY, .skewed = true};
	const struct comm_script script = {
		.sizes = {16, 1, 48, 5}, .n_sizes = 4, .calls = 1500, .values = COMM_VALUES_SPECIAL, .skewed = true};
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++) {
		run_script(&script, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, 2, 48, 0);
		run_script(&script, comm_cpu_backends[backend], COMM_GROUP_THREADS, 3, 48, 0);
		run_script(&steep, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, 2, 48, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comm_sums_in_rank_order_bit_for_bit_on_every_rank_with_every_backend),
		cmocka_unit_test(comm_treats_zeros_subnormals_infinities_and_nans_alike_in_every_backend),
		cmocka_unit_test(comm_is_right_when_sizes_shrink_and_grow),
		cmocka_unit_test(comm_survives_the_wrap_of_its_call_counter),
		cmocka_unit_test(comm_is_right_over_many_calls),
		cmocka_unit_test(comm_is_right_with_ranks_delayed_at_random),
	};
	return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
