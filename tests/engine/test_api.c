/* Tests of the HTTP API over loopback with a scripted engine: forms of answers, streams, stops, limits, lost clients, access. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "engine/api.h"
#include "tests/support/fake_backend.h"
#include "tests/support/http_client.h"

struct fixture {
	struct fake_backend *fake;
	struct api *api;
	struct http_server *server;
	int port;
};

static struct fixture open_with(const struct api_config *config, size_t stream_queue_bytes)
{
	struct fixture f = {.fake = fake_backend_open(), .api = api_create(config)};
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

static struct fixture open_plain(void)
{
	return open_with(&(struct api_config){.nonce = "n-1"}, 0);
}

static void close_all(struct fixture *f)
{
	http_server_stop_accepting(f->server);
	api_detach(f->api, "the server is stopping");
	fake_backend_close(f->fake);
	http_server_close(f->server, 1000);
	api_destroy(f->api);
}

/* POSTs (or GETs, body NULL) and parses the JSON answer. Caller frees. */
static struct json *ask(const struct fixture *f, const char *path, const char *body, int expected_status)
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

static const struct json *path_of(const struct json *root, const char *key, int index, const char *key2)
{
	const struct json *value = json_get(root, key);
	if (index >= 0)
		value = json_at(value, (size_t)index);
	return key2 ? json_get(value, key2) : value;
}

static const char *text_of(const struct json *root)
{
	return json_text(path_of(root, "choices", 0, "text"));
}

static const char *finish_of(const struct json *root)
{
	return json_text(path_of(root, "choices", 0, "finish_reason"));
}

/* A parsed stream: events as an array of JSON objects; checks that [DONE] comes last and nothing else. */
static struct json *stream(const struct fixture *f, const char *path, const char *body)
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

/* Joins the text of one choice over all events, and counts its finish reasons. */
static struct text joined(const struct json *events, int index, int *finishes, const char **reason)
{
	struct text out = {0};

