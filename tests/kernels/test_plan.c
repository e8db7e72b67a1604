/* Tests of running and recording operations: order, callbacks and their failures, misuse, more threads than cores. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/mem.h"
#include "kernels/cpu/pool.h"
#include "kernels/kn.h"
#include "tests/support/random_tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static struct kn_backend *open_backend(int threads)
{
	struct kn_options options = {.threads = threads, .rows_max = 4, .cols_max = 64};
	struct kn_backend *backend;

	assert_int_equal(kn_cpu_ops.create(&options, &backend, NULL), STATUS_OK);
	return backend;
}

/* What a callback sees and does. */
struct witness {
	const float *x;
	float seen;
	int calls;
	enum status answer;
};

static enum status look(void *ctx, struct err *err)
{
	struct witness *witness = ctx;

	witness->seen = witness->x[63];
	witness->calls++;
	return witness->answer == STATUS_OK ? STATUS_OK : err_set(err, witness->answer, "callback %d failed", witness->calls);
}

static void callbacks_run_in_order_between_operations(void **state)
{
	static const int thread_counts[] = {1, 2, 5};

	for (size_t i = 0; i < COUNT(thread_counts); i++) {
		struct kn_backend *backend = open_backend(thread_counts[i]);
		float x[64] = {0}, y[64];
		struct witness first = {.x = x}, second = {.x = x};
		struct kn_plan *plan;
		struct err err = {0};

		for (int k = 0; k < 64; k++)
			y[k] = 1;
		assert_int_equal(kn_cpu_ops.plan_begin(backend, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.add(backend, x, y, 64, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.call(backend, look, &first, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.add(backend, x, y, 64, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.call(backend, look, &second, &err), STATUS_OK);
		assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, &err), STATUS_OK);
		assert_int_equal(first.calls, 0); /* recorded, not run */
		for (int round = 0; round < 500; round++) {
			assert_int_equal(kn_cpu_ops.plan_run(backend, plan, &err), STATUS_OK);
			assert_true(first.seen == (float)(2 * round + 1));
			assert_true(second.seen == (float)(2 * round + 2));
		}
		kn_cpu_ops.plan_destroy(backend, plan);
		kn_cpu_ops.destroy(backend);
	}
}

static void a_failing_callback_stops_the_plan_and_names_itself(void **state)
{
	static const int thread_counts[] = {1, 2, 5};

	for (size_t i = 0; i < COUNT(thread_counts); i++) {
		struct kn_backend *backend = open_backend(thread_counts[i]);
		float x[64] = {0}, y[64] = {0};
		struct witness good = {.x = x}, bad = {.x = x, .answer = STATUS_RANK_DIED}, after = {.x = x};
		struct kn_plan *plan;

		y[63] = 1;
		assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_OK);
		for (int k = 0; k < 3; k++)
			kn_cpu_ops.call(backend, look, &good, NULL);
		kn_cpu_ops.call(backend, look, &bad, NULL);
		kn_cpu_ops.call(backend, look, &after, NULL);
		kn_cpu_ops.add(backend, x, y, 64, NULL);
		assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, NULL), STATUS_OK);
		for (int round = 1; round <= 200; round++) {
			struct err err = {0};

			assert_int_equal(kn_cpu_ops.plan_run(backend, plan, &err), STATUS_RANK_DIED);
			assert_non_null(strstr(err.text, "failed"));
			assert_int_equal(good.calls, 3 * round);
			assert_int_equal(bad.calls, round);
		}
		assert_int_equal(after.calls, 0);
		assert_true(x[63] == 0);
		kn_cpu_ops.plan_destroy(backend, plan);
		kn_cpu_ops.destroy(backend);
	}
}

static void a_plan_reads_its_buffers_when_it_runs(void **state)
{
	struct kn_backend *backend = open_backend(2);
	struct kn_slice slice = {.dtype = DTYPE_F32, .rows = 20, .cols = 3, .row_end = 20, .col_end = 3};
	void *weights = random_tensor(DTYPE_F32, 60, 5);
	struct kn_matrix *table;
	struct kn_plan *plan;
	int32_t ids[2] = {1, 2};
	float out[6];

	slice.data = weights;
	assert_int_equal(kn_cpu_ops.matrix_create(backend, &slice, 1, &table, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.embed(backend, table, ids, 2, out, 3, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, NULL), STATUS_OK);
	for (int32_t id = 0; id < 20; id++) {
		ids[0] = id;
		ids[1] = 19 - id;
		assert_int_equal(kn_cpu_ops.plan_run(backend, plan, NULL), STATUS_OK);
		assert_memory_equal(out, (float *)weights + 3 * id, 12);
		assert_memory_equal(out + 3, (float *)weights + 3 * (19 - id), 12);
	}
	ids[1] = 20;
	assert_int_equal(kn_cpu_ops.plan_run(backend, plan, NULL), STATUS_INTERNAL);
	ids[1] = -1;
	assert_int_equal(kn_cpu_ops.plan_run(backend, plan, NULL), STATUS_INTERNAL);
	kn_cpu_ops.plan_destroy(backend, plan);
	kn_cpu_ops.matrix_destroy(backend, table);
	kn_cpu_ops.destroy(backend);
	mem_free(weights);
}

static void sums_of_every_length_reach_the_last_element_and_no_further(void **state)
{
	static const int thread_counts[] = {1, 2, 5};

	for (size_t i = 0; i < COUNT(thread_counts); i++) {
		struct kn_backend *backend = open_backend(thread_counts[i]);

		for (int n = 0; n < 70; n++) {
			float x[72], y[72];

			for (int k = 0; k < 72; k++) {
				x[k] = (float)k;
				y[k] = 0.5f;
			}
			assert_int_equal(kn_cpu_ops.add(backend, x, y, n, NULL), STATUS_OK);
			for (int k = 0; k < 72; k++)
				assert_true(x[k] == (k < n ? (float)k + 0.5f : (float)k));
		}
		kn_cpu_ops.destroy(backend);
	}
}

static void plans_cannot_be_nested_or_run_while_recording(void **state)
{
	struct kn_backend *backend = open_backend(1);
	struct kn_plan *plan, *other;

	assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, NULL), STATUS_INTERNAL);
	assert_null(plan);
	assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.plan_end(backend, &plan, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.plan_run(backend, plan, NULL), STATUS_OK); /* of nothing */
	assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.plan_run(backend, plan, NULL), STATUS_INTERNAL);
	assert_int_equal(kn_cpu_ops.plan_end(backend, &other, NULL), STATUS_OK);
	kn_cpu_ops.plan_destroy(backend, plan);
	kn_cpu_ops.plan_destroy(backend, other);
	kn_cpu_ops.destroy(backend);
}

