/* The layers of a Llama model as a list of backend operations. The same function issues them for a step that runs at once
 * and for a plan that is recorded, so both give the same bits. */
#include "engine/forward.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
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
	BUFFER_STEP, /* the step's arrays, as plans read them */
	BUFFER_LOGITS, /* [logits_max][vocab] where the backend cannot write to the host's; else absent */
	BUFFER_COUNT
};

/* A sum over ranks in the middle of a step; its row count is part of a plan. */
struct reduction {
	struct forward *forward;
	int n_rows;
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
	struct step step; /* in BUFFER_STEP */
	const struct comm_ops *comm_ops;
	struct comm *comm;
	struct kn_plan **plans; /* [n_plans], entry i for i + 1 rows */
	struct reduction *reductions; /* [n_plans], of the plans */
	int n_plans;
	struct reduction eager_reduction;
	void *pinned[2]; /* host memory that steps are copied from and logits to, where the backend has memory of its own */
	int uniform_groups; /* see struct kn_attention */
};

/* ---- sizes ---- */

static int64_t heads_of(const struct shard *shard)
{
	return shard->head_end - shard->head_begin;
}
static int64_t kv_heads_of(const struct shard *shard)
{
	return shard->kv_head_end - shard->kv_head_begin;
}
static int64_t ffn_of(const struct shard *shard)
{
	return shard->ffn_end - shard->ffn_begin;
}
static int64_t positions_of(const struct step_limits *limits)
{
	return (int64_t)limits->blocks_per_slot_max * KN_KV_BLOCK_TOKENS;
}

static int64_t qkv_width(const struct model_config *config, const struct shard *shard)
{
	return (heads_of(shard) + 2 * kv_heads_of(shard)) * config->head_dim;
}

static void buffer_sizes(const struct model_config *config, const struct shard *shard, const struct forward_options *options,
	size_t bytes[BUFFER_COUNT])
{
	size_t rows = (size_t)options->limits.rows_max, hidden = (size_t)config->hidden;
	bytes[BUFFER_RESIDUAL] = rows * hidden * sizeof(float);
	bytes[BUFFER_QKV] = rows * (size_t)qkv_width(config, shard) * sizeof(float);
	bytes[BUFFER_ATTENDED] = rows * (size_t)(heads_of(shard) * config->head_dim) * sizeof(float);
	bytes[BUFFER_FFN] = rows * (size_t)ffn_of(shard) * sizeof(float);
	bytes[BUFFER_PARTIAL] = options->world > 1 ? rows * hidden * sizeof(float) : 0;
	bytes[BUFFER_ROPE] = (size_t)(positions_of(&options->limits) * config->head_dim) * sizeof(float);
	bytes[BUFFER_KV_HEADS] = (size_t)heads_of(shard) * sizeof(int32_t);
	bytes[BUFFER_STEP] = step_bytes(&options->limits);
	bytes[BUFFER_LOGITS] =
		options->kn->own_memory ? (size_t)options->limits.logits_max * (size_t)config->vocab * sizeof(float) : 0;
}

/* One block of keys or values of one layer. */
static size_t layer_block_bytes(const struct model_config *config, const struct shard *shard, enum kn_kv_type kv_type)
{
	size_t element = kv_type == KN_KV_F16 ? sizeof(uint16_t) : sizeof(float);
	return (size_t)kv_heads_of(shard) * KN_KV_BLOCK_TOKENS * (size_t)config->head_dim * element;
}

static size_t block_bytes(const struct model_config *config, const struct shard *shard, enum kn_kv_type kv_type)
{
	return 2 * (size_t)config->n_layers * layer_block_bytes(config, shard, kv_type);
}

static struct kn_options backend_options(
	const struct model_config *config, const struct shard *shard, const struct forward_options *options)
{
	struct kn_options kn_options = options->kn_options;
	int64_t widest = config->hidden;
	widest = heads_of(shard) * config->head_dim > widest ? heads_of(shard) * config->head_dim : widest;
	widest = ffn_of(shard) > widest ? ffn_of(shard) : widest;
	kn_options.rows_max = options->limits.rows_max;
	kn_options.cols_max = widest;
	return kn_options;
}

