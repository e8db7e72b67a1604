/* The late twin: a list of operations that the CPU backend runs when it must. */
#include "tests/support/device_twin.h"

#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/sampler.h"

enum twin_kind { TWIN_EMBED, TWIN_MATMUL, TWIN_ATTENTION, TWIN_HEADS, TWIN_ADD, TWIN_TAKE, TWIN_SAMPLE };

struct twin_op {
	enum twin_kind kind;
	int n_rows;
	union {
		struct {
			const struct kn_matrix *table;
			const int32_t *ids;
			float *out;
			int64_t out_stride;
		} embed;
		struct kn_matmul matmul;
		struct kn_attention attention;
		struct kn_heads heads;
		struct {
			float *x;
			const float *y;
			int64_t n;
		} add;
		struct kn_exchange exchange; /* of take */
		struct {
			struct kn_exchange exchange;
			const float *logits;
			int64_t vocab;
		} sample;
	};
};

struct twin_list {
	struct twin_op *ops;
	size_t n_ops, capacity;
};

/* What stands behind struct kn_backend and struct kn_plan here. */
struct twin {
	struct kn_backend *cpu;
	struct twin_list queue, *recording;
	struct sampler *sampler;
};

static int failing_plan, n_plans;

void device_twin_fail_plan(int number)
{
	failing_plan = number;
	n_plans = 0;
}

static struct twin *twin_of(struct kn_backend *backend)
{
	return (struct twin *)backend;
}

/* --- running --------------------------------------------------------------------------------------------------------- */

static void run_take(const struct kn_exchange *e, int n_rows)
{
	const struct kn_step_arrays *from = &e->stages[(e->turn->turn + 1) % 2], *to = &e->step;
	int known = *from->n_rows;
	e->turn->begin_ns = (uint64_t)clock_monotonic_ns();
	*to->n_rows = known;
	*to->n_logits = *from->n_logits;
	for (int row = 0; row < n_rows; row++) {
		bool is_known = row < known;
		int source = is_known ? from->sources[row] : 0;
		to->tokens[row] = !is_known ? 0 : source > 0 ? e->sampled[source - 1].id : from->tokens[row];
		to->positions[row] = is_known ? from->positions[row] : (row - known) % KN_KV_BLOCK_TOKENS;
		to->slots[row] = is_known ? from->slots[row] : e->slots_max;
		if (is_known)
			memcpy(to->block_tables + to->slots[row] * e->block_table_stride,
				from->block_tables + to->slots[row] * e->block_table_stride,
				((size_t)to->positions[row] / KN_KV_BLOCK_TOKENS + 1) * sizeof(int32_t));
	}
	memcpy(to->logit_rows, from->logit_rows, (size_t)*from->n_logits * sizeof *to->logit_rows);
	memcpy(to->sampling, from->sampling, (size_t)*from->n_logits * sizeof *to->sampling);
	/* Whoever left the step may write it again only after the report. */
	memset(from->tokens, 0x7f, (size_t)known * sizeof(int32_t));
}

static enum status run_sample(struct twin *twin, const struct kn_exchange *e, const float *logits, int64_t vocab, struct err *err)
{
	uint32_t turn = e->turn->turn + 1;
	if (!twin->sampler)
		twin->sampler = sampler_create((int32_t)vocab);
	for (int line = 0; line < *e->step.n_logits; line++) {
		const struct kn_sampling *how = &e->step.sampling[line];
		const struct sampling sampling = {
			.temperature = how->temperature,
			.top_k = how->top_k,
			.top_p = how->top_p,
			.min_p = how->min_p,
			.seed = how->seed,
			.logprobs = how->wants_logprob ? 0 : -1,
		};
		struct engine_token token;
		enum status status = sampler_sample(twin->sampler, logits + line * vocab, &sampling, how->position, &token, err);
		if (status != STATUS_OK)
			return status;
		e->sampled[line] = (struct kn_sampled){.id = token.id, .logprob = token.logprob};
		e->outcomes[turn % 2][line] = e->sampled[line];
	}
	e->turn->turn = turn;
	e->reports[turn % 2] =
		(struct kn_report){.begin_ns = e->turn->begin_ns, .end_ns = (uint64_t)clock_monotonic_ns(), .turn = turn};
	return STATUS_OK;
}

