/* Times every operation of the backend alone, on the shapes of an 8B model: one table of operation, shape, rows, time, and the
 * share of the measured limit, which is that of reading memory or that of multiplying, whichever takes longer. Operations are timed
 * in graphs of many that touch other data than the ones before them, so that the chip's caches do not help. usage: bench_ops
 * [repeats] [--json FILE] */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/exchange.h"
#include "kernels/kn.h"

#define READ_LIMIT_TB_S 4.53 /* read-only stream measured on one H200, 2026-11-29 */
#define MULTIPLY_LIMIT_TFLOP_S 790.0 /* bf16 product of 8192 x 8192 x 8192, random data, same machine */

enum {
	HIDDEN = 4096,
	FFN = 14336,
	HEADS = 32,
	KV_HEADS = 8,
	HEAD_DIM = 128,
	QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM,
	VOCAB = 128256,
	ROWS_MAX = 4096,
	SLOTS = 128,
	SLOT_BLOCKS = 256, /* of a prefill's slot; decoded rows use 64 */
	COPIES = 4, /* of activations, in turns */
	WEIGHTS_MAX = 8, /* copies of a matrix */
	PART_ROWS = 2048, /* weight rows that are really made; a matrix repeats them */
	POOL_FLOATS = 1 << 22,
};
#define AWAIT_NS 10000000000

struct bench {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	int repeats;
	float *x[COPIES], *y[COPIES]; /* [ROWS_MAX][FFN], and as large */
	float *norm, *bias, *rope, *rope_80;
	int32_t *ids, *positions, *slots, *tables, *kv_heads_of;
	char *keys, *values;
	struct kn_matrix *w[WEIGHTS_MAX];
	int n_w;
	struct json *results;
};

static void must(enum status status, const struct err *err)
{
	if (status) {
		fprintf(stderr, "bench_ops: %s\n", err->text);
		ASSERT(!"a backend call failed");
	}
}

/* --- memory ----------------------------------------------------------------------------------------------------------- */

static void upload(struct bench *b, void *to, const void *from, size_t bytes)
{
	struct err err = {0};
	must(b->kn->to_device(b->backend, to, from, bytes, &err), &err);
	must(b->kn->synchronize(b->backend, &err), &err);
}

static void *put(struct bench *b, const void *values, size_t bytes)
{
	struct err err = {0};
	void *out;
	must(b->kn->alloc(b->backend, bytes, &out, &err), &err);
	if (values)
		upload(b, out, values, bytes);
	return out;
}

/* Memory filled with a pattern over and over. */
static void *put_filled(struct bench *b, const void *pattern, size_t pattern_bytes, size_t bytes)
{
	struct err err = {0};
	char *out = put(b, NULL, bytes);
	for (size_t at = 0; at < bytes; at += pattern_bytes)
		must(b->kn->to_device(b->backend, out + at, pattern, bytes - at < pattern_bytes ? bytes - at : pattern_bytes, &err),
			&err);
	must(b->kn->synchronize(b->backend, &err), &err);
	return out;
}

static void create_cache(struct bench *b)
{
	const size_t bytes = (size_t)SLOTS * 64 * KN_KV_BLOCK_TOKENS * KV_HEADS * HEAD_DIM * 2;
	uint16_t *noise = mem_calloc(POOL_FLOATS, sizeof *noise); /* fp16 of magnitudes 1 to 2 */
	for (size_t i = 0; i < POOL_FLOATS; i++)
		noise[i] = (uint16_t)(0x3c00 | (hash64_mix(i) & 0x83ff));
	b->keys = put_filled(b, noise, POOL_FLOATS * sizeof *noise, bytes);
	b->values = put_filled(b, noise, POOL_FLOATS * sizeof *noise, bytes);
	mem_free(noise);
	int32_t *tables = mem_calloc((size_t)SLOTS * SLOT_BLOCKS, sizeof *tables), map[HEADS];
	for (int i = 0; i < SLOTS * SLOT_BLOCKS; i++)
		tables[i] = (i / SLOT_BLOCKS * 64 + i % SLOT_BLOCKS) % (SLOTS * 64);
	for (int i = 0; i < HEADS; i++)
		map[i] = i / (HEADS / KV_HEADS);
	b->tables = put(b, tables, (size_t)SLOTS * SLOT_BLOCKS * sizeof *tables);
	b->kv_heads_of = put(b, map, sizeof map);
	b->positions = put(b, NULL, ROWS_MAX * sizeof(int32_t));
	b->slots = put(b, NULL, ROWS_MAX * sizeof(int32_t));
	mem_free(tables);
}