	*finishes = 0;
	for (size_t i = 0; i < json_count(events); i++) {
		const struct json *choice = path_of(json_at(events, i), "choices", 0, NULL);
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

static void whole_completion_has_openai_form(void **state)
{
	struct fixture f = open_plain();
	struct json *root = ask(&f, "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":5}", 200);
	const struct json *usage = json_get(root, "usage");

	assert_string_equal(json_text(json_get(root, "object")), "text_completion");
	assert_memory_equal(json_text(json_get(root, "id")), "cmpl-", 5);
	assert_string_equal(json_text(json_get(root, "model")), "fake/model");
	assert_true(json_int(json_get(root, "created"), 0) > 1700000000);
	assert_memory_equal(json_text(json_get(root, "system_fingerprint")), "verdict-", 8);
	assert_string_equal(text_of(root), "Hello");
	assert_string_equal(finish_of(root), "length");
	assert_int_equal(json_int(json_get(usage, "prompt_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(usage, "completion_tokens"), -1), 5);
	assert_int_equal(json_int(json_get(usage, "total_tokens"), -1), 8);
	assert_int_equal(json_int(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(usage, "completion_tokens_details"), "accepted_prediction_tokens"), -1), 2);
	assert_int_equal(json_int(json_get(json_get(usage, "completion_tokens_details"), "rejected_prediction_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(root, "verdict"), "verify_steps"), -1), 4);
	assert_true(json_number(json_get(json_get(root, "verdict"), "queue_ms"), -1) == 1.5);
	json_free(root);

	root = ask(&f, "/v1/completions", "{\"prompt\":\"abc\"}", 200); /* 12 tokens, fewer than the default limit of 16 */
	assert_string_equal(text_of(root), "Hello, world");
	assert_string_equal(finish_of(root), "stop");
	json_free(root);
	close_all(&f);
}

static void whole_chat_has_openai_form(void **state)
{
	struct fixture f = open_plain();
	struct json *root = ask(&f, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);
	const struct json *message = path_of(root, "choices", 0, "message");

	assert_string_equal(json_text(json_get(root, "object")), "chat.completion");
	assert_string_equal(json_text(json_get(message, "role")), "assistant");
	assert_string_equal(json_text(json_get(message, "content")), "Hello, world");
	assert_int_equal(f.fake->runs[0].sampling.max_tokens, 2048 - 8); /* no limit asked: all that is left */
	json_free(root);
	close_all(&f);
}

static void stream_of_a_chat_opens_with_the_role_and_closes_with_usage(void **state)
{
	struct fixture f = open_plain();
	struct json *events = stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":5,\"stream\":true,\"stream_options\":{"
		"\"include_usage\":true}}");
	size_t count = json_count(events);
	const char *reason = NULL;
	int finishes;

	assert_int_equal(count, 1 + 5 + 1 + 1);
	const struct json *first = json_at(events, 0), *last = json_at(events, count - 1);
	assert_string_equal(json_text(json_get(first, "object")), "chat.completion.chunk");
	assert_string_equal(json_text(json_get(path_of(first, "choices", 0, "delta"), "role")), "assistant");
	assert_string_equal(json_text(json_get(path_of(json_at(events, 1), "choices", 0, "delta"), "content")), "H");
	struct text text = joined(events, 0, &finishes, &reason);
	assert_string_equal(text.data, "Hello");
	assert_int_equal(finishes, 1);
	assert_string_equal(reason, "length");
	assert_int_equal(json_count(path_of(json_at(events, count - 2), "choices", 0, "delta")), 0);
	for (size_t i = 0; i + 1 < count; i++)
		assert_true(json_kind_of(json_get(json_at(events, i), "usage")) == JSON_KIND_NULL);
	assert_int_equal(json_count(json_get(last, "choices")), 0);
	assert_int_equal(json_kind_of(json_get(last, "choices")), JSON_KIND_ARRAY);
	assert_int_equal(json_int(json_get(json_get(last, "usage"), "completion_tokens"), -1), 5);
	assert_int_equal(json_int(json_get(json_get(last, "usage"), "prompt_tokens"), -1), 8);
	assert_int_equal(json_int(json_get(json_get(last, "usage"), "total_tokens"), -1), 13);
	assert_int_equal(json_int(json_get(json_get(last, "verdict"), "drafted"), -1), 5);
	text_release(&text);
	json_free(events);
	close_all(&f);
}

static void stream_without_the_option_has_no_usage(void **state)
{
	static const char *const options[] = {"", ",\"stream_options\":{\"include_usage\":false}", ",\"stream_options\":null"};
	struct fixture f = open_plain();

	for (size_t k = 0; k < 3; k++) {
		char body[256];
		snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"max_tokens\":4,\"stream\":true%s}", options[k]);
		struct json *events = stream(&f, "/v1/completions", body);
		for (size_t i = 0; i < json_count(events); i++) {
			assert_null(json_get(json_at(events, i), "usage"));
			assert_int_equal(json_count(json_get(json_at(events, i), "choices")), 1);
		}
		assert_non_null(json_get(json_at(events, json_count(events) - 1), "verdict"));
		json_free(events);
	}
	close_all(&f);
}

static void continuous_usage_counts_every_step(void **state)
{
	struct fixture f = open_plain();
	f.fake->per_step = 3; /* as after a verify step */
	struct json *events = stream(&f, "/v1/completions",
		"{\"prompt\":\"a\",\"max_tokens\":7,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_"
		"stats\":true}}");
	static const int expected[] = {3, 6, 7, 7, 7};

	assert_int_equal(json_count(events), 5);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(json_int(json_get(json_get(json_at(events, i), "usage"), "completion_tokens"), -1), expected[i]);
	assert_string_equal(json_text(path_of(json_at(events, 0), "choices", 0, "text")), "Hel");
	json_free(events);
	close_all(&f);
}

static void stop_string_ends_stream_and_whole_reply_alike(void **state)
{
	for (int per_step = 1; per_step <= 5; per_step++) {
		struct fixture f = open_plain();
		const char *reason = NULL;
		int finishes;
		f.fake->per_step = per_step;
		fake_backend_say(f.fake, "The quick brown fox jumps over");
		struct json *whole = ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"stop\":[\"own fox\"],\"max_tokens\":32}", 200);
		assert_string_equal(text_of(whole), "The quick br");
		assert_string_equal(finish_of(whole), "stop");
		assert_int_equal(json_int(json_get(json_get(whole, "usage"), "completion_tokens"), -1), 19);
		struct json *events = stream(&f, "/v1/completions",
			"{\"prompt\":\"p\",\"stop\":\"own fox\",\"max_tokens\":32,\"stream\":true,"
			"\"stream_options\":{\"include_usage\":true}}");
		struct text text = joined(events, 0, &finishes, &reason);
		assert_string_equal(text.data, "The quick br");
		assert_int_equal(finishes, 1);
		assert_string_equal(reason, "stop");
		assert_int_equal(
			json_int(json_get(json_get(json_at(events, json_count(events) - 1), "usage"), "completion_tokens"), -1),
			19);
		text_release(&text);
		json_free(events);
		json_free(whole);
		close_all(&f);
	}
}

static void text_held_back_for_a_stop_string_is_released_at_the_end(void **state)
{
	struct fixture f = open_plain();
	const char *reason = NULL;
	int finishes;

	fake_backend_say(f.fake, "a brown fo");
	struct json *events =
		stream(&f, "/v1/completions", "{\"prompt\":\"p\",\"stop\":[\"own fox\"],\"max_tokens\":32,\"stream\":true}");
	struct text text = joined(events, 0, &finishes, &reason);
	assert_string_equal(text.data, "a brown fo");
	assert_string_equal(reason, "stop"); /* the script's end token */
	text_release(&text);
	json_free(events);
	close_all(&f);
}

static void characters_cut_by_tokens_arrive_whole(void **state)
{
	struct fixture f = open_plain();
	const char *reason = NULL;
	int finishes;

	fake_backend_say(f.fake, "\xF0\x9F\x99\x82"); /* four tokens, one character */
	struct json *events = stream(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4,\"stream\":true}");
	assert_int_equal(json_count(events), 2);
	assert_string_equal(json_text(path_of(json_at(events, 0), "choices", 0, "text")), "🙂");
	json_free(events);

	/* The limit falls inside the character. */
	struct json *whole = ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":2}", 200);
	assert_string_equal(text_of(whole), "\uFFFD");
	assert_string_equal(finish_of(whole), "length");
	json_free(whole);
	events = stream(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":2,\"stream\":true}");
	struct text text = joined(events, 0, &finishes, &reason);
	assert_string_equal(text.data, "\uFFFD");
	text_release(&text);
	json_free(events);

	/* In a chat, and with whole text before the cut. */
	static const char chat[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,\"stream\":true}";
	static const struct {
		const char *said, *expected;
	} chats[] = {{"a\xF0\x9F", "a\uFFFD"}, {"\xE2\x82\xAC", "\u20AC"}};
	for (size_t i = 0; i < sizeof(chats) / sizeof(chats[0]); i++) {
		fake_backend_say(f.fake, chats[i].said);
		events = stream(&f, "/v1/chat/completions", chat);
		text = joined(events, 0, &finishes, &reason);
		assert_string_equal(text.data, chats[i].expected);
		assert_int_equal(finishes, 1);
		assert_string_equal(reason, "length");
		text_release(&text);
		json_free(events);
	}
	close_all(&f);
}

static void control_tokens_are_not_shown(void **state)
{
	struct fixture f = open_plain();
	f.fake->pieces[0] = "own";
	int32_t script[] = {'b', 'r', FAKE_PIECES, FAKE_END, '!'};
	memcpy(f.fake->script, script, sizeof(script));
	f.fake->script_count = 5;
	struct json *root = ask(&f, "/v1/completions", "{\"prompt\":\"p\"}", 200);
	assert_string_equal(text_of(root), "brown!");
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "completion_tokens"), -1), 5);
	json_free(root);
	close_all(&f);
}

static void several_choices_have_their_own_seeds_and_one_prompt_count(void **state)
{
	struct fixture f = open_plain();
	struct json *root =
		ask(&f, "/v1/completions", "{\"prompt\":\"abc\",\"n\":3,\"seed\":10,\"max_tokens\":4,\"temperature\":1}", 200);

	assert_int_equal(json_count(json_get(root, "choices")), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(json_int(path_of(root, "choices", i, "index"), -1), i);
		assert_string_equal(json_text(path_of(root, "choices", i, "text")), "Hell");
		assert_int_equal(f.fake->runs[i].sampling.seed, 10 + i);
	}
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "prompt_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "completion_tokens"), -1), 12);
	json_free(root);

	const char *reason = NULL;
	struct json *events = stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2,\"max_tokens\":4,\"stream\":true,\"stream_options\":"
		"{\"include_usage\":true}}");
	for (int i = 0; i < 2; i++) {
		int finishes;
		struct text text = joined(events, i, &finishes, &reason);
		assert_string_equal(text.data, "Hell");
		assert_int_equal(finishes, 1);
		text_release(&text);
	}
	assert_int_equal(
		json_int(json_get(json_get(json_at(events, json_count(events) - 1), "usage"), "completion_tokens"), -1), 8);
	assert_int_not_equal(f.fake->runs[3].sampling.seed, f.fake->runs[4].sampling.seed);
	json_free(events);
	close_all(&f);
}

