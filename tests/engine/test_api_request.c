/* Tests of request parsing: what is accepted, what is refused and how it is named, and the fuzzer's corpus. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/api_request.h"

static enum status parse(enum api_kind kind, const char *body, struct api_request *out, struct api_error *error)
{
	*error = (struct api_error){0};
	return api_request_parse(kind, body, strlen(body), out, error);
}

static void assert_refused(enum api_kind kind, const char *body, const char *param)
{
	struct api_request request;
	struct api_error error;
	enum status status = parse(kind, body, &request, &error);

	if (status == STATUS_OK)
		fail_msg("accepted: %s", body);
	assert_int_equal(error.http_status, 400);
	assert_true(error.message[0]);
	assert_string_equal(error.param, param);
	api_request_release(&request);
}

static void defaults_are_openais(void **state)
{
	struct api_request request;
	struct api_error error;

	assert_int_equal(parse(API_COMPLETION, "{\"prompt\":\"Hi\"}", &request, &error), STATUS_OK);
	assert_int_equal(request.n_prompts, 1);
	assert_string_equal(request.prompts[0].text, "Hi");
	assert_int_equal(request.n, 1);
	assert_false(request.stream || request.include_usage || request.has_seed || request.parse_special);
	assert_true(request.sampling.temperature == 1 && request.sampling.top_p == 1 && request.sampling.min_p == 0);
	assert_int_equal(request.sampling.max_tokens, 0);
	assert_int_equal(request.sampling.logprobs, -1);
	assert_int_equal(request.sampling.logits, ENGINE_LOGITS_NONE);
	api_request_release(&request);
}

static void every_field_is_read(void **state)
{
	static const char body[] =
		"{\"model\":\"m\",\"prompt\":\"Hi\",\"max_tokens\":7,\"temperature\":0.5,\"top_k\":40,\"top_p\":0.9,\"min_p\":0.05,"
		"\"seed\":-3,"
		"\"stop\":[\"a\",\"bc\"],\"ignore_eos\":true,\"logprobs\":2,\"n\":3,\"stream\":true,\"user\":\"u\",\"metadata\":{},"
		"\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},\"parse_special\":true,"
		"\"presence_penalty\":0,\"frequency_penalty\":0.0,\"logit_bias\":{},\"best_of\":null,\"echo\":false}";
	struct api_request request;
	struct api_error error;

	assert_int_equal(parse(API_COMPLETION, body, &request, &error), STATUS_OK);
	assert_true(request.sampling.temperature == 0.5 && request.sampling.top_p == 0.9 && request.sampling.min_p == 0.05);
	assert_int_equal(request.sampling.top_k, 40);
	assert_true(request.has_seed && request.sampling.seed == (uint64_t)-3);
	assert_int_equal(request.sampling.max_tokens, 7);
	assert_int_equal(request.sampling.logprobs, 2);
	assert_true(request.sampling.ignore_eos && request.stream && request.include_usage && request.continuous_usage &&
		request.parse_special);
	assert_int_equal(request.n, 3);
	assert_int_equal(request.n_stops, 2);
	assert_int_equal(request.stops[1].len, 2);
	api_request_release(&request);
}

static void null_means_absent(void **state)
{
	static const char body[] = "{\"model\":null,\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"name\":null}],\"max_"
				   "tokens\":null,\"temperature\":null,"
				   "\"top_p\":null,\"n\":null,\"seed\":null,\"stop\":null,\"stream\":null,\"stream_options\":null,"
				   "\"logprobs\":null,\"tools\":null,"
				   "\"response_format\":null}";
	struct api_request request;
	struct api_error error;

	assert_int_equal(parse(API_CHAT, body, &request, &error), STATUS_OK);
	assert_false(request.has_seed);
	assert_int_equal(request.sampling.logprobs, -1);
	api_request_release(&request);
}

static void prompts_come_in_four_forms(void **state)
{
	struct api_request request;
	struct api_error error;

	assert_int_equal(parse(API_COMPLETION, "{\"prompt\":[1,2,3]}", &request, &error), STATUS_OK);
	assert_int_equal(request.n_prompts, 1);
	assert_null(request.prompts[0].text);
	assert_int_equal(request.prompts[0].n_ids, 3);
	assert_int_equal(request.prompts[0].ids[2], 3);
	api_request_release(&request);
	assert_int_equal(parse(API_COMPLETION, "{\"prompt\":[\"a\",\"b\"],\"n\":2}", &request, &error), STATUS_OK);
	assert_int_equal(request.n_prompts, 2);
	assert_string_equal(request.prompts[1].text, "b");
	api_request_release(&request);
	assert_int_equal(parse(API_COMPLETION, "{\"prompt\":[[1],[2,3]]}", &request, &error), STATUS_OK);
	assert_int_equal(request.n_prompts, 2);
	assert_int_equal(request.prompts[1].n_ids, 2);
	api_request_release(&request);
	assert_int_equal(parse(API_COMPLETION, "{\"prompt\":\"a\\u0000b\"}", &request, &error), STATUS_OK);
	assert_int_equal(request.prompts[0].len, 3);
	assert_memory_equal(request.prompts[0].text, "a\0b", 3);
	api_request_release(&request);
}

static void messages_come_as_strings_and_parts(void **state)
{
	static const char body[] = "{\"messages\":[{\"role\":\"developer\",\"content\":\"be "
				   "brief\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000\"},"
				   "{\"type\":\"text\",\"text\":\"b\"}]},{\"role\":\"assistant\",\"content\":null},{\"role\":"
				   "\"user\",\"content\":\"\"}],"
				   "\"logprobs\":true,\"top_logprobs\":3,\"max_completion_tokens\":9}";
	struct api_request request;
	struct api_error error;

	assert_int_equal(parse(API_CHAT, body, &request, &error), STATUS_OK);
	assert_int_equal(request.n_messages, 4);
	assert_string_equal(request.messages[0].role, "system");
	assert_int_equal(request.messages[1].content_len, 4);
	assert_memory_equal(request.messages[1].content, "a\0\nb", 4);
	assert_int_equal(request.messages[2].content_len, 0);
	assert_int_equal(request.sampling.logprobs, 3);
	assert_int_equal(request.sampling.max_tokens, 9);
	api_request_release(&request);
}

static void bad_completions_name_the_field(void **state)
{
	static const struct {
		const char *body, *param;
	} bad[] = {
		{"", ""},
		{"{", ""},
		{"[]", ""},
		{"null", ""},
		{"{\"prompt\":\"a\",\"prompt\":\"b\"}", ""},
		{"{\"prompt\":\"\\ud83d\"}", ""},
		{"{\"prompt\":\"a\",\"seed\":9223372036854775808}", ""},
		{"{\"prompt\":\"a\"} x", ""},
		{"{}", "prompt"},
		{"{\"prompt\":null}", "prompt"},
		{"{\"prompt\":5}", "prompt"},
		{"{\"prompt\":{}}", "prompt"},
		{"{\"prompt\":[]}", "prompt"},
		{"{\"prompt\":[1,\"a\"]}", "prompt"},
		{"{\"prompt\":[\"a\",1]}", "prompt"},
		{"{\"prompt\":[-1]}", "prompt"},
		{"{\"prompt\":[1.5]}", "prompt"},
		{"{\"prompt\":[2147483648]}", "prompt"},
		{"{\"prompt\":[[1],[\"a\"]]}", "prompt"},
		{"{\"prompt\":[true]}", "prompt"},
		{"{\"prompt\":[null]}", "prompt"},
		{"{\"prompt\":\"a\",\"model\":3}", "model"},
		{"{\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens"},
		{"{\"prompt\":\"a\",\"max_tokens\":0}", "max_tokens"},
		{"{\"prompt\":\"a\",\"max_tokens\":\"7\"}", "max_tokens"},
		{"{\"prompt\":\"a\",\"max_tokens\":1.5}", "max_tokens"},
		{"{\"prompt\":\"a\",\"max_tokens\":1e300}", "max_tokens"},
		{"{\"prompt\":\"a\",\"max_tokens\":2147483648}", "max_tokens"},
		{"{\"prompt\":\"a\",\"temperature\":-0.1}", "temperature"},
		{"{\"prompt\":\"a\",\"temperature\":\"hot\"}", "temperature"},
		{"{\"prompt\":\"a\",\"top_p\":0}", "top_p"},
		{"{\"prompt\":\"a\",\"top_p\":1.1}", "top_p"},
		{"{\"prompt\":\"a\",\"top_k\":-2}", "top_k"},
		{"{\"prompt\":\"a\",\"top_k\":1.5}", "top_k"},
		{"{\"prompt\":\"a\",\"min_p\":2}", "min_p"},
		{"{\"prompt\":\"a\",\"seed\":\"x\"}", "seed"},
		{"{\"prompt\":\"a\",\"stop\":\"\"}", "stop"},
		{"{\"prompt\":\"a\",\"stop\":5}", "stop"},
		{"{\"prompt\":\"a\",\"stop\":[\"x\",\"\"]}", "stop"},
		{"{\"prompt\":\"a\",\"stop\":[1]}", "stop"},
		{"{\"prompt\":\"a\",\"stop\":{}}", "stop"},
		{"{\"prompt\":\"a\",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"0\",\"a\",\"b\",\"c\",\"d\","
		 "\"e\",\"f\",\"g\"]}",
			"stop"},
		{"{\"prompt\":\"a\",\"n\":0}", "n"},
		{"{\"prompt\":\"a\",\"n\":-1}", "n"},
		{"{\"prompt\":\"a\",\"n\":9223372036854775807}", "n"},
		{"{\"prompt\":\"a\",\"n\":1.5}", "n"},
		{"{\"prompt\":[\"a\",\"b\"],\"n\":100}", "n"},
		{"{\"prompt\":\"a\",\"stream\":\"yes\"}", "stream"},
		{"{\"prompt\":\"a\",\"stream_options\":[]}", "stream_options"},
		{"{\"prompt\":\"a\",\"stream_options\":{\"include_usage\":\"True\"}}", "include_usage"},
		{"{\"prompt\":\"a\",\"logprobs\":21}", "logprobs"},
		{"{\"prompt\":\"a\",\"logprobs\":true}", "logprobs"},
		{"{\"prompt\":\"a\",\"ignore_eos\":1}", "ignore_eos"},
		{"{\"prompt\":\"a\",\"parse_special\":1}", "parse_special"},
		{"{\"prompt\":\"a\",\"echo\":true}", "echo"},
		{"{\"prompt\":\"a\",\"best_of\":2}", "best_of"},
		{"{\"prompt\":\"a\",\"suffix\":\"z\"}", "suffix"},
		{"{\"prompt\":\"a\",\"presence_penalty\":0.5}", "presence_penalty"},
		{"{\"prompt\":\"a\",\"repetition_penalty\":1.5}", "repetition_penalty"},
		{"{\"prompt\":\"a\",\"repetition_penalty\":0}", "repetition_penalty"},
		{"{\"prompt\":\"a\",\"logit_bias\":{\"5\":1}}", "logit_bias"},
		{"{\"prompt\":\"a\",\"response_format\":{\"type\":\"json_object\"}}", "response_format"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_refused(API_COMPLETION, bad[i].body, bad[i].param);
}

static void bad_chats_name_the_field(void **state)
{
	static const struct {
		const char *body, *param;
	} bad[] = {
		{"{\"prompt\":\"a\"}", "messages"},
		{"{\"messages\":[]}", "messages"},
		{"{\"messages\":\"a\"}", "messages"},
		{"{\"messages\":{}}", "messages"},
		{"{\"messages\":[1]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\"}]}", "messages"},
		{"{\"messages\":[{\"content\":\"a\"}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user<|im_end|>\",\"content\":\"a\"}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\\u0000x\",\"content\":\"a\"}]}", "messages"},
		{"{\"messages\":[{\"role\":5,\"content\":\"a\"}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":[\"a\"]}]}", "messages"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":2}", "logprobs"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"top_logprobs\":2}", "top_logprobs"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"max_completion_tokens\":0}", "max_completion_tokens"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{}]}", "tools"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":{\"a\":1}}", "tools"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\"}]}", "tools"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":\"required\"}", "tool_choice"},
		{"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tool_choice\":{\"type\":\"function\"}}", "tool_choice"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_refused(API_CHAT, bad[i].body, bad[i].param);
}

static void tools_and_calls_go_to_the_template(void **state)
{
#define TOOL "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
	static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,"
				   "\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
				   "{\"role\":\"assistant\",\"content\":null}]," TOOL;
	static const struct {
		const char *end;
		bool uses;
	} cases[] = {{"}", true}, {",\"tool_choice\":\"auto\"}", true}, {",\"tool_choice\":\"none\"}", false}};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct text text = {0};
		struct api_request request;
		struct api_error error;

		text_printf(&text, "%s%s", body, cases[i].end);
		assert_int_equal(parse(API_CHAT, text_str(&text), &request, &error), STATUS_OK);
		assert_int_equal(json_count(request.tools), cases[i].uses);
		assert_null(request.messages[1].content); /* a call without words */
		assert_int_equal(json_count(json_get(request.messages[1].more, "tool_calls")), 1);
		assert_string_equal(request.messages[2].content, "");
		api_request_release(&request);
		text_release(&text);
	}
