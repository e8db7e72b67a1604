/* A refused request: HTTP status and the error object that OpenAI's clients expect. Also the writer of JSON strings that
 * everything the API sends goes through. */
#ifndef ENGINE_API_ERROR_H
#define ENGINE_API_ERROR_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/text.h"

struct api_error {
	int http_status; /* 0 while there is none */
	const char *code; /* literal, e.g. "context_length_exceeded"; NULL: null */
	char param[48]; /* the field at fault; "" : null */
	char message[512]; /* may hold bytes from the request, also invalid ones: they are replaced when written */
};

/* Records the first error. param may be NULL. Returns STATUS_INPUT, so `return api_error_set(…);` reads well. */
enum status api_error_set(struct api_error *error, int http_status, const char *code, const char *param, const char *format, ...)
	__attribute__((format(printf, 5, 6)));

/* Appends {"error":{"message","type","param","code"}}. */
void api_error_write(const struct api_error *error, struct text *out);

/* Appends bytes as a JSON string with its quotes. Invalid UTF-8 becomes U+FFFD; NUL and other controls are escaped. */
void api_write_string(struct text *out, const char *bytes, size_t len);

#endif
