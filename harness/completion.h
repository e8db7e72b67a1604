/* Reading what an OpenAI-compatible server answers to a completion: first the bytes as they arrive, split into timed events and
 * kept; after the run the JSON in them, turned into a request_result. Pure: times are given by the caller.
 *
 * What counts, and what does not:
 *  - Tokens come from the server's usage alone, the last value it sent; events are never tokens.
 *  - An arrival is an event that carries text (content, reasoning or tool call) or whose completion count grew. Role-only events,
 *    empty texts, comments and the closing usage event are none.
 *  - A stream is complete with "[DONE]" or a finish reason. An error in the stream, finish reason "error", an event that is not
 * JSON, an end without a terminal event, and a 200 answer without any event are failures, whatever text came before. */
#ifndef HARNESS_COMPLETION_H
#define HARNESS_COMPLETION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "harness/result.h"
#include "harness/sse.h"

#define COMPLETION_ANSWER_BYTES_MAX ((size_t)64 << 20) /* guess: 100,000 tokens at 400 bytes an event stay below */

struct completion_event {
	size_t offset, len; /* in completion_answer.bytes */
	int64_t at_ns;
	bool is_error; /* the server named the event "error" */
};

enum completion_form { COMPLETION_UNDECIDED, COMPLETION_EVENTS, COMPLETION_DOCUMENT };

/* Zero-initialised it is ready for a new answer; owned by the caller. */
struct completion_answer {
	enum completion_form form;
	int http_status; /* 0: no answer came */
	struct sse_parser parser;
	struct text bytes; /* data of all events back to back, or the document */
	struct completion_event *events;
	size_t n_events, events_capacity;
	int64_t now_ns; /* of the read that is being parsed */
	int64_t end_ns; /* of "[DONE]", else of the last bytes */
	bool done; /* "[DONE]" came */
};

/* Status line and content type are known. Everything but a 200 event stream is read as one document. content_type may be NULL. */
void completion_begin(struct completion_answer *answer, int http_status, const char *content_type);

/* Takes bytes that arrived at at_ns. Sets answer->done at "[DONE]"; what follows it is dropped. Too much is STATUS_INPUT. */
enum status completion_feed(struct completion_answer *answer, const char *bytes, size_t len, int64_t at_ns, struct err *err);

/* Reads the answer into *out, whose sent_ns the caller has set and keeps. expected_tokens: the max_tokens asked for, -1 when
 * unknown. transport_error: why the connection ended early, NULL when it ended cleanly; it does not matter once a terminal event
 * came. */
void completion_finish(
	struct completion_answer *answer, int expected_tokens, const char *transport_error, struct request_result *out);

void completion_answer_release(struct completion_answer *answer);

#endif
