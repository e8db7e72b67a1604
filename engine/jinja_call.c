/* Filters, tests, methods, functions and operators of templates: those that published chat templates use. */
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "engine/jinja_node.h"

#define RANGE_MAX 100000 /* items; guess: templates count messages */

/* ---- strings ---- */

/* White space as Python's str.strip sees it. */
static bool is_white(uint32_t c)
{
	return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* True when the character at at goes: white space, or one of set. An invalid byte stays. *bytes is its length. */
static bool is_stripped(const char *at, const char *end, struct value set, int *bytes)
{
	uint32_t c = 0;
	*bytes = utf8_decode(at, (size_t)(end - at), &c);
	if (*bytes <= 0) {
		*bytes = 1;
		return false;
	}
	return set.kind == VALUE_STRING ? memmem(set.bytes, set.len, at, (size_t)*bytes) != NULL : is_white(c);
}

/* Without what is stripped at its beginning and its end. */
static struct value strip(struct value string, struct value set, bool left, bool right)
{
	const char *begin = string.bytes, *end = begin + string.len, *last;
	int bytes;
	while (left && begin < end && is_stripped(begin, end, set, &bytes))
		begin += bytes;
	/* One pass forward: what follows the last character that stays goes. */
	last = begin;
	for (const char *at = begin; right && at < end; at += bytes)
		if (!is_stripped(at, end, set, &bytes))
			last = at + bytes;
	return value_string(begin, (size_t)((right ? last : end) - begin));
}

static enum status split(struct rendering *r, struct value string, struct value separator, int64_t most, struct value *out)
{
	struct arena *arena = &r->arena;
	struct value list = *out = value_list(arena);
	const char *at = string.bytes, *end = at + string.len;
	while (most < 0 || (int64_t)list.list->count < most) {
		const char *next = memmem(at, (size_t)(end - at), separator.bytes, separator.len);
		if (!next)
			break;
		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
		value_append(arena, list, value_string(at, (size_t)(next - at)));
		at = next + separator.len;
	}
	value_append(arena, list, value_string(at, (size_t)(end - at)));
	return STATUS_OK;
}

static enum status replace(struct rendering *r, struct value string, struct value from, struct value to, struct value *out)
{
	struct text text = {0};
	const char *at = string.bytes, *end = at + string.len, *next;
	enum status status = STATUS_OK;
	while (status == STATUS_OK && from.len > 0 && (next = memmem(at, (size_t)(end - at), from.bytes, from.len))) {
		text_append(&text, at, (size_t)(next - at));
		text_append(&text, to.bytes, to.len);
		at = next + from.len;
		status = jinja_spend(r, to.len);
	}
	text_append(&text, at, (size_t)(end - at));
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

/* ASCII letters alone change: roles and names are made of these. */
static struct value change_case(struct arena *arena, struct value string, bool upper, bool only_first)
{
	char *copy = arena_strndup(arena, string.bytes, string.len);
	for (size_t i = 0; i < string.len; i++) {
		bool up = only_first ? i == 0 : upper;
		if (up ? copy[i] >= 'a' && copy[i] <= 'z' : copy[i] >= 'A' && copy[i] <= 'Z')
			copy[i] = (char)(copy[i] ^ 0x20);
	}
	return value_string(copy, string.len);
}

static bool begins_with(struct value string, struct value part)
{
	return part.kind == VALUE_STRING && string.len >= part.len && memcmp(string.bytes, part.bytes, part.len) == 0;
}

static bool ends_with(struct value string, struct value part)
{
	return part.kind == VALUE_STRING && string.len >= part.len &&
		memcmp(string.bytes + string.len - part.len, part.bytes, part.len) == 0;
}

/* dict.get(key, fallback); without a fallback: None. */
static struct value get(struct value dict, struct value key, struct value fallback)
{
	struct value found = value_get(dict, key.bytes, key.len);
	if (found.kind != VALUE_UNDEFINED)
		return found;
	if (fallback.kind == VALUE_UNDEFINED)
		fallback.kind = VALUE_NONE;
	return fallback;
}

/* Units of work of a method or a filter, before what its own loop adds. Stripping looks for each character in the argument. */
static size_t cost(struct value value, struct value argument)
{
	return value.kind == VALUE_STRING ? value.len * (1 + argument.len / 16) : value.kind == VALUE_DICT ? value.dict->count : 0;
}

enum status jinja_method(
	struct rendering *r, struct value value, const char *name, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL), second = jinja_argument(arguments, 1, NULL);
	bool text = value.kind == VALUE_STRING, dict = value.kind == VALUE_DICT, takes_text = first.kind == VALUE_STRING;
	if (jinja_spend(r, cost(value, first)) != STATUS_OK)
		return STATUS_INPUT;
	if (text && strcmp(name, "strip") == 0)
		*out = strip(value, first, true, true);
	else if (text && strcmp(name, "lstrip") == 0)
		*out = strip(value, first, true, false);
	else if (text && strcmp(name, "rstrip") == 0)
		*out = strip(value, first, false, true);
	else if (text && takes_text && first.len > 0 && strcmp(name, "split") == 0)
		return split(r, value, first, second.kind == VALUE_INT ? second.number : -1, out);
	else if (text && takes_text && second.kind == VALUE_STRING && strcmp(name, "replace") == 0)
		return replace(r, value, first, second, out);
	else if (text && strcmp(name, "startswith") == 0)
		*out = value_bool(begins_with(value, first));
	else if (text && strcmp(name, "endswith") == 0)
		*out = value_bool(ends_with(value, first));
	else if (text && (strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0))
		*out = change_case(&r->arena, value, name[0] == 'u', false);
	else if (dict && takes_text && strcmp(name, "get") == 0)
		*out = get(value, first, second);
	else
		return err_set(r->err, STATUS_INPUT, "method '%.40s' is not supported here", name);
	return STATUS_OK;
}

/* ---- filters ---- */

static int64_t length(struct value value)
{
	int64_t count = 0;
	if (value.kind != VALUE_STRING)
		return value.kind == VALUE_LIST ? (int64_t)value.list->count : (int64_t)value.dict->count;
	for (size_t i = 0; i < value.len; i++)
		count += ((unsigned char)value.bytes[i] & 0xc0) != 0x80;
	return count;
}

static enum status join(struct rendering *r, struct value list, struct value separator, struct value *out)
{
	struct text text = {0};
	enum status status = STATUS_OK;
	for (size_t i = 0; status == STATUS_OK && i < list.list->count; i++) {
		if (i > 0)
			value_print(separator, &text);
		value_print(list.list->items[i], &text);
		status = jinja_spend(r, separator.len + list.list->items[i].len);
	}
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

/* selectattr(attribute, test, value): items whose attribute passes the test; without a test, those where it is true. */
static enum status select_items(
	struct rendering *r, struct value list, const struct arguments *arguments, bool wanted, struct value *out)
{
	struct value attribute = jinja_argument(arguments, 0, NULL), test = jinja_argument(arguments, 1, NULL);
	struct arguments rest = {.count = arguments->count > 2, .values = {jinja_argument(arguments, 2, NULL)}};
	char name[32] = "";
	if (attribute.kind != VALUE_STRING || test.len >= sizeof name)
		return err_set(r->err, STATUS_INPUT, "selectattr without the name of an attribute");
	memcpy(name, test.kind == VALUE_STRING ? test.bytes : "", test.kind == VALUE_STRING ? test.len : 0);
	*out = value_list(&r->arena);
	for (size_t i = 0; i < list.list->count; i++) {
		if (jinja_spend(r, 0) != STATUS_OK)
			return STATUS_INPUT;
		struct value value = value_get(list.list->items[i], attribute.bytes, attribute.len);
		bool passes = value_is_true(value);
		if (test.kind == VALUE_STRING && jinja_test(r, name, value, &rest, &passes) != STATUS_OK)
			return STATUS_INPUT;
		if (passes == wanted)
			value_append(&r->arena, *out, list.list->items[i]);
	}
	return STATUS_OK;
}

static enum status to_text(struct rendering *r, struct value value, bool as_json, struct value *out)
{
	struct text text = {0};
	enum status status = STATUS_OK;
	if (as_json && !value_print_json(value, &text))
		status = err_set(r->err, STATUS_INPUT, "tojson makes too long a text");
	else if (!as_json)
		value_print(value, &text);
	if (status == STATUS_OK)
		status = jinja_spend(r, text.len);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

static struct value first_or_last(struct value list, bool last)
{
	struct value none = {0};
	size_t count = list.list->count;
	if (count == 0)
		return none;
	return list.list->items[last ? count - 1 : 0];
}

enum status jinja_filter(
	struct rendering *r, const char *name, struct value value, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL), second = jinja_argument(arguments, 1, NULL);
	bool text = value.kind == VALUE_STRING, list = value.kind == VALUE_LIST, dict = value.kind == VALUE_DICT;
	*out = value;
	if (jinja_spend(r, cost(value, first)) != STATUS_OK)
		return STATUS_INPUT;
	if (strcmp(name, "safe") == 0 || (list && strcmp(name, "list") == 0) || (text && strcmp(name, "string") == 0))
		return STATUS_OK;
	if (strcmp(name, "default") == 0 || strcmp(name, "d") == 0) {
		bool replaced = value.kind == VALUE_UNDEFINED || (value_is_true(second) && !value_is_true(value));
		*out = replaced ? jinja_argument(arguments, 0, "default_value") : value;
	} else if (text && strcmp(name, "trim") == 0)
		*out = strip(value, first, true, true);
	else if ((text || list || dict) && (strcmp(name, "length") == 0 || strcmp(name, "count") == 0))
		*out = value_int(length(value));
	else if (text && (strcmp(name, "upper") == 0 || strcmp(name, "lower") == 0))
		*out = change_case(&r->arena, value, name[0] == 'u', false);
	else if (text && strcmp(name, "capitalize") == 0)
		*out = change_case(&r->arena, value, false, true);
	else if (text && first.kind == VALUE_STRING && second.kind == VALUE_STRING && strcmp(name, "replace") == 0)
		return replace(r, value, first, second, out);
	else if (list && (strcmp(name, "first") == 0 || strcmp(name, "last") == 0))
		*out = first_or_last(value, name[0] == 'l');
	else if (list && strcmp(name, "join") == 0)
		return join(r, value, first, out);
	else if (list && (strcmp(name, "selectattr") == 0 || strcmp(name, "rejectattr") == 0))
		return select_items(r, value, arguments, name[0] == 's', out);
	else if (strcmp(name, "tojson") == 0)
		return to_text(r, value, true, out);
	else if (!list && !dict && strcmp(name, "string") == 0)
		return to_text(r, value, false, out);
	else
		return err_set(r->err, STATUS_INPUT, "filter '%.40s' is not supported here", name);
	return STATUS_OK;
}

/* ---- tests ---- */

static enum status equal(struct rendering *r, struct value a, struct value b, bool *out)
{
	*out = value_equal(a, b);
	return jinja_spend(r, a.len == b.len ? a.len : 0);
}

static enum status contains(struct rendering *r, struct value container, struct value item, bool *out)
{
	bool text = item.kind == VALUE_STRING;
	*out = false;
	if (container.kind == VALUE_STRING) {
		*out = text && memmem(container.bytes, container.len, item.bytes, item.len) != NULL;
		return jinja_spend(r, container.len);
	}
	if (container.kind == VALUE_DICT) {
		*out = text && value_get(container, item.bytes, item.len).kind != VALUE_UNDEFINED;
		return jinja_spend(r, container.dict->count);
	}
	for (size_t i = 0; !*out && container.kind == VALUE_LIST && i < container.list->count; i++)
		if (equal(r, container.list->items[i], item, out) != STATUS_OK)
			return STATUS_INPUT;
	return STATUS_OK;
}

enum status jinja_test(struct rendering *r, const char *name, struct value value, const struct arguments *arguments, bool *out)
{
	static const struct {
		const char *name;
		enum value_kind kinds[3]; /* the first again where there are fewer */
	} kinds[] = {
		{"undefined", {VALUE_UNDEFINED, VALUE_UNDEFINED, VALUE_UNDEFINED}},
		{"none", {VALUE_NONE, VALUE_NONE, VALUE_NONE}},
		{"string", {VALUE_STRING, VALUE_STRING, VALUE_STRING}},
		{"mapping", {VALUE_DICT, VALUE_DICT, VALUE_DICT}},
		{"iterable", {VALUE_STRING, VALUE_LIST, VALUE_DICT}},
		{"sequence", {VALUE_STRING, VALUE_LIST, VALUE_DICT}},
		{"boolean", {VALUE_BOOL, VALUE_BOOL, VALUE_BOOL}},
		{"integer", {VALUE_INT, VALUE_INT, VALUE_INT}},
		{"number", {VALUE_INT, VALUE_BOOL, VALUE_INT}},
	};
	struct value other = jinja_argument(arguments, 0, NULL);
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
		if (strcmp(name, kinds[i].name) != 0)
			continue;
		*out = value.kind == kinds[i].kinds[0] || value.kind == kinds[i].kinds[1] || value.kind == kinds[i].kinds[2];
		return STATUS_OK;
	}
	if (strcmp(name, "defined") == 0)
		*out = value.kind != VALUE_UNDEFINED;
	else if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
		*out = value.kind == VALUE_BOOL && value.truth == (name[0] == 't');
	else if (strcmp(name, "equalto") == 0 || strcmp(name, "eq") == 0)
		return equal(r, value, other, out);
	else if (strcmp(name, "ne") == 0) {
		enum status status = equal(r, value, other, out);
		*out = !*out;
		return status;
	} else if (strcmp(name, "in") == 0)
		return contains(r, other, value, out);
	else if (value.kind == VALUE_INT && (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0))
		*out = (value.number % 2 != 0) == (name[0] == 'o');
	else
		return err_set(r->err, STATUS_INPUT, "test '%.40s' is not supported here", name);
	return STATUS_OK;
}

/* ---- functions ---- */

static enum status range(struct rendering *r, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL), second = jinja_argument(arguments, 1, NULL);
	int64_t begin = second.kind == VALUE_INT ? first.number : 0, end = second.kind == VALUE_INT ? second.number : first.number;
	if (first.kind != VALUE_INT || arguments->count > 2 || end > RANGE_MAX || begin < -RANGE_MAX)
		return err_set(r->err, STATUS_INPUT, "range is supported with one or two numbers of at most %d", RANGE_MAX);
	*out = value_list(&r->arena);
	for (int64_t i = begin; i < end; i++)
		value_append(&r->arena, *out, value_int(i));
	return STATUS_OK;
}

