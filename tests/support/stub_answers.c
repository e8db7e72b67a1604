/* How the stub server answers completions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/stub_internal.h"

bool stub_has_fraud(const struct stub *stub, const char *name)
{
	return text_equal(stub->fraud, name);
}

bool stub_send_all(int fd, const char *bytes, size_t len)
{
	while (len > 0) {
		ssize_t sent = send(fd, bytes, len, MSG_NOSIGNAL);
		if (sent <= 0)
			return false;
		bytes += sent;
		len -= (size_t)sent;
	}
	return true;
}

void stub_answer(int fd, int status, const char *type, const char *body)
{
	struct text text = {0};
	text_printf(&text, "HTTP/1.1 %d Stub\r\nContent-Type: %s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", status,
		type, strlen(body), body);
	stub_send_all(fd, text.data, text.len);
	text_release(&text);
}

void stub_answer_error(int fd, int status, const char *message)
{
	struct text text = {0};
	text_printf(&text, "{\"error\":{\"message\":\"%s\",\"type\":\"stub\",\"code\":%d}}", message, status);
	stub_answer(fd, status, "application/json", text_str(&text));
	text_release(&text);
}

static bool send_chunk(int fd, const char *bytes, size_t len)
{
	struct text text = {0};
	text_printf(&text, "%zx\r\n", len);
	text_append(&text, bytes, len);
	text_append_str(&text, "\r\n");
	bool sent = stub_send_all(fd, text.data, text.len);
	text_release(&text);
	return sent;
}

static bool send_event(int fd, struct json *event)
{
	struct text text = {0};
	text_append_str(&text, "data: ");
	json_write(event, JSON_STYLE_COMPACT, &text);
	text_append_str(&text, "\n\n");
	json_free(event);
	bool sent = send_chunk(fd, text.data, text.len);
	text_release(&text);
	return sent;
}

static struct json *new_event(bool chat, const char *content, const char *finish)
{
	struct json *event = json_new_object(), *choices = json_new_array(), *choice = json_new_object();
	json_set(choice, "index", json_new_integer(0));
	if (chat) {
		struct json *delta = json_new_object();
		json_set(delta, "content", json_new_string(content));
		json_set(choice, "delta", delta);
	} else {
		json_set(choice, "text", json_new_string(content));
	}
	json_set(choice, "finish_reason", json_new_string(finish));
	json_append(choices, choice);
	json_set(event, "choices", choices);
	return event;
}

/* What the settings do to the time of a token. */
static double slowness(const struct stub *stub)
{
	double times = 1;
	if (text_equal(stub->speculation, "ngram"))
		times /= 4;
	if (text_equal(stub->allreduce, "ref-socket"))
		times *= 3;
	return times;
}

static struct json *new_usage_event(const struct stub *stub, long long prompt_tokens, long long tokens)
{
	struct json *event = json_new_object(), *usage = json_new_object(), *details = json_new_object();
	json_set(details, "cached_tokens",
		json_new_integer(stub_has_fraud(stub, "warm-cache") ? prompt_tokens : stub->cached_tokens));
	json_set(usage, "prompt_tokens", json_new_integer(prompt_tokens));
	json_set(usage, "completion_tokens", json_new_integer(tokens));
	json_set(usage, "prompt_tokens_details", details);
	json_set(event, "choices", json_new_array());
	json_set(event, "usage", usage);
	if (stub->tells_acceptance) {
		struct json *facts = json_new_object();
		json_set(facts, "drafted", json_new_integer(1200));
		json_set(facts, "accepted", json_new_integer((long long)(240 / slowness(stub) + 0.5)));
		json_set(event, "verdict", facts);
	}
	return event;
}

/* llama.cpp tells its counts as timings of the last event. */
static struct json *new_timings(long long tokens)
{
	struct json *timings = json_new_object();
	json_set(timings, "cache_n", json_new_integer(0));
	json_set(timings, "predicted_n", json_new_integer(tokens));
	return timings;
}

/* Milliseconds per token under the settings: what a benchmark of this "engine" must find. */
static double token_ms(const struct stub *stub)
{
	double ms = stub->token_ms * slowness(stub);
	if (stub_has_fraud(stub, "wrong-text") || stub_has_fraud(stub, "one-token") || stub_has_fraud(stub, "warm-cache"))
		ms /= 2;
	return ms;
}

/* What was asked, short: enough to make the answer depend on it. */
static uint64_t prompt_hash(const struct json *request)
{
	struct text text = {0};
	const struct json *prompt = json_get(request, "prompt");
	json_write(prompt ? prompt : json_get(request, "messages"), JSON_STYLE_COMPACT, &text);
	uint64_t hash = hash64(text.data, text.len, 1);
	text_release(&text);
	return hash;
}

