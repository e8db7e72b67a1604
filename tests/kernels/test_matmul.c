/* Tests of the packed matrix product: against plain double-precision arithmetic on the stored weights, and bit for bit
 * between instruction sets, thread counts, batches, and recorded and unrecorded runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kn.h"
#include "tests/support/random_tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define EPSILON 1e-5f

static const enum dtype all_types[] = {
	DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_F8_E4M3};
static const char *const all_isas[] = {"scalar", "avx2", "avx512"};

/* One product with everything it needs; the stored tensors are whole, the slices may be parts. */
struct problem {
	struct kn_slice slices[4];
	void *tensors[4], *scales[4];
	size_t n_slices;
	int64_t rows, cols; /* of the matrix */
	int n_rows;
	float *x, *norm_weight; /* norm_weight NULL: none */
	int32_t *row_index; /* or NULL */
	int64_t x_rows;
	enum kn_epilogue epilogue;
};

static void add_slice(struct problem *p, struct kn_slice slice)
{
	void *tensor = random_tensor(slice.dtype, slice.rows * slice.cols, 100 + p->n_slices);

	slice.data = tensor;
	p->tensors[p->n_slices] = tensor;
	if (slice.scale_rows > 0) {
		int64_t n = (slice.rows + slice.scale_rows - 1) / slice.scale_rows *
			((slice.cols + slice.scale_cols - 1) / slice.scale_cols);
		float *scales = mem_calloc((size_t)n, sizeof(float));

		for (int64_t i = 0; i < n; i++)
			scales[i] = 0.25f + (float)(i * 7 % 16) / 8.0f;
		slice.scales = scales;
		p->scales[p->n_slices] = scales;
	}
	p->slices[p->n_slices++] = slice;
	p->rows += slice.row_end - slice.row_begin;
	p->cols = slice.col_end - slice.col_begin;
}

static void add_tensor(struct problem *p, enum dtype dtype, int64_t rows, int64_t cols)
{
	add_slice(p, (struct kn_slice){.dtype = dtype, .rows = rows, .cols = cols, .row_end = rows, .col_end = cols});
}

static void add_inputs(struct problem *p, int n_rows, int64_t x_rows)
{
	p->n_rows = n_rows;
	p->x_rows = x_rows;
	p->x = mem_calloc((size_t)(x_rows * p->cols), sizeof(float));
	random_activations(p->x, x_rows * p->cols, 7);
}

static void add_norm(struct problem *p)
{
	p->norm_weight = mem_calloc((size_t)p->cols, sizeof(float));
	random_activations(p->norm_weight, p->cols, 8);
}

static void problem_release(struct problem *p)
{
	for (size_t i = 0; i < p->n_slices; i++) {
		mem_free(p->tensors[i]);
		mem_free(p->scales[i]);
	}
	mem_free(p->x);
	mem_free(p->norm_weight);
	mem_free(p->row_index);
}

static int64_t out_cols(const struct problem *p)
{
	return p->epilogue == KN_SWIGLU ? p->rows / 2 : p->rows;
}

/* How to run a problem. */
struct manner {
	const char *isa;
	int threads;
	bool planned, row_by_row;
};

/* Runs the problem; *out is [n_rows][out_cols], to be freed. What KN_ADD adds to is 0.25 everywhere, other memory that must
 * be overwritten starts as NaN. Returns false when this machine lacks the instruction set. */
