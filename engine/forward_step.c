/* Runs steps: from a plan or as they come, at once or through an exchange. */
#include <string.h>

#include "base/clock.h"
#include "engine/forward_state.h"

/* A step comes from our own scheduler: what it breaks here is our bug. */
static void check_step(const struct forward *forward, const struct step *step)
{
	const struct step_limits *limits = &forward->options.limits;
	int32_t n_rows = *step->n_rows, n_logits = *step->n_logits;
	ASSERT(n_rows > 0 && n_rows <= limits->rows_max && n_logits >= 0 && n_logits <= limits->logits_max && n_logits <= n_rows);
	for (int32_t i = 0; i < n_rows; i++) {
		ASSERT(step->tokens[i] >= 0 && step->tokens[i] < forward->config.vocab);
		ASSERT(step->positions[i] >= 0 && step->positions[i] < (int64_t)limits->blocks_per_slot_max * KN_KV_BLOCK_TOKENS);
		ASSERT(step->slots[i] >= 0 && step->slots[i] < limits->slots_max);
	}
	for (int32_t i = 0; i < n_logits; i++)
		ASSERT(step->logit_rows[i] >= 0 && step->logit_rows[i] < n_rows &&
			(i == 0 || step->logit_rows[i] > step->logit_rows[i - 1]));
}

static size_t block_table_line(const struct forward *forward, const struct step *step, int32_t row)
{
	return (size_t)step->slots[row] * (size_t)forward->options.limits.blocks_per_slot_max;
}

/* How many block numbers a row may read: up to its own position. */
static size_t checked_blocks(const struct forward *forward, const struct step *step, int32_t row)
{
	size_t line = block_table_line(forward, step, row), count = (size_t)step->positions[row] / KN_KV_BLOCK_TOKENS + 1;
	for (size_t i = 0; i < count; i++)
		ASSERT(step->block_tables[line + i] >= 0 && step->block_tables[line + i] < forward->options.n_blocks);
	return count;
}

/* Rows of a sequence come in ascending position, so the last row of a run of one slot needs the most blocks. */
static bool is_last_of_run(const struct step *step, int32_t row)
{
	return row + 1 == *step->n_rows || step->slots[row + 1] != step->slots[row];
}

