/* Tests of what the HTTP API answers: whole and streamed forms, usage, stops, cut characters, choices, log-probabilities. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/api_bed.h"

static void whole_completion_has_openai_form(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":5}", 200);
	const struct json *usage = json_get(root, "usage");

	assert_string_equal(json_text(json_get(root, "object")), "text_completion");
	assert_memory_equal(json_text(json_get(root, "id")), "cmpl-", 5);
	assert_string_equal(json_text(json_get(root, "model")), "fake/model");
	assert_true(json_int(json_get(root, "created"), 0) > 1700000000);
	assert_memory_equal(json_text(json_get(root, "system_fingerprint")), "verdict-", 8);
	assert_string_equal(api_bed_text(root), "Hello");
	assert_string_equal(api_bed_finish(root), "length");
	assert_int_equal(json_int(json_get(usage, "prompt_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(usage, "completion_tokens"), -1), 5);
	assert_int_equal(json_int(json_get(usage, "total_tokens"), -1), 8);
	assert_int_equal(json_int(json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(usage, "completion_tokens_details"), "accepted_prediction_tokens"), -1), 2);
	assert_int_equal(json_int(json_get(json_get(usage, "completion_tokens_details"), "rejected_prediction_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(root, "verdict"), "verify_steps"), -1), 4);
	assert_true(json_number(json_get(json_get(root, "verdict"), "queue_ms"), -1) == 1.5);
	json_free(root);

	root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"abc\"}", 200); /* 12 tokens, fewer than the default limit of 16 */
	assert_string_equal(api_bed_text(root), "Hello, world");
	assert_string_equal(api_bed_finish(root), "stop");
	json_free(root);
	api_bed_close(&f);
}

static void whole_chat_has_openai_form(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *root = api_bed_ask(&f, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}", 200);
	const struct json *message = api_bed_at(root, "choices", 0, "message");

	assert_string_equal(json_text(json_get(root, "object")), "chat.completion");
	assert_string_equal(json_text(json_get(message, "role")), "assistant");
	assert_string_equal(json_text(json_get(message, "content")), "Hello, world");
	assert_int_equal(f.fake->runs[0].sampling.max_tokens, 2048 - 8); /* no limit asked: all that is left */
	json_free(root);
	api_bed_close(&f);
}

static void stream_of_a_chat_opens_with_the_role_and_closes_with_usage(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *events = api_bed_stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"max_tokens\":5,\"stream\":true,\"stream_options\":{"
		"\"include_usage\":true}}");
	size_t count = json_count(events);
	const char *reason = NULL;
	int finishes;

	assert_int_equal(count, 1 + 5 + 1 + 1);
	const struct json *first = json_at(events, 0), *last = json_at(events, count - 1);
	assert_string_equal(json_text(json_get(first, "object")), "chat.completion.chunk");
	assert_string_equal(json_text(json_get(api_bed_at(first, "choices", 0, "delta"), "role")), "assistant");
	assert_string_equal(json_text(json_get(api_bed_at(json_at(events, 1), "choices", 0, "delta"), "content")), "H");
	struct text text = api_bed_join(events, 0, &finishes, &reason);
	assert_string_equal(text.data, "Hello");
	assert_int_equal(finishes, 1);
	assert_string_equal(reason, "length");
	assert_int_equal(json_count(api_bed_at(json_at(events, count - 2), "choices", 0, "delta")), 0);
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
	api_bed_close(&f);
}

static void stream_without_the_option_has_no_usage(void **state)
{
	static const char *const options[] = {"", ",\"stream_options\":{\"include_usage\":false}", ",\"stream_options\":null"};
	struct api_bed f = api_bed_plain();

	for (size_t k = 0; k < 3; k++) {
		char body[256];
		snprintf(body, sizeof(body), "{\"prompt\":\"a\",\"max_tokens\":4,\"stream\":true%s}", options[k]);
		struct json *events = api_bed_stream(&f, "/v1/completions", body);
		for (size_t i = 0; i < json_count(events); i++) {
			assert_null(json_get(json_at(events, i), "usage"));
			assert_int_equal(json_count(json_get(json_at(events, i), "choices")), 1);
		}
		assert_non_null(json_get(json_at(events, json_count(events) - 1), "verdict"));
		json_free(events);
	}
	api_bed_close(&f);
}

static void continuous_usage_counts_every_step(void **state)
{
	struct api_bed f = api_bed_plain();
	f.fake->per_step = 3; /* as after a verify step */
	struct json *events = api_bed_stream(&f, "/v1/completions",
		"{\"prompt\":\"a\",\"max_tokens\":7,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"continuous_usage_"
		"stats\":true}}");
	static const int expected[] = {3, 6, 7, 7, 7};

	assert_int_equal(json_count(events), 5);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(json_int(json_get(json_get(json_at(events, i), "usage"), "completion_tokens"), -1), expected[i]);
	assert_string_equal(json_text(api_bed_at(json_at(events, 0), "choices", 0, "text")), "Hel");
	json_free(events);
	api_bed_close(&f);
}

