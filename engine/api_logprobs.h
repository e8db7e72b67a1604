/* Log-probabilities in the two shapes of OpenAI's API: parallel arrays for completions, an array of objects for chats. */
#ifndef ENGINE_API_LOGPROBS_H
#define ENGINE_API_LOGPROBS_H

#include "engine/api_backend.h"
#include "engine/api_request.h"

struct logprob_writer { /* {.kind, .alternatives} and zeros; released by logprob_release */
	enum api_kind kind;
	int alternatives; /* -1: nothing is written at all */
	int count; /* tokens since the last write */
	int text_offset; /* code points of text before the next token */
	struct text tokens, logprobs, top, offsets; /* element lists, comma-separated; chats use tokens only */
};

void logprob_add(struct logprob_writer *writer, const struct api_backend *backend, const struct engine_token *token);

/* Appends the value of "logprobs" for the tokens added since the last call, or null, and begins anew. */
void logprob_write(struct logprob_writer *writer, struct text *out);

void logprob_release(struct logprob_writer *writer);

#endif