static void create(struct bench *b)
{
	float *noise = mem_calloc(POOL_FLOATS, sizeof *noise);
	int32_t *ids = mem_calloc(ROWS_MAX, sizeof *ids);
	for (size_t i = 0; i < POOL_FLOATS; i++)
		noise[i] = (float)(hash64_mix(i) >> 40) * 0x1p-23f - 1.0f;
	for (int i = 0; i < COPIES; i++) {
		b->x[i] = put_filled(b, noise, POOL_FLOATS * sizeof *noise, (size_t)ROWS_MAX * FFN * sizeof(float));
		b->y[i] = put(b, NULL, (size_t)ROWS_MAX * FFN * sizeof(float));
	}
	b->norm = put(b, noise, HIDDEN * sizeof(float));
	b->bias = put(b, noise, QKV * sizeof(float));
	for (int i = 0; i < ROWS_MAX; i++)
		ids[i] = (int32_t)(hash64_mix((uint64_t)i) % VOCAB);
	b->ids = put(b, ids, ROWS_MAX * sizeof *ids);
	float *rope = mem_calloc((size_t)ROWS_MAX * HEAD_DIM, sizeof *rope);
	kn_rope_table_fill(rope, ROWS_MAX, HEAD_DIM, 500000, NULL);
	b->rope = put(b, rope, (size_t)ROWS_MAX * HEAD_DIM * sizeof *rope);
	kn_rope_table_fill(rope, ROWS_MAX, 80, 500000, NULL);
	b->rope_80 = put(b, rope, (size_t)ROWS_MAX * 80 * sizeof *rope);
	mem_free(rope);
	mem_free(ids);
	mem_free(noise);
	create_cache(b);
}

/* --- weights ---------------------------------------------------------------------------------------------------------- */

/* Random bytes of a stored type, with scales that give values of about unit size. */
static void *stored(enum dtype dtype, int64_t count)
{
	uint64_t bytes;
	ASSERT(dtype_bytes(dtype, count, &bytes));
	uint8_t *out = mem_calloc(bytes + 8, 1);
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = hash64_mix(i);
		word = dtype == DTYPE_BF16 ? (word & 0x807f807f807f807f) | 0x3c003c003c003c00 : word;
		word = dtype == DTYPE_F32 ? (word & 0x807fffff807fffff) | 0x3c0000003c000000 : word;
		word = dtype == DTYPE_F16 ? (word & 0x83ff83ff83ff83ff) | 0x2000200020002000 : word;
		word = dtype == DTYPE_F8_E4M3 ? word & 0xbfbfbfbfbfbfbfbf : word; /* magnitudes under 2 */
		memcpy(out + i, &word, 8);
	}
	const uint16_t scale = dtype_f32_to_f16(0.001f);
	for (uint64_t at = 0; dtype_block_elements(dtype) > 1 && at < bytes; at += (uint64_t)dtype_block_bytes(dtype)) {
		memcpy(out + at + (dtype == DTYPE_Q6_K ? 208 : 0), &scale, 2);
		if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q4_K)
			memcpy(out + at + 2, &scale, 2);
	}
	return out;
}

/* As many copies as make a round of them larger than the chip's caches by far. 8-bit floats have a scale for each row, or for each
 * square of that side. */
static void make_weights(struct bench *b, enum dtype dtype, int64_t rows, int64_t cols, int square)
{
	struct err err = {0};
	struct kn_slice slices[VOCAB / PART_ROWS + 1] = {0};
	size_t n_slices = 0;
	void *data = stored(dtype, (int64_t)PART_ROWS * cols);
	float scales[PART_ROWS];
	for (int i = 0; i < PART_ROWS; i++)
		scales[i] = 0.02f;
	for (int64_t done = 0; done < rows; done += PART_ROWS)
		slices[n_slices++] = (struct kn_slice){.dtype = dtype,
			.data = data,
			.rows = PART_ROWS,
			.cols = cols,
			.row_end = rows - done < PART_ROWS ? rows - done : PART_ROWS,
			.col_end = cols,
			.scales = dtype == DTYPE_F8_E4M3 ? scales : NULL,
			.scale_rows = dtype == DTYPE_F8_E4M3 ? square ? square : 1 : 0,
			.scale_cols = dtype == DTYPE_F8_E4M3 ? square ? square : cols : 0};
	const uint64_t bytes = b->kn->matrix_bytes_needed(slices, n_slices);
	for (b->n_w = 0; b->n_w < 2 || (b->n_w < WEIGHTS_MAX && (uint64_t)b->n_w * bytes < (uint64_t)400 << 20); b->n_w++)
		must(b->kn->matrix_create(b->backend, slices, n_slices, &b->w[b->n_w], &err), &err);
	mem_free(data);
}

