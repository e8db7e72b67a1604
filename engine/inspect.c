/* Listings of GGUF files. Values come from outside, so strings are made valid and printable, and long ones are cut. */
#include "engine/inspect.h"

#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#define FIRST_MAX 5 /* array elements shown */
#define LINE_STRING_BYTES 100 /* longest string in the listing for people */

/* Totals. ----------------------------------------------------------------------------------------------------------- */

#define GGUF_TYPES_MAX 63 /* GGUF's type ids are below this */
#define MADE_UP_TYPE GGUF_TYPES_MAX /* the place of DTYPE_F8_E4M3, which only models made up have */
#define TYPES_MAX (MADE_UP_TYPE + 1)

struct totals {
	double parameters; /* may pass 2^63 in a file of absurd shapes */
	uint64_t tensor_bytes;
	uint64_t bytes_by_type[TYPES_MAX];
};

static const char *type_name_at(uint32_t place)
{
	return gguf_tensor_type_name(place == MADE_UP_TYPE ? DTYPE_F8_E4M3 : place);
}

static double parameters_of(const struct gguf_tensor *tensor)
{
	double product = 1;

	for (int i = 0; i < GGUF_DIMS_MAX; i++)
		product *= (double)tensor->dims[i];
	return product;
}

static struct totals totals_of(const struct gguf *gguf)
{
	struct totals totals = {0};

	for (size_t i = 0; i < gguf->n_tensors; i++) {
		const struct gguf_tensor *tensor = &gguf->tensors[i];

		totals.parameters += parameters_of(tensor);
		totals.tensor_bytes += tensor->bytes; /* tensors do not overlap, so the sum is below the file's size */
		uint32_t place = tensor->dtype == DTYPE_F8_E4M3 ? MADE_UP_TYPE : (uint32_t)tensor->dtype;
		if (place < TYPES_MAX)
			totals.bytes_by_type[place] += tensor->bytes;
	}
	return totals;
}

/* JSON. ------------------------------------------------------------------------------------------------------------- */

static struct json *string_json(struct gguf_string string)
{
	return json_new_string_len(string.data, string.len);
}

/* Element idx of a value that does not hold strings. */
static struct json *element_json(const struct gguf_value *value, uint64_t idx)
{
	if (value->element_type == GGUF_BOOL)
		return json_new_bool(gguf_integer_at(value, idx) != 0);
	if (value->element_type == GGUF_F32 || value->element_type == GGUF_F64)
		return json_new_number(gguf_double_at(value, idx));
	if (value->element_type == GGUF_U64 && gguf_integer_at(value, idx) < 0)
		return json_new_number(gguf_double_at(value, idx)); /* above what JSON integers hold here */
	return json_new_integer(gguf_integer_at(value, idx));
}

static struct json *value_json(const struct gguf_value *value)
{
	struct json *out = json_new_object();
	struct json *first = json_new_array();
	const uint8_t *cursor = value->bytes;

	for (uint64_t i = 0; i < value->count && i < FIRST_MAX; i++)
		json_append(first,
			value->element_type == GGUF_STRING ? string_json(gguf_next_string(&cursor)) : element_json(value, i));
	json_set(out, "type", json_new_string(gguf_type_name(value->type)));
	if (value->type == GGUF_ARRAY) {
		json_set(out, "element_type", json_new_string(gguf_type_name(value->element_type)));
		json_set(out, "count", json_new_integer((int64_t)value->count));
		json_set(out, "first", first);
	} else {
		json_set(out, "value", json_clone(json_at(first, 0)));
		json_free(first);
	}
	return out;
}

static struct json *tensor_json(const struct gguf *gguf, const struct gguf_tensor *tensor)
{
	struct json *out = json_new_object();
	struct json *shape = json_new_array(), *dims = json_new_array();

	for (int i = 0; i < tensor->n_dims; i++) {
		json_append(shape, json_new_integer(tensor->dims[tensor->n_dims - 1 - i]));
		json_append(dims, json_new_integer(tensor->dims[i]));
	}
	json_set(out, "name", string_json(tensor->name));
	json_set(out, "type", json_new_string(gguf_tensor_type_name((uint32_t)tensor->dtype)));
	json_set(out, "shape", shape);
	json_set(out, "dims", dims);
	json_set(out, "offset", json_new_integer((int64_t)(tensor->data - gguf->map.data)));
	json_set(out, "bytes", json_new_integer((int64_t)tensor->bytes));
	json_set(out, "supported", json_new_bool(dtype_name(tensor->dtype) != NULL));
	return out;
}

static struct json *totals_json(const struct gguf *gguf)
{
	struct totals totals = totals_of(gguf);
	struct json *out = json_new_object(), *by_type = json_new_object();

	for (uint32_t id = 0; id < TYPES_MAX; id++)
		if (totals.bytes_by_type[id])
			json_set(by_type, type_name_at(id), json_new_integer((int64_t)totals.bytes_by_type[id]));
	json_set(out, "metadata", json_new_integer((int64_t)gguf->n_values));
	json_set(out, "tensors", json_new_integer((int64_t)gguf->n_tensors));
	json_set(out, "parameters",
		totals.parameters < 0x1p53 ? json_new_integer((int64_t)totals.parameters) : json_new_number(totals.parameters));
	json_set(out, "tensor_bytes", json_new_integer((int64_t)totals.tensor_bytes));
	json_set(out, "bytes_by_type", by_type);
	return out;
}