static bool run(const struct problem *p, struct manner manner, float **out)
{
	struct kn_options options = {.threads = manner.threads, .rows_max = 64, .cols_max = p->cols, .isa = manner.isa};
	int64_t width = out_cols(p);
	struct kn_backend *backend;
	struct kn_matrix *matrix;
	struct kn_plan *plan = NULL;
	struct err err = {0};
	enum status status = kn_cpu_ops.create(&options, &backend, &err);

	if (status == STATUS_UNAVAILABLE)
		return false;
	assert_int_equal(status, STATUS_OK);
	assert_int_equal(kn_cpu_ops.matrix_create(backend, p->slices, p->n_slices, &matrix, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.matrix_bytes(matrix), kn_cpu_ops.matrix_bytes_needed(p->slices, p->n_slices));
	*out = mem_calloc((size_t)(p->n_rows * width), sizeof(float));
	for (int64_t i = 0; i < p->n_rows * width; i++)
		(*out)[i] = p->epilogue == KN_ADD ? 0.25f : NAN;
	if (manner.planned)
		assert_int_equal(kn_cpu_ops.plan_begin(backend, &err), STATUS_OK);
	for (int row = 0; row < p->n_rows; row += manner.row_by_row ? 1 : p->n_rows) {
		int32_t index = p->row_index ? p->row_index[row] : row;
		struct kn_matmul args = {
			.w = matrix,
			.x = manner.row_by_row ? p->x + index * p->cols : p->x,
			.x_stride = p->cols,
			.norm_weight = p->norm_weight,
			.norm_eps = EPSILON,
			.epilogue = p->epilogue,
			.y = *out + row * width,
			.y_stride = width,
			.row_index = manner.row_by_row ? NULL : p->row_index,
		};

		assert_int_equal(kn_cpu_ops.matmul(backend, &args, manner.row_by_row ? 1 : p->n_rows, &err), STATUS_OK);
	}
	if (manner.planned) {
		assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, &err), STATUS_OK);
		assert_true(kn_cpu_ops.plan_bytes(plan) <= kn_cpu_ops.plan_bytes_needed((size_t)p->n_rows));
		assert_int_equal(kn_cpu_ops.plan_run(backend, plan, &err), STATUS_OK);
		kn_cpu_ops.plan_destroy(backend, plan);
	}
	kn_cpu_ops.matrix_destroy(backend, matrix);
	kn_cpu_ops.destroy(backend);
	return true;
}

/* Row `row` of the matrix as stored, by the reference dequantisation. */
static void reference_weights(const struct problem *p, int64_t row, float *out)
{
	for (size_t i = 0; i < p->n_slices; i++) {
		const struct kn_slice *slice = &p->slices[i];
		int64_t rows = slice->row_end - slice->row_begin;
		uint64_t row_bytes;

		if (row >= rows) {
			row -= rows;
			continue;
		}
		float *whole = mem_calloc((size_t)slice->cols, sizeof(float));
		assert_true(dtype_bytes(slice->dtype, slice->cols, &row_bytes));
		dtype_dequantize(slice->dtype, (const uint8_t *)slice->data + (uint64_t)(slice->row_begin + row) * row_bytes, whole,
			slice->cols);
		for (int64_t col = 0; slice->scales && col < slice->cols; col++) {
			int64_t per_line = (slice->cols + slice->scale_cols - 1) / slice->scale_cols;

			whole[col] *=
				slice->scales[(slice->row_begin + row) / slice->scale_rows * per_line + col / slice->scale_cols];
		}
		memcpy(out, whole + slice->col_begin, (size_t)p->cols * sizeof(float));
		mem_free(whole);
		return;
	}
	fail();
}

static void reference_input(const struct problem *p, int row, double *out)
{
	const float *x = p->x + (p->row_index ? p->row_index[row] : row) * p->cols;
	double squares = 0;

	for (int64_t col = 0; col < p->cols; col++)
		squares += (double)x[col] * (double)x[col];
	for (int64_t col = 0; col < p->cols; col++)
		out[col] = p->norm_weight
			? (double)x[col] / sqrt(squares / (double)p->cols + (double)EPSILON) * (double)p->norm_weight[col]
			: (double)x[col];
}

/* Product of one weight row with one input row, and the error that the contract allows: half a step of the 16-bit
 * activations (of blocks of 32) for every weight, and fp32 rounding of every partial sum. */
static double reference_product(const struct problem *p, const float *w, const double *x, double *tolerance)
{
	double sum = 0, size = 0, steps = 0;

	for (int64_t col = 0; col < p->cols; col += 32) {
		double largest = 0, weights = 0;

		for (int64_t i = col; i < p->cols && i < col + 32; i++) {
			sum += (double)w[i] * x[i];
			size += fabs((double)w[i] * x[i]);
			weights += fabs((double)w[i]);
			largest = fmax(largest, fabs(x[i]));
		}
		steps += 0.5 * weights * largest / 32767.0;
	}
	/* Weights with a minimum are sums of two larger parts, hence the 16. */
	*tolerance = 1.02 * steps + (double)p->cols * 16 * 0x1p-24 * size / 8 + 1e-6;
	return sum;
}