static void forget_weights(struct bench *b)
{
	while (b->n_w > 0)
		b->kn->matrix_destroy(b->backend, b->w[--b->n_w]);
}

/* --- timing ----------------------------------------------------------------------------------------------------------- */

/* One operation of a kind, the i-th of a graph. */
typedef enum status operation(struct bench *b, const void *args, int i, int n_rows, struct err *err);

struct cost {
	double bytes, flops; /* of one operation: memory that has to be read and written once */
};

static void record(struct bench *b, const char *op, const char *shape, int n_rows, double us, struct cost cost)
{
	const double read_us = cost.bytes / (READ_LIMIT_TB_S * 1e6), multiply_us = cost.flops / (MULTIPLY_LIMIT_TFLOP_S * 1e6);
	const bool reads = read_us >= multiply_us;
	const double share = (reads ? read_us : multiply_us) / us;
	printf("%-22s %-26s rows %4d  %9.2f us  %9.3f MB %9.3f GFLOP  %5.1f %% of the %s limit\n", op, shape, n_rows, us,
		cost.bytes / 1e6, cost.flops / 1e9, 100 * share, reads ? "memory" : "multiply");
	fflush(stdout);
	struct json *row = json_new_object();
	json_set(row, "op", json_new_string(op));
	json_set(row, "shape", json_new_string(shape));
	json_set(row, "rows", json_new_integer(n_rows));
	json_set(row, "us", json_new_number(us));
	json_set(row, "bytes", json_new_number(cost.bytes));
	json_set(row, "flops", json_new_number(cost.flops));
	json_set(row, "limit", json_new_string(reads ? "memory" : "multiply"));
	json_set(row, "of_limit", json_new_number(share));
	json_append(b->results, row);
}

static void bench_operation(
	struct bench *b, const char *op, const char *shape, operation *run, const void *args, int n_rows, struct cost cost)
{
	struct err err = {0};
	struct kn_plan *plan;
	const int count = cost.bytes > 2e8 || cost.flops > 4e10 ? 8 : 64;
	must(run(b, args, 0, n_rows, &err), &err); /* the GEMM library's choices are made before capture */
	must(b->kn->synchronize(b->backend, &err), &err);
	must(b->kn->plan_begin(b->backend, &err), &err);
	for (int i = 0; i < count; i++)
		must(run(b, args, i, n_rows, &err), &err);
	must(b->kn->plan_end(b->backend, &plan, &err), &err);
	int64_t begin = 0;
	for (int i = -2; i < b->repeats; i++) {
		if (i == 0)
			begin = clock_monotonic_ns();
		must(b->kn->plan_run(b->backend, plan, &err), &err);
		if (i == -1)
			must(b->kn->synchronize(b->backend, &err), &err);
	}
	must(b->kn->synchronize(b->backend, &err), &err);
	record(b, op, shape, n_rows, (double)(clock_monotonic_ns() - begin) / 1e3 / b->repeats / count, cost);
	b->kn->plan_destroy(b->backend, plan);
}

/* --- products --------------------------------------------------------------------------------------------------------- */

struct product {
	const char *name;
	int64_t rows, cols;
	enum kn_epilogue epilogue;
};

static const struct product products[] = {
	{"qkv, normed", QKV, HIDDEN, KN_STORE},
	{"o, added", HIDDEN, HEADS *HEAD_DIM, KN_ADD},
	{"gate and up, normed, SwiGLU", (int64_t)2 * FFN, HIDDEN, KN_SWIGLU},
	{"down, added", HIDDEN, FFN, KN_ADD},
	{"head, normed", VOCAB, HIDDEN, KN_STORE},
};

static enum status run_product(struct bench *b, const void *args, int i, int n_rows, struct err *err)
{
	const struct product *p = args;
	const struct kn_matmul matmul = {.w = b->w[i % b->n_w],
		.x = b->x[i % COPIES],
		.x_stride = p->cols,
		.norm_weight = p->epilogue == KN_ADD ? NULL : b->norm,
		.norm_eps = 1e-5f,
		.epilogue = p->epilogue,
		.y = b->y[i % COPIES],
		.y_stride = p->epilogue == KN_SWIGLU ? p->rows / 2 : p->rows};
	return b->kn->matmul(b->backend, &matmul, n_rows, err);
}

