/* Collectives that cannot be had or cannot go on: names, impossible options, misuse, ranks that stall, abort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "tests/support/comm_script.h"

/* ---- names ---- */

static void comm_find_gives_every_cpu_backend_by_name(void **state)
{
	static const char *const names[] = {"ref-socket", "shm-flag", "shm-lamport", "shm-2shot"};
	assert_int_equal(comm_cpu_backends_count, 4);
	for (size_t i = 0; i < 4; i++) {
		const struct comm_ops *ops = NULL;
		struct err err = {0};
		assert_int_equal(comm_find(names[i], "cpu", &ops, &err), STATUS_OK);
		assert_ptr_equal(ops, comm_cpu_backends[i]);
		assert_string_equal(ops->name, names[i]);
	}
}

static void comm_find_refuses_names_of_the_other_device_naming_their_twin(void **state)
{
	static const char *const gpu[][2] = {{"nccl", "ref-socket"}, {"nccl-sym", "ref-socket"}, {"p2p-ll", "shm-lamport"},
		{"p2p-lamport", "shm-lamport"}, {"p2p-flag", "shm-flag"}, {"p2p-2shot", "shm-2shot"}, {"pcie-staged", "shm-2shot"},
		{"host-staged", "shm-flag"}};
	for (size_t i = 0; i < sizeof(gpu) / sizeof(gpu[0]); i++) {
		const struct comm_ops *ops = NULL;
		struct err err = {0};
		assert_int_equal(comm_find(gpu[i][0], "cpu", &ops, &err), STATUS_INPUT);
		assert_null(ops);
		assert_string_equal(err.code, "allreduce_refused");
		assert_non_null(strstr(err.text, gpu[i][0]));
		assert_non_null(strstr(err.text, gpu[i][1]));
	}
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		const struct comm_ops *ops = NULL;
		struct err err = {0};
		assert_int_equal(comm_find(comm_cpu_backends[i]->name, "cuda", &ops, &err), STATUS_INPUT);
		assert_non_null(strstr(err.text, comm_cpu_backends[i]->twin));
	}
}

static void comm_find_lists_what_exists_for_an_unknown_name(void **state)
{
	static const char *const unknown[] = {"", "SHM-FLAG", "shm-flag ", "shm", "ring", "auto"};
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		const struct comm_ops *ops = NULL;
		struct err err = {0};
		assert_int_equal(comm_find(unknown[i], "cpu", &ops, &err), STATUS_INPUT);
		for (size_t k = 0; k < comm_cpu_backends_count; k++)
			assert_non_null(strstr(err.text, comm_cpu_backends[k]->name));
	}
}

/* ---- misuse and death ---- */

/* Allreduce of one value; the group's own failures come back as 100 + status. */
static int call_once(const struct comm_group_member *member, struct comm *comm, size_t count)
{
	float data[64] = {1.0f};
	struct err err = {0};
	enum status status = member->ops->allreduce(comm, data, count, &err);
	return status == STATUS_OK ? 0 : comm_complain(member, 100 + (int)status, "%s", err.text);
}

static void run_group(
	struct comm_group *group, const struct comm_ops *ops, int world, int (*body)(const struct comm_group_member *))
{
	*group = (struct comm_group){.ops = ops, .kind = COMM_GROUP_PROCESSES, .world = world, .count_max = 64, .body = body};
	group->timeout_ns = 200000000;
	comm_group_run(group);
}

static int call_with_bad_counts(const struct comm_group_member *member)
{
	struct comm *comm = NULL;
	struct err err = {0};
	struct comm_stats stats;
	if (member->ops->create(&member->options, &comm, &err) != STATUS_OK)
		return 1;
	int empty = call_once(member, comm, 0), beyond = call_once(member, comm, 65), good = call_once(member, comm, 64);
	member->ops->stats(comm, &stats);
	member->ops->destroy(comm);
	if (empty != 0 || beyond != 100 + STATUS_INTERNAL || good != 0)
		return comm_complain(member, 2, "empty %d, beyond %d, good %d", empty, beyond, good);
	return stats.calls == 1 && stats.bytes == 256
		? 0
		: comm_complain(member, 3, "%llu calls counted", (unsigned long long)stats.calls);
}

static void comm_refuses_counts_above_the_limit_and_does_nothing_for_zero(void **state)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct comm_group group;
		run_group(&group, comm_cpu_backends[i], 3, call_with_bad_counts);
		for (int rank = 0; rank < 3; rank++) {
			if (group.code[rank] != 0)
				fail_msg("%s: %s", comm_cpu_backends[i]->name, comm_group_complaint(&group));
		}
	}
}

/* Rank 1 does not come to the third call. */
static int call_until_rank_1_is_missing(const struct comm_group_member *member)
{
	struct comm *comm = NULL;
	struct err err = {0};
	if (member->ops->create(&member->options, &comm, &err) != STATUS_OK)
		return 1;
	int code = call_once(member, comm, 5);
	if (code == 0)
		code = call_once(member, comm, 64);
	if (code == 0 && member->options.rank != 1)
		code = call_once(member, comm, 64);
	else if (code == 0)
		clock_sleep_ns(600000000); /* alive, sockets open: stalled */
	if (code != 0 && call_once(member, comm, 1) != 100 + STATUS_RANK_DIED)
		code = 2; /* failed once, failed for good */
	member->ops->destroy(comm);
	return code;
}

static void comm_times_out_naming_the_rank_that_stalled(void **state)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct comm_group group;
		int64_t start_ns = clock_monotonic_ns();
		run_group(&group, comm_cpu_backends[i], 2, call_until_rank_1_is_missing);
		assert_true(clock_monotonic_ns() - start_ns < 3000000000LL);
		assert_int_equal(group.code[1], 0);
		assert_int_equal(group.code[0], 100 + STATUS_RANK_DIED);
	}
}

