/* Tests of base/http over loopback: answers now, later and in pieces, clients that leave or stop reading, the stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/support/http_app.h"
#include "tests/support/http_client.h"

static void request_parts_reach_the_handler(void **state)
{
	struct http_app *app = http_app_open(NULL);
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
	http_app_close(app, 1000);
}

static void chunked_and_large_bodies_arrive_whole(void **state)
{
	struct http_app *app = http_app_open(NULL);
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
	http_app_close(app, 1000);
}

static void answer_may_come_later_from_another_thread(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;

	assert_true(http_client_open(&client, app->port, 0));
	for (int i = 1; i <= 3; i++) {
		assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
		assert_true(http_app_wait(app, &app->n_kept, i));
		http_app_reply(app->kept[i - 1], "later");
		assert_true(http_client_read(&client, &reply));
		assert_string_equal(reply.body.data, "later");
		http_client_reply_release(&reply);
		assert_true(http_app_wait(app, &app->n_released, i));
	}
	assert_int_equal(app->n_gone, 0);
	http_client_close(&client);
	http_app_close(app, 1000);
}

static void stream_pieces_leave_as_they_are_written(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	char value[256];

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
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
	assert_true(http_app_wait(app, &app->n_released, 1));
	assert_int_equal(app->n_gone, 0);

	/* The connection is good for another request. */
	assert_true(http_client_request(&client, "GET", "/next", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&client);
	http_app_close(app, 1000);
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
	struct http_app *app = http_app_open(NULL);
	struct http_client clients[N];
	struct writer writers[N];
	pthread_t threads[N];

	for (int i = 0; i < N; i++) {
		assert_true(http_client_open(&clients[i], app->port, 0));
		assert_true(http_client_request(&clients[i], "GET", "/keep", "", NULL, 0));
		assert_true(http_app_wait(app, &app->n_kept, i + 1));
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
	http_app_close(app, 1000);
}

static void client_that_leaves_is_reported_while_nothing_is_sent(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
	int64_t left_ns = clock_monotonic_ns();
	http_client_close(&client);
	assert_true(http_app_wait(app, &app->n_gone, 1));
	assert_true(clock_monotonic_ns() - left_ns < 2000000000);
	assert_int_equal(app->n_released, 0); /* the application still holds it */
	http_app_reply(app->kept[0], "too late");
	assert_true(http_app_wait(app, &app->n_released, 1));
	assert_int_equal(app->n_gone, 1);
	http_app_close(app, 1000);
}

static void client_that_leaves_a_stream_is_reported_once(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client, other;
	struct http_client_reply reply;

	/* Another client's exchange is not touched by it. */
	assert_true(http_client_open(&other, app->port, 0));
	assert_true(http_client_request(&other, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 2));
	http_stream_begin(app->kept[1], 200, "text/plain");
	assert_true(http_stream_write(app->kept[1], "first", 5));
	assert_true(http_client_wait_for(&client, "first"));
	http_client_close(&client);
	assert_true(http_app_wait(app, &app->n_gone, 1));
	assert_false(http_stream_write(app->kept[1], "second", 6));
	http_stream_end(app->kept[1]);
	assert_true(http_app_wait(app, &app->n_released, 1));

	http_app_reply(app->kept[0], "untouched");
	assert_true(http_client_read(&other, &reply));
	assert_string_equal(reply.body.data, "untouched");
	http_client_reply_release(&reply);
	http_client_close(&other);
	assert_int_equal(app->n_gone, 1);
	http_app_close(app, 1000);
}

static void small_queue(struct http_config *config)
{
	config->stream_queue_bytes_max = 64 * 1024;
}

static void reader_that_stops_is_dropped_at_the_queue_limit(void **state)
{
	struct http_app *app = http_app_open(small_queue);
	struct http_client client;
	static char piece[4096];
	size_t written = 0;

	memset(piece, 'p', sizeof(piece));
	assert_true(http_client_open(&client, app->port, 4096));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
	http_stream_begin(app->kept[0], 200, "text/plain");
	/* The kernel's buffers take some; then the queue fills, since the writer is never blocked. */
	while (written < 64 * 1024 * 1024 && http_stream_write(app->kept[0], piece, sizeof(piece)))
		written += sizeof(piece);
	assert_true(written < 64 * 1024 * 1024);
	assert_true(http_app_wait(app, &app->n_gone, 1));
	http_stream_end(app->kept[0]);
	assert_true(http_app_wait(app, &app->n_released, 1));
	http_client_close(&client);

	struct http_stats stats;
	http_server_stats(app->server, &stats);
	assert_int_equal(stats.dropped, 1);
	http_app_close(app, 1000);
}

static void half_closed_client_still_gets_an_answer_that_is_ready(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/now", "", NULL, 0));
	assert_int_equal(shutdown(client.fd, SHUT_WR), 0);
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&client);
	http_app_close(app, 1000);
}

static void answers_are_counted_by_status(void **state)
{
	struct http_app *app = http_app_open(NULL);
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
	http_app_close(app, 1000);
}

static void port_in_use_is_named(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_config config = http_config_default();
	struct http_server *second = NULL;
	struct err err = {0};
	char address[64];

	config.handle = http_app_handle;
	config.port = app->port;
	snprintf(address, sizeof(address), "127.0.0.1:%d", app->port);
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_UNAVAILABLE);
	assert_string_equal(err.code, "port_in_use");
	assert_non_null(strstr(err.text, address));
	http_app_close(app, 1000);

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
	struct http_app *app = http_app_open(NULL);
	struct http_client client;
	struct http_client_reply reply;
	struct http_config config = http_config_default();
	struct http_server *second = NULL;
	struct err err = {0};

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	http_client_reply_release(&reply);
	config.handle = http_app_handle;
	config.port = app->port;
	http_app_close(app, 1000);
	http_client_close(&client);
	assert_int_equal(http_server_open(&config, &second, &err), STATUS_OK);
	http_server_close(second, 0);
}

static void close_waits_for_running_answers(void **state)
{
	struct http_app *app = http_app_open(NULL);
	struct http_client client, idle;
	struct http_client_reply reply;

	assert_true(http_client_open(&idle, app->port, 0));
	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
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
	struct http_app *app = http_app_open(NULL);
	struct http_client client;

	assert_true(http_client_open(&client, app->port, 0));
	assert_true(http_client_request(&client, "GET", "/keep", "", NULL, 0));
	assert_true(http_app_wait(app, &app->n_kept, 1));
	http_server_close(app->server, 0);
	assert_int_equal(app->n_gone, 1);
	assert_int_equal(app->n_released, 0);
	http_app_reply(app->kept[0], "after the server"); /* the exchange outlives it */
	assert_int_equal(app->n_released, 1);
	assert_true(http_client_wait_end(&client));
	http_client_close(&client);
	pthread_mutex_destroy(&app->lock);
	pthread_cond_destroy(&app->changed);
	mem_free(app);
}

static void stopping_server_answers_503_on_open_connections(void **state)
{
	struct http_app *app = http_app_open(NULL);
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
	http_app_close(app, 1000);
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
		cmocka_unit_test(answers_are_counted_by_status),
		cmocka_unit_test(port_in_use_is_named),
		cmocka_unit_test(port_is_free_again_after_close),
		cmocka_unit_test(close_waits_for_running_answers),
		cmocka_unit_test(close_drops_what_is_not_ended_in_time),
		cmocka_unit_test(stopping_server_answers_503_on_open_connections),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
