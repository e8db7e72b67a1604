/* Times attention of decode steps alone, in a graph of many, each over other keys and values than the ones before it, so that the
 * caches of the chip do not help. Prints the mean time of one and its share of the read limit.
 * usage: bench_attention 1b|8b [repeats] */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/text.h"
#include "kernels/kn.h"

#define READ_LIMIT_TB_S 4.53 /* read-only stream measured on one H200, 2026-11-29 */

enum { LAYERS = 8, SLOTS = 128, SLOT_BLOCKS = 64, STRIDE = 512, OPERATIONS = 128, CONTEXT = STRIDE * KN_KV_BLOCK_TOKENS };

struct bench {
	const struct kn_ops *kn;
	struct kn_backend *backend;
	int heads, kv_heads, head_dim;
	char *keys[LAYERS], *values[LAYERS];
	float *qkv, *out, *rope;
	int32_t *positions, *slots, *tables, *kv_heads_of;
};

static void must(enum status status, const struct err *err)
{
	if (status) {
		fprintf(stderr, "bench_attention: %s\n", err->text);
		ASSERT(!"a backend call failed");
	}
}

/* Memory of the backend; values NULL: left as it is. */
static void *put(struct bench *b, const void *values, size_t bytes)
{
	struct err err = {0};
	void *out;
	must(b->kn->alloc(b->backend, bytes, &out, &err), &err);
	if (values)
		must(b->kn->to_device(b->backend, out, values, bytes, &err), &err);
	must(b->kn->synchronize(b->backend, &err), &err);
	return out;
}

static char *cache(struct bench *b, const uint16_t *noise, size_t noise_bytes)
{
	struct err err = {0};
	size_t bytes = (size_t)SLOTS * SLOT_BLOCKS * KN_KV_BLOCK_TOKENS * (size_t)b->kv_heads * (size_t)b->head_dim * 2;
	char *out = put(b, NULL, bytes);
	for (size_t at = 0; at < bytes; at += noise_bytes)
		must(b->kn->to_device(b->backend, out + at, noise, bytes - at < noise_bytes ? bytes - at : noise_bytes, &err),
			&err);
	return out;
}

static void create(struct bench *b)
{
	size_t width = (size_t)(b->heads + 2 * b->kv_heads) * (size_t)b->head_dim,
	       attended = (size_t)b->heads * (size_t)b->head_dim;
	enum { NOISE = 1 << 23 };
	uint16_t *noise = mem_calloc(NOISE, sizeof *noise); /* fp16 of magnitudes 1 to 2 */
	for (size_t i = 0; i < NOISE; i++)
		noise[i] = (uint16_t)(0x3c00 | (hash64_mix(i) & 0x83ff));
	for (int i = 0; i < LAYERS; i++) {
		b->keys[i] = cache(b, noise, NOISE * sizeof *noise);
		b->values[i] = cache(b, noise, NOISE * sizeof *noise);
	}
	mem_free(noise);
	float *qkv = mem_calloc(SLOTS * width, sizeof *qkv), *rope = mem_calloc(CONTEXT * (size_t)b->head_dim, sizeof *rope);
	for (size_t i = 0; i < SLOTS * width; i++)
		qkv[i] = (float)(hash64_mix(i) >> 40) * 0x1p-23f - 1.0f;
	kn_rope_table_fill(rope, CONTEXT, b->head_dim, 500000, NULL);
	b->qkv = put(b, qkv, SLOTS * width * sizeof *qkv);
	b->rope = put(b, rope, CONTEXT * (size_t)b->head_dim * sizeof *rope);
	b->out = put(b, NULL, SLOTS * attended * sizeof(float));
	int32_t slots[2 * SLOTS], *tables = mem_calloc(SLOTS * STRIDE, sizeof *tables), map[128];
	for (int i = 0; i < 2 * SLOTS; i++)
		slots[i] = i % SLOTS;
	for (int i = 0; i < SLOTS * STRIDE; i++)
		tables[i] = (i / STRIDE * SLOT_BLOCKS + i % STRIDE) % (SLOTS * SLOT_BLOCKS);
	for (int i = 0; i < b->heads; i++)
		map[i] = i / (b->heads / b->kv_heads);
	b->slots = put(b, slots, sizeof slots);
	b->tables = put(b, tables, SLOTS * STRIDE * sizeof *tables);
	b->kv_heads_of = put(b, map, (size_t)b->heads * sizeof *map);
	b->positions = put(b, NULL, SLOTS * sizeof(int32_t));
	mem_free(qkv);
	mem_free(rope);
	mem_free(tables);
}

