/* Routes and small endpoints. Everything here runs on the HTTP server's thread, under the gate's lock. */
#include "engine/api.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/version.h"
#include "engine/api_completion.h"
#include "engine/api_reply.h"

#define TYPE_JSON "application/json"
#define TOKENIZE_BYTES_MAX (1024 * 1024) /* a second of work on the server thread at most (measured: 0.45 to 2 MB/s) */
#define TYPE_METRICS "text/plain; version=0.0.4; charset=utf-8"

struct api {
	char *api_key, *nonce;
	int64_t created_s;
	_Atomic(struct http_server *) server;
	struct api_gate gate;
	char unavailable[256]; /* why there is no engine; guarded by gate.lock */
};

/* ---- answers ---- */

static void reply_json(struct http_exchange *exchange, int status, struct json *value)
{
	struct text body = {0};

	json_write(value, JSON_STYLE_COMPACT, &body);
	text_append_char(&body, '\n');
	json_free(value);
	http_reply(exchange, status, TYPE_JSON, NULL, &body);
}

static void reply_unavailable(struct api *api, struct http_exchange *exchange)
{
	struct api_error error = {0};

	api_error_set(&error, 503, "unavailable", NULL, "%s", api->unavailable[0] ? api->unavailable : "the model is loading");
	api_reply_refusal(exchange, &error, NULL);
}

static bool engine_ready(const struct api *api)
{
	const struct api_backend *backend = &api->gate.backend;

	return backend->ops && backend->ops->is_ready(backend->self);
}

/* ---- endpoints ---- */

static void serve_health(struct api *api, struct http_exchange *exchange)
{
	bool ready = engine_ready(api);
	struct json *body = json_new_object();

	json_set(body, "status", json_new_string(ready ? "ok" : "unavailable"));
	if (!ready)
		json_set(body, "reason", json_new_string(api->unavailable[0] ? api->unavailable : "the model is loading"));
	json_set(body, "nonce", json_new_string(api->nonce));
	reply_json(exchange, ready ? 200 : 503, body);
}

static struct json *model_json(const struct api *api)
{
	const struct api_backend *backend = &api->gate.backend;
	struct json *model = json_new_object();

	json_set(model, "id", json_new_string(backend->ops->model_name(backend->self)));
	json_set(model, "object", json_new_string("model"));
	json_set(model, "created", json_new_integer(api->created_s));
	json_set(model, "owned_by", json_new_string("verdict"));
	json_set(model, "max_model_len", json_new_integer(backend->ops->max_model_len(backend->self)));
	return model;
}

static void serve_models(struct api *api, struct http_exchange *exchange)
{
	struct json *body = json_new_object();
	struct json *list = json_new_array();

	json_append(list, model_json(api));
	json_set(body, "object", json_new_string("list"));
	json_set(body, "data", list);
	reply_json(exchange, 200, body);
}

/* A slash of the name may come as it is or escaped, its digits in either case (RFC 3986, section 2.1). */
static bool path_names(const char *path, const char *name)
{
	while (*path && *name) {
		size_t taken = *name == '/' && strncasecmp(path, "%2F", 3) == 0 ? 3 : 1;
		if (taken == 1 && *path != *name)
			return false;
		path += taken;
		name++;
	}
	return *path == *name;
}

static void serve_model(struct api *api, struct http_exchange *exchange)
{
	const struct api_backend *backend = &api->gate.backend;
	const char *name = http_path(exchange) + strlen("/v1/models/");
	struct api_error error = {0};

	if (path_names(name, backend->ops->model_name(backend->self))) {
		reply_json(exchange, 200, model_json(api));
		return;
	}
	api_error_set(&error, 404, "model_not_found", "model", "there is no model '%.200s' here", name);
	api_reply_refusal(exchange, &error, NULL);
}

static void serve_completions(struct api *api, struct http_exchange *exchange)
{
	api_completion_start(&api->gate, exchange, API_COMPLETION);
}

static void serve_chat(struct api *api, struct http_exchange *exchange)
{
	api_completion_start(&api->gate, exchange, API_CHAT);
}

/* Parses a body that must be a JSON object. Caller frees. */
static struct json *parse_object(struct http_exchange *exchange, struct api_error *error)
{
	size_t len;
	const char *body = http_body(exchange, &len);
	struct json *root = NULL;
	struct err err = {0};

