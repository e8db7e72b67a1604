/* Tests, functions and operators of templates: those that published chat templates use. */
#include <string.h>
#include <time.h>

#include "base/utf8.h"
#include "engine/jinja_node.h"

#define RAISED_BYTES_MAX 400 /* guess: published ones have some dozens */
static const char raised_nothing[] = "it raises an exception without words";

#define RANGE_MAX 100000 /* items; guess: templates count messages */

size_t jinja_cost(struct value value, struct value argument)
{
	return value.kind == VALUE_STRING ? value.len * (1 + argument.len / 16) : value.kind == VALUE_DICT ? value.dict->count : 0;
}

struct value jinja_items(struct rendering *r, struct value dict)
{
	struct value list = value_list(&r->arena);

	for (size_t i = 0; i < dict.dict->count; i++) {
		struct value pair = value_list(&r->arena);

		value_append(&r->arena, pair, dict.dict->keys[i]);
		value_append(&r->arena, pair, dict.dict->values[i]);
		value_append(&r->arena, list, pair);
	}
	return list;
}

/* ---- tests ---- */

static enum status equal(struct rendering *r, struct value a, struct value b, bool *out)
{
	size_t units = 0;

	*out = value_equal(a, b, &units);
	return jinja_spend(r, units);
}

/* As Python's in; its words for what it does not take. */
static enum status contains(struct rendering *r, struct value container, struct value item, bool *out)
{
	struct value found;

	*out = false;
	switch (container.kind) {
	case VALUE_UNDEFINED: /* an empty sequence to Jinja */
		return STATUS_OK;
	case VALUE_STRING:
		if (item.kind != VALUE_STRING)
			return err_set(r->err, STATUS_INPUT, "'in <string>' requires string as left operand, not %s",
				value_type_name(item));
		*out = memmem(container.bytes, container.len, item.bytes, item.len) != NULL;
		return jinja_spend(r, container.len);
	case VALUE_DICT:
		if (item.kind == VALUE_LIST || item.kind == VALUE_DICT)
			return err_set(r->err, STATUS_INPUT, "unhashable type: '%s'", value_type_name(item));
		*out = item.kind == VALUE_STRING && value_find(container, item.bytes, item.len, &found);
		return jinja_spend(r, container.dict->count);
	case VALUE_LIST:
		for (size_t i = 0; !*out && i < container.list->count; i++)
			if (equal(r, container.list->items[i], item, out) != STATUS_OK)
				return STATUS_INPUT;
		return STATUS_OK;
	default:
		return err_set(r->err, STATUS_INPUT, "argument of type '%s' is not iterable", value_type_name(container));
	}
}

#define OF(kind) (1u << (kind))

/* Tests that ask for a kind. What is undefined is to Jinja an empty sequence, and a function (that fails). */
static const struct kind_test {
	const char *name;
	unsigned kinds;
} kind_tests[] = {
	{"undefined", OF(VALUE_UNDEFINED)},
	{"none", OF(VALUE_NONE)},
	{"string", OF(VALUE_STRING)},
	{"mapping", OF(VALUE_DICT)},
	{"iterable", OF(VALUE_UNDEFINED) | OF(VALUE_STRING) | OF(VALUE_LIST) | OF(VALUE_DICT)},
	{"sequence", OF(VALUE_UNDEFINED) | OF(VALUE_STRING) | OF(VALUE_LIST) | OF(VALUE_DICT)},
	{"boolean", OF(VALUE_BOOL)},
	{"integer", OF(VALUE_INT)},
	{"float", OF(VALUE_FLOAT)},
	{"number", OF(VALUE_INT) | OF(VALUE_BOOL) | OF(VALUE_FLOAT)},
	{"callable", OF(VALUE_UNDEFINED) | OF(VALUE_MACRO) | OF(VALUE_FUNCTION)},
};

static const struct kind_test *find_kind_test(const char *name)
{
	for (size_t i = 0; i < sizeof kind_tests / sizeof kind_tests[0]; i++)
		if (strcmp(name, kind_tests[i].name) == 0)
			return &kind_tests[i];
	return NULL;
}

