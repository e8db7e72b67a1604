/* A blocking HTTP client for tests: raw bytes out, replies in, every wait with a deadline. */
#ifndef TESTS_SUPPORT_HTTP_CLIENT_H
#define TESTS_SUPPORT_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

#define HTTP_CLIENT_WAIT_MS 30000 /* far above what any test needs; only a broken server reaches it */

struct http_client {
	int fd;
	struct text in; /* received and not yet consumed */
	bool ended; /* the server closed its side */
};

struct http_client_reply {
	int status; /* 0: no complete reply came */
	struct text head, body; /* body is without chunk framing */
};

/* Connects to the loopback address. receive_buffer_bytes 0: the system's default. */
bool http_client_open(struct http_client *client, int port, int receive_buffer_bytes);
void http_client_close(struct http_client *client);
bool http_client_send(struct http_client *client, const char *bytes, size_t len);

/* Sends a request with Host, the given header lines ("Name: value\r\n" each, may be ""), and a body when not NULL. */
bool http_client_request(
	struct http_client *client, const char *method, const char *path, const char *headers, const char *body, size_t body_len);

/* Waits until the unconsumed bytes hold needle. */
bool http_client_wait_for(struct http_client *client, const char *needle);
bool http_client_wait_end(struct http_client *client); /* until the server closes */

/* Waits for one whole reply and consumes it. Release with http_client_reply_release. */
bool http_client_read(struct http_client *client, struct http_client_reply *out);
void http_client_reply_release(struct http_client_reply *reply);

/* Value of a header of the reply, or NULL. Copied into out. */
const char *http_client_header(const struct http_client_reply *reply, const char *name, char out[256]);

/* Opens, requests, reads, closes. body NULL: GET, else POST of JSON. */
bool http_client_once(int port, const char *path, const char *body, struct http_client_reply *out);

#endif
