/* Server-sent events, split out of a byte stream as it arrives. Pure and incremental: any cut of the same bytes gives the same
 * events. Source: WHATWG HTML, "Server-sent events", section 9.2.6. Only CR, LF and CRLF end a line; comments and unknown fields
 * are skipped. */
#ifndef HARNESS_SSE_H
#define HARNESS_SSE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/text.h"

/* Guess: far above any event of a token stream, far below what would hurt this process. */
#define SSE_EVENT_BYTES_MAX ((size_t)8 << 20)

/* One event: its data lines joined by LF, not terminated, and its type ("" when the server named none). Valid during the callback
 * only. */
struct sse_event {
	const char *type;
	const char *data;
	size_t len;
};

/* Zero-initialised it is ready for a new stream. Owned by the caller; sse_release frees it. */
struct sse_parser {
	struct text line; /* the line that has not ended yet; lines that came whole are read where they lie */
	struct text data; /* data lines of the event that has not ended yet, each followed by LF */
	struct text type;
	bool has_data; /* a data line was seen, possibly an empty one */
	bool after_cr; /* the last byte was CR, so an LF that follows belongs to the same line end */
	bool past_start; /* the first line, which may begin with a byte order mark, is over */
};

/* Takes the next bytes of the stream and calls on_event for each event that they complete. An event of more than
 * SSE_EVENT_BYTES_MAX is STATUS_INPUT; the parser must then be released. */
enum status sse_feed(struct sse_parser *parser, const char *bytes, size_t len,
	void (*on_event)(void *ctx, const struct sse_event *event), void *ctx, struct err *err);

/* The stream has ended. The standard drops an event whose blank line never came; servers that close right after their last line
 * exist, so it is delivered here, and the reader of its data decides whether it is whole. */
void sse_finish(struct sse_parser *parser, void (*on_event)(void *ctx, const struct sse_event *event), void *ctx);

void sse_release(struct sse_parser *parser);

#endif
