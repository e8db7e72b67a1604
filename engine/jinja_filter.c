/* Filters of templates: those that published chat templates use. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_apply.h"
#include "engine/jinja_text.h"

static enum status same(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = use->value;
	return STATUS_OK;
}

static enum status list(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return use->value.kind == VALUE_LIST ? same(r, use, out) : jinja_use_keys(r, use, out);
}

static enum status fall_back(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	bool replaced = use->value.kind == VALUE_UNDEFINED || (value_is_true(use->arguments[1]) && !value_is_true(use->value));

	*out = replaced ? use->arguments[0] : use->value;
	return STATUS_OK;
}

static enum status length(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value value = use->value;

	*out = value_int(value.kind == VALUE_STRING ? jinja_characters(value)
			: value.kind == VALUE_LIST  ? (int64_t)value.list->count
						    : (int64_t)value.dict->count);
	return STATUS_OK;
}

static enum status title(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_WORDS);
	return STATUS_OK;
}

static enum status indent(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value width = use->arguments[0];

	if (width.kind != VALUE_UNDEFINED && width.kind != VALUE_INT)
		return err_set(r->err, STATUS_INPUT, "indent needs a number");
	return jinja_indent(r, use->value, width.kind == VALUE_INT ? width.number : 4, value_is_true(use->arguments[1]),
		value_is_true(use->arguments[2]), out);
}

/* ---- lists ---- */

static enum status first(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = use->value.list->count > 0 ? use->value.list->items[0] : (struct value){0};
	return STATUS_OK;
}

static enum status last(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	size_t count = use->value.list->count;

	*out = count > 0 ? use->value.list->items[count - 1] : (struct value){0};
	return STATUS_OK;
}

static enum status reverse(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = value_list(&r->arena);
	for (size_t i = use->value.list->count; i > 0; i--)
		value_append(&r->arena, *out, use->value.list->items[i - 1]);
	return jinja_spend(r, use->value.list->count);
}

/* A member of an item, by a name with dots or a number; by anything else there is none. */
static struct value attribute_of(struct value item, struct value name)
{
	if (name.kind == VALUE_INT)
		return item.kind == VALUE_LIST && name.number >= 0 && (size_t)name.number < item.list->count
			? item.list->items[name.number]
			: (struct value){0};
	if (name.kind != VALUE_STRING)
		return (struct value){0};
	const char *at = name.bytes, *end = at + name.len;
	while (at < end) {
		const char *dot = memchr(at, '.', (size_t)(end - at)), *stop = dot ? dot : end;

		item = value_get(item, at, (size_t)(stop - at));
		at = dot ? dot + 1 : end;
	}
	return item;
}

