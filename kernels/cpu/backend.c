/* The table of CPU operations: checks arguments, then runs an operation at once or records it. */
#include "kernels/cpu/backend.h"

#include <stdalign.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/matmul.h"

#define PLAN_OPS_FIRST 64 /* guess: room for an eighth of a small model's step before the list grows */

/* --- life --------------------------------------------------------------------------------------------------------- */

/* Cuts the workspace into pieces of cache-line multiples. With base NULL it only counts. */
struct cutter {
	uint8_t *base;
	size_t used;
};

static void *cut(struct cutter *cutter, size_t count, size_t size)
{
	void *piece = cutter->base ? cutter->base + cutter->used : NULL;

	cutter->used += (count * size + 63) / 64 * 64;
	return piece;
}

static void cut_activations(struct cutter *cutter, size_t rows, int64_t cols_max, struct activations *out)
{
	size_t stride = ((size_t)cols_max + BLOCK_COLS - 1) / BLOCK_COLS * BLOCK_COLS;

	out->col_stride = (int64_t)stride;
	out->quants = cut(cutter, rows * stride, sizeof *out->quants);
	out->blocks = cut(cutter, rows * stride / BLOCK_COLS, sizeof *out->blocks);
	out->values = cut(cutter, rows * stride, sizeof *out->values);
}

static void cut_workspace(struct kn_backend *backend, struct cutter *cutter)
{
	struct activations unused;

	backend->scratch = cut(cutter, (size_t)backend->threads, sizeof *backend->scratch);
	cut_activations(cutter, (size_t)backend->rows_max, backend->cols_max, &backend->shared);
	for (int i = 0; i < backend->threads; i++)
		cut_activations(cutter, PRIVATE_ROWS_MAX, backend->cols_max, cutter->base ? &backend->scratch[i].own : &unused);
}

static uint64_t cpu_workspace_bytes_needed(const struct kn_options *options)
{
	struct kn_backend sizes = {.threads = options->threads, .rows_max = options->rows_max, .cols_max = options->cols_max};
	struct cutter cutter = {0};

	cut_workspace(&sizes, &cutter);
	return cutter.used;
}

static void cpu_plan_destroy(struct kn_backend *backend, struct kn_plan *plan)
{
	if (!plan)
		return;
	mem_free(plan->ops);
	mem_free(plan);
}

static void cpu_destroy(struct kn_backend *backend)
{
	if (!backend)
		return;
	cpu_plan_destroy(backend, backend->recording);
	pool_destroy(backend->pool);
	mem_unmap(backend->workspace, backend->workspace_bytes);
	mem_free(backend);
}

#define ROWS_MAX_LIMIT (1 << 20) /* guess: far above any step */
#define COLS_MAX_LIMIT ((int64_t)1 << 24) /* guess: far above any model; keeps sizes far from overflow */

static enum status cpu_create(const struct kn_options *options, struct kn_backend **out, struct err *err)
{
	struct kn_backend *backend;
	struct cutter cutter = {0};
	enum status status;

	*out = NULL;
	if (options->rows_max < 1 || options->rows_max > ROWS_MAX_LIMIT)
		return err_set(err, STATUS_INPUT, "rows_max is %d, expected 1 to %d", options->rows_max, ROWS_MAX_LIMIT);
	if (options->cols_max < 1 || options->cols_max > COLS_MAX_LIMIT)
		return err_set(err, STATUS_INPUT, "cols_max is %lld, expected 1 to %lld", (long long)options->cols_max,
			(long long)COLS_MAX_LIMIT);
	backend = mem_calloc(1, sizeof *backend);
	backend->threads = options->threads;
	backend->rows_max = options->rows_max;
	backend->cols_max = options->cols_max;
	status = micro_choose(options->isa, &backend->micro, err);
	if (status == STATUS_OK)
		status = pool_create(options->threads, &backend->pool, err);
	if (status == STATUS_OK) {
		cut_workspace(backend, &cutter);
		backend->workspace_bytes = cutter.used;
		status = mem_map(backend->workspace_bytes, &backend->workspace, err);
	}
	if (status != STATUS_OK) {
		cpu_destroy(backend);
		return status;
	}
	cutter = (struct cutter){.base = backend->workspace};
	cut_workspace(backend, &cutter);
	snprintf(backend->description, sizeof backend->description, "cpu %s, %d thread%s", backend->micro->name, backend->threads,
		backend->threads == 1 ? "" : "s");
	*out = backend;
	return STATUS_OK;
}

