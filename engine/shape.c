/* Named shapes and shapes from JSON. The named ones are those of the models' published config.json files. */
#include "engine/shape.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define JSON_BYTES_MAX ((size_t)1 << 20) /* guess: published files have a few kilobytes */
#define SIZE_MAX_ANY (1 << 24) /* guess: larger numbers are typing mistakes */

/* The output head of llama-1b is its own, so that a token reads the same bytes as with the published, tied one and the memory
 * that the embedding takes is that of larger models; figures of other engines were taken so. */
static const struct shape shapes[] = {
	{"tiny", 2, 64, 128, 4, 2, 16, 512, 512, 10000, 1e-5, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"smollm2-135m", 30, 576, 1536, 9, 3, 64, 49152, 8192, 100000, 1e-5, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"llama-1b", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000, 1e-5, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"llama-3b", 28, 3072, 8192, 24, 8, 128, 128256, 131072, 500000, 1e-5, true, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"mistral-7b", 32, 4096, 14336, 32, 8, 128, 32768, 32768, 1000000, 1e-5, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000, 1e-5, false, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
};

/* fp8 is what folders of 8-bit floats have, with the output head among them; q4_k_m mixes as llama.cpp's quantisation of that name
 * does. */
static const struct {
	const char *suffix;
	enum dtype dtype, embedding, head, value;
} types[] = {
	{"bf16", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16},
	{"f16", DTYPE_F16, DTYPE_F16, DTYPE_F16, DTYPE_F16},
	{"f32", DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
	{"fp8", DTYPE_F8_E4M3, DTYPE_BF16, DTYPE_F8_E4M3, DTYPE_F8_E4M3},
	{"q8_0", DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0, DTYPE_Q8_0},
	{"q4_0", DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q4_0, DTYPE_Q4_0},
	{"q4_1", DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1, DTYPE_Q4_1},
	{"q4_k_m", DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q6_K},
};

bool shape_is_fine(const struct shape *shape, int layer)
{
	int eighth = shape->n_layers / 8;
	return layer < eighth || layer >= 7 * shape->n_layers / 8 || (layer - eighth) % 3 == 2;
}

/* A matrix is cut into blocks along its columns, so those must be whole blocks. */
static enum status set_type(const char *suffix, struct shape *out, struct err *err)
{
	for (size_t i = 0; i < COUNT(types); i++) {
		if (!text_equal(suffix, types[i].suffix))
			continue;
		out->dtype = types[i].dtype;
		out->embedding_dtype = types[i].embedding;
		out->head_dtype = types[i].head;
		out->value_dtype = types[i].value;
		int64_t block = dtype_block_elements(types[i].value);
		if (out->hidden % block != 0 || out->ffn % block != 0 || (int64_t)out->n_heads * out->head_dim % block != 0)
			return err_set_code(err, STATUS_INPUT, "bad_option",
				"shape '%s' cannot have the type %s: its widths are no multiples of %lld", out->name, suffix,
				(long long)block);
		return STATUS_OK;
	}
	struct text list = {0};
	for (size_t i = 0; i < COUNT(types); i++)
		text_printf(&list, "%s%s", i ? ", " : "", types[i].suffix);
	enum status status = err_set_code(
		err, STATUS_INPUT, "bad_option", "shape '%s': type '%s' is not one of: %s", out->name, suffix, text_str(&list));
	text_release(&list);
	return status;
}

static enum status find_named(const char *spec, struct shape *out, struct err *err)
{
	struct text list = {0};
	for (size_t i = 0; i < COUNT(shapes); i++) {
		size_t len = strlen(shapes[i].name);
		if (strncmp(spec, shapes[i].name, len) == 0 && spec[len] == '-') {
			*out = shapes[i];
			text_release(&list);
			enum status status = set_type(spec + len + 1, out, err);
			snprintf(out->name, sizeof out->name, "%s", spec);
			return status;
		}
		text_printf(&list, "%s%s", i ? ", " : "", shapes[i].name);
	}
	enum status status = err_set_code(err, STATUS_INPUT, "bad_option",
		"shape '%.60s' is not known: expected SHAPE-TYPE such as llama-8b-bf16 with one of the shapes %s, or a JSON file",
		spec, text_str(&list));
	text_release(&list);
	return status;
}

/* ---- JSON ---- */

/* *out keeps its value when the key is absent and the value is a default (above 0). */
static enum status read_size(const struct json *object, const char *key, int *out, struct err *err)
{
	const struct json *value = json_get(object, key);
	if (!value || json_kind_of(value) == JSON_KIND_NULL)
		return *out > 0 ? STATUS_OK : err_set(err, STATUS_INPUT, "'%s' is missing", key);
	int64_t number = json_int(value, -1);
	if (number < 1 || number > SIZE_MAX_ANY)
		return err_set(err, STATUS_INPUT, "'%s' must be a whole number from 1 to %d", key, SIZE_MAX_ANY);
	*out = (int)number;
	return STATUS_OK;
}

static enum status read_sizes(const struct json *object, struct shape *out, struct err *err)
{
	enum status status = read_size(object, "hidden_size", &out->hidden, err);
	if (status == STATUS_OK)
		status = read_size(object, "intermediate_size", &out->ffn, err);
	if (status == STATUS_OK)
		status = read_size(object, "num_hidden_layers", &out->n_layers, err);
	if (status == STATUS_OK)
		status = read_size(object, "num_attention_heads", &out->n_heads, err);
	if (status != STATUS_OK)
		return status;
	out->n_kv_heads = out->n_heads;
	out->head_dim = out->hidden / out->n_heads;
	status = read_size(object, "num_key_value_heads", &out->n_kv_heads, err);
	if (status == STATUS_OK)
		status = read_size(object, "head_dim", &out->head_dim, err);
	if (status == STATUS_OK)
		status = read_size(object, "vocab_size", &out->vocab, err);
	if (status == STATUS_OK)
		status = read_size(object, "max_position_embeddings", &out->context, err);
	return status;
}

static const char *type_of(const struct json *object)
{
	static const struct {
		const char *written, *suffix;
	} names[] = {{"bfloat16", "bf16"}, {"float16", "f16"}, {"float32", "f32"}};
	const char *written = json_text(json_get(object, "dtype"));
	written = written ? written : json_text(json_get(object, "torch_dtype"));
	for (size_t i = 0; written && i < COUNT(names); i++)
		if (text_equal(written, names[i].written))
			return names[i].suffix;
	return written ? written : "bf16";
}

static enum status read_object(const struct json *object, struct shape *out, struct err *err)
{
	if (json_kind_of(object) != JSON_KIND_OBJECT)
		return err_set(err, STATUS_INPUT, "expected an object");
	enum status status = read_sizes(object, out, err);
	if (status != STATUS_OK)
		return status;
	out->rope_base = json_number(json_get(object, "rope_theta"), 10000);
	out->norm_eps = json_number(json_get(object, "rms_norm_eps"), 1e-6);
	out->tied = json_bool(json_get(object, "tie_word_embeddings"), false);
	return set_type(type_of(object), out, err);
}

static enum status read_file(const char *path, struct shape *out, struct err *err)
{
	struct text bytes = {0};
	struct json *root = NULL;
	const char *slash = strrchr(path, '/');
	*out = (struct shape){.context = 2048};
	snprintf(out->name, sizeof out->name, "%.60s", slash ? slash + 1 : path);
	enum status status = file_read(path, JSON_BYTES_MAX, &bytes, err);
	if (status == STATUS_OK)
		status = json_parse(text_str(&bytes), bytes.len, path, &root, err);
	if (status == STATUS_OK) {
		status = read_object(root, out, err);
		if (status != STATUS_OK)
			err_add(err, "%s", path);
	}
	json_free(root);
	text_release(&bytes);
	return status;
}

enum status shape_find(const char *spec, struct shape *out, struct err *err)
{
	size_t len = strlen(spec);
	bool is_file = len > 5 && strcmp(spec + len - 5, ".json") == 0;
	return is_file ? read_file(spec, out, err) : find_named(spec, out, err);
}