static int plans_wanted(const struct forward_options *options)
{
	return options->graph_max_bs < options->limits.logits_max ? options->graph_max_bs : options->limits.logits_max;
}

static bool adjusts_heads(const struct model_config *config)
{
	return config->has_qkv_bias || config->has_qk_norm;
}

/* Embedding, output head, and per layer five operations or, with a sum over ranks after two of them, nine; one more in families
 * with biases or head norms. */
static size_t operations_per_step(const struct model_config *config, int world)
{
	return 2 + (size_t)config->n_layers * (size_t)((world > 1 ? 9 : 5) + adjusts_heads(config));
}

enum status forward_memory_needed(const struct source *source, const struct model_config *config,
	const struct forward_options *options, struct forward_memory *out, struct err *err)
{
	struct shard shard;
	*out = (struct forward_memory){0};
	enum status status = shard_compute(config, options->rank, options->world, &shard, err);
	if (status != STATUS_OK)
		return status;
	size_t bytes[BUFFER_COUNT];
	buffer_sizes(config, &shard, options, bytes);
	struct kn_options kn_options = backend_options(config, &shard, options);
	out->workspace = options->kn->workspace_bytes_needed(&kn_options);
	for (int i = 0; i < BUFFER_COUNT; i++)
		out->workspace += bytes[i];
	out->weights = weights_bytes_needed(options->kn, source, config, &shard);
	out->plans = (uint64_t)plans_wanted(options) *
		(options->kn->plan_bytes_needed(operations_per_step(config, options->world)) + sizeof(struct reduction) +
			sizeof(void *));
	out->kv = block_bytes(config, &shard, options->kv_type);
	return STATUS_OK;
}

void forward_memory(const struct forward *forward, struct forward_memory *out)
{
	const struct kn_ops *kn = forward->options.kn;
	struct kn_options kn_options = backend_options(&forward->config, &forward->shard, &forward->options);
	*out = (struct forward_memory){
		.weights = weights_bytes(kn, &forward->weights),
		.workspace = kn->workspace_bytes_needed(&kn_options),
		.kv = forward->kv_bytes,
	};
	for (int i = 0; i < BUFFER_COUNT; i++)
		out->workspace += forward->buffer_bytes[i];
	for (int i = 0; i < forward->n_plans; i++)
		out->plans += kn->plan_bytes(forward->plans[i]) + sizeof(struct reduction) + sizeof(void *);
}

/* ---- operations of one step ---- */

static enum status sum_over_ranks(void *ctx, struct err *err)
{
	const struct reduction *reduction = ctx;
	struct forward *forward = reduction->forward;
	size_t count = (size_t)reduction->n_rows * (size_t)forward->config.hidden;
	return forward->comm_ops->allreduce(forward->comm, forward->buffers[BUFFER_PARTIAL], count, err);
}

/* residual += w * x, where with several ranks w and x are only this rank's columns. */
static enum status project_into_residual(struct forward *forward, const struct kn_matrix *w, const float *x, int64_t x_stride,
	struct reduction *reduction, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	bool alone = forward->options.world == 1;
	float *residual = forward->buffers[BUFFER_RESIDUAL], *partial = forward->buffers[BUFFER_PARTIAL];
	struct kn_matmul product = {
		.w = w,
		.x = x,
		.x_stride = x_stride,
		.epilogue = alone ? KN_ADD : KN_STORE,
		.y = alone ? residual : partial,
		.y_stride = forward->config.hidden,
	};
	enum status status = kn->matmul(forward->backend, &product, reduction->n_rows, err);
	if (status != STATUS_OK || alone)
		return status;
	status = kn->call(forward->backend, sum_over_ranks, reduction, err);
	if (status != STATUS_OK)
		return status;
	return kn->add(forward->backend, residual, partial, (int64_t)reduction->n_rows * forward->config.hidden, err);
}

