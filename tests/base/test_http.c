/* Tests of base/http over loopback: answers now, later and in pieces, clients that leave or stop reading, every limit, the stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/http.h"
#include "base/mem.h"
#include "tests/support/http_client.h"

#define KEPT_MAX 64

/* The application under the server: keeps exchanges that the test then ends from its own thread. */
struct app {
	struct http_server *server;
	int port;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct http_exchange *kept[KEPT_MAX];
	int n_kept, n_gone, n_released;
};

static void on_gone(void *ctx)
{
	struct app *app = ctx;
	pthread_mutex_lock(&app->lock);
	app->n_gone++;
	pthread_cond_broadcast(&app->changed);
	pthread_mutex_unlock(&app->lock);
}

static void on_release(void *ctx)
{
	struct app *app = ctx;
	pthread_mutex_lock(&app->lock);
	app->n_released++;
	pthread_cond_broadcast(&app->changed);
	pthread_mutex_unlock(&app->lock);
}

static void echo(struct http_exchange *exchange)
{
	struct text out = {0};
	size_t len;
	const char *body = http_body(exchange, &len);
	const char *header = http_request_header(exchange, "x-test");

	text_printf(&out, "%s %s %s %zu ", http_method(exchange), http_path(exchange), header ? header : "-", len);
	text_append(&out, body, len < 64 ? len : 64);
	http_reply(exchange, 200, "text/plain", NULL, &out);
}

static void handle(void *ctx, struct http_exchange *exchange)
{
	struct app *app = ctx;

	if (strncmp(http_path(exchange), "/keep", 5) != 0) {
		echo(exchange);
		return;
	}
	http_attach(exchange, app, on_gone, on_release);
	pthread_mutex_lock(&app->lock);
	app->kept[app->n_kept++ % KEPT_MAX] = exchange;
	pthread_cond_broadcast(&app->changed);
	pthread_mutex_unlock(&app->lock);
}

/* Waits until *counter reaches count; false after the deadline. */
static bool wait_count(struct app *app, const int *counter, int count)
{
	int64_t deadline_ns = clock_realtime_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
	struct timespec until = {.tv_sec = deadline_ns / 1000000000, .tv_nsec = deadline_ns % 1000000000};
	int errnum = 0;

	pthread_mutex_lock(&app->lock);
	while (*counter < count && errnum == 0)
		errnum = pthread_cond_timedwait(&app->changed, &app->lock, &until);
	bool reached = *counter >= count;
	pthread_mutex_unlock(&app->lock);
	return reached;
}

static struct app *app_open(void (*adjust)(struct http_config *config))
{
	struct app *app = mem_calloc(1, sizeof(*app));
	struct http_config config = http_config_default();
	struct err err = {0};

	pthread_mutex_init(&app->lock, NULL);
	pthread_cond_init(&app->changed, NULL);
	config.handle = handle;
	config.ctx = app;
	config.headers[0] = (struct http_header){"X-Nonce", "abc123"};
	if (adjust)
		adjust(&config);
	assert_int_equal(http_server_open(&config, &app->server, &err), STATUS_OK);
	app->port = http_server_port(app->server);
	return app;
}

static void app_close(struct app *app, int grace_ms)
{
	http_server_close(app->server, grace_ms);
	pthread_mutex_destroy(&app->lock);
	pthread_cond_destroy(&app->changed);
	mem_free(app);
}

static void reply_text(struct http_exchange *exchange, const char *body)
{
	struct text out = {0};
	text_append_str(&out, body);
	http_reply(exchange, 200, "text/plain", NULL, &out);
}