static enum status date_text(struct rendering *r, const struct arguments *arguments, struct value *out)
{
	struct value format = jinja_argument(arguments, 0, NULL);
	char wanted[64] = "", text[256] = "";
	time_t now = (time_t)r->now_s;
	struct tm parts;
	if (format.kind != VALUE_STRING || format.len == 0 || format.len >= sizeof wanted || !localtime_r(&now, &parts))
		return err_set(r->err, STATUS_INPUT, "strftime_now needs a format of 1 to %zu bytes", sizeof wanted - 1);
	memcpy(wanted, format.bytes, format.len);
	size_t len = strftime(text, sizeof text, wanted, &parts);
	*out = value_string(arena_strndup(&r->arena, text, len), len);
	return STATUS_OK;
}

enum status jinja_function(struct rendering *r, const char *name, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL);
	if (strcmp(name, "raise_exception") == 0)
		return err_set(r->err, STATUS_INPUT, "%.*s", first.kind == VALUE_STRING && first.len < 400 ? (int)first.len : 0,
			first.kind == VALUE_STRING ? first.bytes : "");
	if (strcmp(name, "range") == 0)
		return range(r, arguments, out);
	if (strcmp(name, "strftime_now") == 0)
		return date_text(r, arguments, out);
	if (strcmp(name, "namespace") != 0 && strcmp(name, "dict") != 0)
		return err_set(r->err, STATUS_INPUT, "function '%.40s' is not supported", name);
	*out = value_dict(&r->arena);
	out->dict->is_namespace = name[0] == 'n';
	for (size_t i = 0; i < arguments->count; i++)
		if (arguments->names[i])
			value_set(&r->arena, *out, arguments->names[i], strlen(arguments->names[i]), arguments->values[i]);
	return STATUS_OK;
}

