/* Times whole decode and prefill steps of a public model shape with random weights, through the backend's contract alone:
 * what the kernels can do before any serving is put around them. Prints one line per row count with the share of the read limit.
 * usage: bench_step SHAPE[-WEIGHTS] [cpu|cuda] [steps] [--rows N] [--json FILE]   SHAPE: 1b, 8b, 135m; WEIGHTS: weight_kinds below,
 * bf16 unless named; --rows: the decode step of so many alone */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kn.h"
#include "tests/support/bench_options.h"

struct shape {
	const char *name;
	int layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
};

static const struct shape shapes[] = {
	{"135m", 30, 576, 1536, 9, 3, 64, 49152},
	{"1b", 16, 2048, 8192, 32, 8, 64, 128256},
	{"8b", 32, 4096, 14336, 32, 8, 128, 128256},
};

/* Types of a model's weights; a mix has another type for the values and the way down of some layers, and for the head. */
struct weight_kind {
	const char *name;
	enum dtype dtype, second;
};

static const struct weight_kind weight_kinds[] = {
	{"", DTYPE_BF16, DTYPE_BF16},
	{"-f16", DTYPE_F16, DTYPE_F16},
	{"-fp8", DTYPE_F8_E4M3, DTYPE_F8_E4M3},
	{"-q8_0", DTYPE_Q8_0, DTYPE_Q8_0},
	{"-q4_0", DTYPE_Q4_0, DTYPE_Q4_0},
	{"-q4_1", DTYPE_Q4_1, DTYPE_Q4_1},
	{"-q6_k", DTYPE_Q6_K, DTYPE_Q6_K},
	{"-q4_k", DTYPE_Q4_K, DTYPE_Q4_K},
	{"-q4_k_m", DTYPE_Q4_K, DTYPE_Q6_K},
};

#define ROWS_MAX 4096
#define CONTEXT 4608
#define PREFILLS 4 /* timed ones, after one more */
#define READ_LIMIT_TB_S 4.53 /* read-only stream measured on one H200, 2026-11-29 */

struct model {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	const struct shape *shape;
	const struct weight_kind *kind;
	struct kn_matrix *qkv[64], *o[64], *gate_up[64], *down[64], *embedding, *head;
	float *norm, *residual, *qkv_out, *attended, *ffn, *logits, *rope;
	int32_t *tokens, *positions, *slots, *tables, *kv_heads;
	char *kv;
	size_t kv_layer_bytes;
	double weight_bytes; /* read by a step of one row */
	bool without_attention; /* to see what attention costs */
	struct json *results;
};

static void must(enum status status, const struct err *err)
{
	if (status) {
		fprintf(stderr, "bench_step: %s\n", err->text);
		ASSERT(!"a backend call failed");
	}
}

/* bf16 noise scaled so that activations neither die nor explode; never zeros, which some chips multiply faster. */
static uint16_t *noise(size_t count)
{
	uint16_t *values = mem_calloc(count, sizeof *values);
	for (size_t i = 0; i < count; i++) {
		uint32_t bits = (uint32_t)(hash64_mix(i) & 0x8000007fu);
		values[i] = (uint16_t)((bits >> 16 & 0x8000) | 0x3c00 | (bits & 0x7f));
	}
	return values;
}

/* Deviation of the bare values of a type, random bytes given. */
static float deviation(enum dtype dtype)
{
	return dtype == DTYPE_Q8_0 ? 74 : dtype == DTYPE_Q6_K ? 18.5f * 74 : dtype == DTYPE_Q4_K ? 4.6f * 36 : 4.6f;
}

/* The same for any type: random bytes, with scales that give such values. */
static void *weights(enum dtype dtype, int64_t count)
{
	uint64_t bytes;
	if (dtype == DTYPE_BF16)
		return noise((size_t)count);
	ASSERT(dtype_bytes(dtype, count, &bytes));
	uint8_t *out = mem_calloc(bytes + 8, 1);
	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = hash64_mix(i);
		word = dtype == DTYPE_F8_E4M3 ? word & 0xbfbfbfbfbfbfbfbf : word; /* magnitudes under 2 */
		word = dtype == DTYPE_F16 ? (word & 0x83ff83ff83ff83ff) | 0x2000200020002000 : word;
		memcpy(out + i, &word, 8);
	}
	uint16_t scale = dtype_f32_to_f16(0.0117f / deviation(dtype)), min = dtype_f32_to_f16(0.0117f / deviation(dtype) * 7.5f),
		 negative = dtype_f32_to_f16(-0.0117f / deviation(dtype) * 7.5f);
	uint64_t block = (uint64_t)dtype_block_bytes(dtype);
	for (uint64_t at = 0; dtype_block_elements(dtype) > 1 && at < bytes; at += block) {
		memcpy(out + at + (dtype == DTYPE_Q6_K ? 208 : 0), &scale, 2);
		if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q4_K)
			memcpy(out + at + 2, dtype == DTYPE_Q4_K ? &min : &negative, 2);
	}
	return out;
}

