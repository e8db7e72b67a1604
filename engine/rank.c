/* Builds one rank's forward pass from the shared setup, and chooses the collective that its sums go through. */
#include "engine/rank.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/device.h"
#include "kernels/comm/auto.h"

struct rank {
	struct region region;
	struct rank_peers peers;
	struct forward *forward;
	const struct comm_ops *comm_ops; /* NULL until connected, and with world 1 */
	struct comm *comm;
	uint32_t steps; /* completed; wraps */
	char why[COMM_AUTO_WHY_BYTES];
};

void rank_forward_options(const struct rank_setup *setup, int rank, struct forward_options *out)
{
	*out = (struct forward_options){
		.kn = device_ops(setup->device),
		.kn_options = {.threads = setup->threads, .isa = setup->isa, .deterministic = setup->deterministic},
		.limits = setup->limits,
		.rank = rank,
		.world = setup->world,
		.kv_type = (enum kn_kv_type)setup->kv_type,
		.graph_max_bs = setup->graph_max_bs,
		.n_blocks = setup->n_blocks,
	};
}

enum status rank_create(const struct region *region, const struct source *source, const struct model_config *config,
	const struct rank_peers *peers, struct rank **out, struct err *err)
{
	const struct rank_setup *setup = &region->header->setup;
	/* The file may have been replaced between rank 0's reading and ours. */
	if (config->vocab != setup->vocab || config->hidden != setup->hidden)
		return err_set(err, STATUS_INPUT, "model '%s' changed while the ranks were starting", setup->model_path);
	struct rank *rank = mem_calloc(1, sizeof *rank);
	rank->region = *region;
	rank->peers = *peers;
	snprintf(rank->why, sizeof rank->why, "one rank has nothing to sum");
	struct forward_options options;
	rank_forward_options(setup, peers->rank, &options);
	options.logits = region->logits;
	enum status status = forward_create(source, config, &options, &rank->forward, err);
	if (status != STATUS_OK) {
		rank_destroy(rank);
		return status;
	}
	*out = rank;
	return STATUS_OK;
}

static enum status connect_fastest(struct rank *rank, const struct comm_options *options, struct err *err)
{
	struct comm_auto_sizes sizes = {
		.decode_count = (size_t)rank->region.header->setup.hidden,
		.prefill_count = options->count_max,
	};
	struct comm_auto_choice choice;
	enum status status = comm_auto_create(options, &sizes, &choice, err);
	if (status != STATUS_OK)
		return status;
	rank->comm_ops = choice.ops;
	rank->comm = choice.comm;
	snprintf(rank->why, sizeof rank->why, "%s", choice.why);
	return STATUS_OK;
}

static enum status connect_named(struct rank *rank, const char *name, const struct comm_options *options, struct err *err)
{
	enum status status = comm_find(name, "cpu", &rank->comm_ops, err);
	snprintf(rank->why, sizeof rank->why, "as asked");
	return status == STATUS_OK ? rank->comm_ops->create(options, &rank->comm, err) : status;
}

enum status rank_connect(struct rank *rank, struct err *err)
{
	const struct rank_setup *setup = &rank->region.header->setup;
	if (setup->world == 1)
		return STATUS_OK;
	struct comm_options options = {
		.rank = rank->peers.rank,
		.world = setup->world,
		.count_max = region_comm_count(setup),
		.shared = rank->region.comm_shared,
		.sockets = rank->peers.sockets,
		.abort = rank->peers.abort_word,
		.timeout_ns = setup->rank_timeout_ns,
		.spins = setup->spins,
	};
	enum status status = strcmp(setup->allreduce, "auto") == 0 ? connect_fastest(rank, &options, err)
								   : connect_named(rank, setup->allreduce, &options, err);
	if (status != STATUS_OK)
		return err_add(err, "allreduce");
	forward_set_comm(rank->forward, rank->comm_ops, rank->comm);
	return STATUS_OK;
}

/* ---- at work ---- */

/* Rank 0 is often first at the end: the others may still be writing their share of the logits. */
static enum status await_others(struct rank *rank, struct err *err)
{
	struct region_header *header = rank->region.header;
	int64_t deadline_ns = clock_monotonic_ns() + header->setup.rank_timeout_ns;
	for (int other = 1; other < header->setup.world; other++) {
		struct wait_word *steps = &header->done[other].steps;
		while (wait_word_get(steps) != rank->steps) {
			if (!wait_word_while_equal(
				    steps, rank->steps - 1, header->setup.spins, rank->peers.abort_word, deadline_ns))
				return err_set(err, STATUS_RANK_DIED, "rank 0 waited %.1f s for rank %d to complete step %u",
					(double)header->setup.rank_timeout_ns / 1e9, other, rank->steps);
		}
	}
	return STATUS_OK;
}

enum status rank_step(struct rank *rank, struct forward_times *times, struct err *err)
{
	enum status status = forward_step(rank->forward, &rank->region.step, times, err);
	if (status != STATUS_OK)
		return status;
	rank->steps++;
	if (rank->peers.rank == 0)
		return await_others(rank, err);
	wait_word_set(&rank->region.header->done[rank->peers.rank].steps, rank->steps);
	return STATUS_OK;
}

enum status rank_launch(struct rank *rank, struct err *err)
{
	return forward_launch(rank->forward, &rank->region.step, err);
}

enum status rank_await(struct rank *rank, const struct kn_sampled **sampled, struct forward_times *times, struct err *err)
{
	return forward_await(rank->forward, sampled, times, err);
}

struct forward *rank_forward(struct rank *rank)
{
	return rank->forward;
}

const char *rank_allreduce_name(const struct rank *rank)
{
	return rank->comm_ops ? rank->comm_ops->name : "none";
}

const char *rank_allreduce_why(const struct rank *rank)
{
	return rank->why;
}

void rank_allreduce_stats(const struct rank *rank, struct comm_stats *out)
{
	*out = (struct comm_stats){0};
	if (!rank->comm)
		return;
	rank->comm_ops->stats(rank->comm, out);
}

void rank_destroy(struct rank *rank)
{
	if (!rank)
		return;
	forward_destroy(rank->forward);
	if (rank->comm)
		rank->comm_ops->destroy(rank->comm);
	mem_free(rank);
}
