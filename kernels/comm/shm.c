/* Control lines, meeting, signals and waits of a group in shared memory. */
#include "kernels/comm/shm.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/clock.h"
#include "base/hash.h"

size_t shm_lines_bytes(int world)
{
	return (size_t)world * sizeof(struct shm_line);
}

size_t shm_slot_floats(size_t count_max)
{
	const size_t unit = SHM_ALIGN / sizeof(float);
	return (count_max + unit - 1) / unit * unit;
}

enum status shm_group_init(struct shm_group *group, const struct comm_ops *ops, const struct comm_options *options, struct err *err)
{
	enum status status = comm_base_init(&group->base, ops, options, err);
	if (status != STATUS_OK)
		return status;
	if ((uintptr_t)options->shared % SHM_ALIGN != 0)
		return err_set(err, STATUS_INTERNAL, "%s: the shared region is not aligned to %d bytes", ops->name, SHM_ALIGN);
	group->lines = options->shared;
	group->payload = (unsigned char *)options->shared + shm_lines_bytes(options->world);
	group->epoch = options->first_epoch;
	return STATUS_OK;
}

/* Never 0, which means "not attached". */
static uint32_t digest(const struct shm_group *group)
{
	const struct comm_options *options = &group->base.options;
	uint64_t hash = hash64(group->base.name, strlen(group->base.name), (uint64_t)options->world);
	hash = hash64_mix(hash ^ options->count_max);
	hash = hash64_mix(hash ^ options->first_epoch);
	return (uint32_t)hash | 1;
}

void shm_group_attach(struct shm_group *group)
{
	struct shm_line *line = &group->lines[group->base.options.rank];
	wait_word_set(&line->flag, group->epoch);
	wait_word_set(&line->attached, digest(group));
}

/* Slow path of every wait: measures it, and turns its end without success into an error that names the peer. */
static enum status wait_for(struct shm_group *group, struct wait_word *word, uint32_t old, int peer, struct err *err)
{
	const struct comm_options *options = &group->base.options;
	int64_t start_ns = clock_monotonic_ns();
	bool came = wait_word_while_equal(word, old, options->spins, options->abort, start_ns + options->timeout_ns);
	group->base.stats.wait_ns += (uint64_t)(clock_monotonic_ns() - start_ns);
	return came ? STATUS_OK : comm_wait_failed(&group->base, peer, start_ns, err);
}

static enum status meet(struct shm_group *group, struct err *err)
{
	const struct comm_options *options = &group->base.options;
	for (int peer = 0; peer < options->world; peer++) {
		struct wait_word *attached = &group->lines[peer].attached;
		if (wait_word_get(attached) == 0 && wait_for(group, attached, 0, peer, err) != STATUS_OK)
			return STATUS_RANK_DIED;
		if (wait_word_get(attached) != digest(group)) {
			group->base.failed = true;
			return err_set(err, STATUS_INTERNAL,
				"%s: rank %d was made with another backend, world, size or epoch than rank %d", group->base.name,
				peer, options->rank);
		}
	}
	group->met = true;
	return STATUS_OK;
}

enum status shm_call_begin(struct shm_group *group, size_t count, struct err *err)
{
	enum status status = comm_call_begin(&group->base, count, err);
	if (status == STATUS_OK && !group->met)
		status = meet(group, err);
	return status;
}

/* Past the caches where that is possible. Peers have read the slot before, so their caches hold its lines, and an ordinary store
 * first asks for each of them back: 27 ns a line between distant cores (Zen 4, November 2026), four times what the stores cost.
 * The sanitizer does not see such stores, so its build goes without. */
void shm_publish(float *slot, const float *data, size_t count)
{
	size_t i = 0;
#if defined(__SSE2__) && !defined(__SANITIZE_THREAD__)
	for (; i + 16 <= count; i += 16) { /* a whole line, which the processor collects and sends as one */
		for (size_t lane = 0; lane < 16; lane += 4)
			_mm_stream_ps(slot + i + lane, _mm_loadu_ps(data + i + lane));
	}
	_mm_sfence(); /* such stores are not ordered by the signal that follows */
#endif
	memcpy(slot + i, data + i, (count - i) * sizeof(float));
}

void shm_signal(struct shm_group *group)
{
	group->epoch++;
	wait_word_set(&group->lines[group->base.options.rank].flag, group->epoch);
}

/* By signed difference, so that the counter may wrap. */
static bool is_before(uint32_t epoch, uint32_t other)
{
	return (int32_t)(epoch - other) < 0;
}

enum status shm_wait_peer(struct shm_group *group, int peer, struct err *err)
{
	struct wait_word *flag = &group->lines[peer].flag;
	for (uint32_t seen = wait_word_get(flag); is_before(seen, group->epoch); seen = wait_word_get(flag)) {
		if (wait_for(group, flag, seen, peer, err) != STATUS_OK)
			return STATUS_RANK_DIED;
	}
	return STATUS_OK;
}

enum status shm_wait_all(struct shm_group *group, struct err *err)
{
	for (int peer = 0; peer < group->base.options.world; peer++) {
		if (shm_wait_peer(group, peer, err) != STATUS_OK)
			return STATUS_RANK_DIED;
	}
	return STATUS_OK;
}
