/* A small HTTP/1.1 server for both programs, and the only module that knows libmicrohttpd.
 *
 * One thread (the server thread) owns every socket; there is no thread per connection. It calls the handler once per
 * request, when the whole body has arrived. The handler answers at once, or keeps the exchange and answers later from
 * any thread, whole (http_reply) or piece by piece (http_stream_begin, _write, _end). Nothing here blocks the caller: bytes are
 * queued, and the server thread sends them. A client that goes away, or that stops reading until the queue limit is
 * reached, is reported once through on_gone so that the work behind it can be given up.
 *
 * Every limit has a number in struct http_config. Connections above connections_max are answered 503, above that plus
 * a small reserve they wait in the kernel's backlog; a body above body_bytes_max is answered 413; a request that is not
 * whole within request_timeout_ms (crowded_timeout_ms while there are too many connections) of the connection's start or its last
 * answer ends the connection. A client that half-closes its connection while its answer is not ready counts as gone. */
#ifndef BASE_HTTP_H
#define BASE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

struct http_server;
struct http_exchange; /* one request and its answer */

struct http_header {
	const char *name, *value;
};

/* Runs on the server thread and must be short. It must see to it that the exchange is ended exactly once, now or later,
 * by http_reply or by http_stream_end. */
typedef void http_handler(void *ctx, struct http_exchange *exchange);

#define HTTP_CONFIG_HEADERS_MAX 4

struct http_config {
	const char *host; /* name or numeric address to listen on; "127.0.0.1" unless the user asks for more */
	int port; /* 0: any free one, see http_server_port */
	int connections_max;
	size_t header_bytes_max; /* request line and headers together (431 above it) */
	size_t body_bytes_max;
	size_t stream_queue_bytes_max; /* bytes of one exchange waiting for its reader; above: the reader counts as gone */
	int request_timeout_ms; /* for a whole request to arrive; also how long an idle connection is kept */
	int crowded_timeout_ms; /* takes its place while more than connections_max are open, so that idle ones lock nobody out */
	int stall_timeout_s; /* a client that takes no byte of its answer for so long is dropped */
	struct http_header headers[HTTP_CONFIG_HEADERS_MAX]; /* sent with every answer; unused names are NULL; copied */
	http_handler *handle;
	void *ctx;
};

/* Loopback, a free port and the limits used by both programs; handle and ctx are left for the caller. */
struct http_config http_config_default(void);

/* Binds, listens and starts the server thread. An address in use is STATUS_UNAVAILABLE with code "port_in_use", naming it. */
enum status http_server_open(const struct http_config *config, struct http_server **out, struct err *err);

int http_server_port(const struct http_server *server);
const char *http_server_url(const struct http_server *server); /* "http://127.0.0.1:8000" */

/* Refuses new connections and answers 503 to new requests; running exchanges go on. Any thread. */
void http_server_stop_accepting(struct http_server *server);

/* Stops accepting, gives running exchanges up to grace_ms to be ended and sent, then drops the rest (their on_gone runs)
 * and ends the server thread. Exchanges that the caller has not ended yet stay valid until it does. */
void http_server_close(struct http_server *server, int grace_ms);

#define HTTP_STATUS_MIN 100
#define HTTP_STATUS_MAX 599

struct http_stats {
	uint64_t answers[HTTP_STATUS_MAX - HTTP_STATUS_MIN + 1]; /* by status, counted when the answer has ended */
	uint64_t dropped; /* exchanges whose client was gone before the end */
	int connections; /* open now */
	int exchanges; /* in progress now */
};
void http_server_stats(struct http_server *server, struct http_stats *out);

/* The request. Only for the handler, during its call; all results are borrowed. */
const char *http_method(const struct http_exchange *exchange); /* the body of an answer to "HEAD" is not sent */
const char *http_path(const struct http_exchange
		*exchange); /* decoded by uri_decode_path; what it refuses gets 400. A raw NUL byte in a request's
			     * line or a header ends the path or the value: the library hands over C strings. */
const char *http_request_header(const struct http_exchange *exchange, const char *name); /* NULL when absent */
const char *http_body(const struct http_exchange *exchange, size_t *len); /* never NULL, ends with a NUL */

/* Binds the caller's state to an exchange that will be ended later; only for the handler. on_gone runs at most once, on
 * the server thread, when the client is lost before the exchange was ended (an end at the same moment on another thread
 * may overlap with it). release runs exactly once, last, on any thread, when neither side needs ctx any more. Both must
 * be short; on_gone may end the exchange, release must not touch it. Either may be NULL. */
void http_attach(struct http_exchange *exchange, void *ctx, void (*on_gone)(void *ctx), void (*release)(void *ctx));

/* Answers whole and ends the exchange. Takes the bytes of body (left empty; NULL: no body). content_type is a literal.
 * extra: one more header, copied, or NULL. Any thread. */
void http_reply(
	struct http_exchange *exchange, int status, const char *content_type, const struct http_header *extra, struct text *body);

/* Starts an answer of unknown length, sent in chunks as they are written. content_type is a literal. Any thread. */
void http_stream_begin(struct http_exchange *exchange, int status, const char *content_type);

/* Queues bytes. False when the client is gone or has just been dropped for not reading. Any thread, one at a time. */
bool http_stream_write(struct http_exchange *exchange, const char *bytes, size_t len);

/* Ends the exchange after what was written. */
void http_stream_end(struct http_exchange *exchange);

#endif