	if (json_parse(body, len, "body", &root, &err) != STATUS_OK)
		api_error_set(error, 400, "invalid_json", NULL, "%s", err.text);
	else if (json_kind_of(root) != JSON_KIND_OBJECT)
		api_error_set(error, 400, "invalid_json", NULL, "the body must be a JSON object");
	return root;
}

/* The optional boolean key; a wrong type is an error. */
static bool flag(const struct json *root, const char *key, struct api_error *error)
{
	const struct json *value = json_get(root, key);

	if (json_kind_of(value) != JSON_KIND_NULL && json_kind_of(value) != JSON_KIND_BOOL)
		api_error_set(error, 400, "invalid_type", key, "'%s' must be true or false", key);
	return json_bool(value, false);
}

static struct json *ids_json(const struct token_list *ids)
{
	struct json *array = json_new_array();

	for (size_t i = 0; i < ids->count; i++)
		json_append(array, json_new_integer(ids->ids[i]));
	return array;
}

/* Encodes what is asked for into ids, in front of it the BOS token when add_special asks and the model has one. */
static void tokenize(const struct api_backend *backend, const struct json *root, struct token_list *ids, struct api_error *error)
{
	const struct json *content = json_get(root, "content");
	bool parse_special = flag(root, "parse_special", error);
	bool add_special = flag(root, "add_special", error);
	int32_t bos = backend->ops->prompt_bos(backend->self);
	struct err err = {0};

	if (!content)
		content = json_get(root, "prompt");
	if (json_kind_of(content) != JSON_KIND_STRING)
		api_error_set(
			error, 400, content ? "invalid_type" : "missing", "content", "'content' or 'prompt' must be a string");
	else if (json_text_len(content) > TOKENIZE_BYTES_MAX)
		api_error_set(error, 400, "too_long", "content", "the text has %zu bytes, at most %d are tokenized in one request",
			json_text_len(content), TOKENIZE_BYTES_MAX);
	if (error->http_status)
		return;
	if (add_special && bos >= 0)
		token_list_append(ids, bos);
	if (backend->ops->encode(backend->self, json_text(content), json_text_len(content), parse_special, ids, &err) != STATUS_OK)
		api_error_set(error, err.status == STATUS_INPUT ? 400 : 500, "cannot_tokenize", "content", "%s", err.text);
}

static void serve_tokenize(struct api *api, struct http_exchange *exchange)
{
	const struct api_backend *backend = &api->gate.backend;
	struct api_error error = {0};
	struct token_list ids = {0};
	struct json *root = parse_object(exchange, &error);

	if (!error.http_status)
		tokenize(backend, root, &ids, &error);
	if (error.http_status) {
		api_reply_refusal(exchange, &error, NULL);
	} else {
		struct json *body = json_new_object();
		json_set(body, "tokens", ids_json(&ids));
		json_set(body, "count", json_new_integer((int64_t)ids.count));
		json_set(body, "max_model_len", json_new_integer(backend->ops->max_model_len(backend->self)));
		reply_json(exchange, 200, body);
	}
	token_list_release(&ids);
	json_free(root);
}

static void detokenize(const struct api_backend *backend, const struct json *root, struct text *out, struct api_error *error)
{
	const struct json *tokens = json_get(root, "tokens");
	struct token_list ids = {0};

	if (!tokens)
		api_error_set(error, 400, "missing", "tokens", "'tokens' is missing");
	else
		api_read_ids(tokens, "tokens", &ids, error);
	for (size_t i = 0; i < ids.count && !error->http_status; i++) {
		if (!backend->ops->token_bytes(backend->self, ids.ids[i], true, out))
			api_error_set(error, 400, "invalid_value", "tokens", "token id %d is not in the vocabulary of %d tokens",
				ids.ids[i], backend->ops->vocab_size(backend->self));
	}
	token_list_release(&ids);
}