/* ---- operators ---- */

static enum status arithmetic(struct rendering *r, const char *operation, int64_t a, int64_t b, struct value *out)
{
	int64_t result = 0;
	bool failed = false;
	if (strcmp(operation, "+") == 0)
		failed = __builtin_add_overflow(a, b, &result);
	else if (strcmp(operation, "-") == 0)
		failed = __builtin_sub_overflow(a, b, &result);
	else if (strcmp(operation, "*") == 0)
		failed = __builtin_mul_overflow(a, b, &result);
	else if ((strcmp(operation, "%") == 0 || strcmp(operation, "//") == 0) && a >= 0 && b > 0)
		result = operation[0] == '%' ? a % b : a / b;
	else
		failed = true;
	*out = value_int(result);
	return failed ? err_set(r->err, STATUS_INPUT, "'%s' is not supported for these numbers", operation) : STATUS_OK;
}

static enum status compare(struct rendering *r, const char *operation, struct value a, struct value b, struct value *out)
{
	int order;
	if (a.kind == VALUE_INT && b.kind == VALUE_INT) {
		order = (a.number > b.number) - (a.number < b.number);
	} else if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
		if (jinja_spend(r, a.len < b.len ? a.len : b.len) != STATUS_OK)
			return STATUS_INPUT;
		order = memcmp(a.bytes, b.bytes, a.len < b.len ? a.len : b.len);
		order = order != 0 ? order : (a.len > b.len) - (a.len < b.len);
	} else {
		return err_set(r->err, STATUS_INPUT, "'%s' is supported between two numbers or two strings", operation);
	}
	bool or_equal = operation[1] == '=';
	*out = value_bool((or_equal && order == 0) || (operation[0] == '<' ? order < 0 : order > 0));
	return STATUS_OK;
}