static void several_prompts_are_answered_in_order(void **state)
{
	struct fixture f = open_plain();
	struct json *root = ask(&f, "/v1/completions", "{\"prompt\":[\"ab\",\"cde\"],\"n\":2,\"max_tokens\":2}", 200);

	assert_int_equal(json_count(json_get(root, "choices")), 4);
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "prompt_tokens"), -1), 5);
	assert_int_equal(f.fake->runs[1].n_prompt, 2);
	assert_int_equal(f.fake->runs[2].n_prompt, 3);
	json_free(root);
	root = ask(&f, "/v1/completions", "{\"prompt\":[[65,66],[256]],\"max_tokens\":2}", 200);
	assert_int_equal(f.fake->runs[4].prompt[1], 66);
	assert_int_equal(f.fake->runs[5].prompt[0], FAKE_END);
	json_free(root);
	close_all(&f);
}

static void special_text_stays_text_unless_asked(void **state)
{
	struct fixture f = open_plain();

	json_free(ask(&f, "/v1/completions", "{\"prompt\":\"<|end|>\",\"max_tokens\":1}", 200));
	assert_int_equal(f.fake->runs[0].n_prompt, 7);
	json_free(ask(&f, "/v1/completions", "{\"prompt\":\"<|end|>\",\"max_tokens\":1,\"parse_special\":true}", 200));
	assert_int_equal(f.fake->runs[1].n_prompt, 1);
	json_free(ask(
		&f, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"<|end|>\"}],\"max_tokens\":1}", 200));
	int control = 0;
	for (size_t i = 0; i < f.fake->runs[2].n_prompt; i++)
		control += f.fake->runs[2].prompt[i] == FAKE_END;
	assert_int_equal(control, 1); /* the template's own */
	close_all(&f);
}