static enum status copy_step(struct forward *forward, const struct step *step, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	const struct {
		int32_t *to;
		const int32_t *from;
		int32_t count;
	} arrays[] = {
		{forward->step.tokens, step->tokens, *step->n_rows},
		{forward->step.positions, step->positions, *step->n_rows},
		{forward->step.slots, step->slots, *step->n_rows},
		{forward->step.logit_rows, step->logit_rows, *step->n_logits},
	};
	for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
		enum status status = arrays[i].count == 0 ? STATUS_OK
							  : kn->to_device(forward->backend, arrays[i].to, arrays[i].from,
								    (size_t)arrays[i].count * sizeof(int32_t), err);
		if (status != STATUS_OK)
			return status;
	}
	for (int32_t row = 0; row < *step->n_rows; row++) {
		if (!is_last_of_run(step, row))
			continue;
		size_t line = block_table_line(forward, step, row);
		enum status status = kn->to_device(forward->backend, forward->step.block_tables + line, step->block_tables + line,
			checked_blocks(forward, step, row) * sizeof(int32_t), err);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

static int64_t allreduce_ns_of(const struct forward *forward)
{
	struct comm_stats stats = {0};
	if (forward->comm)
		forward->comm_ops->stats(forward->comm, &stats);
	return (int64_t)stats.total_ns;
}

/* The smallest plan with room for the step's rows. A plan computes the logits of every row. */
static const struct forward_plan *find_plan(const struct forward *forward, int n_rows, int n_logits)
{
	for (int i = 0; i < forward->n_plans && n_logits == n_rows; i++)
		if (forward->plans[i].n_rows >= n_rows)
			return &forward->plans[i];
	return NULL;
}

static enum status run(struct forward *forward, const struct step *step, bool *planned, struct err *err)
{
	int n_rows = *step->n_rows, n_logits = *step->n_logits;
	const struct forward_plan *plan = find_plan(forward, n_rows, n_logits);
	*planned = plan != NULL;
	if (plan)
		return forward->options.kn->plan_run(forward->backend, plan->plan, err);
	/* Where every row asks, the head takes them as they lie, as a plan does: the same operations, so the same bits. */
	const int32_t *row_index = n_logits == n_rows ? NULL : forward->step.logit_rows;
	forward->eager_reduction.n_rows = n_rows;
	return forward_operations(forward, &forward->eager_reduction, row_index, n_logits, err);
}

static enum status step_on_host(struct forward *forward, const struct step *step, struct forward_times *times, struct err *err)
{
	int64_t begin_ns = clock_monotonic_ns(), allreduce_begin_ns = allreduce_ns_of(forward);
	bool planned = false;
	check_step(forward, step);
	enum status status = copy_step(forward, step, err);
	if (status == STATUS_OK)
		status = run(forward, step, &planned, err);
	if (status == STATUS_OK)
		status = forward->options.kn->synchronize(forward->backend, err);
	*times = (struct forward_times){
		.total_ns = clock_monotonic_ns() - begin_ns,
		.allreduce_ns = allreduce_ns_of(forward) - allreduce_begin_ns,
		.used_plan = planned,
	};
	return status;
}

enum status forward_launch(struct forward *forward, const struct step *step, struct err *err)
{
	ASSERT(forward->exchange && forward->options.world == 1);
	check_step(forward, step);
	for (int32_t row = 0; row < *step->n_rows; row++)
		if (is_last_of_run(step, row))
			checked_blocks(forward, step, row);
	exchange_post(forward->exchange, step);
	struct forward_flight *flight = &forward->flights[++forward->launched % 2];
	flight->n_logits = *step->n_logits;
	return run(forward, step, &flight->planned, err);
}

enum status forward_await(struct forward *forward, const struct kn_sampled **sampled, struct forward_times *times, struct err *err)
{
	struct exchange_outcome outcome;
	ASSERT(forward->awaited != forward->launched);
	enum status status = exchange_await(forward->exchange, FORWARD_TIMEOUT_NS, &outcome, err);
	if (status != STATUS_OK)
		return status;
	*sampled = outcome.sampled;
	*times = (struct forward_times){
		.total_ns = outcome.end_ns - outcome.begin_ns,
		.used_plan = forward->flights[++forward->awaited % 2].planned,
		.begin_ns = outcome.begin_ns,
		.end_ns = outcome.end_ns,
	};
	return STATUS_OK;
}

enum status forward_fetch_logits(struct forward *forward, int line, int count, struct err *err)
{
	size_t vocab = (size_t)forward->config.vocab;
	ASSERT(line >= 0 && count >= 0 && line + count <= forward->options.limits.logits_max);
	if (!forward->exchange || count == 0)
		return STATUS_OK;
	ASSERT(forward->awaited == forward->launched);
	return forward->options.kn->to_host(forward->backend, forward->options.logits + (size_t)line * vocab,
		(const float *)forward->buffers[BUFFER_LOGITS] + (size_t)line * vocab, (size_t)count * vocab * sizeof(float), err);
}

bool forward_samples(const struct forward *forward)
{
	return forward->exchange != NULL;
}

enum status forward_step(struct forward *forward, const struct step *step, struct forward_times *times, struct err *err)
{
	ASSERT(forward->options.world == 1 || forward->comm);
	struct forward_times unused = {0};
	const struct kn_sampled *sampled;
	times = times ? times : &unused;
	if (!forward->exchange)
		return step_on_host(forward, step, times, err);
	enum status status = forward_launch(forward, step, err);
	if (status == STATUS_OK)
		status = forward_await(forward, &sampled, times, err);
	return status == STATUS_OK ? forward_fetch_logits(forward, 0, *step->n_logits, err) : status;
}