static void request_parts_reach_the_handler(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	char value[256];

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "POST", "/a%20b?x=1", "X-Test: yes\r\n", "he\0llo", 6));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	assert_int_equal(reply.body.len, strlen("POST /a b yes 6 ") + 6);
	assert_memory_equal(reply.body.data, "POST /a b yes 6 he\0llo", reply.body.len);
	assert_string_equal(http_client_header(&reply, "content-type", value), "text/plain");
	assert_string_equal(http_client_header(&reply, "x-nonce", value), "abc123");
	http_client_reply_release(&reply);

	/* The same connection serves the next request. */
	assert_true(http_client_request(&client, "GET", "/next", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_string_equal(reply.body.data, "GET /next - 0 ");
	http_client_reply_release(&reply);
	http_client_close(&client);
	app_close(app, 1000);
}

static void chunked_and_large_bodies_arrive_whole(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	static char big[3000000];

	assert_true(http_client_open(&client, app->port, 0));
	static const char chunked[] =
		"POST /c HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n";
	assert_true(http_client_send(&client, chunked, sizeof(chunked) - 1));
	assert_true(http_client_read(&client, &reply));
	assert_string_equal(reply.body.data, "POST /c - 5 abcde");
	http_client_reply_release(&reply);

	memset(big, 'x', sizeof(big));
	assert_true(http_client_request(&client, "POST", "/b", "Expect: 100-continue\r\n", big, sizeof(big)));
	assert_true(http_client_read(&client, &reply));
	assert_memory_equal(reply.body.data, "POST /b - 3000000 x", 19);
	http_client_reply_release(&reply);
	http_client_close(&client);
	app_close(app, 1000);
}

static void answer_may_come_later_from_another_thread(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;

	assert_true(http_client_open(&client, app->port, 0));
	for (int i = 1; i <= 3; i++) {
		assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
		assert_true(wait_count(app, &app->n_kept, i));
		reply_text(app->kept[i - 1], "later");
		assert_true(http_client_read(&client, &reply));
		assert_string_equal(reply.body.data, "later");
		http_client_reply_release(&reply);
		assert_true(wait_count(app, &app->n_released, i));
	}
	assert_int_equal(app->n_gone, 0);
	http_client_close(&client);
	app_close(app, 1000);
}

static void stream_pieces_leave_as_they_are_written(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	char value[256];

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	http_stream_begin(app->kept[0], 200, "text/event-stream");
	for (int i = 0; i < 20; i++) {
		char piece[32];
		snprintf(piece, sizeof(piece), "piece-%d;", i);
		assert_true(http_stream_write(app->kept[0], piece, strlen(piece)));
		assert_true(http_client_wait_for(&client, piece)); /* before the next one is written */
	}
	http_stream_end(app->kept[0]);
	assert_true(http_client_read(&client, &reply));
	assert_memory_equal(reply.body.data, "piece-0;piece-1;", 16);
	assert_string_equal(http_client_header(&reply, "content-type", value), "text/event-stream");
	assert_string_equal(http_client_header(&reply, "cache-control", value), "no-cache");
	http_client_reply_release(&reply);
	assert_true(wait_count(app, &app->n_released, 1));
	assert_int_equal(app->n_gone, 0);

	/* The connection is good for another request. */
	assert_true(http_client_request(&client, "GET", "/next", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&client);
	app_close(app, 1000);
}

struct writer {
	struct http_exchange *exchange;
	int number;
};

static void *write_many(void *arg)
{
	struct writer *writer = arg;

	http_stream_begin(writer->exchange, 200, "text/plain");
	for (int i = 0; i < 500; i++) {
		char piece[64];
		snprintf(piece, sizeof(piece), "writer %d piece %d\n", writer->number, i);
		http_stream_write(writer->exchange, piece, strlen(piece));
	}
	http_stream_end(writer->exchange);
	return NULL;
}

static void many_streams_from_many_threads_keep_their_bytes(void **state)
{
	enum { N = 8 };
	struct app *app = app_open(NULL);
	struct http_client clients[N];
	struct writer writers[N];
	pthread_t threads[N];

	for (int i = 0; i < N; i++) {
		assert_true(http_client_open(&clients[i], app->port, 0));
		assert_true(http_client_request(&clients[i], "GET", "/keep", "", NULL, 0));
		assert_true(wait_count(app, &app->n_kept, i + 1));
		writers[i] = (struct writer){app->kept[i], i};
	}
	for (int i = 0; i < N; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, write_many, &writers[i]), 0);
	for (int i = 0; i < N; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < N; i++) {
		struct http_client_reply reply;
		struct text expected = {0};
		for (int k = 0; k < 500; k++)
			text_printf(&expected, "writer %d piece %d\n", i, k);
		assert_true(http_client_read(&clients[i], &reply));
		assert_string_equal(reply.body.data, expected.data);
		text_release(&expected);
		http_client_reply_release(&reply);
		http_client_close(&clients[i]);
	}
	app_close(app, 1000);
}

static void client_that_leaves_is_reported_while_nothing_is_sent(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	int64_t left_ns = clock_monotonic_ns();
	http_client_close(&client);
	assert_true(wait_count(app, &app->n_gone, 1));
	assert_true(clock_monotonic_ns() - left_ns < 2000000000);
	assert_int_equal(app->n_released, 0); /* the application still holds it */
	reply_text(app->kept[0], "too late");
	assert_true(wait_count(app, &app->n_released, 1));
	assert_int_equal(app->n_gone, 1);
	app_close(app, 1000);
}

static void client_that_leaves_a_stream_is_reported_once(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client, other;
	struct http_client_reply reply;

	/* Another client's exchange is not touched by it. */
	assert_true(http_client_open(&other, app->port, 0));
	assert_true(http_client_request(&other, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 2));
	http_stream_begin(app->kept[1], 200, "text/plain");
	assert_true(http_stream_write(app->kept[1], "first", 5));
	assert_true(http_client_wait_for(&client, "first"));
	http_client_close(&client);
	assert_true(wait_count(app, &app->n_gone, 1));
	assert_false(http_stream_write(app->kept[1], "second", 6));
	http_stream_end(app->kept[1]);
	assert_true(wait_count(app, &app->n_released, 1));

	reply_text(app->kept[0], "untouched");
	assert_true(http_client_read(&other, &reply));
	assert_string_equal(reply.body.data, "untouched");
	http_client_reply_release(&reply);
	http_client_close(&other);
	assert_int_equal(app->n_gone, 1);
	app_close(app, 1000);
}

static void small_queue(struct http_config *config)
{
	config->stream_queue_bytes_max = 64 * 1024;
}

static void reader_that_stops_is_dropped_at_the_queue_limit(void **state)
{
	struct app *app = app_open(small_queue);
	struct http_client client;
	static char piece[4096];
	size_t written = 0;

	memset(piece, 'p', sizeof(piece));
	assert_true(http_client_open(&client, app->port, 4096));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	http_stream_begin(app->kept[0], 200, "text/plain");
	/* The kernel's buffers take some; then the queue fills, since the writer is never blocked. */
	while (written < 64 * 1024 * 1024 && http_stream_write(app->kept[0], piece, sizeof(piece)))
		written += sizeof(piece);
	assert_true(written < 64 * 1024 * 1024);
	assert_true(wait_count(app, &app->n_gone, 1));
	http_stream_end(app->kept[0]);
	assert_true(wait_count(app, &app->n_released, 1));
	http_client_close(&client);

	struct http_stats stats;
	http_server_stats(app->server, &stats);
	assert_int_equal(stats.dropped, 1);
	app_close(app, 1000);
}

static void half_closed_client_still_gets_an_answer_that_is_ready(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/now", "", NULL, 0));
	assert_int_equal(shutdown(client.fd, SHUT_WR), 0);
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&client);
	app_close(app, 1000);
}