static void logprobs_of_completions_are_parallel_arrays(void **state)
{
	struct fixture f = open_plain();
	fake_backend_say(f.fake, "h\xC3\xA9y");
	struct json *root = ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4,\"logprobs\":2}", 200);
	const struct json *logprobs = path_of(root, "choices", 0, "logprobs");

	assert_int_equal(json_count(json_get(logprobs, "tokens")), 4);
	assert_string_equal(json_text(json_at(json_get(logprobs, "tokens"), 0)), "h");
	assert_true(json_number(json_at(json_get(logprobs, "token_logprobs"), 0), 0) == -0.5);
	assert_true(json_number(json_get(json_at(json_get(logprobs, "top_logprobs"), 0), "i"), 0) == -1.5);
	assert_int_equal(json_count(json_at(json_get(logprobs, "top_logprobs"), 0)), 2);
	assert_string_equal(json_text(json_at(json_get(logprobs, "tokens"), 1)), "bytes:\\xc3");
	assert_int_equal(json_count(json_at(json_get(logprobs, "top_logprobs"), 1)), 2);
	assert_int_equal(json_int(json_at(json_get(logprobs, "text_offset"), 3), -1), 2); /* after "hé" */
	json_free(root);

	/* Two tokens with the same bytes give one key. */
	f.fake->pieces[0] = "h";
	f.fake->script[0] = FAKE_PIECES;
	f.fake->repeat_top = true;
	root = ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":1,\"logprobs\":3}", 200);
	assert_int_equal(json_count(json_at(json_get(path_of(root, "choices", 0, "logprobs"), "top_logprobs"), 0)), 1);
	json_free(root);
	root = ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4}", 200);
	assert_int_equal(json_kind_of(path_of(root, "choices", 0, "logprobs")), JSON_KIND_NULL);
	json_free(root);
	close_all(&f);
}

static void logprobs_of_chats_are_objects_in_streams_too(void **state)
{
	struct fixture f = open_plain();
	fake_backend_say(f.fake, "\xC3\xA9!");
	struct json *root = ask(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":2}",
		200);
	const struct json *content = json_get(path_of(root, "choices", 0, "logprobs"), "content");
	assert_int_equal(json_count(content), 3);
	assert_int_equal(json_int(json_at(json_get(json_at(content, 0), "bytes"), 0), -1), 0xC3);
	assert_string_equal(json_text(json_get(json_at(content, 0), "token")), "\uFFFD");
	assert_int_equal(json_count(json_get(json_at(content, 2), "top_logprobs")), 2);
	assert_string_equal(json_text(json_get(json_at(json_get(json_at(content, 2), "top_logprobs"), 1), "token")), "\"");
	json_free(root);

	struct json *events = stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,\"logprobs\":true,\"stream\":true}");
	size_t tokens = 0;
	for (size_t i = 0; i < json_count(events); i++)
		tokens += json_count(json_get(path_of(json_at(events, i), "choices", 0, "logprobs"), "content"));
	assert_int_equal(tokens, 3);
	json_free(events);
	close_all(&f);
}