struct json *inspect_json(const struct gguf *gguf, const char *path)
{
	struct json *out = json_new_object(), *metadata = json_new_object(), *tensors = json_new_array();

	for (size_t i = 0; i < gguf->n_values; i++) {
		const struct gguf_value *value = &gguf->values[i];
		char *key = mem_strndup(value->key.data, value->key.len);

		json_set(metadata, key, value_json(value));
		mem_free(key);
	}
	for (size_t i = 0; i < gguf->n_tensors; i++)
		json_append(tensors, tensor_json(gguf, &gguf->tensors[i]));
	json_set(out, "path", json_new_string(path));
	json_set(out, "version", json_new_integer(gguf->version));
	json_set(out, "alignment", json_new_integer(gguf->alignment));
	json_set(out, "data_offset", json_new_integer((int64_t)gguf->data_offset));
	json_set(out, "file_bytes", json_new_integer((int64_t)gguf->map.size));
	json_set(out, "metadata", metadata);
	json_set(out, "tensors", tensors);
	json_set(out, "totals", totals_json(gguf));
	return out;
}

/* For people. ------------------------------------------------------------------------------------------------------- */

/* The string in quotes: cut, invalid bytes replaced, control characters as in C. */
static void append_quoted(struct text *out, struct gguf_string string)
{
	size_t len = string.len > LINE_STRING_BYTES ? utf8_complete_prefix(string.data, LINE_STRING_BYTES) : string.len;
	struct text valid = {0};

	utf8_append_lossy(&valid, string.data, len);
	text_append_char(out, '"');
	for (size_t i = 0; i < valid.len; i++) {
		unsigned char c = (unsigned char)valid.data[i];

		if (c == '\n')
			text_append_str(out, "\\n");
		else if (c == '"' || c == '\\')
			text_printf(out, "\\%c", c);
		else if (c < 0x20 || c == 0x7f)
			text_printf(out, "\\x%02x", c);
		else
			text_append_char(out, (char)c);
	}
	text_append_char(out, '"');
	if (len < string.len)
		text_printf(out, "… (%zu bytes)", string.len);
	text_release(&valid);
}

static void append_element(struct text *out, const struct gguf_value *value, uint64_t idx)
{
	char number[32];

	if (value->element_type == GGUF_BOOL) {
		text_append_str(out, gguf_integer_at(value, idx) ? "true" : "false");
	} else if (value->element_type == GGUF_F32 || value->element_type == GGUF_F64) {
		text_format_double(number, gguf_double_at(value, idx));
		text_append_str(out, number);
	} else if (value->element_type == GGUF_U64) {
		text_printf(out, "%" PRIu64, (uint64_t)gguf_integer_at(value, idx));
	} else {
		text_printf(out, "%" PRId64, gguf_integer_at(value, idx));
	}
}

static void append_value(struct text *out, const struct gguf_value *value)
{
	const uint8_t *cursor = value->bytes;

	if (value->type == GGUF_ARRAY)
		text_printf(out, "%" PRIu64 " × %s: ", value->count, gguf_type_name(value->element_type));
	for (uint64_t i = 0; i < value->count && i < FIRST_MAX; i++) {
		if (i > 0)
			text_append_str(out, ", ");
		if (value->element_type == GGUF_STRING)
			append_quoted(out, gguf_next_string(&cursor));
		else
			append_element(out, value, i);
	}
	if (value->count > FIRST_MAX)
		text_append_str(out, ", …");
	text_append_char(out, '\n');
}

static void append_tensor(struct text *out, const struct gguf *gguf, const struct gguf_tensor *tensor)
{
	struct text shape = {0};

	for (int i = tensor->n_dims - 1; i >= 0; i--)
		text_printf(&shape, "%" PRId64 "%s", tensor->dims[i], i ? ", " : "");
	text_printf(out, "  %-40.*s %-8s [%s] at %zu, %" PRIu64 " bytes%s\n", (int)tensor->name.len, tensor->name.data,
		gguf_tensor_type_name((uint32_t)tensor->dtype), text_str(&shape), (size_t)(tensor->data - gguf->map.data),
		tensor->bytes, dtype_name(tensor->dtype) ? "" : "  (no kernels for this type)");
	text_release(&shape);
}

void inspect_text(const struct gguf *gguf, const char *path, struct text *out)
{
	struct totals totals = totals_of(gguf);

	text_printf(out, "%s: GGUF version %" PRIu32 ", %zu bytes, alignment %" PRIu32 "\n\nmetadata (%zu)\n", path, gguf->version,
		gguf->map.size, gguf->alignment, gguf->n_values);
	for (size_t i = 0; i < gguf->n_values; i++) {
		const struct gguf_value *value = &gguf->values[i];

		text_printf(out, "  %-40.*s %-8s ", (int)value->key.len, value->key.data, gguf_type_name(value->type));
		append_value(out, value);
	}
	text_printf(out, "\ntensors (%zu)\n", gguf->n_tensors);
	for (size_t i = 0; i < gguf->n_tensors; i++)
		append_tensor(out, gguf, &gguf->tensors[i]);
	text_printf(out, "\n%.0f parameters in %" PRIu64 " bytes", totals.parameters, totals.tensor_bytes);
	for (uint32_t id = 0; id < TYPES_MAX; id++)
		if (totals.bytes_by_type[id])
			text_printf(out, ", %s %.1f %%", type_name_at(id),
				100.0 * (double)totals.bytes_by_type[id] / (double)totals.tensor_bytes);
	text_append_char(out, '\n');
}
