/* HTTP server on libmicrohttpd: an event loop on one thread that starts exchanges, sends answers and notices hang-ups.
 *
 * The library runs with an external event loop, so this file's thread is the only one that calls it. The loop waits on
 * three things: the library's own epoll descriptor, the hub's eventfd by which other threads say "this exchange has
 * something to send", and the hang-up of every client. An exchange that has nothing to send is suspended, which takes
 * its socket out of the library's poll set; that is why hang-ups are watched here: nobody else would notice them while
 * an answer is being computed. */
#include "base/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/http_connection.h"
#include "base/http_exchange.h"
#include "base/listen.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/uri.h"

#define CONNECTIONS_RESERVE 32 /* connections above the limit that still get a 503 instead of silence */
#define SEND_BUFFER_BYTES 131072 /* kernel queue per socket: small, so that a reader that stopped is noticed soon (guess) */
#define DRAIN_FACTOR 2 /* a body up to this many times the limit is read and dropped so that its 413 arrives */
#define LOOP_WAIT_MS_MAX 250 /* how often time-outs are looked at */
#define STREAM_BLOCK_BYTES 16384
#define EVENTS_MAX 64

struct http_server {
	struct http_config config; /* its strings are copies */
	struct listen_socket listening;
	int epoll_fd;
	struct http_hub *hub;
	struct MHD_Daemon *daemon;
	pthread_t thread;

	/* Owner: the server thread. */
	struct http_connections connections;
	bool quiesced;

	/* From any thread to the server thread; the deadline is written before closing is set. */
	atomic_bool stopping, closing;
	int64_t close_deadline_ns;
};

struct http_config http_config_default(void)
{
	struct http_config config = {
		.host = "127.0.0.1",
		.connections_max = 512,
		.header_bytes_max = 64 * 1024,
		.body_bytes_max = 4 * 1024 * 1024,
		.stream_queue_bytes_max = 1024 * 1024,
		.request_timeout_ms = 120 * 1000,
		.crowded_timeout_ms = 2000, /* a guess: a request in progress arrives sooner, and probes wait longer */
		.stall_timeout_s = 60,
	};
	return config;
}

const char *http_request_header(const struct http_exchange *exchange, const char *name)
{
	return MHD_lookup_connection_value(exchange->mhd, MHD_HEADER_KIND, name);
}

/* The client is not there any more: tells the application once and makes the library close the connection. */
static void client_gone(struct http_exchange *exchange)
{
	struct http_hub *hub = exchange->hub;

	pthread_mutex_lock(&hub->lock);
	bool tell = !exchange->told_gone && !exchange->ended;
	bool resume = exchange->suspended;
	exchange->gone = true;
	exchange->suspended = false;
	if (!exchange->told_gone)
		hub->stats.dropped++;
	pthread_mutex_unlock(&hub->lock);

	exchange->told_gone = true;
	if (tell && exchange->on_gone)
		exchange->on_gone(exchange->ctx);
	if (exchange->connection)
		shutdown(exchange->connection->fd, SHUT_RDWR); /* ends a write that waits for a reader */
	if (resume)
		MHD_resume_connection(exchange->mhd);
}

/* ---- answers, given to the library ---- */

/* Gives the library the next bytes of a stream, or suspends the connection until there are some. */
static ssize_t stream_read(void *cls, uint64_t position, char *buffer, size_t max)
{
	struct http_exchange *exchange = cls;
	size_t count;

	switch (http_exchange_read(exchange, buffer, max, &count)) {
	case HTTP_NEXT_ANSWER:
		return count ? (ssize_t)count : MHD_CONTENT_READER_END_OF_STREAM;
	case HTTP_NEXT_SLEEP:
		MHD_suspend_connection(exchange->mhd);
		return 0;
	case HTTP_NEXT_CLOSE:
		break;
	}
	return MHD_CONTENT_READER_END_WITH_ERROR;
}

