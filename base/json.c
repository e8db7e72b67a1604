/* JSON over Jansson: the only file that includes it. A struct json is a json_t under another name. */
#include "base/json.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

#undef json_is_number /* Jansson's macro; ours is a function of the same meaning */

static json_t *node(const struct json *value)
{
	return (json_t *)value;
}

static struct json *wrap(json_t *value)
{
	ASSERT(value != NULL); /* Jansson gives NULL only when memory is out or a contract of ours was broken */
	return (struct json *)value;
}

enum status json_parse(const char *bytes, size_t len, const char *source, struct json **out, struct err *err)
{
	json_error_t error;
	*out = NULL;
	json_t *root = json_loadb(bytes ? bytes : "", len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (!root) {
		int line = error.line > 0 ? error.line : 1, column = error.column > 0 ? error.column : 1;
		return err_set(err, STATUS_INPUT, "%s:%d:%d: %s", source, line, column, error.text);
	}
	*out = wrap(root);
	return STATUS_OK;
}

void json_free(struct json *root)
{
	json_decref(node(root));
}

struct json *json_clone(const struct json *value)
{
	return wrap(json_deep_copy(node(value)));
}

enum json_kind json_kind_of(const struct json *value)
{
	if (!value)
		return JSON_KIND_NULL;
	switch (json_typeof(node(value))) {
	case JSON_OBJECT:
		return JSON_KIND_OBJECT;
	case JSON_ARRAY:
		return JSON_KIND_ARRAY;
	case JSON_STRING:
		return JSON_KIND_STRING;
	case JSON_INTEGER:
		return JSON_KIND_INTEGER;
	case JSON_REAL:
		return JSON_KIND_REAL;
	case JSON_TRUE:
	case JSON_FALSE:
		return JSON_KIND_BOOL;
	default:
		return JSON_KIND_NULL;
	}
}

const char *json_kind_name(enum json_kind kind)
{
	static const char *const names[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
	return names[kind];
}

struct json *json_get(const struct json *object, const char *key)
{
	return (struct json *)json_object_get(node(object), key);
}

struct json *json_at(const struct json *array, size_t index)
{
	return (struct json *)json_array_get(node(array), index);
}

size_t json_count(const struct json *value)
{
	return json_is_object(node(value)) ? json_object_size(node(value)) : json_array_size(node(value));
}

const char *json_text(const struct json *value)
{
	return json_string_value(node(value));
}

size_t json_text_len(const struct json *value)
{
	return json_string_length(node(value));
}

bool json_is_number(const struct json *value)
{
	enum json_kind kind = json_kind_of(value);
	return kind == JSON_KIND_INTEGER || kind == JSON_KIND_REAL;
}

double json_number(const struct json *value, double fallback)
{
	return json_is_number(value) ? json_number_value(node(value)) : fallback;
}

int64_t json_int(const struct json *value, int64_t fallback)
{
	return json_kind_of(value) == JSON_KIND_INTEGER ? (int64_t)json_integer_value(node(value)) : fallback;
}

bool json_bool(const struct json *value, bool fallback)
{
	return json_kind_of(value) == JSON_KIND_BOOL ? json_is_true(node(value)) : fallback;
}

static bool same_members(const struct json *a, const struct json *b);

bool json_same(const struct json *a, const struct json *b)
{
	if (json_is_number(a) && json_is_number(b)) {
		if (json_kind_of(a) == JSON_KIND_INTEGER && json_kind_of(b) == JSON_KIND_INTEGER)
			return json_int(a, 0) == json_int(b, 0);
		return json_number(a, 0) == json_number(b, 0);
	}
	if (json_kind_of(a) != json_kind_of(b) || json_count(a) != json_count(b))
		return false;
	switch (json_kind_of(a)) {
	case JSON_KIND_STRING:
		return json_text_len(a) == json_text_len(b) && memcmp(json_text(a), json_text(b), json_text_len(a)) == 0;
	case JSON_KIND_BOOL:
		return json_bool(a, false) == json_bool(b, false);
	case JSON_KIND_ARRAY:
	case JSON_KIND_OBJECT:
		return same_members(a, b);
	default:
		return true;
	}
}

/* Depth is bounded by the parser's own limit (2048 levels), so this recursion is too. */
static bool same_members(const struct json *a, const struct json *b)
{
	if (json_kind_of(a) == JSON_KIND_ARRAY) {
		for (size_t i = 0; i < json_count(a); i++)
			if (!json_same(json_at(a, i), json_at(b, i)))
				return false;
		return true;
	}
	for (void *it = json_first(a); it; it = json_next(a, it)) {
		const struct json *other = json_get(b, json_iterator_key(it));
		if (!other || !json_same(json_iterator_value(it), other))
			return false;
	}
	return true;
}

void *json_first(const struct json *object)
{
	return json_object_iter(node(object));
}

void *json_next(const struct json *object, void *iterator)
{
	return json_object_iter_next(node(object), iterator);
}

const char *json_iterator_key(void *iterator)
{
	return json_object_iter_key(iterator);
}

struct json *json_iterator_value(void *iterator)
{
	return (struct json *)json_object_iter_value(iterator);
}

struct json *json_new_object(void)
{
	return wrap(json_object());
}

struct json *json_new_array(void)
{
	return wrap(json_array());
}

struct json *json_new_null(void)
{
	return wrap(json_null());
}

struct json *json_new_bool(bool value)
{
	return wrap(json_boolean(value));
}

struct json *json_new_integer(int64_t value)
{
	return wrap(json_integer((json_int_t)value));
}

struct json *json_new_number(double value)
{
	return wrap(isfinite(value) ? json_real(value) : json_null());
}

struct json *json_new_string(const char *value)
{
	return value ? json_new_string_len(value, strlen(value)) : json_new_null();
}

struct json *json_new_string_len(const char *value, size_t len)
{
	if (utf8_is_valid(value, len))
		return wrap(json_stringn(value, len));
	struct text repaired = {0};
	utf8_append_lossy(&repaired, value, len);
	json_t *string = json_stringn(text_str(&repaired), repaired.len);
	text_release(&repaired);
	return wrap(string);
}

void json_set(struct json *object, const char *key, struct json *value)
{
	ASSERT(json_object_set_new(node(object), key, node(value)) == 0);
}

void json_append(struct json *array, struct json *value)
{
	ASSERT(json_array_append_new(node(array), node(value)) == 0);
}

void json_remove(struct json *object, const char *key)
{
	json_object_del(node(object), key);
}

static int append_to_text(const char *bytes, size_t len, void *ctx)
{
	text_append(ctx, bytes, len);
	return 0;
}

void json_write(const struct json *value, enum json_style style, struct text *out)
{
	static const size_t flags[] = {
		[JSON_STYLE_COMPACT] = JSON_COMPACT,
		[JSON_STYLE_PRETTY] = JSON_INDENT(2),
		[JSON_STYLE_CANONICAL] = JSON_COMPACT | JSON_SORT_KEYS,
	};
	ASSERT(json_dump_callback(node(value), append_to_text, out, flags[style] | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) == 0);
}