static void prompts_beyond_the_context_are_refused_with_both_numbers(void **state)
{
	struct fixture f = open_plain();
	struct text body = {0};
	f.fake->context = 20;

	static const struct {
		size_t prompt;
		const char *limit;
		int status;
	} cases[] = {
		{19, ",\"max_tokens\":1", 200},
		{19, "", 200},
		{19, ",\"max_tokens\":2", 400},
		{20, "", 400},
		{21, ",\"max_tokens\":1", 400},
		{10, ",\"max_tokens\":10", 200},
		{10, ",\"max_tokens\":11", 400},
		{1, ",\"max_tokens\":10000", 400},
		{3000000, "", 400},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		text_clear(&body);
		text_append_str(&body, "{\"prompt\":\"");
		for (size_t k = 0; k < cases[i].prompt; k++)
			text_append_char(&body, 'w');
		text_printf(&body, "\"%s}", cases[i].limit);
		struct json *root = ask(&f, "/v1/completions", body.data, cases[i].status);
		if (cases[i].status == 400) {
			const struct json *error = json_get(root, "error");
			char number[32];
			assert_string_equal(json_text(json_get(error, "code")), "context_length_exceeded");
			assert_non_null(strstr(json_text(json_get(error, "message")), "20"));
			snprintf(number, sizeof(number), "%zu", cases[i].prompt);
			if (cases[i].prompt < 1000)
				assert_non_null(strstr(json_text(json_get(error, "message")), number));
		}
		json_free(root);
	}
	assert_int_equal(fake_backend_count(f.fake, &f.fake->n_runs), 3);
	json_free(ask(&f, "/v1/completions", "{\"prompt\":\"\"}", 400));
	json_free(ask(&f, "/v1/completions", "{\"prompt\":[300]}", 400));
	json_free(ask(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"far more than twenty tokens\"}]}", 400));
	text_release(&body);
	close_all(&f);
}

static void full_queue_is_429_with_retry_after(void **state)
{
	struct fixture f = open_plain();
	struct http_client first;
	struct http_client_reply reply;
	char value[256];
	static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":8}";

	f.fake->queue_max = 2;
	f.fake->hold_after = 2;
	assert_true(http_client_open(&first, f.port, 0));
	assert_true(http_client_request(&first, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 1));
	/* The second of two choices finds the queue full: the first is cancelled, the whole request refused. */
	assert_true(http_client_once(f.port, "/v1/completions", "{\"prompt\":\"a\",\"n\":2}", &reply));
	assert_int_equal(reply.status, 429);
	assert_non_null(http_client_header(&reply, "Retry-After", value));
	http_client_reply_release(&reply);
	assert_true(fake_backend_wait(f.fake, &f.fake->n_cancelled, 1));
	/* The running one is not touched by that. */
	fake_backend_release(f.fake);
	assert_true(http_client_read(&first, &reply));
	assert_int_equal(reply.status, 200);
	http_client_reply_release(&reply);
	http_client_close(&first);
	assert_int_equal(fake_backend_count(f.fake, &f.fake->n_cancelled), 1);
	close_all(&f);
}

