/* Listening TCP sockets. */
#ifndef BASE_LISTEN_H
#define BASE_LISTEN_H

#include <stddef.h>

#include "base/err.h"

struct listen_socket {
	int fd; /* non-blocking, close-on-exec; owned by the caller */
	int port;
	char url[288]; /* "http://127.0.0.1:8000" */
};

/* Binds and listens on host (a name or a numeric address) and port (0: any free one). send_buffer_bytes: kernel queue of
 * each accepted socket, which also gets TCP_NODELAY. An address in use: STATUS_UNAVAILABLE, code "port_in_use", naming it. */
enum status listen_open(const char *host, int port, int send_buffer_bytes, struct listen_socket *out, struct err *err);

#endif
