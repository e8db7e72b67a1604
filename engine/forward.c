/* The layers of a Llama model as a list of backend operations. The same function issues them for a step that runs at once
 * and for a plan that is recorded, so both give the same bits. */
#include "engine/forward_state.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "engine/plan_sizes.h"

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
	bytes[BUFFER_STEP] = options->kn->own_memory ? 0 : step_bytes(&options->limits);
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

/* Largest row count that gets a plan. A padded row costs a CPU as much as a real one, so there every count has its own. */
static int plans_cap(const struct forward_options *options)
{
	return options->graph_max_bs < options->limits.logits_max ? options->graph_max_bs : options->limits.logits_max;
}

static int plans_wanted(const struct forward_options *options)
{
	int count = 0;
	for (int size = 0; (size = plan_sizes_next(size, plans_cap(options), !options->kn->own_memory)) > 0;)
		count++;
	return count;
}

static bool adjusts_heads(const struct model_config *config)
{
	return config->has_qkv_bias || config->has_qk_norm;
}

/* Taking the step, embedding, output head, sampling; and per layer five operations or, with a sum over ranks after two of them,
 * nine; one more in families with biases or head norms. */
static size_t operations_per_step(const struct model_config *config, int world)
{
	return 4 + (size_t)config->n_layers * (size_t)((world > 1 ? 9 : 5) + adjusts_heads(config));
}

enum status forward_check(const struct kn_ops *kn, const struct model_config *config, struct err *err)
{
	if (config->head_dim % kn->head_dim_step == 0 && config->head_dim <= kn->head_dim_max)
		return STATUS_OK;
	return err_set_code(err, STATUS_INPUT, "unsupported_model",
		"%s is %d, and device '%s' computes only with head sizes that are multiples of %d up to %d", config->head_dim_from,
		config->head_dim, kn->name, kn->head_dim_step, kn->head_dim_max);
}

enum status forward_memory_needed(const struct source *source, const struct model_config *config,
	const struct forward_options *options, struct forward_memory *out, struct err *err)
{
	struct shard shard;
	*out = (struct forward_memory){0};
	enum status status = forward_check(options->kn, config, err);
	if (status == STATUS_OK)
		status = shard_compute(config, options->rank, options->world, &shard, err);
	if (status != STATUS_OK)
		return status;
	size_t bytes[BUFFER_COUNT];
	buffer_sizes(config, &shard, options, bytes);
	struct kn_options kn_options = backend_options(config, &shard, options);
	out->workspace = options->kn->workspace_bytes_needed(&kn_options);
	for (int i = 0; i < BUFFER_COUNT; i++)
		out->workspace += bytes[i];
	if (options->kn->own_memory)
		out->workspace += exchange_backend_bytes(options->kn, &options->limits, config->vocab);
	out->weights = weights_bytes_needed(options->kn, source, config, &shard);
	out->plans = (uint64_t)plans_wanted(options) *
		(options->kn->plan_bytes_needed(operations_per_step(config, options->world)) + sizeof(struct forward_plan));
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
	if (forward->exchange)
		out->workspace += exchange_backend_bytes(kn, &forward->options.limits, forward->config.vocab);
	for (int i = 0; i < forward->n_plans; i++)
		out->plans += kn->plan_bytes(forward->plans[i].plan) + sizeof(struct forward_plan);
}

/* ---- operations of one step ---- */

static enum status sum_over_ranks(void *ctx, struct err *err)
{
	const struct reduction *reduction = ctx;
	struct forward *forward = reduction->forward;
	size_t count = (size_t)reduction->n_rows * (size_t)forward->config.hidden;
	return forward->comm_ops->allreduce(forward->comm, forward->buffers[BUFFER_PARTIAL], count, err);
}

/* residual += w * x */
static struct kn_matmul into_residual(const struct forward *forward, const struct kn_matrix *w, const float *x, int64_t x_stride)
{
	return (struct kn_matmul){
		.w = w,
		.x = x,
		.x_stride = x_stride,
		.epilogue = KN_ADD,
		.y = forward->buffers[BUFFER_RESIDUAL],
		.y_stride = forward->config.hidden,
		.x_for_w = 1, /* of attend, or of the layer's SwiGLU */
	};
}

/* y = epilogue(w * norm(residual)) */
static struct kn_matmul from_residual(const struct forward *forward, const struct kn_matrix *w, const float *norm,
	enum kn_epilogue epilogue, const struct kn_matrix *reader, float *y, int64_t y_stride)
{
	return (struct kn_matmul){
		.w = w,
		.x = forward->buffers[BUFFER_RESIDUAL],
		.x_stride = forward->config.hidden,
		.norm_weight = norm,
		.norm_eps = forward->config.norm_eps,
		.epilogue = epilogue,
		.y = y,
		.y_stride = y_stride,
		.reader = reader,
	};
}

