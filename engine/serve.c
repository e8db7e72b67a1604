/* The life of a server process. The main thread binds, then only waits for signals; a thread of its own loads the model, so
 * that a signal during a long load ends the process at once. */
#include "engine/serve.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/http.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/api.h"
#include "engine/chat.h"
#include "engine/options.h"

#define GRACE_MS 1000 /* for the last bytes of cancelled requests */
#define WATCH_NS 50000000 /* how often the main thread looks whether the engine is still well */
#define NONCE_BYTES_MAX 128

enum load_state { LOAD_RUNNING, LOAD_DONE, LOAD_FAILED, LOAD_ABANDONED };

/* Shared by the main thread and the loading thread. It is never freed: an abandoned load still writes to it while the
 * process ends. */
struct load {
	struct engine_options options;
	struct api *api;
	struct engine *engine;
	struct err err;
	_Atomic int state; /* whoever takes it away from LOAD_RUNNING decides what becomes of the engine */
};

struct server {
	struct api *api;
	struct http_server *http;
	struct load *load;
	pthread_t loader;
};

void serve_options_init(struct serve_options *options)
{
	const struct http_config http = http_config_default();

	*options = (struct serve_options){.host = http.host, .port = 8000, .connections_max = http.connections_max};
	options->body_bytes_max = (long long)http.body_bytes_max;
	engine_options_init(&options->engine);
}

/* The nonce becomes part of a header and of JSON. */
static enum status check_nonce(const char *nonce, struct err *err)
{
	size_t len = nonce ? strlen(nonce) : 0;

	for (size_t i = 0; i < len; i++) {
		if (nonce[i] < '!' || nonce[i] > '~' || len > NONCE_BYTES_MAX)
			return err_set_code(err, STATUS_INPUT, "bad_nonce",
				"VERDICT_NONCE must have at most %d visible ASCII characters and no blanks", NONCE_BYTES_MAX);
	}
	return STATUS_OK;
}

static enum status open_http(const struct serve_options *options, struct server *server, struct err *err)
{
	struct http_config config = http_config_default();

	config.host = options->host;
	config.port = (int)options->port;
	config.connections_max = (int)options->connections_max;
	config.body_bytes_max = (size_t)options->body_bytes_max;
	config.handle = api_handle;
	config.ctx = server->api;
	if (options->nonce)
		config.headers[0] = (struct http_header){"X-Verdict-Nonce", options->nonce};
	enum status status = http_server_open(&config, &server->http, err);
	if (status == STATUS_OK) {
		api_set_server(server->api, server->http);
		log_info("serve", "listening on %s", http_server_url(server->http));
	}
	return status;
}

/* A template that cannot be rendered is a fault of the model's folder, so its owner hears of it before a client does. */
static void warn_of_template(const struct engine *engine)
{
	struct err reason = {0};

	if (chat_check(engine_source(engine), engine_tokenizer(engine), &reason) != STATUS_OK)
		log_warn("serve", "chat completions will be refused: %s", reason.text);
}

static void *load_thread(void *arg)
{
	struct load *load = arg;
	int running = LOAD_RUNNING;
	enum status status = engine_create(&load->options, &load->engine, &load->err);

	if (status == STATUS_OK)
		warn_of_template(load->engine);

	if (atomic_compare_exchange_strong(&load->state, &running, status == STATUS_OK ? LOAD_DONE : LOAD_FAILED) &&
		status == STATUS_OK)
		api_attach(load->api, &(struct api_backend){&api_backend_engine, load->engine});
	return NULL;
}

static enum status start_loading(const struct serve_options *options, struct server *server, struct err *err)
{
	server->load = mem_calloc(1, sizeof(*server->load));
	server->load->options = options->engine;
	server->load->api = server->api;
	int errnum = pthread_create(&server->loader, NULL, load_thread, server->load);
	if (errnum)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start the loading thread");
	return STATUS_OK;
}

/* Waits until a signal comes (its number), or until there is nothing to serve with any more (0). */
static int wait_for_end(const struct server *server, const sigset_t *signals)
{
	const struct timespec period = {.tv_nsec = WATCH_NS};

	for (;;) {
		int number = sigtimedwait(signals, NULL, &period);
		if (number > 0)
			return number;
		int state = atomic_load(&server->load->state);
		if (state == LOAD_FAILED || (state == LOAD_DONE && !engine_is_ready(server->load->engine)))
			return 0;
	}
}

/* Ends everything in order: no new requests, no engine, the last answers. An engine still being loaded is left to the end of
 * the process. */
static void stop(struct server *server, const char *reason)
{
	int running = LOAD_RUNNING;

	http_server_stop_accepting(server->http);
	if (server->load && !atomic_compare_exchange_strong(&server->load->state, &running, LOAD_ABANDONED)) {
		pthread_join(server->loader, NULL);
		api_detach(server->api, reason);
		engine_destroy(server->load->engine);
		mem_free(server->load);
		server->load = NULL;
	} else if (server->load) {
		pthread_detach(server->loader);
	}
	http_server_close(server->http, GRACE_MS);
}

static enum status serve(const struct serve_options *options, struct server *server, const sigset_t *signals,
	const sigset_t *signals_before, struct err *err)
{
	enum status status = start_loading(options, server, err);
	int number = status == STATUS_OK ? wait_for_end(server, signals) : 0;

	if (number) {
		log_info("serve", "%s: stopping", strsignal(number));
		pthread_sigmask(SIG_SETMASK, signals_before, NULL); /* a second signal ends the process at once */
	} else if (status == STATUS_OK && atomic_load(&server->load->state) == LOAD_FAILED) {
		*err = server->load->err;
		status = err->status;
	} else if (status == STATUS_OK) {
		status = err_set_code(err, STATUS_INTERNAL, "engine_failed", "the engine has failed; the log says why");
	}
	stop(server, number ? "the server is stopping" : "the engine has failed");
	return number == SIGINT ? err_set(err, STATUS_INTERRUPTED, "interrupted") : status;
}

enum status serve_run(const struct serve_options *options, struct err *err)
{
	struct server server = {0};
	sigset_t signals, before;
	enum status status = check_nonce(options->nonce, err);

	if (status != STATUS_OK)
		return status;
	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, &before); /* every thread started from here on inherits this */
	signal(SIGPIPE, SIG_IGN);
	server.api = api_create(&(struct api_config){.api_key = options->api_key, .nonce = options->nonce});
	status = open_http(options, &server, err);
	if (status == STATUS_OK)
		status = serve(options, &server, &signals, &before, err);
	if (!server.load) /* an abandoned load still knows the API */
		api_destroy(server.api);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return status;
}
