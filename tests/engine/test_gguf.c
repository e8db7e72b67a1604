/* Tests of engine/gguf: sound files read back, and every way we know of to break one is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/gguf.h"
#include "tests/support/gguf_build.h"

#define FIELD "tests/golden/field/"

/* Opens what build holds; file keeps the bytes alive. Releases build. */
static enum status open_build(struct gguf_build *build, struct text *file, struct gguf *gguf, struct err *err)
{
	gguf_build_finish(build, file);
	gguf_build_release(build);
	return gguf_open_bytes((const uint8_t *)file->data, file->len, "built.gguf", gguf, err);
}

static void refuses(const char *path, const char *expected)
{
	struct gguf gguf;
	struct err err = {0};

	assert_int_equal(gguf_open(path, &gguf, &err), STATUS_INPUT);
	if (!strstr(err.text, expected) || !strstr(err.text, path) || !strstr(err.text, "byte "))
		fail_msg("'%s' should name the file, a byte and '%s'", err.text, expected);
}

static void refuses_build(struct gguf_build *build, const char *expected)
{
	struct gguf gguf;
	struct err err = {0};
	struct text file = {0};

	assert_int_equal(open_build(build, &file, &gguf, &err), STATUS_INPUT);
	if (!strstr(err.text, expected))
		fail_msg("'%s' should name '%s'", err.text, expected);
	text_release(&file);
}

static void control_file_gives_its_tensors(void **state)
{
	struct gguf gguf;
	struct err err = {0};
	const struct gguf_tensor *tensor;
	float b[4];

	assert_int_equal(gguf_open(FIELD "m00_ok.gguf", &gguf, &err), STATUS_OK);
	assert_int_equal(gguf.n_tensors, 2);
	tensor = gguf_find_tensor(&gguf, "b.weight");
	assert_non_null(tensor);
	assert_int_equal(tensor->dtype, DTYPE_F32);
	assert_int_equal(tensor->bytes, 16);
	memcpy(b, tensor->data, sizeof(b));
	assert_true(b[0] == 5 && b[1] == 6 && b[2] == 7 && b[3] == 8);
	assert_null(gguf_find_tensor(&gguf, "c.weight"));
	gguf_close(&gguf);
}

