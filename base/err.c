/* Error values and the assertion that stays on in release. */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef err_set
#undef err_set_code
#undef err_set_errno

static enum status record(struct err *err, enum status status, const char *code, const char *format, va_list args)
{
	if (!err)
		return status;
	if (err->status != STATUS_OK)
		return err->status; /* the first error is the cause; later ones are its echoes */
	err->status = status;
	snprintf(err->code, sizeof err->code, "%s", code);
	vsnprintf(err->text, sizeof err->text, format, args);
	return status;
}

enum status err_set(struct err *err, enum status status, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	status = record(err, status, "", format, args);
	va_end(args);
	return status;
}

enum status err_set_code(struct err *err, enum status status, const char *code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	status = record(err, status, code, format, args);
	va_end(args);
	return status;
}

enum status err_set_errno(struct err *err, enum status status, int errnum, const char *format, ...)
{
	char text[ERR_TEXT_BYTES_MAX];
	char reason[128];
	va_list args;
	va_start(args, format);
	vsnprintf(text, sizeof text, format, args);
	va_end(args);
	return err_set(err, status, "%s: %s", text, strerror_r(errnum, reason, sizeof reason));
}

enum status err_add(struct err *err, const char *format, ...)
{
	if (!err)
		return STATUS_INTERNAL;
	char noun[ERR_TEXT_BYTES_MAX], old[ERR_TEXT_BYTES_MAX];
	va_list args;
	va_start(args, format);
	vsnprintf(noun, sizeof noun, format, args);
	va_end(args);
	memcpy(old, err->text, sizeof old);
	int used = snprintf(err->text, sizeof err->text, "%s: ", noun);
	if (used > 0 && (size_t)used < sizeof err->text)
		snprintf(err->text + used, sizeof err->text - (size_t)used, "%s", old);
	return err->status;
}

void err_clear(struct err *err)
{
	if (err)
		*err = (struct err){0};
}

void assert_failed(const char *file, int line, const char *condition)
{
	char text[512];
	int len = snprintf(text, sizeof text, "%s:%d: assertion failed: %s\n", file, line, condition);
	if (len > 0) {
		size_t bytes = (size_t)len < sizeof text ? (size_t)len : sizeof text - 1;
		if (write(STDERR_FILENO, text, bytes) < 0)
			abort();
	}
	abort();
}
