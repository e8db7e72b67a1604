/* Methods of strings and dicts in templates: those that published chat templates use. */
#include <string.h>

#include "engine/jinja_text.h"

/* One call: what it is called on, and the arguments. */
struct call {
	struct value value, first, second;
};

static enum status strip(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_strip(call->value, call->first, true, true);
	return STATUS_OK;
}

static enum status strip_left(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_strip(call->value, call->first, true, false);
	return STATUS_OK;
}

static enum status strip_right(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_strip(call->value, call->first, false, true);
	return STATUS_OK;
}

static enum status split(struct rendering *r, const struct call *call, struct value *out)
{
	return jinja_split(r, call->value, call->first, call->second.kind == VALUE_INT ? call->second.number : -1, out);
}

static enum status split_lines(struct rendering *r, const struct call *call, struct value *out)
{
	return jinja_split_lines(r, call->value, out);
}

static enum status replace(struct rendering *r, const struct call *call, struct value *out)
{
	if (call->first.kind != VALUE_STRING || call->second.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "replace needs two strings");
	return jinja_replace(r, call->value, call->first, call->second, out);
}

static enum status starts_with(struct rendering *r, const struct call *call, struct value *out)
{
	struct value string = call->value, part = call->first;

	if (part.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "startswith needs a string");
	*out = value_bool(string.len >= part.len && memcmp(string.bytes, part.bytes, part.len) == 0);
	return STATUS_OK;
}

static enum status ends_with(struct rendering *r, const struct call *call, struct value *out)
{
	struct value string = call->value, part = call->first;

	if (part.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "endswith needs a string");
	*out = value_bool(string.len >= part.len && memcmp(string.bytes + string.len - part.len, part.bytes, part.len) == 0);
	return STATUS_OK;
}

static enum status upper(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_change_case(&r->arena, call->value, CASE_UPPER);
	return STATUS_OK;
}

static enum status lower(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_change_case(&r->arena, call->value, CASE_LOWER);
	return STATUS_OK;
}

static enum status capitalize(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_change_case(&r->arena, call->value, CASE_CAPITALIZE);
	return STATUS_OK;
}

static enum status title(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_change_case(&r->arena, call->value, CASE_TITLE);
	return STATUS_OK;
}

static enum status find(struct rendering *r, const struct call *call, struct value *out)
{
	const char *found;

	if (call->first.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "find needs a string");
	found = memmem(call->value.bytes, call->value.len, call->first.bytes, call->first.len);
	*out = value_int(found ? jinja_characters(value_string(call->value.bytes, (size_t)(found - call->value.bytes))) : -1);
	return STATUS_OK;
}

static enum status join(struct rendering *r, const struct call *call, struct value *out)
{
	if (call->first.kind != VALUE_LIST)
		return err_set(r->err, STATUS_INPUT, "join needs a list");
	return jinja_join(r, call->first, call->value, out);
}

/* dict.get(key, fallback); without a fallback: None. */
static enum status get(struct rendering *r, const struct call *call, struct value *out)
{
	if (call->first.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "get needs a string");
	*out = value_get(call->value, call->first.bytes, call->first.len);
	if (out->kind == VALUE_UNDEFINED)
		*out = call->second;
	if (out->kind == VALUE_UNDEFINED)
		out->kind = VALUE_NONE;
	return STATUS_OK;
}

static enum status items(struct rendering *r, const struct call *call, struct value *out)
{
	*out = jinja_items(r, call->value);
	return STATUS_OK;
}

static enum status keys(struct rendering *r, const struct call *call, struct value *out)
{
	const struct value_dict *dict = call->value.dict;

	*out = value_list(&r->arena);
	for (size_t i = 0; i < dict->count; i++)
		value_append(&r->arena, *out, dict->keys[i]);
	return STATUS_OK;
}

static enum status values(struct rendering *r, const struct call *call, struct value *out)
{
	const struct value_dict *dict = call->value.dict;

	*out = value_list(&r->arena);
	for (size_t i = 0; i < dict->count; i++)
		value_append(&r->arena, *out, dict->values[i]);
	return STATUS_OK;
}

static const struct method {
	const char *name;
	enum value_kind of;
	enum status (*run)(struct rendering *r, const struct call *call, struct value *out);
} methods[] = {
	{"strip", VALUE_STRING, strip},
	{"lstrip", VALUE_STRING, strip_left},
	{"rstrip", VALUE_STRING, strip_right},
	{"split", VALUE_STRING, split},
	{"splitlines", VALUE_STRING, split_lines},
	{"replace", VALUE_STRING, replace},
	{"startswith", VALUE_STRING, starts_with},
	{"endswith", VALUE_STRING, ends_with},
	{"upper", VALUE_STRING, upper},
	{"lower", VALUE_STRING, lower},
	{"capitalize", VALUE_STRING, capitalize},
	{"title", VALUE_STRING, title},
	{"find", VALUE_STRING, find},
	{"join", VALUE_STRING, join},
	{"get", VALUE_DICT, get},
	{"items", VALUE_DICT, items},
	{"keys", VALUE_DICT, keys},
	{"values", VALUE_DICT, values},
};

static const struct method *find_method(const char *name)
{
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
		if (strcmp(name, methods[i].name) == 0)
			return &methods[i];
	return NULL;
}

bool jinja_knows_method(const char *name)
{
	return find_method(name) != NULL;
}

enum status jinja_method(
	struct rendering *r, struct value value, const char *name, const struct arguments *arguments, struct value *out)
{
	const struct call call = {value, jinja_argument(arguments, 0, NULL), jinja_argument(arguments, 1, NULL)};
	const struct method *method = find_method(name);

	if (!method || value.kind != method->of || arguments->count > 2)
		return err_set(r->err, STATUS_INPUT, "method '%.40s' is not supported here", name);
	if (jinja_spend(r, jinja_cost(value, call.first)) != STATUS_OK)
		return STATUS_INPUT;
	return method->run(r, &call, out);
}
