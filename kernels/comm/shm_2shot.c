/* shm-2shot: reduce-scatter, then allgather. Rank r owns a shard: it sums that part of all inputs in rank order and publishes it;
 * then every rank copies all shards. Each element is added once in the group instead of once per rank. Twin of p2p-2shot.
 *
 * One buffer of each kind suffices, because a call has two meetings. Inputs are overwritten in the next call, after this rank
 * has seen everybody's second signal, which follows everybody's reading of the inputs. Shards are overwritten after everybody's
 * first signal of the next call, which follows everybody's copying. */
#include <string.h>

#include "base/mem.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/shm.h"

struct twoshot_comm {
	struct shm_group group; /* first: struct comm is its first member */
	float *inputs; /* [world][slot_floats] */
	float *result; /* [slot_floats], each shard written by its owner */
	size_t slot_floats;
};

static size_t twoshot_shared_bytes(int world, size_t count_max)
{
	return shm_lines_bytes(world) + ((size_t)world + 1) * shm_slot_floats(count_max) * sizeof(float);
}

static enum status twoshot_create(const struct comm_options *options, struct comm **out, struct err *err)
{
	struct twoshot_comm *twoshot = mem_calloc_aligned(_Alignof(struct twoshot_comm), 1, sizeof(*twoshot));
	enum status status = shm_group_init(&twoshot->group, &comm_shm_2shot, options, err);
	if (status != STATUS_OK) {
		mem_free(twoshot);
		return status;
	}
	twoshot->slot_floats = shm_slot_floats(options->count_max);
	twoshot->inputs = twoshot->group.payload;
	twoshot->result = twoshot->inputs + (size_t)options->world * twoshot->slot_floats;
	shm_group_attach(&twoshot->group);
	*out = &twoshot->group.base;
	return STATUS_OK;
}

struct shard {
	size_t begin, count;
};

/* A rank's part of a call. Cut at slot alignment, so that no two ranks write one line; small calls leave some ranks without. */
static struct shard shard_of(size_t count, int rank, int world)
{
	const size_t unit = SHM_ALIGN / sizeof(float);
	size_t n_units = (count + unit - 1) / unit;
	size_t begin = n_units * (size_t)rank / (size_t)world * unit;
	size_t end = n_units * ((size_t)rank + 1) / (size_t)world * unit;
	begin = begin < count ? begin : count;
	end = end < count ? end : count;
	return (struct shard){.begin = begin, .count = end - begin};
}

static float *input_of(const struct twoshot_comm *twoshot, int rank)
{
	return twoshot->inputs + (size_t)rank * twoshot->slot_floats;
}

/* What the other ranks sum of this rank's input: all but its own shard. */
static void publish_input(struct twoshot_comm *twoshot, const float *data, size_t count)
{
	int rank = twoshot->group.base.options.rank, world = twoshot->group.base.options.world;
	struct shard own = shard_of(count, rank, world);
	size_t end = own.begin + own.count;
	shm_publish(input_of(twoshot, rank), data, own.begin);
	shm_publish(input_of(twoshot, rank) + end, data + end, count - end);
}

static void sum_and_publish_shard(struct twoshot_comm *twoshot, float *data, size_t count)
{
	const struct comm_options *options = &twoshot->group.base.options;
	struct shard own = shard_of(count, options->rank, options->world);
	const float *parts[COMM_RANKS_MAX];
	for (int rank = 0; rank < options->world; rank++)
		parts[rank] = (rank == options->rank ? data : input_of(twoshot, rank)) + own.begin;
	comm_sum(data + own.begin, parts, options->world, own.count);
	shm_publish(twoshot->result + own.begin, data + own.begin, own.count);
}

static void take_shards(struct twoshot_comm *twoshot, float *data, size_t count)
{
	const struct comm_options *options = &twoshot->group.base.options;
	for (int rank = 0; rank < options->world; rank++) {
		struct shard shard = shard_of(count, rank, options->world);
		if (rank != options->rank)
			memcpy(data + shard.begin, twoshot->result + shard.begin, shard.count * sizeof(float));
	}
}

static enum status twoshot_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct twoshot_comm *twoshot = (struct twoshot_comm *)comm;
	enum status status = shm_call_begin(&twoshot->group, count, err);
	if (status != STATUS_OK || count == 0)
		return status;
	publish_input(twoshot, data, count);
	shm_signal(&twoshot->group);
	if (shm_wait_all(&twoshot->group, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	sum_and_publish_shard(twoshot, data, count);
	shm_signal(&twoshot->group);
	if (shm_wait_all(&twoshot->group, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	take_shards(twoshot, data, count);
	comm_call_end(comm, count);
	return STATUS_OK;
}

static void twoshot_destroy(struct comm *comm)
{
	mem_free(comm);
}

const struct comm_ops comm_shm_2shot = {
	.name = "shm-2shot",
	.twin = "p2p-2shot",
	.summary = "two shots: each rank sums one shard of all slots, then all copy all shards",
	.shared_bytes = twoshot_shared_bytes,
	.needs_sockets = 0,
	.create = twoshot_create,
	.allreduce = twoshot_allreduce,
	.stats = comm_base_stats,
	.destroy = twoshot_destroy,
};