/* Slices of one matrix, all from the same values. */
struct part {
	enum dtype dtype;
	const void *values;
	int64_t rows;
};

static struct kn_matrix *matrix(struct model *m, const struct part *parts, size_t n_parts, int64_t cols)
{
	struct err err = {0};
	struct kn_matrix *out;
	struct kn_slice slices[3] = {0};
	float *scales = NULL;
	for (size_t i = 0; i < n_parts; i++) {
		slices[i] = (struct kn_slice){.dtype = parts[i].dtype,
			.data = parts[i].values,
			.rows = parts[i].rows,
			.cols = cols,
			.row_end = parts[i].rows,
			.col_end = cols};
		if (parts[i].dtype != DTYPE_F8_E4M3)
			continue;
		if (!scales) {
			scales = mem_calloc((size_t)m->shape->vocab, sizeof *scales);
			for (int k = 0; k < m->shape->vocab; k++)
				scales[k] = 0.02f;
		}
		slices[i].scales = scales;
		slices[i].scale_rows = 1;
		slices[i].scale_cols = cols;
	}
	must(m->kn->matrix_create(m->backend, slices, n_parts, &out, &err), &err);
	mem_free(scales);
	m->weight_bytes += (double)m->kn->matrix_bytes(out);
	return out;
}

/* Layers whose values and way down have the second type, as llama.cpp's Q4_K_M chooses them: an eighth at both ends, every
 * third between. */
static bool has_second(int layer, int n_layers)
{
	return layer < n_layers / 8 || layer >= 7 * n_layers / 8 || (layer - n_layers / 8) % 3 == 2;
}

static void *buffer(struct model *m, size_t bytes)
{
	struct err err = {0};
	void *out;
	must(m->kn->alloc(m->backend, bytes, &out, &err), &err);
	return out;
}

static void upload(struct model *m, void *to, const void *from, size_t bytes)
{
	struct err err = {0};
	must(m->kn->to_device(m->backend, to, from, bytes, &err), &err);
	must(m->kn->synchronize(m->backend, &err), &err);
}

