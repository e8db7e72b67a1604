/* Biases and head norms of q, k and v against the definition in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/random.h"
#include "kernels/kn.h"

enum { ROWS = 7, HEADS = 5, KV_HEADS = 2, HEAD_DIM = 24, WIDTH = (HEADS + 2 * KV_HEADS) * HEAD_DIM };

static float values[ROWS * WIDTH], bias[WIDTH], q_norm[HEAD_DIM], k_norm[HEAD_DIM];

static int fill(void **state)
{
	for (int i = 0; i < ROWS * WIDTH; i++)
		values[i] = (float)random_normal(1, 1, (uint64_t)i);
	for (int i = 0; i < WIDTH; i++)
		bias[i] = (float)random_normal(1, 2, (uint64_t)i);
	for (int i = 0; i < HEAD_DIM; i++) {
		q_norm[i] = (float)random_normal(1, 3, (uint64_t)i);
		k_norm[i] = (float)random_normal(1, 4, (uint64_t)i);
	}
	return 0;
}

static void run(const struct kn_heads *heads, int threads, int rows, float *out)
{
	struct kn_options options = {.threads = threads, .rows_max = ROWS, .cols_max = 64};
	struct kn_heads args = *heads;
	struct kn_backend *backend;
	struct err err = {0};

	assert_int_equal(kn_cpu_ops.create(&options, &backend, &err), STATUS_OK);
	memcpy(out, values, sizeof(values));
	args.qkv = out;
	if (kn_cpu_ops.adjust_heads(backend, &args, rows, &err))
		fail_msg("%s", err.text);
	kn_cpu_ops.destroy(backend);
}

static double expected(const struct kn_heads *heads, int row, int head, int d)
{
	const float *x = values + row * WIDTH + head * HEAD_DIM, *b = heads->bias ? heads->bias + head * HEAD_DIM : NULL;
	const float *norm = head < HEADS ? heads->q_norm : head < HEADS + KV_HEADS ? heads->k_norm : NULL;
	double squares = 0, value = (double)x[d] + (b ? (double)b[d] : 0);

	for (int i = 0; i < HEAD_DIM; i++)
		squares += pow((double)x[i] + (b ? (double)b[i] : 0), 2);
	return norm ? value / sqrt(squares / HEAD_DIM + (double)heads->norm_eps) * (double)norm[d] : value;
}

static void heads_are_adjusted_as_defined_by_any_number_of_threads(void **state)
{
	const struct kn_heads all[] = {
		{.bias = bias},
		{.q_norm = q_norm, .k_norm = k_norm, .norm_eps = 1e-5f},
		{.bias = bias, .q_norm = q_norm, .k_norm = k_norm, .norm_eps = 1e-2f},
	};
	static float one[ROWS * WIDTH], three[ROWS * WIDTH];

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct kn_heads heads = all[i];

		heads.n_heads = HEADS;
		heads.n_kv_heads = KV_HEADS;
		heads.head_dim = HEAD_DIM;
		run(&heads, 1, ROWS, one);
		run(&heads, 3, ROWS, three);
		assert_memory_equal(one, three, sizeof(one));
		for (int at = 0; at < ROWS * WIDTH; at++)
			assert_true(
				fabs((double)one[at] - expected(&heads, at / WIDTH, at % WIDTH / HEAD_DIM, at % HEAD_DIM)) < 2e-6);
		run(&heads, 1, 2, three);
		assert_memory_equal(one, three, 2 * WIDTH * sizeof(float));
		assert_memory_equal(three + 2 * WIDTH, values + 2 * WIDTH, (ROWS - 2) * WIDTH * sizeof(float));
	}
}

static void misuse_of_heads_is_refused(void **state)
{
	struct kn_options options = {.threads = 1, .rows_max = ROWS, .cols_max = 64};
	const struct kn_heads good = {
		.qkv = values, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = HEAD_DIM, .q_norm = q_norm, .k_norm = k_norm};
	struct kn_backend *backend;
	struct kn_heads bad = good;

	assert_int_equal(kn_cpu_ops.create(&options, &backend, NULL), STATUS_OK);
	bad.k_norm = NULL;
	assert_int_equal(kn_cpu_ops.adjust_heads(backend, &bad, 1, NULL), STATUS_INTERNAL);
	bad.q_norm = NULL;
	assert_int_equal(kn_cpu_ops.adjust_heads(backend, &bad, 1, NULL), STATUS_INTERNAL);
	bad = good;
	bad.n_kv_heads = 0;
	assert_int_equal(kn_cpu_ops.adjust_heads(backend, &bad, 1, NULL), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.adjust_heads(backend, &good, ROWS + 1, NULL), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.adjust_heads(backend, &good, 0, NULL), STATUS_INTERNAL);
	kn_cpu_ops.destroy(backend);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(heads_are_adjusted_as_defined_by_any_number_of_threads),
		cmocka_unit_test(misuse_of_heads_is_refused),
	};
	return cmocka_run_group_tests(tests, fill, NULL);
}
