/* One rank at work: its collective and its forward pass, built from the shared region. Rank 0 and children use the same code.
 * One thread uses it. */
#ifndef ENGINE_RANK_H
#define ENGINE_RANK_H

#include "engine/forward.h"
#include "engine/region.h"

struct rank;

struct rank_peers {
	int rank;
	const int *sockets; /* as in struct comm_options */
	const _Atomic uint32_t *abort_word; /* may be NULL */
};

/* What a rank's forward pass is made from, but for the logits' place (NULL here). */
void rank_forward_options(const struct rank_setup *setup, int rank, struct forward_options *out);

/* Loads the shard, allocates everything, records plans. No collective work: a failure on one rank is reported, not waited for.
 * region, source and config must outlive *out. */
enum status rank_create(const struct region *region, const struct source *source, const struct model_config *config,
	const struct rank_peers *peers, struct rank **out, struct err *err);

/* Collective over ranks, after all have been created: makes the allreduce; "auto" measures the candidates and takes rank 0's
 * fastest. With world 1 it does nothing. */
enum status rank_connect(struct rank *rank, struct err *err);

/* Runs the step that lies in the region. Collective. On rank 0 it returns when all ranks have done it: then the logits are
 * complete and the step may be overwritten. times may be NULL. */
enum status rank_step(struct rank *rank, struct forward_times *times, struct err *err);

/* The same in two halves, where rank_forward samples by itself: see forward_launch. */
enum status rank_launch(struct rank *rank, struct err *err);
enum status rank_await(struct rank *rank, const struct kn_sampled **sampled, struct forward_times *times, struct err *err);

struct forward *rank_forward(struct rank *rank);

/* Name of the allreduce in use ("none" with world 1), why it was chosen, and its counters. */
const char *rank_allreduce_name(const struct rank *rank);
const char *rank_allreduce_why(const struct rank *rank);
void rank_allreduce_stats(const struct rank *rank, struct comm_stats *out);

void rank_destroy(struct rank *rank);

#endif
