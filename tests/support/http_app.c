/* An application under the HTTP server whose answers the test gives. */
#include "tests/support/http_app.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/support/http_client.h"

static void on_gone(void *ctx)
{
	struct http_app *app = ctx;
	pthread_mutex_lock(&app->lock);
	app->n_gone++;
	pthread_cond_broadcast(&app->changed);
	pthread_mutex_unlock(&app->lock);
}

static void on_release(void *ctx)
{
	struct http_app *app = ctx;
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

void http_app_handle(void *ctx, struct http_exchange *exchange)
{
	struct http_app *app = ctx;

	if (strncmp(http_path(exchange), "/keep", 5) != 0) {
		echo(exchange);
		return;
	}
	http_attach(exchange, app, on_gone, on_release);
	pthread_mutex_lock(&app->lock);
	app->kept[app->n_kept++ % HTTP_APP_KEPT_MAX] = exchange;
	pthread_cond_broadcast(&app->changed);
	pthread_mutex_unlock(&app->lock);
}

bool http_app_wait(struct http_app *app, const int *counter, int count)
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

struct http_app *http_app_open(void (*adjust)(struct http_config *config))
{
	struct http_app *app = mem_calloc(1, sizeof(*app));
	struct http_config config = http_config_default();
	struct err err = {0};

	pthread_mutex_init(&app->lock, NULL);
	pthread_cond_init(&app->changed, NULL);
	config.handle = http_app_handle;
	config.ctx = app;
	config.headers[0] = (struct http_header){"X-Nonce", "abc123"};
	if (adjust)
		adjust(&config);
	assert_int_equal(http_server_open(&config, &app->server, &err), STATUS_OK);
	app->port = http_server_port(app->server);
	return app;
}

void http_app_close(struct http_app *app, int grace_ms)
{
	http_server_close(app->server, grace_ms);
	pthread_mutex_destroy(&app->lock);
	pthread_cond_destroy(&app->changed);
	mem_free(app);
}

void http_app_reply(struct http_exchange *exchange, const char *body)
{
	struct text out = {0};
	text_append_str(&out, body);
	http_reply(exchange, 200, "text/plain", NULL, &out);
}
