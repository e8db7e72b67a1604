/* Error objects and JSON strings. */
#include "engine/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum status api_error_set(struct api_error *error, int http_status, const char *code, const char *param, const char *format, ...)
{
	va_list args;

	if (error->http_status)
		return STATUS_INPUT;
	error->http_status = http_status;
	error->code = code;
	snprintf(error->param, sizeof(error->param), "%s", param ? param : "");
	va_start(args, format);
	vsnprintf(error->message, sizeof(error->message), format, args);
	va_end(args);
	return STATUS_INPUT;
}

static const char *error_type(int http_status)
{
	switch (http_status) {
	case 401:
		return "authentication_error";
	case 404:
		return "not_found_error";
	case 429:
		return "rate_limit_error";
	default:
		return http_status >= 500 ? "server_error" : "invalid_request_error";
	}
}

void api_error_write(const struct api_error *error, struct text *out)
{
	text_append_str(out, "{\"error\":{\"message\":");
	api_write_string(out, error->message, strlen(error->message));
	text_printf(out, ",\"type\":\"%s\",\"param\":", error_type(error->http_status));
	if (error->param[0])
		api_write_string(out, error->param, strlen(error->param));
	else
		text_append_str(out, "null");
	if (error->code)
		text_printf(out, ",\"code\":\"%s\"}}", error->code);
	else
		text_append_str(out, ",\"code\":null}}");
}

/* Two-character escapes of RFC 8259, section 7. */
static char short_escape(unsigned char c)
{
	switch (c) {
	case '"':
		return '"';
	case '\\':
		return '\\';
	case '\n':
		return 'n';
	case '\r':
		return 'r';
	case '\t':
		return 't';
	case '\b':
		return 'b';
	case '\f':
		return 'f';
	default:
		return 0;
	}
}

static void escape(struct text *out, const char *bytes, size_t len)
{
	size_t plain = 0; /* start of the run that needs no escape */

	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
			continue;
		text_append(out, bytes + plain, i - plain);
		plain = i + 1;
		char letter = short_escape(c);
		if (letter) {
			char pair[2] = {'\\', letter};
			text_append(out, pair, 2);
		} else {
			text_printf(out, "\\u%04x", c);
		}
	}
	text_append(out, bytes + plain, len - plain);
}

void api_write_string(struct text *out, const char *bytes, size_t len)
{
	text_append_char(out, '"');
	if (utf8_is_valid(bytes, len)) {
		escape(out, bytes, len);
	} else {
		struct text valid = {0};
		utf8_append_lossy(&valid, bytes, len);
		escape(out, text_str(&valid), valid.len);
		text_release(&valid);
	}
	text_append_char(out, '"');
}
