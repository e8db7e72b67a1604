/* Tests of engine/bench on tiny models: every part is there, plausible, and refusals name their reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

#include "engine/bench.h"
#include "tests/support/tiny_gguf.h"

static void every_part_is_measured_for_prefill_and_decode(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct bench_report report;
	struct err err = {0};

	tiny_model_write_temp(&model, path);
	struct bench_options options = {.model_path = path, .threads = 1, .context = 40, .sample_ns = 1000000};
	enum status status = bench_measure(&options, &report, &err);
	unlink(path);
	assert_int_equal(status, STATUS_OK);
	assert_int_equal(report.n_rows, 2 * BENCH_PARTS);
	assert_true(report.limits.read_bytes_per_s > 1e8);
	assert_true(report.limits.fma_flops_per_s > 1e8);
	assert_true(report.limits.dot16_flops_per_s > 1e8);
	assert_non_null(strstr(report.device, "1 thread"));
	for (size_t i = 0; i < report.n_rows; i++) {
		const struct bench_row *row = &report.rows[i];

		assert_int_equal(row->part, i % BENCH_PARTS);
		assert_int_equal(row->rows, i < BENCH_PARTS ? 256 : 1); /* the model's context is shorter than the usual prompt */
		assert_true(row->seconds > 0 && row->seconds < 10);
		assert_true(row->share > 0);
		assert_true(row->cost.bytes > 0);
	}
}

static void the_cost_of_a_step_is_the_sum_of_its_parts(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct bench_report report;
	struct bench_options options = {.model_path = path, .threads = 2, .isa = "scalar", .context = 9, .sample_ns = 1};
	double bytes = 0, flops = 0;

	tiny_model_write_temp(&model, path);
	enum status status = bench_measure(&options, &report, NULL);
	unlink(path);
	assert_int_equal(status, STATUS_OK);
	for (int part = BENCH_EMBED; part < BENCH_STEP; part++) {
		bytes += report.rows[BENCH_PARTS + part].cost.bytes;
		flops += report.rows[BENCH_PARTS + part].cost.fma_flops;
	}
	assert_true(report.rows[BENCH_PARTS + BENCH_STEP].cost.bytes == bytes);
	assert_true(report.rows[BENCH_PARTS + BENCH_STEP].cost.fma_flops == flops);
	/* One row: two operations per weight of both layers and the head, and four for each of 10 tokens and 64 query elements. */
	assert_true(flops == 2.0 * (2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128) + 64 * 288) + 2 * 4.0 * 10 * 64);
}

static void a_context_past_the_models_and_bad_files_are_refused(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct bench_report report;
	struct bench_options options = {.model_path = path, .threads = 1, .context = 256, .sample_ns = 1};
	struct err err = {0};

	tiny_model_write_temp(&model, path);
	enum status status = bench_measure(&options, &report, &err);
	unlink(path);
	assert_int_equal(status, STATUS_INPUT);
	assert_non_null(strstr(err.text, "context is 256"));
	err_clear(&err);
	assert_int_not_equal(bench_measure(&options, &report, &err), STATUS_OK); /* the file is gone */
	err_clear(&err);
	tiny_model_write_temp(&model, path);
	options.context = 0;
	options.isa = "none";
	status = bench_measure(&options, &report, &err);
	unlink(path);
	assert_int_equal(status, STATUS_INPUT);
	assert_non_null(strstr(err.text, "instruction set 'none'"));
}

static void a_head_size_without_a_kernel_is_refused(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct bench_report report;
	struct bench_options options = {.model_path = path, .threads = 1, .sample_ns = 1};
	struct err err = {0};

	model.head_dim = 20;
	tiny_model_write_temp(&model, path);
	enum status status = bench_measure(&options, &report, &err);
	unlink(path);
	assert_int_equal(status, STATUS_INPUT);
	assert_non_null(strstr(err.text, "key 'llama.attention.key_length' is 20"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_part_is_measured_for_prefill_and_decode),
		cmocka_unit_test(the_cost_of_a_step_is_the_sum_of_its_parts),
		cmocka_unit_test(a_context_past_the_models_and_bad_files_are_refused),
		cmocka_unit_test(a_head_size_without_a_kernel_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