static void tight_limits(struct http_config *config)
{
	config->body_bytes_max = 1000;
	config->header_bytes_max = 4096;
	config->connections_max = 2;
	config->request_timeout_ms = 300;
}

static void bodies_over_the_limit_get_413(void **state)
{
	struct app *app = app_open(tight_limits);
	static const size_t sizes[] = {1001, 2000, 2001, 500000};
	static char body[500000];

	memset(body, 'x', sizeof(body));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct http_client client;
		struct http_client_reply reply;
		char head[128];
		assert_true(http_client_open(&client, app->port, 0));
		/* Beyond twice the limit the answer comes before the body: a client that sends on may only see a reset. */
		size_t sent = sizes[i] > 2000 ? 0 : sizes[i];
		snprintf(head, sizeof(head), "POST / HTTP/1.1\r\nHost: t\r\nContent-Length: %zu\r\n\r\n", sizes[i]);
		assert_true(http_client_send(&client, head, strlen(head)));
		assert_true(http_client_send(&client, body, sent));
		assert_true(http_client_read(&client, &reply));
		assert_int_equal(reply.status, 413);
		http_client_reply_release(&reply);
		http_client_close(&client);
	}
	struct http_client client;
	struct http_client_reply reply;
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "POST", "/", "", body, 1000));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);

	/* Chunks that never end are cut off, not collected. */
	static const char head[] = "POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n";
	assert_true(http_client_send(&client, head, sizeof(head) - 1));
	for (int i = 0; i < 3; i++) {
		if (!http_client_send(&client, "3e8\r\n", 5) || !http_client_send(&client, body, 1000) ||
			!http_client_send(&client, "\r\n", 2))
			break;
	}
	assert_true(http_client_wait_end(&client));
	http_client_close(&client);
	app_close(app, 1000);
}