/* y = epilogue(w * norm(residual)) */
static enum status project_from_residual(struct forward *forward, const struct kn_matrix *w, const float *norm,
	enum kn_epilogue epilogue, float *y, int64_t y_stride, int n_rows, struct err *err)
{
	struct kn_matmul product = {
		.w = w,
		.x = forward->buffers[BUFFER_RESIDUAL],
		.x_stride = forward->config.hidden,
		.norm_weight = norm,
		.norm_eps = forward->config.norm_eps,
		.epilogue = epilogue,
		.y = y,
		.y_stride = y_stride,
	};
	return forward->options.kn->matmul(forward->backend, &product, n_rows, err);
}

static enum status adjust_heads(struct forward *forward, const struct weights_layer *weights, int n_rows, struct err *err)
{
	struct kn_heads heads = {
		.qkv = forward->buffers[BUFFER_QKV],
		.n_heads = (int)heads_of(&forward->shard),
		.n_kv_heads = (int)kv_heads_of(&forward->shard),
		.head_dim = forward->config.head_dim,
		.bias = weights->qkv_bias,
		.q_norm = weights->q_norm,
		.k_norm = weights->k_norm,
		.norm_eps = forward->config.norm_eps,
	};
	return forward->options.kn->adjust_heads(forward->backend, &heads, n_rows, err);
}

static enum status attend(struct forward *forward, int layer, int n_rows, struct err *err)
{
	const struct model_config *config = &forward->config;
	size_t one = (size_t)forward->options.n_blocks * layer_block_bytes(config, &forward->shard, forward->options.kv_type);
	char *keys = (char *)forward->kv + 2 * (size_t)layer * one;
	struct kn_attention attention = {
		.qkv = forward->buffers[BUFFER_QKV],
		.out = forward->buffers[BUFFER_ATTENDED],
		.n_heads = (int)heads_of(&forward->shard),
		.n_kv_heads = (int)kv_heads_of(&forward->shard),
		.head_dim = config->head_dim,
		.kv_head_of_head = forward->buffers[BUFFER_KV_HEADS],
		.uniform_groups = forward->uniform_groups,
		.k_cache = keys,
		.v_cache = keys + one,
		.kv_type = forward->options.kv_type,
		.positions = forward->step.positions,
		.slots = forward->step.slots,
		.block_tables = forward->step.block_tables,
		.block_table_stride = forward->options.limits.blocks_per_slot_max,
		.rope_cos_sin = forward->buffers[BUFFER_ROPE],
		.rope_interleaved = config->rope_interleaved,
		.scale = (float)(1.0 / sqrt((double)config->head_dim)),
	};
	return forward->options.kn->attention(forward->backend, &attention, n_rows, err);
}

static enum status run_layer(struct forward *forward, int layer, struct reduction *reduction, struct err *err)
{
	const struct weights_layer *weights = &forward->weights.layers[layer];
	float *qkv = forward->buffers[BUFFER_QKV], *ffn = forward->buffers[BUFFER_FFN];
	int64_t attended_width = heads_of(&forward->shard) * forward->config.head_dim, ffn_width = ffn_of(&forward->shard);
	int n_rows = reduction->n_rows;
	enum status status = project_from_residual(forward, weights->qkv, weights->attention_norm, KN_STORE, qkv,
		qkv_width(&forward->config, &forward->shard), n_rows, err);
	if (status == STATUS_OK && adjusts_heads(&forward->config))
		status = adjust_heads(forward, weights, n_rows, err);
	if (status == STATUS_OK)
		status = attend(forward, layer, n_rows, err);
	if (status == STATUS_OK)
		status = project_into_residual(
			forward, weights->attention_output, forward->buffers[BUFFER_ATTENDED], attended_width, reduction, err);
	if (status == STATUS_OK)
		status =
			project_from_residual(forward, weights->gate_up, weights->ffn_norm, KN_SWIGLU, ffn, ffn_width, n_rows, err);
	if (status == STATUS_OK)
		status = project_into_residual(forward, weights->down, ffn, ffn_width, reduction, err);
	return status;
}

