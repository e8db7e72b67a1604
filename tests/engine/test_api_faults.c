/* Tests of the HTTP API when something is wrong: too much asked, a full queue, lost clients, an engine that fails or ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "tests/support/api_bed.h"

static void prompts_beyond_the_context_are_refused_with_both_numbers(void **state)
{
	struct api_bed f = api_bed_plain();
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
		struct json *root = api_bed_ask(&f, "/v1/completions", body.data, cases[i].status);
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
	json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":\"\"}", 400));
	json_free(api_bed_ask(&f, "/v1/completions", "{\"prompt\":[300]}", 400));
	json_free(api_bed_ask(&f, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"far more than twenty tokens\"}]}", 400));
	text_release(&body);
	api_bed_close(&f);
}

static void full_queue_is_429_with_retry_after(void **state)
{
	struct api_bed f = api_bed_plain();
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
	api_bed_close(&f);
}

/* Starts a generation that holds after three tokens, leaves, and sees the engine told, while another client's goes on. */
static void leave_in_the_middle(const char *leaving_body, bool wait_for_text)
{
	struct api_bed f = api_bed_plain();
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
	api_bed_close(&f);
}

static void client_that_leaves_cancels_only_its_own_generation(void **state)
{
	leave_in_the_middle("{\"prompt\":\"b\",\"max_tokens\":12}", false);
	leave_in_the_middle("{\"prompt\":\"b\",\"max_tokens\":12,\"stream\":true}", true);
}

static void every_choice_of_a_lost_client_is_cancelled(void **state)
{
	struct api_bed f = api_bed_plain();
	struct http_client client;
	static const char body[] = "{\"prompt\":[\"a\",\"b\"],\"n\":3,\"max_tokens\":12,\"stream\":true}";

	f.fake->hold_after = 2;
	assert_true(http_client_open(&client, f.port, 0));
	assert_true(http_client_request(&client, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(fake_backend_wait(f.fake, &f.fake->n_runs, 6));
	http_client_close(&client);
	assert_true(fake_backend_wait(f.fake, &f.fake->n_cancelled, 6));
	api_bed_close(&f);
}

static void reader_that_stops_is_cancelled_at_the_queue_limit(void **state)
{
	struct api_bed f = api_bed_open(&(struct api_config){0}, 2000);
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
	api_bed_close(&f);
}

static void engine_error_before_the_first_token_is_a_plain_500(void **state)
{
	struct api_bed f = api_bed_plain();
	static const char *const bodies[] = {"{\"prompt\":\"a\"}", "{\"prompt\":\"a\",\"stream\":true}"};

	f.fake->script_count = 0;
	f.fake->at_end = FINISH_ERROR;
	f.fake->error = "rank 1 is lost";
	for (int i = 0; i < 2; i++) {
		struct json *root = api_bed_ask(&f, "/v1/completions", bodies[i], 500);
		assert_string_equal(json_text(json_get(json_get(root, "error"), "message")), "rank 1 is lost");
		assert_string_equal(json_text(json_get(json_get(root, "error"), "type")), "server_error");
		json_free(root);
	}
	api_bed_close(&f);
}

static void engine_error_in_a_stream_is_an_error_event(void **state)
{
	struct api_bed f = api_bed_plain();
	const char *reason = NULL;
	int finishes;

	f.fake->at_end = FINISH_ERROR;
	f.fake->error = "rank 1 is lost";
	struct json *events = api_bed_stream(
		&f, "/v1/completions", "{\"prompt\":\"a\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
	const struct json *last = json_at(events, json_count(events) - 1);
	assert_string_equal(json_text(json_get(json_get(last, "error"), "message")), "rank 1 is lost");
	struct text text = api_bed_join(events, 0, &finishes, &reason);
	assert_int_equal(finishes, 0);
	text_release(&text);
	json_free(events);
	api_bed_close(&f);
}

static void engine_that_ends_answers_what_was_running(void **state)
{
	struct api_bed f = api_bed_plain();
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
	api_bed_close(&f);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(prompts_beyond_the_context_are_refused_with_both_numbers),
		cmocka_unit_test(full_queue_is_429_with_retry_after),
		cmocka_unit_test(client_that_leaves_cancels_only_its_own_generation),
		cmocka_unit_test(every_choice_of_a_lost_client_is_cancelled),
		cmocka_unit_test(reader_that_stops_is_cancelled_at_the_queue_limit),
		cmocka_unit_test(engine_error_before_the_first_token_is_a_plain_500),
		cmocka_unit_test(engine_error_in_a_stream_is_an_error_event),
		cmocka_unit_test(engine_that_ends_answers_what_was_running),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