static enum status run_op(struct twin *twin, const struct twin_op *op, struct err *err)
{
	switch (op->kind) {
	case TWIN_EMBED:
		return kn_cpu_ops.embed(
			twin->cpu, op->embed.table, op->embed.ids, op->n_rows, op->embed.out, op->embed.out_stride, err);
	case TWIN_MATMUL:
		return kn_cpu_ops.matmul(twin->cpu, &op->matmul, op->n_rows, err);
	case TWIN_ATTENTION:
		return kn_cpu_ops.attention(twin->cpu, &op->attention, op->n_rows, err);
	case TWIN_HEADS:
		return kn_cpu_ops.adjust_heads(twin->cpu, &op->heads, op->n_rows, err);
	case TWIN_ADD:
		return kn_cpu_ops.add(twin->cpu, op->add.x, op->add.y, op->add.n, err);
	case TWIN_TAKE:
		run_take(&op->exchange, op->n_rows);
		return STATUS_OK;
	case TWIN_SAMPLE:
		return run_sample(twin, &op->sample.exchange, op->sample.logits, op->sample.vocab, err);
	}
	return STATUS_OK;
}

/* Up to the end of the first step, or all. */
static enum status run_queue(struct twin *twin, bool all, struct err *err)
{
	struct twin_list *queue = &twin->queue;
	enum status status = STATUS_OK;
	size_t done = 0;
	while (status == STATUS_OK && done < queue->n_ops) {
		const struct twin_op *op = &queue->ops[done++];
		status = run_op(twin, op, err);
		if (!all && op->kind == TWIN_SAMPLE)
			break;
	}
	queue->n_ops -= done;
	if (queue->n_ops) /* an empty queue may have no memory yet */
		memmove(queue->ops, queue->ops + done, queue->n_ops * sizeof *queue->ops);
	return status;
}

static void append(struct twin_list *list, const struct twin_op *op)
{
	if (list->n_ops == list->capacity) {
		list->capacity = list->capacity ? 2 * list->capacity : 64;
		list->ops = mem_realloc(list->ops, list->capacity, sizeof *list->ops);
	}
	list->ops[list->n_ops++] = *op;
}

static enum status enqueue(struct kn_backend *backend, const struct twin_op *op)
{
	struct twin *twin = twin_of(backend);
	append(twin->recording ? twin->recording : &twin->queue, op);
	return STATUS_OK;
}

/* --- the table ------------------------------------------------------------------------------------------------------- */

static enum status twin_create(const struct kn_options *options, struct kn_backend **out, struct err *err)
{
	struct twin *twin = mem_calloc(1, sizeof *twin);
	enum status status = kn_cpu_ops.create(options, &twin->cpu, err);
	*out = (struct kn_backend *)twin;
	if (status != STATUS_OK) {
		mem_free(twin);
		*out = NULL;
	}
	return status;
}

static void twin_destroy(struct kn_backend *backend)
{
	struct twin *twin = twin_of(backend);
	sampler_destroy(twin->sampler);
	mem_free(twin->queue.ops);
	kn_cpu_ops.destroy(twin->cpu);
	mem_free(twin);
}

static const char *twin_describe(const struct kn_backend *backend)
{
	return "twin";
}

static enum status twin_alloc(struct kn_backend *backend, size_t bytes, void **out, struct err *err)
{
	return kn_cpu_ops.alloc(twin_of(backend)->cpu, bytes, out, err);
}

static void twin_release(struct kn_backend *backend, void *block, size_t bytes)
{
	kn_cpu_ops.release(twin_of(backend)->cpu, block, bytes);
}

static enum status twin_copy(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err)
{
	enum status status = run_queue(twin_of(backend), true, err);
	if (status == STATUS_OK)
		memcpy(dst, src, bytes);
	return status;
}

static enum status twin_pin(struct kn_backend *backend, void *host, size_t bytes, struct err *err)
{
	return STATUS_OK;
}

static void twin_unpin(struct kn_backend *backend, void *host)
{
}

static enum status twin_matrix_create(
	struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices, struct kn_matrix **out, struct err *err)
{
	return kn_cpu_ops.matrix_create(twin_of(backend)->cpu, slices, n_slices, out, err);
}

static void twin_matrix_destroy(struct kn_backend *backend, struct kn_matrix *matrix)
{
	kn_cpu_ops.matrix_destroy(twin_of(backend)->cpu, matrix);
}

static uint64_t twin_matrix_bytes(const struct kn_matrix *matrix)
{
	return kn_cpu_ops.matrix_bytes(matrix);
}

static uint64_t twin_matrix_bytes_needed(const struct kn_slice *slices, size_t n_slices)
{
	return kn_cpu_ops.matrix_bytes_needed(slices, n_slices);
}

static uint64_t twin_workspace_bytes_needed(const struct kn_options *options)
{
	return kn_cpu_ops.workspace_bytes_needed(options);
}

static enum status twin_plan_begin(struct kn_backend *backend, struct err *err)
{
	twin_of(backend)->recording = mem_calloc(1, sizeof(struct twin_list));
	return STATUS_OK;
}