/* row_index NULL: logits of the first n_logits rows. */
static enum status run_head(struct forward *forward, const int32_t *row_index, int n_logits, struct err *err)
{
	float *logits = forward->options.kn->own_memory ? forward->buffers[BUFFER_LOGITS] : forward->options.logits;
	struct kn_matmul product = {
		.w = forward->weights.head,
		.x = forward->buffers[BUFFER_RESIDUAL],
		.x_stride = forward->config.hidden,
		.norm_weight = forward->weights.output_norm,
		.norm_eps = forward->config.norm_eps,
		.epilogue = KN_STORE,
		.y = logits + forward->shard.vocab_begin,
		.y_stride = forward->config.vocab,
		.row_index = row_index,
	};
	return forward->options.kn->matmul(forward->backend, &product, n_logits, err);
}

static enum status run_operations(
	struct forward *forward, struct reduction *reduction, const int32_t *row_index, int n_logits, struct err *err)
{
	enum status status = forward->options.kn->embed(forward->backend, forward->weights.embedding, forward->step.tokens,
		reduction->n_rows, forward->buffers[BUFFER_RESIDUAL], forward->config.hidden, err);
	for (int layer = 0; layer < forward->config.n_layers && status == STATUS_OK; layer++)
		status = run_layer(forward, layer, reduction, err);
	if (status == STATUS_OK && n_logits > 0)
		status = run_head(forward, row_index, n_logits, err);
	return status;
}

/* ---- making ---- */

static enum status create_buffers(struct forward *forward, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	buffer_sizes(&forward->config, &forward->shard, &forward->options, forward->buffer_bytes);
	for (int i = 0; i < BUFFER_COUNT; i++) {
		if (forward->buffer_bytes[i] == 0)
			continue;
		enum status status = kn->alloc(forward->backend, forward->buffer_bytes[i], &forward->buffers[i], err);
		if (status != STATUS_OK)
			return err_add(err, "workspace");
	}
	step_bind(&forward->options.limits, forward->buffers[BUFFER_STEP], &forward->step);
	forward->kv_bytes =
		(size_t)forward->options.n_blocks * block_bytes(&forward->config, &forward->shard, forward->options.kv_type);
	enum status status = kn->alloc(forward->backend, forward->kv_bytes, &forward->kv, err);
	return status == STATUS_OK ? status : err_add(err, "KV cache");
}

static enum status fill_rope(struct forward *forward, struct err *err)
{
	const struct model_config *config = &forward->config;
	float *table = mem_calloc(forward->buffer_bytes[BUFFER_ROPE], 1);
	float *factors = NULL;
	if (config->has_rope_factors || config->rope_scale != 1.0) {
		/* Dividing positions by the linear scale is dividing every frequency by it. */
		factors = mem_calloc((size_t)config->head_dim / 2, sizeof *factors);
		for (int i = 0; i < config->head_dim / 2; i++)
			factors[i] =
				(float)((config->has_rope_factors ? (double)config->rope_factors[i] : 1.0) * config->rope_scale);
	}
	kn_rope_table_fill(table, positions_of(&forward->options.limits), config->head_dim, config->rope_base, factors);
	enum status status = forward->options.kn->to_device(
		forward->backend, forward->buffers[BUFFER_ROPE], table, forward->buffer_bytes[BUFFER_ROPE], err);
	mem_free(factors);
	mem_free(table);
	return status;
}

static enum status fill_kv_heads(struct forward *forward, struct err *err)
{
	int heads = (int)heads_of(&forward->shard), heads_per_kv_head = forward->config.n_heads / forward->config.n_kv_heads;
	int32_t *map = mem_calloc((size_t)heads, sizeof *map);
	int group = heads / (int)kv_heads_of(&forward->shard);
	forward->uniform_groups = group * (int)kv_heads_of(&forward->shard) == heads;
	for (int i = 0; i < heads; i++) {
		map[i] = (forward->shard.head_begin + i) / heads_per_kv_head - forward->shard.kv_head_begin;
		forward->uniform_groups = forward->uniform_groups && map[i] == i / group;
	}
	enum status status = forward->options.kn->to_device(
		forward->backend, forward->buffers[BUFFER_KV_HEADS], map, (size_t)heads * sizeof *map, err);
	mem_free(map);
	return status;
}