static struct cost cost_of_product(const struct bench *b, const struct product *p, int n_rows)
{
	const double written = p->epilogue == KN_SWIGLU ? 0.5 : p->epilogue == KN_ADD ? 2 : 1; /* times the weights' rows */
	return (struct cost){
		.bytes = (double)b->kn->matrix_bytes(b->w[0]) + 4.0 * n_rows * ((double)p->cols + written * (double)p->rows),
		.flops = 2.0 * n_rows * (double)(p->rows * p->cols)};
}

/* Gate and up, of up to as many rows as are still decoded or a short chunk. */
static void bench_gate_up(struct bench *b, const char *op, enum dtype dtype, int square)
{
	static const int counts[] = {1, 8, 32, 128, 512};
	make_weights(b, dtype, products[2].rows, products[2].cols, square);
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
		bench_operation(
			b, op, products[2].name, run_product, &products[2], counts[i], cost_of_product(b, &products[2], counts[i]));
	forget_weights(b);
}

/* The product that gives a row the same bits in a step of any size. */
static void bench_deterministic(struct bench *b)
{
	struct err err = {0};
	struct kn_backend *plain = b->backend;
	const struct kn_options options = {.threads = 2, .rows_max = ROWS_MAX, .cols_max = FFN, .deterministic = 1};
	must(b->kn->create(&options, &b->backend, &err), &err);
	bench_gate_up(b, "matmul BF16, same bits", DTYPE_BF16, 0);
	b->kn->destroy(b->backend);
	b->backend = plain;
}

static void bench_products(struct bench *b)
{
	static const int counts[] = {1, 8, 32, 128, 512, 4096};
	static const enum dtype others[] = {
		DTYPE_F16, DTYPE_F32, DTYPE_Q8_0, DTYPE_F8_E4M3, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q6_K};
	char op[32];
	for (size_t p = 0; p < sizeof products / sizeof products[0]; p++) {
		const bool is_head = products[p].rows == VOCAB; /* for rows that are sampled alone */
		make_weights(b, DTYPE_BF16, products[p].rows, products[p].cols, 0);
		for (size_t i = 0; i < sizeof counts / sizeof counts[0] - (is_head ? 2 : 0); i++)
			bench_operation(b, "matmul BF16", products[p].name, run_product, &products[p], counts[i],
				cost_of_product(b, &products[p], counts[i]));
		forget_weights(b);
	}
	for (size_t t = 0; t < sizeof others / sizeof others[0]; t++) {
		snprintf(op, sizeof op, "matmul %s", dtype_name(others[t]));
		bench_gate_up(b, op, others[t], 0);
	}
	bench_gate_up(b, "matmul F8_E4M3 128x128", DTYPE_F8_E4M3, 128);
	bench_deterministic(b);
}

/* --- attention -------------------------------------------------------------------------------------------------------- */

struct attention {
	const char *name;
	int head_dim, context; /* position of decoded rows; 0: a prefill of all rows */
	enum kn_kv_type kv_type; /* fp32 with heads of at most half the size, so that the cache has room */
};

static enum status run_attention(struct bench *b, const void *args, int i, int n_rows, struct err *err)
{
	const struct attention *a = args;
	const struct kn_attention attention = {.qkv = b->x[i % COPIES],
		.out = b->y[i % COPIES],
		.n_heads = HEADS,
		.n_kv_heads = KV_HEADS,
		.head_dim = a->head_dim,
		.kv_head_of_head = b->kv_heads_of,
		.uniform_groups = 1,
		.k_cache = b->keys,
		.v_cache = b->values,
		.kv_type = a->kv_type,
		.positions = b->positions,
		.slots = b->slots + (a->context ? i * n_rows % SLOTS : 0),
		.block_tables = b->tables,
		.block_table_stride = SLOT_BLOCKS,
		.rope_cos_sin = a->head_dim == 80 ? b->rope_80 : b->rope,
		.scale = 0.1f,
		.few_rows_each = a->context > 0};
	return b->kn->attention(b->backend, &attention, n_rows, err);
}

