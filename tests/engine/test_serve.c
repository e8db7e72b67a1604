/* Tests of the server as a process, with the real engine on tiny models: start, answers, lost clients, limits, stop. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "tests/support/http_client.h"
#include "tests/support/server_process.h"
#include "tests/support/sizes.h"
#include "tests/support/tiny_gguf.h"

#ifdef __SANITIZE_THREAD__
#define RANK_LOSS_NS 5000000000 /* that sanitizer sleeps a second in exit */
#else
#define RANK_LOSS_NS 1000000000
#endif

#define ARGUMENTS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGUMENTS ((const char *const[]){NULL})

static char model_path[TINY_PATH_BYTES];

static int make_model(void **state)
{
	struct tiny_model model = tiny_model_default();
	model.context = 8192; /* long enough that a generation can be interrupted */
	model.chat_template = true;
	tiny_model_write_temp(&model, model_path);
	return 0;
}

static int remove_model(void **state)
{
	return unlink(model_path);
}

static struct json *ask(const struct server_process *server, const char *path, const char *body, int expected_status)
{
	struct http_client_reply reply;
	struct json *root = NULL;
	struct err err = {0};

	assert_true(http_client_once(server->port, path, body, &reply));
	if (reply.status != expected_status)
		fail_msg("%s %s: status %d, %s", path, body ? body : "", reply.status, text_str(&reply.body));
	if (json_parse(text_str(&reply.body), reply.body.len, "reply", &root, &err) != STATUS_OK)
		fail_msg("%s in %s", err.text, text_str(&reply.body));
	http_client_reply_release(&reply);
	return root;
}

/* Text of a choice, with NULs (random models say them) made visible. Static storage for two calls at a time. */
static const char *text_of(const struct json *root, size_t index)
{
	static char kept[2][65536];
	static int turn;
	const struct json *text = json_get(json_at(json_get(root, "choices"), index), "text");
	char *out = kept[turn ^= 1];

	if (!json_text(text))
		return NULL;
	size_t len = json_text_len(text);
	assert_true(len < sizeof(kept[0]));
	memcpy(out, json_text(text), len + 1);
	for (size_t i = 0; i < len; i++)
		if (!out[i])
			out[i] = '0';
	return out;
}

/* The joined text of a streamed completion. */
static struct text streamed_text(const struct server_process *server, const char *body)
{
	struct http_client_reply reply;
	struct text out = {0};

	assert_true(http_client_once(server->port, "/v1/completions", body, &reply));
	assert_int_equal(reply.status, 200);
	for (char *at = reply.body.data, *end; (end = strstr(at, "\n\n")) != NULL; at = end + 2) {
		struct json *event = NULL;
		*end = '\0';
		if (strcmp(at, "data: [DONE]") == 0)
			continue;
		assert_int_equal(json_parse(at + 6, strlen(at + 6), "event", &event, NULL), STATUS_OK);
		const char *piece = text_of(event, 0);
		text_append_str(&out, piece ? piece : "");
		json_free(event);
	}
	http_client_reply_release(&reply);
	return out;
}

/* Value of a series in /metrics, -1 when it is not there. */
static double metric(const struct server_process *server, const char *series)
{
	struct http_client_reply reply;
	double value = -1;

	assert_true(http_client_once(server->port, "/metrics", NULL, &reply));
	const char *at = strstr(text_str(&reply.body), series);
	while (at && at > reply.body.data && at[-1] != '\n')
		at = strstr(at + 1, series);
	if (at)
		value = strtod(at + strlen(series), NULL);
	http_client_reply_release(&reply);
	return value;
}

static bool metric_reaches(const struct server_process *server, const char *series, double value)
{
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;

	while (metric(server, series) != value) {
		if (clock_monotonic_ns() > deadline_ns)
			return false;
	}
	return true;
}

