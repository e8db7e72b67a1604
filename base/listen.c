/* Listening TCP sockets: name look-up, options, bind, and what was bound. */
#include "base/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 512 /* outlasts a burst of benchmark clients; Linux's usual ceiling is 4096 (guess) */

/* Returns -1 with errno set. */
static int bind_one(const struct addrinfo *address, int send_buffer_bytes)
{
	int one = 1;
	int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -1;
	/* Accepted sockets inherit the last two. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof(send_buffer_bytes));
	if (bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	int errnum = errno;
	close(fd);
	errno = errnum;
	return -1;
}

static void describe(const char *host, struct listen_socket *out)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} bound = {0};
	socklen_t len = sizeof(bound);

	getsockname(out->fd, &bound.any, &len);
	out->port = ntohs(bound.any.sa_family == AF_INET6 ? bound.v6.sin6_port : bound.v4.sin_port);
	bool numeric_v6 = strchr(host, ':') != NULL;
	snprintf(out->url, sizeof(out->url), numeric_v6 ? "http://[%s]:%d" : "http://%s:%d", host, out->port);
}

enum status listen_open(const char *host, int port, int send_buffer_bytes, struct listen_socket *out, struct err *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
	struct addrinfo *addresses = NULL;
	char service[16];

	if (port < 0 || port > 65535)
		return err_set(err, STATUS_INPUT, "port %d is not between 0 and 65535", port);
	snprintf(service, sizeof(service), "%d", port);
	int code = getaddrinfo(host, service, &hints, &addresses);
	if (code != 0)
		return err_set(err, STATUS_INPUT, "host '%s': %s", host, gai_strerror(code));
	out->fd = bind_one(addresses, send_buffer_bytes);
	int errnum = errno;
	freeaddrinfo(addresses);
	if (out->fd < 0)
		return err_set_code(err, STATUS_UNAVAILABLE, errnum == EADDRINUSE ? "port_in_use" : "cannot_listen",
			"cannot listen on %s:%d: %s", host, port, strerror(errnum));
	describe(host, out);
	return STATUS_OK;
}
