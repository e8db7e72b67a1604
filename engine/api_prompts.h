/* From a checked request to the tokens of its prompts, and how many may follow each. */
#ifndef ENGINE_API_PROMPTS_H
#define ENGINE_API_PROMPTS_H

#include "engine/api_backend.h"
#include "engine/api_request.h"

struct api_prompts {
	struct token_list *lists; /* [count], owned; a chat is one prompt */
	int *max_tokens; /* [count], owned: tokens that may follow */
	size_t count;
	int tokens; /* of all prompts together */
};

/* Encodes on the calling thread. token_bytes_max is the length of the longest token: text of more than so many times the
 * context is refused before it is encoded, so that the call stays short. On refusal *error says why. Release in both
 * cases. */
enum status api_prompts_encode(const struct api_backend *backend, int token_bytes_max, const struct api_request *request,
	struct api_prompts *out, struct api_error *error);
void api_prompts_release(struct api_prompts *prompts);

/* What the engine refused, as an answer to the client. Returns STATUS_INPUT. */
enum status api_engine_refusal(const struct err *err, struct api_error *error);

#endif