static void server_echoes_its_nonce_and_ends_with_0_on_sigterm(void **state)
{
	struct server_process server;
	struct http_client_reply reply;
	char value[256];

	server_start(&server, model_path, "launch-17", NO_ARGUMENTS, true);
	assert_true(http_client_once(server.port, "/health", NULL, &reply));
	assert_string_equal(http_client_header(&reply, "X-Verdict-Nonce", value), "launch-17");
	assert_non_null(strstr(reply.body.data, "\"nonce\":\"launch-17\""));
	http_client_reply_release(&reply);
	struct json *config = ask(&server, "/config", NULL, 200);
	assert_string_equal(json_text(json_get(config, "nonce")), "launch-17");
	assert_int_equal(json_int(json_at(json_get(config, "rank_pids"), 0), 0), server.pid);
	json_free(config);
	int64_t begin_ns = clock_monotonic_ns();
	assert_int_equal(server_stop(&server, SIGTERM), 0);
	assert_true(clock_monotonic_ns() - begin_ns < 5000000000);
}

static void sigint_ends_with_130(void **state)
{
	struct server_process server;
	server_start(&server, model_path, NULL, NO_ARGUMENTS, true);
	assert_int_equal(server_stop(&server, SIGINT), 130);
}

static void signal_during_the_load_ends_at_once(void **state)
{
	for (int i = 0; i < 2; i++) {
		struct server_process server;
		struct text log = {0};
		int64_t deadline_ns = clock_monotonic_ns() + (int64_t)HTTP_CLIENT_WAIT_MS * 1000000;
		server_start(&server, model_path, NULL, i ? ARGUMENTS("--tp", "2") : NO_ARGUMENTS, false);
		do { /* the first thing a server says, before it loads */
			text_clear(&log);
			server_log(&server, &log);
		} while (!strstr(text_str(&log), "listening on") && clock_monotonic_ns() < deadline_ns);
		assert_int_equal(server_stop(&server, SIGTERM), 0);
		text_release(&log);
	}
}

static void port_in_use_ends_with_3_naming_it(void **state)
{
	struct server_process first, second;
	struct text log = {0};
	char port[16], address[64];

	server_start(&first, model_path, NULL, NO_ARGUMENTS, true);
	snprintf(port, sizeof(port), "%d", first.port);
	snprintf(address, sizeof(address), "127.0.0.1:%d", first.port);
	server_start(&second, model_path, NULL, ARGUMENTS("--port", port), false);
	assert_int_equal(server_wait(&second), 3);
	server_log(&second, &log);
	assert_non_null(strstr(text_str(&log), address));
	assert_non_null(strstr(text_str(&log), "{\"error\":\"port_in_use\"}"));
	unlink(second.log_path);
	text_release(&log);
	/* Two servers on free ports live side by side. */
	server_start(&second, model_path, NULL, NO_ARGUMENTS, true);
	assert_int_not_equal(first.port, second.port);
	assert_int_equal(server_stop(&first, SIGTERM), 0);
	json_free(ask(&second, "/health", NULL, 200));
	assert_int_equal(server_stop(&second, SIGTERM), 0);
}

