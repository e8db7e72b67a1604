/* Filters of templates: those that published chat templates use. */
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_text.h"

/* One application: what is filtered, and the arguments. */
struct use {
	struct value value, first, second;
	const struct arguments *arguments;
};

static enum status same(struct rendering *r, const struct use *use, struct value *out)
{
	*out = use->value;
	return STATUS_OK;
}

static enum status list(struct rendering *r, const struct use *use, struct value *out)
{
	const struct value_dict *dict = use->value.dict;

	if (use->value.kind == VALUE_LIST)
		return same(r, use, out);
	*out = value_list(&r->arena);
	for (size_t i = 0; i < dict->count; i++)
		value_append(&r->arena, *out, dict->keys[i]);
	return STATUS_OK;
}

static enum status string(struct rendering *r, const struct use *use, struct value *out)
{
	struct text text = {0};
	enum status status;

	value_print(use->value, &text);
	status = jinja_spend(r, text.len);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

static enum status fall_back(struct rendering *r, const struct use *use, struct value *out)
{
	bool replaced = use->value.kind == VALUE_UNDEFINED ||
		(value_is_true(jinja_argument(use->arguments, 1, "boolean")) && !value_is_true(use->value));

	*out = replaced ? jinja_argument(use->arguments, 0, "default_value") : use->value;
	return STATUS_OK;
}

static enum status trim(struct rendering *r, const struct use *use, struct value *out)
{
	*out = jinja_strip(use->value, use->first, true, true);
	return STATUS_OK;
}

static enum status length(struct rendering *r, const struct use *use, struct value *out)
{
	struct value value = use->value;

	*out = value_int(value.kind == VALUE_STRING ? jinja_characters(value)
			: value.kind == VALUE_LIST  ? (int64_t)value.list->count
						    : (int64_t)value.dict->count);
	return STATUS_OK;
}

static enum status upper(struct rendering *r, const struct use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_UPPER);
	return STATUS_OK;
}

static enum status lower(struct rendering *r, const struct use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_LOWER);
	return STATUS_OK;
}

static enum status capitalize(struct rendering *r, const struct use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_CAPITALIZE);
	return STATUS_OK;
}

static enum status title(struct rendering *r, const struct use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_WORDS);
	return STATUS_OK;
}

static enum status replace(struct rendering *r, const struct use *use, struct value *out)
{
	if (use->first.kind != VALUE_STRING || use->second.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "replace needs two strings");
	if (use->arguments->count > 2)
		return err_set(r->err, STATUS_INPUT, "replace is supported without a count");
	return jinja_replace(r, use->value, use->first, use->second, out);
}

static enum status indent(struct rendering *r, const struct use *use, struct value *out)
{
	struct value width = jinja_argument(use->arguments, 0, "width");

	if (width.kind != VALUE_UNDEFINED && width.kind != VALUE_INT)
		return err_set(r->err, STATUS_INPUT, "indent needs a number");
	return jinja_indent(r, use->value, width.kind == VALUE_INT ? width.number : 4,
		value_is_true(jinja_argument(use->arguments, 1, "first")),
		value_is_true(jinja_argument(use->arguments, 2, "blank")), out);
}

/* ---- lists ---- */

static enum status first(struct rendering *r, const struct use *use, struct value *out)
{
	*out = use->value.list->count > 0 ? use->value.list->items[0] : (struct value){0};
	return STATUS_OK;
}

static enum status last(struct rendering *r, const struct use *use, struct value *out)
{
	size_t count = use->value.list->count;

	*out = count > 0 ? use->value.list->items[count - 1] : (struct value){0};
	return STATUS_OK;
}

static enum status reverse(struct rendering *r, const struct use *use, struct value *out)
{
	*out = value_list(&r->arena);
	for (size_t i = use->value.list->count; i > 0; i--)
		value_append(&r->arena, *out, use->value.list->items[i - 1]);
	return jinja_spend(r, use->value.list->count);
}

/* A member of an item, by a name with dots or a number. */
static struct value attribute_of(struct value item, struct value name)
{
	const char *at = name.bytes, *end = at + name.len;

	if (name.kind == VALUE_INT)
		return item.kind == VALUE_LIST && name.number >= 0 && (size_t)name.number < item.list->count
			? item.list->items[name.number]
			: (struct value){0};
	while (at < end) {
		const char *dot = memchr(at, '.', (size_t)(end - at)), *stop = dot ? dot : end;

		item = value_get(item, at, (size_t)(stop - at));
		at = dot ? dot + 1 : end;
	}
	return item;
}

static enum status join(struct rendering *r, const struct use *use, struct value *out)
{
	struct value attribute = jinja_argument(use->arguments, 1, "attribute"), items = use->value;

	if (attribute.kind == VALUE_STRING) {
		items = value_list(&r->arena);
		for (size_t i = 0; i < use->value.list->count; i++)
			value_append(&r->arena, items, attribute_of(use->value.list->items[i], attribute));
	}
	return jinja_join(r, items, jinja_argument(use->arguments, 0, "d"), out);
}

