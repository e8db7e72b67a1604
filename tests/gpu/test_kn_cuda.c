/* The CUDA backend against the CPU reference: every operation, every stored type, one row and many, eager and from a graph. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "kernels/kn.h"

/* Stated tolerances on ||a - b|| / ||b||: one row keeps activations in fp32; many rows round them to the weights' type. */
#define TOLERANCE_ONE_ROW 2e-3 /* fp16 copies of block-quantised weights */
#define TOLERANCE_ROWS 6e-3

struct side {
	const struct kn_ops *kn;
	struct kn_backend *backend;
};

static size_t every = 1; /* every so many-th case runs: more than 1 for a tool that watches every access */

static struct side cpu = {&kn_cpu_ops, NULL}, gpu = {&kn_cuda_ops, NULL};

static void ok(enum status status, const struct err *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static void *put(const struct side *side, const void *values, size_t bytes)
{
	struct err err = {0};
	void *block;
	ok(side->kn->alloc(side->backend, bytes, &block, &err), &err);
	if (values)
		ok(side->kn->to_device(side->backend, block, values, bytes, &err), &err);
	ok(side->kn->synchronize(side->backend, &err), &err);
	return block;
}

static float *normals(uint64_t stream, size_t count)
{
	float *values = mem_calloc(count, sizeof *values);
	for (size_t i = 0; i < count; i++)
		values[i] = (float)random_normal(11, stream, i);
	return values;
}

static double distance(const float *a, const float *b, size_t count)
{
	double difference = 0, norm = 0;
	for (size_t i = 0; i < count; i++) {
		if (!isfinite(a[i]))
			return INFINITY;
		difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
		norm += (double)b[i] * b[i];
	}
	return sqrt(difference / norm);
}

/* Random weights in a stored type: plain types uniform, quantised ones random bytes with tame scales. */
static void *weights(enum dtype dtype, int64_t count, uint64_t *bytes)
{
	assert_true(dtype_bytes(dtype, count, bytes));
	uint8_t *out = mem_calloc(*bytes, 1);
	for (int64_t i = 0; dtype == DTYPE_F8_E4M3 && i < count; i++) { /* every value but NaN */
		out[i] = (uint8_t)(hash64_mix((uint64_t)i) >> 20);
		out[i] = (out[i] & 0x7f) == 0x7f ? 0x3f : out[i];
	}
	for (int64_t i = 0; dtype_block_elements(dtype) == 1 && dtype != DTYPE_F8_E4M3 && i < count; i++) {
		float value = 0.1f * ((float)(hash64_mix((uint64_t)i) >> 40) * 0x1p-24f - 0.5f);
		uint32_t bits;
		memcpy(&bits, &value, 4);
		if (dtype == DTYPE_F32)
			memcpy(out + 4 * i, &bits, 4);
		else
			((uint16_t *)out)[i] = dtype == DTYPE_F16 ? dtype_f32_to_f16(value) : (uint16_t)(bits >> 16);
	}
	uint64_t block = (uint64_t)dtype_block_bytes(dtype);
	for (uint64_t i = 0; dtype_block_elements(dtype) > 1 && i < *bytes; i++)
		out[i] = (uint8_t)(hash64_mix(i) >> 20);
	uint16_t scale = dtype_f32_to_f16(0.01f);
	for (uint64_t at = 0; dtype_block_elements(dtype) > 1 && at < *bytes; at += block) {
		memcpy(out + at + (dtype == DTYPE_Q6_K ? 208 : 0), &scale, 2);
		if (dtype == DTYPE_Q4_1 || dtype == DTYPE_Q4_K)
			memcpy(out + at + 2, &scale, 2);
	}
	return out;
}

static struct kn_slice whole(enum dtype dtype, const void *data, int64_t rows, int64_t cols)
{
	return (struct kn_slice){.dtype = dtype, .data = data, .rows = rows, .cols = cols, .row_end = rows, .col_end = cols};
}

static void run_matmul(const struct side *side, const struct kn_slice *slice, const float *x, const float *norm,
	enum kn_epilogue epilogue, int n_rows, bool planned, const float *y_before, float *out)
{
	struct err err = {0};
	struct kn_matrix *w;
	size_t width = (size_t)(epilogue == KN_SWIGLU ? slice->rows / 2 : slice->rows), cols = (size_t)slice->cols;
	ok(side->kn->matrix_create(side->backend, slice, 1, &w, &err), &err);
	float *dx = put(side, x, (size_t)n_rows * cols * 4), *dy = put(side, y_before, (size_t)n_rows * width * 4);
	float *dnorm = norm ? put(side, norm, cols * 4) : NULL;
	struct kn_matmul args = {w, dx, (int64_t)cols, dnorm, 1e-5f, epilogue, dy, (int64_t)width, NULL, NULL, 0};
	struct kn_plan *plan = NULL;
	if (planned)
		ok(side->kn->plan_begin(side->backend, &err), &err);
	ok(side->kn->matmul(side->backend, &args, n_rows, &err), &err);
	if (planned) {
		ok(side->kn->plan_end(side->backend, &plan, &err), &err);
		ok(side->kn->plan_run(side->backend, plan, &err), &err);
	}
	ok(side->kn->to_host(side->backend, out, dy, (size_t)n_rows * width * 4, &err), &err);
	ok(side->kn->synchronize(side->backend, &err), &err);
	if (plan)
		side->kn->plan_destroy(side->backend, plan);
	side->kn->release(side->backend, dx, (size_t)n_rows * cols * 4);
	side->kn->release(side->backend, dy, (size_t)n_rows * width * 4);
	if (dnorm)
		side->kn->release(side->backend, dnorm, cols * 4);
	side->kn->matrix_destroy(side->backend, w);
}

static void products_agree_for_every_type_epilogue_and_row_count(void **state)
{
	static const enum dtype types[] = {
		DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F8_E4M3};
	static const struct {
		int64_t rows, cols;
		int n_rows;
	} cases[] = {
		{64, 256, 1},
		{512, 2048, 1},
		{640, 512, 1},
		{320, 4096, 1},
		{96, 14336, 1},
		{64, 256, 5},
		{256, 2048, 33},
		{32, 8192, 1},
		{32, 29568, 1}, /* wider than the kernel for one row */
		{96, 576, 8},
		{320, 1536, 16},
		{64, 264, 2},
		{96, 576, 3},
		{544, 2048, 7},
		{64, 1536, 9},
		{192, 4096, 15},
		{160, 264, 17},
		{320, 8192, 31},
		{64, 1536, 65},
		{416, 576, 127},
		{256, 2048, 128},
		{96, 1536, 129},
		{640, 576, 300},
	};
	for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
		for (size_t c = t % every; c < sizeof cases / sizeof cases[0]; c += every)
			for (int epilogue = KN_STORE; epilogue <= KN_SWIGLU; epilogue++) {
				int64_t rows = cases[c].rows, cols = cases[c].cols;
				int n = cases[c].n_rows;
				if (cols % dtype_block_elements(types[t]) != 0)
					continue;
				uint64_t bytes;
				void *data = weights(types[t], rows * cols, &bytes);
				float *x = normals(7, (size_t)(n * cols)), *norm = normals(8, (size_t)cols),
				      *before = normals(9, (size_t)(n * rows));
				float *a = mem_calloc((size_t)(n * rows), 4), *b = mem_calloc((size_t)(n * rows), 4);
				struct kn_slice slice = whole(types[t], data, rows, cols);
				bool normed = epilogue != KN_ADD;
				size_t count = (size_t)(n * rows) / (epilogue == KN_SWIGLU ? 2 : 1);
				run_matmul(&cpu, &slice, x, normed ? norm : NULL, epilogue, n, false, before, b);
				run_matmul(&gpu, &slice, x, normed ? norm : NULL, epilogue, n, false, before, a);
				double d = distance(a, b, count);
				bool alone = n == 1 && cols < 29568;
				if (d > (alone ? TOLERANCE_ONE_ROW : TOLERANCE_ROWS))
					fail_msg("%s [%d x %d] rows %d epilogue %d: relative error %g", dtype_name(types[t]),
						(int)rows, (int)cols, n, epilogue, d);
				run_matmul(&gpu, &slice, x, normed ? norm : NULL, epilogue, n, true, before, b);
				assert_memory_equal(a, b, count * 4);
				mem_free(data);
				mem_free(x);
				mem_free(norm);
				mem_free(before);
				mem_free(a);
				mem_free(b);
			}
}

/* As many weight rows as make each height of tile the best, with rows of activations at the edges of what a kernel takes. */
static void products_of_tens_of_rows_agree_in_tiles_of_every_height(void **state)
{
	static const struct {
		int64_t rows, cols;
		enum kn_epilogue epilogue;
	} cases[] = {{3300, 200, KN_ADD}, {4096, 328, KN_ADD}, {6100, 136, KN_STORE}, {8400, 328, KN_STORE}, {8384, 200, KN_SWIGLU},
		{16384, 136, KN_SWIGLU}, {24544, 136, KN_SWIGLU}, {28672, 136, KN_SWIGLU}, {28650, 136, KN_STORE}};
	static const int counts[] = {17, 32, 33, 64, 65, 100, 128};
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
		for (size_t i = c % every; i < sizeof counts / sizeof counts[0]; i += every) {
			uint64_t bytes;
			int n = counts[i];
			int64_t rows = cases[c].rows, cols = cases[c].cols;
			enum dtype type = (c + i) % 2 ? DTYPE_BF16 : DTYPE_F16;
			void *data = weights(type, rows * cols, &bytes);
			float *x = normals(7, (size_t)(n * cols)), *before = normals(9, (size_t)(n * rows)),
			      *a = mem_calloc((size_t)(n * rows), 4), *b = mem_calloc((size_t)(n * rows), 4);
			struct kn_slice slice = whole(type, data, rows, cols);
			size_t count = (size_t)(n * rows) / (cases[c].epilogue == KN_SWIGLU ? 2 : 1);
			run_matmul(&cpu, &slice, x, NULL, cases[c].epilogue, n, false, before, b);
			run_matmul(&gpu, &slice, x, NULL, cases[c].epilogue, n, false, before, a);
			double d = distance(a, b, count);
			if (d > TOLERANCE_ROWS)
				fail_msg("[%d x %d] rows %d epilogue %d: relative error %g", (int)rows, (int)cols, n,
					(int)cases[c].epilogue, d);
			run_matmul(&gpu, &slice, x, NULL, cases[c].epilogue, n, true, before, b);
			assert_memory_equal(a, b, count * 4);
			mem_free(data);
			mem_free(x);
			mem_free(before);
			mem_free(a);
			mem_free(b);
		}
}

/* y = up * silu(gate) of x, then out += down * y, with y left to the backend's own form or not. */
static void run_ffn(const struct side *side, const struct kn_slice *gate_up, const struct kn_slice *down, const float *x,
	int n_rows, bool linked, float *out)
{
	struct err err = {0};
	struct kn_matrix *w[2];
	size_t hidden = (size_t)gate_up->cols, ffn = (size_t)down->cols, bytes = (size_t)n_rows * hidden * 4;
	ok(side->kn->matrix_create(side->backend, gate_up, 1, &w[0], &err), &err);
	ok(side->kn->matrix_create(side->backend, down, 1, &w[1], &err), &err);
	float *dx = put(side, x, bytes), *dout = put(side, x, bytes), *dy = put(side, NULL, (size_t)n_rows * ffn * 4);
	struct kn_matmul first = {.w = w[0],
		.x = dx,
		.x_stride = (int64_t)hidden,
		.epilogue = KN_SWIGLU,
		.y = dy,
		.y_stride = (int64_t)ffn,
		.reader = linked ? w[1] : NULL};
	struct kn_matmul second = {.w = w[1],
		.x = dy,
		.x_stride = (int64_t)ffn,
		.epilogue = KN_ADD,
		.y = dout,
		.y_stride = (int64_t)hidden,
		.x_for_w = linked};
	ok(side->kn->matmul(side->backend, &first, n_rows, &err), &err);
	ok(side->kn->matmul(side->backend, &second, n_rows, &err), &err);
	ok(side->kn->to_host(side->backend, out, dout, bytes, &err), &err);
	side->kn->release(side->backend, dx, bytes);
	side->kn->release(side->backend, dout, bytes);
	side->kn->release(side->backend, dy, (size_t)n_rows * ffn * 4);
	side->kn->matrix_destroy(side->backend, w[0]);
	side->kn->matrix_destroy(side->backend, w[1]);
}

static void a_product_written_for_its_reader_gives_the_same_end(void **state)
{
	enum { HIDDEN = 576, FFN = 1536 };
	/* Of the product that writes, and of its reader. */
	static const enum dtype types[][2] = {{DTYPE_BF16, DTYPE_BF16}, {DTYPE_F16, DTYPE_F16}, {DTYPE_F32, DTYPE_F32},
		{DTYPE_Q8_0, DTYPE_Q8_0}, {DTYPE_BF16, DTYPE_F16}, {DTYPE_F16, DTYPE_BF16}, {DTYPE_F32, DTYPE_BF16},
		{DTYPE_Q8_0, DTYPE_F16}, {DTYPE_BF16, DTYPE_Q8_0}};
	static const int rows[] = {1, 2, 9, 100, 200};
	for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
		for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
			uint64_t bytes;
			int n = rows[i];
			void *data = weights(types[t][0], (int64_t)2 * FFN * HIDDEN, &bytes);
			void *down_data = weights(types[t][1], (int64_t)FFN * HIDDEN, &bytes);
			float *x = normals(5, (size_t)n * HIDDEN), *a = mem_calloc((size_t)n * HIDDEN, 4),
			      *b = mem_calloc((size_t)n * HIDDEN, 4);
			struct kn_slice gate_up = whole(types[t][0], data, 2 * FFN, HIDDEN);
			struct kn_slice down = whole(types[t][1], down_data, HIDDEN, FFN);
			for (int linked = 0; linked < 2; linked++) {
				run_ffn(&cpu, &gate_up, &down, x, n, linked, b);
				run_ffn(&gpu, &gate_up, &down, x, n, linked, a);
				double d = distance(a, b, (size_t)n * HIDDEN);
				if (d > (n == 1 ? TOLERANCE_ONE_ROW : TOLERANCE_ROWS))
					fail_msg("%s read by %s, %d rows, linked %d: relative error %g", dtype_name(types[t][0]),
						dtype_name(types[t][1]), n, linked, d);
			}
			mem_free(data);
			mem_free(down_data);
			mem_free(x);
			mem_free(a);
			mem_free(b);
		}
}

