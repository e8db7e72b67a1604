/* The CUDA backend against the CPU reference: every operation but attention, every stored type, one row and many, eager and from a
 * graph. */
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
#include "tests/support/side.h"

/* Stated tolerances on ||a - b|| / ||b||: one row keeps activations in fp32; many rows round them to the weights' type. */
#define TOLERANCE_ONE_ROW 2e-3 /* fp16 copies of block-quantised weights */
#define TOLERANCE_ROWS 6e-3

static size_t every = 1; /* every so many-th case runs: more than 1 for a tool that watches every access */

static struct side cpu = {&kn_cpu_ops, NULL}, gpu = {&kn_cuda_ops, NULL};

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
	side_ok(side->kn->matrix_create(side->backend, slice, 1, &w, &err), &err);
	float *dx = side_put(side, x, (size_t)n_rows * cols * 4), *dy = side_put(side, y_before, (size_t)n_rows * width * 4);
	float *dnorm = norm ? side_put(side, norm, cols * 4) : NULL;
	struct kn_matmul args = {w, dx, (int64_t)cols, dnorm, 1e-5f, epilogue, dy, (int64_t)width, NULL, NULL, 0};
	struct kn_plan *plan = NULL;
	if (planned)
		side_ok(side->kn->plan_begin(side->backend, &err), &err);
	side_ok(side->kn->matmul(side->backend, &args, n_rows, &err), &err);
	if (planned) {
		side_ok(side->kn->plan_end(side->backend, &plan, &err), &err);
		side_ok(side->kn->plan_run(side->backend, plan, &err), &err);
	}
	side_ok(side->kn->to_host(side->backend, out, dy, (size_t)n_rows * width * 4, &err), &err);
	side_ok(side->kn->synchronize(side->backend, &err), &err);
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
				float *x = side_normals(7, (size_t)(n * cols)), *norm = side_normals(8, (size_t)cols),
				      *before = side_normals(9, (size_t)(n * rows));
				float *a = mem_calloc((size_t)(n * rows), 4), *b = mem_calloc((size_t)(n * rows), 4);
				struct kn_slice slice = whole(types[t], data, rows, cols);
				bool normed = epilogue != KN_ADD;
				size_t count = (size_t)(n * rows) / (epilogue == KN_SWIGLU ? 2 : 1);
				run_matmul(&cpu, &slice, x, normed ? norm : NULL, epilogue, n, false, before, b);
				run_matmul(&gpu, &slice, x, normed ? norm : NULL, epilogue, n, false, before, a);
				double d = side_distance(a, b, count);
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
	} cases[] = {{3304, 200, KN_ADD}, {4096, 328, KN_ADD}, {6104, 136, KN_STORE}, {6100, 136, KN_STORE}, {8400, 328, KN_STORE},
		{8384, 200, KN_SWIGLU}, {16384, 136, KN_SWIGLU}, {24544, 136, KN_SWIGLU}, {28672, 136, KN_SWIGLU},
		{28648, 136, KN_STORE}};
	static const int counts[] = {17, 32, 33, 64, 65, 100, 128};
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
		for (size_t i = c % every; i < sizeof counts / sizeof counts[0]; i += every) {
			uint64_t bytes;
			int n = counts[i];
			int64_t rows = cases[c].rows, cols = cases[c].cols;
			enum dtype type = (c + i) % 2 ? DTYPE_BF16 : DTYPE_F16;
			void *data = weights(type, rows * cols, &bytes);
			float *x = side_normals(7, (size_t)(n * cols)), *before = side_normals(9, (size_t)(n * rows)),
			      *a = mem_calloc((size_t)(n * rows), 4), *b = mem_calloc((size_t)(n * rows), 4);
			struct kn_slice slice = whole(type, data, rows, cols);
			size_t count = (size_t)(n * rows) / (cases[c].epilogue == KN_SWIGLU ? 2 : 1);
			run_matmul(&cpu, &slice, x, NULL, cases[c].epilogue, n, false, before, b);
			run_matmul(&gpu, &slice, x, NULL, cases[c].epilogue, n, false, before, a);
			double d = side_distance(a, b, count);
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
	side_ok(side->kn->matrix_create(side->backend, gate_up, 1, &w[0], &err), &err);
	side_ok(side->kn->matrix_create(side->backend, down, 1, &w[1], &err), &err);
	float *dx = side_put(side, x, bytes), *dout = side_put(side, x, bytes),
	      *dy = side_put(side, NULL, (size_t)n_rows * ffn * 4);
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
	side_ok(side->kn->matmul(side->backend, &first, n_rows, &err), &err);
	side_ok(side->kn->matmul(side->backend, &second, n_rows, &err), &err);
	side_ok(side->kn->to_host(side->backend, out, dout, bytes, &err), &err);
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
			float *x = side_normals(5, (size_t)n * HIDDEN), *a = mem_calloc((size_t)n * HIDDEN, 4),
			      *b = mem_calloc((size_t)n * HIDDEN, 4);
			struct kn_slice gate_up = whole(types[t][0], data, 2 * FFN, HIDDEN);
			struct kn_slice down = whole(types[t][1], down_data, HIDDEN, FFN);
			for (int linked = 0; linked < 2; linked++) {
				run_ffn(&cpu, &gate_up, &down, x, n, linked, b);
				run_ffn(&gpu, &gate_up, &down, x, n, linked, a);
				double d = side_distance(a, b, (size_t)n * HIDDEN);
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

enum chain_manner { CHAIN_ONE_BY_ONE, CHAIN_AT_ONCE, CHAIN_PLANNED };

/* A layer's products, from attention's output to the next layer's queries, in one call or one by one; residual: in and out. */
static void run_chain(const struct side *side, const struct kn_slice slices[4], const float *attended, const float *norm,
	int n_rows, enum chain_manner manner, float *residual, float *queries)
{
	struct err err = {0};
	struct kn_matrix *w[4];
	for (int i = 0; i < 4; i++)
		side_ok(side->kn->matrix_create(side->backend, &slices[i], 1, &w[i], &err), &err);
	const int64_t width = slices[0].cols, hidden = slices[0].rows, ffn = slices[2].cols, last = slices[3].rows;
	const size_t rows = (size_t)n_rows * 4;
	float *dattended = side_put(side, attended, rows * (size_t)width),
	      *dresidual = side_put(side, residual, rows * (size_t)hidden), *dnorm = side_put(side, norm, (size_t)hidden * 4),
	      *dffn = side_put(side, NULL, rows * (size_t)ffn), *dqueries = side_put(side, NULL, rows * (size_t)last);
	const struct kn_matmul chain[4] = {
		{.w = w[0], .x = dattended, .x_stride = width, .epilogue = KN_ADD, .y = dresidual, .y_stride = hidden},
		{w[1], dresidual, hidden, dnorm, 1e-5f, KN_SWIGLU, dffn, ffn, NULL, w[2], 0},
		{.w = w[2], .x = dffn, .x_stride = ffn, .epilogue = KN_ADD, .y = dresidual, .y_stride = hidden, .x_for_w = 1},
		{w[3], dresidual, hidden, dnorm, 1e-5f, KN_STORE, dqueries, last, NULL, NULL, 0},
	};
	struct kn_plan *plan = NULL;
	if (manner == CHAIN_PLANNED)
		side_ok(side->kn->plan_begin(side->backend, &err), &err);
	for (int i = 0; manner == CHAIN_ONE_BY_ONE && i < 4; i++)
		side_ok(side->kn->matmul(side->backend, &chain[i], n_rows, &err), &err);
	if (manner != CHAIN_ONE_BY_ONE)
		side_ok(side->kn->matmul_chain(side->backend, chain, 4, n_rows, &err), &err);
	if (manner == CHAIN_PLANNED) {
		side_ok(side->kn->plan_end(side->backend, &plan, &err), &err);
		side_ok(side->kn->plan_run(side->backend, plan, &err), &err);
	}
	side_ok(side->kn->to_host(side->backend, residual, dresidual, rows * (size_t)hidden, &err), &err);
	side_ok(side->kn->to_host(side->backend, queries, dqueries, rows * (size_t)last, &err), &err);
	if (plan)
		side->kn->plan_destroy(side->backend, plan);
	side->kn->release(side->backend, dattended, rows * (size_t)width);
	side->kn->release(side->backend, dresidual, rows * (size_t)hidden);
	side->kn->release(side->backend, dnorm, (size_t)hidden * 4);
	side->kn->release(side->backend, dffn, rows * (size_t)ffn);
	side->kn->release(side->backend, dqueries, rows * (size_t)last);
	for (int i = 0; i < 4; i++)
		side->kn->matrix_destroy(side->backend, w[i]);
}

/* Shapes that one kernel takes whole on the GPUs that have it, odd numbers of tiles among them, and one that it does not. */
static void products_of_a_layer_agree_in_one_call(void **state)
{
	static const struct {
		int64_t width, hidden, ffn, last;
		int n_rows;
	} cases[] = {{264, 4096, 4000, 6144, 128}, {264, 4096, 4000, 6144, 17}, {264, 4096, 4000, 6144, 2},
		{200, 3272, 6400, 3400, 33}, {136, 8384, 4208, 8384, 65}, {72, 3200, 14336, 3200, 127}, {576, 576, 1536, 960, 1},
		{576, 576, 1536, 960, 8}, {576, 576, 1536, 960, 100}};
	for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c += every) {
		const int64_t width = cases[c].width, hidden = cases[c].hidden, ffn = cases[c].ffn, last = cases[c].last;
		const int n = cases[c].n_rows;
		const size_t count = (size_t)(n * hidden), n_queries = (size_t)(n * last);
		uint64_t bytes;
		void *data = weights(DTYPE_BF16, (2 * ffn > last ? 2 * ffn : last) * hidden, &bytes);
		const struct kn_slice slices[4] = {whole(DTYPE_BF16, data, hidden, width), whole(DTYPE_BF16, data, 2 * ffn, hidden),
			whole(DTYPE_BF16, data, hidden, ffn), whole(DTYPE_BF16, data, last, hidden)};
		float *attended = side_normals(7, (size_t)(n * width)), *norm = side_normals(8, (size_t)hidden);
		float *residual[4], *queries[4];
		for (int k = 0; k < 4; k++) {
			residual[k] = side_normals(9, count);
			queries[k] = mem_calloc(n_queries, 4);
			run_chain(k == 0 ? &cpu : &gpu, slices, attended, norm, n,
				k == 0 ? CHAIN_AT_ONCE : (enum chain_manner)(k - 1), residual[k], queries[k]);
		}
		for (int k = 1; k < 4; k++) {
			double d = side_distance(residual[k], residual[0], count),
			       e = side_distance(queries[k], queries[0], n_queries);
			if (d > TOLERANCE_ROWS || e > 2 * TOLERANCE_ROWS)
				fail_msg("[%d, %d, %d, %d] rows %d manner %d: relative errors %g, %g", (int)width, (int)hidden,
					(int)ffn, (int)last, n, k - 1, d, e);
		}
		assert_memory_equal(residual[2], residual[3], count * 4);
		assert_memory_equal(queries[2], queries[3], n_queries * 4);
		for (int k = 0; k < 4; k++) {
			mem_free(residual[k]);
			mem_free(queries[k]);
		}
		mem_free(data);
		mem_free(attended);
		mem_free(norm);
	}
}

static void a_layer_gives_a_row_the_same_bits_among_2_to_16_rows(void **state)
{
	enum { WIDTH = 264, HIDDEN = 4096, FFN = 4000, LAST = 6144, MOST = 16 };
	static const int counts[] = {MOST, 2, 5, 8, 9, 15};
	uint64_t bytes;
	void *data = weights(DTYPE_BF16, 2 * FFN * HIDDEN, &bytes);
	const struct kn_slice slices[4] = {whole(DTYPE_BF16, data, HIDDEN, WIDTH), whole(DTYPE_BF16, data, 2 * FFN, HIDDEN),
		whole(DTYPE_BF16, data, HIDDEN, FFN), whole(DTYPE_BF16, data, LAST, HIDDEN)};
	float *attended = side_normals(7, MOST * WIDTH), *norm = side_normals(8, HIDDEN);
	float *residual[2], *queries[2];
	for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
		const size_t n = (size_t)counts[i], k = i > 0;
		residual[k] = side_normals(9, MOST * HIDDEN);
		queries[k] = mem_calloc(MOST * LAST, 4);
		run_chain(&gpu, slices, attended, norm, counts[i], CHAIN_AT_ONCE, residual[k], queries[k]);
		if (k == 0)
			continue;
		assert_memory_equal(residual[1], residual[0], n * HIDDEN * 4);
		assert_memory_equal(queries[1], queries[0], n * LAST * 4);
		mem_free(residual[1]);
		mem_free(queries[1]);
	}
	mem_free(residual[0]);
	mem_free(queries[0]);
	mem_free(data);
	mem_free(attended);
	mem_free(norm);
}