static void headers_over_the_limit_are_refused(void **state)
{
	struct app *app = app_open(tight_limits);
	struct http_client client;
	struct http_client_reply reply;
	static char header[10000];

	memset(header, 'h', sizeof(header));
	memcpy(header, "X-Long: ", 8);
	memcpy(header + sizeof(header) - 3, "\r\n", 3);
	assert_true(http_client_open(&client, app->port, 0));
	http_client_request(&client, "GET", "/", header, NULL, 0);
	if (http_client_read(&client, &reply))
		assert_in_range(reply.status, 400, 499);
	http_client_reply_release(&reply);
	assert_true(http_client_wait_end(&client));
	http_client_close(&client);
	app_close(app, 1000);
}

static void malformed_requests_do_not_reach_the_handler(void **state)
{
	static const char *const bad[] = {
		"\x16\x03\x01\x02",
		"\x16\x03\x01\x02\r\n\r\n",
		"GET",
		"GET / HTTP/1.1\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999999999999999999\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n",
	};
	struct app *app = app_open(NULL);

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct http_client client;
		struct http_client_reply reply;
		assert_true(http_client_open(&client, app->port, 0));
		assert_true(http_client_send(&client, bad[i], strlen(bad[i])));
		shutdown(client.fd, SHUT_WR);
		if (http_client_read(&client, &reply))
			assert_in_range(reply.status, 400, 599);
		http_client_reply_release(&reply);
		assert_true(http_client_wait_end(&client));
		http_client_close(&client);
	}
	struct http_client_reply reply;
	assert_true(http_client_once(app->port, "/fine", NULL, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	app_close(app, 1000);
}

/* A path that string functions would cut short must not be taken for the one before the cut. */
static void paths_that_hide_something_do_not_reach_the_handler(void **state)
{
	static const struct {
		const char *path;
		int status;
	} cases[] = {
		{"/keep%00", 400},
		{"/keep%00x", 400},
		{"/%00", 400},
		{"/keep%0d%0aX-Evil:%201", 400},
		{"/keep%7f", 400},
		{"/keep\x01", 400},
		{"/keep\t", 400},
		{"/keep%", 400},
		{"/%c3%28", 400},
		{"keep", 400},
		{"/x%2Fkeep?y=%00", 200},
	};
	struct app *app = app_open(NULL);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct http_client_reply reply;
		assert_true(http_client_once(app->port, cases[i].path, NULL, &reply));
		if (reply.status != cases[i].status)
			fail_msg("%s: status %d", cases[i].path, reply.status);
		if (reply.status == 200)
			assert_string_equal(reply.body.data, "GET /x%2Fkeep - 0 ");
		http_client_reply_release(&reply);
	}
	assert_int_equal(app->n_kept, 0);
	app_close(app, 1000);
}

