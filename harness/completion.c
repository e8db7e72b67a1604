/* From timed events of JSON to one request_result. */
#include "harness/completion.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

#define ERROR_TEXT_BYTES_MAX 400 /* of a server's own words; enough for a sentence or two */

void completion_begin(struct completion_answer *answer, int http_status, const char *content_type)
{
	answer->http_status = http_status;
	bool is_document = http_status != 200 || (content_type && strncasecmp(content_type, "application/json", 16) == 0);
	answer->form = is_document ? COMPLETION_DOCUMENT : COMPLETION_EVENTS;
}

static bool is_done_marker(const char *data, size_t len)
{
	while (len > 0 && (data[len - 1] == ' ' || data[len - 1] == '\t'))
		len--;
	return len == 6 && memcmp(data, "[DONE]", 6) == 0;
}

static void keep_event(void *ctx, const struct sse_event *event)
{
	struct completion_answer *answer = ctx;
	if (answer->done)
		return;
	answer->end_ns = answer->now_ns;
	if (is_done_marker(event->data, event->len)) {
		answer->done = true;
		return;
	}
	if (answer->n_events == answer->events_capacity) {
		answer->events_capacity = answer->events_capacity ? 2 * answer->events_capacity : 256;
		answer->events = mem_realloc(answer->events, answer->events_capacity, sizeof(answer->events[0]));
	}
	answer->events[answer->n_events++] =
		(struct completion_event){answer->bytes.len, event->len, answer->now_ns, text_equal(event->type, "error")};
	text_append(&answer->bytes, event->data, event->len);
}

enum status completion_feed(struct completion_answer *answer, const char *bytes, size_t len, int64_t at_ns, struct err *err)
{
	if (answer->done)
		return STATUS_OK;
	if (len > COMPLETION_ANSWER_BYTES_MAX - answer->bytes.len)
		return err_set(err, STATUS_INPUT, "the answer is larger than %zu bytes", COMPLETION_ANSWER_BYTES_MAX);
	answer->now_ns = at_ns;
	if (answer->form == COMPLETION_EVENTS)
		return sse_feed(&answer->parser, bytes, len, keep_event, answer, err);
	answer->end_ns = at_ns;
	text_append(&answer->bytes, bytes, len);
	return STATUS_OK;
}

void completion_answer_release(struct completion_answer *answer)
{
	sse_release(&answer->parser);
	text_release(&answer->bytes);
	mem_free(answer->events);
	*answer = (struct completion_answer){0};
}

/* What reading has learnt so far about one answer. */
struct reading {
	struct request_result *out;
	struct text text;
	bool counted; /* usage with a completion count came in an event that was not the last of its stream */
	bool finished; /* a finish reason came */
};