static void a_row_has_the_same_bits_among_2_to_16_rows(void **state)
{
	enum { ROWS = 640, COLS = 1096, MOST = 16 };
	static const int counts[] = {2, 3, 5, 7, 8, 9, 15};
	uint64_t bytes;
	void *data = weights(DTYPE_BF16, ROWS * COLS, &bytes);
	float *x = normals(3, (size_t)MOST * COLS), *norm = normals(8, COLS), *zeros = mem_calloc((size_t)MOST * ROWS, 4);
	float *all = mem_calloc((size_t)MOST * ROWS, 4), *some = mem_calloc((size_t)MOST * ROWS, 4);
	struct kn_slice slice = whole(DTYPE_BF16, data, ROWS, COLS);
	for (int epilogue = KN_STORE; epilogue <= KN_SWIGLU; epilogue++) {
		size_t width = epilogue == KN_SWIGLU ? ROWS / 2 : ROWS;
		run_matmul(&gpu, &slice, x, norm, epilogue, MOST, false, zeros, all);
		for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
			run_matmul(&gpu, &slice, x, norm, epilogue, counts[i], false, zeros, some);
			assert_memory_equal(some, all, (size_t)counts[i] * width * 4);
		}
	}
	mem_free(data);
	mem_free(x);
	mem_free(norm);
	mem_free(zeros);
	mem_free(all);
	mem_free(some);
}

