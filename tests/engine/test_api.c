/* Tests of the HTTP API around generation: readiness, keys, models, tokens, configuration, routes; requests from the field. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "tests/support/api_bed.h"

static void health_is_503_until_the_engine_is_ready(void **state)
{
	struct api_bed f = api_bed_plain();
	struct http_client_reply reply;

	f.fake->not_ready = true;
	struct json *root = api_bed_ask(&f, "/health", NULL, 503);
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"a\"}", 503));
	json_free(api_bed_ask(&f, "/v1/models", NULL, 503));
	f.fake->not_ready = false;
	root = api_bed_ask(&f, "/health", NULL, 200);
	assert_string_equal(json_text(json_get(root, "status")), "ok");
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	api_detach(f.api, "rank 1 is lost");
	root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"a\"}", 503);
	assert_string_equal(json_text(json_get(json_get(root, "error"), "message")), "rank 1 is lost");
	json_free(root);
	json_free(api_bed_ask(&f, "/health", NULL, 503));
	assert_true(http_client_once(f.port, "/nowhere", NULL, &reply));
	assert_int_equal(reply.status, 404);
	http_client_reply_release(&reply);
	api_bed_close(&f);
}

static void key_is_asked_everywhere_but_for_health(void **state)
{
	struct api_bed f = api_bed_open(&(struct api_config){.api_key = "secret"}, 0);
	static const char *const wrong[] = {"", "Authorization: Bearer secre\r\n", "Authorization: Bearer secretx\r\n",
		"Authorization: secret\r\n", "Authorization: Bearer \r\n", "Authorization: bearer Secret\r\n"};
	struct http_client client;
	struct http_client_reply reply;

	json_free(api_bed_ask(&f, "/health", NULL, 200));
	assert_true(http_client_open(&client, f.port, 0));
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		assert_true(http_client_request(&client, "GET", "/v1/models", wrong[i], NULL, 0));
		assert_true(http_client_read(&client, &reply));
		assert_int_equal(reply.status, 401);
		assert_null(strstr(reply.body.data, "secret"));
		http_client_reply_release(&reply);
	}
	assert_true(http_client_request(&client, "GET", "/v1/models", "Authorization: Bearer secret\r\n", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&client);
	json_free(api_bed_ask(&f, "/metrics", NULL, 401));
	api_bed_close(&f);
}

static void models_name_the_one_model(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *root = api_bed_ask(&f, "/v1/models", NULL, 200);
	assert_string_equal(json_text(json_get(root, "object")), "list");
	assert_string_equal(json_text(api_bed_at(root, "data", 0, "id")), "fake/model");
	assert_int_equal(json_int(api_bed_at(root, "data", 0, "max_model_len"), 0), 2048);
	json_free(root);
	json_free(api_bed_ask(&f, "/v1/models/fake/model", NULL, 200));
	json_free(api_bed_ask(&f, "/v1/models/fake%2Fmodel", NULL, 200));
	json_free(api_bed_ask(&f, "/v1/models/fake%2fmodel", NULL, 200));
	json_free(api_bed_ask(&f, "/v1/models/fake%2Fmode", NULL, 404));
	json_free(api_bed_ask(&f, "/v1/models/fake%2Fmodels", NULL, 404));
	json_free(api_bed_ask(&f, "/v1%2Fmodels", NULL, 404));
	json_free(api_bed_ask(&f, "/v1/models%00", NULL, 400));
	json_free(api_bed_ask(&f, "/v1/models/other", NULL, 404));
	json_free(api_bed_ask(&f, "/v1/completions", "{\"model\":\"other\",\"prompt\":\"a\"}", 200));
	api_bed_close(&f);
}

static void tokenize_and_detokenize_take_both_names(void **state)
{
	struct api_bed f = api_bed_plain();
	static const char *const bodies[] = {
		"{\"content\":\"a<|end|>\"}", "{\"prompt\":\"a<|end|>\"}", "{\"prompt\":\"a<|end|>\",\"parse_special\":true}"};
	static const int counts[] = {8, 8, 2};

	for (int i = 0; i < 3; i++) {
		struct json *root = api_bed_ask(&f, "/tokenize", bodies[i], 200);
		assert_int_equal(json_int(json_get(root, "count"), -1), counts[i]);
		assert_int_equal(json_count(json_get(root, "tokens")), counts[i]);
		assert_int_equal(json_int(json_get(root, "max_model_len"), -1), 2048);
		json_free(root);
	}
	struct json *root = api_bed_ask(&f, "/detokenize", "{\"tokens\":[104,105,256,195]}", 200);
	assert_string_equal(json_text(json_get(root, "content")), "hi<|end|>\uFFFD");
	assert_string_equal(json_text(json_get(root, "prompt")), "hi<|end|>\uFFFD");
	json_free(root);
	root = api_bed_ask(&f, "/tokenize", "{\"content\":\"\"}", 200);
	assert_int_equal(json_kind_of(json_get(root, "tokens")), JSON_KIND_ARRAY);
	json_free(root);

	static const char *const bad_text[] = {"", "{", "[]", "{}", "{\"content\":5}", "{\"content\":null}",
		"{\"content\":\"a\",\"parse_special\":\"x\"}", "{\"content\":\"\xC3\x28\"}"};
	for (size_t i = 0; i < sizeof(bad_text) / sizeof(bad_text[0]); i++)
		json_free(api_bed_ask(&f, "/tokenize", bad_text[i], 400));
	struct text long_text = {0};
	text_append_str(&long_text, "{\"content\":\"");
	for (int i = 0; i <= 1024 * 1024; i++)
		text_append_char(&long_text, 'x');
	text_append_str(&long_text, "\"}");
	json_free(api_bed_ask(&f, "/tokenize", long_text.data, 400));
	text_release(&long_text);
	static const char *const bad_ids[] = {"{}", "{\"tokens\":5}", "{\"tokens\":[-1]}", "{\"tokens\":[1.5]}",
		"{\"tokens\":[\"a\"]}", "{\"tokens\":[100000]}", "{\"tokens\":[99999999999]}", "{\"tokens\":null}"};
	for (size_t i = 0; i < sizeof(bad_ids) / sizeof(bad_ids[0]); i++)
		json_free(api_bed_ask(&f, "/detokenize", bad_ids[i], 400));
	api_bed_close(&f);
}

static void config_metrics_and_flush_answer(void **state)
{
	struct api_bed f = api_bed_plain();
	struct http_client_reply reply;
	char value[256];

	struct json *root = api_bed_ask(&f, "/config", NULL, 200);
	assert_non_null(json_get(root, "settings"));
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	json_free(api_bed_ask(&f, "/nowhere", NULL, 404));
	assert_true(http_client_once(f.port, "/metrics", NULL, &reply));
	assert_int_equal(reply.status, 200);
	assert_string_equal(http_client_header(&reply, "Content-Type", value), "text/plain; version=0.0.4; charset=utf-8");
	assert_non_null(strstr(reply.body.data, "verdict_fake 1\n"));
	assert_non_null(strstr(reply.body.data, "verdict_http_responses_total{code=\"404\"} 1\n"));
	http_client_reply_release(&reply);
	json_free(api_bed_ask(&f, "/flush_cache", NULL, 200));
	json_free(api_bed_ask(&f, "/flush_cache", "{}", 200));
	assert_int_equal(fake_backend_count(f.fake, &f.fake->n_flushed), 2);
	api_bed_close(&f);
}

static void wrong_methods_and_paths_are_named(void **state)
{
	struct api_bed f = api_bed_plain();
	struct http_client client;
	struct http_client_reply reply;
	char value[256];

	json_free(api_bed_ask(&f, "/v1/completions", NULL, 405));
	json_free(api_bed_ask(&f, "/health", "{}", 405));
	json_free(api_bed_ask(&f, "/v1/models/", NULL, 404));
	json_free(api_bed_ask(&f, "/v1/complete", "{}", 404));
	assert_true(http_client_open(&client, f.port, 0));
	assert_true(http_client_request(&client, "DELETE", "/flush_cache", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 405);
	assert_string_equal(http_client_header(&reply, "Allow", value), "GET, POST");
	http_client_reply_release(&reply);
	http_client_close(&client);
	api_bed_close(&f);
}

/* ---- requests from the field ---- */

