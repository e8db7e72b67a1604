/* Growing byte string, always NUL-terminated, may hold NUL bytes. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* `struct text text = {0};` is an empty string. Owned by the caller; text_release frees it. */
struct text {
	char *data; /* NULL while nothing was ever added */
	size_t len; /* bytes, without the final NUL */
	size_t capacity;
};

void text_append(struct text *text, const char *bytes, size_t len);
void text_append_str(struct text *text, const char *str);
void text_append_char(struct text *text, char c);
void text_printf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vprintf(struct text *text, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
void text_truncate(struct text *text, size_t len); /* len <= text->len */
void text_clear(struct text *text); /* empty, keeps the capacity */
void text_release(struct text *text);

/* The bytes as a C string; "" while empty. Valid until the next change. */
const char *text_str(const struct text *text);

/* Hands the bytes to the caller, who frees them with mem_free; the text is empty afterwards. Never NULL. */
char *text_take(struct text *text);

/* Numbers from text, locale-independent; the whole string must be a number in range. Return false otherwise. */
bool text_to_i64(const char *str, long long *out);
bool text_to_u64(const char *str, unsigned long long *out);
bool text_to_double(const char *str, double *out); /* finite only */

/* Shortest decimal form that reads back as value, locale-independent ("0.85"); whole numbers without an exponent ("100").
 * Buffer of 32 bytes. */
void text_format_double(char out[32], double value);

bool text_equal(const char *a, const char *b); /* NULL-safe */
bool text_starts_with(const char *str, const char *prefix);

#endif
