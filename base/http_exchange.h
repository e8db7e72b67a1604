/* Inside of the HTTP server: one exchange and what all of them share. Only for http.c and http_exchange.c. */
#ifndef BASE_HTTP_EXCHANGE_H
#define BASE_HTTP_EXCHANGE_H

#include <pthread.h>

#include "base/http.h"

#define HTTP_EXTRA_VALUE_BYTES 64

struct MHD_Connection;
struct http_connection;

/* Shared by a server and its exchanges; counted, since an exchange may outlive the server. The lock is a leaf: nothing
 * is called while it is held. */
struct http_hub {
	pthread_mutex_t lock;
	int wake_fd; /* eventfd: something was put into the ready list */
	size_t stream_queue_bytes_max;
	int refs; /* guarded, as is all that follows */
	struct http_exchange *ready; /* exchanges that the server thread must look at */
	struct http_stats stats;
};

struct http_exchange {
	struct http_hub *hub;

	/* Owner: the server thread. */
	struct MHD_Connection *mhd;
	struct http_connection *connection; /* NULL once the library has finished with the request */
	const char *method;
	struct text path; /* decoded */
	const char *path_fault; /* why the path is refused; else NULL */
	const char *
		length_fault; /* why the length of the body is not known for sure; else NULL. The connection ends with the answer */
	struct text body;
	uint64_t received; /* body bytes, kept or not */
	bool body_too_large, handled, answer_queued, told_gone;

	/* Guarded by hub->lock. */
	int refs; /* the library's, the application's, and one while in the ready list */
	bool suspended; /* waits for the application; set and cleared by the server thread */
	bool ready; /* is in the ready list */
	bool gone; /* nobody reads any more */
	bool streaming, ended;
	int status;
	const char *content_type;
	const char *extra_name;
	char extra_value[HTTP_EXTRA_VALUE_BYTES];
	struct text out;
	size_t out_sent;
	struct http_exchange *next_ready;

	/* Set by the handler, then constant. */
	void *ctx;
	void (*on_gone)(void *ctx);
	void (*release)(void *ctx);
};

/* NULL when the descriptor cannot be made. */
struct http_hub *http_hub_new(size_t stream_queue_bytes_max);
void http_hub_drop(struct http_hub *hub);
void http_hub_wake(struct http_hub *hub);
struct http_exchange *http_hub_take_ready(struct http_hub *hub); /* a list through next_ready; each holds a reference */

struct http_exchange *http_exchange_new(struct http_hub *hub); /* with the library's and the application's reference */
void http_exchange_drop(struct http_exchange *exchange);

/* What the server thread is to do next with an exchange. */
enum http_next { HTTP_NEXT_ANSWER, HTTP_NEXT_SLEEP, HTTP_NEXT_CLOSE };

/* Decides after the handler or a resume; HTTP_NEXT_SLEEP marks the exchange suspended. */
enum http_next http_exchange_next(struct http_exchange *exchange, bool peer_closed);

/* Copies the next bytes of a stream. 0 with HTTP_NEXT_ANSWER: its end. */
enum http_next http_exchange_read(struct http_exchange *exchange, char *buffer, size_t max, size_t *count);

#endif