static void slow_request_is_cut_off_although_bytes_drip(void **state)
{
	struct app *app = app_open(tight_limits);
	struct http_client client;
	int64_t begin_ns = clock_monotonic_ns();

	/* One byte whenever the server might have looked: an idle time-out alone would never fire. */
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_send(&client, "GET / HTTP/1.1\r\nX-Drip: ", 24));
	while (clock_monotonic_ns() - begin_ns < (int64_t)HTTP_CLIENT_WAIT_MS * 1000000) {
		char byte;
		if (send(client.fd, "d", 1, MSG_NOSIGNAL) != 1)
			break;
		struct timeval wait = {.tv_usec = 20000};
		setsockopt(client.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
		if (recv(client.fd, &byte, 1, 0) == 0)
			break;
	}
	assert_true(clock_monotonic_ns() - begin_ns < (int64_t)HTTP_CLIENT_WAIT_MS * 1000000 / 2);
	http_client_close(&client);
	app_close(app, 1000);
}

static void connections_over_the_limit_get_503(void **state)
{
	struct app *app = app_open(tight_limits);
	struct http_client clients[3];
	struct http_client_reply reply;
	char value[256];

	for (int i = 0; i < 2; i++) {
		assert_true(http_client_open(&clients[i], app->port, 0));
		assert_true(http_client_request(&clients[i], "GET", "/keep", "", NULL, 0));
		assert_true(wait_count(app, &app->n_kept, i + 1));
	}
	assert_true(http_client_open(&clients[2], app->port, 0));
	assert_true(http_client_request(&clients[2], "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&clients[2], &reply));
	assert_int_equal(reply.status, 503);
	assert_non_null(http_client_header(&reply, "Retry-After", value));
	http_client_reply_release(&reply);
	for (int i = 0; i < 2; i++) {
		reply_text(app->kept[i], "served");
		assert_true(http_client_read(&clients[i], &reply));
		assert_int_equal(reply.status, 200);
		http_client_reply_release(&reply);
	}
	for (int i = 0; i < 3; i++)
		http_client_close(&clients[i]);
	app_close(app, 1000);
}

static void crowding_ends_idle_connections(struct http_config *config)
{
	config->connections_max = 2;
	config->crowded_timeout_ms = 100;
}

/* More than the server takes at all, so that the last ones wait in the kernel's backlog. */
static void idle_connections_do_not_lock_others_out(void **state)
{
	struct app *app = app_open(crowding_ends_idle_connections);
	struct http_client idle[60];
	struct http_client_reply reply;

	for (int i = 0; i < 60; i++)
		assert_true(http_client_open(&idle[i], app->port, 0));
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
	int status;
	do { /* 503 while the first of them are still being ended */
		assert_true(http_client_once(app->port, "/", NULL, &reply));
		status = reply.status;
		http_client_reply_release(&reply);
	} while (status == 503 && clock_monotonic_ns() < deadline_ns);
	assert_int_equal(status, 200);
	for (int i = 0; i < 60; i++)
		http_client_close(&idle[i]);
	app_close(app, 1000);
}

static void answers_are_counted_by_status(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client_reply reply;
	struct http_stats stats;

	for (int i = 0; i < 3; i++) {
		assert_true(http_client_once(app->port, "/x", NULL, &reply));
		http_client_reply_release(&reply);
	}
	/* An answer is counted after its last byte has left, which the client may see a moment earlier. */
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
	do
		http_server_stats(app->server, &stats);
	while (stats.answers[200 - HTTP_STATUS_MIN] < 3 && clock_monotonic_ns() < deadline_ns);
	assert_int_equal(stats.answers[200 - HTTP_STATUS_MIN], 3);
	assert_int_equal(stats.dropped, 0);
	app_close(app, 1000);
}

static void port_in_use_is_named(void **state)
{
	struct app *app = app_open(NULL);
	struct http_config config = http_config_default();
	struct http_server *second = NULL;
	struct err err = {0};
	char address[64];

	config.handle = handle;
	config.port = app->port;
	snprintf(address, sizeof(address), "127.0.0.1:%d", app->port);
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_UNAVAILABLE);
	assert_string_equal(err.code, "port_in_use");
	assert_non_null(strstr(err.text, address));
	app_close(app, 1000);

	err_clear(&err);
	config.port = 70000;
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_INPUT);
	err_clear(&err);
	config.port = 0;
	config.host = "no such host name";
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "no such host name"));
}

