/* The HTTP API of the engine: routes, access, and the small endpoints. Completions are api_completion's job.
 *
 *   POST /v1/completions, /v1/chat/completions       OpenAI's, streamed or not
 *   GET  /v1/models, /v1/models/NAME                 the one model; requests are served whatever "model" they name
 *   POST /tokenize {"content"|"prompt", "parse_special"}   → {"tokens", "count", "max_model_len"}
 *   POST /detokenize {"tokens"}                      → {"content", "prompt"}
 *   GET  /health                                     200 once a token has really been generated, else 503
 *   GET  /config, /metrics; GET or POST /flush_cache
 *
 * Where servers differ, this one: refuses (400) a prompt or max_tokens that the context has no room for instead of cutting it;
 * takes 16 tokens as the default of completions and the rest of the context as that of chats; gives choice i of n the seed
 * plus i; never turns text of a prompt or message into control tokens, unless a completion says "parse_special": true; never
 * shows a stop string; ends a stream that fails with an error event and [DONE]; answers 429 when the queue is full.
 */
#ifndef ENGINE_API_H
#define ENGINE_API_H

#include "base/http.h"
#include "engine/api_backend.h"

struct api;

struct api_config {
	const char *api_key; /* NULL: none is asked for; /health never asks */
	const char *nonce; /* echoed by /health and /config; NULL: none */
};

struct api *api_create(const struct api_config *config);
void api_destroy(struct api *api); /* after the HTTP server was closed */

/* The handler for http_config, with the api as its ctx. */
void api_handle(void *api, struct http_exchange *exchange);

/* Where /metrics reads the counters of the HTTP server. Once, before the first request matters. */
void api_set_server(struct api *api, struct http_server *server);

/* The engine is there: requests are served from now on. */
void api_attach(struct api *api, const struct api_backend *backend);

/* The engine is about to go: when this returns no handler uses it, and new requests get 503 with reason. Any thread but the
 * engine's. */
void api_detach(struct api *api, const char *reason);

#endif