static struct kn_matmul queries_of(const struct forward *forward, int layer)
{
	const struct weights_layer *weights = &forward->weights.layers[layer];
	return from_residual(forward, weights->qkv, weights->attention_norm, KN_STORE, NULL, forward->buffers[BUFFER_QKV],
		qkv_width(&forward->config, &forward->shard));
}

/* Products of which each reads what the one before wrote. Where w and x of one that adds to the residual are only this rank's
 * columns, the ranks' results are summed behind it. */
static enum status run_products(
	struct forward *forward, const struct kn_matmul *products, int count, struct reduction *reduction, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	float *partial = forward->buffers[BUFFER_PARTIAL];
	if (forward->options.world == 1)
		return kn->matmul_chain(forward->backend, products, count, reduction->n_rows, err);
	enum status status = STATUS_OK;
	for (int i = 0; i < count && status == STATUS_OK; i++) {
		struct kn_matmul product = products[i];
		bool is_sum = product.epilogue == KN_ADD;
		if (is_sum) {
			product.epilogue = KN_STORE;
			product.y = partial;
		}
		status = kn->matmul(forward->backend, &product, reduction->n_rows, err);
		if (status == STATUS_OK && is_sum)
			status = kn->call(forward->backend, sum_over_ranks, reduction, err);
		if (status == STATUS_OK && is_sum)
			status = kn->add(
				forward->backend, products[i].y, partial, (int64_t)reduction->n_rows * forward->config.hidden, err);
	}
	return status;
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

static enum status attend(struct forward *forward, int layer, int n_rows, bool few_rows_each, struct err *err)
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
		.reader = forward->weights.layers[layer].attention_output,
		.few_rows_each = few_rows_each,
	};
	return forward->options.kn->attention(forward->backend, &attention, n_rows, err);
}

/* From the layer's queries, keys and values to those of the next. */
static enum status run_layer(struct forward *forward, int layer, struct reduction *reduction, bool few_rows_each, struct err *err)
{
	const struct weights_layer *weights = &forward->weights.layers[layer];
	float *attended = forward->buffers[BUFFER_ATTENDED], *ffn = forward->buffers[BUFFER_FFN];
	int64_t attended_width = heads_of(&forward->shard) * forward->config.head_dim, ffn_width = ffn_of(&forward->shard);
	bool is_last = layer + 1 == forward->config.n_layers;
	struct kn_matmul products[4] = {
		into_residual(forward, weights->attention_output, attended, attended_width),
		from_residual(forward, weights->gate_up, weights->ffn_norm, KN_SWIGLU, weights->down, ffn, ffn_width),
		into_residual(forward, weights->down, ffn, ffn_width),
	};
	if (!is_last)
		products[3] = queries_of(forward, layer + 1);
	enum status status = STATUS_OK;
	if (adjusts_heads(&forward->config))
		status = adjust_heads(forward, weights, reduction->n_rows, err);
	if (status == STATUS_OK)
		status = attend(forward, layer, reduction->n_rows, few_rows_each, err);
	return status == STATUS_OK ? run_products(forward, products, is_last ? 3 : 4, reduction, err) : status;
}

/* row_index NULL: logits of the first n_logits rows. */
static enum status run_head(struct forward *forward, const int32_t *row_index, int n_logits, struct err *err)
{
	float *logits = forward->options.kn->own_memory ? forward->buffers[BUFFER_LOGITS] : forward->options.logits;
	struct kn_matmul product = from_residual(forward, forward->weights.head, forward->weights.output_norm, KN_STORE, NULL,
		logits + forward->shard.vocab_begin, forward->config.vocab);
	product.row_index = row_index;
	return forward->options.kn->matmul(forward->backend, &product, n_logits, err);
}

enum status forward_operations(
	struct forward *forward, struct reduction *reduction, const int32_t *row_index, int n_logits, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	const struct kn_exchange *exchange = forward->exchange ? exchange_shared(forward->exchange) : NULL;
	enum status status = exchange ? kn->take(forward->backend, exchange, reduction->n_rows, err) : STATUS_OK;
	if (status == STATUS_OK)
		status = kn->embed(forward->backend, forward->weights.embedding, forward->step.tokens, reduction->n_rows,
			forward->buffers[BUFFER_RESIDUAL], forward->config.hidden, err);
	if (status == STATUS_OK) {
		struct kn_matmul first = queries_of(forward, 0);
		status = kn->matmul(forward->backend, &first, reduction->n_rows, err);
	}
	for (int layer = 0; layer < forward->config.n_layers && status == STATUS_OK; layer++)
		status = run_layer(forward, layer, reduction, row_index == NULL, err);
	if (status == STATUS_OK && n_logits > 0)
		status = run_head(forward, row_index, n_logits, err);
	if (status == STATUS_OK && exchange)
		status = kn->sample(
			forward->backend, exchange, forward->buffers[BUFFER_LOGITS], forward->config.vocab, n_logits, err);
	return status;
}

/* ---- making ---- */

