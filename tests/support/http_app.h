/* An application under the HTTP server: answers most requests by what it got, and keeps the exchanges of paths that begin with
 * "/keep", which the test then ends from its own thread. */
#ifndef TESTS_SUPPORT_HTTP_APP_H
#define TESTS_SUPPORT_HTTP_APP_H

#include <pthread.h>

#include "base/http.h"

#define HTTP_APP_KEPT_MAX 64

struct http_app {
	struct http_server *server;
	int port;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct http_exchange *kept[HTTP_APP_KEPT_MAX];
	int n_kept, n_gone, n_released;
};

/* adjust, when not NULL, changes the default configuration before the server is opened. */
struct http_app *http_app_open(void (*adjust)(struct http_config *config));
void http_app_close(struct http_app *app, int grace_ms);

/* Waits until *counter reaches count; false after the deadline. */
bool http_app_wait(struct http_app *app, const int *counter, int count);

http_handler http_app_handle; /* as the server runs it; ctx is the struct http_app */

/* Ends a kept exchange with body as text. */
void http_app_reply(struct http_exchange *exchange, const char *body);

#endif
