/* shm-flag: one-shot allreduce. Each rank copies its input to its own slot and signals; when all have signalled, each sums all
 * slots in rank order. Twin of p2p-flag.
 *
 * Two halves alternate, and there is no barrier at the end. A slot used in call k is written again in call k + 2; its owner
 * gets there only after call k + 1, for which every peer has signalled, which a peer does only after it has finished
 * reading in call k. */
#include "base/mem.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/shm.h"

#define HALVES 2

struct flag_comm {
	struct shm_group group; /* first: struct comm is its first member */
	size_t slot_floats;
	uint32_t calls; /* parity selects the half */
};

static float *slot_of(const struct flag_comm *flag, uint32_t half, int rank)
{
	size_t index = (size_t)half * (size_t)flag->group.base.options.world + (size_t)rank;
	return (float *)flag->group.payload + index * flag->slot_floats;
}

static size_t flag_shared_bytes(int world, size_t count_max)
{
	return shm_lines_bytes(world) + HALVES * (size_t)world * shm_slot_floats(count_max) * sizeof(float);
}

static enum status flag_create(const struct comm_options *options, struct comm **out, struct err *err)
{
	struct flag_comm *flag = mem_calloc_aligned(_Alignof(struct flag_comm), 1, sizeof(*flag));
	enum status status = shm_group_init(&flag->group, &comm_shm_flag, options, err);
	if (status != STATUS_OK) {
		mem_free(flag);
		return status;
	}
	flag->slot_floats = shm_slot_floats(options->count_max);
	shm_group_attach(&flag->group);
	*out = &flag->group.base;
	return STATUS_OK;
}

static enum status flag_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct flag_comm *flag = (struct flag_comm *)comm;
	enum status status = shm_call_begin(&flag->group, count, err);
	if (status != STATUS_OK || count == 0)
		return status;
	uint32_t half = flag->calls++ % HALVES;
	shm_publish(slot_of(flag, half, comm->options.rank), data, count);
	shm_signal(&flag->group);
	if (shm_wait_all(&flag->group, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	const float *parts[COMM_RANKS_MAX];
	for (int rank = 0; rank < comm->options.world; rank++)
		parts[rank] = rank == comm->options.rank ? data : slot_of(flag, half, rank);
	comm_sum(data, parts, comm->options.world, count);
	comm_call_end(comm, count);
	return STATUS_OK;
}

static void flag_destroy(struct comm *comm)
{
	mem_free(comm);
}

const struct comm_ops comm_shm_flag = {
	.name = "shm-flag",
	.twin = "p2p-flag",
	.summary = "one shot: each rank publishes its slot with a flag, then all sum all slots",
	.shared_bytes = flag_shared_bytes,
	.needs_sockets = 0,
	.create = flag_create,
	.allreduce = flag_allreduce,
	.stats = comm_base_stats,
	.destroy = flag_destroy,
};