static void bad_starts_end_with_2_or_3_and_a_reason(void **state)
{
	static const struct {
		const char *nonce, *option, *value;
		int code;
		const char *reason;
	} bad[] = {
		{NULL, "--port", "70000", 2, "port"},
		{NULL, "--no-such-switch", "1", 2, "no-such-switch"},
		{NULL, "--api-key", "", 2, "api-key"},
		{NULL, "--speculation", "crystal-ball", 2, "crystal-ball"},
		{NULL, "--host", "no.such.host.invalid", 2, "no.such.host.invalid"},
		{NULL, "--model", "/no/such/file.gguf", 3, "/no/such/file.gguf"},
		{NULL, "--mem-budget", "64KiB", 3, "not_enough_memory"},
		{"two words", "--port", "0", 2, "VERDICT_NONCE"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct server_process server;
		struct text log = {0};
		server_start(&server, model_path, bad[i].nonce, ARGUMENTS(bad[i].option, bad[i].value), false);
		int code = server_wait(&server);
		server_log(&server, &log);
		if (code != bad[i].code && !(code == 2 && strcmp(bad[i].option, "--model") == 0))
			fail_msg("%s %s: exit code %d, %s", bad[i].option, bad[i].value, code, text_str(&log));
		if (!strstr(text_str(&log), bad[i].reason))
			fail_msg("%s %s: %s", bad[i].option, bad[i].value, text_str(&log));
		unlink(server.log_path);
		text_release(&log);
	}
}

static void text_does_not_depend_on_streaming_or_speculation(void **state)
{
	static const char *const settings[][3] = {
		{"--speculation", "off", NULL}, {"--speculation", "ngram", NULL}, {"--tp", "2", NULL}};
	static const char *const bodies[] = {
		"{\"prompt\":\"one two one two one two\",\"max_tokens\":120,\"temperature\":0,\"ignore_eos\":true%s}",
		"{\"prompt\":\"one two one two one two\",\"max_tokens\":120,\"temperature\":1,\"seed\":7,\"ignore_eos\":true%s}",
	};
	char *expected[2] = {NULL, NULL};

	for (size_t s = 0; s < 3; s++) {
		struct server_process server;
		server_start(&server, model_path, NULL, settings[s], true);
		for (size_t b = 0; b < 2; b++) {
			char body[256];
			snprintf(body, sizeof(body), bodies[b], "");
			struct json *whole = ask(&server, "/v1/completions", body, 200);
			snprintf(body, sizeof(body), bodies[b], ",\"stream\":true");
			struct text streamed = streamed_text(&server, body);
			assert_string_equal(text_str(&streamed), text_of(whole, 0));
			if (!expected[b])
				expected[b] = mem_strdup(text_str(&streamed));
			if (s < 2) /* ranks may differ at near ties, where sums round differently */
				assert_string_equal(text_str(&streamed), expected[b]);
			assert_int_equal(json_int(json_get(json_get(whole, "usage"), "completion_tokens"), -1), 120);
			text_release(&streamed);
			json_free(whole);
		}
		assert_int_equal(server_stop(&server, SIGTERM), 0);
	}
	assert_string_not_equal(expected[0], expected[1]);
	mem_free(expected[0]);
	mem_free(expected[1]);
}

static void text_and_its_ids_are_the_same_prompt(void **state)
{
	struct server_process server;
	char body[512] = "{\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true,\"prompt\":[";

	server_start(&server, model_path, NULL, NO_ARGUMENTS, true);
	struct json *tokens = ask(&server, "/tokenize", "{\"content\":\"say hi <|im_end|>\"}", 200);
	size_t count = json_count(json_get(tokens, "tokens"));
	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(body);
		snprintf(body + len, sizeof(body) - len, i ? ",%d" : "%d",
			(int)json_int(json_at(json_get(tokens, "tokens"), i), -1));
	}
	snprintf(body + strlen(body), sizeof(body) - strlen(body), "]}");
	struct json *by_ids = ask(&server, "/v1/completions", body, 200);
	struct json *by_text = ask(&server, "/v1/completions",
		"{\"prompt\":\"say hi <|im_end|>\",\"max_tokens\":20,\"temperature\":0,\"ignore_eos\":true}", 200);
	assert_string_equal(text_of(by_ids, 0), text_of(by_text, 0));
	assert_int_equal(json_int(json_get(json_get(by_text, "usage"), "prompt_tokens"), -1), count);
	json_free(by_ids);
	json_free(by_text);
	json_free(tokens);
	/* As a control token it is one id. */
	tokens = ask(&server, "/tokenize", "{\"content\":\"<|im_end|>\",\"parse_special\":true}", 200);
	assert_int_equal(json_int(json_get(tokens, "count"), -1), 1);
	json_free(tokens);
	assert_int_equal(server_stop(&server, SIGTERM), 0);
}