static int say_why_a_stalled_rank_failed_us(const struct comm_group_member *member)
{
	struct comm *comm = NULL;
	struct err err = {0};
	if (member->options.rank == 2 || member->ops->create(&member->options, &comm, &err) != STATUS_OK)
		return member->options.rank == 2 ? 0 : 1;
	int code = call_once(member, comm, 8);
	member->ops->destroy(comm);
	return code;
}

static void comm_names_the_rank_that_never_came(void **state)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct comm_group group;
		char expected[64];
		run_group(&group, comm_cpu_backends[i], 3, say_why_a_stalled_rank_failed_us);
		assert_int_equal(group.code[0], 100 + STATUS_RANK_DIED);
		snprintf(expected, sizeof(expected), "rank 0 waited 0.2 s for rank 2 in %s call 1", comm_cpu_backends[i]->name);
		if (strstr(group.text[0], expected) == NULL)
			fail_msg("expected '%s' in '%s'", expected, group.text[0]);
	}
}

/* Rank 0 raises the abort word, which lies behind the collective's region, instead of calling. */
static int wait_until_aborted(const struct comm_group_member *member)
{
	size_t bytes = member->ops->shared_bytes(member->options.world, member->options.count_max);
	_Atomic uint32_t *abort_word = (_Atomic uint32_t *)(void *)((char *)member->options.shared + bytes);
	struct comm_options options = member->options;
	struct comm *comm = NULL;
	struct err err = {0};
	options.abort = abort_word;
	options.timeout_ns = 30000000000LL;
	if (member->ops->create(&options, &comm, &err) != STATUS_OK)
		return 1;
	int code = 0;
	if (options.rank == 0)
		atomic_store(abort_word, 1);
	else
		code = call_once(member, comm, 8);
	member->ops->destroy(comm);
	return code;
}

static void comm_waits_end_when_the_abort_word_is_set(void **state)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct comm_group group = {.ops = comm_cpu_backends[i], .kind = COMM_GROUP_THREADS, .world = 2, .count_max = 64};
		group.region_bytes = group.ops->shared_bytes(2, 64) + 64;
		group.body = wait_until_aborted;
		int64_t start_ns = clock_monotonic_ns();
		comm_group_run(&group);
		assert_true(clock_monotonic_ns() - start_ns < 3000000000LL);
		assert_int_equal(group.code[1], 100 + STATUS_RANK_DIED);
	}
}

static int create_differently(const struct comm_group_member *member)
{
	struct comm_options options = member->options;
	struct comm *comm = NULL;
	struct err err = {0};
	options.count_max -= (size_t)options.rank;
	if (member->ops->create(&options, &comm, &err) != STATUS_OK)
		return 1;
	int code = call_once(member, comm, 8 + (member->ops->needs_sockets ? (size_t)options.rank : 0));
	member->ops->destroy(comm);
	return code;
}

static void comm_refuses_ranks_that_disagree(void **state)
{
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		struct comm_group group;
		run_group(&group, comm_cpu_backends[i], 2, create_differently);
		/* shm: by the digest, on both; ref-socket: by the header, on rank 0, and rank 1 sees it leave. */
		assert_int_equal(group.code[0], 100 + STATUS_INTERNAL);
		assert_int_not_equal(group.code[1], 0);
	}
}

static void comm_create_refuses_impossible_options(void **state)
{
	_Alignas(128) static unsigned char region[1 << 16];
	static const int sockets[] = {-1, -1};
	const struct comm_options good = {
		.rank = 0, .world = 2, .count_max = 16, .shared = region, .sockets = sockets, .timeout_ns = 1000000};
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		const struct comm_ops *ops = comm_cpu_backends[i];
		struct comm_options bad[8];
		for (size_t k = 0; k < 8; k++)
			bad[k] = good;
		bad[0].world = 0;
		bad[1].world = COMM_RANKS_MAX + 1;
		bad[2].rank = 2;
		bad[3].rank = -1;
		bad[4].count_max = 0;
		bad[5].count_max = COMM_COUNT_MAX + 1;
		bad[6].timeout_ns = 0;
		if (ops->needs_sockets)
			bad[7].sockets = NULL;
		else
			bad[7].shared = NULL;
		for (size_t k = 0; k < 8; k++) {
			struct comm *comm = NULL;
			struct err err = {0};
			assert_int_not_equal(ops->create(&bad[k], &comm, &err), STATUS_OK);
			assert_null(comm);
			assert_true(strncmp(err.text, ops->name, strlen(ops->name)) == 0);
			assert_int_not_equal(ops->create(&bad[k], &comm, NULL), STATUS_OK);
		}
		ops->destroy(NULL);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comm_find_gives_every_cpu_backend_by_name),
		cmocka_unit_test(comm_find_refuses_names_of_the_other_device_naming_their_twin),
		cmocka_unit_test(comm_find_lists_what_exists_for_an_unknown_name),
		cmocka_unit_test(comm_refuses_counts_above_the_limit_and_does_nothing_for_zero),
		cmocka_unit_test(comm_times_out_naming_the_rank_that_stalled),
		cmocka_unit_test(comm_names_the_rank_that_never_came),
		cmocka_unit_test(comm_waits_end_when_the_abort_word_is_set),
		cmocka_unit_test(comm_refuses_ranks_that_disagree),
		cmocka_unit_test(comm_create_refuses_impossible_options),
	};
	return cmocka_run_group_tests_name("comm_faults", tests, NULL, NULL);
}