/* Starts a generation that holds after three tokens, leaves, and sees the engine told, while another client's goes on. */
static void leave_in_the_middle(const char *leaving_body, bool wait_for_text)
{
	struct fixture f = open_plain();
	struct http_client staying, leaving;
	struct http_client_reply reply;
	static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":12}";

	f.fake->hold_after = 3;
	assert_true(http_client_open(&staying, f.port, 0));
	assert_true(http_client_request(&staying, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 1));
	assert_true(http_client_open(&leaving, f.port, 0));
	assert_true(http_client_request(&leaving, "POST", "/v1/completions", "", leaving_body, strlen(leaving_body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 2));
	if (wait_for_text)
		assert_true(http_client_wait_for(&leaving, "\"text\":\"l\""));
	int64_t left_ns = clock_monotonic_ns();
	http_client_close(&leaving);
	assert_true(fake_backend_wait(f.fake, &f.fake->n_cancelled, 1));
	assert_true(clock_monotonic_ns() - left_ns < 2000000000);
	fake_backend_release(f.fake);
	assert_true(http_client_read(&staying, &reply));
	assert_int_equal(reply.status, 200);
	assert_non_null(strstr(reply.body.data, "Hello, world"));
	http_client_reply_release(&reply);
	http_client_close(&staying);
	assert_int_equal(fake_backend_count(f.fake, &f.fake->n_cancelled), 1);
	close_all(&f);
}

static void client_that_leaves_cancels_only_its_own_generation(void **state)
{
	leave_in_the_middle("{\"prompt\":\"b\",\"max_tokens\":12}", false);
	leave_in_the_middle("{\"prompt\":\"b\",\"max_tokens\":12,\"stream\":true}", true);
}

static void every_choice_of_a_lost_client_is_cancelled(void **state)
{
	struct fixture f = open_plain();
	struct http_client client;
	static const char body[] = "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"max_tokens\":12,\"stream\":true}";

	f.fake->hold_after = 2;
	assert_true(http_client_open(&client, f.port, 0));
	assert_true(http_client_request(&client, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 6));
	http_client_close(&client);
	assert_true(fake_backend_wait(f.fake, &f.fake->n_cancelled, 6));
	close_all(&f);
}

static void reader_that_stops_is_cancelled_at_the_queue_limit(void **state)
{
	struct fixture f = open_with(&(struct api_config){0}, 2000);
	struct http_client client;
	static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":2000,\"stream\":true,\"logprobs\":20}";

	/* Each event is some kilobytes: far below what the kernel takes in all, far above the queue. */
	for (int i = 0; i < 512; i++)
		f.fake->script[i] = 'x';
	f.fake->script_count = 512;
	f.fake->per_step = 8;
	assert_true(http_client_open(&client, f.port, 4096));
	assert_true(http_client_request(&client, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_done, 1));
	http_client_close(&client);
	struct http_stats stats;
	http_server_stats(f.server, &stats);
	assert_int_equal(stats.dropped, 1);
	close_all(&f);
}

static void engine_error_before_the_first_token_is_a_plain_500(void **state)
{
	struct fixture f = open_plain();
	static const char *const bodies[] = {"{\"prompt\":\"a\"}", "{\"prompt\":\"a\",\"stream\":true}"};

	f.fake->script_count = 0;
	f.fake->at_end = FINISH_ERROR;
	f.fake->error = "rank 1 is lost";
	for (int i = 0; i < 2; i++) {
		struct json *root = ask(&f, "/v1/completions", bodies[i], 500);
		assert_string_equal(json_text(json_get(json_get(root, "error"), "message")), "rank 1 is lost");
		assert_string_equal(json_text(json_get(json_get(root, "error"), "type")), "server_error");
		json_free(root);
	}
	close_all(&f);
}

static void engine_error_in_a_stream_is_an_error_event(void **state)
{
	struct fixture f = open_plain();
	const char *reason = NULL;
	int finishes;

	f.fake->at_end = FINISH_ERROR;
	f.fake->error = "rank 1 is lost";
	struct json *events =
		stream(&f, "/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
	const struct json *last = json_at(events, json_count(events) - 1);
	assert_string_equal(json_text(json_get(json_get(last, "error"), "message")), "rank 1 is lost");
	struct text text = joined(events, 0, &finishes, &reason);
	assert_int_equal(finishes, 0);
	text_release(&text);
	json_free(events);
	close_all(&f);
}

static void engine_that_ends_answers_what_was_running(void **state)
{
	struct fixture f = open_plain();
	struct http_client whole, streamed;
	struct http_client_reply reply;
	static const char body[] = "{\"prompt\":\"a\"}", stream_body[] = "{\"prompt\":\"a\",\"stream\":true}";

	f.fake->hold_after = 2;
	assert_true(http_client_open(&whole, f.port, 0));
	assert_true(http_client_request(&whole, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(http_client_open(&streamed, f.port, 0));
	assert_true(http_client_request(&streamed, "POST", "/v1/completions", "", stream_body, strlen(stream_body)));
	assert_true(http_client_wait_for(&streamed, "\"text\":\"e\""));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 2));
	close_all(&f);
	assert_true(http_client_read(&whole, &reply));
	assert_int_equal(reply.status, 503);
	http_client_reply_release(&reply);
	assert_true(http_client_read(&streamed, &reply));
	assert_non_null(strstr(reply.body.data, "\"code\":\"cancelled\""));
	assert_non_null(strstr(reply.body.data, "data: [DONE]"));
	http_client_reply_release(&reply);
	http_client_close(&whole);
	http_client_close(&streamed);
}

static void health_is_503_until_the_engine_is_ready(void **state)
{
	struct fixture f = open_plain();
	struct http_client_reply reply;

	f.fake->not_ready = true;
	struct json *root = ask(&f, "/health", NULL, 503);
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	json_free(ask(&f, "/v1/completions", "{\"prompt\":\"a\"}", 503));
	json_free(ask(&f, "/v1/models", NULL, 503));
	f.fake->not_ready = false;
	root = ask(&f, "/health", NULL, 200);
	assert_string_equal(json_text(json_get(root, "status")), "ok");
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	api_detach(f.api, "rank 1 is lost");
	root = ask(&f, "/v1/completions", "{\"prompt\":\"a\"}", 503);
	assert_string_equal(json_text(json_get(json_get(root, "error"), "message")), "rank 1 is lost");
	json_free(root);
	json_free(ask(&f, "/health", NULL, 503));
	assert_true(http_client_once(f.port, "/nowhere", NULL, &reply));
	assert_int_equal(reply.status, 404);
	http_client_reply_release(&reply);
	close_all(&f);
}

static void key_is_asked_everywhere_but_for_health(void **state)
{
	struct fixture f = open_with(&(struct api_config){.api_key = "secret"}, 0);
	static const char *const wrong[] = {"", "Authorization: Bearer secre\r\n", "Authorization: Bearer secretx\r\n",
		"Authorization: secret\r\n", "Authorization: Bearer \r\n", "Authorization: bearer Secret\r\n"};
	struct http_client client;
	struct http_client_reply reply;

	json_free(ask(&f, "/health", NULL, 200));
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
	json_free(ask(&f, "/metrics", NULL, 401));
	close_all(&f);
}

static void models_name_the_one_model(void **state)
{
	struct fixture f = open_plain();
	struct json *root = ask(&f, "/v1/models", NULL, 200);
	assert_string_equal(json_text(json_get(root, "object")), "list");
	assert_string_equal(json_text(path_of(root, "data", 0, "id")), "fake/model");
	assert_int_equal(json_int(path_of(root, "data", 0, "max_model_len"), 0), 2048);
	json_free(root);
	json_free(ask(&f, "/v1/models/fake/model", NULL, 200));
	json_free(ask(&f, "/v1/models/fake%2Fmodel", NULL, 200));
	json_free(ask(&f, "/v1/models/fake%2Fmode", NULL, 404));
	json_free(ask(&f, "/v1/models/fake%2Fmodels", NULL, 404));
	json_free(ask(&f, "/v1%2Fmodels", NULL, 404));
	json_free(ask(&f, "/v1/models%00", NULL, 400));
	json_free(ask(&f, "/v1/models/other", NULL, 404));
	json_free(ask(&f, "/v1/completions", "{\"model\":\"other\",\"prompt\":\"a\"}", 200));
	close_all(&f);
}

static void tokenize_and_detokenize_take_both_names(void **state)
{
	struct fixture f = open_plain();
	static const char *const bodies[] = {
		"{\"content\":\"a<|end|>\"}", "{\"prompt\":\"a<|end|>\"}", "{\"prompt\":\"a<|end|>\",\"parse_special\":true}"};
	static const int counts[] = {8, 8, 2};

	for (int i = 0; i < 3; i++) {
		struct json *root = ask(&f, "/tokenize", bodies[i], 200);
		assert_int_equal(json_int(json_get(root, "count"), -1), counts[i]);
		assert_int_equal(json_count(json_get(root, "tokens")), counts[i]);
		assert_int_equal(json_int(json_get(root, "max_model_len"), -1), 2048);
		json_free(root);
	}
	struct json *root = ask(&f, "/detokenize", "{\"tokens\":[104,105,256,195]}", 200);
	assert_string_equal(json_text(json_get(root, "content")), "hi<|end|>\uFFFD");
	assert_string_equal(json_text(json_get(root, "prompt")), "hi<|end|>\uFFFD");
	json_free(root);
	root = ask(&f, "/tokenize", "{\"content\":\"\"}", 200);
	assert_int_equal(json_kind_of(json_get(root, "tokens")), JSON_KIND_ARRAY);
	json_free(root);

	static const char *const bad_text[] = {"", "{", "[]", "{}", "{\"content\":5}", "{\"content\":null}",
		"{\"content\":\"a\",\"parse_special\":\"x\"}", "{\"content\":\"\xC3\x28\"}"};
	for (size_t i = 0; i < sizeof(bad_text) / sizeof(bad_text[0]); i++)
		json_free(ask(&f, "/tokenize", bad_text[i], 400));
	struct text long_text = {0};
	text_append_str(&long_text, "{\"content\":\"");
	for (int i = 0; i <= 1024 * 1024; i++)
		text_append_char(&long_text, 'x');
	text_append_str(&long_text, "\"}");
	json_free(ask(&f, "/tokenize", long_text.data, 400));
	text_release(&long_text);
	static const char *const bad_ids[] = {"{}", "{\"tokens\":5}", "{\"tokens\":[-1]}", "{\"tokens\":[1.5]}",
		"{\"tokens\":[\"a\"]}", "{\"tokens\":[100000]}", "{\"tokens\":[99999999999]}", "{\"tokens\":null}"};
	for (size_t i = 0; i < sizeof(bad_ids) / sizeof(bad_ids[0]); i++)
		json_free(ask(&f, "/detokenize", bad_ids[i], 400));
	close_all(&f);
}

static void config_metrics_and_flush_answer(void **state)
{
	struct fixture f = open_plain();
	struct http_client_reply reply;
	char value[256];

	struct json *root = ask(&f, "/config", NULL, 200);
	assert_non_null(json_get(root, "settings"));
	assert_string_equal(json_text(json_get(root, "nonce")), "n-1");
	json_free(root);
	json_free(ask(&f, "/nowhere", NULL, 404));
	assert_true(http_client_once(f.port, "/metrics", NULL, &reply));
	assert_int_equal(reply.status, 200);
	assert_string_equal(http_client_header(&reply, "Content-Type", value), "text/plain; version=0.0.4; charset=utf-8");
	assert_non_null(strstr(reply.body.data, "verdict_fake 1\n"));
	assert_non_null(strstr(reply.body.data, "verdict_http_responses_total{code=\"404\"} 1\n"));
	http_client_reply_release(&reply);
	json_free(ask(&f, "/flush_cache", NULL, 200));
	json_free(ask(&f, "/flush_cache", "{}", 200));
	assert_int_equal(fake_backend_count(f.fake, &f.fake->n_flushed), 2);
	close_all(&f);
}

static void wrong_methods_and_paths_are_named(void **state)
{
	struct fixture f = open_plain();
	struct http_client client;
	struct http_client_reply reply;
	char value[256];

	json_free(ask(&f, "/v1/completions", NULL, 405));
	json_free(ask(&f, "/health", "{}", 405));
	json_free(ask(&f, "/v1/models/", NULL, 404));
	json_free(ask(&f, "/v1/complete", "{}", 404));
	assert_true(http_client_open(&client, f.port, 0));
	assert_true(http_client_request(&client, "DELETE", "/flush_cache", "", NULL, 0));
	assert_true(http_client_read(&client, &reply));
	assert_int_equal(reply.status, 405);
	assert_string_equal(http_client_header(&reply, "Allow", value), "GET, POST");
	http_client_reply_release(&reply);
	http_client_close(&client);
	close_all(&f);
}

/* ---- requests from the field ---- */

/* Sends every line of a file; statuses[i] is what line i must get, 0 for "anything but a server error". After each a plain
 * request must still be answered. */
static void replay(const char *file, const char *path, const int *statuses, size_t count)
{
	struct fixture f = open_plain();
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
		json_free(ask(&f, "/v1/completions", "{\"prompt\":\"still there?\",\"max_tokens\":2}", 200));
		if (end == lines.data + lines.len)
			end--;
	}
	assert_int_equal(i, count);
	text_release(&lines);
	close_all(&f);
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
		cmocka_unit_test(whole_completion_has_openai_form),
		cmocka_unit_test(whole_chat_has_openai_form),
		cmocka_unit_test(stream_of_a_chat_opens_with_the_role_and_closes_with_usage),
		cmocka_unit_test(stream_without_the_option_has_no_usage),
		cmocka_unit_test(continuous_usage_counts_every_step),
		cmocka_unit_test(stop_string_ends_stream_and_whole_reply_alike),
		cmocka_unit_test(text_held_back_for_a_stop_string_is_released_at_the_end),
		cmocka_unit_test(characters_cut_by_tokens_arrive_whole),
		cmocka_unit_test(control_tokens_are_not_shown),
		cmocka_unit_test(several_choices_have_their_own_seeds_and_one_prompt_count),
		cmocka_unit_test(several_prompts_are_answered_in_order),
		cmocka_unit_test(special_text_stays_text_unless_asked),
		cmocka_unit_test(logprobs_of_completions_are_parallel_arrays),
		cmocka_unit_test(logprobs_of_chats_are_objects_in_streams_too),
		cmocka_unit_test(prompts_beyond_the_context_are_refused_with_both_numbers),
		cmocka_unit_test(full_queue_is_429_with_retry_after),
		cmocka_unit_test(client_that_leaves_cancels_only_its_own_generation),
		cmocka_unit_test(every_choice_of_a_lost_client_is_cancelled),
		cmocka_unit_test(reader_that_stops_is_cancelled_at_the_queue_limit),
		cmocka_unit_test(engine_error_before_the_first_token_is_a_plain_500),
		cmocka_unit_test(engine_error_in_a_stream_is_an_error_event),
		cmocka_unit_test(engine_that_ends_answers_what_was_running),
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
