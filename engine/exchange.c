/* Two stages of fixed host memory, and the backend memory that they are fetched into. */
#include "engine/exchange.h"

#include <stdatomic.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"

#define CHECK_SPINS 4096 /* guess: about 100 µs; asking the driver costs it a microsecond */

/* Backend memory, one piece each. */
enum piece { PIECE_STEP, PIECE_SAMPLED, PIECE_TURN, PIECE_SCRATCH, PIECE_COUNT };

struct exchange {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	struct step_limits limits;
	void *pieces[PIECE_COUNT];
	size_t piece_bytes[PIECE_COUNT];
	void *host; /* both stages, outcomes and reports */
	size_t host_bytes;
	bool pinned;
	struct step stages[2], step;
	struct kn_exchange shared;
	uint32_t posted, awaited; /* steps; wrap */
};

static void sizes_of(const struct kn_ops *kn, const struct step_limits *limits, int64_t vocab, size_t bytes[PIECE_COUNT])
{
	bytes[PIECE_STEP] = step_bytes(limits);
	bytes[PIECE_SAMPLED] = (size_t)limits->logits_max * sizeof(struct kn_sampled);
	bytes[PIECE_TURN] = sizeof(struct kn_turn);
	bytes[PIECE_SCRATCH] = kn->sample_scratch_bytes(limits->logits_max, vocab);
}

uint64_t exchange_backend_bytes(const struct kn_ops *kn, const struct step_limits *limits, int64_t vocab)
{
	size_t bytes[PIECE_COUNT];
	uint64_t total = 0;
	sizes_of(kn, limits, vocab, bytes);
	for (int i = 0; i < PIECE_COUNT; i++)
		total += bytes[i];
	return total;
}

static size_t line_up(size_t bytes)
{
	return (bytes + 63) / 64 * 64;
}

static enum status make_host_memory(struct exchange *exchange, struct err *err)
{
	size_t step = line_up(step_bytes(&exchange->limits));
	size_t outcomes = line_up((size_t)exchange->limits.logits_max * sizeof(struct kn_sampled));
	exchange->host_bytes = 2 * (step + outcomes) + line_up(2 * sizeof(struct kn_report));
	enum status status = mem_map(exchange->host_bytes, &exchange->host, err);
	if (status == STATUS_OK)
		status = exchange->kn->pin(exchange->backend, exchange->host, exchange->host_bytes, err);
	if (status != STATUS_OK)
		return status;
	exchange->pinned = true;
	char *at = exchange->host;
	for (int i = 0; i < 2; i++, at += step + outcomes) {
		step_bind(&exchange->limits, at, &exchange->stages[i]);
		exchange->shared.stages[i] = step_arrays(&exchange->stages[i]);
		exchange->shared.outcomes[i] = (struct kn_sampled *)(at + step);
	}
	exchange->shared.reports = (struct kn_report *)at;
	return STATUS_OK;
}

static enum status make_backend_memory(struct exchange *exchange, int64_t vocab, struct err *err)
{
	sizes_of(exchange->kn, &exchange->limits, vocab, exchange->piece_bytes);
	for (int i = 0; i < PIECE_COUNT; i++) {
		if (exchange->piece_bytes[i] == 0)
			continue;
		enum status status = exchange->kn->alloc(exchange->backend, exchange->piece_bytes[i], &exchange->pieces[i], err);
		if (status != STATUS_OK)
			return status;
	}
	step_bind(&exchange->limits, exchange->pieces[PIECE_STEP], &exchange->step);
	exchange->shared.step = step_arrays(&exchange->step);
	exchange->shared.sampled = exchange->pieces[PIECE_SAMPLED];
	exchange->shared.turn = exchange->pieces[PIECE_TURN];
	exchange->shared.scratch = exchange->pieces[PIECE_SCRATCH];
	exchange->shared.block_table_stride = exchange->limits.blocks_per_slot_max;
	exchange->shared.slots_max = exchange->limits.slots_max;
	exchange->shared.logits_max = exchange->limits.logits_max;
	return STATUS_OK;
}

enum status exchange_create(const struct kn_ops *kn, struct kn_backend *backend, const struct step_limits *limits, int64_t vocab,
	struct exchange **out, struct err *err)
{
	struct exchange *exchange = mem_calloc(1, sizeof *exchange);
	exchange->kn = kn;
	exchange->backend = backend;
	exchange->limits = *limits;
	enum status status = make_host_memory(exchange, err);
	if (status == STATUS_OK)
		status = make_backend_memory(exchange, vocab, err);
	if (status != STATUS_OK) {
		exchange_destroy(exchange);
		return err_add(err, "memory for steps");
	}
	*out = exchange;
	return STATUS_OK;
}

void exchange_destroy(struct exchange *exchange)
{
	if (!exchange)
		return;
	for (int i = 0; i < PIECE_COUNT; i++)
		if (exchange->pieces[i])
			exchange->kn->release(exchange->backend, exchange->pieces[i], exchange->piece_bytes[i]);
	if (exchange->pinned)
		exchange->kn->unpin(exchange->backend, exchange->host);
	mem_unmap(exchange->host, exchange->host_bytes);
	mem_free(exchange);
}

const struct kn_exchange *exchange_shared(const struct exchange *exchange)
{
	return &exchange->shared;
}

const struct step *exchange_step(const struct exchange *exchange)
{
	return &exchange->step;
}

static const struct step *next_stage(struct exchange *exchange)
{
	ASSERT(exchange->posted - exchange->awaited < 2);
	return &exchange->stages[++exchange->posted % 2];
}

void exchange_post(struct exchange *exchange, const struct step *step)
{
	step_copy(&exchange->limits, step, next_stage(exchange));
}

void exchange_post_empty(struct exchange *exchange)
{
	const struct step *stage = next_stage(exchange);
	*stage->n_rows = *stage->n_logits = 0;
}

/* The device writes the turn after all else; whoever reads it in this order sees all of it. */
static bool has_come(const struct kn_report *report, uint32_t turn)
{
	return atomic_load_explicit((_Atomic uint32_t *)&report->turn, memory_order_acquire) == turn;
}

enum status exchange_await(struct exchange *exchange, int64_t timeout_ns, struct exchange_outcome *out, struct err *err)
{
	ASSERT(exchange->posted != exchange->awaited);
	uint32_t turn = exchange->awaited + 1;
	const struct kn_report *report = &exchange->shared.reports[turn % 2];
	int64_t deadline_ns = clock_monotonic_ns() + timeout_ns;
	for (uint32_t i = 0; !has_come(report, turn); i++) {
		if (i % CHECK_SPINS == 0) {
			enum status status = exchange->kn->check(exchange->backend, err);
			if (status != STATUS_OK)
				return status;
			if (clock_monotonic_ns() > deadline_ns)
				return err_set(
					err, STATUS_UNAVAILABLE, "a step was not over after %.1f s", (double)timeout_ns / 1e9);
		}
		wait_spin(i);
	}
	exchange->awaited = turn;
	*out = (struct exchange_outcome){
		.sampled = exchange->shared.outcomes[turn % 2],
		.begin_ns = (int64_t)report->begin_ns,
		.end_ns = (int64_t)report->end_ns,
	};
	return STATUS_OK;
}
