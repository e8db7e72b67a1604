/* Values of the template interpreter from and to JSON. Recursion is as deep as JSON_DEPTH_MAX. */
#include <string.h>

#include "engine/jinja_value.h"

#define JSON_DEPTH_MAX 64 /* guess: deeper ones are made by loops on purpose */
#define JSON_BYTES_MAX ((size_t)16 << 20) /* guess, likewise: lists that hold one another are as long as 2 to the 64th */

static void print_string(struct value value, struct text *out)
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

static void print_single(struct value value, struct text *out)
{
	if (value.kind == VALUE_STRING)
		print_string(value, out);
	else if (value.kind == VALUE_INT || value.kind == VALUE_FLOAT)
		value_print(value, out);
	else
		text_append_str(out, value.kind != VALUE_BOOL ? "null" : value.truth ? "true" : "false");
}

/* What comes before an item, or before the bracket that closes a level. */
static void print_break(int indent, int depth, bool follows, struct text *out)
{
	if (follows)
		text_append_str(out, indent > 0 ? "," : ", ");
	if (indent > 0)
		text_printf(out, "\n%*s", indent * depth, "");
}

static void print(struct value value, int indent, int depth, struct text *out, const char **stranger)
{
	bool is_list = value.kind == VALUE_LIST, is_dict = value.kind == VALUE_DICT;
	size_t count = is_list ? value.list->count : is_dict ? value.dict->count : 0;

	if (!is_list && !is_dict) {
		print_single(value, out);
		if (value.kind == VALUE_UNDEFINED || value.kind > VALUE_DICT)
			*stranger = value_type_name(value);
		return;
	}
	if (depth == JSON_DEPTH_MAX) {
		text_append_str(out, "null");
		return;
	}
	text_append_char(out, is_list ? '[' : '{');
	for (size_t i = 0; i < count && out->len <= JSON_BYTES_MAX && !*stranger; i++) {
		print_break(indent, depth + 1, i > 0, out);
		if (is_dict) {
			print_string(value.dict->keys[i], out);
			text_append_str(out, ": ");
		}
		print(is_list ? value.list->items[i] : value.dict->values[i], indent, depth + 1, out, stranger);
	}
	if (count > 0)
		print_break(indent, depth, false, out);
	text_append_char(out, is_list ? ']' : '}');
}

bool value_print_json(struct value value, int indent, struct text *out, const char **stranger)
{
	*stranger = NULL;
	print(value, indent, 0, out, stranger);
	return out->len <= JSON_BYTES_MAX && !*stranger;
}

/* ---- reading ---- */

struct reader {
	struct arena *arena;
	value_change *change;
	void *ctx;
};

static struct value read_string(const struct reader *reader, const struct json *json)
{
	struct text text = {0};
	struct value value;

	if (reader->change)
		reader->change(reader->ctx, json_text(json), json_text_len(json), &text);
	else
		text_append(&text, json_text(json), json_text_len(json));
	value = value_copy(reader->arena, &text);
	text_release(&text);
	return value;
}

static bool read_value(const struct reader *reader, const struct json *json, int depth, struct value *out);

static bool read_array(const struct reader *reader, const struct json *json, int depth, struct value *out)
{
	bool read = true;

	*out = value_list(reader->arena);
	for (size_t i = 0; read && i < json_count(json); i++) {
		struct value item;

		read = read_value(reader, json_at(json, i), depth + 1, &item);
		if (read)
			value_append(reader->arena, *out, item);
	}
	return read;
}

static bool read_object(const struct reader *reader, const struct json *json, int depth, struct value *out)
{
	bool read = true;

	*out = value_dict(reader->arena);
	for (void *it = json_first(json); read && it; it = json_next(json, it)) {
		const char *name = json_iterator_key(it);
		struct text key = {0};
		struct value item;

		if (reader->change)
			reader->change(reader->ctx, name, strlen(name), &key);
		else
			text_append_str(&key, name);
		read = read_value(reader, json_iterator_value(it), depth + 1, &item);
		if (read)
			value_set(reader->arena, *out, arena_strndup(reader->arena, text_str(&key), key.len), key.len, item);
		text_release(&key);
	}
	return read;
}

static bool read_value(const struct reader *reader, const struct json *json, int depth, struct value *out)
{
	*out = (struct value){.kind = VALUE_NONE};
	if (depth == JSON_DEPTH_MAX)
		return false;
	switch (json_kind_of(json)) {
	case JSON_KIND_NULL:
		break;
	case JSON_KIND_BOOL:
		*out = value_bool(json_bool(json, false));
		break;
	case JSON_KIND_INTEGER:
		*out = value_int(json_int(json, 0));
		break;
	case JSON_KIND_REAL:
		*out = (struct value){.kind = VALUE_FLOAT, .real = json_number(json, 0)};
		break;
	case JSON_KIND_STRING:
		*out = read_string(reader, json);
		break;
	case JSON_KIND_ARRAY:
		return read_array(reader, json, depth, out);
	case JSON_KIND_OBJECT:
		return read_object(reader, json, depth, out);
	}
	return true;
}

bool value_of_json(struct arena *arena, const struct json *json, value_change *change, void *ctx, struct value *out)
{
	const struct reader reader = {arena, change, ctx};

	return read_value(&reader, json, 0, out);
}
