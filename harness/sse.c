/* Splitting a byte stream into lines and lines into events, in place where they come whole. */
#include "harness/sse.h"

#include <string.h>

/* One feeding. The only data line of an event is left where it lies until the event ends or the bytes do; most events have one line
 * and come whole, and are never copied here. */
struct feeding {
	struct sse_parser *parser;
	void (*on_event)(void *ctx, const struct sse_event *event);
	void *ctx;
	const char *held; /* that line; NULL: all data is in parser->data */
	size_t held_len;
};

/* What is held goes where it outlives the bytes. */
static void keep_held(struct feeding *feeding)
{
	struct text *data = &feeding->parser->data;
	if (!feeding->held)
		return;
	text_append(data, feeding->held, feeding->held_len);
	text_append_char(data, '\n');
	feeding->held = NULL;
}

static void dispatch(struct feeding *feeding)
{
	struct sse_parser *parser = feeding->parser;
	struct sse_event event = {text_str(&parser->type), feeding->held, feeding->held_len};
	if (parser->has_data && !feeding->held) {
		/* Every data line added an LF; the last one is not part of the data. */
		text_truncate(&parser->data, parser->data.len - 1);
		event.data = text_str(&parser->data);
		event.len = parser->data.len;
	}
	if (parser->has_data)
		feeding->on_event(feeding->ctx, &event);
	feeding->held = NULL;
	text_clear(&parser->data);
	text_clear(&parser->type);
	parser->has_data = false;
}

static void take_data(struct feeding *feeding, const char *value, size_t len, bool stays)
{
	bool first = !feeding->parser->has_data;
	keep_held(feeding);
	feeding->parser->has_data = true;
	feeding->held = value;
	feeding->held_len = len;
	if (!first || !stays)
		keep_held(feeding);
}

static void take_field(struct feeding *feeding, const char *line, size_t len, bool stays)
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
		take_data(feeding, value, value_len, stays);
	} else if (name_len == 5 && memcmp(line, "event", 5) == 0) {
		text_clear(&feeding->parser->type);
		text_append(&feeding->parser->type, value, value_len);
	}
}

/* stays: the line lies in the bytes that are fed, not in parser->line. */
static void take_line(struct feeding *feeding, const char *line, size_t len, bool stays)
{
	if (!feeding->parser->past_start && len >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
		line += 3;
		len -= 3;
	}
	feeding->parser->past_start = true;
	if (len == 0)
		dispatch(feeding);
	else if (line[0] != ':')
		take_field(feeding, line, len, stays);
}

/* Bytes of an event that has not ended. The LF that a data line adds counts too, or a stream of empty data lines would never meet
 * the limit. */
static size_t event_bytes(const struct feeding *feeding)
{
	return feeding->parser->line.len + feeding->parser->data.len + (feeding->held ? feeding->held_len + 1 : 0);
}

static void end_line(struct feeding *feeding, const char *bytes, size_t len)
{
	struct text *line = &feeding->parser->line;
	if (line->len == 0) {
		take_line(feeding, bytes, len, true);
		return;
	}
	text_append(line, bytes, len);
	take_line(feeding, text_str(line), line->len, false);
	text_clear(line);
}

static size_t line_length(const char *bytes, size_t len)
{
	size_t end = 0;
	while (end < len && bytes[end] != '\r' && bytes[end] != '\n')
		end++;
	return end;
}

enum status sse_feed(struct sse_parser *parser, const char *bytes, size_t len,
	void (*on_event)(void *ctx, const struct sse_event *event), void *ctx, struct err *err)
{
	struct feeding feeding = {.parser = parser, .on_event = on_event, .ctx = ctx};
	for (size_t at = 0; at < len;) {
		bool lf_of_crlf = parser->after_cr && bytes[at] == '\n';
		parser->after_cr = false;
		if (lf_of_crlf) {
			at++;
			continue;
		}
		size_t line_len = line_length(bytes + at, len - at);
		if (event_bytes(&feeding) + line_len > SSE_EVENT_BYTES_MAX)
			return err_set(err, STATUS_INPUT, "an event of the stream is larger than %zu bytes", SSE_EVENT_BYTES_MAX);
		if (at + line_len == len) {
			text_append(&parser->line, bytes + at, line_len);
			break;
		}
		parser->after_cr = bytes[at + line_len] == '\r';
		end_line(&feeding, bytes + at, line_len);
		at += line_len + 1;
	}
	keep_held(&feeding);
	return STATUS_OK;
}

void sse_finish(struct sse_parser *parser, void (*on_event)(void *ctx, const struct sse_event *event), void *ctx)
{
	struct feeding feeding = {.parser = parser, .on_event = on_event, .ctx = ctx};
	if (parser->line.len > 0)
		take_line(&feeding, text_str(&parser->line), parser->line.len, false);
	text_clear(&parser->line);
	dispatch(&feeding);
}

void sse_release(struct sse_parser *parser)
{
	text_release(&parser->line);
	text_release(&parser->data);
	text_release(&parser->type);
	memset(parser, 0, sizeof(*parser));
}