static struct MHD_Response *make_response(struct http_exchange *exchange)
{
	if (exchange->streaming)
		return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, stream_read, exchange, NULL);
	size_t len = exchange->out.len;
	return MHD_create_response_from_buffer_with_free_callback(len, text_take(&exchange->out), mem_free);
}

static enum MHD_Result queue_answer(struct http_server *server, struct http_exchange *exchange)
{
	struct MHD_Response *response = make_response(exchange);

	if (!response)
		return MHD_NO;
	if (exchange->content_type)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, exchange->content_type);
	if (exchange->streaming)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
	if (exchange->extra_name)
		MHD_add_response_header(response, exchange->extra_name, exchange->extra_value);
	for (int i = 0; i < HTTP_CONFIG_HEADERS_MAX && server->config.headers[i].name; i++)
		MHD_add_response_header(response, server->config.headers[i].name, server->config.headers[i].value);
	if (server->quiesced || exchange->length_fault)
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	exchange->answer_queued = MHD_queue_response(exchange->mhd, (unsigned int)exchange->status, response) == MHD_YES;
	MHD_destroy_response(response);
	return exchange->answer_queued ? MHD_YES : MHD_NO;
}

/* Answers if there is an answer, else puts the connection to sleep until there is one. */
static enum MHD_Result answer_or_sleep(struct http_server *server, struct http_exchange *exchange)
{
	switch (http_exchange_next(exchange, exchange->connection->peer_closed)) {
	case HTTP_NEXT_ANSWER:
		return queue_answer(server, exchange);
	case HTTP_NEXT_SLEEP:
		MHD_suspend_connection(exchange->mhd);
		return MHD_YES;
	case HTTP_NEXT_CLOSE:
		break;
	}
	return MHD_NO; /* ends the connection; on_completed tells the application */
}

/* ---- requests, as the library reports them ---- */

/* An answer by the server itself, in place of the handler's. The reason needs no escapes in JSON. */
static void refuse(struct http_exchange *exchange, int status, const char *reason)
{
	struct text body = {0};
	struct http_header retry = {"Retry-After", "1"};

	text_printf(&body, "{\"error\":{\"message\":\"%s\",\"type\":\"%s\",\"param\":null,\"code\":null}}\n", reason,
		status >= 500 ? "server_error" : "invalid_request_error");
	http_reply(exchange, status, "application/json", status == 503 ? &retry : NULL, &body);
}

static void handle(struct http_server *server, struct http_exchange *exchange)
{
	exchange->handled = true;
	exchange->connection->waiting_since_ns = 0;
	if (exchange->length_fault)
		refuse(exchange, 400, exchange->length_fault);
	else if (exchange->path_fault)
		refuse(exchange, 400, exchange->path_fault);
	else if (exchange->body_too_large)
		refuse(exchange, 413, "the request body is larger than this server accepts");
	else if (server->quiesced)
		refuse(exchange, 503, "the server is stopping");
	else if (server->connections.count > server->config.connections_max)
		refuse(exchange, 503, "too many connections");
	else
		server->config.handle(server->config.ctx, exchange);
}

static struct http_exchange *begin_exchange(
	struct http_server *server, struct MHD_Connection *mhd, const char *method, const char *path)
{
	struct http_exchange *exchange = http_exchange_new(server->hub);

	exchange->mhd = mhd;
	exchange->method = method;
	uri_decode_path(path, &exchange->path, &exchange->path_fault);
	exchange->connection = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
	exchange->connection->current = exchange;
	return exchange;
}

/* The body's declared length; 0 when none is declared (chunked, or no body at all). */
static unsigned long long declared_length(struct MHD_Connection *mhd)
{
	const char *value = MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
	unsigned long long length = 0;

	return value && text_to_u64(value, &length) ? length : 0;
}

/* What a request says of its body's length. */
struct lengths {
	const char *first; /* value of the first Content-Length; NULL: none */
	bool differ;
};

static enum MHD_Result note_length(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct lengths *lengths = cls;

	if (strcasecmp(name, MHD_HTTP_HEADER_CONTENT_LENGTH) != 0)
		return MHD_YES;
	if (lengths->first && !text_equal(lengths->first, value))
		lengths->differ = true;
	lengths->first = value ? value : "";
	return MHD_YES;
}

