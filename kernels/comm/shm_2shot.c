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
	twoshot->inputs = (float *)twoshot->group.payload;
	twoshot->result = twoshot->inputs + (size_t)options->world * twoshot->slot_floats;
	shm_group_attach(&twoshot->group);
	*out = &twoshot->group.base;
	return STATUS_OK;
}

/* First element of a rank's shard. Cut at slot alignment, so that no two ranks write one line; small calls leave some ranks
 * without elements. */
static size_t shard_begin(size_t count, int rank, int world)
{
	const size_t unit = SHM_ALIGN / sizeof(float);
	size_t n_units = (count + unit - 1) / unit;
	size_t begin = n_units * (size_t)rank / (size_t)world * unit;
	return begin < count ? begin : count;
}

static void sum_shard(struct twoshot_comm *twoshot, size_t count)
{
	const struct comm_options *options = &twoshot->group.base.options;
	size_t begin = shard_begin(count, options->rank, options->world);
	size_t end = shard_begin(count, options->rank + 1, options->world);
	const float *parts[COMM_RANKS_MAX];
	for (int rank = 0; rank < options->world; rank++)
		parts[rank] = twoshot->inputs + (size_t)rank * twoshot->slot_floats + begin;
	comm_sum(twoshot->result + begin, parts, options->world, end - begin);
}

static enum status twoshot_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct twoshot_comm *twoshot = (struct twoshot_comm *)comm;
	enum status status = shm_call_begin(&twoshot->group, count, err);
	if (status != STATUS_OK || count == 0)
		return status;
	memcpy(twoshot->inputs + (size_t)comm->options.rank * twoshot->slot_floats, data, count * sizeof(float));
	shm_signal(&twoshot->group);
	if (shm_wait_all(&twoshot->group, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	sum_shard(twoshot, count);
	shm_signal(&twoshot->group);
	if (shm_wait_all(&twoshot->group, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	memcpy(data, twoshot->result, count * sizeof(float));
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
