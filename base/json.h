/* JSON values: parse, read, build, write. The only module that knows the JSON library (Jansson).
 * Names keep clear of the library's own json_string, json_integer, json_copy and json_equal. Numbers are locale-independent.
 * Duplicate keys, NUL in keys and invalid UTF-8 are refused. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

struct json; /* opaque node; a tree is owned through its root */

enum json_kind {
	JSON_KIND_NULL,
	JSON_KIND_BOOL,
	JSON_KIND_INTEGER,
	JSON_KIND_REAL,
	JSON_KIND_STRING,
	JSON_KIND_ARRAY,
	JSON_KIND_OBJECT
};

/* Parses len bytes. A syntax error is "SOURCE:LINE:COL: reason", STATUS_INPUT. Caller frees *out with json_free. */
enum status json_parse(const char *bytes, size_t len, const char *source, struct json **out, struct err *err);
void json_free(struct json *root);
struct json *json_clone(const struct json *value); /* deep; caller frees */

/* Reading. Every reader accepts NULL and the wrong kind: kind JSON_KIND_NULL, count 0, NULL or the fallback. */
enum json_kind json_kind_of(const struct json *value);
const char *json_kind_name(enum json_kind kind); /* "string", "object", … */
struct json *json_get(const struct json *object, const char *key); /* borrowed, NULL when absent */
struct json *json_at(const struct json *array, size_t index); /* borrowed, NULL when out of range */
size_t json_count(const struct json *array_or_object);
const char *json_text(const struct json *value); /* borrowed, NULL unless a string; may hold NULs */
size_t json_text_len(const struct json *value);
bool json_is_number(const struct json *value); /* integer or real */
double json_number(const struct json *value, double fallback);
int64_t json_int(const struct json *value, int64_t fallback); /* integers only */
bool json_bool(const struct json *value, bool fallback);
bool json_same(const struct json *a, const struct json *b); /* 1 and 1.0 are equal */

/* Object iteration in insertion order: `for (void *it = json_first(o); it; it = json_next(o, it))`. */
void *json_first(const struct json *object);
void *json_next(const struct json *object, void *iterator);
const char *json_iterator_key(void *iterator);
struct json *json_iterator_value(void *iterator); /* borrowed */

/* Building. Each json_new_* returns a tree the caller owns; set and append take ownership of value (never NULL). */
struct json *json_new_object(void);
struct json *json_new_array(void);
struct json *json_new_null(void);
struct json *json_new_bool(bool value);
struct json *json_new_integer(int64_t value);
struct json *json_new_number(double value); /* NaN and infinities become null; whole values stay reals */
struct json *json_new_string(const char *value); /* NULL becomes null; invalid UTF-8 is replaced by U+FFFD */
struct json *json_new_string_len(const char *value, size_t len);
void json_set(struct json *object, const char *key, struct json *value);
void json_append(struct json *array, struct json *value);
void json_remove(struct json *object, const char *key);

enum json_style { JSON_STYLE_COMPACT, JSON_STYLE_PRETTY, JSON_STYLE_CANONICAL /* compact, sorted keys: for hashing */ };
void json_write(const struct json *value, enum json_style style, struct text *out);

/* Position of a value in a document that json_parse accepted. path is "" for the root, else like "matrix.factors.x[2]"
 * (keys joined by '.', indexes in brackets). With of_key, the position of the key itself. Lines and columns count from 1,
 * columns in bytes. False when the path is not there. */
bool json_locate(const char *bytes, size_t len, const char *path, bool of_key, int *line, int *column);

#endif