/* The arguments from number from on. */
static struct arguments rest_of(const struct arguments *arguments, size_t from)
{
	struct arguments rest = {.count = 0};

	for (size_t i = from; i < arguments->count; i++, rest.count++) {
		rest.values[rest.count] = arguments->values[i];
		rest.names[rest.count] = arguments->names[i];
	}
	return rest;
}

/* A name in an argument, as a C string in the arena; NULL when it is none. */
static const char *name_in(struct rendering *r, struct value value)
{
	return value.kind == VALUE_STRING ? arena_strndup(&r->arena, value.bytes, value.len) : NULL;
}

/* map(attribute=NAME, default=VALUE) or map(FILTER, arguments…) */
static enum status map(struct rendering *r, const struct use *use, struct value *out)
{
	struct value attribute = jinja_argument(use->arguments, JINJA_ARGUMENTS_MAX, "attribute");
	struct value fallback = jinja_argument(use->arguments, JINJA_ARGUMENTS_MAX, "default");
	struct arguments rest = rest_of(use->arguments, 1);
	const char *filter = name_in(r, use->first);

	if (attribute.kind == VALUE_UNDEFINED && (!filter || !jinja_knows_filter(filter)))
		return err_set(r->err, STATUS_INPUT, "map needs an attribute or the name of a filter that is supported");
	*out = value_list(&r->arena);
	for (size_t i = 0; i < use->value.list->count; i++) {
		struct value item = use->value.list->items[i];

		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
		if (attribute.kind != VALUE_UNDEFINED) {
			item = attribute_of(item, attribute);
			item = item.kind == VALUE_UNDEFINED ? fallback : item;
		} else if (jinja_filter(r, filter, item, &rest, &item) != STATUS_OK) {
			return STATUS_INPUT;
		}
		value_append(&r->arena, *out, item);
	}
	return STATUS_OK;
}

/* Items of which something passes a test: themselves, or an attribute of theirs. Without a test: what is true. */
static enum status keep(struct rendering *r, const struct use *use, bool by_attribute, bool wanted, struct value *out)
{
	struct value attribute = use->first, test = by_attribute ? use->second : use->first;
	struct arguments rest = rest_of(use->arguments, by_attribute ? 2 : 1);
	const char *name = name_in(r, test);

	if (by_attribute && attribute.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "selectattr without the name of an attribute");
	*out = value_list(&r->arena);
	for (size_t i = 0; i < use->value.list->count; i++) {
		struct value item = use->value.list->items[i], value = by_attribute ? attribute_of(item, attribute) : item;
		bool passes = value_is_true(value);

		if (jinja_spend(r, 0) != STATUS_OK || (name && jinja_test(r, name, value, &rest, &passes) != STATUS_OK))
			return STATUS_INPUT;
		if (passes == wanted)
			value_append(&r->arena, *out, item);
	}
	return STATUS_OK;
}

static enum status select_items(struct rendering *r, const struct use *use, struct value *out)
{
	return keep(r, use, false, true, out);
}

static enum status reject(struct rendering *r, const struct use *use, struct value *out)
{
	return keep(r, use, false, false, out);
}

static enum status select_by_attribute(struct rendering *r, const struct use *use, struct value *out)
{
	return keep(r, use, true, true, out);
}

static enum status reject_by_attribute(struct rendering *r, const struct use *use, struct value *out)
{
	return keep(r, use, true, false, out);
}

