/* The host's end of a struct kn_exchange: leaves steps where a backend with memory of its own fetches them, and waits for what came
 * of them. At most two steps are under way. One thread uses it. */
#ifndef ENGINE_EXCHANGE_H
#define ENGINE_EXCHANGE_H

#include "engine/step.h"
#include "kernels/kn.h"

struct exchange;

/* Bytes of backend memory that exchange_create takes. The host memory that it fixes is not counted. */
uint64_t exchange_backend_bytes(const struct kn_ops *kn, const struct step_limits *limits, int64_t vocab);

enum status exchange_create(const struct kn_ops *kn, struct kn_backend *backend, const struct step_limits *limits, int64_t vocab,
	struct exchange **out, struct err *err);
void exchange_destroy(struct exchange *exchange);

/* For the operations take and sample. */
const struct kn_exchange *exchange_shared(const struct exchange *exchange);

/* The step's arrays as operations read them: backend memory, valid between take and sample. */
const struct step *exchange_step(const struct exchange *exchange);

/* Leaves a copy of the step in the next stage; its operations are enqueued after this. At most one other step is unawaited. */
void exchange_post(struct exchange *exchange, const struct step *step);

/* Leaves a step without rows, for running operations that only need to have run. */
void exchange_post_empty(struct exchange *exchange);

struct exchange_outcome {
	const struct kn_sampled *sampled; /* [n_logits of the step]; valid until the next but one step is posted */
	int64_t begin_ns, end_ns; /* of the step, by the device's clock */
};

/* Waits for the oldest step that is posted and not awaited. Spins, yielding now and then: a step is short and the host has nothing
 * else to do. STATUS_UNAVAILABLE when the backend failed or timeout_ns passed. */
enum status exchange_await(struct exchange *exchange, int64_t timeout_ns, struct exchange_outcome *out, struct err *err);

#endif