#define BLOCKS 400
#define STRIDE 300

struct attention_case {
	int heads, kv_heads, head_dim, interleaved;
	enum kn_kv_type kv_type;
};

/* Feeds one sequence of `length` tokens in chunks and keeps the outputs of all rows. */
static void run_attention(
	const struct side *side, const struct attention_case *c, const float *qkv, int length, int chunk, float *out)
{
	struct err err = {0};
	size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
	       attended = (size_t)c->heads * (size_t)c->head_dim;
	size_t cache_bytes = (size_t)BLOCKS * (size_t)c->kv_heads * KN_KV_BLOCK_TOKENS * (size_t)c->head_dim * 4;
	int32_t table[2 * STRIDE] = {0}, map[64];
	for (int i = 0; i < STRIDE; i++)
		table[STRIDE + i] = (int32_t)(1 + (i * 37) % (BLOCKS - 1));
	for (int i = 0; i < c->heads; i++)
		map[i] = i * c->kv_heads / c->heads;
	float *rope = mem_calloc((size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim), 4);
	kn_rope_table_fill(rope, STRIDE * KN_KV_BLOCK_TOKENS, c->head_dim, 10000, NULL);
	void *k = put(side, NULL, cache_bytes), *v = put(side, NULL, cache_bytes),
	     *drope = put(side, rope, (size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim) * 4);
	void *dtable = put(side, table, sizeof table), *dmap = put(side, map, sizeof map);
	for (int begin = 0; begin < length; begin += chunk) {
		int n = length - begin < chunk ? length - begin : chunk;
		int32_t positions[1024], slots[1024];
		for (int i = 0; i < n; i++) {
			positions[i] = begin + i;
			slots[i] = 1;
		}
		void *dq = put(side, qkv + (size_t)begin * width, (size_t)n * width * 4),
		     *dout = put(side, NULL, (size_t)n * attended * 4);
		void *dpositions = put(side, positions, (size_t)n * 4), *dslots = put(side, slots, (size_t)n * 4);
		struct kn_attention args = {.qkv = dq,
			.out = dout,
			.n_heads = c->heads,
			.n_kv_heads = c->kv_heads,
			.head_dim = c->head_dim,
			.kv_head_of_head = dmap,
			.uniform_groups = 1,
			.k_cache = k,
			.v_cache = v,
			.kv_type = c->kv_type,
			.positions = dpositions,
			.slots = dslots,
			.block_tables = dtable,
			.block_table_stride = STRIDE,
			.rope_cos_sin = drope,
			.rope_interleaved = c->interleaved,
			.scale = 1.0f / sqrtf((float)c->head_dim)};
		ok(side->kn->attention(side->backend, &args, n, &err), &err);
		ok(side->kn->to_host(side->backend, out + (size_t)begin * attended, dout, (size_t)n * attended * 4, &err), &err);
		side->kn->release(side->backend, dq, (size_t)n * width * 4);
		side->kn->release(side->backend, dout, (size_t)n * attended * 4);
		side->kn->release(side->backend, dpositions, (size_t)n * 4);
		side->kn->release(side->backend, dslots, (size_t)n * 4);
	}
	side->kn->release(side->backend, k, cache_bytes);
	side->kn->release(side->backend, v, cache_bytes);
	side->kn->release(side->backend, drope, (size_t)(STRIDE * KN_KV_BLOCK_TOKENS * c->head_dim) * 4);
	side->kn->release(side->backend, dtable, sizeof table);
	side->kn->release(side->backend, dmap, sizeof map);
	mem_free(rope);
}

