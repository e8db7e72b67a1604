/* What a forward pass is made of, for its own sources: forward.c makes it and lists the operations of a step, forward_step.c runs
 * steps. */
#ifndef ENGINE_FORWARD_STATE_H
#define ENGINE_FORWARD_STATE_H

#include "engine/exchange.h"
#include "engine/forward.h"
#include "engine/weights.h"

/* Backend memory of one rank beside weights and KV. */
enum buffer {
	BUFFER_RESIDUAL, /* [rows_max][hidden] */
	BUFFER_QKV, /* [rows_max][(heads + 2 * kv_heads) * head_dim] */
	BUFFER_ATTENDED, /* [rows_max][heads * head_dim] */
	BUFFER_FFN, /* [rows_max][ffn share] */
	BUFFER_PARTIAL, /* [rows_max][hidden] this rank's part of a sum over ranks; absent with world 1 */
	BUFFER_ROPE, /* [positions][head_dim] */
	BUFFER_KV_HEADS, /* [heads] */
	BUFFER_STEP, /* the step's arrays, as plans read them; absent where an exchange has them */
	BUFFER_LOGITS, /* [logits_max][vocab] where the backend cannot write to the host's; else absent */
	BUFFER_COUNT
};

/* A sum over ranks in the middle of a step; its row count is part of a plan. */
struct reduction {
	struct forward *forward;
	int n_rows;
};

/* A recorded step of n_rows rows, each with its logits. */
struct forward_plan {
	struct kn_plan *plan;
	int n_rows;
	struct reduction reduction;
};

/* What forward_await will say of a step that was launched. */
struct forward_flight {
	int n_logits;
	bool planned;
};

struct forward {
	struct forward_options options;
	struct model_config config;
	struct shard shard;
	struct kn_backend *backend;
	struct weights weights;
	void *buffers[BUFFER_COUNT];
	size_t buffer_bytes[BUFFER_COUNT];
	void *kv;
	size_t kv_bytes;
	struct step step; /* in backend memory: BUFFER_STEP, or of the exchange */
	struct exchange *exchange; /* NULL where the backend works in host memory */
	struct forward_flight flights[2]; /* by turn */
	uint32_t launched, awaited; /* steps through the exchange */
	const struct comm_ops *comm_ops;
	struct comm *comm;
	struct forward_plan *plans; /* [n_plans], ascending by rows */
	int n_plans;
	struct reduction eager_reduction;
	bool logits_pinned; /* options.logits, where the backend has memory of its own */
	int uniform_groups; /* see struct kn_attention */
};

/* Enqueues all operations of one step: reduction->n_rows rows and n_logits of them through the head. row_index NULL: the first
 * ones. */
enum status forward_operations(
	struct forward *forward, struct reduction *reduction, const int32_t *row_index, int n_logits, struct err *err);

#endif