static void serve_detokenize(struct api *api, struct http_exchange *exchange)
{
	struct api_error error = {0};
	struct text bytes = {0};
	struct json *root = parse_object(exchange, &error);

	if (!error.http_status)
		detokenize(&api->gate.backend, root, &bytes, &error);
	if (error.http_status) {
		api_reply_refusal(exchange, &error, NULL);
	} else {
		struct json *body = json_new_object();
		json_set(body, "content", json_new_string_len(text_str(&bytes), bytes.len));
		json_set(body, "prompt", json_new_string_len(text_str(&bytes), bytes.len));
		reply_json(exchange, 200, body);
	}
	text_release(&bytes);
	json_free(root);
}

static void serve_config(struct api *api, struct http_exchange *exchange)
{
	const struct api_backend *backend = &api->gate.backend;
	struct json *body = backend->ops->config(backend->self);
	struct json *build = json_new_object();
	struct http_server *server = atomic_load(&api->server);

	json_set(build, "version", json_new_string(version_number()));
	json_set(build, "hash", json_new_string(version_build_hash()));
	json_set(body, "build", build);
	json_set(body, "nonce", json_new_string(api->nonce));
	json_set(body, "api_key_required", json_new_bool(api->api_key != NULL));
	json_set(body, "url", json_new_string(server ? http_server_url(server) : NULL));
	reply_json(exchange, 200, body);
}

/* Series of the HTTP server, in Prometheus's text form. */
static void http_metrics(struct http_server *server, struct text *out)
{
	struct http_stats stats;

	http_server_stats(server, &stats);
	text_append_str(
		out, "# HELP verdict_http_responses_total Answers by HTTP status.\n# TYPE verdict_http_responses_total counter\n");
	for (int status = HTTP_STATUS_MIN; status <= HTTP_STATUS_MAX; status++) {
		uint64_t count = stats.answers[status - HTTP_STATUS_MIN];
		if (count)
			text_printf(out, "verdict_http_responses_total{code=\"%d\"} %" PRIu64 "\n", status, count);
	}
	text_printf(out,
		"# HELP verdict_http_dropped_total Requests whose client left or stopped reading before the end.\n"
		"# TYPE verdict_http_dropped_total counter\nverdict_http_dropped_total %" PRIu64 "\n"
		"# HELP verdict_http_connections Open connections.\n"
		"# TYPE verdict_http_connections gauge\nverdict_http_connections %d\n"
		"# HELP verdict_http_requests_in_progress Requests being answered.\n"
		"# TYPE verdict_http_requests_in_progress gauge\nverdict_http_requests_in_progress %d\n",
		stats.dropped, stats.connections, stats.exchanges);
}

static void serve_metrics(struct api *api, struct http_exchange *exchange)
{
	const struct api_backend *backend = &api->gate.backend;
	struct http_server *server = atomic_load(&api->server);
	struct text body = {0};

	text_printf(&body,
		"# HELP verdict_build_info The build that answers.\n# TYPE verdict_build_info gauge\n"
		"verdict_build_info{version=\"%s\",hash=\"%s\"} 1\n",
		version_number(), version_build_hash());
	backend->ops->metrics(backend->self, &body);
	if (server)
		http_metrics(server, &body);
	http_reply(exchange, 200, TYPE_METRICS, NULL, &body);
}

static void serve_flush_cache(struct api *api, struct http_exchange *exchange)
{
	struct json *body = json_new_object();

	api->gate.backend.ops->flush_cache(api->gate.backend.self);
	json_set(body, "status", json_new_string("ok"));
	reply_json(exchange, 200, body);
}

/* ---- routing ---- */

enum { GET = 1, POST = 2 };

static const struct route {
	const char *path; /* ends with '/': everything below it */
	int methods;
	bool open; /* no key, no engine needed */
	void (*serve)(struct api *api, struct http_exchange *exchange);
} routes[] = {
	{"/health", GET, true, serve_health},
	{"/v1/completions", POST, false, serve_completions},
	{"/v1/chat/completions", POST, false, serve_chat},
	{"/v1/models", GET, false, serve_models},
	{"/v1/models/", GET, false, serve_model},
	{"/tokenize", POST, false, serve_tokenize},
	{"/detokenize", POST, false, serve_detokenize},
	{"/config", GET, false, serve_config},
	{"/metrics", GET, false, serve_metrics},
	{"/flush_cache", GET | POST, false, serve_flush_cache},
};