static void attention_agrees_whole_in_chunks_and_step_by_step(void **state)
{
	static const struct attention_case cases[] = {
		{9, 3, 64, 1, KN_KV_F16},
		{9, 3, 64, 1, KN_KV_F32},
		{32, 8, 128, 0, KN_KV_F16},
		{8, 8, 96, 1, KN_KV_F16},
		{8, 1, 256, 0, KN_KV_F32},
		{5, 1, 64, 0, KN_KV_F16},
		{14, 2, 64, 0, KN_KV_F32},
		{24, 3, 128, 1, KN_KV_F16},
		{4, 4, 64, 0, KN_KV_F16},
		{4, 2, 256, 0, KN_KV_F16},
		{4, 4, 16, 0, KN_KV_F16},
		{6, 2, 24, 1, KN_KV_F16},
		{8, 4, 80, 1, KN_KV_F32},
		{4, 2, 160, 0, KN_KV_F16},
	};
	const int length = every > 1 ? 400 : 700;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct attention_case *c = &cases[i];
		size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
		       count = (size_t)length * (size_t)c->heads * (size_t)c->head_dim;
		float *qkv = normals(20 + i, (size_t)length * width), *a = mem_calloc(count, 4), *b = mem_calloc(count, 4);
		run_attention(&cpu, c, qkv, length, 250, b);
		static const int chunks[] = {1000, 350, 129};
		double d = 0;
		for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
			run_attention(&gpu, c, qkv, length, chunks[k], a);
			d = distance(a, b, count);
			if (d > 1e-3)
				fail_msg("%d heads, %d KV heads of %d, chunks of %d: relative error %g", c->heads, c->kv_heads,
					c->head_dim, chunks[k], d);
		}
		/* Steps of few rows give the same bits however they are cut. */
		run_attention(&gpu, c, qkv, length, 100, a);
		run_attention(&gpu, c, qkv, length, 7, b);
		assert_memory_equal(a, b, count * 4);
		run_attention(&cpu, c, qkv, length, 250, b);
		d = distance(a, b, count);
		if (d > 2e-4)
			fail_msg("%d heads, %d KV heads of %d, few rows: relative error %g", c->heads, c->kv_heads, c->head_dim, d);
		mem_free(qkv);
		mem_free(a);
		mem_free(b);
	}
}

