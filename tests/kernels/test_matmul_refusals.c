/* Tests of what the packed matrix product refuses: slices that are no part of a matrix, and calls that break its contract. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/kn.h"
#include "tests/support/random_tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void bad_slices_are_refused_with_their_number(void **state)
{
	static const struct kn_slice good = {.dtype = DTYPE_Q4_1, .rows = 32, .cols = 64, .row_end = 32, .col_end = 64};
	struct kn_options options = {.threads = 1, .rows_max = 4, .cols_max = 64};
	static const float scale = 1;
	struct kn_slice bad[8];
	struct kn_backend *backend;
	struct kn_matrix *matrix;
	struct err err = {0};
	void *data = random_tensor(DTYPE_Q4_1, 32 * 64, 1);

	for (size_t i = 0; i < COUNT(bad); i++) {
		bad[i] = good;
		bad[i].data = data;
	}
	bad[0].dtype = (enum dtype)99;
	bad[1].row_end = 33;
	bad[2].row_begin = -1;
	bad[3].row_begin = 32;
	bad[4].col_begin = 16;
	bad[5].col_end = 32; /* another width than slice 0 */
	bad[6].rows = INT64_MAX;
	bad[6].row_end = INT64_MAX;
	bad[7].dtype = DTYPE_F8_E4M3;
	bad[7].scales = &scale; /* of no rows and no columns */
	assert_int_equal(kn_cpu_ops.create(&options, &backend, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.matrix_create(backend, bad, 0, &matrix, &err), STATUS_INPUT);
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct kn_slice pair[2] = {good, bad[i]};

		pair[0].data = data;
		err_clear(&err);
		assert_int_equal(kn_cpu_ops.matrix_create(backend, pair, 2, &matrix, &err), STATUS_INPUT);
		assert_null(matrix);
		assert_non_null(strstr(err.text, "slice 1"));
		assert_int_equal(kn_cpu_ops.matrix_bytes_needed(pair, 2), 0);
	}
	kn_cpu_ops.destroy(backend);
	mem_free(data);
}

static void misuse_of_matmul_is_refused(void **state)
{
	struct kn_options options = {.threads = 1, .rows_max = 4, .cols_max = 64};
	void *data = random_tensor(DTYPE_F32, 34 * 64, 1);
	const struct kn_slice slice = {.dtype = DTYPE_F32, .data = data, .rows = 34, .cols = 64, .row_end = 34, .col_end = 64};
	const struct kn_slice wide_slice = {.dtype = DTYPE_F32, .data = data, .rows = 4, .cols = 65, .row_end = 4, .col_end = 65};
	struct kn_matrix *matrix, *wide_matrix;
	struct kn_backend *backend;
	struct err err = {0};
	float x[4 * 64], y[4 * 34];

	random_activations(x, 4 * 64, 7);
	assert_int_equal(kn_cpu_ops.create(&options, &backend, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.matrix_create(backend, &slice, 1, &matrix, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.matrix_create(backend, &wide_slice, 1, &wide_matrix, &err), STATUS_OK);

	struct kn_matmul good = {.w = matrix, .x = x, .x_stride = 64, .y = y, .y_stride = 34}, bad = good;
	assert_int_equal(kn_cpu_ops.matmul(backend, &good, 4, &err), STATUS_OK);
	assert_int_equal(kn_cpu_ops.matmul(backend, &good, 5, &err), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.matmul(backend, &good, 0, &err), STATUS_INTERNAL);
	bad.w = wide_matrix;
	assert_int_equal(kn_cpu_ops.matmul(backend, &bad, 1, &err), STATUS_INTERNAL);
	bad = good;
	bad.epilogue = KN_SWIGLU; /* halves of 17 rows do not fall on panels */
	assert_int_equal(kn_cpu_ops.matmul(backend, &bad, 1, &err), STATUS_INTERNAL);
	bad.epilogue = (enum kn_epilogue)9;
	assert_int_equal(kn_cpu_ops.matmul(backend, &bad, 1, &err), STATUS_INTERNAL);
	bad = good;
	bad.y = NULL;
	assert_int_equal(kn_cpu_ops.matmul(backend, &bad, 1, &err), STATUS_INTERNAL);

	kn_cpu_ops.matrix_destroy(backend, matrix);
	kn_cpu_ops.matrix_destroy(backend, wide_matrix);
	kn_cpu_ops.destroy(backend);
	mem_free(data);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_slices_are_refused_with_their_number),
		cmocka_unit_test(misuse_of_matmul_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