#define ALTERED_TOKEN 200 /* which token the fraud "one-token" gets wrong */
#define CHUNK_TOKENS 4 /* of frauds with several tokens in one event */

/* One answer while it is streamed. */
struct answering {
	struct stub *stub;
	int fd;
	bool chat, continuous;
	uint64_t hash;
	long long prompt_tokens, tokens;
};

/* Sends the tokens from first to before end as one event. Paced from event to event, so that a stall of the machine is one long gap
 * and not a burst after it. */
static bool send_tokens(const struct answering *answering, long long first, long long end)
{
	const struct stub *stub = answering->stub;
	struct text words = {0};
	clock_sleep_ns((int64_t)(token_ms(stub) * 1e6) * (end - first));
	for (long long i = first; i < end; i++) {
		bool altered = stub_has_fraud(stub, "one-token") && i == ALTERED_TOKEN;
		text_printf(&words, " w%u", (unsigned)(hash64_mix(answering->hash + (uint64_t)i) % 1000) + (altered ? 1000 : 0));
	}
	struct json *event = new_event(answering->chat, text_str(&words), NULL);
	text_release(&words);
	if (answering->continuous) {
		struct json *usage = json_new_object();
		json_set(usage, "prompt_tokens", json_new_integer(answering->prompt_tokens));
		json_set(usage, "completion_tokens", json_new_integer(end));
		json_set(event, "usage", usage);
	}
	return send_event(answering->fd, event);
}

/* The last events: finish reason, usage and "[DONE]". */
static void end_answer(const struct answering *answering, long long told_tokens)
{
	static const char not_a_number[] = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":8,\"completion_tokens\":NaN}}\n\n";
	struct stub *stub = answering->stub;
	bool timings = text_equal(stub->dialect, "llamacpp"), alive = true;
	struct json *last = new_event(answering->chat, "", "length");
	if (timings)
		json_set(last, "timings", new_timings(told_tokens));
	alive = send_event(answering->fd, last);
	if (stub_has_fraud(stub, "nan") && told_tokens > 1)
		alive = alive && send_chunk(answering->fd, not_a_number, sizeof(not_a_number) - 1);
	else if (alive && !stub->no_usage && !timings)
		alive = send_event(answering->fd, new_usage_event(stub, answering->prompt_tokens, told_tokens));
	if (alive && send_chunk(answering->fd, "data: [DONE]\n\n", 14))
		stub_send_all(answering->fd, "0\r\n\r\n", 5);
}

void stub_stream_tokens(struct stub *stub, int fd, const struct json *request, bool chat)
{
	long long asked = json_int(json_get(request, "max_tokens"), 16);
	const struct json *prompt = json_get(request, "prompt");
	bool wrong = stub->wrong_text || stub_has_fraud(stub, "wrong-text");
	struct answering answering = {.stub = stub,
		.fd = fd,
		.chat = chat,
		.continuous = json_bool(json_get(json_get(request, "stream_options"), "continuous_usage_stats"), false),
		.hash = prompt_hash(request) + (wrong ? 1 : 0),
		.prompt_tokens = json_kind_of(prompt) == JSON_KIND_ARRAY ? (long long)json_count(prompt) : 10,
		.tokens = stub->output_tokens >= 0 && stub->output_tokens < asked ? stub->output_tokens : asked};
	if (stub_has_fraud(stub, "short-output") || stub_has_fraud(stub, "inflated-usage"))
		answering.tokens = (answering.tokens + 1) / 2;
	bool chunked = stub_has_fraud(stub, "chunks") || stub_has_fraud(stub, "chunks-as-tokens");
	const char *head =
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
	atomic_fetch_add(&stub->generated, answering.tokens);
	atomic_fetch_add(&stub->prompted, answering.prompt_tokens);
	bool alive = stub_send_all(fd, head, strlen(head));
	long long events = 0, step = chunked ? CHUNK_TOKENS : 1;
	for (long long i = 0; i < answering.tokens && alive; i += step, events++) {
		alive = send_tokens(&answering, i, i + step < answering.tokens ? i + step : answering.tokens);
		if (alive && stub_has_fraud(stub, "split-tokens"))
			alive = send_event(fd, new_event(chat, ".", NULL));
		if (stub_has_fraud(stub, "stream-error") && events == 2) {
			static const char error[] = "data: {\"error\":{\"message\":\"engine stopped\"}}\n\ndata: [DONE]\n\n";
			send_chunk(fd, error, sizeof(error) - 1);
			stub_send_all(fd, "0\r\n\r\n", 5);
			return;
		}
	}
	if (!alive)
		return;
	bool counts_chunks = stub_has_fraud(stub, "chunks-as-tokens"), inflates = stub_has_fraud(stub, "inflated-usage");
	end_answer(&answering, counts_chunks ? events : inflates ? asked : answering.tokens);
}

