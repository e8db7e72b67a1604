/* The life of a server process: bind, load, serve, stop. */
#ifndef ENGINE_SERVE_H
#define ENGINE_SERVE_H

#include "engine/engine.h"

struct serve_options {
	struct engine_options engine;
	const char *host;
	const char *api_key; /* NULL: none */
	const char *nonce; /* of the launch: echoed in /health, /config and the header X-Verdict-Nonce; NULL: none */
	long long port; /* 0: a free one, printed */
	long long connections_max, body_bytes_max;
};

void serve_options_init(struct serve_options *options);

/* Binds first, so that a port in use is found before the model is loaded; while it loads /health answers 503. Returns
 * STATUS_OK after SIGTERM and STATUS_INTERRUPTED after SIGINT, once running requests were cancelled and answered. A second
 * signal ends the process at once. A lost rank ends the process from inside the engine. Call from the main thread, before
 * any other thread exists; strings must live as long as the process. */
enum status serve_run(const struct serve_options *options, struct err *err);

#endif