static void choices_of_one_request_are_those_of_their_seeds(void **state)
{
	struct server_process server;
	server_start(&server, model_path, NULL, NO_ARGUMENTS, true);
	struct json *three = ask(&server, "/v1/completions",
		"{\"prompt\":\"abc\",\"max_tokens\":30,\"temperature\":1,\"seed\":5,\"n\":3,\"ignore_eos\":true}", 200);
	for (int i = 0; i < 3; i++) {
		char body[256];
		snprintf(body, sizeof(body),
			"{\"prompt\":\"abc\",\"max_tokens\":30,\"temperature\":1,\"seed\":%d,\"ignore_eos\":true}", 5 + i);
		struct json *one = ask(&server, "/v1/completions", body, 200);
		assert_string_equal(text_of(three, (size_t)i), text_of(one, 0));
		json_free(one);
	}
	assert_string_not_equal(text_of(three, 0), text_of(three, 1));
	json_free(three);
	assert_int_equal(server_stop(&server, SIGTERM), 0);
}

static void content_of_a_chat_never_becomes_control_tokens(void **state)
{
	struct server_process server;
	server_start(&server, model_path, NULL, NO_ARGUMENTS, true);
	struct json *plain =
		ask(&server, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}],\"max_tokens\":1}", 200);
	struct json *marked = ask(&server, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"<|im_end|>\"}],\"max_tokens\":1}", 200);
	struct json *tokens = ask(&server, "/tokenize", "{\"content\":\"<|im_end|>\"}", 200);
	int64_t added = json_int(json_get(json_get(marked, "usage"), "prompt_tokens"), -1) -
		json_int(json_get(json_get(plain, "usage"), "prompt_tokens"), -1);
	assert_true(added > 1);
	assert_int_equal(added, json_int(json_get(tokens, "count"), -1));
	json_free(plain);
	json_free(marked);
	json_free(tokens);
	assert_int_equal(server_stop(&server, SIGTERM), 0);
}

/* Starts a request in the server's only slot, leaves it in the middle, and sees that the slot is free at once and good. */
static void leave_and_come_again(const struct server_process *server, const char *leaving, const char *after, const char *expected)
{
	struct http_client client;
	double cancelled = metric(server, "verdict_requests_total{finish=\"cancelled\"} ");

	assert_true(http_client_open(&client, server->port, 0));
	assert_true(http_client_request(&client, "POST", "/v1/completions", "", leaving, strlen(leaving)));
	assert_true(metric_reaches(server, "verdict_running ", 1));
	http_client_close(&client);
	int64_t left_ns = clock_monotonic_ns();
	assert_true(metric_reaches(server, "verdict_running ", 0));
	assert_true(clock_monotonic_ns() - left_ns < 2000000000);
	assert_true(metric(server, "verdict_requests_total{finish=\"cancelled\"} ") == cancelled + 1);
	struct json *again = ask(server, "/v1/completions", after, 200);
	assert_string_equal(text_of(again, 0), expected);
	json_free(again);
	assert_true(metric_reaches(server, "verdict_kv_blocks{state=\"used\"} ", 0));
}