/* a ~ b, and a + b of two strings. */
static enum status concatenate(struct rendering *r, struct value a, struct value b, struct value *out)
{
	struct text text = {0};
	if (jinja_spend(r, a.len + b.len) != STATUS_OK)
		return STATUS_INPUT;
	value_print(a, &text);
	value_print(b, &text);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return STATUS_OK;
}

enum status jinja_binary(struct rendering *r, const char *operation, struct value a, struct value b, struct value *out)
{
	bool strings = a.kind == VALUE_STRING && b.kind == VALUE_STRING;
	bool listed = a.kind == VALUE_LIST || a.kind == VALUE_DICT || b.kind == VALUE_LIST || b.kind == VALUE_DICT, holds;
	enum status status = STATUS_OK;
	if (strcmp(operation, "==") == 0 || strcmp(operation, "!=") == 0) {
		status = equal(r, a, b, &holds);
		*out = value_bool(holds == (operation[0] == '='));
	} else if (operation[0] == '<' || operation[0] == '>')
		return compare(r, operation, a, b, out);
	else if (strcmp(operation, "in") == 0) {
		status = contains(r, b, a, &holds);
		*out = value_bool(holds);
	} else if ((operation[0] == '~' && !listed) || (operation[0] == '+' && strings))
		return concatenate(r, a, b, out);
	else if (operation[0] == '+' && a.kind == VALUE_LIST && b.kind == VALUE_LIST) {
		*out = value_list(&r->arena);
		for (size_t i = 0; i < a.list->count + b.list->count; i++)
			value_append(&r->arena, *out, i < a.list->count ? a.list->items[i] : b.list->items[i - a.list->count]);
	} else if (a.kind == VALUE_INT && b.kind == VALUE_INT)
		return arithmetic(r, operation, a.number, b.number, out);
	else
		return err_set(r->err, STATUS_INPUT, "'%s' is not supported between these", operation);
	return status;
}