static void a_backend_dropped_while_recording_leaks_nothing(void **state)
{
	struct kn_backend *backend = open_backend(1);
	float x = 0, y = 1;

	assert_int_equal(kn_cpu_ops.plan_begin(backend, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.add(backend, &x, &y, 1, NULL), STATUS_OK);
	kn_cpu_ops.destroy(backend);
}

static void memory_is_zeroed_aligned_and_copied(void **state)
{
	struct kn_backend *backend = open_backend(1);
	char back[8] = {0};
	void *block;

	assert_int_equal(kn_cpu_ops.alloc(backend, 1000, &block, NULL), STATUS_OK);
	assert_int_equal((uintptr_t)block % 64, 0);
	for (int i = 0; i < 1000; i++)
		assert_int_equal(((char *)block)[i], 0);
	assert_int_equal(kn_cpu_ops.to_device(backend, block, "verdict", 8, NULL), STATUS_OK);
	assert_int_equal(kn_cpu_ops.to_host(backend, back, block, 8, NULL), STATUS_OK);
	assert_string_equal(back, "verdict");
	kn_cpu_ops.release(backend, block, 1000);
	assert_int_equal(kn_cpu_ops.alloc(backend, SIZE_MAX, &block, NULL), STATUS_NO_MEMORY);
	assert_non_null(strstr(kn_cpu_ops.describe(backend), "1 thread"));
	kn_cpu_ops.destroy(backend);
}

static void bad_options_are_refused(void **state)
{
	static const struct kn_options bad[] = {
		{.threads = 0, .rows_max = 1, .cols_max = 1},
		{.threads = POOL_THREADS_MAX + 1, .rows_max = 1, .cols_max = 1},
		{.threads = 1, .rows_max = 0, .cols_max = 1},
		{.threads = 1, .rows_max = 1, .cols_max = 0},
		{.threads = 1, .rows_max = 1, .cols_max = INT64_MAX},
		{.threads = 1, .rows_max = 1, .cols_max = 1, .isa = "neon"},
	};

	for (size_t i = 0; i < COUNT(bad); i++) {
		struct kn_backend *backend;
		struct err err = {0};

		assert_int_equal(kn_cpu_ops.create(&bad[i], &backend, &err), STATUS_INPUT);
		assert_null(backend);
		assert_true(err.text[0] != '\0');
	}
}

/* Every thread counts its visits between barriers; a thread that ran ahead would see an unfinished round. */
struct crowd {
	struct pool *pool;
	int visits[64];
	bool ahead[64];
};

static void visit(void *ctx, int thread)
{
	struct crowd *crowd = ctx;

	for (int round = 1; round <= 50; round++) {
		crowd->visits[thread] = round;
		pool_barrier(crowd->pool);
		for (int other = 0; other < pool_threads(crowd->pool); other++)
			crowd->ahead[thread] |= crowd->visits[other] != round;
		pool_barrier(crowd->pool);
	}
}

static void barriers_hold_with_many_more_threads_than_cores(void **state)
{
	struct crowd crowd = {0};

	assert_int_equal(pool_create(32, &crowd.pool, NULL), STATUS_OK);
	for (int i = 0; i < 5; i++)
		pool_run(crowd.pool, visit, &crowd);
	for (int thread = 0; thread < 32; thread++)
		assert_false(crowd.ahead[thread]);
	pool_destroy(crowd.pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(callbacks_run_in_order_between_operations),
		cmocka_unit_test(a_failing_callback_stops_the_plan_and_names_itself),
		cmocka_unit_test(a_plan_reads_its_buffers_when_it_runs),
		cmocka_unit_test(sums_of_every_length_reach_the_last_element_and_no_further),
		cmocka_unit_test(plans_cannot_be_nested_or_run_while_recording),
		cmocka_unit_test(a_backend_dropped_while_recording_leaks_nothing),
		cmocka_unit_test(memory_is_zeroed_aligned_and_copied),
		cmocka_unit_test(bad_options_are_refused),
		cmocka_unit_test(barriers_hold_with_many_more_threads_than_cores),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
