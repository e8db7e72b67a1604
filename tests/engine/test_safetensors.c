/* safetensors files and folders: what is read, and every way to be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "engine/safetensors.h"
#include "engine/source.h"
#include "tests/support/temp_folder.h"

#define FIELD "tests/golden/field/"

/* A file of this header and so many bytes of data, which count up from 0. */
static struct text file_of(const char *header, size_t data_bytes)
{
	struct text file = {0};
	uint64_t length = strlen(header);
	for (int i = 0; i < 8; i++)
		text_append_char(&file, (char)(length >> (8 * i)));
	text_append_str(&file, header);
	for (size_t i = 0; i < data_bytes; i++)
		text_append_char(&file, (char)(i % 100)); /* no bytes that make a NaN */
	return file;
}

static enum status open_text(const struct text *file, struct safetensors *out, struct err *err)
{
	return safetensors_open_bytes((const uint8_t *)text_str(file), file->len, "made.safetensors", out, err);
}

static void refuses(const char *header, size_t data_bytes, const char *expected)
{
	struct text file = file_of(header, data_bytes);
	struct safetensors out;
	struct err err = {0};
	assert_int_equal(open_text(&file, &out, &err), STATUS_INPUT);
	if (!strstr(err.text, expected) || !strstr(err.text, "made.safetensors"))
		fail_msg("expected '%s' in: %s", expected, err.text);
	assert_null(out.tensors);
	text_release(&file);
}