static void bench_attention(struct bench *b, const struct attention *a, int n_rows)
{
	int32_t *positions = mem_calloc(ROWS_MAX, sizeof *positions), *slots = mem_calloc(ROWS_MAX, sizeof *slots);
	for (int i = 0; i < ROWS_MAX; i++) {
		positions[i] = a->context ? a->context : i;
		slots[i] = a->context ? i % SLOTS : 0;
	}
	upload(b, b->positions, positions, ROWS_MAX * sizeof *positions);
	upload(b, b->slots, slots, ROWS_MAX * sizeof *slots);
	mem_free(positions);
	mem_free(slots);
	const double keys = a->context ? (double)n_rows * (a->context + 1) : (double)n_rows; /* that are read once at least */
	const double pairs = a->context ? keys : (double)n_rows * (n_rows + 1) / 2;
	const double rows_bytes = 4.0 * n_rows * a->head_dim * (2 * HEADS + 2 * KV_HEADS);
	bench_operation(b, "attention", a->name, run_attention, a, n_rows,
		(struct cost){keys * KV_HEADS * a->head_dim * (a->kv_type == KN_KV_F32 ? 8 : 4) + rows_bytes,
			pairs * HEADS * a->head_dim * 4});
}

static void bench_attentions(struct bench *b)
{
	static const struct attention decode = {"decode, context 200", HEAD_DIM, 200, KN_KV_F16},
				      longer = {"decode, context 1000", HEAD_DIM, 1000, KN_KV_F16},
				      prefill = {"prefill", HEAD_DIM, 0, KN_KV_F16},
				      plain = {"decode, 1000, heads of 80", 80, 1000, KN_KV_F16},
				      plain_prefill = {"prefill, heads of 80", 80, 0, KN_KV_F16},
				      wide = {"decode, 1000, fp32, of 64", HEAD_DIM / 2, 1000, KN_KV_F32};
	static const int counts[] = {1, 8, 32, 128};
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
		bench_attention(b, &decode, counts[i]);
	bench_attention(b, &longer, 32);
	bench_attention(b, &longer, 128);
	bench_attention(b, &prefill, 512);
	bench_attention(b, &prefill, 4096);
	bench_attention(b, &plain, 1);
	bench_attention(b, &plain, 128);
	bench_attention(b, &plain_prefill, 512);
	bench_attention(b, &wide, 1);
	bench_attention(b, &wide, 128);
}

/* --- what touches each element once ----------------------------------------------------------------------------------- */

static enum status run_embed(struct bench *b, const void *args, int i, int n_rows, struct err *err)
{
	const int32_t *ids = b->ids + (n_rows < ROWS_MAX / 2 ? i * n_rows % (ROWS_MAX / 2) : 0);
	(void)args;
	return b->kn->embed(b->backend, b->w[i % b->n_w], ids, n_rows, b->y[i % COPIES], HIDDEN, err);
}

static enum status run_heads(struct bench *b, const void *args, int i, int n_rows, struct err *err)
{
	const struct kn_heads heads = {.qkv = b->x[i % COPIES],
		.n_heads = HEADS,
		.n_kv_heads = KV_HEADS,
		.head_dim = HEAD_DIM,
		.bias = b->bias,
		.q_norm = b->norm,
		.k_norm = b->norm,
		.norm_eps = 1e-5f};
	(void)args;
	return b->kn->adjust_heads(b->backend, &heads, n_rows, err);
}

static enum status run_add(struct bench *b, const void *args, int i, int n_rows, struct err *err)
{
	(void)args;
	return b->kn->add(b->backend, b->y[i % COPIES], b->x[i % COPIES], (int64_t)n_rows * HIDDEN, err);
}

static void bench_elementwise(struct bench *b)
{
	static const int counts[] = {1, 128, 4096};
	static const enum dtype tables[] = {DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_K};
	for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
		char op[32];
		make_weights(b, tables[t], VOCAB, HIDDEN, 0);
		const double row_bytes = (double)b->kn->matrix_bytes(b->w[0]) / VOCAB;
		snprintf(op, sizeof op, "embed %s", dtype_name(tables[t]));
		for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
			bench_operation(b, op, "to 4096", run_embed, NULL, counts[i],
				(struct cost){counts[i] * (row_bytes + 4.0 * HIDDEN), 0});
		forget_weights(b);
	}
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
		bench_operation(b, "adjust_heads", "bias and norms of 40 + 8", run_heads, NULL, counts[i],
			(struct cost){counts[i] * 8.0 * QKV, 0});
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
		bench_operation(b, "add", "4096", run_add, NULL, counts[i], (struct cost){counts[i] * 12.0 * HIDDEN, 0});
}

