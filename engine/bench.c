/* Records the operations of a part of a step for all layers as one plan and times it. */
#include "engine/bench.h"

#include <math.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/forward.h"
#include "engine/model.h"
#include "engine/weights.h"
#include "kernels/kn.h"

#define PREFILL_ROWS_MAX 512 /* the prompt length that CPU engines are usually compared at */
#define COOLER_BYTES ((size_t)128 << 20) /* guess: several times the share of a cache that a small machine has */
#define SAMPLES_MIN 3
#define SAMPLES_MAX 2000

/* Everything a step of the model needs, once. */
struct bench {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	struct model_config config;
	struct weights weights;
	float *cold; /* COOLER_BYTES */
	struct kn_plan *cooler; /* empties the caches before each sample: in a step no operation finds its weights there */
	int64_t sample_ns;
	int context; /* position of the row of a decode step */
	int rows_max; /* of a prefill step, also the tokens that the cache holds */
	int64_t qkv_width, attended_width;
	float *residual, *qkv, *attended, *ffn, *logits, *rope;
	int32_t *ids, *positions, *slots, *block_table, *kv_heads;
	uint8_t *kv;
	size_t layer_kv_bytes; /* of keys; as much again for values */
	struct arena arena; /* holds the buffers above */
};

const char *bench_part_name(enum bench_part part)
{
	static const char *const names[BENCH_PARTS] = {"embedding", "norm + qkv", "rope + attention", "attention output",
		"norm + gate/up + swiglu", "down", "norm + output head", "whole step"};

	return names[part];
}

/* --- the model ----------------------------------------------------------------------------------------------------- */

