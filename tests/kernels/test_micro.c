/* Tests of the inner loops one by one: equal bits between instruction sets, also for odd lengths and special values, and
 * the error of the exponential. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/micro.h"
#include "tests/support/random_tensor.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define N 256

/* The vector tables that this machine can run. */
static size_t vector_tables(const struct micro *out[2])
{
	static const char *const names[] = {"avx2", "avx512"};
	size_t n = 0;

	for (size_t i = 0; i < COUNT(names); i++)
		n += micro_choose(names[i], &out[n], NULL) == STATUS_OK;
	return n;
}

static void sums_and_norms_have_equal_bits_for_every_length(void **state)
{
	const struct micro *tables[2];
	size_t n_tables = vector_tables(tables);
	float x[N], weight[N], expected[N], out[N];

	random_activations(x, N, 1);
	random_activations(weight, N, 2);
	for (size_t i = 0; i < n_tables; i++) {
		for (int n = 1; n <= N; n++) {
			float sum = micro_scalar.sum_squares(x, n), other = tables[i]->sum_squares(x, n);

			assert_memory_equal(&sum, &other, sizeof sum);
			memset(out, 0xff, sizeof out);
			memset(expected, 0xff, sizeof expected);
			micro_scalar.normalize(x, 0.37f, weight, n, expected);
			tables[i]->normalize(x, 0.37f, weight, n, out);
			assert_memory_equal(out, expected, sizeof out); /* nothing is written past n */
		}
	}
}

static void quantization_has_equal_bits_and_half_a_step_of_error(void **state)
{
	const struct micro *tables[2];
	size_t n_tables = vector_tables(tables);
	float x[N];
	int16_t expected[N], quants[N];
	struct activation_block expected_blocks[N / BLOCK_COLS], blocks[N / BLOCK_COLS];

	for (uint64_t seed = 0; seed < 200; seed++) {
		random_activations(x, N, seed);
		x[3] = seed % 2 ? 0.0f : -1e-20f;
		memset(x + 64, 0, 32 * sizeof *x);
		x[100] = (float)seed * 1e-38f;
		x[128] = seed % 3 ? 3e38f : 1.0f;
		micro_scalar.quantize(x, N, expected, expected_blocks);
		for (int i = 0; i < N; i++) {
			double scale = (double)expected_blocks[i / BLOCK_COLS].scale;

			assert_true(fabs((double)x[i] - scale * expected[i]) <= 0.51 * scale + 1e-30);
		}
		for (size_t i = 0; i < n_tables; i++) {
			tables[i]->quantize(x, N, quants, blocks);
			assert_memory_equal(quants, expected, sizeof quants);
			assert_memory_equal(blocks, expected_blocks, sizeof blocks);
		}
	}
}

static void conversion_to_half_has_equal_bits(void **state)
{
	const struct micro *tables[2];
	size_t n_tables = vector_tables(tables);
	float x[24] = {0.0f, -0.0f, 1.0f, 65504.0f, 65520.0f, -1e30f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f, 1e-30f, INFINITY, 3.14159f};
	uint16_t expected[24], out[24];

	random_activations(x + 12, 12, 3);
	micro_scalar.to_f16(x, 24, expected);
	for (size_t i = 0; i < n_tables; i++) {
		tables[i]->to_f16(x, 24, out);
		assert_memory_equal(out, expected, sizeof out);
		memset(out, 0, sizeof out);
		tables[i]->to_f16(x, 8, out);
		assert_memory_equal(out, expected, 8 * sizeof *out);
		assert_int_equal(out[8], 0);
	}
}