static void stop_string_ends_stream_and_whole_reply_alike(void **state)
{
	for (int per_step = 1; per_step <= 5; per_step++) {
		struct api_bed f = api_bed_plain();
		const char *reason = NULL;
		int finishes;
		f.fake->per_step = per_step;
		fake_backend_say(f.fake, "The quick brown fox jumps over");
		struct json *whole =
			api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"stop\":[\"own fox\"],\"max_tokens\":32}", 200);
		assert_string_equal(api_bed_text(whole), "The quick br");
		assert_string_equal(api_bed_finish(whole), "stop");
		assert_int_equal(json_int(json_get(json_get(whole, "usage"), "completion_tokens"), -1), 19);
		struct json *events = api_bed_stream(&f, "/v1/completions",
			"{\"prompt\":\"p\",\"stop\":\"own fox\",\"max_tokens\":32,\"stream\":true,"
			"\"stream_options\":{\"include_usage\":true}}");
		struct text text = api_bed_join(events, 0, &finishes, &reason);
		assert_string_equal(text.data, "The quick br");
		assert_int_equal(finishes, 1);
		assert_string_equal(reason, "stop");
		assert_int_equal(
			json_int(json_get(json_get(json_at(events, json_count(events) - 1), "usage"), "completion_tokens"), -1),
			19);
		text_release(&text);
		json_free(events);
		json_free(whole);
		api_bed_close(&f);
	}
}

static void text_held_back_for_a_stop_string_is_released_at_the_end(void **state)
{
	struct api_bed f = api_bed_plain();
	const char *reason = NULL;
	int finishes;

	fake_backend_say(f.fake, "a brown fo");
	struct json *events = api_bed_stream(
		&f, "/v1/completions", "{\"prompt\":\"p\",\"stop\":[\"own fox\"],\"max_tokens\":32,\"stream\":true}");
	struct text text = api_bed_join(events, 0, &finishes, &reason);
	assert_string_equal(text.data, "a brown fo");
	assert_string_equal(reason, "stop"); /* the script's end token */
	text_release(&text);
	json_free(events);
	api_bed_close(&f);
}

static void characters_cut_by_tokens_arrive_whole(void **state)
{
	struct api_bed f = api_bed_plain();
	const char *reason = NULL;
	int finishes;

	fake_backend_say(f.fake, "\xF0\x9F\x99\x82"); /* four tokens, one character */
	struct json *events = api_bed_stream(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4,\"stream\":true}");
	assert_int_equal(json_count(events), 2);
	assert_string_equal(json_text(api_bed_at(json_at(events, 0), "choices", 0, "text")), "🙂");
	json_free(events);

	/* The limit falls inside the character. */
	struct json *whole = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":2}", 200);
	assert_string_equal(api_bed_text(whole), "\uFFFD");
	assert_string_equal(api_bed_finish(whole), "length");
	json_free(whole);
	events = api_bed_stream(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":2,\"stream\":true}");
	struct text text = api_bed_join(events, 0, &finishes, &reason);
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
		events = api_bed_stream(&f, "/v1/chat/completions", chat);
		text = api_bed_join(events, 0, &finishes, &reason);
		assert_string_equal(text.data, chats[i].expected);
		assert_int_equal(finishes, 1);
		assert_string_equal(reason, "length");
		text_release(&text);
		json_free(events);
	}
	api_bed_close(&f);
}

static void control_tokens_are_not_shown(void **state)
{
	struct api_bed f = api_bed_plain();
	f.fake->pieces[0] = "own";
	int32_t script[] = {'b', 'r', FAKE_PIECES, FAKE_END, '!'};
	memcpy(f.fake->script, script, sizeof(script));
	f.fake->script_count = 5;
	struct json *root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\"}", 200);
	assert_string_equal(api_bed_text(root), "brown!");
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "completion_tokens"), -1), 5);
	json_free(root);
	api_bed_close(&f);
}