static void make_buffers(struct bench *b)
{
	const struct model_config *c = &b->config;
	size_t rows = (size_t)b->rows_max, n_blocks = 1 + (rows + KN_KV_BLOCK_TOKENS - 1) / KN_KV_BLOCK_TOKENS;

	b->qkv_width = (int64_t)(c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
	b->attended_width = (int64_t)c->n_heads * c->head_dim;
	b->residual = arena_calloc(&b->arena, rows * (size_t)c->hidden, sizeof(float));
	b->qkv = arena_calloc(&b->arena, rows * (size_t)b->qkv_width, sizeof(float));
	b->attended = arena_calloc(&b->arena, rows * (size_t)b->attended_width, sizeof(float));
	b->ffn = arena_calloc(&b->arena, rows * (size_t)c->ffn, sizeof(float));
	b->logits = arena_calloc(&b->arena, (size_t)c->vocab, sizeof(float));
	b->rope = arena_calloc(&b->arena, rows * (size_t)c->head_dim, sizeof(float));
	b->ids = arena_calloc(&b->arena, rows, sizeof(int32_t));
	b->positions = arena_calloc(&b->arena, rows, sizeof(int32_t));
	b->slots = arena_calloc(&b->arena, rows, sizeof(int32_t));
	b->block_table = arena_calloc(&b->arena, n_blocks, sizeof(int32_t));
	b->kv_heads = arena_calloc(&b->arena, (size_t)c->n_heads, sizeof(int32_t));
	b->layer_kv_bytes = n_blocks * (size_t)c->n_kv_heads * KN_KV_BLOCK_TOKENS * (size_t)c->head_dim * sizeof(uint16_t);
	b->kv = arena_calloc(&b->arena, 2 * (size_t)c->n_layers, b->layer_kv_bytes);
	kn_rope_table_fill(b->rope, b->rows_max, c->head_dim, c->rope_base, NULL);
	for (int i = 0; i < b->rows_max; i++)
		b->ids[i] = (int32_t)((int64_t)i * 7919 % c->vocab); /* spread over the table */
	for (size_t i = 0; i + 1 < n_blocks; i++)
		b->block_table[i] = (int32_t)i + 1;
	for (int head = 0; head < c->n_heads; head++)
		b->kv_heads[head] = head / (c->n_heads / c->n_kv_heads);
}

static void bench_release(struct bench *b)
{
	b->kn->plan_destroy(b->backend, b->cooler);
	if (b->cold)
		b->kn->release(b->backend, b->cold, COOLER_BYTES);
	weights_release(b->kn, b->backend, &b->weights);
	arena_release(&b->arena);
	b->kn->destroy(b->backend);
}

static enum status load(struct bench *b, const struct source *source, const struct bench_options *options, struct err *err)
{
	struct kn_options kn_options = {.threads = options->threads, .isa = options->isa};
	struct shard shard;
	enum status status = model_config_read(source, &b->config, err);

	if (status == STATUS_OK)
		status = forward_check(b->kn, &b->config, err);
	if (status == STATUS_OK)
		status = shard_compute(&b->config, 0, 1, &shard, err);
	if (status != STATUS_OK)
		return status;
	b->rows_max = b->config.context < PREFILL_ROWS_MAX ? b->config.context : PREFILL_ROWS_MAX;
	if (options->context >= b->config.context)
		return err_set(
			err, STATUS_INPUT, "--context %d, but the model's context is %d", options->context, b->config.context);
	b->context = options->context;
	if (b->context >= b->rows_max)
		b->rows_max = b->context + 1;
	kn_options.rows_max = b->rows_max;
	kn_options.cols_max = b->config.ffn > b->config.hidden ? b->config.ffn : b->config.hidden;
	if (b->config.n_heads * b->config.head_dim > kn_options.cols_max)
		kn_options.cols_max = b->config.n_heads * b->config.head_dim;
	status = b->kn->create(&kn_options, &b->backend, err);
	if (status == STATUS_OK)
		status = weights_load(b->kn, b->backend, source, &b->config, &shard, &b->weights, err);
	if (status == STATUS_OK)
		make_buffers(b);
	return status;
}

/* --- the operations ------------------------------------------------------------------------------------------------ */

static struct kn_matmul product_of(const struct bench *b, enum bench_part part, int layer)
{
	const struct weights_layer *w = &b->weights.layers[layer];
	struct kn_matmul from_residual = {.x = b->residual, .x_stride = b->config.hidden, .norm_eps = b->config.norm_eps};
	struct kn_matmul into_residual = {.epilogue = KN_ADD, .y = b->residual, .y_stride = b->config.hidden};

	switch (part) {
	case BENCH_QKV:
		from_residual.w = w->qkv;
		from_residual.norm_weight = w->attention_norm;
		from_residual.y = b->qkv;
		from_residual.y_stride = b->qkv_width;
		return from_residual;
	case BENCH_GATE_UP:
		from_residual.w = w->gate_up;
		from_residual.norm_weight = w->ffn_norm;
		from_residual.epilogue = KN_SWIGLU;
		from_residual.y = b->ffn;
		from_residual.y_stride = b->config.ffn;
		return from_residual;
	case BENCH_OUTPUT:
		into_residual.w = w->attention_output;
		into_residual.x = b->attended;
		into_residual.x_stride = b->attended_width;
		return into_residual;
	case BENCH_DOWN:
		into_residual.w = w->down;
		into_residual.x = b->ffn;
		into_residual.x_stride = b->config.ffn;
		return into_residual;
	default:
		ASSERT(part == BENCH_HEAD);
		from_residual.w = b->weights.head;
		from_residual.norm_weight = b->weights.output_norm;
		from_residual.y = b->logits;
		from_residual.y_stride = b->config.vocab;
		return from_residual;
	}
}

static struct kn_attention attention_of(const struct bench *b, int layer)
{
	uint8_t *keys = b->kv + 2 * (size_t)layer * b->layer_kv_bytes;

	return (struct kn_attention){
		.qkv = b->qkv,
		.out = b->attended,
		.n_heads = b->config.n_heads,
		.n_kv_heads = b->config.n_kv_heads,
		.head_dim = b->config.head_dim,
		.kv_head_of_head = b->kv_heads,
		.k_cache = keys,
		.v_cache = keys + b->layer_kv_bytes,
		.kv_type = KN_KV_F16,
		.positions = b->positions,
		.slots = b->slots,
		.block_tables = b->block_table,
		.rope_cos_sin = b->rope,
		.rope_interleaved = b->config.rope_interleaved,
		.scale = 1.0f / sqrtf((float)b->config.head_dim),
	};
}

/* Issues the operations of a part for one layer and adds their cost. */
static enum status issue(
	const struct bench *b, enum bench_part part, int layer, int n_rows, struct cpu_cost *total, struct err *err)
{
	struct cpu_cost cost = {0};
	enum status status;

	if (part == BENCH_EMBED) {
		cost.bytes = 2.0 * n_rows * b->config.hidden * sizeof(float);
		status = b->kn->embed(b->backend, b->weights.embedding, b->ids, n_rows, b->residual, b->config.hidden, err);
	} else if (part == BENCH_ATTENTION) {
		struct kn_attention args = attention_of(b, layer);

		cpu_cost_attention(&args, n_rows, &cost);
		status = b->kn->attention(b->backend, &args, n_rows, err);
	} else {
		struct kn_matmul args = product_of(b, part, layer);
		int rows = part == BENCH_HEAD ? 1 : n_rows; /* a step asks for the logits of its last row */

		cpu_cost_matmul(&args, rows, &cost);
		status = b->kn->matmul(b->backend, &args, rows, err);
	}
	total->bytes += cost.bytes;
	total->fma_flops += cost.fma_flops;
	total->dot16_flops += cost.dot16_flops;
	return status;
}

static bool once_per_step(enum bench_part part)
{
	return part == BENCH_EMBED || part == BENCH_HEAD;
}

/* Issues a part for every layer; for BENCH_STEP all parts in the order of a step. */
static enum status issue_all(const struct bench *b, struct bench_row *row, struct err *err)
{
	enum status status = STATUS_OK;

	if (row->part != BENCH_STEP) {
		row->calls = once_per_step(row->part) ? 1 : b->config.n_layers;
		for (int layer = 0; layer < row->calls && status == STATUS_OK; layer++)
			status = issue(b, row->part, layer, row->rows, &row->cost, err);
		return status;
	}
	row->calls = 1;
	status = issue(b, BENCH_EMBED, 0, row->rows, &row->cost, err);
	for (int layer = 0; layer < b->config.n_layers; layer++)
		for (int part = BENCH_QKV; part <= BENCH_DOWN && status == STATUS_OK; part++)
			status = issue(b, (enum bench_part)part, layer, row->rows, &row->cost, err);
	if (status == STATUS_OK)
		status = issue(b, BENCH_HEAD, 0, row->rows, &row->cost, err);
	return status;
}

/* Best time of a recorded plan: other programs only ever make a sample longer. */
static enum status time_plan(const struct bench *b, struct kn_plan *plan, bool cool, double *seconds, struct err *err)
{
	int64_t begin_ns = clock_monotonic_ns(), best_ns = INT64_MAX;
	enum status status = b->kn->plan_run(b->backend, plan, err); /* warm-up */

	for (int i = 0; i < SAMPLES_MAX && status == STATUS_OK; i++) {
		int64_t start_ns, took_ns;

		if (cool)
			status = b->kn->plan_run(b->backend, b->cooler, err);
		start_ns = clock_monotonic_ns();
		if (status != STATUS_OK || (i >= SAMPLES_MIN && start_ns - begin_ns > b->sample_ns))
			break;
		status = b->kn->plan_run(b->backend, plan, err);
		took_ns = clock_monotonic_ns() - start_ns;
		best_ns = took_ns < best_ns ? took_ns : best_ns;
	}
	*seconds = (double)best_ns * 1e-9;
	return status;
}

/* Records row->part for row->rows rows. */
static enum status record(const struct bench *b, struct bench_row *row, struct kn_plan **out, struct err *err)
{
	enum status status = b->kn->plan_begin(b->backend, err), end_status;

	if (status != STATUS_OK)
		return status;
	status = issue_all(b, row, err);
	end_status = b->kn->plan_end(b->backend, out, err);
	return status != STATUS_OK ? status : end_status;
}

static enum status measure(const struct bench *b, struct bench_row *row, struct err *err)
{
	struct kn_plan *plan = NULL;
	enum status status;

	for (int i = 0; i < row->rows; i++) /* before recording: costs depend on them */
		b->positions[i] = row->rows == 1 ? b->context : i;
	status = record(b, row, &plan, err);
	if (status == STATUS_OK)
		status = time_plan(b, plan, row->part != BENCH_STEP, &row->seconds, err);
	b->kn->plan_destroy(b->backend, plan);
	return status;
}

static void set_share(const struct cpu_limits *limits, struct bench_row *row)
{
	double read = row->cost.bytes / limits->read_bytes_per_s;
	double multiply = row->cost.fma_flops / limits->fma_flops_per_s + row->cost.dot16_flops / limits->dot16_flops_per_s;

	row->bound = read > multiply ? "read" : "multiply";
	row->share = (read > multiply ? read : multiply) / row->seconds;
}

/* The better of what was measured so far and now: other programs may disturb a whole measurement. */
static enum status improve_limits(int threads, struct cpu_limits *limits, struct err *err)
{
	struct cpu_limits now;
	enum status status = cpu_limits_measure(threads, &now, err);

	limits->read_bytes_per_s = fmax(limits->read_bytes_per_s, now.read_bytes_per_s);
	limits->fma_flops_per_s = fmax(limits->fma_flops_per_s, now.fma_flops_per_s);
	limits->dot16_flops_per_s = fmax(limits->dot16_flops_per_s, now.dot16_flops_per_s);
	return status;
}

/* A sum over more memory than caches hold: the first half of it plus the second. */
static enum status record_cooler(struct bench *b, struct err *err)
{
	const int64_t half = COOLER_BYTES / sizeof(float) / 2;
	void *memory = NULL;
	enum status status = b->kn->alloc(b->backend, COOLER_BYTES, &memory, err), end_status;

	b->cold = memory;
	if (status == STATUS_OK)
		status = b->kn->plan_begin(b->backend, err);
	if (status != STATUS_OK)
		return status;
	status = b->kn->add(b->backend, b->cold, b->cold + half, half, err);
	end_status = b->kn->plan_end(b->backend, &b->cooler, err);
	return status != STATUS_OK ? status : end_status;
}

static enum status measure_all(struct bench *b, const struct bench_options *options, struct bench_report *out, struct err *err)
{
	enum status status = improve_limits(options->threads, &out->limits, err);

	if (status == STATUS_OK)
		status = record_cooler(b, err);
	/* Prefill first: it fills the cache that the decode row reads. */
	for (int part = 0; part < 2 * BENCH_PARTS && status == STATUS_OK; part++) {
		struct bench_row *row = &out->rows[out->n_rows++];

		*row = (struct bench_row){
			.part = (enum bench_part)(part % BENCH_PARTS), .rows = part < BENCH_PARTS ? b->rows_max : 1};
		status = measure(b, row, err);
	}
	if (status == STATUS_OK)
		status = improve_limits(options->threads, &out->limits, err);
	for (size_t i = 0; i < out->n_rows; i++)
		set_share(&out->limits, &out->rows[i]);
	return status;
}

enum status bench_measure(const struct bench_options *options, struct bench_report *out, struct err *err)
{
	struct bench bench = {.kn = &kn_cpu_ops, .sample_ns = options->sample_ns};
	struct source source;
	enum status status = source_open(options->model_path, &source, err);

	*out = (struct bench_report){0};
	if (status != STATUS_OK)
		return status;
	status = load(&bench, &source, options, err);
	if (status == STATUS_OK) {
		snprintf(out->device, sizeof out->device, "%s", bench.kn->describe(bench.backend));
		status = measure_all(&bench, options, out, err);
	}
	bench_release(&bench);
	source_close(&source);
	return status == STATUS_OK ? status : err_add(err, "%s", options->model_path);
}
