/* Negative controls: collectives broken on purpose, which the scripts of test_comm must catch. A script that passes these proves
 * nothing. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/shm.h"
#include "tests/support/comm_script.h"

/* A one-shot collective with its faults as switches. */
struct faults {
	bool no_wait; /* sums without waiting for the others */
	bool one_half; /* overwrites a slot that a peer may still read */
	bool own_first; /* starts the sum at its own slot */
	bool plain_zeros; /* keeps -0.0 and NaN payloads */
	bool flipped_bit; /* rank 1 gets one wrong bit in its 7th call */
	bool overtaken; /* no fault: rank 0 reads its first call's slots only when rank 1 is in the second */
};

struct broken_comm {
	struct shm_group group;
	uint32_t calls;
};

static struct faults faults; /* of the test that runs */

static float *slot_of(const struct broken_comm *broken, uint32_t half, int rank)
{
	const struct comm_options *options = &broken->group.base.options;
	return (float *)broken->group.payload +
		(half * (uint32_t)options->world + (uint32_t)rank) * shm_slot_floats(options->count_max);
}

static const struct comm_ops broken_ops;

static enum status broken_create(const struct comm_options *options, struct comm **out, struct err *err)
{
	struct broken_comm *broken = mem_calloc_aligned(_Alignof(struct broken_comm), 1, sizeof(*broken));
	enum status status = shm_group_init(&broken->group, &broken_ops, options, err);
	shm_group_attach(&broken->group);
	*out = &broken->group.base;
	return status;
}

static void sum_slots(const struct broken_comm *broken, uint32_t half, float *data, size_t count)
{
	const struct comm_options *options = &broken->group.base.options;
	const float *parts[COMM_RANKS_MAX];
	for (int i = 0; i < options->world; i++)
		parts[i] = slot_of(broken, half, faults.own_first ? (options->rank + i) % options->world : i);
	comm_sum(data, parts, options->world, count);
	for (size_t i = 0; faults.plain_zeros && i < count; i++) {
		data[i] = parts[0][i];
		for (int rank = 1; rank < options->world; rank++)
			data[i] += parts[rank][i];
	}
}

/* Until rank 1 has filled its slot for the next call, which it does without waiting for anybody. */
static void let_pass(const struct broken_comm *broken)
{
	int64_t deadline_ns = clock_monotonic_ns() + broken->group.base.options.timeout_ns;
	while (wait_word_get(&broken->group.lines[1].flag) == broken->group.epoch && clock_monotonic_ns() < deadline_ns)
		sched_yield();
}

static enum status broken_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct broken_comm *broken = (struct broken_comm *)comm;
	enum status status = shm_call_begin(&broken->group, count, err);
	if (status != STATUS_OK)
		return status;
	uint32_t half = faults.one_half ? 0 : broken->calls % 2;
	broken->calls++;
	memcpy(slot_of(broken, half, comm->options.rank), data, count * sizeof(float));
	shm_signal(&broken->group);
	if (!faults.no_wait)
		status = shm_wait_all(&broken->group, err);
	if (faults.overtaken && comm->options.rank == 0 && broken->calls == 1)
		let_pass(broken);
	sum_slots(broken, half, data, count);
	uint32_t *bits = (uint32_t *)(void *)data;
	if (faults.flipped_bit && comm->options.rank == 1 && broken->calls == 7)
		bits[count - 1] ^= 1;
	comm_call_end(comm, count);
	return status;
}

static void broken_destroy(struct comm *comm)
{
	mem_free(comm);
}

static size_t broken_shared_bytes(int world, size_t count_max)
{
	return comm_shm_flag.shared_bytes(world, count_max);
}

static const struct comm_ops broken_ops = {
	.name = "broken",
	.twin = "none",
	.summary = "wrong on purpose",
	.shared_bytes = broken_shared_bytes,
	.create = broken_create,
	.allreduce = broken_allreduce,
	.stats = comm_base_stats,
	.destroy = broken_destroy,
};

/* What the script says of the collective with these faults. Long calls and delays give a race the time to show. */
static const char *run_with(struct faults switches, int world)
{
	const struct comm_script script = {.sizes = {20000, 16},
		.n_sizes = 2,
		.calls = 400,
		.values = COMM_VALUES_SPECIAL,
		.timeout_ns = 1000000000,
		.skewed = true};
	faults = switches;
	return comm_script_run(&script, &broken_ops, COMM_GROUP_PROCESSES, world, 20000, 0);
}

static void script_passes_the_control_without_faults(void **state)
{
	const char *complaint = run_with((struct faults){0}, 3);
	if (complaint != NULL)
		fail_msg("%s", complaint);
	complaint = run_with((struct faults){.overtaken = true}, 2);
	if (complaint != NULL)
		fail_msg("%s", complaint);
}

static void script_catches_a_collective_that_does_not_wait(void **state)
{
	assert_non_null(run_with((struct faults){.no_wait = true}, 2));
}

static void script_catches_a_collective_that_reuses_a_slot_too_early(void **state)
{
	assert_non_null(run_with((struct faults){.one_half = true, .overtaken = true}, 2));
}

static void script_catches_a_sum_in_another_order(void **state)
{
	assert_non_null(run_with((struct faults){.own_first = true}, 3));
}

static void script_catches_zeros_and_nans_left_as_they_come(void **state)
{
	assert_non_null(run_with((struct faults){.plain_zeros = true}, 2));
}

static void script_catches_one_wrong_bit_on_one_rank(void **state)
{
	assert_non_null(run_with((struct faults){.flipped_bit = true}, 2));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(script_passes_the_control_without_faults),
		cmocka_unit_test(script_catches_a_collective_that_does_not_wait),
		cmocka_unit_test(script_catches_a_collective_that_reuses_a_slot_too_early),
		cmocka_unit_test(script_catches_a_sum_in_another_order),
		cmocka_unit_test(script_catches_zeros_and_nans_left_as_they_come),
		cmocka_unit_test(script_catches_one_wrong_bit_on_one_rank),
	};
	return cmocka_run_group_tests_name("comm_controls", tests, NULL, NULL);
}
