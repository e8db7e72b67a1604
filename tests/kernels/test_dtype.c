/* Tests of kernels/dtype: dequantisation against the gguf package bit for bit, conversions, sizes, hostile ids. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "kernels/dtype.h"

static uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	return bits;
}

static uint32_t read_u32(const uint8_t **at)
{
	uint32_t value;

	memcpy(&value, *at, sizeof value);
	*at += sizeof value;
	return value;
}

static void dequantization_equals_the_gguf_package_bit_for_bit(void **state)
{
	struct file_map map;
	struct err err = {0};
	int records = 0;

	assert_int_equal(file_map_open("tests/golden/dtype/dtype.bin", &map, &err), STATUS_OK);
	for (const uint8_t *at = map.data; at < map.data + map.size; records++) {
		enum dtype dtype = (enum dtype)read_u32(&at);
		int64_t n = read_u32(&at);
		uint64_t stored_bytes = read_u32(&at), bytes;
		float *values = mem_calloc((size_t)n, sizeof *values);

		assert_true(dtype_bytes(dtype, n, &bytes));
		assert_int_equal(bytes, stored_bytes);
		dtype_dequantize(dtype, at, values, n);
		at += stored_bytes;
		for (int64_t i = 0; i < n; i++) {
			float expected;

			memcpy(&expected, at + 4 * i, sizeof expected);
			if (isnan(expected) ? !isnan(values[i]) : bits_of(values[i]) != bits_of(expected))
				fail_msg("%s element %d: %.9g, expected %.9g", dtype_name(dtype), (int)i, (double)values[i],
					(double)expected);
		}
		at += 4 * n;
		mem_free(values);
	}
	assert_int_equal(records, 24); /* zeros, random bytes and sane values for 8 types */
	file_map_close(&map);
}

static void every_half_survives_the_way_through_fp32(void **state)
{
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		float value = dtype_f16_to_f32((uint16_t)bits);

		if (isnan(value))
			assert_true(isnan(dtype_f16_to_f32(dtype_f32_to_f16(value))));
		else
			assert_int_equal(dtype_f32_to_f16(value), bits);
	}
}

static void rounding_to_half_is_to_nearest_even(void **state)
{
	static const struct {
		float value;
		uint16_t bits;
	} cases[] = {
		{1.0f, 0x3c00},
		{1.00048828125f, 0x3c00},
		{1.00146484375f, 0x3c02},
		{65504.0f, 0x7bff},
		{65519.996f, 0x7bff},
		{65520.0f, 0x7c00},
		{1e30f, 0x7c00},
		{-INFINITY, 0xfc00},
		{0x1p-24f, 0x0001},
		{0x1p-25f, 0x0000},
		{0x1.8p-24f, 0x0002},
		{-0x1.000002p-25f, 0x8001},
		{0x1.ff8p-15f, 0x03ff},
		{0x1.ffcp-15f, 0x0400},
		{-0.0f, 0x8000},
		{0x1p-149f, 0x0000},
	};

	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		assert_int_equal(dtype_f32_to_f16(cases[i].value), cases[i].bits);
}

static void sizes_need_whole_blocks_and_do_not_overflow(void **state)
{
	uint64_t bytes = 0;

	assert_true(dtype_bytes(DTYPE_Q4_1, 64, &bytes) && bytes == 40);
	assert_true(dtype_bytes(DTYPE_F32, 0, &bytes) && bytes == 0);
	assert_true(dtype_bytes(DTYPE_Q6_K, 512, &bytes) && bytes == 420);
	assert_false(dtype_bytes(DTYPE_Q4_1, 33, &bytes));
	assert_false(dtype_bytes(DTYPE_Q4_K, 128, &bytes));
	assert_false(dtype_bytes(DTYPE_F32, -4, &bytes));
	assert_true(dtype_bytes(DTYPE_F16, INT64_MAX, &bytes) && bytes == 2 * (uint64_t)INT64_MAX);
	assert_false(dtype_bytes(DTYPE_F32, INT64_MAX, &bytes) && bytes != 4 * (uint64_t)INT64_MAX);
	assert_false(dtype_bytes((enum dtype)7, 32, &bytes));
}

static void unknown_and_retired_ids_are_told_apart(void **state)
{
	static const uint32_t retired[] = {4, 5, 31, 32, 33, 36, 37, 38}, current[] = {0, 1, 2, 3, 8, 12, 14, 30, 34, 39, 255};
	const char *why = NULL;

	for (size_t i = 0; i < sizeof retired / sizeof retired[0]; i++) {
		why = NULL;
		assert_true(dtype_is_retired(retired[i], &why));
		assert_non_null(why);
		assert_null(dtype_name((enum dtype)retired[i]));
		assert_int_equal(dtype_block_bytes((enum dtype)retired[i]), 0);
	}
	for (size_t i = 0; i < sizeof current / sizeof current[0]; i++)
		assert_false(dtype_is_retired(current[i], &why));
	assert_null(dtype_name((enum dtype)255));
	assert_string_equal(dtype_name(DTYPE_BF16), "BF16");
	assert_int_equal(dtype_block_elements((enum dtype)255), 0);
}

static void eight_bit_floats_have_the_values_of_their_standard(void **state)
{
	/* OCP 8-bit floating point specification, table 1: one, largest, smallest normal, largest and smallest subnormal. */
	static const struct {
		uint8_t bits;
		float value;
	} known[] = {{0x38, 1}, {0x7e, 448}, {0x08, 0x1p-6f}, {0x07, 0.875f * 0x1p-6f}, {0x01, 0x1p-9f}, {0xb8, -1}, {0x00, 0}};

	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		assert_float_equal(dtype_f8_e4m3_to_f32(known[i].bits), known[i].value, 0);
	for (int bits = 0; bits < 0x7e; bits++) {
		assert_true(dtype_f8_e4m3_to_f32((uint8_t)bits) < dtype_f8_e4m3_to_f32((uint8_t)(bits + 1)));
		assert_float_equal(dtype_f8_e4m3_to_f32((uint8_t)(bits | 0x80)), -dtype_f8_e4m3_to_f32((uint8_t)bits), 0);
	}
	assert_true(isnan(dtype_f8_e4m3_to_f32(0x7f)) && isnan(dtype_f8_e4m3_to_f32(0xff)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(dequantization_equals_the_gguf_package_bit_for_bit),
		cmocka_unit_test(every_half_survives_the_way_through_fp32),
		cmocka_unit_test(eight_bit_floats_have_the_values_of_their_standard),
		cmocka_unit_test(rounding_to_half_is_to_nearest_even),
		cmocka_unit_test(sizes_need_whole_blocks_and_do_not_overflow),
		cmocka_unit_test(unknown_and_retired_ids_are_told_apart),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
