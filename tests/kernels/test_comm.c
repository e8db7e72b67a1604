/* Collectives of the CPU: every backend against a sum written here, over worlds, sizes, values, skew, wrap, misuse and death. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/wait.h"
#include "tests/support/comm_group.h"

static const int worlds[] = {1, 2, 3, 4, 9};
#define N_WORLDS (sizeof(worlds) / sizeof(worlds[0]))

enum values { VALUES_ORDINARY, VALUES_SPECIAL };

/* What a rank does in a run: calls of the listed sizes, over and over. */
struct script {
	size_t sizes[16];
	size_t n_sizes;
	int calls;
	enum values values;
	bool skewed; /* random delays before calls */
};

static float from_bits(uint32_t bits)
{
	float value;
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint32_t to_bits(float value)
{
	uint32_t bits;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

/* Input of a rank: a function of its arguments alone, so every rank knows everybody's. */
static float input(enum values values, int rank, int call, size_t i)
{
	static const uint32_t special[] = {0x80000000, 0x00000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x7f800000,
		0xff800000, 0x7fc00000, 0xffc00000, 0x7fc12345, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff, 0x3f800000};
	uint64_t hash = hash64_mix(hash64_mix((uint64_t)rank << 40 | (uint64_t)(uint32_t)call) + i);
	if (values == VALUES_SPECIAL && hash % 3 != 0)
		return from_bits(special[hash >> 8 & 15]);
	uint32_t exponent = 110 + (uint32_t)(hash >> 32 & 31); /* 2^-17 to 2^14: sums depend on their order */
	return from_bits(((uint32_t)hash & 0x807fffff) | exponent << 23);
}

static uint32_t expected(enum values values, int world, int call, size_t i)
{
	volatile float sum = input(values, 0, call, i);
	for (int rank = 1; rank < world; rank++)
		sum = sum + input(values, rank, call, i);
	if (isnan(sum))
		return 0x7fc00000;
	return sum == 0.0f ? 0 : to_bits(sum);
}

static void delay(int rank, int call)
{
	uint64_t hash = hash64_mix((uint64_t)rank * 7919 + (uint64_t)call);
	if (hash % 64 == 0)
		clock_sleep_ns((int64_t)(hash >> 8 & 0x3ffff)); /* up to 0.26 ms */
	else
		for (uint64_t i = 0; i < (hash >> 8 & 1023); i++)
			wait_pause();
}

static int complain(const struct comm_group_member *member, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(member->text, COMM_GROUP_TEXT_BYTES, format, args);
	va_end(args);
	return code;
}

static int check_call(const struct comm_group_member *member, struct comm *comm, float *data, size_t count, int call)
{
	const struct script *script = member->ctx;
	struct err err = {0};
	for (size_t i = 0; i < count; i++)
		data[i] = input(script->values, member->options.rank, call, i);
	data[count] = 12345.0f;
	if (script->skewed)
		delay(member->options.rank, call);
	if (member->ops->allreduce(comm, data, count, &err) != STATUS_OK)
		return complain(member, 2, "call %d: %s", call, err.text);
	for (size_t i = 0; i < count; i++) {
		uint32_t want = expected(script->values, member->options.world, call, i);
		if (to_bits(data[i]) != want)
			return complain(member, 3, "call %d, element %zu of %zu: %08x, expected %08x", call, i, count,
				to_bits(data[i]), want);
	}
	return data[count] == 12345.0f ? 0 : complain(member, 4, "call %d wrote beyond %zu floats", call, count);
}

static int play(const struct comm_group_member *member)
{
	const struct script *script = member->ctx;
	struct comm *comm = NULL;
	struct err err = {0};
	struct comm_stats stats = {0};
	uint64_t bytes = 0;
	if (member->ops->create(&member->options, &comm, &err) != STATUS_OK)
		return complain(member, 1, "%s", err.text);
	float *data = mem_calloc(member->options.count_max + 1, sizeof(float));
	int code = 0;
	for (int call = 0; call < script->calls && code == 0; call++) {
		size_t count = script->sizes[(size_t)call % script->n_sizes];
		bytes += count * sizeof(float);
		code = check_call(member, comm, data, count, call);
	}
	member->ops->stats(comm, &stats);
	if (code == 0 && (stats.calls != (uint64_t)script->calls || stats.bytes != bytes || stats.wait_ns > stats.total_ns))
		code = complain(member, 5, "counters: %llu calls, %llu bytes", (unsigned long long)stats.calls,
			(unsigned long long)stats.bytes);
	mem_free(data);
	member->ops->destroy(comm);
	return code;
}

static void run_script(const struct script *script, const struct comm_ops *ops, enum comm_group_kind kind, int world,
	size_t count_max, uint32_t first_epoch)
{
	struct comm_group group = {
		.ops = ops,
		.kind = kind,
		.world = world,
		.count_max = count_max,
		.first_epoch = first_epoch,
		.spins = wait_default_spins(world),
		.body = play,
		.ctx = script,
	};
	if (!comm_group_run(&group))
		fail_msg("%s, %d ranks as %s: %s", ops->name, world, kind == COMM_GROUP_THREADS ? "threads" : "processes",
			comm_group_complaint(&group));
}

static void run_everywhere(const struct script *script, size_t count_max, uint32_t first_epoch)
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
	const struct script script = {.sizes = {1, 2, 3, 4, 15, 16, 17, 31, 33, 100, 576, 577, 1000, 5003, 1, 512},
		.n_sizes = 16,
		.calls = 48,
		.values = VALUES_ORDINARY};
	run_everywhere(&script, 5003, 0);
}

static void comm_treats_zeros_subnormals_infinities_and_nans_alike_in_every_backend(void **state)
{
	const struct script script = {.sizes = {576, 1, 7, 64}, .n_sizes = 4, .calls = 40, .values = VALUES_SPECIAL};
	run_everywhere(&script, 576, 0);
}

static void comm_is_right_when_sizes_shrink_and_grow(void **state)
{
	const struct script script = {.sizes = {576, 6 * 576, 12 * 576, 8 * 576, 16 * 576, 3 * 576, 5 * 576, 2 * 576, 4 * 576, 1},
		.n_sizes = 10,
		.calls = 30,
		.values = VALUES_ORDINARY};
	run_everywhere(&script, 16 * 576, 0);
}

static void comm_survives_the_wrap_of_its_call_counter(void **state)
{
	const struct script script = {.sizes = {3, 40, 17}, .n_sizes = 3, .calls = 60, .values = VALUES_ORDINARY};
	run_everywhere(&script, 40, UINT32_MAX - 20);
}

static void comm_is_right_over_many_calls_with_ranks_delayed_at_random(void **state)
{
	const struct script two = {.sizes = {16, 1, 48, 5}, .n_sizes = 4, .calls = 20000, .values = VALUES_SPECIAL, .skewed = true};
	const struct script three = {.sizes = {16, 1, 48, 5}, .n_sizes = 4, .calls = 500, .values = VALUES_SPECIAL, .skewed = true};
	for (size_t backend = 0; backend < comm_cpu_backends_count; backend++) {
		run_script(&two, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, 2, 48, 0);
		run_script(&three, comm_cpu_backends[backend], COMM_GROUP_PROCESSES, 3, 48, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(comm_sums_in_rank_order_bit_for_bit_on_every_rank_with_every_backend),
		cmocka_unit_test(comm_treats_zeros_subnormals_infinities_and_nans_alike_in_every_backend),
		cmocka_unit_test(comm_is_right_when_sizes_shrink_and_grow),
		cmocka_unit_test(comm_survives_the_wrap_of_its_call_counter),
		cmocka_unit_test(comm_is_right_over_many_calls_with_ranks_delayed_at_random),
	};
	return cmocka_run_group_tests_name("comm", tests, NULL, NULL);
}