static enum status join(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value attribute = use->arguments[1], items = use->value;

	if (attribute.kind != VALUE_UNDEFINED && attribute.kind != VALUE_NONE) {
		items = value_list(&r->arena);
		for (size_t i = 0; i < use->value.list->count; i++)
			value_append(&r->arena, items, attribute_of(use->value.list->items[i], attribute));
	}
	return jinja_join(r, items, use->arguments[0], out);
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
static enum status map(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value attribute = jinja_argument(use->written, JINJA_ARGUMENTS_MAX, "attribute");
	struct value fallback = jinja_argument(use->written, JINJA_ARGUMENTS_MAX, "default");
	struct arguments rest = rest_of(use->written, 1);
	const char *filter = name_in(r, jinja_argument(use->written, 0, NULL));

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
static enum status keep(struct rendering *r, const struct jinja_use *use, bool by_attribute, bool wanted, struct value *out)
{
	struct value attribute = jinja_argument(use->written, 0, NULL);
	struct value test = by_attribute ? jinja_argument(use->written, 1, NULL) : attribute;
	struct arguments rest = rest_of(use->written, by_attribute ? 2 : 1);
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

static enum status select_items(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return keep(r, use, false, true, out);
}

static enum status reject(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return keep(r, use, false, false, out);
}

static enum status select_by_attribute(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return keep(r, use, true, true, out);
}

static enum status reject_by_attribute(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	return keep(r, use, true, false, out);
}

/* What unique compares: an item, or an attribute of it; strings without their case unless that counts. */
static struct value key_of(struct rendering *r, const struct jinja_use *use, struct value item)
{
	bool keeps_case = value_is_true(use->arguments[0]);
	struct value attribute = use->arguments[1];

	if (attribute.kind != VALUE_UNDEFINED && attribute.kind != VALUE_NONE)
		item = attribute_of(item, attribute);
	return item.kind == VALUE_STRING && !keeps_case ? jinja_change_case(&r->arena, item, CASE_LOWER) : item;
}

/* unique(case_sensitive=false, attribute=none): the first of each. */
static enum status unique(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value keys = value_list(&r->arena);

	*out = value_list(&r->arena);
	for (size_t i = 0; i < use->value.list->count; i++) {
		struct value key = key_of(r, use, use->value.list->items[i]);
		size_t units = key.len, k = 0;

		while (k < keys.list->count && !value_equal(keys.list->items[k], key, &units))
			k++;
		if (k == keys.list->count) {
			value_append(&r->arena, keys, key);
			value_append(&r->arena, *out, use->value.list->items[i]);
		}
		if (jinja_spend(r, units) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

/* ---- dicts ---- */

/* A pair while it is sorted: by its key without case, those of the same as they came. */
struct sorted_pair {
	struct value pair, key;
	size_t index;
};

static int compare_pairs(const void *a, const void *b)
{
	const struct sorted_pair *left = a, *right = b;
	size_t len = left->key.len < right->key.len ? left->key.len : right->key.len;
	int order = memcmp(left->key.bytes, right->key.bytes, len); /* UTF-8 sorts as its code points do */

	order = order ? order : (left->key.len > right->key.len) - (left->key.len < right->key.len);
	return order ? order : (left->index > right->index) - (left->index < right->index);
}

static enum status sort_dict(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value pairs = jinja_items(r, use->value);
	size_t count = pairs.list->count;
	struct sorted_pair *sorted = mem_calloc(count + 1, sizeof *sorted);

	for (size_t i = 0; i < count; i++) {
		struct value pair = pairs.list->items[i];

		sorted[i] = (struct sorted_pair){pair, jinja_change_case(&r->arena, pair.list->items[0], CASE_LOWER), i};
	}
	qsort(sorted, count, sizeof *sorted, compare_pairs);
	*out = value_list(&r->arena);
	for (size_t i = 0; i < count; i++)
		value_append(&r->arena, *out, sorted[i].pair);
	mem_free(sorted);
	return jinja_spend(r, count * 8);
}

/* tojson(indent=4); other arguments may only say what is so anyway. */
static enum status to_json(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value indent = {0};
	const char *stranger = NULL;
	struct text text = {0};
	enum status status = STATUS_OK;

	for (size_t i = 0; i < use->written->count; i++) {
		const char *name = use->written->names[i];
		struct value value = use->written->values[i];

		if (name && strcmp(name, "indent") == 0 && (value.kind == VALUE_INT || value.kind == VALUE_NONE))
			indent = value;
		else if (!name || strcmp(name, "ensure_ascii") != 0 || value_is_true(value))
			return err_set(r->err, STATUS_INPUT, "tojson is supported with a number as indent");
	}
	if (indent.kind == VALUE_INT && (indent.number < 1 || indent.number > 16))
		return err_set(r->err, STATUS_INPUT, "tojson is supported with an indent of 1 to 16");
	if (!value_print_json(use->value, indent.kind == VALUE_INT ? (int)indent.number : 0, &text, &stranger))
		status = stranger ? err_set(r->err, STATUS_INPUT, "Object of type %s is not JSON serializable", stranger)
				  : err_set(r->err, STATUS_INPUT, "tojson makes too long a text");
	if (status == STATUS_OK)
		status = jinja_spend(r, text.len);
	*out = value_copy(&r->arena, &text);
	text_release(&text);
	return status;
}

/* ---- numbers ---- */

#define DIGITS_MAX 80 /* of a number in text, with its sign and underscores; guess */

static int digit_of(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'Z' ? c - 'A' + 10 : 36;
}

/* Behind "0x", "0o" or "0b" where that is the base's mark and the base 2, 8 or 16. */
static const char *skip_mark(const char *at, int64_t base)
{
	char mark = base == 16 ? 'x' : base == 8 ? 'o' : base == 2 ? 'b' : '\0';

	return mark && at[0] == '0' && (at[1] | 0x20) == mark ? at + 2 : at;
}

/* As Python's int(text, base): *fits is false for a number beyond 64 bits. False for what is no number. */
static bool read_whole(const char *text, int64_t base, int64_t *out, bool *fits)
{
	bool minus = *text == '-', after_digit = false;
	const char *digits = text + (*text == '-' || *text == '+'), *at = skip_mark(digits, base);

	after_digit = at > digits; /* an underscore may follow the mark */
	*out = 0;
	*fits = true;
	for (; *at; at++) {
		int digit = digit_of(*at);

		if (*at == '_' && after_digit) {
			after_digit = false;
			continue;
		}
		if (digit >= base)
			return false;
		*fits = *fits && !__builtin_mul_overflow(*out, base, out) &&
			!__builtin_add_overflow(*out, minus ? -digit : digit, out);
		after_digit = true;
	}
	return after_digit && at > skip_mark(digits, base);
}

static bool fits_in_64_bits(double number)
{
	return fabs(number) < 9223372036854775808.0; /* 2 to the 63rd */
}

/* Takes out underscores between digits, as Python reads numbers. False for an underscore elsewhere. */
static bool drop_underscores(char *text)
{
	char *to = text;

	for (const char *at = text; *at; at++) {
		if (*at != '_')
			*to++ = *at;
		else if (at == text || digit_of(at[-1]) > 9 || digit_of(at[1]) > 9)
			return false;
	}
	*to = '\0';
	return true;
}

/* int of a string: a whole number, else the whole part of any number. False for what is none. */
static enum status whole_of_text(struct rendering *r, struct value string, int64_t base, bool *found, struct value *out)
{
	struct value stripped = jinja_strip(jinja_plain_number(&r->arena, string), value_text(" \t\n\v\f\r"), true, true);
	char text[DIGITS_MAX + 1] = "";
	int64_t number = 0;
	double real = 0;
	bool fits = true;

	if (stripped.len > DIGITS_MAX)
		return err_set(r->err, STATUS_INPUT, "int is supported for texts of up to %d bytes", DIGITS_MAX);
	memcpy(text, stripped.bytes, stripped.len);
	bool is_text = strlen(text) == stripped.len;
	*found = is_text && read_whole(text, base, &number, &fits);
	if (!*found && is_text && !strpbrk(text, "xX") && drop_underscores(text) && text_to_double(text, &real)) {
		*found = true;
		fits = fits_in_64_bits(real);
		number = fits ? (int64_t)real : 0;
	}
	*out = value_int(number);
	return fits ? STATUS_OK : err_set(r->err, STATUS_INPUT, "int is supported for numbers of 64 bits");
}

/* int(default=0, base=10) */
static enum status whole(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value value = use->value, base = use->arguments[1];
	bool found = false;

	if (base.kind != VALUE_UNDEFINED && (base.kind != VALUE_INT || base.number < 2 || base.number > 36))
		return err_set(r->err, STATUS_INPUT, "int is supported with a base of 2 to 36");
	if (value.kind == VALUE_INT || value.kind == VALUE_BOOL) {
		*out = value_int(value.kind == VALUE_INT ? value.number : value.truth);
		return STATUS_OK;
	}
	if (value.kind == VALUE_FLOAT && !fits_in_64_bits(value.real))
		return err_set(r->err, STATUS_INPUT, "int is supported for numbers of 64 bits");
	if (value.kind == VALUE_FLOAT) {
		*out = value_int((int64_t)value.real);
		return STATUS_OK;
	}
	if (value.kind == VALUE_STRING &&
		whole_of_text(r, value, base.kind == VALUE_INT ? base.number : 10, &found, out) != STATUS_OK)
		return STATUS_INPUT;
	if (!found)
		*out = use->arguments[0].kind == VALUE_UNDEFINED ? value_int(0) : use->arguments[0];
	return STATUS_OK;
}

/* ---- all of them ---- */

#define STRING JINJA_OF(VALUE_STRING)
#define LIST JINJA_OF(VALUE_LIST)
#define DICT JINJA_OF(VALUE_DICT)
#define NUMBER (JINJA_OF(VALUE_BOOL) | JINJA_OF(VALUE_INT) | JINJA_OF(VALUE_FLOAT))
#define UNDEFINED JINJA_OF(VALUE_UNDEFINED)
#define TEXT (UNDEFINED | JINJA_OF(VALUE_NONE) | NUMBER | STRING) /* all but strings are taken as they are printed */
#define ITEMS (UNDEFINED | LIST) /* what is undefined has no items */

static const struct jinja_entry filters[] = {
	{"safe", JINJA_ANY, same, {NULL}, false},
	{"list", DICT | ITEMS, list, {NULL}, false},
	{"string", TEXT, same, {NULL}, false},
	{"default", JINJA_ANY, fall_back, {"default_value", "boolean"}, false},
	{"d", JINJA_ANY, fall_back, {"default_value", "boolean"}, false},
	{"trim", TEXT, jinja_use_strip, {"chars"}, false},
	{"length", STRING | DICT | ITEMS, length, {NULL}, false},
	{"count", STRING | DICT | ITEMS, length, {NULL}, false},
	{"upper", TEXT, jinja_use_upper, {NULL}, false},
	{"lower", TEXT, jinja_use_lower, {NULL}, false},
	{"capitalize", TEXT, jinja_use_capitalize, {NULL}, false},
	{"title", TEXT, title, {NULL}, false},
	{"replace", TEXT, jinja_use_replace, {"old", "new", "count"}, false},
	{"indent", STRING, indent, {"width", "first", "blank"}, false},
	{"first", ITEMS, first, {NULL}, false},
	{"last", ITEMS, last, {NULL}, false},
	{"reverse", ITEMS, reverse, {NULL}, false},
	{"join", ITEMS, join, {"d", "attribute"}, false},
	{"map", ITEMS, map, {NULL}, true},
	{"select", ITEMS, select_items, {NULL}, true},
	{"reject", ITEMS, reject, {NULL}, true},
	{"selectattr", ITEMS, select_by_attribute, {NULL}, true},
	{"rejectattr", ITEMS, reject_by_attribute, {NULL}, true},
	{"unique", ITEMS, unique, {"case_sensitive", "attribute"}, false},
	{"items", DICT | UNDEFINED, jinja_use_items, {NULL}, false},
	{"dictsort", DICT, sort_dict, {NULL}, false},
	{"tojson", JINJA_ANY, to_json, {NULL}, true},
	{"int", NUMBER | STRING | LIST | DICT | JINJA_OF(VALUE_NONE), whole, {"default", "base"}, false},
};

static const struct jinja_entry *find_filter(const char *name)
{
	return jinja_find(filters, sizeof filters / sizeof filters[0], name);
}

bool jinja_knows_filter(const char *name)
{
	return find_filter(name) != NULL;
}

static struct value as_printed(struct rendering *r, struct value value)
{
	struct text text = {0};
	struct value out;

	value_print(value, &text);
	out = value_copy(&r->arena, &text);
	text_release(&text);
	return out;
}

enum status jinja_filter(
	struct rendering *r, const char *name, struct value value, const struct arguments *arguments, struct value *out)
{
	const struct jinja_entry *entry = find_filter(name);

	if (entry && entry->kinds == TEXT && value.kind < VALUE_STRING)
		value = as_printed(r, value);
	else if (entry && (entry->kinds & ITEMS) == ITEMS && entry->kinds != JINJA_ANY && value.kind == VALUE_UNDEFINED)
		value = value_list(&r->arena);
	return jinja_apply(r, entry, "filter", name, value, arguments, out);
}