/* Sends every line of a file; statuses[i] is what line i must get, 0 for "anything but a server error". After each a plain
 * request must still be answered. */
static void replay(const char *file, const char *path, const int *statuses, size_t count)
{
	struct api_bed f = api_bed_plain();
	struct text lines = {0};
	size_t i = 0;

	assert_int_equal(file_read(file, 1 << 20, &lines, NULL), STATUS_OK);
	for (char *at = lines.data, *end; i < count && *at; at = end + 1, i++) {
		struct http_client client;
		struct http_client_reply reply;
		end = memchr(at, '\n', lines.len - (size_t)(at - lines.data));
		if (!end)
			end = lines.data + lines.len;
		assert_true(http_client_open(&client, f.port, 0));
		assert_true(http_client_request(&client, "POST", path, "", at, (size_t)(end - at)));
		assert_true(http_client_read(&client, &reply));
		if (statuses[i] ? reply.status != statuses[i] : reply.status >= 500)
			fail_msg("%s line %zu: status %d, %s", file, i + 1, reply.status, text_str(&reply.body));
		assert_true(utf8_is_valid(text_str(&reply.body), reply.body.len));
		http_client_reply_release(&reply);
		http_client_close(&client);
		json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"still there?\",\"max_tokens\":2}", 200));
		if (end == lines.data + lines.len)
			end--;
	}
	assert_int_equal(i, count);
	text_release(&lines);
	api_bed_close(&f);
}

static void field_requests_get_the_right_status(void **state)
{
#define REPLAY(file, path, ...) \
	replay("tests/golden/field/" file, path, (const int[]){__VA_ARGS__}, sizeof((const int[]){__VA_ARGS__}) / sizeof(int))
	REPLAY("a01_stop_split.jsonl", "/v1/completions", 200, 200);
	REPLAY("a02_stop_prefix_of_other.jsonl", "/v1/completions", 200, 200, 200, 400, 400);
	REPLAY("a09_beyond_context.jsonl", "/v1/completions", 400, 400, 400);
	REPLAY("a10_surrogates.jsonl", "/v1/chat/completions", 400, 400, 400, 200, 200, 400);
	REPLAY("a11_invalid_utf8.jsonl", "/v1/chat/completions", 400, 400, 400);
	REPLAY("a14_stream_options.jsonl", "/v1/chat/completions", 200, 200, 200, 200, 400);
	REPLAY("a15_n.jsonl", "/v1/chat/completions", 200, 200, 400, 400, 400, 400);
	REPLAY("a17_special_text_in_content.jsonl", "/v1/chat/completions", 200, 200, 200);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(health_is_503_until_the_engine_is_ready),
		cmocka_unit_test(key_is_asked_everywhere_but_for_health),
		cmocka_unit_test(models_name_the_one_model),
		cmocka_unit_test(tokenize_and_detokenize_take_both_names),
		cmocka_unit_test(config_metrics_and_flush_answer),
		cmocka_unit_test(wrong_methods_and_paths_are_named),
		cmocka_unit_test(field_requests_get_the_right_status),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
