/* Inputs, expected sums, delays and checks of scripted allreduce calls. */
#include "tests/support/comm_script.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/wait.h"

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
static float input(enum comm_values values, int rank, int call, size_t i)
{
	static const uint32_t special[] = {0x80000000, 0x00000000, 0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x7f800000,
		0xff800000, 0x7fc00000, 0xffc00000, 0x7fc12345, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff, 0x3f800000};
	uint64_t hash = hash64_mix(hash64_mix((uint64_t)rank << 40 | (uint64_t)(uint32_t)call) + i);
	if (values == COMM_VALUES_SPECIAL && hash % 3 != 0)
		return from_bits(special[hash >> 8 & 15]);
	uint32_t exponent = 110 + (uint32_t)(hash >> 32 & 31); /* 2^-17 to 2^14: sums depend on their order */
	return from_bits(((uint32_t)hash & 0x807fffff) | exponent << 23);
}

static uint32_t expected(enum comm_values values, int world, int call, size_t i)
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

int comm_complain(const struct comm_group_member *member, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(member->text, COMM_GROUP_TEXT_BYTES, format, args);
	va_end(args);
	return code;
}

static int check_call(const struct comm_group_member *member, struct comm *comm, float *data, size_t count, int call)
{
	const struct comm_script *script = member->ctx;
	struct err err = {0};
	for (size_t i = 0; i < count; i++)
		data[i] = input(script->values, member->options.rank, call, i);
	data[count] = 12345.0f;
	if (script->skewed)
		delay(member->options.rank, call);
	if (member->ops->allreduce(comm, data, count, &err) != STATUS_OK)
		return comm_complain(member, 2, "call %d: %s", call, err.text);
	for (size_t i = 0; i < count; i++) {
		uint32_t want = expected(script->values, member->options.world, call, i);
		if (to_bits(data[i]) != want)
			return comm_complain(member, 3, "call %d, element %zu of %zu: %08x, expected %08x", call, i, count,
				to_bits(data[i]), want);
	}
	return data[count] == 12345.0f ? 0 : comm_complain(member, 4, "call %d wrote beyond %zu floats", call, count);
}

int comm_script_play(const struct comm_group_member *member)
{
	const struct comm_script *script = member->ctx;
	struct comm *comm = NULL;
	struct err err = {0};
	struct comm_stats stats = {0};
	uint64_t bytes = 0;
	if (member->ops->create(&member->options, &comm, &err) != STATUS_OK)
		return comm_complain(member, 1, "%s", err.text);
	float *data = mem_calloc(member->options.count_max + 1, sizeof(float));
	int code = 0;
	for (int call = 0; call < script->calls && code == 0; call++) {
		size_t count = script->sizes[(size_t)call % script->n_sizes];
		bytes += count * sizeof(float);
		code = check_call(member, comm, data, count, call);
	}
	member->ops->stats(comm, &stats);
	if (code == 0 && (stats.calls != (uint64_t)script->calls || stats.bytes != bytes || stats.wait_ns > stats.total_ns))
		code = comm_complain(member, 5, "counters: %llu calls, %llu bytes", (unsigned long long)stats.calls,
			(unsigned long long)stats.bytes);
	mem_free(data);
	member->ops->destroy(comm);
	return code;
}

const char *comm_script_run(const struct comm_script *script, const struct comm_ops *ops, enum comm_group_kind kind, int world,
	size_t count_max, uint32_t first_epoch)
{
	struct comm_group group = {
		.ops = ops,
		.kind = kind,
		.world = world,
		.count_max = count_max,
		.first_epoch = first_epoch,
		.spins = wait_default_spins(world),
		.timeout_ns = script->timeout_ns,
		.body = comm_script_play,
		.ctx = script,
	};
	return comm_group_run(&group) ? NULL : comm_group_complaint(&group);
}
