/* One completion or chat request at work: from the body to the last byte of the answer. */
#ifndef ENGINE_API_COMPLETION_H
#define ENGINE_API_COMPLETION_H

#include <pthread.h>

#include "base/http.h"
#include "engine/api_backend.h"
#include "engine/api_request.h"

/* Stands between requests and the engine's life: whoever holds the lock may use the backend. Taken by the server thread
 * (handlers, lost clients) and by whoever attaches or detaches the engine; never by the engine's own threads.
 * Lock order: gate, then the engine's, then a completion's, then the HTTP server's. */
struct api_gate {
	pthread_mutex_t lock;
	struct api_backend backend;
	int token_bytes_max; /* longest token: text of more than max_model_len times this cannot fit */
};

/* Answers the exchange now (refusal) or later. The caller holds the gate's lock, and the backend is ready. The gate must
 * outlive the exchange. */
void api_completion_start(struct api_gate *gate, struct http_exchange *exchange, enum api_kind kind);

#endif
