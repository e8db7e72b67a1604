/* From what was asked for to what every rank runs: defaults that depend on model and machine, memory plan, reasons.
 * Rank 0 resolves once; the result is plain data that children read from the shared region. */
#ifndef ENGINE_SETUP_H
#define ENGINE_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/memplan.h"
#include "engine/model.h"
#include "engine/source.h"
#include "engine/step.h"
#include "kernels/kn.h"

#define SETUP_PATH_BYTES 4096
#define SETUP_WHY_BYTES 160

/* Plain data, no pointers: copied into the shared region for the other ranks. */
struct rank_setup {
	char model_path[SETUP_PATH_BYTES];
	char device[16]; /* "cpu" or "cuda" */
	char isa[16]; /* "auto", "scalar", … */
	char allreduce[32]; /* "auto" or a backend's name */
	int32_t world, threads, vocab, hidden;
	int32_t kv_type; /* enum kn_kv_type */
	int32_t graph_max_bs;
	int32_t deterministic;
	int32_t n_blocks; /* KV blocks, block 0 is a dummy */
	int32_t max_model_len;
	struct step_limits limits;
	uint32_t spins;
	int64_t rank_timeout_ns;
};

/* Reasons behind the values, for /config. */
struct setup_whys {
	char device[SETUP_WHY_BYTES], threads[SETUP_WHY_BYTES], allreduce[SETUP_WHY_BYTES], graph_max_bs[SETUP_WHY_BYTES];
	char max_model_len[SETUP_WHY_BYTES], max_num_seqs[SETUP_WHY_BYTES], chunk_tokens[SETUP_WHY_BYTES], kv_type[SETUP_WHY_BYTES];
	char run_ahead[SETUP_WHY_BYTES];
};

struct setup {
	struct rank_setup rank;
	struct setup_whys whys;
	struct memplan memplan; /* with its own reasons */
	int32_t chunk_tokens; /* prefill tokens in one step */
	bool run_ahead; /* the next step is begun before the tokens of the one under way are known */
	uint64_t gpu_total_bytes, gpu_free_bytes; /* of the GPU at start; 0 on CPUs */
	char gpu_others[SETUP_WHY_BYTES]; /* other processes that hold memory of it, as far as they show themselves */
};

/* Pure but for reading the machine's memory and CPU count. Choices that cannot be are refused with a stable code:
 * "not_enough_memory", "cannot_shard", "allreduce_refused", "device_unavailable", "bad_option". */
enum status setup_resolve(const struct engine_options *options, const struct source *source, const struct model_config *config,
	struct setup *out, struct err *err);

#endif