static const struct route *find_route(const char *path)
{
	for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
		size_t len = strlen(routes[i].path);
		bool below = routes[i].path[len - 1] == '/';
		if (below ? strncmp(path, routes[i].path, len) == 0 && path[len] : strcmp(path, routes[i].path) == 0)
			return &routes[i];
	}
	return NULL;
}

static int method_bit(const char *method)
{
	if (strcmp(method, "POST") == 0)
		return POST;
	return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0 ? GET : 0;
}

/* Takes as long for a wrong key as for a right one, so that a key cannot be guessed byte by byte. */
static bool key_matches(const char *key, const char *given)
{
	size_t key_len = strlen(key), given_len = strlen(given);
	unsigned difference = key_len != given_len;

	for (size_t i = 0; i < given_len; i++)
		difference |= (unsigned char)given[i] ^ (unsigned char)key[key_len ? i % key_len : 0];
	return difference == 0;
}

static bool authorised(const struct api *api, struct http_exchange *exchange)
{
	const char *header = http_request_header(exchange, "Authorization");

	if (!api->api_key)
		return true;
	return header && text_starts_with(header, "Bearer ") && key_matches(api->api_key, header + strlen("Bearer "));
}

static void dispatch(struct api *api, struct http_exchange *exchange)
{
	const struct route *route = find_route(http_path(exchange));
	struct api_error error = {0};

	if (!route) {
		api_error_set(&error, 404, "not_found", NULL, "there is no %.200s here", http_path(exchange));
		api_reply_refusal(exchange, &error, NULL);
	} else if (!(route->methods & method_bit(http_method(exchange)))) {
		static const char *const names[] = {"", "GET", "POST", "GET, POST"};
		struct http_header allow = {"Allow", names[route->methods]};
		api_error_set(&error, 405, "method_not_allowed", NULL, "%s takes %s", route->path, names[route->methods]);
		api_reply_refusal(exchange, &error, &allow);
	} else if (!route->open && !authorised(api, exchange)) {
		struct http_header challenge = {"WWW-Authenticate", "Bearer"};
		api_error_set(&error, 401, "invalid_api_key", NULL, "the API key is missing or wrong");
		api_reply_refusal(exchange, &error, &challenge);
	} else if (!route->open && !engine_ready(api)) {
		reply_unavailable(api, exchange);
	} else {
		route->serve(api, exchange);
	}
}

void api_handle(void *ctx, struct http_exchange *exchange)
{
	struct api *api = ctx;

	pthread_mutex_lock(&api->gate.lock);
	dispatch(api, exchange);
	pthread_mutex_unlock(&api->gate.lock);
}

/* ---- life ---- */

struct api *api_create(const struct api_config *config)
{
	struct api *api = mem_calloc(1, sizeof(*api));

	api->api_key = config->api_key ? mem_strdup(config->api_key) : NULL;
	api->nonce = config->nonce ? mem_strdup(config->nonce) : NULL;
	api->created_s = clock_realtime_ns() / 1000000000;
	pthread_mutex_init(&api->gate.lock, NULL);
	return api;
}

void api_destroy(struct api *api)
{
	pthread_mutex_destroy(&api->gate.lock);
	mem_free(api->api_key);
	mem_free(api->nonce);
	mem_free(api);
}

void api_set_server(struct api *api, struct http_server *server)
{
	atomic_store(&api->server, server);
}

static int longest_token(const struct api_backend *backend)
{
	struct text bytes = {0};
	size_t longest = 1;

	for (int32_t id = 0; id < backend->ops->vocab_size(backend->self); id++) {
		text_clear(&bytes);
		backend->ops->token_bytes(backend->self, id, true, &bytes);
		longest = bytes.len > longest ? bytes.len : longest;
	}
	text_release(&bytes);
	return (int)longest;
}

void api_attach(struct api *api, const struct api_backend *backend)
{
	int token_bytes_max = longest_token(backend);

	pthread_mutex_lock(&api->gate.lock);
	api->gate.backend = *backend;
	api->gate.token_bytes_max = token_bytes_max;
	pthread_mutex_unlock(&api->gate.lock);
}

void api_detach(struct api *api, const char *reason)
{
	pthread_mutex_lock(&api->gate.lock);
	api->gate.backend = (struct api_backend){0};
	snprintf(api->unavailable, sizeof(api->unavailable), "%s", reason);
	pthread_mutex_unlock(&api->gate.lock);
}