/* Runs what a plan will hold once as it comes, on rows of zeros: token 0 at position 0 of the dummy block. Libraries behind a
 * backend with memory of its own load their code at first use, which must not happen while a plan is recorded. */
static enum status rehearse(struct forward *forward, struct reduction *reduction, struct err *err)
{
	if (!forward->options.kn->own_memory)
		return STATUS_OK;
	enum status status = run_operations(forward, reduction, NULL, reduction->n_rows, err);
	return status == STATUS_OK ? forward->options.kn->synchronize(forward->backend, err) : status;
}

static enum status record_plans(struct forward *forward, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	int wanted = plans_wanted(&forward->options);
	if (wanted == 0)
		return STATUS_OK;
	forward->plans = mem_calloc((size_t)wanted, sizeof(struct kn_plan *));
	forward->reductions = mem_calloc((size_t)wanted, sizeof *forward->reductions);
	for (int i = 0; i < wanted; i++) {
		forward->reductions[i] = (struct reduction){.forward = forward, .n_rows = i + 1};
		enum status status = rehearse(forward, &forward->reductions[i], err);
		if (status == STATUS_OK)
			status = kn->plan_begin(forward->backend, err);
		if (status == STATUS_OK)
			status = run_operations(forward, &forward->reductions[i], NULL, i + 1, err);
		if (status == STATUS_OK)
			status = kn->plan_end(forward->backend, &forward->plans[i], err);
		if (status != STATUS_OK)
			return err_add(err, "step plan for %d rows", i + 1);
		forward->n_plans = i + 1;
	}
	return STATUS_OK;
}

enum status forward_create(const struct source *source, const struct model_config *config, const struct forward_options *options,
	struct forward **out, struct err *err)
{
	ASSERT(options->n_blocks > 1 && options->limits.rows_max > 0 && options->limits.logits_max <= options->limits.rows_max);
	const struct kn_ops *kn = options->kn;
	struct forward *forward = mem_calloc(1, sizeof *forward);
	forward->options = *options;
	forward->config = *config;
	forward->eager_reduction.forward = forward;
	enum status status = shard_compute(config, options->rank, options->world, &forward->shard, err);
	if (status == STATUS_OK) {
		struct kn_options kn_options = backend_options(config, &forward->shard, options);
		status = kn->create(&kn_options, &forward->backend, err);
	}
	if (status == STATUS_OK)
		status = weights_load(kn, forward->backend, source, config, &forward->shard, &forward->weights, err);
	if (status == STATUS_OK)
		status = create_buffers(forward, err);
	if (status == STATUS_OK)
		status = fill_rope(forward, err);
	if (status == STATUS_OK)
		status = fill_kv_heads(forward, err);
	if (status == STATUS_OK)
		status = record_plans(forward, err);
	if (status != STATUS_OK) {
		forward_destroy(forward);
		return status;
	}
	*out = forward;
	return STATUS_OK;
}

void forward_destroy(struct forward *forward)
{
	if (!forward)
		return;
	const struct kn_ops *kn = forward->options.kn;
	for (int i = 0; i < forward->n_plans; i++)
		kn->plan_destroy(forward->backend, forward->plans[i]);
	mem_free(forward->plans);
	mem_free(forward->reductions);
	for (int i = 0; i < 2; i++)
		if (forward->pinned[i])
			kn->unpin(forward->backend, forward->pinned[i]);
	if (forward->kv)
		kn->release(forward->backend, forward->kv, forward->kv_bytes);
	for (int i = 0; i < BUFFER_COUNT; i++)
		if (forward->buffers[i])
			kn->release(forward->backend, forward->buffers[i], forward->buffer_bytes[i]);
	weights_release(kn, forward->backend, &forward->weights);
	if (forward->backend)
		kn->destroy(forward->backend);
	mem_free(forward);
}

void forward_set_comm(struct forward *forward, const struct comm_ops *comm_ops, struct comm *comm)
{
	forward->comm_ops = comm_ops;
	forward->comm = comm;
}

int forward_plans_count(const struct forward *forward)
{
	return forward->n_plans;
}