static double silu(double x)
{
	return x / (1 + exp(-x));
}

static void check_against_double(const struct problem *p, const float *out)
{
	float *w = mem_calloc((size_t)p->cols, sizeof(float));
	double *x = mem_calloc((size_t)(p->n_rows * p->cols), sizeof(double));
	int64_t width = out_cols(p);

	for (int row = 0; row < p->n_rows; row++)
		reference_input(p, row, x + row * p->cols);
	for (int64_t i = 0; i < width; i++) {
		for (int row = 0; row < p->n_rows; row++) {
			double tolerance, up_tolerance, expected;

			reference_weights(p, i, w);
			expected = reference_product(p, w, x + row * p->cols, &tolerance);
			if (p->epilogue == KN_ADD)
				expected += 0.25;
			if (p->epilogue == KN_SWIGLU) {
				double gate = expected, up;

				reference_weights(p, width + i, w);
				up = reference_product(p, w, x + row * p->cols, &up_tolerance);
				expected = silu(gate) * up;
				tolerance = 1.1 * tolerance * (fabs(up) + up_tolerance) + up_tolerance * fabs(silu(gate)) +
					1e-6 * fabs(expected);
			}
			if (!(fabs((double)out[row * width + i] - expected) <= tolerance))
				fail_msg("row %d output %d: %.9g, expected %.9g within %.3g", row, (int)i,
					(double)out[row * width + i], expected, tolerance);
		}
	}
	mem_free(w);
	mem_free(x);
}

/* Every manner of running the problem must give the bits of the first. */
static void check_all_manners(const struct problem *p)
{
	size_t bytes = (size_t)(p->n_rows * out_cols(p)) * sizeof(float);
	float *expected = NULL, *out;

	for (size_t i = 0; i < COUNT(all_isas); i++) {
		static const struct manner manners[] = {
			{NULL, 1, false, false}, {NULL, 2, true, false}, {NULL, 5, false, false}, {NULL, 1, true, true}};

		for (size_t m = 0; m < COUNT(manners); m++) {
			struct manner manner = manners[m];

			manner.isa = all_isas[i];
			if (!run(p, manner, &out))
				continue;
			if (!expected) {
				check_against_double(p, out);
				expected = out;
				continue;
			}
			if (memcmp(out, expected, bytes) != 0)
				fail_msg("other bits with %s, %d threads%s%s", manner.isa, manner.threads,
					manner.planned ? ", planned" : "", manner.row_by_row ? ", row by row" : "");
			mem_free(out);
		}
	}
	mem_free(expected);
}

static int64_t cols_for(enum dtype dtype, int64_t cols)
{
	int64_t block = dtype_block_elements(dtype);

	return (cols + block - 1) / block * block;
}

static void every_type_and_row_count_is_within_tolerance_and_bitwise_stable(void **state)
{
	static const int row_counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 33, 50};

	for (size_t t = 0; t < COUNT(all_types); t++) {
		for (size_t i = 0; i < COUNT(row_counts); i++) {
			struct problem p = {0};

			add_tensor(&p, all_types[t], 37 + (int64_t)i, cols_for(all_types[t], 96));
			add_inputs(&p, row_counts[i], row_counts[i]);
			check_all_manners(&p);
			problem_release(&p);
		}
	}
}

static void several_blocks_of_the_k_types_each_use_their_own_scales(void **state)
{
	static const enum dtype types[] = {DTYPE_Q4_K, DTYPE_Q6_K};

	for (size_t t = 0; t < COUNT(types); t++) {
		struct problem p = {0};

		add_slice(&p,
			(struct kn_slice){.dtype = types[t],
				.rows = 40,
				.cols = 1024,
				.row_begin = 5,
				.row_end = 40,
				.col_begin = 256,
				.col_end = 1024});
		add_inputs(&p, 9, 9);
		check_all_manners(&p);
		problem_release(&p);
	}
}

