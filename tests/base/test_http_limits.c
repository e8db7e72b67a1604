/* Tests of what base/http refuses: bodies, headers, requests and paths that are wrong or too large, slow clients, crowds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "tests/support/http_app.h"
#include "tests/support/http_client.h"

static void tight_limits(struct http_config *config)
{
	config->body_bytes_max = 1000;
	config->header_bytes_max = 4096;
	config->connections_max = 2;
	config->request_timeout_ms = 300;
}

static void bodies_over_the_limit_get_413(void **state)
{
	struct http_app *app = http_app_open(tight_limits);
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
	http_app_close(app, 1000);
}

static void headers_over_the_limit_are_refused(void **state)
{
	struct http_app *app = http_app_open(tight_limits);
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
	http_app_close(app, 1000);
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
	struct http_app *app = http_app_open(NULL);

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
	http_app_close(app, 1000);
}

/* A proxy may have taken the other length, and what follows would be a request of its own. */
static void requests_of_two_lengths_are_refused_and_end_the_connection(void **state)
{
	static const struct {
		const char *request;
		int status;
	} cases[] = {
		{"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 400},
		{"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\ncontent-length: 2\r\n\r\nabc", 400},
		{"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
		{"POST / HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 200},
	};
	struct http_app *app = http_app_open(NULL);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct http_client client;
		struct http_client_reply reply;

		assert_true(http_client_open(&client, app->port, 0));
		assert_true(http_client_send(&client, cases[i].request, strlen(cases[i].request)));
		assert_true(http_client_read(&client, &reply));
		assert_int_equal(reply.status, cases[i].status);
		http_client_reply_release(&reply);
		if (cases[i].status == 400)
			assert_true(http_client_wait_end(&client));
		http_client_close(&client);
	}
	http_app_close(app, 1000);
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
	struct http_app *app = http_app_open(NULL);

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
	http_app_close(app, 1000);
}

static void slow_request_is_cut_off_although_bytes_drip(void **state)
{
	struct http_app *app = http_app_open(tight_limits);
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
	http_app_close(app, 1000);
}

static void connections_over_the_limit_get_503(void **state)
{
	struct http_app *app = http_app_open(tight_limits);
	struct http_client clients[3];
	struct http_client_reply reply;
	char value[256];

	for (int i = 0; i < 2; i++) {
		assert_true(http_client_open(&clients[i], app->port, 0));
		assert_true(http_client_request(&clients[i], "GET", "/keep", "", NULL, 0));
		assert_true(http_app_wait(app, &app->n_kept, i + 1));
	}
	assert_true(http_client_open(&clients[2], app->port, 0));
	assert_true(http_client_request(&clients[2], "GET", "/", "", NULL, 0));
	assert_true(http_client_read(&clients[2], &reply));
	assert_int_equal(reply.status, 503);
	assert_non_null(http_client_header(&reply, "Retry-After", value));
	http_client_reply_release(&reply);
	for (int i = 0; i < 2; i++) {
		http_app_reply(app->kept[i], "served");
		assert_true(http_client_read(&clients[i], &reply));
		assert_int_equal(reply.status, 200);
		http_client_reply_release(&reply);
	}
	for (int i = 0; i < 3; i++)
		http_client_close(&clients[i]);
	http_app_close(app, 1000);
}

static void crowding_ends_idle_connections(struct http_config *config)
{
	config->connections_max = 2;
	config->crowded_timeout_ms = 100;
}

/* More than the server takes at all, so that the last ones wait in the kernel's backlog. */
static void idle_connections_do_not_lock_others_out(void **state)
{
	struct http_app *app = http_app_open(crowding_ends_idle_connections);
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
	http_app_close(app, 1000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bodies_over_the_limit_get_413),
		cmocka_unit_test(headers_over_the_limit_are_refused),
		cmocka_unit_test(malformed_requests_do_not_reach_the_handler),
		cmocka_unit_test(requests_of_two_lengths_are_refused_and_end_the_connection),
		cmocka_unit_test(paths_that_hide_something_do_not_reach_the_handler),
		cmocka_unit_test(slow_request_is_cut_off_although_bytes_drip),
		cmocka_unit_test(connections_over_the_limit_get_503),
		cmocka_unit_test(idle_connections_do_not_lock_others_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
