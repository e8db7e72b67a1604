/* What lies where in the memory that all ranks of one server share. */
#ifndef ENGINE_REGION_H
#define ENGINE_REGION_H

#include <stddef.h>
#include <stdint.h>

#include "base/wait_word.h"
#include "engine/ranks.h"
#include "engine/setup.h"
#include "engine/step.h"
#include "kernels/comm/comm.h"

/* Commands beside RANKS_COMMAND_STEP. Order of a start: rank 0 fills the region, posts REGION_COMMAND_LOAD, every rank loads
 * and reports; when all are ready rank 0 posts REGION_COMMAND_CONNECT and every rank makes its collective; then steps. */
enum { REGION_COMMAND_LOAD = RANKS_COMMAND_FIRST_FREE, REGION_COMMAND_CONNECT };

struct region_header {
	struct rank_setup setup; /* written by rank 0 before REGION_COMMAND_LOAD, then constant */
	struct {
		_Alignas(128) struct wait_word
			steps; /* that this rank has completed, modulo 2^32; written by it, waited for by rank 0 */
	} done[COMM_RANKS_MAX];
};

/* Pointers into the region, one copy per process. */
struct region {
	struct region_header *header;
	struct step step;
	void *comm_shared; /* area of the collective; NULL when it needs none */
	float *logits; /* [limits.logits_max][vocab] */
};

/* Bytes of the region for setup; with world 1 it needs no sharing, any zeroed memory does. */
size_t region_bytes(const struct rank_setup *setup);

/* Floats of the largest allreduce: all rows of one step. */
size_t region_comm_count(const struct rank_setup *setup);

/* The part of them that only the collectives need. */
size_t region_comm_bytes(const struct rank_setup *setup);

/* Rank 0, zeroed memory: stores setup and fills out. */
void region_init(const struct rank_setup *setup, void *memory, struct region *out);

/* Other ranks: fills out from what rank 0 stored. */
void region_bind(void *memory, struct region *out);

#endif
