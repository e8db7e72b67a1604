/* Making, comparing and printing values of the template interpreter. */
#include "engine/jinja_value.h"

#include <inttypes.h>
#include <string.h>

struct value value_bool(bool truth)
{
	return (struct value){.kind = VALUE_BOOL, .truth = truth};
}

struct value value_int(int64_t number)
{
	return (struct value){.kind = VALUE_INT, .number = number};
}

struct value value_string(const char *bytes, size_t len)
{
	return (struct value){.kind = VALUE_STRING, .bytes = bytes ? bytes : "", .len = len};
}

struct value value_text(const char *text)
{
	return value_string(text, strlen(text));
}

struct value value_copy(struct arena *arena, const struct text *text)
{
	return value_string(arena_strndup(arena, text_str(text), text->len), text->len);
}

struct value value_list(struct arena *arena)
{
	return (struct value){.kind = VALUE_LIST, .list = arena_calloc(arena, 1, sizeof(struct value_list))};
}

struct value value_dict(struct arena *arena)
{
	return (struct value){.kind = VALUE_DICT, .dict = arena_calloc(arena, 1, sizeof(struct value_dict))};
}

/* A larger array with the same items; what it replaces stays in the arena, less than the array itself in sum. */
static struct value *grow(struct arena *arena, const struct value *items, size_t count, size_t capacity)
{
	struct value *larger = arena_calloc(arena, capacity, sizeof *larger);
	if (count > 0)
		memcpy(larger, items, count * sizeof *larger);
	return larger;
}

void value_append(struct arena *arena, struct value list, struct value item)
{
	struct value_list *to = list.list;
	if (to->count == to->capacity) {
		to->capacity = 2 * to->capacity + 8;
		to->items = grow(arena, to->items, to->count, to->capacity);
	}
	to->items[to->count++] = item;
}

static size_t find_key(const struct value_dict *dict, const char *key, size_t len)
{
	size_t at = 0;
	while (at < dict->count && (dict->keys[at].len != len || memcmp(dict->keys[at].bytes, key, len) != 0))
		at++;
	return at;
}

void value_set(struct arena *arena, struct value dict, const char *key, size_t len, struct value item)
{
	struct value_dict *to = dict.dict;
	size_t at = find_key(to, key, len);
	if (at == to->capacity) {
		to->capacity = 2 * to->capacity + 4;
		to->keys = grow(arena, to->keys, to->count, to->capacity);
		to->values = grow(arena, to->values, to->count, to->capacity);
	}
	if (at == to->count) {
		to->keys[at] = value_string(key, len);
		to->count++;
	}
	to->values[at] = item;
}

struct value value_get(struct value dict, const char *key, size_t len)
{
	size_t at = dict.kind == VALUE_DICT ? find_key(dict.dict, key, len) : 0;
	return dict.kind == VALUE_DICT && at < dict.dict->count ? dict.dict->values[at] : (struct value){0};
}

bool value_is(struct value value, const char *text)
{
	return value.kind == VALUE_STRING && value.len == strlen(text) && memcmp(value.bytes, text, value.len) == 0;
}

bool value_is_true(struct value value)
{
	switch (value.kind) {
	case VALUE_BOOL:
		return value.truth;
	case VALUE_INT:
		return value.number != 0;
	case VALUE_STRING:
		return value.len > 0;
	case VALUE_LIST:
		return value.list->count > 0;
	case VALUE_DICT:
		return value.dict->count > 0;
	default:
		return false;
	}
}

/* Lists and dicts are compared by identity: templates ask whether a message is one they have seen. */
bool value_equal(struct value a, struct value b)
{
	bool a_number = a.kind == VALUE_BOOL || a.kind == VALUE_INT, b_number = b.kind == VALUE_BOOL || b.kind == VALUE_INT;
	if (a_number && b_number)
		return (a.kind == VALUE_BOOL ? a.truth : a.number) == (b.kind == VALUE_BOOL ? b.truth : b.number);
	if (a.kind != b.kind)
		return false;
	switch (a.kind) {
	case VALUE_STRING:
		return a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0;
	case VALUE_LIST:
		return a.list == b.list || (a.list->count == 0 && b.list->count == 0);
	case VALUE_DICT:
		return a.dict == b.dict;
	default:
		return true;
	}
}

static void print_json_string(struct value value, struct text *out)
{
	text_append_char(out, '"');
	for (size_t i = 0; i < value.len; i++) {
		unsigned char c = (unsigned char)value.bytes[i];
		if (c == '"' || c == '\\')
			text_printf(out, "\\%c", c);
		else if (c == '\n' || c == '\r' || c == '\t' || c == '\b' || c == '\f')
			text_printf(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : c == '\t' ? 't' : c == '\b' ? 'b' : 'f');
		else if (c < 0x20)
			text_printf(out, "\\u%04x", c);
		else
			text_append_char(out, (char)c);
	}
	text_append_char(out, '"');
}

#define JSON_DEPTH_MAX 64 /* guess: deeper ones are made by loops on purpose */
#define JSON_BYTES_MAX ((size_t)16 << 20) /* guess, likewise: lists that hold one another are as long as 2 to the 64th */

static void print_json(struct value value, int depth, struct text *out)
{
	bool is_list = value.kind == VALUE_LIST, is_dict = value.kind == VALUE_DICT;
	size_t count = is_list ? value.list->count : is_dict ? value.dict->count : 0;
	if ((!is_list && !is_dict) || depth == JSON_DEPTH_MAX) {
		if (value.kind == VALUE_STRING)
			print_json_string(value, out);
		else if (value.kind == VALUE_INT)
			text_printf(out, "%" PRId64, value.number);
		else
			text_append_str(out, value.kind != VALUE_BOOL ? "null" : value.truth ? "true" : "false");
		return;
	}
	text_append_char(out, is_list ? '[' : '{');
	for (size_t i = 0; i < count && out->len <= JSON_BYTES_MAX; i++) {
		text_append_str(out, i > 0 ? ", " : "");
		if (is_dict) {
			print_json_string(value.dict->keys[i], out);
			text_append_str(out, ": ");
		}
		print_json(is_list ? value.list->items[i] : value.dict->values[i], depth + 1, out);
	}
	text_append_char(out, is_list ? ']' : '}');
}

bool value_print_json(struct value value, struct text *out)
{
	print_json(value, 0, out);
	return out->len <= JSON_BYTES_MAX;
}

void value_print(struct value value, struct text *out)
{
	switch (value.kind) {
	case VALUE_UNDEFINED:
		break;
	case VALUE_NONE:
		text_append_str(out, "None");
		break;
	case VALUE_BOOL:
		text_append_str(out, value.truth ? "True" : "False");
		break;
	case VALUE_INT:
		text_printf(out, "%" PRId64, value.number);
		break;
	case VALUE_STRING:
		text_append(out, value.bytes, value.len);
		break;
	default: /* the evaluator refuses to print these */
		break;
	}
}