static void operations(struct bench *b, int n_rows)
{
	struct err err = {0};
	for (int i = 0; i < OPERATIONS; i++) {
		struct kn_attention attention = {.qkv = b->qkv,
			.out = b->out,
			.n_heads = b->heads,
			.n_kv_heads = b->kv_heads,
			.head_dim = b->head_dim,
			.kv_head_of_head = b->kv_heads_of,
			.uniform_groups = 1,
			.k_cache = b->keys[i % LAYERS],
			.v_cache = b->values[i % LAYERS],
			.kv_type = KN_KV_F16,
			.positions = b->positions,
			.slots = b->slots + i / LAYERS * n_rows % SLOTS,
			.block_tables = b->tables,
			.block_table_stride = STRIDE,
			.rope_cos_sin = b->rope,
			.scale = 0.1f,
			.few_rows_each = 1};
		must(b->kn->attention(b->backend, &attention, n_rows, &err), &err);
	}
}

/* n_rows rows at position context; the first at position longest. */
static void bench_case(struct bench *b, int n_rows, int context, int longest, int repeats)
{
	struct err err = {0};
	struct kn_plan *plan;
	int32_t positions[SLOTS];
	for (int i = 0; i < SLOTS; i++)
		positions[i] = i == 0 ? longest : context;
	must(b->kn->to_device(b->backend, b->positions, positions, sizeof positions, &err), &err);
	must(b->kn->synchronize(b->backend, &err), &err);
	must(b->kn->plan_begin(b->backend, &err), &err);
	operations(b, n_rows);
	must(b->kn->plan_end(b->backend, &plan, &err), &err);
	double best = 1e30, all = 0;
	for (int i = -2; i < repeats; i++) {
		int64_t begin = clock_monotonic_ns();
		must(b->kn->plan_run(b->backend, plan, &err), &err);
		must(b->kn->synchronize(b->backend, &err), &err);
		double ns = (double)(clock_monotonic_ns() - begin) / OPERATIONS;
		if (i < 0)
			continue;
		best = ns < best ? ns : best;
		all += ns;
	}
	double tokens = (double)(n_rows - 1) * (context + 1) + longest + 1, mean = all / repeats;
	double bytes = tokens * b->kv_heads * b->head_dim * 4;
	printf("rows %3d context %4d longest %4d  %8.2f us  best %8.2f us  %.3f of the read limit\n", n_rows, context, longest,
		mean / 1e3, best / 1e3, bytes / (mean / 1e9) / (READ_LIMIT_TB_S * 1e12));
	b->kn->plan_destroy(b->backend, plan);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	long long repeats = 20;
	bool is_1b = argc > 1 && text_equal(argv[1], "1b");
	if (argc < 2 || argc > 3 || (!is_1b && !text_equal(argv[1], "8b")) || (argc > 2 && !text_to_i64(argv[2], &repeats)) ||
		repeats < 1 || repeats > 1000) {
		fprintf(stderr, "usage: bench_attention 1b|8b [repeats]\n");
		return 2;
	}
	struct bench b = {.kn = &kn_cuda_ops, .heads = 32, .kv_heads = 8, .head_dim = is_1b ? 64 : 128};
	struct err err = {0};
	struct kn_options options = {.threads = 2, .rows_max = SLOTS, .cols_max = 14336};
	must(b.kn->create(&options, &b.backend, &err), &err);
	printf("%s\n", b.kn->describe(b.backend));
	create(&b);
	static const int rows[] = {1, 4, 8, 16, 24, 32, 48, 64, 96, 128};
	for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
		bench_case(&b, rows[i], 200, 200, (int)repeats);
	bench_case(&b, 32, 1000, 1000, (int)repeats);
	bench_case(&b, 128, 1000, 1000, (int)repeats);
	bench_case(&b, 1, 4000, 4000, (int)repeats);
	bench_case(&b, 8, 4000, 4000, (int)repeats);
	bench_case(&b, 32, 200, 4000, (int)repeats);
	bench_case(&b, 128, 200, 4000, (int)repeats);
	return 0;
}
