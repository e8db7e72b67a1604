/* Prompts and bodies: the same for every arm, different for every run, within the vocabulary. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "harness/workload.h"

static struct workload ids_workload(void)
{
	return (struct workload){.name = "w",
		.endpoint = "/v1/completions",
		.concurrency = 2,
		.requests = 4,
		.dataset = DATASET_RANDOM_IDS,
		.input_len = 16,
		.output_len = 32,
		.seed = 5,
		.ignore_eos = true,
		.hash = "abc"};
}

static struct json *parse(const struct client_body *body)
{
	struct json *document = NULL;
	assert_int_equal(json_parse(body->bytes, body->len, "body", &document, NULL), STATUS_OK);
	return document;
}

static void build(const struct workload *workload, int run, struct request_bodies *out)
{
	struct request_style style = {.model = "m"};
	*out = (struct request_bodies){0};
	workload_build_run(workload, run, run < WORKLOAD_WARMUP_RUN ? workload->requests : 2, 2, &style, 1000, out);
}

static bool same(const struct client_body *a, const struct client_body *b)
{
	return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

static void a_body_asks_for_what_the_workload_says(void **state)
{
	struct workload workload = ids_workload();
	struct request_bodies bodies;
	build(&workload, 0, &bodies);
	assert_int_equal(bodies.count, 4);
	assert_int_equal(bodies.items[0].expected_tokens, 32);
	struct json *body = parse(&bodies.items[0]);
	assert_string_equal(json_text(json_get(body, "model")), "m");
	assert_int_equal(json_int(json_get(body, "max_tokens"), 0), 32);
	assert_true(json_bool(json_get(body, "ignore_eos"), false));
	assert_true(json_bool(json_get(body, "stream"), false));
	assert_true(json_bool(json_get(json_get(body, "stream_options"), "include_usage"), false));
	assert_null(json_get(json_get(body, "stream_options"), "continuous_usage_stats"));
	assert_null(json_get(body, "seed"));
	const struct json *prompt = json_get(body, "prompt");
	assert_int_equal(json_count(prompt), 16);
	for (size_t i = 0; i < 16; i++) {
		int64_t id = json_int(json_at(prompt, i), -1);
		assert_true(id >= 125 && id < 875); /* neither end of a vocabulary of 1000 */
	}
	json_free(body);
	request_bodies_release(&bodies);
}

static void prompts_are_repeatable_and_differ_between_requests_runs_and_warm_up(void **state)
{
	struct workload workload = ids_workload();
	struct request_bodies first, again, second, warmup;
	build(&workload, 0, &first);
	build(&workload, 0, &again);
	build(&workload, 1, &second);
	build(&workload, WORKLOAD_WARMUP_RUN, &warmup);
	for (size_t i = 0; i < 4; i++) {
		assert_true(same(&first.items[i], &again.items[i]));
		for (size_t j = 0; j < 4; j++)
			assert_false(same(&first.items[i], &second.items[j]));
		assert_false(same(&first.items[i], &warmup.items[0]));
		assert_false(i > 0 && same(&first.items[i], &first.items[0]));
	}
	request_bodies_release(&first);
	request_bodies_release(&again);
	request_bodies_release(&second);
	request_bodies_release(&warmup);
}

static void a_warm_cache_gets_the_same_prompts_in_every_run(void **state)
{
	struct workload workload = ids_workload();
	workload.cache = CACHE_WARM;
	struct request_bodies first, second;
	build(&workload, 0, &first);
	build(&workload, 1, &second);
	for (size_t i = 0; i < 4; i++)
		assert_true(same(&first.items[i], &second.items[i]));
	request_bodies_release(&first);
	request_bodies_release(&second);
}

static void texts_go_as_chat_messages_and_no_two_begin_alike(void **state)
{
	struct prompt prompts[] = {{.text = "one"}, {.text = "two"}, {.text = "three"}};
	struct workload workload = {.endpoint = "/v1/chat/completions",
		.requests = 2,
		.dataset = DATASET_TEXT,
		.prompts = {prompts, 3},
		.output_len = 8,
		.temperature = 0.5,
		.hash = "h"};
	struct text seen = {0};
	for (int run = 0; run <= 2; run++) {
		struct request_bodies bodies;
		build(&workload, run < 2 ? run : WORKLOAD_WARMUP_RUN, &bodies);
		for (size_t i = 0; i < bodies.count; i++) {
			struct json *body = parse(&bodies.items[i]);
			const struct json *message = json_at(json_get(body, "messages"), 0);
			assert_string_equal(json_text(json_get(message, "role")), "user");
			assert_true(json_int(json_get(body, "seed"), -1) >= 0);
			assert_null(json_get(body, "prompt"));
			text_printf(&seen, "%s|", json_text(json_get(message, "content")));
			json_free(body);
		}
		request_bodies_release(&bodies);
	}
	assert_string_equal(text_str(&seen), "one|two|three|2. one|2. two|2. three|");
	text_release(&seen);
}