/* Two lengths, or a length beside chunks, are how one request is smuggled inside another past a proxy that takes the other one
 * (RFC 9112, 6.3). NULL when there is nothing wrong. */
static const char *length_fault(struct MHD_Connection *mhd)
{
	struct lengths lengths = {0};

	(void)MHD_get_connection_values(mhd, MHD_HEADER_KIND, note_length, &lengths);
	if (lengths.differ)
		return "the request has two lengths";
	if (lengths.first && MHD_lookup_connection_value(mhd, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING))
		return "the request has a length beside a transfer encoding";
	return NULL;
}

/* Called with the headers, then with each part of the body, then once more, and again after each resume. */
static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url, const char *method, const char *version,
	const char *upload, size_t *upload_len, void **state)
{
	struct http_server *server = cls;
	struct http_exchange *exchange = *state;
	size_t limit = server->config.body_bytes_max;

	if (!exchange) {
		exchange = begin_exchange(server, mhd, method, url);
		*state = exchange;
		unsigned long long length = declared_length(mhd);
		exchange->body_too_large = length > limit;
		exchange->length_fault = length_fault(mhd);
		if (!exchange->length_fault && length <= (unsigned long long)limit * DRAIN_FACTOR)
			return MHD_YES;
	} else if (*upload_len) {
		if (exchange->body.len + *upload_len > limit)
			exchange->body_too_large = true;
		if (!exchange->body_too_large)
			text_append(&exchange->body, upload, *upload_len);
		exchange->received += *upload_len;
		*upload_len = 0;
		return exchange->received <= (uint64_t)limit * DRAIN_FACTOR ? MHD_YES : MHD_NO;
	}
	if (!exchange->handled)
		handle(server, exchange);
	return answer_or_sleep(server, exchange);
}

static void on_completed(void *cls, struct MHD_Connection *mhd, void **state, enum MHD_RequestTerminationCode how)
{
	struct http_exchange *exchange = *state;

	if (!exchange)
		return;
	*state = NULL;
	struct http_connection *connection = exchange->connection;
	struct http_hub *hub = exchange->hub;
	bool sent = how == MHD_REQUEST_TERMINATED_COMPLETED_OK && exchange->answer_queued;
	if (!exchange->handled)
		http_exchange_drop(exchange); /* it never arrived whole, so no handler will end it */
	else if (!sent)
		client_gone(exchange);
	exchange->connection = NULL;
	connection->current = NULL;
	connection->waiting_since_ns = clock_monotonic_ns();

	pthread_mutex_lock(&hub->lock);
	exchange->gone = true; /* a late write has nowhere to go */
	hub->stats.exchanges--;
	if (exchange->answer_queued)
		hub->stats.answers[exchange->status - HTTP_STATUS_MIN]++;
	pthread_mutex_unlock(&hub->lock);
	http_exchange_drop(exchange);
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **state, enum MHD_ConnectionNotificationCode what)
{
	struct http_server *server = cls;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		int fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
		*state = http_connections_add(&server->connections, server->epoll_fd, fd);
	} else {
		http_connections_remove(&server->connections, server->epoll_fd, *state);
		*state = NULL;
	}
	pthread_mutex_lock(&server->hub->lock);
	server->hub->stats.connections = server->connections.count;
	pthread_mutex_unlock(&server->hub->lock);
}

/* Leaves escapes alone: the library decodes "%00" to the end of the string. begin_exchange decodes. */
static size_t unescape_nothing(void *cls, struct MHD_Connection *mhd, char *text)
{
	return strlen(text);
}

static void library_log(void *cls, const char *format, va_list args)
{
	char line[256];

	vsnprintf(line, sizeof(line), format, args);
	line[strcspn(line, "\n")] = '\0';
	log_debug("http", "%s", line);
}

/* ---- the loop ---- */