static void fail(struct request_result *out, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Keeps the first reason. */
static void fail(struct request_result *out, const char *format, ...)
{
	if (out->error)
		return;
	struct text text = {0};
	va_list args;
	va_start(args, format);
	text_vprintf(&text, format, args);
	va_end(args);
	out->error = text_take(&text);
}

/* The server's words about an error: {"error": {"message": …}}, {"error": "…"}, {"message": …}. Otherwise the JSON itself. */
static void describe_error(const struct json *document, struct text *out)
{
	const struct json *error = json_get(document, "error");
	const struct json *message = error ? json_get(error, "message") : json_get(document, "message");
	if (!message)
		message = error ? error : document;
	struct text text = {0};
	if (json_text(message))
		utf8_append_lossy(&text, json_text(message), json_text_len(message));
	else
		json_write(message, JSON_STYLE_COMPACT, &text);
	size_t len = text.len < ERROR_TEXT_BYTES_MAX ? text.len : utf8_complete_prefix(text_str(&text), ERROR_TEXT_BYTES_MAX);
	text_append(out, text_str(&text), len);
	text_release(&text);
}

static void fail_with_document(struct request_result *out, const char *what, const struct json *document)
{
	struct text text = {0};
	describe_error(document, &text);
	fail(out, "%s: %s", what, text_str(&text));
	text_release(&text);
}

/* A count a server sent: whole, not negative, believable. -1 otherwise. */
static int read_count(const struct json *value)
{
	int64_t count = json_int(value, -1);
	return count >= 0 && count <= INT_MAX ? (int)count : -1;
}

static void take_count(int *count, const struct json *value)
{
	int read = read_count(value);
	if (read >= 0)
		*count = read;
}

/* Usage as OpenAI names it, with what vLLM, SGLang and the built-in engine add; llama.cpp's timings where there is no usage. */
static void take_usage(struct request_result *out, const struct json *event)
{
	const struct json *usage = json_get(event, "usage");
	const struct json *timings = json_get(event, "timings");
	take_count(&out->prompt_tokens, json_get(usage, "prompt_tokens"));
	take_count(&out->completion_tokens, json_get(usage, "completion_tokens"));
	take_count(&out->cached_tokens, json_get(json_get(usage, "prompt_tokens_details"), "cached_tokens"));
	const struct json *facts = json_get(event, "verdict"); /* the built-in engine's own */
	take_count(&out->drafted, json_get(facts, "drafted"));
	take_count(&out->accepted, json_get(facts, "accepted"));
	if (out->completion_tokens < 0)
		take_count(&out->completion_tokens, json_get(timings, "predicted_n"));
	take_count(&out->cached_tokens, json_get(timings, "cache_n"));
	take_count(&out->drafted, json_get(timings, "draft_n"));
	take_count(&out->accepted, json_get(timings, "draft_n_accepted"));
}

/* NUL cannot be kept in a C string; U+FFFD stands for it. */
static void append_text(struct text *out, const struct json *value)
{
	const char *bytes = json_text(value);
	size_t len = json_text_len(value);
	for (size_t at = 0; bytes && at < len;) {
		const char *nul = memchr(bytes + at, '\0', len - at);
		size_t run = nul ? (size_t)(nul - (bytes + at)) : len - at;
		text_append(out, bytes + at, run);
		at += run;
		if (nul) {
			text_append_str(out, "\xEF\xBF\xBD");
			at++;
		}
	}
}

static bool has_text(const struct json *value)
{
	return json_text_len(value) > 0;
}

/* Text of one choice, streamed or not. True when it carried any output. Reasoning and tool calls are output, but not the text. */
static bool take_choice(struct reading *reading, const struct json *choice)
{
	const struct json *delta = json_get(choice, "delta");
	if (!delta)
		delta = json_get(choice, "message");
	const struct json *content = delta ? json_get(delta, "content") : json_get(choice, "text");
	append_text(&reading->text, content);
	const struct json *finish = json_get(choice, "finish_reason");
	if (json_text(finish)) {
		reading->finished = true;
		snprintf(reading->out->finish_reason, sizeof(reading->out->finish_reason), "%s", json_text(finish));
	}
	return has_text(content) || has_text(json_get(delta, "reasoning_content")) || has_text(json_get(delta, "reasoning")) ||
		json_count(json_get(delta, "tool_calls")) > 0;
}

static void add_arrival(struct request_result *out, int64_t at_ns, int count, size_t capacity)
{
	if (!out->token_times_ns) {
		out->token_times_ns = mem_calloc(capacity, sizeof(out->token_times_ns[0]));
		out->token_counts = mem_calloc(capacity, sizeof(out->token_counts[0]));
		out->first_token_ns = at_ns;
	}
	out->token_times_ns[out->n_times] = at_ns;
	out->token_counts[out->n_times++] = count;
	out->last_token_ns = at_ns;
}

static void take_event(struct reading *reading, const struct json *document, int64_t at_ns, size_t n_events)
{
	struct request_result *out = reading->out;
	const struct json *choice = json_at(json_get(document, "choices"), 0);
	int before = out->completion_tokens;
	take_usage(out, document);
	bool is_open = choice && !json_text(json_get(choice, "finish_reason"));
	bool arrived = choice && take_choice(reading, choice);
	/* A count on an open event means that the server counts as it goes; without that, the first count is the closing total,
	 * which says nothing about when its tokens came. */
	if (is_open && out->completion_tokens >= 0)
		reading->counted = true;
	if (reading->counted && out->completion_tokens > (before > 0 ? before : 0))
		arrived = true;
	if (arrived)
		add_arrival(out, at_ns, reading->counted && out->completion_tokens > 0 ? out->completion_tokens : 0, n_events);
}

static void read_events(struct reading *reading, const struct completion_answer *answer)
{
	struct request_result *out = reading->out;
	for (size_t i = 0; i < answer->n_events && !out->error; i++) {
		const struct completion_event *event = &answer->events[i];
		struct json *document = NULL;
		struct err err = {0};
		if (json_parse(text_str(&answer->bytes) + event->offset, event->len, "event", &document, &err) != STATUS_OK) {
			/* The last event of a cut stream is often half an event; that the stream was cut is what gets reported
			 * then. */
			if (answer->done || i + 1 < answer->n_events)
				fail(out, "event %zu of the stream is not JSON: %.200s", i + 1, err.text);
		} else if (event->is_error || json_kind_of(json_get(document, "error")) != JSON_KIND_NULL)
			fail_with_document(out, "the server reported an error", document);
		else
			take_event(reading, document, event->at_ns, answer->n_events);
		json_free(document);
	}
}

static void read_document(struct reading *reading, const struct completion_answer *answer)
{
	struct request_result *out = reading->out;
	struct json *document = NULL;
	struct err err = {0};
	enum status status = json_parse(text_str(&answer->bytes), answer->bytes.len, "answer", &document, &err);
	char what[48];
	snprintf(what, sizeof(what), "HTTP %d", answer->http_status);
	if (answer->http_status != 200) {
		if (status == STATUS_OK)
			fail_with_document(out, what, document);
		else
			fail(out, "%s: %.200s", what,
				answer->bytes.len && utf8_is_valid(answer->bytes.data, answer->bytes.len) ? answer->bytes.data
													  : "no readable body");
	} else if (status != STATUS_OK) {
		fail(out, "the answer is not JSON: %.200s", err.text);
	} else if (json_kind_of(json_get(document, "error")) != JSON_KIND_NULL) {
		fail_with_document(out, "the server reported an error", document);
	} else if (json_count(json_get(document, "choices")) == 0) {
		fail(out, "the answer holds no choice");
	} else {
		take_usage(out, document);
		take_choice(reading, json_at(json_get(document, "choices"), 0));
		reading->finished = true;
		out->flags |= REQUEST_NOT_STREAMED;
	}
	json_free(document);
}

/* The answer is over: is it whole? */
static void check_end(struct reading *reading, const struct completion_answer *answer, const char *transport_error)
{
	struct request_result *out = reading->out;
	bool is_terminated = answer->done || reading->finished;
	if (!is_terminated && answer->n_events > 0)
		out->flags |= REQUEST_TRUNCATED;
	if (transport_error && !is_terminated)
		fail(out, "%s%s", out->flags & REQUEST_TRUNCATED ? "the stream was truncated: " : "", transport_error);
	if (answer->form == COMPLETION_EVENTS && answer->n_events == 0)
		fail(out, "a 200 answer held no event that could be decoded");
	if (!is_terminated)
		fail(out, "the stream was truncated: it ended without a finish reason or [DONE]");
	if (text_equal(out->finish_reason, "error") || text_equal(out->finish_reason, "abort"))
		fail(out, "the server ended the request with finish reason '%s'", out->finish_reason);
}

static void qualify(struct request_result *out, int expected_tokens)
{
	if (out->completion_tokens < 0)
		out->flags |= REQUEST_NO_USAGE;
	if (out->completion_tokens == 0 || (out->completion_tokens < 0 && out->n_times == 0 && !out->text[0]))
		out->flags |= REQUEST_NO_OUTPUT;
	if (expected_tokens >= 0 && out->completion_tokens >= 0 && out->completion_tokens < expected_tokens)
		out->flags |= REQUEST_SHORT_OUTPUT;
	if (expected_tokens >= 0 && out->completion_tokens > expected_tokens)
		out->flags |= REQUEST_LONG_OUTPUT;
}

void completion_finish(
	struct completion_answer *answer, int expected_tokens, const char *transport_error, struct request_result *out)
{
	int64_t sent_ns = out->sent_ns;
	*out = (struct request_result){.sent_ns = sent_ns,
		.http_status = answer->http_status,
		.prompt_tokens = -1,
		.completion_tokens = -1,
		.cached_tokens = -1,
		.drafted = -1,
		.accepted = -1};
	struct reading reading = {.out = out};
	if (answer->form == COMPLETION_EVENTS) {
		sse_finish(&answer->parser, keep_event, answer);
		read_events(&reading, answer);
	} else if (answer->form == COMPLETION_DOCUMENT && !transport_error) {
		read_document(&reading, answer);
	} else if (!transport_error) {
		fail(out, "the server closed the connection without an answer");
	}
	check_end(&reading, answer, transport_error);
	out->text = text_take(&reading.text);
	out->ok = !out->error;
	out->end_ns = out->last_token_ns > 0 ? out->last_token_ns : answer->end_ns;
	if (out->ok)
		qualify(out, expected_tokens);
}