static void manners_of_a_server_are_respected(void **state)
{
	struct request_bodies bodies = {0};
	struct request_style style = {.chat = false, .max_tokens = 3, .continuous_usage = true, .no_prompt_cache = true};
	request_bodies_add_text(&bodies, &style, "say \"x\"\n");
	struct json *body = parse(&bodies.items[0]);
	assert_null(json_get(body, "model"));
	assert_null(json_get(body, "ignore_eos"));
	assert_true(json_bool(json_get(json_get(body, "stream_options"), "continuous_usage_stats"), false));
	assert_false(json_bool(json_get(body, "cache_prompt"), true));
	assert_string_equal(json_text(json_get(body, "prompt")), "say \"x\"\n");
	json_free(body);
	request_bodies_release(&bodies);
}

static void fingerprints_are_fixed_greedy_prompts(void **state)
{
	struct request_style style = {.temperature = 1};
	struct request_bodies bodies = {0};
	workload_build_fingerprint(10, 99, &style, &bodies);
	assert_int_equal(bodies.count, 10);
	for (size_t i = 0; i < 10; i++) {
		struct json *body = parse(&bodies.items[i]);
		assert_float_equal(json_number(json_get(body, "temperature"), -1), 0, 0);
		assert_int_equal(json_int(json_get(body, "max_tokens"), 0), i ? WORKLOAD_FINGERPRINT_TOKENS : 99);
		json_free(body);
		for (size_t j = 0; j < i; j++)
			assert_false(same(&bodies.items[i], &bodies.items[j]));
	}
	request_bodies_release(&bodies);
}

static void a_fingerprint_is_as_long_as_what_is_measured_within_limits(void **state)
{
	struct workload workloads[] = {{.output_len = 10}, {.output_len = 100}, {.output_len = 1000}};
	assert_int_equal(workload_fingerprint_tokens(workloads, 1), 24);
	assert_int_equal(workload_fingerprint_tokens(workloads, 2), 100);
	assert_int_equal(workload_fingerprint_tokens(workloads, 3), 256);
}

static void tiny_vocabularies_are_survived(void **state)
{
	struct workload workload = ids_workload();
	struct request_style style = {0};
	for (int vocabulary = 1; vocabulary < 20; vocabulary++) {
		struct request_bodies bodies = {0};
		workload_build_run(&workload, 0, 1, 1, &style, vocabulary, &bodies);
		struct json *body = parse(&bodies.items[0]);
		for (size_t i = 0; i < 16; i++) {
			int64_t id = json_int(json_at(json_get(body, "prompt"), i), -1);
			assert_true(id >= 0 && id < vocabulary);
		}
		json_free(body);
		request_bodies_release(&bodies);
	}
}

static void made_up_words_are_as_many_as_asked(void **state)
{
	struct text text = {0}, other = {0};
	workload_words(1, 50, &text);
	workload_words(2, 50, &other);
	int spaces = 0;
	for (const char *c = text_str(&text); *c; c++)
		spaces += *c == ' ';
	assert_int_equal(spaces, 50);
	assert_string_not_equal(text_str(&text), text_str(&other));
	text_release(&text);
	text_release(&other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_body_asks_for_what_the_workload_says),
		cmocka_unit_test(prompts_are_repeatable_and_differ_between_requests_runs_and_warm_up),
		cmocka_unit_test(a_warm_cache_gets_the_same_prompts_in_every_run),
		cmocka_unit_test(texts_go_as_chat_messages_and_no_two_begin_alike),
		cmocka_unit_test(manners_of_a_server_are_respected),
		cmocka_unit_test(fingerprints_are_fixed_greedy_prompts),
		cmocka_unit_test(a_fingerprint_is_as_long_as_what_is_measured_within_limits),
		cmocka_unit_test(tiny_vocabularies_are_survived),
		cmocka_unit_test(made_up_words_are_as_many_as_asked),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