static enum status bind_step(struct forward *forward, struct err *err)
{
	const struct forward_options *options = &forward->options;
	if (!options->kn->own_memory) {
		step_bind(&options->limits, forward->buffers[BUFFER_STEP], &forward->step);
		return STATUS_OK;
	}
	enum status status =
		exchange_create(options->kn, forward->backend, &options->limits, forward->config.vocab, &forward->exchange, err);
	if (status != STATUS_OK)
		return status;
	forward->step = *exchange_step(forward->exchange);
	status = options->kn->pin(forward->backend, options->logits, forward->buffer_bytes[BUFFER_LOGITS], err);
	forward->logits_pinned = status == STATUS_OK;
	return status;
}

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
	enum status status = bind_step(forward, err);
	if (status != STATUS_OK)
		return status;
	forward->kv_bytes =
		(size_t)forward->options.n_blocks * block_bytes(&forward->config, &forward->shard, forward->options.kv_type);
	status = kn->alloc(forward->backend, forward->kv_bytes, &forward->kv, err);
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

/* Runs what a plan will hold once as it comes, as a step without rows: all are of the dummy block. Libraries behind a backend with
 * memory of its own load their code at first use, which must not happen while a plan is recorded. */
static enum status rehearse(struct forward *forward, struct reduction *reduction, struct err *err)
{
	struct exchange_outcome outcome;
	if (!forward->exchange)
		return STATUS_OK;
	exchange_post_empty(forward->exchange);
	enum status status = forward_operations(forward, reduction, NULL, reduction->n_rows, err);
	return status == STATUS_OK ? exchange_await(forward->exchange, FORWARD_TIMEOUT_NS, &outcome, err) : status;
}

static enum status record_plan(struct forward *forward, struct forward_plan *plan, struct err *err)
{
	const struct kn_ops *kn = forward->options.kn;
	enum status status = rehearse(forward, &plan->reduction, err);
	if (status == STATUS_OK)
		status = kn->plan_begin(forward->backend, err);
	if (status != STATUS_OK)
		return status;
	status = forward_operations(forward, &plan->reduction, NULL, plan->n_rows, err);
	if (status == STATUS_OK)
		return kn->plan_end(forward->backend, &plan->plan, err);
	struct kn_plan *part = NULL; /* a backend that goes on recording could not even be released */
	if (kn->plan_end(forward->backend, &part, NULL) == STATUS_OK)
		kn->plan_destroy(forward->backend, part);
	return status;
}

/* What to do about a size that found no memory, and how much the sizes before it took. */
static enum status refuse_plan(const struct forward *forward, int n_rows, struct err *err)
{
	const struct forward_plan *last = forward->n_plans > 0 ? &forward->plans[forward->n_plans - 1] : NULL;
	struct forward_memory held;
	char why[ERR_TEXT_BYTES_MAX];
	if (!err || err->status != STATUS_NO_MEMORY)
		return err_add(err, "step plan for %d rows", n_rows);
	forward_memory(forward, &held);
	memcpy(why, err->text, sizeof why);
	*err = (struct err){0};
	return err_set_code(err, STATUS_NO_MEMORY, "not_enough_memory",
		"not enough memory for the step plan of %d rows (%s); the %d smaller ones hold %llu bytes: "
		"lower --graph-max-bs to %d, or --mem-fraction",
		n_rows, why, forward->n_plans, (unsigned long long)held.plans, last ? last->n_rows : 0);
}

static enum status record_plans(struct forward *forward, struct err *err)
{
	int wanted = plans_wanted(&forward->options), cap = plans_cap(&forward->options), n_rows = 0;
	if (wanted == 0)
		return STATUS_OK;
	forward->plans = mem_calloc((size_t)wanted, sizeof *forward->plans);
	while ((n_rows = plan_sizes_next(n_rows, cap, !forward->options.kn->own_memory)) > 0) {
		struct forward_plan *plan = &forward->plans[forward->n_plans];
		*plan = (struct forward_plan){.n_rows = n_rows, .reduction = {.forward = forward, .n_rows = n_rows}};
		if (record_plan(forward, plan, err) != STATUS_OK)
			return refuse_plan(forward, n_rows, err);
		forward->n_plans++;
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
	enum status status = forward_check(kn, config, err);
	if (status == STATUS_OK)
		status = shard_compute(config, options->rank, options->world, &forward->shard, err);
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
		kn->plan_destroy(forward->backend, forward->plans[i].plan);
	mem_free(forward->plans);
	if (forward->logits_pinned)
		kn->unpin(forward->backend, forward->options.logits);
	exchange_destroy(forward->exchange);
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

int forward_plan_at(const struct forward *forward, int index, uint64_t *bytes)
{
	*bytes = forward->options.kn->plan_bytes(forward->plans[index].plan);
	return forward->plans[index].n_rows;
}

const char *forward_describe(const struct forward *forward)
{
	return forward->options.kn->describe(forward->backend);
}