/* Where connections are scarce, idle ones go sooner. */
static int request_timeout_ms(const struct http_server *server)
{
	const struct http_config *config = &server->config;
	bool crowded = server->connections.count > config->connections_max;

	return crowded && config->crowded_timeout_ms < config->request_timeout_ms ? config->crowded_timeout_ms
										  : config->request_timeout_ms;
}

/* Wakes every exchange that other threads have marked. */
static void take_ready(struct http_server *server)
{
	struct http_exchange *next;

	for (struct http_exchange *exchange = http_hub_take_ready(server->hub); exchange; exchange = next) {
		pthread_mutex_lock(&server->hub->lock);
		next = exchange->next_ready;
		exchange->ready = false;
		bool gone = exchange->gone;
		bool resume = exchange->suspended && !gone;
		if (resume)
			exchange->suspended = false;
		pthread_mutex_unlock(&server->hub->lock);
		if (resume)
			MHD_resume_connection(exchange->mhd);
		else if (gone && exchange->connection)
			client_gone(exchange);
		http_exchange_drop(exchange);
	}
}

/* A client shut its side down. An answer that is complete is still sent: it may be reading. */
static void hang_up(struct http_connection *connection)
{
	struct http_exchange *exchange = connection->current;

	connection->peer_closed = true;
	if (!exchange || !exchange->handled)
		return;
	pthread_mutex_lock(&exchange->hub->lock);
	bool ended = exchange->ended;
	pthread_mutex_unlock(&exchange->hub->lock);
	if (!ended)
		client_gone(exchange);
}

static int loop_wait_ms(struct http_server *server)
{
	MHD_UNSIGNED_LONG_LONG library_ms;

	if (MHD_get_timeout(server->daemon, &library_ms) != MHD_YES || library_ms > LOOP_WAIT_MS_MAX)
		return LOOP_WAIT_MS_MAX;
	return (int)library_ms;
}

static void loop_once(struct http_server *server)
{
	struct epoll_event events[EVENTS_MAX];
	int count = epoll_wait(server->epoll_fd, events, EVENTS_MAX, loop_wait_ms(server));

	/* Hang-ups first: connections are freed only inside MHD_run, so each pointer here is still good. */
	for (int i = 0; i < count; i++) {
		void *source = events[i].data.ptr;
		if (source == server->hub) {
			uint64_t wakes;
			ssize_t got = read(server->hub->wake_fd, &wakes, sizeof(wakes));
			(void)got;
		} else if (source != server->daemon) {
			hang_up(source);
		}
	}
	take_ready(server);
	MHD_run(server->daemon);
}

/* False when the loop is to end: closing, and nothing in progress or the grace over. */
static bool go_on(struct http_server *server)
{
	if (atomic_load(&server->stopping) && !server->quiesced) {
		server->quiesced = true;
		MHD_quiesce_daemon(server->daemon);
		close(server->listening.fd);
	}
	if (!atomic_load(&server->closing))
		return true;
	pthread_mutex_lock(&server->hub->lock);
	int exchanges = server->hub->stats.exchanges;
	pthread_mutex_unlock(&server->hub->lock);
	return exchanges > 0 && clock_monotonic_ns() < server->close_deadline_ns;
}

static void *server_thread(void *arg)
{
	struct http_server *server = arg;
	int64_t checked_ns = 0;

	while (go_on(server)) {
		loop_once(server);
		int64_t now_ns = clock_monotonic_ns();
		if (now_ns - checked_ns > (int64_t)LOOP_WAIT_MS_MAX * 1000000) {
			checked_ns = now_ns;
			http_connections_end_overdue(&server->connections, request_timeout_ms(server));
		}
	}
	/* The library wants nothing suspended when it stops. */
	for (struct http_connection *connection = server->connections.first; connection; connection = connection->next) {
		if (connection->current && connection->current->handled)
			client_gone(connection->current);
	}
	MHD_run(server->daemon);
	MHD_stop_daemon(server->daemon);
	take_ready(server);
	return NULL;
}

/* ---- opening and closing ---- */

static enum status watch(struct http_server *server, int fd, void *source, struct err *err)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};

	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot watch the HTTP server's sockets");
	return STATUS_OK;
}