static void port_is_free_again_after_close(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	struct http_config config = http_config_default();
	struct http_server *second = NULL;
	struct err err = {0};

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	http_client_reply_release(&reply);
	config.handle = handle;
	config.port = app->port;
	app_close(app, 1000);
	http_client_close(&client);
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_OK);
	http_server_close(second, 0);
}

static void close_waits_for_running_answers(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client, idle;
	struct http_client_reply reply;

	assert_true(http_client_open(&idle, app->port, 0));
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	http_server_stop_accepting(app->server);
	struct writer writer = {app->kept[0], 7};
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, write_many, &writer), 0);
	int64_t begin_ns = clock_monotonic_ns();
	http_server_close(app->server, HTTP_CLIENT_WAIT_MS);
	assert_true(clock_monotonic_ns() - begin_ns < (int64_t)HTTP_CLIENT_WAIT_MS * 1000000 / 2);
	pthread_join(thread, NULL);
	assert_true(http_client_read(&client, &reply));
	assert_non_null(strstr(reply.body.data, "writer 7 piece 499\n"));
	http_client_reply_release(&reply);
	http_client_close(&client);
	http_client_close(&idle);
	assert_int_equal(app->n_gone, 0);
	assert_int_equal(app->n_released, 1);
	pthread_mutex_destroy(&app->lock);
	pthread_cond_destroy(&app->changed);
	mem_free(app);
}

static void close_drops_what_is_not_ended_in_time(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(wait_count(app, &app->n_kept, 1));
	http_server_close(app->server, 0);
	assert_int_equal(app->n_gone, 1);
	assert_int_equal(app->n_released, 0);
	reply_text(app->kept[0], "after the server"); /* the exchange outlives it */
	assert_int_equal(app->n_released, 1);
	assert_true(http_client_wait_end(&client));
	http_client_close(&client);
	pthread_mutex_destroy(&app->lock);
	pthread_cond_destroy(&app->changed);
	mem_free(app);
}

static void stopping_server_answers_503_on_open_connections(void **state)
{
	struct app *app = app_open(NULL);
	struct http_client client, late;
	struct http_client_reply reply;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	http_client_reply_release(&reply);
	http_server_stop_accepting(app->server);
	/* The listening socket closes a moment later; wait for that, then use the open connection. */
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
	bool refused = false;
	while (!refused && clock_monotonic_ns() < deadline_ns) {
		refused = !http_client_open(&late, app->port, 0);
		http_client_close(&late);
	}
	assert_true(refused);
	assert_true(http_client_request(&client, "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 503);
	http_client_reply_release(&reply);
	http_client_close(&client);
	app_close(app, 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(request_parts_reach_the_handler),
		cmocka_unit_test(chunked_and_large_bodies_arrive_whole),
		cmocka_unit_test(answer_may_come_later_from_another_thread),
		cmocka_unit_test(stream_pieces_leave_as_they_are_written),
		cmocka_unit_test(many_streams_from_many_threads_keep_their_bytes),
		cmocka_unit_test(client_that_leaves_is_reported_while_nothing_is_sent),
		cmocka_unit_test(client_that_leaves_a_stream_is_reported_once),
		cmocka_unit_test(reader_that_stops_is_dropped_at_the_queue_limit),
		cmocka_unit_test(half_closed_client_still_gets_an_answer_that_is_ready),
		cmocka_unit_test(bodies_over_the_limit_get_413),
		cmocka_unit_test(headers_over_the_limit_are_refused),
		cmocka_unit_test(malformed_requests_do_not_reach_the_handler),
		cmocka_unit_test(paths_that_hide_something_do_not_reach_the_handler),
		cmocka_unit_test(slow_request_is_cut_off_although_bytes_drip),
		cmocka_unit_test(connections_over_the_limit_get_503),
		cmocka_unit_test(idle_connections_do_not_lock_others_out),
		cmocka_unit_test(answers_are_counted_by_status),
		cmocka_unit_test(port_in_use_is_named),
		cmocka_unit_test(port_is_free_again_after_close),
		cmocka_unit_test(close_waits_for_running_answers),
		cmocka_unit_test(close_drops_what_is_not_ended_in_time),
		cmocka_unit_test(stopping_server_answers_503_on_open_connections),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