static void a_row_has_the_same_bits_among_2_to_16_rows(void **state)
{
	enum { ROWS = 640, COLS = 1096, MOST = 16 };
	static const int counts[] = {2, 3, 5, 7, 8, 9, 15};
	uint64_t bytes;
	void *data = weights(DTYPE_BF16, ROWS * COLS, &bytes);
	float *x = side_normals(3, (size_t)MOST * COLS), *norm = side_normals(8, COLS), *zeros = mem_calloc((size_t)MOST * ROWS, 4);
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

/* Neighbouring row counts share an algorithm of the library: whose turn comes first must not show, and each agrees with the CPU.
 * Two backends run the same counts, one from below and one from above. */
static void long_steps_have_the_same_bits_whatever_ran_before(void **state)
{
	enum { ROWS = 768, COLS = 1096, COUNTS = 7, MOST = 700 };
	static const int counts[COUNTS] = {256, 257, 300, 384, 385, 640, MOST};
	const struct kn_options options = {.threads = 1, .rows_max = MOST, .cols_max = COLS};
	struct side other = {.kn = gpu.kn};
	uint64_t bytes;
	void *data = weights(DTYPE_BF16, ROWS * COLS, &bytes);
	float *x = side_normals(3, (size_t)MOST * COLS), *before = side_normals(9, (size_t)MOST * ROWS);
	float *expected = mem_calloc((size_t)MOST * ROWS, 4), *found = mem_calloc((size_t)MOST * ROWS, 4), *upward[COUNTS];
	struct kn_slice slice = whole(DTYPE_BF16, data, ROWS, COLS);
	side_open(&other, &options);
	for (int i = 0; i < COUNTS; i++) {
		size_t count = (size_t)counts[i] * ROWS;
		upward[i] = mem_calloc(count, 4);
		run_matmul(&gpu, &slice, x, NULL, KN_ADD, counts[i], false, before, upward[i]);
		run_matmul(&cpu, &slice, x, NULL, KN_ADD, counts[i], false, before, expected);
		double d = side_distance(upward[i], expected, count);
		if (!(d <= TOLERANCE_ROWS))
			fail_msg("%d rows: relative error %g", counts[i], d);
	}
	for (int i = COUNTS - 1; i >= 0; i--) {
		run_matmul(&other, &slice, x, NULL, KN_ADD, counts[i], i % 2 == 0, before, found);
		assert_memory_equal(found, upward[i], (size_t)counts[i] * ROWS * 4);
		mem_free(upward[i]);
	}
	mem_free(data);
	mem_free(x);
	mem_free(before);
	mem_free(expected);
	mem_free(found);
}

/* Rows of a table of one type, and their sum with others. */
static void check_embedding(enum dtype dtype)
{
	struct err err = {0};
	uint64_t bytes;
	enum { VOCAB = 300, HIDDEN = 576, ROWS = 17 };
	void *data = weights(dtype, VOCAB * HIDDEN, &bytes);
	struct kn_slice slice = whole(dtype, data, VOCAB, HIDDEN);
	int32_t ids[ROWS];
	float out[2][ROWS * HIDDEN], *y = side_normals(31, ROWS * HIDDEN);
	for (int i = 0; i < ROWS; i++)
		ids[i] = (i * 97) % VOCAB;
	const struct side *sides[] = {&cpu, &gpu};
	for (int s = 0; s < 2; s++) {
		struct kn_matrix *table;
		side_ok(sides[s]->kn->matrix_create(sides[s]->backend, &slice, 1, &table, &err), &err);
		int32_t *dids = side_put(sides[s], ids, sizeof ids);
		float *dout = side_put(sides[s], NULL, sizeof out[s]), *dy = side_put(sides[s], y, sizeof out[s]);
		side_ok(sides[s]->kn->embed(sides[s]->backend, table, dids, ROWS, dout, HIDDEN, &err), &err);
		side_ok(sides[s]->kn->add(sides[s]->backend, dout, dy, ROWS * HIDDEN, &err), &err);
		side_ok(sides[s]->kn->to_host(sides[s]->backend, out[s], dout, sizeof out[s], &err), &err);
	}
	if (!(side_distance(out[1], out[0], ROWS * HIDDEN) < 1e-6)) /* both take the stored values as they are */
		fail_msg("%s: relative error %g", dtype_name(dtype), side_distance(out[1], out[0], ROWS * HIDDEN));
	mem_free(y);
	mem_free(data);
}

/* Biases, norms of each head of q and k, and both; fp32 throughout, so all that differs is the order of sums. */
static void heads_are_adjusted_as_on_the_cpu(void **state)
{
	static const struct {
		int heads, kv_heads, head_dim;
	} shapes[] = {{32, 8, 128}, {14, 2, 64}, {3, 3, 16}, {8, 1, 256}};
	static const int counts[] = {1, 7, 129};
	const struct side *sides[] = {&cpu, &gpu};
	for (size_t c = 0; c < sizeof shapes / sizeof shapes[0] * 9; c++) {
		const int heads = shapes[c / 9].heads, kv_heads = shapes[c / 9].kv_heads, head_dim = shapes[c / 9].head_dim;
		const int n = counts[c % 9 / 3], what = 1 + (int)(c % 3);
		const size_t width = (size_t)(heads + 2 * kv_heads) * (size_t)head_dim, count = (size_t)n * width;
		float *qkv = side_normals(60, count), *bias = side_normals(61, width),
		      *norm = side_normals(62, (size_t)head_dim * 2);
		float *out[2];
		struct err err = {0};
		for (int s = 0; s < 2; s++) {
			float *dqkv = side_put(sides[s], qkv, count * 4), *dbias = side_put(sides[s], bias, width * 4);
			float *dnorm = side_put(sides[s], norm, (size_t)head_dim * 2 * 4);
			const struct kn_heads args = {.qkv = dqkv,
				.n_heads = heads,
				.n_kv_heads = kv_heads,
				.head_dim = head_dim,
				.bias = what & 1 ? dbias : NULL,
				.q_norm = what & 2 ? dnorm : NULL,
				.k_norm = what & 2 ? dnorm + head_dim : NULL,
				.norm_eps = 1e-6f};
			out[s] = mem_calloc(count, 4);
			side_ok(sides[s]->kn->adjust_heads(sides[s]->backend, &args, n, &err), &err);
			side_ok(sides[s]->kn->to_host(sides[s]->backend, out[s], dqkv, count * 4, &err), &err);
			sides[s]->kn->release(sides[s]->backend, dqkv, count * 4);
			sides[s]->kn->release(sides[s]->backend, dbias, width * 4);
			sides[s]->kn->release(sides[s]->backend, dnorm, (size_t)head_dim * 2 * 4);
		}
		double d = side_distance(out[1], out[0], count);
		if (d > 1e-5)
			fail_msg("%d + %d heads of %d, %d rows, bias and norms %d: relative error %g", heads, kv_heads, head_dim, n,
				what, d);
		mem_free(qkv);
		mem_free(bias);
		mem_free(norm);
		mem_free(out[0]);
		mem_free(out[1]);
	}
}

static void embedding_and_addition_agree(void **state)
{
	static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q8_0};
	for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
		check_embedding(types[t]);
}

static int setup(void **state)
{
	struct kn_options options = {.threads = every > 1 ? 1 : 2, .rows_max = 1024, .cols_max = 29568};
	side_open(&cpu, &options);
	side_open(&gpu, &options);
	return 0;
}

/* usage: test_kn_cuda [few | pattern of test names] */
int main(int argc, char **argv)
{
	every = side_every(argc, argv);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(products_agree_for_every_type_epilogue_and_row_count),
		cmocka_unit_test(products_of_tens_of_rows_agree_in_tiles_of_every_height),
		cmocka_unit_test(a_product_written_for_its_reader_gives_the_same_end),
		cmocka_unit_test(products_of_a_layer_agree_in_one_call),
		cmocka_unit_test(a_layer_gives_a_row_the_same_bits_among_2_to_16_rows),
		cmocka_unit_test(a_row_has_the_same_bits_among_2_to_16_rows),
		cmocka_unit_test(long_steps_have_the_same_bits_whatever_ran_before),
		cmocka_unit_test(heads_are_adjusted_as_on_the_cpu),
		cmocka_unit_test(embedding_and_addition_agree),
	};
	return cmocka_run_group_tests(tests, setup, NULL);
}