static void client_that_leaves_frees_the_only_slot_at_once(void **state)
{
	static const char *const settings[][5] = {
		{"--max-num-seqs", "1", "--speculation", "off", NULL},
		{"--max-num-seqs", "1", "--speculation", "ngram", NULL},
	};
	static const char *const bodies[] = {
		"{\"prompt\":\"one two one two\",\"max_tokens\":8000,\"ignore_eos\":true,\"temperature\":0}",
		"{\"prompt\":\"one two one two\",\"max_tokens\":8000,\"ignore_eos\":true,\"temperature\":0,\"stream\":true}",
		"{\"prompt\":\"one two one two\",\"max_tokens\":8000,\"ignore_eos\":true,\"seed\":4,\"stream\":true}",
	};
	static const char after[] = "{\"prompt\":\"one two one two\",\"max_tokens\":24,\"ignore_eos\":true,\"temperature\":0}";

	for (size_t s = 0; s < 2; s++) {
		struct server_process server;
		server_start(&server, model_path, NULL, settings[s], true);
		struct json *before = ask(&server, "/v1/completions", after, 200);
		char *expected = mem_strdup(text_of(before, 0));
		for (size_t round = 0; round < 6; round++)
			leave_and_come_again(&server, bodies[round % 3], after, expected);
		mem_free(expected);
		json_free(before);
		assert_int_equal(server_stop(&server, SIGTERM), 0);
	}
}

