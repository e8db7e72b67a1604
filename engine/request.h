/* One request, submitted and waited for: what once and perplexity do where the server streams. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "engine/engine.h"

/* Runs a request to its end. listener's on_tokens and on_logits are passed on and may be NULL; on_done is not used. A request
 * that ends with FINISH_ERROR is STATUS_UNAVAILABLE with its text. result->error is NULL. There is no deadline: every
 * request has max_tokens, and the engine ends the process when a rank stalls. */
enum status request_run(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling,
	const struct engine_listener *listener, struct engine_result *result, struct err *err);

/* "stop", "length", … as the server's finish_reason. */
const char *request_finish_name(enum finish finish);

/* Ids of text, with the BOS token first where the model's tokenizer adds it. */
enum status request_encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
	struct token_list *out, struct err *err);

#endif