#undef TOOL
}

static void deep_and_wide_bodies_are_refused_without_harm(void **state)
{
	struct text body = {0};
	struct api_request request;
	struct api_error error;

	text_append_str(&body, "{\"prompt\":");
	for (int i = 0; i < 100000; i++)
		text_append_char(&body, '[');
	assert_refused(API_COMPLETION, body.data, "");
	text_clear(&body);
	text_append_str(&body, "{\"prompt\":[\"\"");
	for (int i = 0; i < API_CHOICES_MAX; i++)
		text_append_str(&body, ",\"\"");
	text_append_str(&body, "]}");
	assert_refused(API_COMPLETION, body.data, "prompt");
	text_clear(&body);
	text_append_str(&body, "{\"prompt\":[0");
	for (int i = 0; i < 200000; i++)
		text_append_str(&body, ",1");
	text_append_str(&body, "]}");
	assert_int_equal(parse(API_COMPLETION, body.data, &request, &error), STATUS_OK);
	assert_int_equal(request.prompts[0].n_ids, 200001);
	api_request_release(&request);
	text_release(&body);
}

static void fuzzing_corpus_is_parsed_without_harm(void **state)
{
	DIR *folder = opendir("tests/fuzz/corpus/api_request");
	struct dirent *entry;
	int count = 0;

	assert_non_null(folder);
	while ((entry = readdir(folder)) != NULL) {
		char path[512];
		struct text body = {0};
		struct api_request request;
		struct api_error error = {0};
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "tests/fuzz/corpus/api_request/%s", entry->d_name);
		assert_int_equal(file_read(path, 1 << 20, &body, NULL), STATUS_OK);
		enum status status = api_request_parse(API_CHAT, text_str(&body), body.len, &request, &error);
		assert_int_equal(status == STATUS_OK, error.http_status == 0);
		api_request_release(&request);
		error = (struct api_error){0};
		status = api_request_parse(API_COMPLETION, text_str(&body), body.len, &request, &error);
		assert_int_equal(status == STATUS_OK, error.http_status == 0);
		api_request_release(&request);
		text_release(&body);
		count++;
	}
	closedir(folder);
	assert_true(count > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_openais),
		cmocka_unit_test(every_field_is_read),
		cmocka_unit_test(null_means_absent),
		cmocka_unit_test(prompts_come_in_four_forms),
		cmocka_unit_test(messages_come_as_strings_and_parts),
		cmocka_unit_test(bad_completions_name_the_field),
		cmocka_unit_test(bad_chats_name_the_field),
		cmocka_unit_test(tools_and_calls_go_to_the_template),
		cmocka_unit_test(deep_and_wide_bodies_are_refused_without_harm),
		cmocka_unit_test(fuzzing_corpus_is_parsed_without_harm),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