static enum status start_daemon(struct http_server *server, struct err *err)
{
	const struct http_config *config = &server->config;
	enum status status;

	server->daemon = MHD_start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG, 0, NULL, NULL, on_request,
		server, MHD_OPTION_EXTERNAL_LOGGER, library_log, NULL, MHD_OPTION_LISTEN_SOCKET, server->listening.fd,
		MHD_OPTION_NOTIFY_COMPLETED, on_completed, server, MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,
		MHD_OPTION_CONNECTION_LIMIT, (unsigned int)(config->connections_max + CONNECTIONS_RESERVE),
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned int)config->stall_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		config->header_bytes_max, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, unescape_nothing, NULL,
		MHD_OPTION_END);
	if (!server->daemon)
		return err_set(err, STATUS_UNAVAILABLE, "cannot start the HTTP server on %s", server->listening.url);
	status = watch(server, MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd, server->daemon, err);
	if (status == STATUS_OK)
		status = watch(server, server->hub->wake_fd, server->hub, err);
	return status;
}

/* Signals belong to the main thread: the server thread starts with all of them blocked. */
static enum status start_thread(struct http_server *server, struct err *err)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int errnum = pthread_create(&server->thread, NULL, server_thread, server);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (errnum)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start the HTTP server's thread");
	return STATUS_OK;
}

static void copy_strings(struct http_config *config)
{
	config->host = mem_strdup(config->host);
	for (int i = 0; i < HTTP_CONFIG_HEADERS_MAX; i++) {
		struct http_header *header = &config->headers[i];
		header->name = header->name ? mem_strdup(header->name) : NULL;
		header->value = header->value ? mem_strdup(header->value) : NULL;
	}
}

static void server_free(struct http_server *server)
{
	for (int i = 0; i < HTTP_CONFIG_HEADERS_MAX; i++) {
		mem_free((void *)server->config.headers[i].name);
		mem_free((void *)server->config.headers[i].value);
	}
	mem_free((void *)server->config.host);
	if (server->epoll_fd >= 0)
		close(server->epoll_fd);
	if (server->hub)
		http_hub_drop(server->hub);
	mem_free(server);
}

enum status http_server_open(const struct http_config *config, struct http_server **out, struct err *err)
{
	struct http_server *server = mem_calloc(1, sizeof(*server));
	enum status status = STATUS_OK;

	server->config = *config;
	copy_strings(&server->config);
	server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	server->hub = http_hub_new(config->stream_queue_bytes_max);
	if (server->epoll_fd < 0 || !server->hub)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot make the HTTP server's descriptors");
	if (status == STATUS_OK)
		status = listen_open(config->host, config->port, SEND_BUFFER_BYTES, &server->listening, err);
	if (status == STATUS_OK) {
		status = start_daemon(server, err);
		if (status == STATUS_OK)
			status = start_thread(server, err);
		if (status != STATUS_OK && server->daemon)
			MHD_stop_daemon(server->daemon); /* closes the listening socket, too */
	}
	if (status != STATUS_OK) {
		server_free(server);
		return status;
	}
	*out = server;
	return STATUS_OK;
}

int http_server_port(const struct http_server *server)
{
	return server->listening.port;
}

const char *http_server_url(const struct http_server *server)
{
	return server->listening.url;
}

void http_server_stop_accepting(struct http_server *server)
{
	atomic_store(&server->stopping, true);
	http_hub_wake(server->hub);
}

void http_server_close(struct http_server *server, int grace_ms)
{
	server->close_deadline_ns = clock_monotonic_ns() + (int64_t)grace_ms * 1000000;
	atomic_store(&server->stopping, true);
	atomic_store(&server->closing, true);
	http_hub_wake(server->hub);
	pthread_join(server->thread, NULL);
	server_free(server);
}

void http_server_stats(struct http_server *server, struct http_stats *out)
{
	pthread_mutex_lock(&server->hub->lock);
	*out = server->hub->stats;
	pthread_mutex_unlock(&server->hub->lock);
}