/* Splits of more tokens than a block takes in one pass. */
static void attention_agrees_over_a_long_context(void **state)
{
	static const struct attention_case c = {2, 1, 64, 0, KN_KV_F16};
	enum { LENGTH = 4500 };
	size_t count = (size_t)LENGTH * (size_t)(c.heads * c.head_dim);
	float *qkv = normals(60, (size_t)LENGTH * (size_t)((c.heads + 2 * c.kv_heads) * c.head_dim));
	float *a = mem_calloc(count, 4), *b = mem_calloc(count, 4);
	run_attention(&gpu, &c, qkv, LENGTH, 100, a);
	run_attention(&gpu, &c, qkv, LENGTH, 128, b);
	assert_memory_equal(a, b, count * 4);
	run_attention(&cpu, &c, qkv, LENGTH, 1000, b);
	double d = distance(a, b, count);
	if (d > 2e-4)
		fail_msg("relative error %g", d);
	mem_free(qkv);
	mem_free(a);
	mem_free(b);
}

/* One step with rows of three sequences: [begin, end) of each, after their first begin tokens were fed on their own. */
static void run_mixed(const struct side *side, const struct attention_case *c, const float *qkv, const int (*spans)[2], float *out)
{
	enum { SEQUENCES = 3, SLOT_BLOCKS = 40 };
	struct err err = {0};
	size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim,
	       attended = (size_t)c->heads * (size_t)c->head_dim;
	size_t cache_bytes = (size_t)BLOCKS * (size_t)c->kv_heads * KN_KV_BLOCK_TOKENS * (size_t)c->head_dim * 4;
	int32_t table[SEQUENCES * SLOT_BLOCKS], map[64], positions[1024], slots[1024];
	for (int i = 0; i < SEQUENCES * SLOT_BLOCKS; i++)
		table[i] = (int32_t)(1 + (i * 37) % (BLOCKS - 1));
	for (int i = 0; i < c->heads; i++)
		map[i] = i * c->kv_heads / c->heads;
	size_t rope_bytes = (size_t)(SLOT_BLOCKS * KN_KV_BLOCK_TOKENS * c->head_dim) * 4;
	float *rope = mem_calloc(rope_bytes, 1), *lines = mem_calloc(1024 * width, 4);
	kn_rope_table_fill(rope, SLOT_BLOCKS * KN_KV_BLOCK_TOKENS, c->head_dim, 10000, NULL);
	struct kn_attention args = {.n_heads = c->heads,
		.n_kv_heads = c->kv_heads,
		.head_dim = c->head_dim,
		.kv_head_of_head = put(side, map, sizeof map),
		.uniform_groups = 1,
		.k_cache = put(side, NULL, cache_bytes),
		.v_cache = put(side, NULL, cache_bytes),
		.kv_type = c->kv_type,
		.block_tables = put(side, table, sizeof table),
		.block_table_stride = SLOT_BLOCKS,
		.rope_cos_sin = put(side, rope, rope_bytes),
		.rope_interleaved = c->interleaved,
		.scale = 1.0f / sqrtf((float)c->head_dim)};
	float *dq = put(side, NULL, 1024 * width * 4), *dout = put(side, NULL, 1024 * attended * 4);
	int32_t *dpositions = put(side, NULL, sizeof positions), *dslots = put(side, NULL, sizeof slots);
	for (int pass = 0; pass < SEQUENCES + 1; pass++) {
		int n = 0;
		for (int s = pass < SEQUENCES ? pass : 0; s < (pass < SEQUENCES ? pass + 1 : SEQUENCES); s++)
			for (int i = pass < SEQUENCES ? 0 : spans[s][0]; i < spans[s][pass < SEQUENCES ? 0 : 1]; i++) {
				positions[n] = i;
				slots[n] = s;
				memcpy(lines + (size_t)n++ * width, qkv + (size_t)(s * 300 + i) * width, width * 4);
			}
		if (n == 0)
			continue;
		ok(side->kn->to_device(side->backend, dq, lines, (size_t)n * width * 4, &err), &err);
		ok(side->kn->to_device(side->backend, dpositions, positions, sizeof positions, &err), &err);
		ok(side->kn->to_device(side->backend, dslots, slots, sizeof slots, &err), &err);
		args.qkv = dq;
		args.out = dout;
		args.positions = dpositions;
		args.slots = dslots;
		ok(side->kn->attention(side->backend, &args, n, &err), &err);
		ok(side->kn->to_host(side->backend, out, dout, (size_t)n * attended * 4, &err), &err);
	}
	side->kn->release(side->backend, (void *)args.kv_head_of_head, sizeof map);
	side->kn->release(side->backend, args.k_cache, cache_bytes);
	side->kn->release(side->backend, args.v_cache, cache_bytes);
	side->kn->release(side->backend, (void *)args.block_tables, sizeof table);
	side->kn->release(side->backend, (void *)args.rope_cos_sin, rope_bytes);
	side->kn->release(side->backend, dq, 1024 * width * 4);
	side->kn->release(side->backend, dout, 1024 * attended * 4);
	side->kn->release(side->backend, dpositions, sizeof positions);
	side->kn->release(side->backend, dslots, sizeof slots);
	mem_free(rope);
	mem_free(lines);
}