static void several_choices_have_their_own_seeds_and_one_prompt_count(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *root = api_bed_ask(
		&f, "/v1/completions", "{\"prompt\":\"abc\",\"n\":3,\"seed\":10,\"max_tokens\":4,\"temperature\":1}", 200);

	assert_int_equal(json_count(json_get(root, "choices")), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(json_int(api_bed_at(root, "choices", i, "index"), -1), i);
		assert_string_equal(json_text(api_bed_at(root, "choices", i, "text")), "Hell");
		assert_int_equal(f.fake->runs[i].sampling.seed, 10 + i);
	}
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "prompt_tokens"), -1), 3);
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "completion_tokens"), -1), 12);
	json_free(root);

	const char *reason = NULL;
	struct json *events = api_bed_stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2,\"max_tokens\":4,\"stream\":true,\"stream_options\":"
		"{\"include_usage\":true}}");
	for (int i = 0; i < 2; i++) {
		int finishes;
		struct text text = api_bed_join(events, i, &finishes, &reason);
		assert_string_equal(text.data, "Hell");
		assert_int_equal(finishes, 1);
		text_release(&text);
	}
	assert_int_equal(
		json_int(json_get(json_get(json_at(events, json_count(events) - 1), "usage"), "completion_tokens"), -1), 8);
	assert_int_not_equal(f.fake->runs[3].sampling.seed, f.fake->runs[4].sampling.seed);
	json_free(events);
	api_bed_close(&f);
}

static void several_prompts_are_answered_in_order(void **state)
{
	struct api_bed f = api_bed_plain();
	struct json *root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":[\"ab\",\"cde\"],\"n\":2,\"max_tokens\":2}", 200);

	assert_int_equal(json_count(json_get(root, "choices")), 4);
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "prompt_tokens"), -1), 5);
	assert_int_equal(f.fake->runs[1].n_prompt, 2);
	assert_int_equal(f.fake->runs[2].n_prompt, 3);
	json_free(root);
	root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":[[65,66],[256]],\"max_tokens\":2}", 200);
	assert_int_equal(f.fake->runs[4].prompt[1], 66);
	assert_int_equal(f.fake->runs[5].prompt[0], FAKE_END);
	json_free(root);
	api_bed_close(&f);
}

static void special_text_stays_text_unless_asked(void **state)
{
	struct api_bed f = api_bed_plain();

	json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"<|end|>\",\"max_tokens\":1}", 200));
	assert_int_equal(f.fake->runs[0].n_prompt, 7);
	json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"<|end|>\",\"max_tokens\":1,\"parse_special\":true}", 200));
	assert_int_equal(f.fake->runs[1].n_prompt, 1);
	json_free(api_bed_ask(
		&f, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"<|end|>\"}],\"max_tokens\":1}", 200));
	int control = 0;
	for (size_t i = 0; i < f.fake->runs[2].n_prompt; i++)
		control += f.fake->runs[2].prompt[i] == FAKE_END;
	assert_int_equal(control, 1); /* the template's own */
	api_bed_close(&f);
}

static void logprobs_of_completions_are_parallel_arrays(void **state)
{
	struct api_bed f = api_bed_plain();
	fake_backend_say(f.fake, "h\xC3\xA9y");
	struct json *root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4,\"logprobs\":2}", 200);
	const struct json *logprobs = api_bed_at(root, "choices", 0, "logprobs");

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
	root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":1,\"logprobs\":3}", 200);
	assert_int_equal(json_count(json_at(json_get(api_bed_at(root, "choices", 0, "logprobs"), "top_logprobs"), 0)), 1);
	json_free(root);
	root = api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"p\",\"max_tokens\":4}", 200);
	assert_int_equal(json_kind_of(api_bed_at(root, "choices", 0, "logprobs")), JSON_KIND_NULL);
	json_free(root);
	api_bed_close(&f);
}

static void logprobs_of_chats_are_objects_in_streams_too(void **state)
{
	struct api_bed f = api_bed_plain();
	fake_backend_say(f.fake, "\xC3\xA9!");
	struct json *root = api_bed_ask(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,\"logprobs\":true,\"top_logprobs\":2}",
		200);
	const struct json *content = json_get(api_bed_at(root, "choices", 0, "logprobs"), "content");
	assert_int_equal(json_count(content), 3);
	assert_int_equal(json_int(json_at(json_get(json_at(content, 0), "bytes"), 0), -1), 0xC3);
	assert_string_equal(json_text(json_get(json_at(content, 0), "token")), "\uFFFD");
	assert_int_equal(json_count(json_get(json_at(content, 2), "top_logprobs")), 2);
	assert_string_equal(json_text(json_get(json_at(json_get(json_at(content, 2), "top_logprobs"), 1), "token")), "\"");
	json_free(root);

	struct json *events = api_bed_stream(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":3,\"logprobs\":true,\"stream\":true}");
	size_t tokens = 0;
	for (size_t i = 0; i < json_count(events); i++)
		tokens += json_count(json_get(api_bed_at(json_at(events, i), "choices", 0, "logprobs"), "content"));
	assert_int_equal(tokens, 3);
	json_free(events);
	api_bed_close(&f);
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
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
