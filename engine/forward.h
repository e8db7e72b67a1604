/* Forward pass of one rank: owns the backend, weights, KV pool, activations and step plans. One thread uses it. */
#ifndef ENGINE_FORWARD_H
#define ENGINE_FORWARD_H

#include <stdbool.h>

#include "engine/model.h"
#include "engine/source.h"
#include "engine/step.h"
#include "kernels/comm/comm.h"
#include "kernels/kn.h"

struct forward;

struct forward_options {
	const struct kn_ops *kn;
	struct kn_options kn_options; /* rows_max and cols_max are filled in by forward_create */
	struct step_limits limits;
	int rank, world;
	enum kn_kv_type kv_type;
	int graph_max_bs; /* 0: no plans */
	int32_t n_blocks; /* KV blocks, block 0 is a dummy; from the memory plan, equal on all ranks */
	float *logits; /* [logits_max][vocab] host memory shared by all ranks: each writes its vocabulary slice */
};

struct forward_times {
	int64_t total_ns, allreduce_ns;
	int used_plan; /* 1: the step ran from a plan */
	int64_t begin_ns, end_ns; /* by the device's clock; 0 where the host computes */
};

#define FORWARD_TIMEOUT_NS (120LL * 1000000000) /* guess: longest step of a device that works */

/* Refuses (code "unsupported_model") heads of a size that the backend does not compute with: the configuration alone says so,
 * nothing needs to be loaded. */
enum status forward_check(const struct kn_ops *kn, const struct model_config *config, struct err *err);

/* Loads this rank's shard of the weights, allocates everything a step needs, and records plans for row counts up to graph_max_bs
 * (at most logits_max): for those of engine/plan_sizes.h where the backend has memory of its own, and smaller steps are filled up
 * with rows of no consequence; for every count on a CPU, where such a row would cost as much as a real one. A plan that finds no
 * memory is STATUS_NO_MEMORY, naming its size and what the others took. */
enum status forward_create(const struct source *source, const struct model_config *config, const struct forward_options *options,
	struct forward **out, struct err *err);
void forward_destroy(struct forward *forward);

/* Gives the collective, before the first step; world 1 needs none. Plans recorded earlier use it too. Borrowed. */
void forward_set_comm(struct forward *forward, const struct comm_ops *comm_ops, struct comm *comm);

/* Runs one step: all layers for step->n_rows rows, logits for the listed rows. Collective over ranks. Allocates nothing.
 * A plan is used when there is one for the row count and every row asks for its logits (decode and verify steps). On a CPU, and
 * with kn_options.deterministic, the bits of a row are the same either way, and whatever the other rows are; else the row count
 * chooses the kernels (a filled-up plan's row count is its own), and they alone move the last bits. times may be NULL. */
enum status forward_step(struct forward *forward, const struct step *step, struct forward_times *times, struct err *err);

/* --- Steps on a backend with memory of its own, which samples by itself (world 1) ----------------------------------- */

/* True where the three functions below work; elsewhere logits are in host memory after forward_step and nothing is sampled. */
bool forward_samples(const struct forward *forward);

/* Begins a step and returns; step may be overwritten then. At most two steps are under way: a row of the second may take its token
 * from an outcome of the first (step->sources). */
enum status forward_launch(struct forward *forward, const struct step *step, struct err *err);

/* Waits for the oldest step under way. sampled: one outcome for each of its lines of logits, valid until the next but one step is
 * launched. */
enum status forward_await(struct forward *forward, const struct kn_sampled **sampled, struct forward_times *times, struct err *err);

/* Copies lines of logits of the step that ended last to options.logits; none may be under way. */
enum status forward_fetch_logits(struct forward *forward, int line, int count, struct err *err);

/* Memory this rank holds. */
struct forward_memory {
	uint64_t weights, workspace, plans, kv;
};
void forward_memory(const struct forward *forward, struct forward_memory *out);

/* Number of plans that were recorded; row count and bytes of one, ascending by rows. */
int forward_plans_count(const struct forward *forward);
int forward_plan_at(const struct forward *forward, int index, uint64_t *bytes);

/* Instruction set or device in use, from the backend; borrowed. */
const char *forward_describe(const struct forward *forward);

/* Memory before anything is made, from the same options (logits and n_blocks are not looked at; kv is the bytes of one
 * block). weights and workspace are exact, plans an upper bound. */
enum status forward_memory_needed(const struct source *source, const struct model_config *config,
	const struct forward_options *options, struct forward_memory *out, struct err *err);

#endif
