/* Times whole decode and prefill steps of a public model shape with random weights, through the backend's contract alone:
 * what the kernels can do before any serving is put around them. Prints one line per row count with the share of the read limit.
 * usage: bench_step SHAPE [cpu|cuda] [steps] [--json FILE]   SHAPE: 1b, 8b, 135m */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kn.h"

struct shape {
	const char *name;
	int layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
};

static const struct shape shapes[] = {
	{"135m", 30, 576, 1536, 9, 3, 64, 49152},
	{"1b", 16, 2048, 8192, 32, 8, 64, 128256},
	{"8b", 32, 4096, 14336, 32, 8, 128, 128256},
};

#define ROWS_MAX 4096
#define CONTEXT 4608
#define PREFILLS 4 /* timed ones, after one more */
#define READ_LIMIT_TB_S 4.53 /* read-only stream measured on one H200, 2026-11-29 */

struct model {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	const struct shape *shape;
	struct kn_matrix *qkv[64], *o[64], *gate_up[64], *down[64], *embedding, *head;
	float *norm, *residual, *qkv_out, *attended, *ffn, *logits, *rope;
	int32_t *tokens, *positions, *slots, *tables, *kv_heads;
	char *kv;
	size_t kv_layer_bytes;
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

static struct kn_matrix *matrix(struct model *m, const uint16_t *values, int64_t rows, int64_t cols)
{
	struct err err = {0};
	struct kn_matrix *out;
	struct kn_slice slice = {.dtype = DTYPE_BF16, .data = values, .rows = rows, .cols = cols, .row_end = rows, .col_end = cols};
	must(m->kn->matrix_create(m->backend, &slice, 1, &out, &err), &err);
	return out;
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
	uint16_t *values = noise((size_t)s->vocab * (size_t)s->hidden);
	for (int i = 0; i < s->layers; i++) {
		m->qkv[i] = matrix(m, values + 64 * i, (int64_t)qkv_width, s->hidden);
		m->o[i] = matrix(m, values + 64 * i, s->hidden, (int64_t)attended);
		m->gate_up[i] = matrix(m, values + 64 * i, 2 * s->ffn, s->hidden);
		m->down[i] = matrix(m, values + 64 * i, s->hidden, s->ffn);
	}
	m->embedding = matrix(m, values, s->vocab, s->hidden);
	m->head = matrix(m, values, s->vocab, s->hidden);
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
	enum status status = kn->embed(m->backend, m->embedding, m->tokens, n_rows, m->residual, s->hidden, err);
	for (int i = 0; i < s->layers && !status; i++) {
		char *keys = m->kv + 2 * (size_t)i * m->kv_layer_bytes;
		struct kn_matmul qkv = {
			m->qkv[i], m->residual, s->hidden, m->norm, 1e-5f, KN_STORE, m->qkv_out, qkv_width, NULL, NULL, 0};
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
			.reader = m->o[i]};
		struct kn_matmul o = {m->o[i], m->attended, attended, NULL, 0, KN_ADD, m->residual, s->hidden, NULL, NULL, 1};
		struct kn_matmul gate_up = {
			m->gate_up[i], m->residual, s->hidden, m->norm, 1e-5f, KN_SWIGLU, m->ffn, s->ffn, NULL, m->down[i], 0};
		struct kn_matmul down = {m->down[i], m->ffn, s->ffn, NULL, 0, KN_ADD, m->residual, s->hidden, NULL, NULL, 1};
		status = kn->matmul(m->backend, &qkv, n_rows, err);
		if (!status && !m->without_attention)
			status = kn->attention(m->backend, &attention, n_rows, err);
		if (!status)
			status = kn->matmul(m->backend, &o, n_rows, err);
		if (!status)
			status = kn->matmul(m->backend, &gate_up, n_rows, err);
		if (!status)
			status = kn->matmul(m->backend, &down, n_rows, err);
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

static double weight_bytes(const struct shape *s)
{
	double layer = (double)s->hidden * ((s->heads + 2 * s->kv_heads) * s->head_dim + s->heads * s->head_dim + 3 * s->ffn);
	return 2 * (s->layers * layer + (double)s->vocab * s->hidden);
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
	json_set(row, "of_read_limit", json_new_number(weight_bytes(m->shape) / (mean_ns / 1e9) / (READ_LIMIT_TB_S * 1e12)));
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
	printf("%-4s decode rows %3d context %4d  %8.1f us  best %8.1f us  %8.1f tok/s  weights read at %.3f of the limit  plan "
	       "%llu KB\n",
		m->shape->name, n_rows, context, mean / 1e3, best / 1e3, n_rows * 1e9 / mean,
		weight_bytes(m->shape) / (mean / 1e9) / (READ_LIMIT_TB_S * 1e12),
		(unsigned long long)(m->kn->plan_bytes(plan) / 1024));
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
	printf("%-4s prefill %4d  %8.2f ms  best %8.2f ms  %8.1f tok/s\n", m->shape->name, n_rows, mean / 1e6, best / 1e6,
		n_rows * 1e9 / mean);
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

int main(int argc, char **argv)
{
	long long steps = 100;
	const char *json_path = argc > 3 && text_equal(argv[argc - 2], "--json") ? argv[argc - 1] : NULL;
	int n_words = json_path ? argc - 2 : argc;
	struct model m = {.kn = n_words > 2 && text_equal(argv[2], "cpu") ? &kn_cpu_ops : &kn_cuda_ops};
	for (size_t i = 0; n_words > 1 && i < sizeof shapes / sizeof shapes[0]; i++)
		if (text_equal(argv[1], shapes[i].name))
			m.shape = &shapes[i];
	if (!m.shape || n_words > 4 || (n_words > 3 && !text_to_i64(argv[3], &steps)) || steps < 1) {
		fprintf(stderr, "usage: bench_step 135m|1b|8b [cpu|cuda] [steps] [--json FILE]\n");
		return 2;
	}
	struct err err = {0};
	struct kn_options options = {.threads = 2, .rows_max = ROWS_MAX, .cols_max = m.shape->ffn};
	must(m.kn->create(&options, &m.backend, &err), &err);
	printf("%s\n", m.kn->describe(m.backend));
	create(&m);
	m.results = json_new_array();
	bench_all(&m, (int)steps);
	enum status status = json_path ? write_results(&m, json_path) : STATUS_OK;
	json_free(m.results);
	return status ? 1 : 0;
}