static void create(struct model *m)
{
	const struct shape *s = m->shape;
	size_t qkv_width = (size_t)(s->heads + 2 * s->kv_heads) * (size_t)s->head_dim,
	       attended = (size_t)s->heads * (size_t)s->head_dim;
	int64_t kv_width = (int64_t)s->kv_heads * s->head_dim;
	const enum dtype first = m->kind->dtype, second = m->kind->second;
	void *values = weights(first, (int64_t)s->vocab * s->hidden), *other = values;
	if (second != first)
		other = weights(second, (int64_t)s->vocab * s->hidden);
	m->embedding = matrix(m, &(struct part){first, values, s->vocab}, 1, s->hidden);
	m->weight_bytes = 0;
	for (int i = 0; i < s->layers; i++) {
		bool is_second = has_second(i, s->layers);
		struct part value = {is_second ? second : first, is_second ? other : values, kv_width};
		struct part qkv[3] = {{first, values, (int64_t)attended}, {first, values, kv_width}, value};
		struct part gate_up[2] = {{first, values, s->ffn}, {first, values, s->ffn}};
		m->qkv[i] = matrix(m, qkv, 3, s->hidden);
		m->o[i] = matrix(m, &(struct part){first, values, s->hidden}, 1, (int64_t)attended);
		m->gate_up[i] = matrix(m, gate_up, 2, s->hidden);
		m->down[i] = matrix(m, &(struct part){value.dtype, value.values, s->hidden}, 1, s->ffn);
	}
	m->head = matrix(m, &(struct part){second, other, s->vocab}, 1, s->hidden);
	if (other != values)
		mem_free(other);
	mem_free(values);
	m->norm = buffer(m, (size_t)s->hidden * sizeof(float));
	float *ones = mem_calloc((size_t)s->hidden, sizeof *ones);
	for (int i = 0; i < s->hidden; i++)
		ones[i] = 1.0f;
	upload(m, m->norm, ones, (size_t)s->hidden * sizeof(float));
	mem_free(ones);
	m->residual = buffer(m, ROWS_MAX * (size_t)s->hidden * sizeof(float));
	m->qkv_out = buffer(m, ROWS_MAX * qkv_width * sizeof(float));
	m->attended = buffer(m, ROWS_MAX * attended * sizeof(float));
	m->ffn = buffer(m, ROWS_MAX * (size_t)s->ffn * sizeof(float));
	m->logits = buffer(m, 128 * (size_t)s->vocab * sizeof(float));
	m->rope = buffer(m, CONTEXT * (size_t)s->head_dim * sizeof(float));
	float *table = mem_calloc(CONTEXT * (size_t)s->head_dim, sizeof *table);
	kn_rope_table_fill(table, CONTEXT, s->head_dim, 500000, NULL);
	upload(m, m->rope, table, CONTEXT * (size_t)s->head_dim * sizeof(float));
	mem_free(table);
	m->tokens = buffer(m, ROWS_MAX * sizeof(int32_t));
	m->positions = buffer(m, ROWS_MAX * sizeof(int32_t));
	m->slots = buffer(m, ROWS_MAX * sizeof(int32_t));
	m->tables = buffer(m, 128 * (CONTEXT / KN_KV_BLOCK_TOKENS) * sizeof(int32_t));
	m->kv_heads = buffer(m, (size_t)s->heads * sizeof(int32_t));
	int32_t map[128];
	for (int i = 0; i < s->heads; i++)
		map[i] = i / (s->heads / s->kv_heads);
	upload(m, m->kv_heads, map, (size_t)s->heads * sizeof(int32_t));
	m->kv_layer_bytes = (size_t)(128 * 512 + CONTEXT + 16) * (size_t)s->kv_heads * (size_t)s->head_dim * 2;
	m->kv = buffer(m, 2 * m->kv_layer_bytes * (size_t)s->layers);
}

static enum status step(struct model *m, int n_rows, int n_logits, struct err *err)
{
	const struct shape *s = m->shape;
	const struct kn_ops *kn = m->kn;
	int64_t qkv_width = (int64_t)(s->heads + 2 * s->kv_heads) * s->head_dim, attended = (int64_t)s->heads * s->head_dim;
	struct kn_matmul qkv = {m->qkv[0], m->residual, s->hidden, m->norm, 1e-5f, KN_STORE, m->qkv_out, qkv_width, NULL, NULL, 0};
	enum status status = kn->embed(m->backend, m->embedding, m->tokens, n_rows, m->residual, s->hidden, err);
	if (!status)
		status = kn->matmul(m->backend, &qkv, n_rows, err);
	for (int i = 0; i < s->layers && !status; i++) {
		bool is_last = i + 1 == s->layers;
		char *keys = m->kv + 2 * (size_t)i * m->kv_layer_bytes;
		struct kn_attention attention = {.qkv = m->qkv_out,
			.out = m->attended,
			.n_heads = s->heads,
			.n_kv_heads = s->kv_heads,
			.head_dim = s->head_dim,
			.kv_head_of_head = m->kv_heads,
			.uniform_groups = 1,
			.k_cache = keys,
			.v_cache = keys + m->kv_layer_bytes,
			.kv_type = KN_KV_F16,
			.positions = m->positions,
			.slots = m->slots,
			.block_tables = m->tables,
			.block_table_stride = CONTEXT / KN_KV_BLOCK_TOKENS,
			.rope_cos_sin = m->rope,
			.scale = 0.1f,
			.reader = m->o[i],
			.few_rows_each = n_logits == n_rows};
		qkv.w = is_last ? NULL : m->qkv[i + 1];
		const struct kn_matmul chain[] = {
			{m->o[i], m->attended, attended, NULL, 0, KN_ADD, m->residual, s->hidden, NULL, NULL, 1},
			{m->gate_up[i], m->residual, s->hidden, m->norm, 1e-5f, KN_SWIGLU, m->ffn, s->ffn, NULL, m->down[i], 0},
			{m->down[i], m->ffn, s->ffn, NULL, 0, KN_ADD, m->residual, s->hidden, NULL, NULL, 1}, qkv};
		if (!m->without_attention)
			status = kn->attention(m->backend, &attention, n_rows, err);
		if (!status)
			status = kn->matmul_chain(m->backend, chain, is_last ? 3 : 4, n_rows, err);
	}
	struct kn_matmul head = {m->head, m->residual, s->hidden, m->norm, 1e-5f, KN_STORE, m->logits, s->vocab, NULL, NULL, 0};
	return status ? status : kn->matmul(m->backend, &head, n_logits, err);
}