static void swiglu_has_equal_bits_and_bounded_error(void **state)
{
	const struct micro *tables[2];
	size_t n_tables = vector_tables(tables);
	float gate[N], up[N], expected[N], out[N];

	for (uint64_t seed = 0; seed < 50; seed++) {
		random_activations(gate, N, seed);
		random_activations(up, N, seed + 1000);
		gate[0] = 200.0f;
		gate[1] = -200.0f;
		gate[2] = 0.0f;
		gate[3] = -87.5f;
		gate[4] = INFINITY;
		micro_scalar.swiglu(gate, up, N, expected);
		for (int i = 5; i < N; i++) {
			double exact = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];

			assert_true(fabs((double)expected[i] - exact) <= 4e-7 * fabs(exact) + 1e-35);
		}
		assert_true(expected[0] == 200.0f * up[0]);
		assert_true(fabsf(expected[1]) < 1e-30f);
		assert_true(isinf(expected[4]));
		for (size_t i = 0; i < n_tables; i++) {
			tables[i]->swiglu(gate, up, N, out);
			assert_memory_equal(out, expected, sizeof out);
		}
	}
}

/* Weights of a softmax whose maximum is 0 are plain exponentials. */
static void exponential_is_within_two_units_in_the_last_place(void **state)
{
	struct softmax_state softmax;
	float scores[ATTENTION_CHUNK], sums[16];
	double worst = 0;

	for (double begin = 0; begin > -86; begin -= 86.0 / 400) {
		for (int i = 0; i < ATTENTION_CHUNK; i++)
			scores[i] = (float)(begin - 86.0 / 400 * i / ATTENTION_CHUNK);
		softmax = (struct softmax_state){.max = 0};
		micro_scalar.softmax(scores, ATTENTION_CHUNK, &softmax, sums, 16);
		for (int i = 0; i < ATTENTION_CHUNK; i++) {
			float x = (float)(begin - 86.0 / 400 * i / ATTENTION_CHUNK);
			double exact = exp((double)x), unit = ldexp(1, ilogb(exact) - 23);

			worst = fmax(worst, fabs((double)scores[i] - exact) / unit);
		}
	}
	print_message("largest error %.3f units in the last place\n", worst);
	assert_true(worst < 2);
}

static void softmax_ignores_and_clears_lanes_past_the_end(void **state)
{
	const struct micro *tables[3] = {&micro_scalar};
	size_t n_tables = 1 + vector_tables(tables + 1);

	for (int n = 1; n <= 40; n++) {
		struct softmax_state expected_state = {.max = -INFINITY};
		float expected[48];

		for (size_t i = 0; i < n_tables; i++) {
			struct softmax_state softmax = {.max = -INFINITY};
			float scores[48], sums[16] = {0};

			random_activations(scores, 48, (uint64_t)n);
			for (int k = n; k < 48; k++)
				scores[k] = k % 2 ? NAN : 1000.0f;
			tables[i]->softmax(scores, n, &softmax, sums, 16);
			for (int k = n; k < (n + 15) / 16 * 16; k++)
				assert_true(scores[k] == 0.0f);
			if (i == 0) {
				memcpy(expected, scores, sizeof expected);
				expected_state = softmax;
			}
			assert_memory_equal(scores, expected, (size_t)n * sizeof *scores);
			assert_memory_equal(&softmax, &expected_state, sizeof softmax);
		}
	}
}

static void unknown_instruction_sets_are_refused(void **state)
{
	const struct micro *micro = NULL;
	struct err err = {0};

	assert_int_equal(micro_choose("sse9", &micro, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "sse9"));
	assert_int_equal(micro_choose(NULL, &micro, NULL), STATUS_OK);
	assert_non_null(micro);
	assert_int_equal(micro_choose("scalar", &micro, NULL), STATUS_OK);
	assert_ptr_equal(micro, &micro_scalar);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_and_norms_have_equal_bits_for_every_length),
		cmocka_unit_test(quantization_has_equal_bits_and_half_a_step_of_error),
		cmocka_unit_test(conversion_to_half_has_equal_bits),
		cmocka_unit_test(swiglu_has_equal_bits_and_bounded_error),
		cmocka_unit_test(exponential_is_within_two_units_in_the_last_place),
		cmocka_unit_test(softmax_ignores_and_clears_lanes_past_the_end),
		cmocka_unit_test(unknown_instruction_sets_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