static enum status unique(struct rendering *r, const struct use *use, struct value *out)
{
	*out = value_list(&r->arena);
	for (size_t i = 0; i < use->value.list->count; i++) {
		size_t units = 0, k = 0;

		while (k < out->list->count && !value_equal(out->list->items[k], use->value.list->items[i], &units))
			k++;
		if (k == out->list->count)
			value_append(&r->arena, *out, use->value.list->items[i]);
		if (jinja_spend(r, units) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

/* ---- dicts ---- */

static enum status items(struct rendering *r, const struct use *use, struct value *out)
{
	*out = use->value.kind == VALUE_DICT ? jinja_items(r, use->value) : value_list(&r->arena);
	return STATUS_OK;
}

/* Pairs in the order of their keys, letters of both cases as one. */
static int compare_pairs(const void *a, const void *b)
{
	struct value left = ((const struct value *)a)->list->items[0], right = ((const struct value *)b)->list->items[0];
	size_t len = left.len < right.len ? left.len : right.len;
	int order = strncasecmp(left.bytes, right.bytes, len);

	return order ? order : (left.len > right.len) - (left.len < right.len);
}

static enum status sort_dict(struct rendering *r, const struct use *use, struct value *out)
{
	if (use->arguments->count > 0)
		return err_set(r->err, STATUS_INPUT, "dictsort is supported without arguments");
	*out = jinja_items(r, use->value);
	if (out->list->count > 0)
		qsort(out->list->items, out->list->count, sizeof *out->list->items, compare_pairs);
	return jinja_spend(r, out->list->count * 8);
}

/* tojson(indent=4); other arguments may only say what is so anyway. */
static enum status to_json(struct rendering *r, const struct use *use, struct value *out)
{
	struct value indent = {0};
	struct text text = {0};
	enum status status = STATUS_OK;

	if (use->value.kind == VALUE_UNDEFINED || use->value.kind == VALUE_MACRO)
		return err_set(r->err, STATUS_INPUT, "Object of type %s is not JSON serializable",
			use->value.kind == VALUE_MACRO ? "Macro" : "Undefined");
	for (size_t i = 0; i < use->arguments->count; i++) {
		const char *name = use->arguments->names[i];
		struct value value = use->arguments->values[i];

		if (name && strcmp(name, "indent") == 0 && (value.kind == VALUE_INT || value.kind == VALUE_NONE))
			indent = value;
		else if (!name || strcmp(name, "ensure_ascii") != 0 || value_is_true(value))
			return err_set(r->err, STATUS_INPUT, "tojson is supported with a number as indent");
	}
	if (indent.kind == VALUE_INT && (indent.number < 1 || indent.number > 16))
		return err_set(r->err, STATUS_INPUT, "tojson is supported with an indent of 1 to 16");
	if (!value_print_json(use->value, indent.kind == VALUE_INT ? (int)indent.number : 0, &text))
		status = err_set(r->err, STATUS_INPUT, "tojson makes too long a text");
	if (status == STATUS_OK)
		status = jinja_spend(r, text.len);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

/* ---- numbers ---- */

static enum status whole(struct rendering *r, const struct use *use, struct value *out)
{
	struct value string = jinja_strip(use->value, (struct value){0}, true, true);
	char digits[24] = "";
	long long number = 0;

	*out = use->value;
	if (use->value.kind == VALUE_BOOL)
		*out = value_int(use->value.truth);
	if (use->value.kind != VALUE_STRING)
		return STATUS_OK;
	if (string.len < sizeof digits)
		memcpy(digits, string.bytes, string.len);
	*out = value_int(text_to_i64(digits, &number) ? number : 0);
	return STATUS_OK;
}

/* ---- all of them ---- */

#define OF(kind) (1u << (kind))
#define ANY (~0u)
#define SINGLE (OF(VALUE_UNDEFINED) | OF(VALUE_NONE) | OF(VALUE_BOOL) | OF(VALUE_INT) | OF(VALUE_FLOAT) | OF(VALUE_STRING))
#define SIZED (OF(VALUE_STRING) | OF(VALUE_LIST) | OF(VALUE_DICT))

static const struct filter {
	const char *name;
	unsigned kinds; /* of values that it takes */
	enum status (*run)(struct rendering *r, const struct use *use, struct value *out);
} filters[] = {
	{"safe", ANY, same},
	{"list", OF(VALUE_LIST) | OF(VALUE_DICT), list},
	{"string", SINGLE, string},
	{"default", ANY, fall_back},
	{"d", ANY, fall_back},
	{"trim", OF(VALUE_STRING), trim},
	{"length", SIZED, length},
	{"count", SIZED, length},
	{"upper", OF(VALUE_STRING), upper},
	{"lower", OF(VALUE_STRING), lower},
	{"capitalize", OF(VALUE_STRING), capitalize},
	{"title", OF(VALUE_STRING), title},
	{"replace", OF(VALUE_STRING), replace},
	{"indent", OF(VALUE_STRING), indent},
	{"first", OF(VALUE_LIST), first},
	{"last", OF(VALUE_LIST), last},
	{"reverse", OF(VALUE_LIST), reverse},
	{"join", OF(VALUE_LIST), join},
	{"map", OF(VALUE_LIST), map},
	{"select", OF(VALUE_LIST), select_items},
	{"reject", OF(VALUE_LIST), reject},
	{"selectattr", OF(VALUE_LIST), select_by_attribute},
	{"rejectattr", OF(VALUE_LIST), reject_by_attribute},
	{"unique", OF(VALUE_LIST), unique},
	{"items", OF(VALUE_DICT) | OF(VALUE_UNDEFINED), items},
	{"dictsort", OF(VALUE_DICT), sort_dict},
	{"tojson", ANY, to_json},
	{"int", OF(VALUE_STRING) | OF(VALUE_INT) | OF(VALUE_BOOL), whole},
};

static const struct filter *find_filter(const char *name)
{
	for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++)
		if (strcmp(name, filters[i].name) == 0)
			return &filters[i];
	return NULL;
}

bool jinja_knows_filter(const char *name)
{
	return find_filter(name) != NULL;
}

enum status jinja_filter(
	struct rendering *r, const char *name, struct value value, const struct arguments *arguments, struct value *out)
{
	const struct use use = {value, jinja_argument(arguments, 0, NULL), jinja_argument(arguments, 1, NULL), arguments};
	const struct filter *filter = find_filter(name);

	if (!filter || !(filter->kinds & OF(value.kind)))
		return err_set(r->err, STATUS_INPUT, "filter '%.40s' is not supported here", name);
	if (jinja_spend(r, jinja_cost(value, use.first)) != STATUS_OK)
		return STATUS_INPUT;
	return filter->run(r, &use, out);
}