/* One document instead of a stream. */
void stub_answer_whole(const struct stub *stub, int fd, const struct json *request, bool chat)
{
	long long tokens = json_int(json_get(request, "max_tokens"), 16);
	uint64_t hash = prompt_hash(request) + (stub->wrong_text ? 1 : 0);
	struct text words = {0}, text = {0};
	for (long long i = 0; i < tokens; i++)
		text_printf(&words, " w%u", (unsigned)(hash64_mix(hash + (uint64_t)i) % 1000));
	clock_sleep_ns((int64_t)(token_ms(stub) * 1e6) * tokens);
	struct json *document = new_usage_event(stub, 10, tokens), *choices = json_new_array(), *choice = json_new_object(),
		    *message = json_new_object();
	json_set(message, "content", json_new_string(text_str(&words)));
	if (chat)
		json_set(choice, "message", message);
	else
		json_set(choice, "text", json_new_string(text_str(&words)));
	json_set(choice, "finish_reason", json_new_string("length"));
	json_append(choices, choice);
	json_set(document, "choices", choices);
	json_write(document, JSON_STYLE_COMPACT, &text);
	stub_answer(fd, 200, "application/json", text_str(&text));
	if (!chat)
		json_free(message);
	json_free(document);
	text_release(&words);
	text_release(&text);
}

/* The next offset after at where the replay waits or cuts, or the end. */
static size_t next_cut(const struct json *replay, size_t at, size_t len)
{
	size_t end = len;
	static const char *const lists[] = {"cuts", "delay_before_byte"};
	for (int list = 0; list < 2; list++) {
		const struct json *items = json_get(replay, lists[list]);
		for (size_t i = 0; i < json_count(items); i++) {
			const struct json *item = json_at(items, i);
			size_t offset = (size_t)json_int(list ? json_at(item, 0) : item, 0);
			end = offset > at && offset < end ? offset : end;
		}
	}
	return end;
}

void stub_replay_transcript(struct stub *stub, int fd)
{
	const struct text *bytes = &stub->transcript_bytes;
	if (text_starts_with(text_str(bytes), "HTTP/")) {
		stub_send_all(fd, bytes->data, bytes->len);
		return;
	}
	const char *head =
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
	bool alive = stub_send_all(fd, head, strlen(head));
	const struct json *delays = json_get(stub->replay, "delay_before_byte");
	for (size_t at = 0; at < bytes->len && alive;) {
		for (size_t i = 0; i < json_count(delays); i++)
			if ((size_t)json_int(json_at(json_at(delays, i), 0), 0) == at)
				clock_sleep_ns(json_int(json_at(json_at(delays, i), 1), 0) * STUB_MS);
		size_t end = next_cut(stub->replay, at, bytes->len);
		alive = send_chunk(fd, bytes->data + at, end - at);
		at = end;
	}
	int64_t hold_ns = json_int(json_get(stub->replay, "hold_open_ms"), 0) * STUB_MS;
	if (hold_ns > 0)
		clock_sleep_ns(hold_ns);
	if (alive)
		stub_send_all(fd, "0\r\n\r\n", 5);
}

bool stub_load_transcript(struct stub *stub)
{
	if (!stub->transcript)
		return true;
	if (file_read(stub->transcript, STUB_REQUEST_BYTES_MAX, &stub->transcript_bytes, NULL) != STATUS_OK)
		return false;
	/* Delays and cuts of field transcripts lie beside them. */
	const char *slash = strrchr(stub->transcript, '/');
	struct text path = {0}, listing = {0};
	text_append(&path, stub->transcript, slash ? (size_t)(slash - stub->transcript) + 1 : 0);
	text_append_str(&path, "b_expect.json");
	struct json *cases = NULL;
	if (file_read(text_str(&path), STUB_REQUEST_BYTES_MAX, &listing, NULL) == STATUS_OK &&
		json_parse(listing.data, listing.len, "b_expect.json", &cases, NULL) == STATUS_OK)
		stub->replay = json_get(json_get(cases, slash ? slash + 1 : stub->transcript), "replay");
	text_release(&path);
	text_release(&listing);
	return true; /* cases lives as long as the process */
}