static const char *cpu_describe(const struct kn_backend *backend)
{
	return backend->description;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static enum status cpu_alloc(struct kn_backend *backend, size_t bytes, void **out, struct err *err)
{
	return mem_map(bytes, out, err);
}

static void cpu_release(struct kn_backend *backend, void *block, size_t bytes)
{
	mem_unmap(block, bytes);
}

static enum status cpu_copy(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err)
{
	if (bytes > 0)
		memcpy(dst, src, bytes);
	return STATUS_OK;
}

static enum status cpu_matrix_create(
	struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices, struct kn_matrix **out, struct err *err)
{
	return pack_create(backend->pool, &backend->store, slices, n_slices, out, err);
}

static void cpu_matrix_destroy(struct kn_backend *backend, struct kn_matrix *matrix)
{
	pack_destroy(&backend->store, matrix);
}

static uint64_t cpu_matrix_bytes(const struct kn_matrix *matrix)
{
	return matrix->bytes;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static enum status cpu_plan_begin(struct kn_backend *backend, struct err *err)
{
	if (backend->recording)
		return err_set(err, STATUS_INTERNAL, "plan_begin while a plan is being recorded");
	backend->recording = mem_calloc(1, sizeof *backend->recording);
	return STATUS_OK;
}

static enum status cpu_plan_end(struct kn_backend *backend, struct kn_plan **out, struct err *err)
{
	struct kn_plan *plan = backend->recording;

	*out = NULL;
	if (!plan)
		return err_set(err, STATUS_INTERNAL, "plan_end without plan_begin");
	if (plan->n_ops > 0)
		plan->ops = mem_realloc(plan->ops, plan->n_ops, sizeof *plan->ops);
	plan->capacity = plan->n_ops;
	backend->recording = NULL;
	*out = plan;
	return STATUS_OK;
}

static enum status cpu_plan_run(struct kn_backend *backend, struct kn_plan *plan, struct err *err)
{
	if (backend->recording)
		return err_set(err, STATUS_INTERNAL, "plan_run while a plan is being recorded");
	return run_ops(backend, plan->ops, plan->n_ops, err);
}

static uint64_t cpu_plan_bytes_needed(size_t n_operations)
{
	return sizeof(struct kn_plan) + n_operations * sizeof(struct op);
}

static uint64_t cpu_plan_bytes(const struct kn_plan *plan)
{
	return cpu_plan_bytes_needed(plan->n_ops);
}

static enum status run_or_record(struct kn_backend *backend, const struct op *op, struct err *err)
{
	struct kn_plan *plan = backend->recording;

	if (!plan)
		return run_ops(backend, op, 1, err);
	if (plan->n_ops == plan->capacity) {
		plan->capacity = plan->capacity ? 2 * plan->capacity : PLAN_OPS_FIRST;
		plan->ops = mem_realloc(plan->ops, plan->capacity, sizeof *plan->ops);
	}
	plan->ops[plan->n_ops++] = *op;
	return STATUS_OK;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static enum status cpu_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
	int64_t out_stride, struct err *err)
{
	struct op op = {.kind = OP_EMBED, .n_rows = n_rows, .embed = {table, ids, out, out_stride}};

	if (!table || !ids || !out || n_rows < 1 || n_rows > backend->rows_max)
		return err_set(
			err, STATUS_INTERNAL, "embed of %d rows (at most %d) or with a missing buffer", n_rows, backend->rows_max);
	return run_or_record(backend, &op, err);
}

static enum status cpu_matmul(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	struct op op = {.kind = OP_MATMUL, .n_rows = n_rows, .matmul = *args};
	enum status status = matmul_check(backend, args, n_rows, err);

	return status != STATUS_OK ? status : run_or_record(backend, &op, err);
}

static enum status cpu_matmul_chain(
	struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err)
{
	enum status status = STATUS_OK;

	for (int i = 0; i < count && status == STATUS_OK; i++)
		status = cpu_matmul(backend, &chain[i], n_rows, err);
	return status;
}

static enum status cpu_attention(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	struct op op = {.kind = OP_ATTENTION, .n_rows = n_rows, .attention = *args};
	enum status status = attention_check(backend, args, n_rows, err);

	return status != STATUS_OK ? status : run_or_record(backend, &op, err);
}

static enum status cpu_adjust_heads(struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err)
{
	struct op op = {.kind = OP_HEADS, .n_rows = n_rows, .heads = *args};
	enum status status = heads_check(backend, args, n_rows, err);

	return status != STATUS_OK ? status : run_or_record(backend, &op, err);
}

static enum status cpu_add(struct kn_backend *backend, float *x, const float *y, int64_t n, struct err *err)
{
	struct op op = {.kind = OP_ADD, .add = {x, y, n}};

	if (!x || !y || n < 0)
		return err_set(err, STATUS_INTERNAL, "add of %lld elements or with a missing buffer", (long long)n);
	return run_or_record(backend, &op, err);
}

static enum status cpu_call(struct kn_backend *backend, kn_callback callback, void *ctx, struct err *err)
{
	struct op op = {.kind = OP_CALL, .call = {callback, ctx}};

	if (!callback)
		return err_set(err, STATUS_INTERNAL, "call without a function");
	return run_or_record(backend, &op, err);
}

static enum status cpu_synchronize(struct kn_backend *backend, struct err *err)
{
	return STATUS_OK; /* operations have run when they return */
}

/* Host memory is the backend's own: nothing to fix. */
static enum status cpu_pin(struct kn_backend *backend, void *host, size_t bytes, struct err *err)
{
	return STATUS_OK;
}

static void cpu_unpin(struct kn_backend *backend, void *host)
{
}

/* Steps and logits lie in host memory, where the engine reads and writes them itself. */
static enum status cpu_take(struct kn_backend *backend, const struct kn_exchange *exchange, int n_rows, struct err *err)
{
	return err_set(err, STATUS_INTERNAL, "the CPU backend takes no steps from elsewhere");
}

static enum status cpu_sample(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
	int n_logits, struct err *err)
{
	return err_set(err, STATUS_INTERNAL, "the CPU backend does not sample");
}

static uint64_t cpu_sample_scratch_bytes(int logits_max, int64_t vocab)
{
	return 0;
}

const struct kn_ops kn_cpu_ops = {
	.name = "cpu",
	.own_memory = 0,
	.head_dim_step = ATTENTION_HEAD_DIM_STEP,
	.head_dim_max = ATTENTION_HEAD_DIM_MAX,
	.create = cpu_create,
	.destroy = cpu_destroy,
	.workspace_bytes_needed = cpu_workspace_bytes_needed,
	.describe = cpu_describe,
	.alloc = cpu_alloc,
	.release = cpu_release,
	.to_device = cpu_copy,
	.to_host = cpu_copy,
	.pin = cpu_pin,
	.unpin = cpu_unpin,
	.matrix_create = cpu_matrix_create,
	.matrix_destroy = cpu_matrix_destroy,
	.matrix_bytes = cpu_matrix_bytes,
	.matrix_bytes_needed = pack_bytes_needed,
	.plan_begin = cpu_plan_begin,
	.plan_end = cpu_plan_end,
	.plan_run = cpu_plan_run,
	.plan_bytes = cpu_plan_bytes,
	.plan_bytes_needed = cpu_plan_bytes_needed,
	.plan_destroy = cpu_plan_destroy,
	.embed = cpu_embed,
	.matmul = cpu_matmul,
	.matmul_chain = cpu_matmul_chain,
	.attention = cpu_attention,
	.adjust_heads = cpu_adjust_heads,
	.add = cpu_add,
	.call = cpu_call,
	.synchronize = cpu_synchronize,
	.take = cpu_take,
	.sample = cpu_sample,
	.sample_scratch_bytes = cpu_sample_scratch_bytes,
	.check = cpu_synchronize,
};