bool jinja_knows_test(const char *name)
{
	static const char *const names[] = {
		"defined", "true", "false", "equalto", "eq", "ne", "in", "odd", "even", "divisibleby", "lt", "le", "gt", "ge"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return find_kind_test(name) != NULL;
}

static enum status compare(struct rendering *r, const char *operation, struct value a, struct value b, struct value *out);

/* lt, le, gt, ge */
static enum status test_order(struct rendering *r, const char *name, struct value value, struct value other, bool *out)
{
	const char operation[3] = {name[0] == 'l' ? '<' : '>', name[1] == 'e' ? '=' : '\0', '\0'};
	struct value result = {0};
	enum status status = compare(r, operation, value, other, &result);

	*out = result.truth;
	return status;
}

/* odd, even, divisibleby */
static enum status test_division(struct rendering *r, const char *name, struct value value, struct value other, bool *out)
{
	int64_t by = name[0] == 'd' ? other.number : 2;

	if (value.kind != VALUE_INT || (name[0] == 'd' && (other.kind != VALUE_INT || by < 1)))
		return err_set(r->err, STATUS_INPUT, "test '%.40s' is not supported here", name);
	*out = (value.number % by != 0) == (name[0] == 'o');
	return STATUS_OK;
}

enum status jinja_test(struct rendering *r, const char *name, struct value value, const struct arguments *arguments, bool *out)
{
	struct value other = jinja_argument(arguments, 0, NULL);
	const struct kind_test *kinds = find_kind_test(name);
	enum status status = STATUS_OK;

	if (kinds)
		*out = (kinds->kinds & OF(value.kind)) != 0;
	else if (strcmp(name, "defined") == 0)
		*out = value.kind != VALUE_UNDEFINED;
	else if (strcmp(name, "true") == 0 || strcmp(name, "false") == 0)
		*out = value.kind == VALUE_BOOL && value.truth == (name[0] == 't');
	else if (strcmp(name, "in") == 0)
		status = contains(r, other, value, out);
	else if (strcmp(name, "odd") == 0 || strcmp(name, "even") == 0 || strcmp(name, "divisibleby") == 0)
		status = test_division(r, name, value, other, out);
	else if (!jinja_knows_test(name))
		status = err_set(r->err, STATUS_INPUT, "test '%.40s' is not supported", name);
	else if (name[0] == 'l' || name[0] == 'g')
		status = test_order(r, name, value, other, out);
	else {
		status = equal(r, value, other, out);
		*out = *out == (name[0] == 'e');
	}
	return status;
}

/* ---- functions ---- */

static enum status range(struct rendering *r, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL), second = jinja_argument(arguments, 1, NULL);
	int64_t begin = second.kind == VALUE_INT ? first.number : 0, end = second.kind == VALUE_INT ? second.number : first.number;

	if (first.kind != VALUE_INT || arguments->count > 2 || end > RANGE_MAX || begin < -RANGE_MAX)
		return err_set(r->err, STATUS_INPUT, "range is supported with one or two numbers of at most %d", RANGE_MAX);
	if (end > begin && jinja_spend(r, (size_t)(end - begin) * sizeof(struct value)) != STATUS_OK)
		return STATUS_INPUT;
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

bool jinja_knows_function(const char *name)
{
	static const char *const names[] = {"range", "namespace", "dict", "raise_exception", "strftime_now"};

	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

/* With its words, or as many as a message holds: up to a NUL. */
static enum status raise(struct rendering *r, struct value words)
{
	size_t len = words.kind == VALUE_STRING ? strnlen(words.bytes, words.len) : 0;

	r->has_told_place = true;
	if (len > RAISED_BYTES_MAX)
		len = utf8_complete_prefix(words.bytes, RAISED_BYTES_MAX);
	return err_set(r->err, STATUS_INPUT, "%.*s", len > 0 ? (int)len : (int)strlen(raised_nothing),
		len > 0 ? words.bytes : raised_nothing);
}

enum status jinja_function(struct rendering *r, const char *name, const struct arguments *arguments, struct value *out)
{
	struct value first = jinja_argument(arguments, 0, NULL);

	if (strcmp(name, "raise_exception") == 0)
		return raise(r, first);
	if (strcmp(name, "range") == 0)
		return range(r, arguments, out);
	if (strcmp(name, "strftime_now") == 0)
		return date_text(r, arguments, out);
	if (strcmp(name, "namespace") != 0 && strcmp(name, "dict") != 0)
		return err_set(r->err, STATUS_INPUT, "function '%.40s' is not supported", name);
	*out = value_dict(&r->arena);
	out->dict->role = name[0] == 'n' ? DICT_NAMESPACE : DICT_PLAIN;
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

static bool number_kind(struct value value)
{
	return value.kind == VALUE_INT || value.kind == VALUE_FLOAT || value.kind == VALUE_BOOL;
}

static double real_of(struct value value)
{
	return value.kind == VALUE_FLOAT ? value.real : value.kind == VALUE_BOOL ? value.truth : (double)value.number;
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
	} else if (number_kind(a) && number_kind(b)) {
		order = (real_of(a) > real_of(b)) - (real_of(a) < real_of(b));
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
	bool prints = a.kind < VALUE_LIST && b.kind < VALUE_LIST, holds;
	enum status status = STATUS_OK;

	if (strcmp(operation, "==") == 0 || strcmp(operation, "!=") == 0) {
		status = equal(r, a, b, &holds);
		*out = value_bool(holds == (operation[0] == '='));
	} else if (operation[0] == '<' || operation[0] == '>')
		return compare(r, operation, a, b, out);
	else if (strcmp(operation, "in") == 0) {
		status = contains(r, b, a, &holds);
		*out = value_bool(holds);
	} else if ((operation[0] == '~' && prints) || (operation[0] == '+' && strings))
		return concatenate(r, a, b, out);
	else if (operation[0] == '+' && a.kind == VALUE_LIST && b.kind == VALUE_LIST) {
		if (jinja_spend(r, (a.list->count + b.list->count) * sizeof(struct value)) != STATUS_OK)
			return STATUS_INPUT;
		*out = value_list(&r->arena);
		for (size_t i = 0; i < a.list->count + b.list->count; i++)
			value_append(&r->arena, *out, i < a.list->count ? a.list->items[i] : b.list->items[i - a.list->count]);
	} else if (a.kind == VALUE_INT && b.kind == VALUE_INT)
		return arithmetic(r, operation, a.number, b.number, out);
	else
		return err_set(r->err, STATUS_INPUT, "'%s' is not supported between these", operation);
	return status;
}
