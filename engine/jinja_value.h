/* Values of the template interpreter. They live in the arena of one rendering and are never changed, but for namespaces. */
#ifndef ENGINE_JINJA_VALUE_H
#define ENGINE_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"

enum value_kind {
	VALUE_UNDEFINED,
	VALUE_NONE,
	VALUE_BOOL,
	VALUE_INT,
	VALUE_FLOAT, /* only from JSON */
	VALUE_STRING,
	VALUE_LIST,
	VALUE_DICT,
	VALUE_MACRO,
	VALUE_FUNCTION /* range and its kin */
};

struct statement;

struct value {
	enum value_kind kind;
	bool truth; /* of a bool */
	int64_t number; /* of an int */
	double real; /* of a float */
	const char *bytes; /* of a string, not NUL-terminated; of a function its name, which is */
	size_t len;
	struct value_list *list; /* of a list */
	struct value_dict *dict; /* of a dict */
	const struct statement *macro; /* of a macro */
};

struct value_list {
	struct value *items;
	size_t count, capacity;
};

/* What a dict is to Jinja: members of a namespace may be set from inside loops, a loop has methods. */
enum dict_role { DICT_PLAIN, DICT_NAMESPACE, DICT_LOOP };

/* Keys are strings, in the order in which they were set. */
struct value_dict {
	struct value *keys, *values;
	size_t count, capacity;
	enum dict_role role;
};

struct value value_bool(bool truth);
struct value value_int(int64_t number);
struct value value_string(const char *bytes, size_t len); /* borrowed */
struct value value_text(const char *text); /* borrowed, NUL-terminated */
struct value value_function(const char *name); /* borrowed */
struct value value_copy(struct arena *arena, const struct text *text);
struct value value_list(struct arena *arena);
struct value value_dict(struct arena *arena);

void value_append(struct arena *arena, struct value list, struct value item);
void value_set(struct arena *arena, struct value dict, const char *key, size_t len, struct value item);
struct value value_get(struct value dict, const char *key, size_t len); /* undefined when absent */
bool value_find(struct value dict, const char *key, size_t len, struct value *out); /* false when absent: *out stays */

/* The name of its type, as Python's messages have it. */
const char *value_type_name(struct value value);

bool value_is(struct value value, const char *text); /* a string with this text */
bool value_is_true(struct value value); /* as Python sees it: empty things, 0 and None are false */

/* As Python's ==, lists and dicts by what is in them. *units grows by the work, and beyond VALUE_EQUAL_UNITS_MAX nothing is equal.
 */
#define VALUE_EQUAL_UNITS_MAX ((size_t)1 << 26)
bool value_equal(struct value a, struct value b, size_t *units);

/* What printing shows: nothing for undefined, "True" and "None" for those. Not for lists, dicts, macros and functions. */
void value_print(struct value value, struct text *out);

/* JSON as json.dumps writes it with ensure_ascii off: ", " and ": " between; with indent > 0 a line for each item, indented by so
 * many spaces a level. Levels beyond 64 are null. False when it is longer than 16 MiB, or when JSON does not know a value in it,
 * whose type then goes to *stranger (else NULL); out, empty before, then has a part. */
bool value_print_json(struct value value, int indent, struct text *out, const char **stranger);

/* The value of parsed JSON; change (NULL: none) appends what stands for a string. False beyond 64 levels. */
typedef void value_change(void *ctx, const char *text, size_t len, struct text *out);
bool value_of_json(struct arena *arena, const struct json *json, value_change *change, void *ctx, struct value *out);

#endif
