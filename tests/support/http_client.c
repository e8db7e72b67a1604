/* A blocking HTTP client for tests. */
#include "tests/support/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

bool http_client_open(struct http_client *client, int port, int receive_buffer_bytes)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};

	*client = (struct http_client){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (receive_buffer_bytes)
		setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
	return client->fd >= 0 && connect(client->fd, (struct sockaddr *)&address, sizeof(address)) == 0;
}

void http_client_close(struct http_client *client)
{
	if (client->fd >= 0)
		close(client->fd);
	client->fd = -1;
	text_release(&client->in);
}

bool http_client_send(struct http_client *client, const char *bytes, size_t len)
{
	while (len) {
		ssize_t sent = send(client->fd, bytes, len, MSG_NOSIGNAL);
		if (sent <= 0)
			return false;
		bytes += sent;
		len -= (size_t)sent;
	}
	return true;
}

bool http_client_request(
	struct http_client *client, const char *method, const char *path, const char *headers, const char *body, size_t body_len)
{
	struct text request = {0};

	text_printf(&request, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, headers);
	if (body)
		text_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n", body_len);
	text_append_str(&request, "\r\n");
	if (body)
		text_append(&request, body, body_len);
	bool ok = http_client_send(client, request.data, request.len);
	text_release(&request);
	return ok;
}

/* Receives once. False at the end, on an error or when the deadline passes. */
static bool receive(struct http_client *client, int64_t deadline_ns)
{
	char buffer[65536];
	struct pollfd wait = {.fd = client->fd, .events = POLLIN};
	int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / 1000000;

	if (client->ended || left_ms <= 0 || poll(&wait, 1, (int)left_ms) <= 0)
		return false;
	ssize_t got = recv(client->fd, buffer, sizeof(buffer), 0);
	if (got <= 0) {
		client->ended = true;
		return false;
	}
	text_append(&client->in, buffer, (size_t)got);
	return true;
}

static int64_t deadline(void)
{
	return clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
}

bool http_client_wait_for(struct http_client *client, const char *needle)
{
	int64_t deadline_ns = deadline();

	while (!client->in.len || !memmem(client->in.data, client->in.len, needle, strlen(needle))) {
		if (!receive(client, deadline_ns))
			return false;
	}
	return true;
}

bool http_client_wait_end(struct http_client *client)
{
	int64_t deadline_ns = deadline();

	while (receive(client, deadline_ns))
		;
	return client->ended;
}

static void consume(struct http_client *client, size_t len)
{
	memmove(client->in.data, client->in.data + len, client->in.len - len);
	text_truncate(&client->in, client->in.len - len);
}

/* Waits for a line end and moves the line, with it, to out. */
static bool take_line(struct http_client *client, struct text *out, int64_t deadline_ns)
{
	for (;;) {
		const char *end = client->in.len ? memmem(client->in.data, client->in.len, "\r\n", 2) : NULL;
		if (end) {
			size_t len = (size_t)(end - client->in.data) + 2;
			text_append(out, client->in.data, len);
			consume(client, len);
			return true;
		}
		if (!receive(client, deadline_ns))
			return false;
	}
}

static bool take_bytes(struct http_client *client, size_t len, struct text *out, int64_t deadline_ns)
{
	while (client->in.len < len) {
		if (!receive(client, deadline_ns))
			return false;
	}
	text_append(out, client->in.data, len);
	consume(client, len);
	return true;
}

static bool take_chunks(struct http_client *client, struct text *out, int64_t deadline_ns)
{
	size_t size = 1;
	bool ok = true;

	while (ok && size) {
		struct text line = {0};
		ok = take_line(client, &line, deadline_ns);
		size = ok ? strtoul(line.data, NULL, 16) : 0;
		text_clear(&line);
		ok = ok && (!size || take_bytes(client, size, out, deadline_ns)) && take_line(client, &line, deadline_ns);
		text_release(&line);
	}
	return ok;
}

const char *http_client_header(const struct http_client_reply *reply, const char *name, char out[256])
{
	size_t name_len = strlen(name);

	for (const char *line = text_str(&reply->head); line && *line; line = strstr(line, "\r\n")) {
		line += strspn(line, "\r\n");
		if (strncasecmp(line, name, name_len) == 0 && line[name_len] == ':') {
			line += name_len + 1 + strspn(line + name_len + 1, " ");
			snprintf(out, 256, "%.*s", (int)strcspn(line, "\r\n"), line);
			return out;
		}
	}
	return NULL;
}

bool http_client_read(struct http_client *client, struct http_client_reply *out)
{
	int64_t deadline_ns = deadline();
	size_t line_start;
	char value[256];

	*out = (struct http_client_reply){0};
	do {
		line_start = out->head.len;
		if (!take_line(client, &out->head, deadline_ns))
			return false;
	} while (out->head.len - line_start > 2);
	const char *space = strchr(out->head.data, ' ');
	int status = space ? (int)strtol(space + 1, NULL, 10) : 0;
	bool ok = true;
	if (status == 100) {
		text_release(&out->head);
		return http_client_read(client, out);
	}
	if (http_client_header(out, "Transfer-Encoding", value))
		ok = take_chunks(client, &out->body, deadline_ns);
	else if (http_client_header(out, "Content-Length", value))
		ok = take_bytes(client, strtoul(value, NULL, 10), &out->body, deadline_ns);
	out->status = ok ? status : 0;
	return ok;
}

void http_client_reply_release(struct http_client_reply *reply)
{
	text_release(&reply->head);
	text_release(&reply->body);
	*reply = (struct http_client_reply){0};
}

bool http_client_once(int port, const char *path, const char *body, struct http_client_reply *out)
{
	struct http_client client;

	*out = (struct http_client_reply){0};
	bool ok = http_client_open(&client, port, 0) &&
		http_client_request(&client, body ? "POST" : "GET", path, "", body, body ? strlen(body) : 0) &&
		http_client_read(&client, out);
	http_client_close(&client);
	return ok;
}