static void twin_plan_destroy(struct kn_backend *backend, struct kn_plan *plan)
{
	struct twin_list *list = (struct twin_list *)plan;
	mem_free(list ? list->ops : NULL);
	mem_free(list);
}

static enum status twin_plan_end(struct kn_backend *backend, struct kn_plan **out, struct err *err)
{
	struct twin *twin = twin_of(backend);
	*out = (struct kn_plan *)twin->recording;
	twin->recording = NULL;
	if (failing_plan == 0 || ++n_plans < failing_plan)
		return STATUS_OK;
	twin_plan_destroy(backend, *out);
	*out = NULL;
	return err_set(err, STATUS_NO_MEMORY, "graph: out of memory");
}

static enum status twin_plan_run(struct kn_backend *backend, struct kn_plan *plan, struct err *err)
{
	const struct twin_list *list = (const struct twin_list *)plan;
	for (size_t i = 0; i < list->n_ops; i++)
		append(&twin_of(backend)->queue, &list->ops[i]);
	return STATUS_OK;
}

static uint64_t twin_plan_bytes(const struct kn_plan *plan)
{
	return ((const struct twin_list *)plan)->n_ops * sizeof(struct twin_op);
}

static uint64_t twin_plan_bytes_needed(size_t n_operations)
{
	return n_operations * sizeof(struct twin_op);
}

static enum status twin_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
	int64_t out_stride, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_EMBED, .n_rows = n_rows, .embed = {table, ids, out, out_stride}});
}

static enum status twin_matmul(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_MATMUL, .n_rows = n_rows, .matmul = *args});
}

static enum status twin_matmul_chain(
	struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; i < count && status == STATUS_OK; i++)
		status = twin_matmul(backend, &chain[i], n_rows, err);
	return status;
}

static enum status twin_attention(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_ATTENTION, .n_rows = n_rows, .attention = *args});
}

static enum status twin_adjust_heads(struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_HEADS, .n_rows = n_rows, .heads = *args});
}

static enum status twin_add(struct kn_backend *backend, float *x, const float *y, int64_t n, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_ADD, .add = {x, y, n}});
}

static enum status twin_call(struct kn_backend *backend, kn_callback callback, void *ctx, struct err *err)
{
	return err_set(err, STATUS_INTERNAL, "the twin is one rank");
}

static enum status twin_synchronize(struct kn_backend *backend, struct err *err)
{
	return run_queue(twin_of(backend), true, err);
}

static enum status twin_take(struct kn_backend *backend, const struct kn_exchange *exchange, int n_rows, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_TAKE, .n_rows = n_rows, .exchange = *exchange});
}

static enum status twin_sample(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
	int n_logits, struct err *err)
{
	return enqueue(backend, &(struct twin_op){.kind = TWIN_SAMPLE, .n_rows = n_logits, .sample = {*exchange, logits, vocab}});
}

static uint64_t twin_sample_scratch_bytes(int logits_max, int64_t vocab)
{
	return 64;
}

static enum status twin_check(struct kn_backend *backend, struct err *err)
{
	return run_queue(twin_of(backend), false, err);
}

const struct kn_ops device_twin_ops = {
	.name = "twin",
	.own_memory = 1,
	.head_dim_step = 8,
	.head_dim_max = 256,
	.create = twin_create,
	.destroy = twin_destroy,
	.workspace_bytes_needed = twin_workspace_bytes_needed,
	.describe = twin_describe,
	.alloc = twin_alloc,
	.release = twin_release,
	.to_device = twin_copy,
	.to_host = twin_copy,
	.pin = twin_pin,
	.unpin = twin_unpin,
	.matrix_create = twin_matrix_create,
	.matrix_destroy = twin_matrix_destroy,
	.matrix_bytes = twin_matrix_bytes,
	.matrix_bytes_needed = twin_matrix_bytes_needed,
	.plan_begin = twin_plan_begin,
	.plan_end = twin_plan_end,
	.plan_run = twin_plan_run,
	.plan_bytes = twin_plan_bytes,
	.plan_bytes_needed = twin_plan_bytes_needed,
	.plan_destroy = twin_plan_destroy,
	.embed = twin_embed,
	.matmul = twin_matmul,
	.matmul_chain = twin_matmul_chain,
	.attention = twin_attention,
	.adjust_heads = twin_adjust_heads,
	.add = twin_add,
	.call = twin_call,
	.synchronize = twin_synchronize,
	.take = twin_take,
	.sample = twin_sample,
	.sample_scratch_bytes = twin_sample_scratch_bytes,
	.check = twin_check,
};