/* Rows of separate sequences at position context (decode), or one sequence from 0 (prefill). */
static void place_rows(struct model *m, int n_rows, int context, bool prefill)
{
	int stride = CONTEXT / KN_KV_BLOCK_TOKENS;
	int32_t *lists = mem_calloc(3 * ROWS_MAX + 128 * (size_t)stride, sizeof *lists);
	int32_t *positions = lists, *slots = lists + ROWS_MAX, *tokens = lists + 2 * ROWS_MAX, *tables = lists + 3 * ROWS_MAX;
	for (int i = 0; i < n_rows; i++) {
		positions[i] = prefill ? i : context;
		slots[i] = prefill ? 0 : i % 128;
		tokens[i] = (int32_t)(hash64_mix((uint64_t)i) % (uint64_t)m->shape->vocab);
	}
	for (int slot = 0; slot < 128; slot++)
		for (int i = 0; i < stride; i++)
			tables[slot * stride + i] = prefill ? 1 + i : 1 + (slot * 32 + i) % (128 * 32);
	upload(m, m->positions, positions, ROWS_MAX * sizeof(int32_t));
	upload(m, m->slots, slots, ROWS_MAX * sizeof(int32_t));
	upload(m, m->tokens, tokens, ROWS_MAX * sizeof(int32_t));
	upload(m, m->tables, tables, 128 * (size_t)stride * sizeof(int32_t));
	mem_free(lists);
}

static void record(struct model *m, const char *what, int n_rows, int context, double mean_ns, double best_ns)
{
	struct json *row = json_new_object();
	json_set(row, "what", json_new_string(what));
	json_set(row, "attention", json_new_bool(!m->without_attention));
	json_set(row, "rows", json_new_integer(n_rows));
	json_set(row, "context", json_new_integer(context));
	json_set(row, "mean_us", json_new_number(mean_ns / 1e3));
	json_set(row, "best_us", json_new_number(best_ns / 1e3));
	json_set(row, "tokens_per_s", json_new_number(n_rows * 1e9 / mean_ns));
	json_set(row, "of_read_limit", json_new_number(m->weight_bytes / (mean_ns / 1e9) / (READ_LIMIT_TB_S * 1e12)));
	json_append(m->results, row);
}

static void bench_decode(struct model *m, int n_rows, int context, int steps)
{
	struct err err = {0};
	struct kn_plan *plan;
	place_rows(m, n_rows, context, false);
	must(step(m, n_rows, n_rows, &err), &err); /* the GEMM library's choices are made before capture */
	must(m->kn->synchronize(m->backend, &err), &err);
	must(m->kn->plan_begin(m->backend, &err), &err);
	must(step(m, n_rows, n_rows, &err), &err);
	must(m->kn->plan_end(m->backend, &plan, &err), &err);
	double best = 1e30, all = 0;
	for (int i = 0; i < steps + 10; i++) {
		int64_t begin = clock_monotonic_ns();
		must(m->kn->plan_run(m->backend, plan, &err), &err);
		must(m->kn->synchronize(m->backend, &err), &err);
		double ns = (double)(clock_monotonic_ns() - begin);
		if (i < 10)
			continue;
		best = ns < best ? ns : best;
		all += ns;
	}
	double mean = all / steps;
	printf("%s%s decode rows %3d context %4d  %8.1f us  best %8.1f us  %8.1f tok/s  weights read at %.3f of the limit  plan "
	       "%llu KB\n",
		m->shape->name, m->kind->name, n_rows, context, mean / 1e3, best / 1e3, n_rows * 1e9 / mean,
		m->weight_bytes / (mean / 1e9) / (READ_LIMIT_TB_S * 1e12), (unsigned long long)(m->kn->plan_bytes(plan) / 1024));
	record(m, "decode", n_rows, context, mean, best);
	m->kn->plan_destroy(m->backend, plan);
	fflush(stdout);
}

