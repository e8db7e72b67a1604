/* The list of open connections. */
#include "base/http_connection.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

struct http_connection *http_connections_add(struct http_connections *list, int epoll_fd, int fd)
{
	struct http_connection *connection = mem_calloc(1, sizeof(*connection));
	struct epoll_event event = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.ptr = connection};

	connection->fd = fd;
	connection->waiting_since_ns = clock_monotonic_ns();
	connection->next = list->first;
	if (connection->next)
		connection->next->prev = connection;
	list->first = connection;
	list->count++;
	if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		log_warn("http", "a client's hang-up cannot be watched: %s", strerror(errno));
	return connection;
}

void http_connections_remove(struct http_connections *list, int epoll_fd, struct http_connection *connection)
{
	epoll_ctl(epoll_fd, EPOLL_CTL_DEL, connection->fd, NULL);
	if (connection->prev)
		connection->prev->next = connection->next;
	else
		list->first = connection->next;
	if (connection->next)
		connection->next->prev = connection->prev;
	list->count--;
	mem_free(connection);
}

void http_connections_end_overdue(struct http_connections *list, int timeout_ms)
{
	int64_t oldest_ns = clock_monotonic_ns() - (int64_t)timeout_ms * 1000000;

	for (struct http_connection *connection = list->first; connection; connection = connection->next) {
		if (connection->waiting_since_ns && connection->waiting_since_ns < oldest_ns)
			shutdown(connection->fd, SHUT_RDWR);
		/* The library misses the end of a request that was cut short when the end came together with the last bytes
		 * (0.9.75 reads once per edge). This repeats the edge and loses nothing that is still to be read. */
		else if (connection->waiting_since_ns && connection->peer_closed)
			shutdown(connection->fd, SHUT_RD);
	}
}
