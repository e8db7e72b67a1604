/* The JSON of answers: events of a stream and whole replies. Written directly, without a tree, since a busy server writes
 * one event per request and step. */
#ifndef ENGINE_API_REPLY_H
#define ENGINE_API_REPLY_H

#include "base/http.h"
#include "engine/api_logprobs.h"

struct api_usage {
	int prompt_tokens, completion_tokens, cached_tokens;
	int drafted, accepted, verify_steps;
	int64_t queued_ns, prefill_ns, decode_ns; /* the longest of all choices */
};

struct api_reply {
	enum api_kind kind;
	bool stream;
	struct text head; /* {"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…, */
};

void api_reply_init(struct api_reply *reply, enum api_kind kind, bool stream, const char *model);
void api_reply_release(struct api_reply *reply);

struct api_part { /* what one event or one choice of a whole reply says */
	int index;
	const struct text *content;
	struct logprob_writer *logprobs; /* emptied */
	const char *finish_reason; /* NULL: null */
};

/* Appends one event with a piece of a choice. usage and facts may be NULL: usage adds the running totals, facts the
 * speculation counters and times of the whole request. */
void api_reply_event(const struct api_reply *reply, const struct api_part *part, const struct api_usage *usage,
	const struct api_usage *facts, struct text *out);
void api_reply_role_event(const struct api_reply *reply, int index, struct text *out); /* opens a choice of a chat */
void api_reply_usage_event(const struct api_reply *reply, const struct api_usage *usage, struct text *out);
void api_reply_error_event(const struct api_error *error, struct text *out);
void api_reply_done_event(struct text *out);

/* Answers an exchange with an error object; 429 and 503 say when to come back. extra: one more header or NULL. */
void api_reply_refusal(struct http_exchange *exchange, const struct api_error *error, const struct http_header *extra);

/* Whole replies: begin, each choice, end. */
void api_reply_begin(const struct api_reply *reply, struct text *out);
void api_reply_choice(const struct api_reply *reply, const struct api_part *part, struct text *out);
void api_reply_end(const struct api_usage *usage, struct text *out);

#endif