static void scales_of_8_bit_floats_hold_in_every_shape_and_part(void **state)
{
	static const struct kn_slice shapes[] = {
		{.rows = 70, .cols = 300, .row_end = 70, .col_end = 300, .scale_rows = 70, .scale_cols = 300},
		{.rows = 70,
			.cols = 300,
			.row_begin = 3,
			.row_end = 61,
			.col_begin = 7,
			.col_end = 299,
			.scale_rows = 1,
			.scale_cols = 300},
		{.rows = 270,
			.cols = 300,
			.row_begin = 100,
			.row_end = 270,
			.col_begin = 90,
			.col_end = 290,
			.scale_rows = 128,
			.scale_cols = 128},
	};

	for (size_t i = 0; i < COUNT(shapes); i++) {
		struct problem p = {0};
		struct kn_slice slice = shapes[i];

		slice.dtype = DTYPE_F8_E4M3;
		add_slice(&p, slice);
		add_inputs(&p, 5, 5);
		check_all_manners(&p);
		problem_release(&p);
	}
}

static void odd_widths_of_plain_types_are_exact_to_the_last_column(void **state)
{
	static const int64_t widths[] = {1, 2, 7, 31, 33, 100};

	for (size_t t = 0; t < 3; t++) {
		for (size_t i = 0; i < COUNT(widths); i++) {
			struct problem p = {0};

			add_tensor(&p, all_types[t], 80, widths[i]);
			add_inputs(&p, 5, 5);
			add_norm(&p);
			check_all_manners(&p);
			problem_release(&p);
		}
	}
}

static void epilogues_norm_and_row_index_hold_for_every_type(void **state)
{
	static const enum kn_epilogue epilogues[] = {KN_STORE, KN_ADD, KN_SWIGLU};

	for (size_t t = 0; t < COUNT(all_types); t++) {
		for (size_t e = 0; e < COUNT(epilogues); e++) {
			struct problem p = {.epilogue = epilogues[e]};

			add_tensor(&p, all_types[t], 40, cols_for(all_types[t], 64));
			add_tensor(&p, all_types[t], 40, p.cols);
			add_inputs(&p, 6, 9);
			add_norm(&p);
			p.row_index = mem_calloc(6, sizeof *p.row_index);
			for (int i = 0; i < 6; i++)
				p.row_index[i] = (i * 5) % 9;
			check_all_manners(&p);
			problem_release(&p);
		}
	}
}

static void slices_of_rows_columns_and_mixed_types_are_one_matrix(void **state)
{
	struct problem p = {0};

	add_slice(&p,
		(struct kn_slice){.dtype = DTYPE_Q4_1,
			.rows = 50,
			.cols = 512,
			.row_begin = 3,
			.row_end = 40,
			.col_begin = 256,
			.col_end = 512});
	add_slice(&p,
		(struct kn_slice){.dtype = DTYPE_Q6_K,
			.rows = 20,
			.cols = 512,
			.row_begin = 0,
			.row_end = 20,
			.col_begin = 0,
			.col_end = 256});
	add_slice(&p,
		(struct kn_slice){.dtype = DTYPE_F16,
			.rows = 18,
			.cols = 300,
			.row_begin = 1,
			.row_end = 18,
			.col_begin = 40,
			.col_end = 296});
	add_slice(&p,
		(struct kn_slice){
			.dtype = DTYPE_Q8_0, .rows = 5, .cols = 256, .row_begin = 4, .row_end = 5, .col_begin = 0, .col_end = 256});
	add_inputs(&p, 11, 11);
	add_norm(&p);
	check_all_manners(&p);
	problem_release(&p);
}

static void swiglu_halves_of_one_tensor_need_whole_panels(void **state)
{
	struct problem p = {.epilogue = KN_SWIGLU};

	add_tensor(&p, DTYPE_Q4_1, 96, 64);
	add_inputs(&p, 3, 3);
	check_all_manners(&p);
	problem_release(&p);
}

static void real_shapes_are_within_tolerance(void **state)
{
	struct problem p = {.epilogue = KN_ADD};
	float *out;

	add_tensor(&p, DTYPE_Q4_1, 576, 1536);
	add_inputs(&p, 2, 2);
	assert_true(run(&p, (struct manner){"auto", 2, true, false}, &out));
	check_against_double(&p, out);
	mem_free(out);
	problem_release(&p);
}