static void bench_prefill(struct model *m, int n_rows)
{
	struct err err = {0};
	double best = 1e30, all = 0;
	place_rows(m, n_rows, 0, true);
	for (int i = 0; i <= PREFILLS; i++) {
		int64_t begin = clock_monotonic_ns();
		must(step(m, n_rows, 1, &err), &err);
		must(m->kn->synchronize(m->backend, &err), &err);
		double ns = (double)(clock_monotonic_ns() - begin);
		if (i == 0)
			continue;
		best = ns < best ? ns : best;
		all += ns;
	}
	double mean = all / PREFILLS;
	printf("%s%s prefill %4d  %8.2f ms  best %8.2f ms  %8.1f tok/s\n", m->shape->name, m->kind->name, n_rows, mean / 1e6,
		best / 1e6, n_rows * 1e9 / mean);
	record(m, "prefill", n_rows, 0, mean, best);
	fflush(stdout);
}

static void bench_all(struct model *m, int steps)
{
	static const int rows[] = {1, 2, 4, 8, 16, 32, 64, 128};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
		bench_decode(m, rows[i], 200, steps);
	bench_decode(m, 1, 4000, steps);
	bench_prefill(m, 512);
	bench_prefill(m, 4096);
	m->without_attention = true;
	printf("without attention:\n");
	static const int few[] = {1, 8, 32, 128};
	for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
		bench_decode(m, few[i], 200, steps);
	bench_prefill(m, 4096);
}

static enum status write_results(const struct model *m, const char *path)
{
	struct err err = {0};
	struct text text = {0};
	struct json *root = json_new_object();
	json_set(root, "shape", json_new_string(m->shape->name));
	json_set(root, "weights", json_new_string(m->kind->name[0] ? m->kind->name + 1 : "bf16"));
	json_set(root, "device", json_new_string(m->kn->describe(m->backend)));
	json_set(root, "read_limit_tb_s", json_new_number(READ_LIMIT_TB_S));
	json_set(root, "results", json_clone(m->results));
	json_write(root, JSON_STYLE_PRETTY, &text);
	text_append_char(&text, '\n');
	enum status status = file_write_atomic(path, text_str(&text), text.len, &err);
	if (status)
		fprintf(stderr, "bench_step: %s\n", err.text);
	text_release(&text);
	json_free(root);
	return status;
}

static void choose_model(struct model *m, const char *name)
{
	for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
		size_t length = strlen(shapes[i].name);
		for (size_t k = 0; k < sizeof weight_kinds / sizeof weight_kinds[0]; k++)
			if (strncmp(name, shapes[i].name, length) == 0 && text_equal(name + length, weight_kinds[k].name)) {
				m->shape = &shapes[i];
				m->kind = &weight_kinds[k];
			}
	}
}

int main(int argc, char **argv)
{
	long long steps = 100;
	struct bench_options options;
	bool good = bench_options_take(&argc, argv, 128, &options);
	struct model m = {.kn = argc > 2 && text_equal(argv[2], "cpu") ? &kn_cpu_ops : &kn_cuda_ops};
	if (argc > 1)
		choose_model(&m, argv[1]);
	if (!good || !m.shape || argc > 4 || (argc > 3 && !text_to_i64(argv[3], &steps)) || steps < 1) {
		fprintf(stderr,
			"usage: bench_step 135m|1b|8b[-f16|-fp8|-q8_0|-q4_0|-q4_1|-q6_k|-q4_k|-q4_k_m] [cpu|cuda] [steps] "
			"[--rows N] [--json FILE]\n");
		return 2;
	}
	struct err err = {0};
	struct kn_options kn_options = {.threads = 2, .rows_max = ROWS_MAX, .cols_max = m.shape->ffn};
	must(m.kn->create(&kn_options, &m.backend, &err), &err);
	printf("%s\n", m.kn->describe(m.backend));
	create(&m);
	m.results = json_new_array();
	if (options.rows)
		bench_decode(&m, (int)options.rows, 200, (int)steps);
	else
		bench_all(&m, (int)steps);
	enum status status = options.json_path ? write_results(&m, options.json_path) : STATUS_OK;
	json_free(m.results);
	return status ? 1 : 0;
}