static void a_sound_file_is_read(void **state)
{
	struct text file = file_of("{\"__metadata__\":{\"format\":\"pt\"},"
				   "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
				   "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
				   "\"none\":{\"dtype\":\"I64\",\"shape\":[5,0],\"data_offsets\":[4,4]},"
				   "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[16,19]}}   ",
		19);
	struct safetensors st;
	struct err err = {0};
	char shape[SAFETENSORS_SHAPE_BYTES];
	if (open_text(&file, &st, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	assert_int_equal(st.n_tensors, 4);
	const struct safetensors_tensor *a = safetensors_find(&st, "a"), *b = safetensors_find(&st, "b");
	assert_int_equal(a->n_dims, 0);
	assert_int_equal(a->elements, 1);
	assert_int_equal(b->dtype, DTYPE_BF16);
	assert_string_equal(safetensors_shape(b, shape), "[2, 3]");
	assert_int_equal(b->data[0], 4);
	assert_int_equal(b->bytes, 12);
	assert_null(dtype_name(safetensors_find(&st, "none")->dtype));
	assert_int_equal(safetensors_find(&st, "c")->dtype, DTYPE_F8_E4M3);
	assert_null(safetensors_find(&st, "d"));
	safetensors_close(&st);
	text_release(&file);
}

#define TENSOR(name, dtype, shape, offsets) \
	"\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void damaged_headers_are_refused_with_their_place(void **state)
{
	static const struct {
		const char *header;
		size_t data_bytes;
		const char *expected;
	} cases[] = {
		{"[1,2,3]", 0, "no JSON object"},
		{"{\"a\":", 0, "header:1:"},
		{"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "duplicate"},
		{"{\"__metadata__\":3}", 0, "__metadata__"},
		{"{\"a\":3}", 0, "tensor 'a' has no dtype"},
		{"{" TENSOR("a", "Q9_X", "[1]", "[0,4]") "}", 4, "tensor 'a' has the unknown type 'Q9_X'"},
		{"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "shape is no list"},
		{"{" TENSOR("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "shape is no list of at most 8"},
		{"{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "dimension of shape"},
		{"{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "dimension of shape"},
		{"{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "elements overflows"},
		{"{" TENSOR("a", "F32", "[4611686018427387904]", "[0,4]") "}", 4, "cannot have 4 bytes"},
		{"{" TENSOR("a", "F32", "[0,9223372036854775807]", "[0,4]") "}", 4, "cannot have 4 bytes"},
		{"{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "shape [2] and type F32 cannot have 4 bytes"},
		{"{" TENSOR("a", "BF16", "[1]", "[0,4]") "}", 4, "cannot have 4 bytes"},
		{"{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "no pair of ascending"},
		{"{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "no pair of ascending"},
		{"{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "no pair of ascending"},
		{"{" TENSOR("a", "F32", "[1]", "[0,4,8]") "}", 8, "no pair of ascending"},
		{"{" TENSOR("a", "F32", "[1]", "[0,4.0]") "}", 4, "no pair of ascending"},
		{"{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 4, "ends at byte 8 of the data, but the file holds 4"},
		{"{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}", 8,
			"before the one before it ends"},
		{"{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[8,12]") "}", 12,
			"tensor 'b' begins at byte 8 of the data, but the one before it ends at 4"},
		{"{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "tensor 'a' begins at byte 4"},
		{"{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 8, "the tensors end at byte 4 of the data, but the file holds 8"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"scale\":2}}", 4, "key 'scale' is not known"},
		{"{" TENSOR("", "F32", "[1]", "[0,4]") "}", 4, "name"},
		{"{" TENSOR("a\\u001b", "F32", "[1]", "[0,4]") "}", 4, "'a?'"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		refuses(cases[i].header, cases[i].data_bytes, cases[i].expected);
	struct text name = {0};
	text_append_str(&name, "{\"");
	for (int i = 0; i < 256; i++)
		text_append_char(&name, 'n');
	text_append_str(&name, "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
	refuses(text_str(&name), 4, "longer than 255 bytes");
	text_release(&name);
}

/* Field cases M13 and M14: duplicate names with a misleading message; lengths of headers that an attacker chose. */
static void field_files_are_refused_before_anything_is_allocated(void **state)
{
	static const struct {
		const char *name, *expected;
	} cases[] = {
		{"m13_duplicate_key", "duplicate"},
		{"m14a_header_len_max", "length is 18446744073709551615, the limit is 100000000"},
		{"m14b_header_len_wraps", "length is 18446744073709551611"},
		{"m14c_header_len_past_end", "length is 4096, but the file has only 144 bytes after it"},
		{"m14d_short_file", "3 bytes are too few"},
		{"m14e_not_object", "no JSON object"},
		{"m18c_unknown_dtype", "tensor 'a' has the unknown type 'Q9_X'"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct file_map map;
		struct safetensors st;
		struct err err = {0};
		char path[128];
		snprintf(path, sizeof path, FIELD "%s.safetensors", cases[i].name);
		assert_int_equal(file_map_open(path, &map, NULL), STATUS_OK);
		assert_int_equal(safetensors_open_bytes(map.data, map.size, path, &st, &err), STATUS_INPUT);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("%s: %s", cases[i].name, err.text);
		file_map_close(&map);
	}
}

/* ---- folders ---- */

static void write_shard(const struct temp_folder *folder, const char *name, const char *header, size_t data_bytes)
{
	struct text file = file_of(header, data_bytes);
	temp_folder_write(folder, name, text_str(&file), file.len);
	text_release(&file);
}

/* Field case M17b: a stray file beside the shards was merged in. */
static void only_the_shards_that_the_index_names_are_read(void **state)
{
	struct safetensors st;
	struct err err = {0};
	if (safetensors_open(FIELD "m17b_stray_file", &st, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	assert_int_equal(st.n_files, 2);
	assert_int_equal(st.n_tensors, 2);
	assert_string_equal(st.files[safetensors_find(&st, "a")->file].name, "model-00001-of-00002.safetensors");
	assert_int_equal(st.bytes, 160);
	safetensors_close(&st);
}

/* Field case M17a, and its relatives. */
static void an_index_that_does_not_fit_its_shards_is_refused(void **state)
{
	static const struct {
		const char *index, *expected;
	} cases[] = {
		{"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}", "2.safetensors"},
		{"{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"1.safetensors\"}}", "tensor 'c' is not in 1.safetensors"},
		{"{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"3.safetensors\"}}",
			"duplicate tensor 'a' in 1.safetensors and 3"},
		{"{\"weight_map\":{\"a\":\"4.safetensors\",\"x\":\"1.safetensors\"}}", "tensor 'a' is not in 4.safetensors"},
		{"{\"weight_map\":{\"b\":\"4.safetensors\"}}", "does not name tensor 'x', which 4.safetensors holds"},
		{"{\"weight_map\":{\"a\":\"../1.safetensors\"}}", "tensor 'a' lies in no file of this folder"},
		{"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "lies in no file of this folder"},
		{"{\"weight_map\":{\"a\":\"\"}}", "lies in no file of this folder"},
		{"{\"weight_map\":{\"a\":7}}", "lies in no file of this folder"},
		{"{\"weight_map\":{}}", "weight_map is no object, or empty"},
		{"{\"metadata\":{}}", "weight_map is no object"},
		{"[]", "weight_map is no object"},
		{"{\"weight_map\":{\"a\":\"1.safetensors\",\"a\":\"1.safetensors\"}}", "duplicate"},
		{"", "model.safetensors.index.json"},
	};
	struct temp_folder folder;
	temp_folder_make(&folder);
	write_shard(&folder, "1.safetensors", "{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 4);
	write_shard(&folder, "3.safetensors", "{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[4,8]") "}", 8);
	write_shard(&folder, "4.safetensors", "{" TENSOR("b", "F32", "[1]", "[0,4]") "," TENSOR("x", "F32", "[1]", "[4,8]") "}", 8);
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct safetensors st;
		struct err err = {0};
		temp_folder_write_text(&folder, "model.safetensors.index.json", cases[i].index);
		assert_int_not_equal(safetensors_open(folder.path, &st, &err), STATUS_OK);
		if (!strstr(err.text, cases[i].expected) || !strstr(err.text, folder.path))
			fail_msg("expected '%s' in: %s", cases[i].expected, err.text);
		assert_null(st.files);
	}
	temp_folder_remove(&folder);
}

static void a_folder_without_weights_is_refused(void **state)
{
	struct temp_folder folder;
	struct safetensors st;
	struct err err = {0};
	temp_folder_make(&folder);
	assert_int_not_equal(safetensors_open(folder.path, &st, &err), STATUS_OK);
	assert_non_null(strstr(err.text, "model.safetensors"));
	temp_folder_remove(&folder);
}

/* ---- scales of 8-bit weights ---- */

static const char *const fp8_config = "{\"architectures\":[\"LlamaForCausalLM\"]}";

/* Opens a folder with one 8-bit tensor "w.weight" of 200 rows and 130 columns and this entry beside it. */
static enum status open_fp8(const char *entry, size_t entry_bytes, struct temp_folder *folder, struct source *out, struct err *err)
{
	struct text header = {0};
	text_printf(&header, "{" TENSOR("w.weight", "F8_E4M3", "[200,130]", "[0,26000]") "%s%s}", entry[0] ? "," : "", entry);
	temp_folder_make(folder);
	temp_folder_write_text(folder, "config.json", fp8_config);
	write_shard(folder, "model.safetensors", text_str(&header), 26000 + entry_bytes);
	text_release(&header);
	return source_open(folder->path, out, err);
}

static void scales_fit_their_weights_or_are_refused(void **state)
{
	static const struct {
		const char *entry;
		size_t bytes;
		const char *expected; /* NULL: accepted */
	} cases[] = {
		{TENSOR("w.weight_scale", "BF16", "[]", "[26000,26002]"), 2, NULL},
		{TENSOR("w.weight_scale", "BF16", "[1]", "[26000,26002]"), 2, NULL},
		{TENSOR("w.weight_scale", "BF16", "[200,1]", "[26000,26400]"), 400, NULL},
		{TENSOR("w.weight_scale", "BF16", "[200]", "[26000,26400]"), 400, NULL},
		{TENSOR("w.weight_scale_inv", "BF16", "[2,2]", "[26000,26008]"), 8, NULL},
		{"", 0, "tensor 'w.weight' has type F8_E4M3, and none of 'w.weight_scale' and 'w.weight_scale_inv' beside it"},
		{TENSOR("w.weight_scale", "BF16", "[]", "[26000,26002]") "," TENSOR(
			 "w.weight_scale_inv", "BF16", "[]", "[26002,26004]"),
			4, "both of"},
		{TENSOR("w.weight_scale_inv", "BF16", "[2,3]", "[26000,26012]"), 12,
			"tensor 'w.weight_scale_inv' of shape [2, 3] does not fit 'w.weight' of shape [200, 130]"},
		{TENSOR("w.weight_scale", "BF16", "[130]", "[26000,26260]"), 260, "does not fit"},
		{TENSOR("w.weight_scale", "I16", "[]", "[26000,26002]"), 2, "has type I16, expected F32, BF16 or F16"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct temp_folder folder;
		struct source source;
		struct err err = {0};
		enum status status = open_fp8(cases[i].entry, cases[i].bytes, &folder, &source, &err);
		temp_folder_remove(&folder);
		if (!cases[i].expected && status != STATUS_OK)
			fail_msg("%s: %s", cases[i].entry, err.text);
		if (cases[i].expected && (status != STATUS_INPUT || !strstr(err.text, cases[i].expected)))
			fail_msg("expected '%s' in: %s", cases[i].expected, err.text);
		source_close(&source);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sound_file_is_read),
		cmocka_unit_test(damaged_headers_are_refused_with_their_place),
		cmocka_unit_test(field_files_are_refused_before_anything_is_allocated),
		cmocka_unit_test(only_the_shards_that_the_index_names_are_read),
		cmocka_unit_test(an_index_that_does_not_fit_its_shards_is_refused),
		cmocka_unit_test(a_folder_without_weights_is_refused),
		cmocka_unit_test(scales_fit_their_weights_or_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