const char *forward_describe(const struct forward *forward)
{
	return forward->options.kn->describe(forward->backend);
}

/* ---- running ---- */

/* A step comes from our own scheduler: what it breaks here is our bug. */
static void check_step(const struct forward *forward, const struct step *step)
{
	const struct step_limits *limits = &forward->options.limits;
	int32_t n_rows = *step->n_rows, n_logits = *step->n_logits;
	ASSERT(n_rows > 0 && n_rows <= limits->rows_max && n_logits >= 0 && n_logits <= limits->logits_max && n_logits <= n_rows);
	for (int32_t i = 0; i < n_rows; i++) {
		ASSERT(step->tokens[i] >= 0 && step->tokens[i] < forward->config.vocab);
		ASSERT(step->positions[i] >= 0 && step->positions[i] < positions_of(limits));
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

/* Memory of the backend's own lies behind a link where one large copy is cheaper than many small ones. */
static enum status copy_whole_step(struct forward *forward, const struct step *step, struct err *err)
{
	for (int32_t row = 0; row < *step->n_rows; row++)
		if (is_last_of_run(step, row))
			checked_blocks(forward, step, row);
	return forward->options.kn->to_device(
		forward->backend, forward->buffers[BUFFER_STEP], step->n_rows, forward->buffer_bytes[BUFFER_STEP], err);
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
	if (kn->own_memory)
		return copy_whole_step(forward, step, err);
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

/* A step lies in the same memory every time, and so do the logits: both are fixed at the first step. */
static enum status pin_host_memory(struct forward *forward, const struct step *step, struct err *err)
{
	void *hosts[2] = {step->n_rows, forward->options.logits};
	static const enum buffer buffers[2] = {BUFFER_STEP, BUFFER_LOGITS};
	for (int i = 0; forward->options.kn->own_memory && i < 2; i++) {
		if (forward->pinned[i])
			continue;
		enum status status = forward->options.kn->pin(forward->backend, hosts[i], forward->buffer_bytes[buffers[i]], err);
		if (status != STATUS_OK)
			return status;
		forward->pinned[i] = hosts[i];
	}
	return STATUS_OK;
}

/* The end of a step: the host may read the logits and write the next step. */
static enum status fetch_logits(struct forward *forward, int n_logits, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	if (kn->own_memory && n_logits > 0)
		return kn->to_host(forward->backend, forward->options.logits, forward->buffers[BUFFER_LOGITS],
			(size_t)n_logits * (size_t)forward->config.vocab * sizeof(float), err);
	return kn->synchronize(forward->backend, err);
}

static int64_t allreduce_ns_of(const struct forward *forward)
{
	struct comm_stats stats = {0};
	if (forward->comm)
		forward->comm_ops->stats(forward->comm, &stats);
	return (int64_t)stats.total_ns;
}

enum status forward_step(struct forward *forward, const struct step *step, struct forward_times *times, struct err *err)
{
	ASSERT(forward->options.world == 1 || forward->comm);
	const struct kn_ops *kn = forward->options.kn;
	int64_t begin_ns = clock_monotonic_ns(), allreduce_begin_ns = allreduce_ns_of(forward);
	check_step(forward, step);
	int n_rows = *step->n_rows, n_logits = *step->n_logits;
	bool planned = n_rows <= forward->n_plans && n_logits == n_rows;
	enum status status = pin_host_memory(forward, step, err);
	if (status == STATUS_OK)
		status = copy_step(forward, step, err);
	if (status == STATUS_OK && planned) {
		status = kn->plan_run(forward->backend, forward->plans[n_rows - 1], err);
	} else if (status == STATUS_OK) {
		forward->eager_reduction.n_rows = n_rows;
		status = run_operations(forward, &forward->eager_reduction, forward->step.logit_rows, n_logits, err);
	}
	if (status == STATUS_OK)
		status = fetch_logits(forward, n_logits, err);
	if (times)
		*times = (struct forward_times){
			.total_ns = clock_monotonic_ns() - begin_ns,
			.allreduce_ns = allreduce_ns_of(forward) - allreduce_begin_ns,
			.used_plan = planned,
		};
	return status;
}
