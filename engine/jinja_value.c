/* Making and comparing values of the template interpreter, and printing single ones; jinja_json.c has the rest. */
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

struct value value_function(const char *name)
{
	return (struct value){.kind = VALUE_FUNCTION, .bytes = name};
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

bool value_find(struct value dict, const char *key, size_t len, struct value *out)
{
	size_t at = dict.kind == VALUE_DICT ? find_key(dict.dict, key, len) : 0;

	if (dict.kind != VALUE_DICT || at == dict.dict->count)
		return false;
	*out = dict.dict->values[at];
	return true;
}

struct value value_get(struct value dict, const char *key, size_t len)
{
	struct value value = {0};

	(void)value_find(dict, key, len, &value);
	return value;
}

const char *value_type_name(struct value value)
{
	static const char *const names[] = {
		"Undefined", "NoneType", "bool", "int", "float", "str", "list", "dict", "Macro", "function"};

	return names[value.kind];
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
	case VALUE_FLOAT:
		return value.real != 0;
	case VALUE_STRING:
		return value.len > 0;
	case VALUE_LIST:
		return value.list->count > 0;
	case VALUE_DICT:
		return value.dict->count > 0;
	case VALUE_MACRO:
	case VALUE_FUNCTION:
		return true;
	default:
		return false;
	}
}

static bool is_number(struct value value)
{
	return value.kind == VALUE_BOOL || value.kind == VALUE_INT || value.kind == VALUE_FLOAT;
}

static double number_of(struct value value)
{
	return value.kind == VALUE_FLOAT ? value.real : value.kind == VALUE_BOOL ? value.truth : (double)value.number;
}

#define EQUAL_DEPTH_MAX 64 /* guess: deeper ones are made by loops on purpose */

static bool is_equal(struct value a, struct value b, int depth, size_t *units);

static bool dicts_are_equal(const struct value_dict *a, const struct value_dict *b, int depth, size_t *units)
{
	bool equal = a == b || a->count == b->count;

	for (size_t i = 0; a != b && equal && i < a->count; i++) {
		size_t at = find_key(b, a->keys[i].bytes, a->keys[i].len);

		*units += b->count;
		equal = at < b->count && is_equal(a->values[i], b->values[at], depth, units);
	}
	return equal;
}

static bool lists_are_equal(const struct value_list *a, const struct value_list *b, int depth, size_t *units)
{
	bool equal = a == b || a->count == b->count;

	for (size_t i = 0; a != b && equal && i < a->count; i++)
		equal = is_equal(a->items[i], b->items[i], depth, units);
	return equal;
}

static bool is_equal(struct value a, struct value b, int depth, size_t *units)
{
	*units += 1;
	if (depth == EQUAL_DEPTH_MAX || *units > VALUE_EQUAL_UNITS_MAX)
		return false;
	if (is_number(a) && is_number(b)) {
		bool whole = a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT;

		return whole ? (a.kind == VALUE_BOOL ? a.truth : a.number) == (b.kind == VALUE_BOOL ? b.truth : b.number)
			     : number_of(a) == number_of(b);
	}
	if (a.kind != b.kind)
		return false;
	switch (a.kind) {
	case VALUE_STRING:
		*units += a.len == b.len ? a.len : 0;
		return a.len == b.len && memcmp(a.bytes, b.bytes, a.len) == 0;
	case VALUE_LIST:
		return lists_are_equal(a.list, b.list, depth + 1, units);
	case VALUE_DICT:
		return dicts_are_equal(a.dict, b.dict, depth + 1, units);
	case VALUE_MACRO:
		return a.macro == b.macro;
	case VALUE_FUNCTION:
		return strcmp(a.bytes, b.bytes) == 0;
	default:
		return true;
	}
}

bool value_equal(struct value a, struct value b, size_t *units)
{
	return is_equal(a, b, 0, units);
}

/* As Python's repr: the shortest digits that read back, with an exponent below 1e-4 and from 1e16 on. */
static void print_real(double real, struct text *out)
{
	char digits[40] = "0", shortest[32];
	size_t count = 0, first = 0;
	int exponent = 0, point = -1;

	text_format_double(shortest, real);
	for (const char *c = shortest; *c; c++) {
		if (*c >= '0' && *c <= '9')
			digits[count++] = *c;
		else if (*c == '.')
			point = (int)count;
		else if (*c == 'e') {
			long long value = 0;

			(void)text_to_i64(c[1] == '+' ? c + 2 : c + 1, &value);
			exponent = (int)value;
			break;
		}
	}
	exponent += (point < 0 ? (int)count : point);
	for (; first + 1 < count && digits[first] == '0'; exponent--)
		first++;
	while (count > first + 1 && digits[count - 1] == '0')
		count--;
	digits[count] = '\0'; /* now the value is 0.DIGITS times ten to the exponent */
	if (real < 0)
		text_append_char(out, '-');
	if (digits[first] == '0')
		text_append_str(out, "0.0");
	else if (exponent < -3 || exponent > 16)
		text_printf(out, "%c%s%se%+03d", digits[first], count - first > 1 ? "." : "", digits + first + 1, exponent - 1);
	else if (exponent <= 0)
		text_printf(out, "0.%.*s%s", -exponent, "0000", digits + first);
	else if ((size_t)exponent >= count - first)
		text_printf(out, "%s%.*s.0", digits + first, exponent - (int)(count - first), "0000000000000000");
	else
		text_printf(out, "%.*s.%s", exponent, digits + first, digits + first + exponent);
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
	case VALUE_FLOAT:
		print_real(value.real, out);
		break;
	case VALUE_STRING:
		text_append(out, value.bytes, value.len);
		break;
	default: /* the evaluator refuses to print these */
		break;
	}
}
