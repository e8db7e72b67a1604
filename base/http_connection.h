/* Inside of the HTTP server: the connections that are open, and when they are ended. Only for http.c. Owner of everything
 * here: the server thread. */
#ifndef BASE_HTTP_CONNECTION_H
#define BASE_HTTP_CONNECTION_H

#include <stdbool.h>
#include <stdint.h>

struct http_exchange;

struct http_connection {
	int fd;
	bool peer_closed; /* its sending side is shut: nobody waits for an answer that is not ready */
	int64_t waiting_since_ns; /* start or last answer; 0 while an exchange is being handled */
	struct http_exchange *current; /* NULL between requests */
	struct http_connection *prev, *next;
};

struct http_connections {
	struct http_connection *first;
	int count;
};

/* Adds a connection, and has epoll_fd report the client's hang-up once, with the connection as data. */
struct http_connection *http_connections_add(struct http_connections *list, int epoll_fd, int fd);
void http_connections_remove(struct http_connections *list, int epoll_fd, struct http_connection *connection);

/* Ends connections whose request has not arrived within timeout_ms, or was cut short. A slow sender cannot reset this clock
 * byte by byte. */
void http_connections_end_overdue(struct http_connections *list, int timeout_ms);

#endif
