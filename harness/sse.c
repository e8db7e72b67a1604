/* Splitting a byte stream into lines and lines into events. */
#include "harness/sse.h"

#include <string.h>

static void dispatch(struct sse_parser *parser, void (*on_event)(void *ctx, const struct sse_event *event), void *ctx)
{
	if (parser->has_data) {
		/* Every data line added an LF; the last one is not part of the data. */
		text_truncate(&parser->data, parser->data.len - 1);
		struct sse_event event = {text_str(&parser->type), text_str(&parser->data), parser->data.len};
		on_event(ctx, &event);
	}
	text_clear(&parser->data);
	text_clear(&parser->type);
	parser->has_data = false;
}

static void take_field(struct sse_parser *parser, const char *line, size_t len)
{
	const char *colon = memchr(line, ':', len);
	size_t name_len = colon ? (size_t)(colon - line) : len;
	const char *value = colon ? colon + 1 : line + len;
	size_t value_len = (size_t)(line + len - value);
	if (value_len > 0 && value[0] == ' ') {
		value++;
		value_len--;
	}
	if (name_len == 4 && memcmp(line, "data", 4) == 0) {
		text_append(&parser->data, value, value_len);
		text_append_char(&parser->data, '\n');
		parser->has_data = true;
	} else if (name_len == 5 && memcmp(line, "event", 5) == 0) {
		text_clear(&parser->type);
		text_append(&parser->type, value, value_len);
	}
}

static void take_line(struct sse_parser *parser, void (*on_event)(void *ctx, const struct sse_event *event), void *ctx)
{
	const char *line = text_str(&parser->line);
	size_t len = parser->line.len;
	if (!parser->past_start && len >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
		line += 3;
		len -= 3;
	}
	parser->past_start = true;
	if (len == 0)
		dispatch(parser, on_event, ctx);
	else if (line[0] != ':')
		take_field(parser, line, len);
	text_clear(&parser->line);
}

enum status sse_feed(struct sse_parser *parser, const char *bytes, size_t len,
	void (*on_event)(void *ctx, const struct sse_event *event), void *ctx, struct err *err)
{
	size_t at = 0;
	while (at < len) {
		if (parser->after_cr) {
			parser->after_cr = false;
			if (bytes[at] == '\n') {
				at++;
				continue;
			}
		}
		size_t end = at;
		while (end < len && bytes[end] != '\r' && bytes[end] != '\n')
			end++;
		if (end - at > SSE_EVENT_BYTES_MAX - parser->line.len - parser->data.len)
			return err_set(err, STATUS_INPUT, "an event of the stream is larger than %zu bytes", SSE_EVENT_BYTES_MAX);
		text_append(&parser->line, bytes + at, end - at);
		if (end == len)
			break;
		parser->after_cr = bytes[end] == '\r';
		take_line(parser, on_event, ctx);
		/* The LF that a data line adds counts too, or a stream of empty data lines would never meet the limit. */
		if (parser->data.len >= SSE_EVENT_BYTES_MAX)
			return err_set(err, STATUS_INPUT, "an event of the stream is larger than %zu bytes", SSE_EVENT_BYTES_MAX);
		at = end + 1;
	}
	return STATUS_OK;
}

void sse_finish(struct sse_parser *parser, void (*on_event)(void *ctx, const struct sse_event *event), void *ctx)
{
	if (parser->line.len > 0)
		take_line(parser, on_event, ctx);
	dispatch(parser, on_event, ctx);
}

void sse_release(struct sse_parser *parser)
{
	text_release(&parser->line);
	text_release(&parser->data);
	text_release(&parser->type);
	memset(parser, 0, sizeof(*parser));
}
