/* The API over loopback with a scripted engine. */
#include "tests/support/api_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

struct api_bed api_bed_open(const struct api_config *config, size_t stream_queue_bytes)
{
	struct api_bed f = {.fake = fake_backend_open(), .api = api_create(config)};
	struct http_config http = http_config_default();
	struct err err = {0};

	http.handle = api_handle;
	http.ctx = f.api;
	if (stream_queue_bytes)
		http.stream_queue_bytes_max = stream_queue_bytes;
	assert_int_equal(http_server_open(&http, &f.server, &err), STATUS_OK);
	api_set_server(f.api, f.server);
	api_attach(f.api, &f.fake->backend);
	f.port = http_server_port(f.server);
	fake_backend_say(f.fake, "Hello, world");
	return f;
}

struct api_bed api_bed_plain(void)
{
	return api_bed_open(&(struct api_config){.nonce = "n-1"}, 0);
}

void api_bed_close(struct api_bed *f)
{
	http_server_stop_accepting(f->server);
	api_detach(f->api, "the server is stopping");
	fake_backend_close(f->fake);
	http_server_close(f->server, 1000);
	api_destroy(f->api);
}

struct json *api_bed_ask(const struct api_bed *f, const char *path, const char *body, int expected_status)
{
	struct http_client_reply reply;
	struct json *root = NULL;
	struct err err = {0};

	assert_true(http_client_once(f->port, path, body, &reply));
	if (reply.status != expected_status)
		fail_msg("%s %s: status %d, %s", path, body ? body : "", reply.status, text_str(&reply.body));
	if (json_parse(reply.body.data, reply.body.len, "reply", &root, &err) != STATUS_OK)
		fail_msg("%s in %s", err.text, reply.body.data);
	http_client_reply_release(&reply);
	return root;
}

const struct json *api_bed_at(const struct json *root, const char *key, int index, const char *key2)
{
	const struct json *value = json_get(root, key);
	if (index >= 0)
		value = json_at(value, (size_t)index);
	return key2 ? json_get(value, key2) : value;
}

const char *api_bed_text(const struct json *root)
{
	return json_text(api_bed_at(root, "choices", 0, "text"));
}

const char *api_bed_finish(const struct json *root)
{
	return json_text(api_bed_at(root, "choices", 0, "finish_reason"));
}

struct json *api_bed_stream(const struct api_bed *f, const char *path, const char *body)
{
	struct http_client_reply reply;
	struct json *events = json_new_array();
	bool done = false;

	assert_true(http_client_once(f->port, path, body, &reply));
	assert_int_equal(reply.status, 200);
	for (char *at = reply.body.data, *end; *at; at = end + 2) {
		assert_memory_equal(at, "data: ", 6);
		assert_false(done);
		end = strstr(at, "\n\n");
		assert_non_null(end);
		*end = '\0';
		if (strcmp(at, "data: [DONE]") == 0) {
			done = true;
			continue;
		}
		struct json *event = NULL;
		struct err err = {0};
		if (json_parse(at + 6, strlen(at + 6), "event", &event, &err) != STATUS_OK)
			fail_msg("%s in %s", err.text, at);
		json_append(events, event);
	}
	assert_true(done);
	http_client_reply_release(&reply);
	return events;
}

struct text api_bed_join(const struct json *events, int index, int *finishes, const char **reason)
{
	struct text out = {0};

	*finishes = 0;
	for (size_t i = 0; i < json_count(events); i++) {
		const struct json *choice = api_bed_at(json_at(events, i), "choices", 0, NULL);
		if (!choice || json_int(json_get(choice, "index"), -1) != index)
			continue;
		const struct json *piece = json_get(choice, "text");
		if (!piece)
			piece = json_get(json_get(choice, "delta"), "content");
		text_append(&out, json_text(piece) ? json_text(piece) : "", json_text_len(piece));
		if (json_text(json_get(choice, "finish_reason"))) {
			(*finishes)++;
			*reason = json_text(json_get(choice, "finish_reason"));
		}
	}
	return out;
}
