/* Bodies of /v1/completions and /v1/chat/completions: JSON from outside in, checked values out. Pure.
 *
 * Absent and null mean the same. Unknown fields are ignored, as OpenAI-compatible servers do; a known field of the wrong type or
 * out of range is refused, and so is a feature that would change the answer and is not built (penalties, echo, …). Tools are shown
 * to the model by its chat template; the calls that it writes are text of the answer. */
#ifndef ENGINE_API_REQUEST_H
#define ENGINE_API_REQUEST_H

#include "base/json.h"
#include "base/mem.h"
#include "engine/api_error.h"
#include "engine/api_stop.h"
#include "engine/chat.h"
#include "engine/engine.h"

#define API_CHOICES_MAX 128 /* prompts times n in one request */
#define API_MESSAGES_MAX 4096
#define API_COMPLETION_TOKENS_DEFAULT 16 /* OpenAI's default of max_tokens for /v1/completions */

enum api_kind { API_COMPLETION, API_CHAT };

struct api_prompt { /* text or ids */
	const char *text; /* NULL: ids. Borrowed from the request's JSON; may hold NULs */
	size_t len;
	int32_t *ids;
	size_t n_ids;
};

struct api_request {
	enum api_kind kind;
	struct json *root; /* owns the strings */
	struct arena arena; /* owns the arrays */
	struct api_prompt *prompts; /* of a completion */
	size_t n_prompts;
	struct chat_message *messages; /* of a chat */
	size_t n_messages;
	const struct json *tools; /* of a chat, in root; NULL: none, or not to be used */
	struct stop_string stops[STOP_STRINGS_MAX];
	size_t n_stops;
	int n; /* choices per prompt */
	bool stream, include_usage, continuous_usage;
	bool parse_special; /* control tokens written in a completion's text become control tokens */
	bool has_seed;
	struct sampling sampling; /* max_tokens 0: not given; logprobs -1: none */
};

/* Parses and checks a body. On refusal *error says why (400). Release in both cases. */
enum status api_request_parse(enum api_kind kind, const char *body, size_t len, struct api_request *out, struct api_error *error);
void api_request_release(struct api_request *request);

/* Token ids as in {"tokens": [1, 2]}: whole numbers from 0 to INT32_MAX. Appends to out; param names the field in the error. */
enum status api_read_ids(const struct json *array, const char *param, struct token_list *out, struct api_error *error);

#endif