static void a_value_that_is_not_finite_spoils_its_own_row_only(void **state)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};

	for (size_t i = 0; i < COUNT(all_isas); i++) {
		for (size_t b = 0; b < COUNT(bad); b++) {
			struct problem p = {0};
			float *clean, *spoilt;

			add_tensor(&p, DTYPE_Q4_0, 16, 64);
			add_inputs(&p, 3, 3);
			if (!run(&p, (struct manner){all_isas[i], 1, false, false}, &clean)) {
				problem_release(&p);
				continue;
			}
			p.x[64 + 5] = bad[b];
			assert_true(run(&p, (struct manner){all_isas[i], 1, false, false}, &spoilt));
			for (int lane = 0; lane < 16; lane++) {
				assert_memory_equal(&spoilt[lane], &clean[lane], sizeof(float));
				assert_false(isfinite(spoilt[16 + lane]));
				assert_memory_equal(&spoilt[32 + lane], &clean[32 + lane], sizeof(float));
			}
			mem_free(clean);
			mem_free(spoilt);
			problem_release(&p);
		}
	}
}

static void zeros_and_tiny_inputs_give_zeros(void **state)
{
	for (size_t i = 0; i < COUNT(all_isas); i++) {
		struct problem p = {0};
		float *out;

		add_tensor(&p, DTYPE_Q4_1, 16, 64);
		add_inputs(&p, 1, 1);
		for (int col = 0; col < 64; col++)
			p.x[col] = col < 32 ? 0.0f : 1e-40f;
		if (run(&p, (struct manner){all_isas[i], 1, false, false}, &out)) {
			for (int lane = 0; lane < 16; lane++)
				assert_true(out[lane] == 0.0f);
			mem_free(out);
		}
		problem_release(&p);
	}
}

static void embed_reads_rows_bit_exact_and_refuses_unknown_tokens(void **state)
{
	struct kn_options options = {.threads = 2, .rows_max = 8, .cols_max = 256};
	static const int32_t ids[] = {36, 0, 17, 17, 5};
	struct kn_backend *backend;
	struct err err = {0};

	assert_int_equal(kn_cpu_ops.create(&options, &backend, &err), STATUS_OK);
	for (size_t t = 0; t < COUNT(all_types); t++) {
		struct problem p = {0};
		struct kn_matrix *matrix;
		float out[5 * 520], expected[512];
		int32_t bad[] = {0, 37};

		add_tensor(&p, all_types[t], 37, 512);
		assert_int_equal(kn_cpu_ops.matrix_create(backend, p.slices, 1, &matrix, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.embed(backend, matrix, ids, 5, out, 520, &err), STATUS_OK);
		for (int row = 0; row < 5; row++) {
			reference_weights(&p, ids[row], expected);
			assert_memory_equal(out + row * 520, expected, sizeof expected);
		}
		assert_int_equal(kn_cpu_ops.embed(backend, matrix, bad, 2, out, 520, &err), STATUS_INTERNAL);
		assert_non_null(strstr(err.text, "token 37 of row 1"));
		err_clear(&err);
		kn_cpu_ops.matrix_destroy(backend, matrix);
		problem_release(&p);
	}
	kn_cpu_ops.destroy(backend);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_type_and_row_count_is_within_tolerance_and_bitwise_stable),
		cmocka_unit_test(several_blocks_of_the_k_types_each_use_their_own_scales),
		cmocka_unit_test(scales_of_8_bit_floats_hold_in_every_shape_and_part),
		cmocka_unit_test(odd_widths_of_plain_types_are_exact_to_the_last_column),
		cmocka_unit_test(epilogues_norm_and_row_index_hold_for_every_type),
		cmocka_unit_test(slices_of_rows_columns_and_mixed_types_are_one_matrix),
		cmocka_unit_test(swiglu_halves_of_one_tensor_need_whole_panels),
		cmocka_unit_test(real_shapes_are_within_tolerance),
		cmocka_unit_test(a_value_that_is_not_finite_spoils_its_own_row_only),
		cmocka_unit_test(zeros_and_tiny_inputs_give_zeros),
		cmocka_unit_test(embed_reads_rows_bit_exact_and_refuses_unknown_tokens),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