static void attention_agrees_for_steps_of_several_sequences(void **state)
{
	static const struct attention_case cases[] = {
		{32, 8, 128, 0, KN_KV_F16},
		{9, 3, 64, 1, KN_KV_F16},
		{8, 8, 96, 1, KN_KV_F16},
	};
	static const int spans[][3][2] = {
		{{0, 300}, {17, 18}, {100, 170}}, /* a prefill, a decoded row, a chunk after a prefix */
		{{15, 16}, {16, 17}, {127, 300}}, /* block edges */
		{{0, 33}, {128, 129}, {255, 257}}, /* few rows */
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		for (size_t k = i % every; k < sizeof spans / sizeof spans[0]; k += every) {
			const struct attention_case *c = &cases[i];
			size_t width = (size_t)(c->heads + 2 * c->kv_heads) * (size_t)c->head_dim;
			int n = 0;
			for (int s = 0; s < 3; s++)
				n += spans[k][s][1] - spans[k][s][0];
			size_t count = (size_t)n * (size_t)c->heads * (size_t)c->head_dim;
			size_t most = 1024 * (size_t)c->heads * (size_t)c->head_dim; /* run_mixed's own steps before the last */
			float *qkv = normals(40 + i, 900 * width), *a = mem_calloc(most, 4), *b = mem_calloc(most, 4);
			run_mixed(&cpu, c, qkv, spans[k], b);
			run_mixed(&gpu, c, qkv, spans[k], a);
			double d = distance(a, b, count);
			if (d > 1e-3)
				fail_msg("%d heads of %d, step %d: relative error %g", c->heads, c->head_dim, (int)k, d);
			mem_free(qkv);
			mem_free(a);
			mem_free(b);
		}
}

static void embedding_and_addition_agree(void **state)
{
	struct err err = {0};
	uint64_t bytes;
	enum { VOCAB = 300, HIDDEN = 576, ROWS = 17 };
	void *data = weights(DTYPE_Q8_0, VOCAB * HIDDEN, &bytes);
	struct kn_slice slice = whole(DTYPE_Q8_0, data, VOCAB, HIDDEN);
	int32_t ids[ROWS];
	float out[2][ROWS * HIDDEN], *y = normals(31, ROWS * HIDDEN);
	for (int i = 0; i < ROWS; i++)
		ids[i] = (i * 97) % VOCAB;
	const struct side *sides[] = {&cpu, &gpu};
	for (int s = 0; s < 2; s++) {
		struct kn_matrix *table;
		ok(sides[s]->kn->matrix_create(sides[s]->backend, &slice, 1, &table, &err), &err);
		int32_t *dids = put(sides[s], ids, sizeof ids);
		float *dout = put(sides[s], NULL, sizeof out[s]), *dy = put(sides[s], y, sizeof out[s]);
		ok(sides[s]->kn->embed(sides[s]->backend, table, dids, ROWS, dout, HIDDEN, &err), &err);
		ok(sides[s]->kn->add(sides[s]->backend, dout, dy, ROWS * HIDDEN, &err), &err);
		ok(sides[s]->kn->to_host(sides[s]->backend, out[s], dout, sizeof out[s], &err), &err);
	}
	assert_true(distance(out[1], out[0], ROWS * HIDDEN) < 1e-3);
	mem_free(y);
	mem_free(data);
}

static int setup(void **state)
{
	struct err err = {0};
	struct kn_options options = {.threads = every > 1 ? 1 : 2, .rows_max = 1024, .cols_max = 29568};
	ok(cpu.kn->create(&options, &cpu.backend, &err), &err);
	ok(gpu.kn->create(&options, &gpu.backend, &err), &err);
	return 0;
}

/* usage: test_kn_cuda [few | pattern of test names] */
int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "few") == 0)
		every = 5;
	else if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_agree_for_every_type_epilogue_and_row_count),
		cmocka_unit_test(products_of_tens_of_rows_agree_in_tiles_of_every_height),
		cmocka_unit_test(a_product_written_for_its_reader_gives_the_same_end),
		cmocka_unit_test(a_row_has_the_same_bits_among_2_to_16_rows),
		cmocka_unit_test(attention_agrees_for_steps_of_several_sequences),
		cmocka_unit_test(attention_agrees_whole_in_chunks_and_step_by_step),
		cmocka_unit_test(attention_agrees_over_a_long_context),
		cmocka_unit_test(embedding_and_addition_agree),
	};
	return cmocka_run_group_tests(tests, setup, NULL);
}
