/* Growing byte strings and locale-independent numbers. */
#include "base/text.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define WHOLE_MAX 9007199254740992.0 /* 2^53: whole numbers below have one spelling */

static void reserve(struct text *text, size_t more)
{
	size_t need;
	ASSERT(!__builtin_add_overflow(text->len, more, &need) && need < MEM_BLOCK_BYTES_MAX);
	if (need + 1 <= text->capacity)
		return;
	size_t capacity = text->capacity ? text->capacity : 64;
	while (capacity < need + 1)
		capacity *= 2;
	text->data = mem_realloc(text->data, capacity, 1);
	text->capacity = capacity;
}

void text_append(struct text *text, const char *bytes, size_t len)
{
	reserve(text, len);
	if (len)
		memcpy(text->data + text->len, bytes, len);
	text->len += len;
	text->data[text->len] = '\0';
}

void text_append_str(struct text *text, const char *str)
{
	text_append(text, str, strlen(str));
}

void text_append_char(struct text *text, char c)
{
	text_append(text, &c, 1);
}

void text_printf(struct text *text, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	text_vprintf(text, format, args);
	va_end(args);
}

void text_vprintf(struct text *text, const char *format, va_list args)
{
	va_list again;
	va_copy(again, args);
	int len = vsnprintf(NULL, 0, format, again);
	va_end(again);
	ASSERT(len >= 0);
	reserve(text, (size_t)len);
	vsnprintf(text->data + text->len, (size_t)len + 1, format, args);
	text->len += (size_t)len;
}

void text_truncate(struct text *text, size_t len)
{
	ASSERT(len <= text->len);
	if (!text->data)
		return;
	text->len = len;
	text->data[len] = '\0';
}

void text_clear(struct text *text)
{
	text_truncate(text, 0);
}

void text_release(struct text *text)
{
	mem_free(text->data);
	*text = (struct text){0};
}

const char *text_str(const struct text *text)
{
	return text->data ? text->data : "";
}

char *text_take(struct text *text)
{
	reserve(text, 0);
	text->data[text->len] = '\0';
	char *bytes = text->data;
	*text = (struct text){0};
	return bytes;
}

/* strtod follows LC_NUMERIC; a private "C" locale keeps 0.85 at 0.85 whatever the user's locale is. */
static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_c_locale(void)
{
	c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	ASSERT(c_locale != (locale_t)0);
}

static bool is_whole_number_text(const char *str)
{
	if (!str || !*str)
		return false;
	return (*str >= '0' && *str <= '9') || *str == '-' || *str == '+' || *str == '.';
}

bool text_to_i64(const char *str, long long *out)
{
	if (!is_whole_number_text(str))
		return false;
	char *end;
	errno = 0;
	long long value = strtoll(str, &end, 10);
	if (errno || end == str || *end)
		return false;
	*out = value;
	return true;
}

bool text_to_u64(const char *str, unsigned long long *out)
{
	if (!is_whole_number_text(str) || *str == '-')
		return false;
	char *end;
	errno = 0;
	unsigned long long value = strtoull(str, &end, 10);
	if (errno || end == str || *end)
		return false;
	*out = value;
	return true;
}

bool text_to_double(const char *str, double *out)
{
	if (!is_whole_number_text(str))
		return false;
	pthread_once(&c_locale_once, make_c_locale);
	char *end;
	errno = 0;
	double value = strtod_l(str, &end, c_locale);
	if (end == str || *end || !isfinite(value))
		return false;
	*out = value;
	return true;
}

void text_format_double(char out[32], double value)
{
	pthread_once(&c_locale_once, make_c_locale);
	locale_t before = uselocale(c_locale);
	bool whole = fabs(value) < WHOLE_MAX && value == trunc(value); /* 100, not 1e+02 */
	if (whole)
		snprintf(out, 32, "%.0f", value);
	for (int digits = 1; !whole && digits <= 17; digits++) {
		snprintf(out, 32, "%.*g", digits, value);
		double back;
		if (isfinite(value) && text_to_double(out, &back) && back == value)
			break;
	}
	uselocale(before);
}

bool text_equal(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

bool text_starts_with(const char *str, const char *prefix)
{
	return strncmp(str, prefix, strlen(prefix)) == 0;
}
