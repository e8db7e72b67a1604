/* Typed access to the metadata of an opened GGUF file. Values lie unaligned in the map, so each is loaded by bytes. */
#include "engine/gguf.h"

#include <string.h>

#include "engine/gguf_types.h"

#define PRINT_BYTES_MAX 200 /* guess: enough to recognise any real name */

uint32_t gguf_load_u32(const uint8_t *bytes)
{
	return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

uint64_t gguf_load_u64(const uint8_t *bytes)
{
	return (uint64_t)gguf_load_u32(bytes) | (uint64_t)gguf_load_u32(bytes + 4) << 32;
}

int gguf_print_len(struct gguf_string string)
{
	return string.len < PRINT_BYTES_MAX ? (int)string.len : PRINT_BYTES_MAX;
}

bool gguf_string_equal(struct gguf_string string, const char *text)
{
	return string.len == strlen(text) && memcmp(string.data, text, string.len) == 0;
}

const char *gguf_printable(struct gguf_string string, char *out, size_t out_bytes)
{
	size_t len = string.len < out_bytes - 1 ? string.len : out_bytes - 1;

	for (size_t i = 0; i < len; i++)
		out[i] = string.data[i] >= 0x20 && string.data[i] < 0x7f ? string.data[i] : '?';
	out[len] = '\0';
	return out;
}

struct gguf_string gguf_next_string(const uint8_t **cursor)
{
	struct gguf_string string = {(const char *)*cursor + 8, (size_t)gguf_load_u64(*cursor)};

	*cursor += 8 + string.len;
	return string;
}

static bool is_integer_type(enum gguf_type type)
{
	return type != GGUF_STRING && type != GGUF_ARRAY && type != GGUF_BOOL && type != GGUF_F32 && type != GGUF_F64;
}

static float load_f32(const uint8_t *bytes)
{
	uint32_t bits = gguf_load_u32(bytes);
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static double load_f64(const uint8_t *bytes)
{
	uint64_t bits = gguf_load_u64(bytes);
	double value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

int64_t gguf_integer_at(const struct gguf_value *value, uint64_t idx)
{
	const uint8_t *bytes = value->bytes + idx * gguf_type_bytes(value->element_type);

	switch (value->element_type) {
	case GGUF_U8:
	case GGUF_BOOL:
		return bytes[0];
	case GGUF_I8:
		return (int8_t)bytes[0];
	case GGUF_U16:
		return (uint16_t)(bytes[0] | bytes[1] << 8);
	case GGUF_I16:
		return (int16_t)(uint16_t)(bytes[0] | bytes[1] << 8);
	case GGUF_U32:
		return (int64_t)gguf_load_u32(bytes);
	case GGUF_I32:
		return (int32_t)gguf_load_u32(bytes);
	case GGUF_U64:
	case GGUF_I64:
		return (int64_t)gguf_load_u64(bytes);
	case GGUF_F32:
	case GGUF_F64:
	case GGUF_STRING:
	case GGUF_ARRAY:
		break;
	}
	return 0;
}

double gguf_double_at(const struct gguf_value *value, uint64_t idx)
{
	const uint8_t *bytes = value->bytes + idx * gguf_type_bytes(value->element_type);

	if (value->element_type == GGUF_F32)
		return (double)load_f32(bytes);
	if (value->element_type == GGUF_F64)
		return load_f64(bytes);
	if (value->element_type == GGUF_U64)
		return (double)(uint64_t)gguf_integer_at(value, idx);
	return (double)gguf_integer_at(value, idx);
}

/* Looks a key up. Absent and not required: STATUS_OK with *out NULL. */
static enum status find_value(
	const struct gguf *gguf, const char *key, bool required, const struct gguf_value **out, struct err *err)
{
	*out = gguf_find(gguf, key);
	if (!*out && required)
		return err_set(err, STATUS_INPUT, "key '%s' is missing", key);
	return STATUS_OK;
}

static enum status wrong_type(
	const struct gguf *gguf, const struct gguf_value *value, const char *key, const char *expected, struct err *err)
{
	bool array = value->type == GGUF_ARRAY;

	return err_set(err, STATUS_INPUT, "byte %zu: key '%s' has type %s%s, expected %s", (size_t)(value->bytes - gguf->map.data),
		key, array ? "array of " : "", gguf_type_name(value->element_type), expected);
}

enum status gguf_get_u64(const struct gguf *gguf, const char *key, bool required, uint64_t *out, struct err *err)
{
	const struct gguf_value *value;
	enum status status = find_value(gguf, key, required, &value, err);
	int64_t number;

	if (status || !value)
		return status;
	if (!is_integer_type(value->type))
		return wrong_type(gguf, value, key, "an integer", err);
	number = gguf_integer_at(value, 0);
	if (number < 0 && value->type != GGUF_U64)
		return err_set(err, STATUS_INPUT, "byte %zu: key '%s' is %lld, expected zero or more",
			(size_t)(value->bytes - gguf->map.data), key, (long long)number);
	*out = (uint64_t)number;
	return STATUS_OK;
}

enum status gguf_get_double(const struct gguf *gguf, const char *key, bool required, double *out, struct err *err)
{
	const struct gguf_value *value;
	enum status status = find_value(gguf, key, required, &value, err);

	if (status || !value)
		return status;
	if (!is_integer_type(value->type) && value->type != GGUF_F32 && value->type != GGUF_F64)
		return wrong_type(gguf, value, key, "a number", err);
	*out = gguf_double_at(value, 0);
	return STATUS_OK;
}

enum status gguf_get_bool(const struct gguf *gguf, const char *key, bool required, bool *out, struct err *err)
{
	const struct gguf_value *value;
	enum status status = find_value(gguf, key, required, &value, err);

	if (status || !value)
		return status;
	if (value->type != GGUF_BOOL)
		return wrong_type(gguf, value, key, "bool", err);
	*out = value->bytes[0] != 0;
	return STATUS_OK;
}

enum status gguf_get_string(const struct gguf *gguf, const char *key, bool required, struct gguf_string *out, struct err *err)
{
	const struct gguf_value *value;
	const uint8_t *cursor;
	enum status status = find_value(gguf, key, required, &value, err);

	if (status || !value)
		return status;
	if (value->type != GGUF_STRING)
		return wrong_type(gguf, value, key, "string", err);
	cursor = value->bytes;
	*out = gguf_next_string(&cursor);
	return STATUS_OK;
}

enum status gguf_get_array(const struct gguf *gguf, const char *key, enum gguf_type element_type, bool required,
	const struct gguf_value **out, struct err *err)
{
	enum status status = find_value(gguf, key, required, out, err);

	if (status || !*out)
		return status;
	if ((*out)->type == GGUF_ARRAY && (*out)->element_type == element_type)
		return STATUS_OK;
	return err_set(err, STATUS_INPUT, "byte %zu: key '%s' has type %s%s, expected array of %s",
		(size_t)((*out)->bytes - gguf->map.data), key, (*out)->type == GGUF_ARRAY ? "array of " : "",
		gguf_type_name((*out)->element_type), gguf_type_name(element_type));
}