static void queued_client_that_leaves_does_not_disturb_the_running_one(void **state)
{
	static const char body[] =
		"{\"prompt\":\"one two\",\"max_tokens\":" SIZE_LONG_ANSWER ",\"ignore_eos\":true,\"temperature\":0}";
	static const char other[] =
		"{\"prompt\":\"three four\",\"max_tokens\":" SIZE_LONG_ANSWER ",\"ignore_eos\":true,\"stream\":true}";
	struct server_process server;
	struct http_client running, queued;
	struct http_client_reply reply;
	struct json *root = NULL;

	server_start(&server, model_path, NULL, ARGUMENTS("--max-num-seqs", "1", "--queue-max", "1"), true);
	struct json *alone = ask(&server, "/v1/completions", body, 200);
	assert_true(http_client_open(&running, server.port, 0));
	assert_true(http_client_request(&running, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(metric_reaches(&server, "verdict_running ", 1));
	assert_true(http_client_open(&queued, server.port, 0));
	assert_true(http_client_request(&queued, "POST", "/v1/completions", "", other, strlen(other)));
	assert_true(metric_reaches(&server, "verdict_waiting ", 1));
	/* A third finds the queue full. */
	struct json *full = ask(&server, "/v1/completions", body, 429);
	assert_string_equal(json_text(json_get(json_get(full, "error"), "code")), "queue_full");
	json_free(full);
	http_client_close(&queued);
	assert_true(metric_reaches(&server, "verdict_waiting ", 0));
	assert_true(http_client_read(&running, &reply));
	assert_int_equal(reply.status, 200);
	assert_int_equal(json_parse(reply.body.data, reply.body.len, "reply", &root, NULL), STATUS_OK);
	assert_int_equal(json_int(json_get(json_get(root, "usage"), "completion_tokens"), 0),
		json_int(json_get(json_get(alone, "usage"), "completion_tokens"), -1));
	assert_string_equal(text_of(root, 0), text_of(alone, 0));
	json_free(root);
	json_free(alone);
	http_client_reply_release(&reply);
	http_client_close(&running);
	assert_int_equal(server_stop(&server, SIGTERM), 0);
}

static void longest_requests_work_and_longer_ones_are_refused_at_once(void **state)
{
	struct server_process server;
	server_start(&server, model_path, NULL, ARGUMENTS("--max-model-len", "208"), true);
	for (int prompt = 199; prompt <= 209; prompt++) {
		struct text body = {0};
		text_append_str(&body, "{\"max_tokens\":8,\"ignore_eos\":true,\"prompt\":[3");
		for (int i = 1; i < prompt; i++)
			text_printf(&body, ",%d", 3 + i);
		text_append_str(&body, "]}");
		struct json *root = ask(&server, "/v1/completions", body.data, prompt <= 200 ? 200 : 400);
		if (prompt > 200)
			assert_non_null(strstr(json_text(json_get(json_get(root, "error"), "message")), "208"));
		json_free(root);
		json_free(ask(&server, "/v1/completions", "{\"prompt\":\"short\",\"max_tokens\":2}", 200));
		text_release(&body);
	}
	assert_int_equal(server_stop(&server, SIGTERM), 0);
}

static void running_requests_are_answered_when_the_server_stops(void **state)
{
	static const char body[] = "{\"prompt\":\"one two\",\"max_tokens\":8000,\"ignore_eos\":true,\"stream\":true}";
	struct server_process server;
	struct http_client client;
	struct http_client_reply reply;

	server_start(&server, model_path, NULL, NO_ARGUMENTS, true);
	assert_true(http_client_open(&client, server.port, 0));
	assert_true(http_client_request(&client, "POST", "/v1/completions", "", body, strlen(body)));
	assert_true(http_client_wait_for(&client, "data: "));
	assert_int_equal(server_stop(&server, SIGTERM), 0);
	assert_true(http_client_read(&client, &reply));
	assert_non_null(strstr(reply.body.data, "\"code\":\"cancelled\""));
	http_client_reply_release(&reply);
	http_client_close(&client);
}

static void lost_rank_ends_the_server_with_4(void **state)
{
	struct server_process server;
	struct text log = {0};

	server_start(&server, model_path, NULL, ARGUMENTS("--tp", "2"), true);
	struct json *config = ask(&server, "/config", NULL, 200);
	pid_t rank = (pid_t)json_int(json_at(json_get(config, "rank_pids"), 1), 0);
	json_free(config);
	assert_true(rank > 1 && rank != server.pid);
	int64_t begin_ns = clock_monotonic_ns();
	kill(rank, SIGKILL);
	assert_int_equal(server_wait(&server), 4);
	assert_true(clock_monotonic_ns() - begin_ns < RANK_LOSS_NS);
	server_log(&server, &log);
	assert_non_null(strstr(text_str(&log), "rank 1"));
	unlink(server.log_path);
	text_release(&log);
}

/* Whoever starts the server hears of it, not the first client; what needs no template works. */
static void a_chat_template_that_cannot_be_rendered_is_told_at_start(void **state)
{
	struct tiny_model model = tiny_model_default();
	struct server_process server;
	struct text log = {0};
	char path[TINY_PATH_BYTES];

	model.broken_template = "{{ messages | frob }}";
	tiny_model_write_temp(&model, path);
	server_start(&server, path, NULL, NO_ARGUMENTS, true);
	server_log(&server, &log);
	assert_non_null(strstr(text_str(&log), "chat completions will be refused: line 1 of the chat template: filter 'frob'"));
	json_free(ask(&server, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":1}", 200));
	json_free(ask(&server, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", 400));
	assert_int_equal(server_stop(&server, SIGTERM), 0);
	unlink(path);
	text_release(&log);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(server_echoes_its_nonce_and_ends_with_0_on_sigterm),
		cmocka_unit_test(sigint_ends_with_130),
		cmocka_unit_test(signal_during_the_load_ends_at_once),
		cmocka_unit_test(port_in_use_ends_with_3_naming_it),
		cmocka_unit_test(bad_starts_end_with_2_or_3_and_a_reason),
		cmocka_unit_test(text_does_not_depend_on_streaming_or_speculation),
		cmocka_unit_test(text_and_its_ids_are_the_same_prompt),
		cmocka_unit_test(choices_of_one_request_are_those_of_their_seeds),
		cmocka_unit_test(content_of_a_chat_never_becomes_control_tokens),
		cmocka_unit_test(client_that_leaves_frees_the_only_slot_at_once),
		cmocka_unit_test(queued_client_that_leaves_does_not_disturb_the_running_one),
		cmocka_unit_test(longest_requests_work_and_longer_ones_are_refused_at_once),
		cmocka_unit_test(running_requests_are_answered_when_the_server_stops),
		cmocka_unit_test(lost_rank_ends_the_server_with_4),
		cmocka_unit_test(a_chat_template_that_cannot_be_rendered_is_told_at_start),
	};
	return cmocka_run_group_tests(tests, make_model, remove_model);
}