static void field_files_are_refused_by_name(void **state)
{
	static const struct {
		const char *path, *names;
	} cases[] = {
		{FIELD "m03a_alignment_13.gguf", "general.alignment is 13"},
		{FIELD "m03b_alignment_0.gguf", "general.alignment is 0"},
		{FIELD "m03c_alignment_i32.gguf", "general.alignment has type i32"},
		{FIELD "m04a_duplicate_key.gguf", "key 'general.name': byte"},
		{FIELD "m04b_duplicate_tensor.gguf", "tensor 'a.weight': byte"},
		{FIELD "m04c_unknown_value_type.gguf", "key 'x.y': byte"},
		{FIELD "m07_pad_wraps.gguf", "tensor 'a.weight': 18446744073709551612 bytes"},
		{FIELD "m08a_removed_4.gguf", "tensor 'a.weight': byte 97: type 4 is retired"},
		{FIELD "m08b_255.gguf", "tensor 'a.weight': byte 97: unknown type 255"},
		{FIELD "m08c_minus_1.gguf", "tensor 'a.weight': byte 97: unknown type 4294967295"},
		{FIELD "m09a_truncated.gguf", "tensor 'b.weight': 16 bytes at offset 32 needed, the file of 200 bytes"},
		{FIELD "m09b_offset_wraps.gguf", "tensor 'b.weight'"},
		{FIELD "m09c_offset_misaligned.gguf", "tensor 'b.weight': offset 20 is not a multiple of the alignment 32"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		refuses(cases[i].path, cases[i].names);
}

static void files_for_other_models_are_sound_containers(void **state)
{
	static const char *const paths[] = {FIELD "m10_moe_names.gguf", FIELD "m11_vocab_without_pre.gguf",
		FIELD "m22a_vocab_space_prefix.gguf", FIELD "m22b_vocab_no_prefix.gguf"};

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		struct gguf gguf;
		struct err err = {0};

		if (gguf_open(paths[i], &gguf, &err))
			fail_msg("%s", err.text);
		gguf_close(&gguf);
	}
}

static void every_scalar_type_reads_back(void **state)
{
	static const int64_t dims[] = {2, 3};
	static const float data[6] = {1, 2, 3, 4, 5, 6};
	static const char *const words[] = {"one", "", "three"};
	struct gguf_build build = {0};
	struct gguf gguf;
	struct err err = {0};
	struct text file = {0};
	struct gguf_string string;
	const struct gguf_value *array;
	const uint8_t *cursor;
	uint64_t u64 = 7;
	double number = 0;
	bool flag = false;

	gguf_build_u32(&build, "a.u32", 4000000000u);
	gguf_build_u64(&build, "a.u64", UINT64_MAX);
	gguf_build_i32(&build, "a.i32", -5);
	gguf_build_f32(&build, "a.f32", 0.5f);
	gguf_build_bool(&build, "a.bool", 1);
	gguf_build_raw(&build, "a.i8", GGUF_I8, "\xff", 1);
	gguf_build_raw(&build, "a.u16", GGUF_U16, "\x01\x80", 2);
	gguf_build_raw(&build, "a.f64", GGUF_F64, "\0\0\0\0\0\0\xf8\x3f", 8);
	gguf_build_string(&build, "a.string", "text");
	gguf_build_strings(&build, "a.words", words, 3);
	gguf_build_tensor(&build, "m", DTYPE_F32, 2, dims, data, sizeof(data));
	build.alignment = 64;
	assert_int_equal(open_build(&build, &file, &gguf, &err), STATUS_OK);

	assert_int_equal(gguf_get_u64(&gguf, "a.u32", true, &u64, &err), STATUS_OK);
	assert_int_equal(u64, 4000000000u);
	assert_int_equal(gguf_get_u64(&gguf, "a.u64", true, &u64, &err), STATUS_OK);
	assert_true(u64 == UINT64_MAX);
	assert_int_equal(gguf_get_u64(&gguf, "a.u16", true, &u64, &err), STATUS_OK);
	assert_int_equal(u64, 0x8001);
	assert_int_equal(gguf_get_double(&gguf, "a.i32", true, &number, &err), STATUS_OK);
	assert_true(number == -5);
	assert_int_equal(gguf_get_double(&gguf, "a.i8", true, &number, &err), STATUS_OK);
	assert_true(number == -1);
	assert_int_equal(gguf_get_double(&gguf, "a.f64", true, &number, &err), STATUS_OK);
	assert_true(number == 1.5);
	assert_int_equal(gguf_get_bool(&gguf, "a.bool", true, &flag, &err), STATUS_OK);
	assert_true(flag);
	assert_int_equal(gguf_get_string(&gguf, "a.string", true, &string, &err), STATUS_OK);
	assert_true(gguf_string_equal(string, "text"));
	assert_int_equal(gguf_get_array(&gguf, "a.words", GGUF_STRING, true, &array, &err), STATUS_OK);
	cursor = array->bytes;
	for (size_t i = 0; i < 3; i++)
		assert_true(gguf_string_equal(gguf_next_string(&cursor), words[i]));
	assert_int_equal(gguf.alignment, 64);
	assert_int_equal((gguf.tensors[0].data - gguf.map.data) % 64, 0);
	assert_int_equal(gguf.tensors[0].dims[0], 2);
	assert_int_equal(gguf.tensors[0].dims[1], 3);
	assert_int_equal(gguf.tensors[0].dims[2], 1);
	gguf_close(&gguf);
	text_release(&file);
}

static void absent_and_mistyped_keys_are_told_apart(void **state)
{
	struct gguf_build build = {0};
	struct gguf gguf;
	struct err err = {0};
	struct text file = {0};
	const struct gguf_value *array = NULL;
	uint64_t u64 = 7;
	bool flag = true;

	gguf_build_i32(&build, "negative", -1);
	gguf_build_string(&build, "string", "1");
	assert_int_equal(open_build(&build, &file, &gguf, &err), STATUS_OK);
	assert_int_equal(gguf_get_u64(&gguf, "absent", false, &u64, &err), STATUS_OK);
	assert_int_equal(u64, 7);
	assert_int_equal(gguf_get_array(&gguf, "absent", GGUF_I32, false, &array, &err), STATUS_OK);
	assert_null(array);
	assert_int_equal(gguf_get_u64(&gguf, "absent", true, &u64, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "key 'absent' is missing"));
	err_clear(&err);
	assert_int_equal(gguf_get_u64(&gguf, "negative", true, &u64, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "key 'negative' is -1"));
	err_clear(&err);
	assert_int_equal(gguf_get_bool(&gguf, "string", false, &flag, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "has type string, expected bool"));
	err_clear(&err);
	assert_int_equal(gguf_get_array(&gguf, "string", GGUF_I32, false, &array, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "expected array of i32"));
	gguf_close(&gguf);
	text_release(&file);
}

static void bad_headers_are_refused(void **state)
{
	static const struct {
		const char *bytes;
		size_t len;
		const char *names;
	} cases[] = {
		{"", 0, "ends inside the magic"},
		{"GGU", 3, "ends inside the magic"},
		{"GGML\3\0\0\0", 8, "not a GGUF file"},
		{"GGUF\1\0\0\0", 8, "version 1"},
		{"GGUF\4\0\0\0", 8, "version 4"},
		{"GGUF\0\0\0\3", 8, "big-endian"},
		{"GGUF\3\0\0\0\1\0\0\0", 12, "ends inside the tensor count"},
		{"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 24, "18446744073709551615 metadata entries"},
		{"GGUF\3\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\0\0\0\0\0\0\0\0", 24, "9223372036854775807 tensors"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf gguf;
		struct err err = {0};

		assert_int_equal(
			gguf_open_bytes((const uint8_t *)cases[i].bytes, cases[i].len, "x.gguf", &gguf, &err), STATUS_INPUT);
		if (!strstr(err.text, cases[i].names))
			fail_msg("'%s' should name '%s'", err.text, cases[i].names);
	}
}

static void bad_values_are_refused(void **state)
{
	static const struct {
		uint32_t type;
		const char *bytes;
		size_t len;
		const char *names;
	} cases[] = {
		{GGUF_BOOL, "\2", 1, "a bool has the value 2"},
		{GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, "ends inside a string"},
		{GGUF_ARRAY, "\x09\0\0\0\1\0\0\0\0\0\0\0", 12, "arrays of arrays"},
		{GGUF_ARRAY, "\x0d\0\0\0\1\0\0\0\0\0\0\0", 12, "array element type 13"},
		/* 2^61 elements of 8 bytes: the product wraps to 0. */
		{GGUF_ARRAY, "\x0a\0\0\0\0\0\0\0\0\0\0\x20", 12, "do not fit"},
		{GGUF_ARRAY, "\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12, "ends inside a string"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf_build build = {0};

		gguf_build_raw(&build, "k", cases[i].type, cases[i].bytes, cases[i].len);
		refuses_build(&build, cases[i].names);
	}
}

static void bad_names_are_refused_without_being_printed_raw(void **state)
{
	static const struct {
		const char *name, *names;
	} cases[] = {
		{"", "has 0 bytes"},
		{"a\x1b[2J", "control character 0x1b"},
		{"\xc3\x28", "not UTF-8"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf_build values = {0}, tensors = {0};
		static const int64_t dims[] = {1};

		gguf_build_u32(&values, cases[i].name, 1);
		refuses_build(&values, cases[i].names);
		gguf_build_tensor(&tensors, cases[i].name, DTYPE_F32, 1, dims, "\0\0\0\0", 4);
		refuses_build(&tensors, cases[i].names);
	}
}

static void bad_tensor_entries_are_refused(void **state)
{
	static const struct {
		uint32_t type, n_dims;
		uint64_t dims[5], offset;
		const char *names;
	} cases[] = {
		{DTYPE_F32, 5, {1, 1, 1, 1, 1}, 0, "5 dimensions"},
		{DTYPE_F32, 0xffffffffu, {0}, 0, "4294967295 dimensions"},
		{DTYPE_F32, 1, {0}, 0, "dimension 0 is 0"},
		{DTYPE_F32, 1, {UINT64_MAX}, 0, "dimension 0 is 18446744073709551615"},
		{DTYPE_F32, 3, {1u << 31, 1u << 31, 2}, 0, "dimension 2 is 2"},
		{DTYPE_F32, 2, {1u << 31, 1u << 30}, 0, "9223372036854775808 bytes at offset 0 needed"},
		{DTYPE_F32, 2, {1u << 31, 1u << 30}, 1ull << 63, "needed"},
		{DTYPE_F32, 2, {1u << 31, 1u << 31}, 0, "overflows 64 bits"},
		{28 /* F64 */, 3, {1u << 31, 1u << 30, 2}, 0, "overflows 64 bits"},
		{DTYPE_Q4_0, 2, {33, 1}, 0, "do not divide into Q4_0 blocks of 32"},
		{DTYPE_Q6_K, 2, {128, 2}, 0, "do not divide into Q6_K blocks of 256"},
		{5, 1, {32}, 0, "type 5 is retired"},
		{31, 1, {32}, 0, "type 31 is retired"},
		{38, 1, {32}, 0, "type 38 is retired"},
		{1000, 1, {32}, 0, "unknown type 1000"},
		{DTYPE_F32, 1, {1}, 32, "truncated"},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct gguf_build build = {0};

		/* More dimensions than entries: the entry is cut where the reader must have stopped. */
		gguf_build_tensor_entry(
			&build, "t", cases[i].type, cases[i].n_dims <= 5 ? cases[i].n_dims : 0, cases[i].dims, cases[i].offset);
		if (cases[i].n_dims > 5)
			memcpy(build.tensors.data + 9, &cases[i].n_dims, 4);
		refuses_build(&build, cases[i].names);
	}
}

/* 32 + (2^64 - 4) wraps to 28, which would lie in the file. */
static void ends_that_wrap_are_refused(void **state)
{
	static const uint64_t dims[] = {((uint64_t)1 << 62) - 1};
	struct gguf_build build = {0};

	gguf_build_tensor_entry(&build, "wraps", DTYPE_F32, 1, dims, 32);
	for (int i = 0; i < 64; i++)
		text_append_char(&build.data, '\0');
	refuses_build(&build, "tensor 'wraps': 18446744073709551612 bytes at offset 32 needed");
}

static void overlapping_tensors_are_refused(void **state)
{
	static const uint64_t dims[] = {16};
	struct gguf_build build = {0};

	gguf_build_tensor_entry(&build, "first", DTYPE_F32, 1, dims, 0);
	gguf_build_tensor_entry(&build, "second", DTYPE_F32, 1, dims, 32);
	for (int i = 0; i < 96; i++)
		text_append_char(&build.data, '\0');
	refuses_build(&build, "'first' and 'second' overlap");
}

static void every_truncation_is_refused_or_harmless(void **state)
{
	static const int64_t dims[] = {32, 2};
	static const char *const words[] = {"one", "two"};
	static const char data[256];
	struct gguf_build build = {0};
	struct text file = {0};

	gguf_build_string(&build, "general.name", "cut me");
	gguf_build_strings(&build, "words", words, 2);
	gguf_build_tensor(&build, "a", DTYPE_F32, 2, dims, data, sizeof(data));
	gguf_build_tensor(&build, "b", DTYPE_Q8_0, 2, dims, data, 68);
	gguf_build_finish(&build, &file);
	gguf_build_release(&build);
	for (size_t len = 0; len < file.len; len++) {
		/* A block of its own, so that a sanitizer sees every byte read past the end. */
		uint8_t *cut = mem_calloc(len + 1, 1);
		struct gguf gguf;
		struct err err = {0};

		memcpy(cut, file.data, len);
		assert_int_equal(gguf_open_bytes(cut, len, "cut.gguf", &gguf, &err), STATUS_INPUT);
		mem_free(cut);
	}
	text_release(&file);
}

static void types_without_kernels_can_be_listed(void **state)
{
	static const int64_t dims[] = {256};
	static const char data[256];
	struct gguf_build build = {0};
	struct gguf gguf;
	struct err err = {0};
	struct text file = {0};

	gguf_build_tensor(&build, "t", 23, 1, dims, data, 136);
	assert_int_equal(open_build(&build, &file, &gguf, &err), STATUS_OK);
	assert_string_equal(gguf_tensor_type_name((uint32_t)gguf.tensors[0].dtype), "IQ4_XS");
	assert_int_equal(gguf.tensors[0].bytes, 136);
	assert_null(dtype_name(gguf.tensors[0].dtype));
	gguf_close(&gguf);
	text_release(&file);
}

/* Fifty thousand of each: a table searched from the front would need minutes. */
static void large_directories_open_in_linear_time(void **state)
{
	static const uint64_t dims[] = {1};
	struct gguf_build build = {0};
	struct gguf gguf;
	struct err err = {0};
	struct text file = {0};
	int64_t start;
	char name[32];

	for (int i = 0; i < 50000; i++) {
		snprintf(name, sizeof(name), "key.%d", i);
		gguf_build_u32(&build, name, (uint32_t)i);
		snprintf(name, sizeof(name), "tensor.%d", i);
		gguf_build_tensor_entry(&build, name, DTYPE_F32, 1, dims, (uint64_t)i * 32);
	}
	for (int i = 0; i < 50000 * 32; i++)
		text_append_char(&build.data, '\0');
	start = clock_monotonic_ns();
	assert_int_equal(open_build(&build, &file, &gguf, &err), STATUS_OK);
	for (int i = 0; i < 50000; i++) {
		uint64_t value = 0;

		snprintf(name, sizeof(name), "key.%d", i);
		assert_int_equal(gguf_get_u64(&gguf, name, true, &value, &err), STATUS_OK);
		assert_int_equal(value, i);
	}
	assert_true(clock_monotonic_ns() - start < 5000000000ll);
	gguf_close(&gguf);
	text_release(&file);
}

static void missing_files_and_folders_are_told_apart_from_bad_ones(void **state)
{
	struct gguf gguf;
	struct err err = {0};

	assert_int_equal(gguf_open("tests/golden/field/no-such.gguf", &gguf, &err), STATUS_NOT_FOUND);
	gguf_close(&gguf);
	err_clear(&err);
	assert_int_equal(gguf_open("tests/golden", &gguf, &err), STATUS_INPUT);
	gguf_close(&gguf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(control_file_gives_its_tensors),
		cmocka_unit_test(field_files_are_refused_by_name),
		cmocka_unit_test(files_for_other_models_are_sound_containers),
		cmocka_unit_test(every_scalar_type_reads_back),
		cmocka_unit_test(absent_and_mistyped_keys_are_told_apart),
		cmocka_unit_test(bad_headers_are_refused),
		cmocka_unit_test(bad_values_are_refused),
		cmocka_unit_test(bad_names_are_refused_without_being_printed_raw),
		cmocka_unit_test(bad_tensor_entries_are_refused),
		cmocka_unit_test(ends_that_wrap_are_refused),
		cmocka_unit_test(overlapping_tensors_are_refused),
		cmocka_unit_test(every_truncation_is_refused_or_harmless),
		cmocka_unit_test(types_without_kernels_can_be_listed),
		cmocka_unit_test(large_directories_open_in_linear_time),
		cmocka_unit_test(missing_files_and_folders_are_told_apart_from_bad_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