/* --- sampling --------------------------------------------------------------------------------------------------------- */

/* take and sample of n_rows rows, one step after the other, by the device's clock: from the step's begin to its outcome. */
static void bench_sampling(struct bench *b, const char *shape, struct kn_sampling how, int n_rows)
{
	struct err err = {0};
	struct exchange *exchange;
	struct exchange_outcome outcome;
	struct step step;
	const struct step_limits limits = {
		.rows_max = n_rows, .slots_max = n_rows, .blocks_per_slot_max = 64, .logits_max = n_rows};
	must(exchange_create(b->kn, b->backend, &limits, VOCAB, &exchange, &err), &err);
	void *memory = mem_calloc(step_bytes(&limits), 1);
	step_bind(&limits, memory, &step);
	*step.n_rows = *step.n_logits = n_rows;
	for (int i = 0; i < n_rows; i++) {
		step.slots[i] = i;
		step.logit_rows[i] = i;
		step.sampling[i] = how;
		step.sampling[i].seed = (uint64_t)i;
	}
	double all_ns = 0;
	const int steps = 20 * b->repeats;
	for (int i = -5; i < steps; i++) {
		exchange_post(exchange, &step);
		must(b->kn->take(b->backend, exchange_shared(exchange), n_rows, &err), &err);
		must(b->kn->sample(b->backend, exchange_shared(exchange), b->x[(i + 8) % COPIES], VOCAB, n_rows, &err), &err);
		must(exchange_await(exchange, AWAIT_NS, &outcome, &err), &err);
		all_ns += i < 0 ? 0 : (double)(outcome.end_ns - outcome.begin_ns);
	}
	record(b, "take and sample", shape, n_rows, all_ns / 1e3 / steps, (struct cost){4.0 * n_rows * VOCAB, 0});
	mem_free(memory);
	exchange_destroy(exchange);
}

static void bench_samplings(struct bench *b)
{
	static const int counts[] = {1, 8, 128};
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		bench_sampling(b, "greedy of 128256", (struct kn_sampling){.top_p = 1}, counts[i]);
		bench_sampling(b, "temperature", (struct kn_sampling){.temperature = 0.8, .top_p = 1}, counts[i]);
		bench_sampling(b, "temperature, top_p 0.9", (struct kn_sampling){.temperature = 0.8, .top_p = 0.9}, counts[i]);
	}
}

static enum status write_results(const struct bench *b, const char *path)
{
	struct json *root = json_new_object();
	struct text text = {0};
	struct err err = {0};
	json_set(root, "device", json_new_string(b->kn->describe(b->backend)));
	json_set(root, "read_limit_tb_s", json_new_number(READ_LIMIT_TB_S));
	json_set(root, "multiply_limit_tflop_s", json_new_number(MULTIPLY_LIMIT_TFLOP_S));
	json_set(root, "results", json_clone(b->results));
	json_write(root, JSON_STYLE_PRETTY, &text);
	text_append_char(&text, '\n');
	enum status status = file_write_atomic(path, text_str(&text), text.len, &err);
	if (status)
		fprintf(stderr, "bench_ops: %s\n", err.text);
	text_release(&text);
	json_free(root);
	return status;
}

int main(int argc, char **argv)
{
	long long repeats = 20;
	const char *json_path = argc > 2 && text_equal(argv[argc - 2], "--json") ? argv[argc - 1] : NULL;
	const int n_words = json_path ? argc - 2 : argc;
	if (n_words > 2 || (n_words > 1 && !text_to_i64(argv[1], &repeats)) || repeats < 1 || repeats > 1000) {
		fprintf(stderr, "usage: bench_ops [repeats] [--json FILE]\n");
		return 2;
	}
	struct bench b = {.kn = &kn_cuda_ops, .repeats = (int)repeats, .results = json_new_array()};
	struct err err = {0};
	struct kn_options options = {.threads = 2, .rows_max = ROWS_MAX, .cols_max = FFN};
	must(b.kn->create(&options, &b.backend, &err), &err);
	printf("%s\n", b.kn->describe(b.backend));
	create(&b);
	bench_products(&b);
	bench_attentions(&b);
	bench_elementwise(&b);
	bench_samplings(&b);
	enum status status = json_path ? write_results(&b, json_path) : STATUS_OK;
	json_free(b.results);
	return status ? 1 : 0;
}
