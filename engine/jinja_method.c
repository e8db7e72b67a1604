/* Methods of strings and dicts in templates: those that published chat templates use. */
#include <string.h>

#include "engine/jinja_apply.h"
#include "engine/jinja_text.h"

static enum status strip_left(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_strip(use->value, use->arguments[0], true, false);
	return STATUS_OK;
}

static enum status strip_right(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_strip(use->value, use->arguments[0], false, true);
	return STATUS_OK;
}

static enum status split(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value most = use->arguments[1];

	if (most.kind != VALUE_UNDEFINED && most.kind != VALUE_INT)
		return err_set(r->err, STATUS_INPUT, "split needs a number as maxsplit");
	return jinja_split(r, use->value, use->arguments[0], most.kind == VALUE_INT ? most.number : -1, out);
}

static enum status split_lines(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return jinja_split_lines(r, use->value, value_is_true(use->arguments[0]), out);
}

static enum status starts_with(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value string = use->value, part = use->arguments[0];

	if (part.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "startswith needs a string");
	*out = value_bool(string.len >= part.len && memcmp(string.bytes, part.bytes, part.len) == 0);
	return STATUS_OK;
}

static enum status ends_with(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value string = use->value, part = use->arguments[0];

	if (part.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "endswith needs a string");
	*out = value_bool(string.len >= part.len && memcmp(string.bytes + string.len - part.len, part.bytes, part.len) == 0);
	return STATUS_OK;
}

static enum status title(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_TITLE);
	return STATUS_OK;
}

static enum status find(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	const char *found;

	if (use->arguments[0].kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "find needs a string");
	found = memmem(use->value.bytes, use->value.len, use->arguments[0].bytes, use->arguments[0].len);
	*out = value_int(found ? jinja_characters(value_string(use->value.bytes, (size_t)(found - use->value.bytes))) : -1);
	return STATUS_OK;
}

static enum status join(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value list = use->arguments[0];

	if (list.kind != VALUE_LIST)
		return err_set(r->err, STATUS_INPUT, "join needs a list");
	for (size_t i = 0; i < list.list->count; i++)
		if (list.list->items[i].kind != VALUE_STRING)
			return err_set(r->err, STATUS_INPUT, "join needs a list of strings");
	return jinja_join(r, list, use->value, out);
}

/* dict.get(key, fallback); without a fallback: None. */
static enum status get(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	if (use->arguments[0].kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "get needs a string");
	*out = value_get(use->value, use->arguments[0].bytes, use->arguments[0].len);
	if (out->kind == VALUE_UNDEFINED)
		*out = use->arguments[1];
	if (out->kind == VALUE_UNDEFINED)
		out->kind = VALUE_NONE;
	return STATUS_OK;
}

static enum status values(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	const struct value_dict *dict = use->value.dict;

	*out = value_list(&r->arena);
	for (size_t i = 0; i < dict->count; i++)
		value_append(&r->arena, *out, dict->values[i]);
	return STATUS_OK;
}

/* loop.cycle(a, b, …): one of them for each turn, from the first again when they are used up. */
static enum status cycle(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	const struct arguments *items = use->written;

	if (use->value.dict->role != DICT_LOOP)
		return err_set(r->err, STATUS_INPUT, "method 'cycle' is not supported here");
	for (size_t i = 0; i < items->count; i++)
		if (items->names[i])
			return err_set(r->err, STATUS_INPUT, "method 'cycle' has an argument that is not supported");
	if (items->count == 0)
		return err_set(r->err, STATUS_INPUT, "no items for cycling given");
	*out = items->values[(size_t)value_get(use->value, "index0", 6).number % items->count];
	return STATUS_OK;
}

#define STRING JINJA_OF(VALUE_STRING)
#define DICT JINJA_OF(VALUE_DICT)

static const struct jinja_entry methods[] = {
	{"strip", STRING, jinja_use_strip, {"chars"}, false},
	{"lstrip", STRING, strip_left, {"chars"}, false},
	{"rstrip", STRING, strip_right, {"chars"}, false},
	{"split", STRING, split, {"sep", "maxsplit"}, false},
	{"splitlines", STRING, split_lines, {"keepends"}, false},
	{"replace", STRING, jinja_use_replace, {"old", "new", "count"}, false},
	{"startswith", STRING, starts_with, {"prefix"}, false},
	{"endswith", STRING, ends_with, {"suffix"}, false},
	{"upper", STRING, jinja_use_upper, {NULL}, false},
	{"lower", STRING, jinja_use_lower, {NULL}, false},
	{"capitalize", STRING, jinja_use_capitalize, {NULL}, false},
	{"title", STRING, title, {NULL}, false},
	{"find", STRING, find, {"sub"}, false},
	{"join", STRING, join, {"iterable"}, false},
	{"get", DICT, get, {"key", "default"}, false},
	{"items", DICT, jinja_use_items, {NULL}, false},
	{"keys", DICT, jinja_use_keys, {NULL}, false},
	{"values", DICT, values, {NULL}, false},
	{"cycle", DICT, cycle, {NULL}, true},
};

static const struct jinja_entry *find_method(const char *name)
{
	return jinja_find(methods, sizeof methods / sizeof methods[0], name);
}

bool jinja_knows_method(const char *name)
{
	return find_method(name) != NULL;
}

enum status jinja_method(
	struct rendering *r, struct value value, const char *name, const struct arguments *arguments, struct value *out)
{
	return jinja_apply(r, find_method(name), "method", name, value, arguments, out);
}
