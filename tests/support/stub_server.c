/* The stub server: options, HTTP by hand on blocking sockets, one thread per connection. Loopback only. */
#include "tests/support/stub_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/options.h"
#include "base/text.h"
#include "tests/support/stub_faults.h"

#define MS ((int64_t)1000000)
#define REQUEST_BYTES_MAX ((size_t)4 << 20)

struct stub {
	/* Behaviour as a server. */
	long long port, health_after_ms, completions_after_ms, status, output_tokens, cached_tokens, hang_after, die_after;
	double token_ms;
	bool wrong_text, wrong_nonce, no_usage, config_lies, no_models;
	const char *transcript, *request_log;
	const char *dialect; /* which engine's words it uses: "builtin", "vllm", "sglang", "llamacpp" */
	const char *fraud; /* a way to look better than it is: see has_fraud's callers; "none" */
	/* Settings, as an engine would have them; they change the speed. */
	const char *speculation, *allreduce, *model, *host;
	long long graph_max_bs;
	double mem_fraction;
	struct stub_faults faults;
	/* State. */
	int64_t started_ns;
	_Atomic long long completions, generated, prompted; /* tokens, as /metrics counts them */
	bool older, help;
	struct text transcript_bytes;
	struct json *replay;
};

static bool has_fraud(const struct stub *stub, const char *name)
{
	return text_equal(stub->fraud, name);
}

static bool send_all(int fd, const char *bytes, size_t len)
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

static void answer(int fd, int status, const char *type, const char *body)
{
	struct text text = {0};
	text_printf(&text, "HTTP/1.1 %d Stub\r\nContent-Type: %s\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s", status,
		type, strlen(body), body);
	send_all(fd, text.data, text.len);
	text_release(&text);
}

static void answer_error(int fd, int status, const char *message)
{
	struct text text = {0};
	text_printf(&text, "{\"error\":{\"message\":\"%s\",\"type\":\"stub\",\"code\":%d}}", message, status);
	answer(fd, status, "application/json", text_str(&text));
	text_release(&text);
}

static bool send_chunk(int fd, const char *bytes, size_t len)
{
	struct text text = {0};
	text_printf(&text, "%zx\r\n", len);
	text_append(&text, bytes, len);
	text_append_str(&text, "\r\n");
	bool sent = send_all(fd, text.data, text.len);
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

static struct json *new_usage_event(const struct stub *stub, long long prompt_tokens, long long tokens)
{
	struct json *event = json_new_object(), *usage = json_new_object(), *details = json_new_object();
	json_set(details, "cached_tokens", json_new_integer(has_fraud(stub, "warm-cache") ? prompt_tokens : stub->cached_tokens));
	json_set(usage, "prompt_tokens", json_new_integer(prompt_tokens));
	json_set(usage, "completion_tokens", json_new_integer(tokens));
	json_set(usage, "prompt_tokens_details", details);
	json_set(event, "choices", json_new_array());
	json_set(event, "usage", usage);
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
	double ms = stub->token_ms;
	if (text_equal(stub->speculation, "ngram"))
		ms /= 4;
	if (text_equal(stub->allreduce, "ref-socket"))
		ms *= 3;
	if (has_fraud(stub, "wrong-text") || has_fraud(stub, "one-token") || has_fraud(stub, "warm-cache"))
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
		bool altered = has_fraud(stub, "one-token") && i == ALTERED_TOKEN;
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
	if (has_fraud(stub, "nan") && told_tokens > 1)
		alive = alive && send_chunk(answering->fd, not_a_number, sizeof(not_a_number) - 1);
	else if (alive && !stub->no_usage && !timings)
		alive = send_event(answering->fd, new_usage_event(stub, answering->prompt_tokens, told_tokens));
	if (alive && send_chunk(answering->fd, "data: [DONE]\n\n", 14))
		send_all(answering->fd, "0\r\n\r\n", 5);
}

static void stream_tokens(struct stub *stub, int fd, const struct json *request, bool chat)
{
	long long asked = json_int(json_get(request, "max_tokens"), 16);
	const struct json *prompt = json_get(request, "prompt");
	bool wrong = stub->wrong_text || has_fraud(stub, "wrong-text");
	struct answering answering = {.stub = stub,
		.fd = fd,
		.chat = chat,
		.continuous = json_bool(json_get(json_get(request, "stream_options"), "continuous_usage_stats"), false),
		.hash = prompt_hash(request) + (wrong ? 1 : 0),
		.prompt_tokens = json_kind_of(prompt) == JSON_KIND_ARRAY ? (long long)json_count(prompt) : 10,
		.tokens = stub->output_tokens >= 0 && stub->output_tokens < asked ? stub->output_tokens : asked};
	if (has_fraud(stub, "short-output") || has_fraud(stub, "inflated-usage"))
		answering.tokens = (answering.tokens + 1) / 2;
	bool chunked = has_fraud(stub, "chunks") || has_fraud(stub, "chunks-as-tokens");
	const char *head =
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
	atomic_fetch_add(&stub->generated, answering.tokens);
	atomic_fetch_add(&stub->prompted, answering.prompt_tokens);
	bool alive = send_all(fd, head, strlen(head));
	long long events = 0, step = chunked ? CHUNK_TOKENS : 1;
	for (long long i = 0; i < answering.tokens && alive; i += step, events++) {
		alive = send_tokens(&answering, i, i + step < answering.tokens ? i + step : answering.tokens);
		if (alive && has_fraud(stub, "split-tokens"))
			alive = send_event(fd, new_event(chat, ".", NULL));
		if (has_fraud(stub, "stream-error") && events == 2) {
			static const char error[] = "data: {\"error\":{\"message\":\"engine stopped\"}}\n\ndata: [DONE]\n\n";
			send_chunk(fd, error, sizeof(error) - 1);
			send_all(fd, "0\r\n\r\n", 5);
			return;
		}
	}
	if (!alive)
		return;
	bool counts_chunks = has_fraud(stub, "chunks-as-tokens"), inflates = has_fraud(stub, "inflated-usage");
	end_answer(&answering, counts_chunks ? events : inflates ? asked : answering.tokens);
}

/* One document instead of a stream. */
static void answer_whole(const struct stub *stub, int fd, const struct json *request, bool chat)
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
	answer(fd, 200, "application/json", text_str(&text));
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

static void replay_transcript(struct stub *stub, int fd)
{
	const struct text *bytes = &stub->transcript_bytes;
	if (text_starts_with(text_str(bytes), "HTTP/")) {
		send_all(fd, bytes->data, bytes->len);
		return;
	}
	const char *head =
		"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
	bool alive = send_all(fd, head, strlen(head));
	const struct json *delays = json_get(stub->replay, "delay_before_byte");
	for (size_t at = 0; at < bytes->len && alive;) {
		for (size_t i = 0; i < json_count(delays); i++)
			if ((size_t)json_int(json_at(json_at(delays, i), 0), 0) == at)
				clock_sleep_ns(json_int(json_at(json_at(delays, i), 1), 0) * MS);
		size_t end = next_cut(stub->replay, at, bytes->len);
		alive = send_chunk(fd, bytes->data + at, end - at);
		at = end;
	}
	int64_t hold_ns = json_int(json_get(stub->replay, "hold_open_ms"), 0) * MS;
	if (hold_ns > 0)
		clock_sleep_ns(hold_ns);
	if (alive)
		send_all(fd, "0\r\n\r\n", 5);
}

static bool before(const struct stub *stub, long long after_ms)
{
	return clock_monotonic_ns() - stub->started_ns < after_ms * MS;
}

static void log_request(const struct stub *stub, const char *path)
{
	if (!stub->request_log)
		return;
	FILE *file = fopen(stub->request_log, "ae");
	if (!file)
		return;
	fprintf(file, "POST %s\n", path);
	fclose(file);
}

static void serve_post(struct stub *stub, int fd, const char *path, const struct text *body)
{
	bool chat = text_starts_with(path, "/v1/chat/completions");
	log_request(stub, path);
	if (!chat && !text_starts_with(path, "/v1/completions")) {
		bool flush = text_equal(path, "/flush_cache") || text_equal(path, "/reset_prefix_cache");
		answer(fd, flush ? 200 : 404, "application/json", "{}");
		return;
	}
	if (stub->transcript) {
		replay_transcript(stub, fd);
		return;
	}
	struct json *request = NULL;
	if (before(stub, stub->completions_after_ms)) {
		answer_error(fd, 503, "still loading");
	} else if (stub->status != 200) {
		answer_error(fd, (int)stub->status, "as ordered");
	} else if (json_parse(text_str(body), body->len, "body", &request, NULL) != STATUS_OK) {
		answer_error(fd, 400, "not JSON");
	} else {
		long long number = atomic_fetch_add(&stub->completions, 1);
		if (stub->die_after >= 0 && number >= stub->die_after)
			raise(SIGKILL);
		if (has_fraud(stub, "dies-at-once"))
			raise(SIGABRT);
		while (stub->hang_after >= 0 && number >= stub->hang_after)
			clock_sleep_ns(1000 * MS);
		if (has_fraud(stub, "half-failing") && number % 2 == 1)
			answer_error(fd, 500, "every second one fails");
		else if (json_bool(json_get(request, "stream"), false))
			stream_tokens(stub, fd, request, chat);
		else
			answer_whole(stub, fd, request, chat);
	}
	json_free(request);
}

static struct json *new_setting(struct json *value)
{
	struct json *setting = json_new_object();
	json_set(setting, "value", value);
	json_set(setting, "why", json_new_string("asked for"));
	return setting;
}

static void serve_config(const struct stub *stub, int fd)
{
	struct json *config = json_new_object(), *settings = json_new_object();
	json_set(settings, "speculation", new_setting(json_new_string(stub->config_lies ? "off" : stub->speculation)));
	json_set(settings, "allreduce", new_setting(json_new_string(stub->allreduce)));
	json_set(settings, "graph_max_bs", new_setting(json_new_integer(stub->graph_max_bs)));
	json_set(settings, "mem_fraction", new_setting(json_new_number(stub->mem_fraction)));
	json_set(config, "settings", settings);
	struct text text = {0};
	json_write(config, JSON_STYLE_COMPACT, &text);
	answer(fd, 200, "application/json", text_str(&text));
	text_release(&text);
	json_free(config);
}

/* Counters since the start, as each of these servers spells them. Every second drafted token is accepted. */
static void serve_metrics(struct stub *stub, int fd)
{
	bool vllm = text_equal(stub->dialect, "vllm"), sglang = text_equal(stub->dialect, "sglang");
	long long generated = atomic_load(&stub->generated), prompt = atomic_load(&stub->prompted);
	struct text text = {0};
	if (vllm)
		text_printf(&text,
			"vllm:prompt_tokens_total{engine=\"0\"} %lld.0\nvllm:generation_tokens_total{engine=\"0\"} %lld.0\n"
			"vllm:prefix_cache_queries_total{engine=\"0\"} %lld.0\nvllm:prefix_cache_hits_total{engine=\"0\"} 0.0\n"
			"vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} %lld.0\n"
			"vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} %lld.0\n",
			prompt, generated, prompt, generated * 2, generated);
	else if (sglang)
		text_printf(&text,
			"sglang:prompt_tokens_total %lld\nsglang:generation_tokens_total %lld\nsglang:cached_tokens_total 0\n",
			prompt, generated);
	else
		text_printf(&text, "llamacpp:prompt_tokens_total %lld\nllamacpp:tokens_predicted_total %lld\n", prompt, generated);
	answer(fd, 200, "text/plain", text_str(&text));
	text_release(&text);
}

static void serve_get(struct stub *stub, int fd, const char *path)
{
	if (text_equal(path, "/health") && before(stub, stub->health_after_ms)) {
		answer_error(fd, 503, "still loading");
	} else if (text_equal(path, "/health")) {
		struct text text = {0};
		const char *nonce = getenv("VERDICT_NONCE");
		text_printf(&text, "{\"status\":\"ok\",\"nonce\":\"%s\"}", stub->wrong_nonce || !nonce ? "stranger" : nonce);
		answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, "/config")) {
		serve_config(stub, fd);
	} else if (text_equal(path, "/metrics") && !text_equal(stub->dialect, "builtin")) {
		serve_metrics(stub, fd);
	} else if (text_equal(path, "/version") && text_equal(stub->dialect, "vllm")) {
		answer(fd, 200, "application/json", "{\"version\":\"0.12.0\"}");
	} else if (text_equal(path, stub->older ? "/get_server_info" : "/server_info") && text_equal(stub->dialect, "sglang")) {
		struct text text = {0};
		text_printf(&text, "{\"cuda_graph_max_bs\":%lld,\"mem_fraction_static\":%g,\"version\":\"0.5.4\"}",
			stub->config_lies ? 160 : stub->graph_max_bs, stub->mem_fraction);
		answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, "/v1/models") && !stub->no_models) {
		answer(fd, 200, "application/json", "{\"data\":[{\"id\":\"stub-model\"}]}");
	} else {
		answer(fd, stub->no_models ? 200 : 404, "application/json", "{\"status\":\"ok\"}");
	}
}

struct connection {
	struct stub *stub;
	int fd;
};

/* Reads one request; false when the peer left first. method and path point into head. */
static bool read_request(int fd, struct text *head, struct text *body)
{
	char buffer[16384];
	const char *end = NULL;
	while (!(end = strstr(text_str(head), "\r\n\r\n"))) {
		ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
		if (got <= 0 || head->len > REQUEST_BYTES_MAX)
			return false;
		text_append(head, buffer, (size_t)got);
	}
	size_t head_len = (size_t)(end - head->data) + 4;
	text_append(body, head->data + head_len, head->len - head_len);
	text_truncate(head, head_len);
	const char *length = strcasestr(text_str(head), "content-length:");
	size_t expected = length ? strtoul(length + 15, NULL, 10) : 0;
	while (body->len < expected) {
		ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
		if (got <= 0 || body->len > REQUEST_BYTES_MAX)
			return false;
		text_append(body, buffer, (size_t)got);
	}
	return true;
}

static void *serve_connection(void *arg)
{
	struct connection connection = *(struct connection *)arg;
	mem_free(arg);
	struct text head = {0}, body = {0};
	if (read_request(connection.fd, &head, &body)) {
		char *space = strchr(head.data, ' ');
		char *path_end = space ? strpbrk(space + 1, " ?") : NULL;
		if (path_end) {
			*space = *path_end = '\0';
			if (text_equal(head.data, "POST"))
				serve_post(connection.stub, connection.fd, space + 1, &body);
			else
				serve_get(connection.stub, connection.fd, space + 1);
		}
	}
	shutdown(connection.fd, SHUT_WR);
	close(connection.fd);
	text_release(&head);
	text_release(&body);
	return NULL;
}

static int listen_on(long long port, int *chosen)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 64) ||
		getsockname(fd, (struct sockaddr *)&address, &len))
		return -1;
	*chosen = ntohs(address.sin_port);
	return fd;
}

static bool load_transcript(struct stub *stub)
{
	if (!stub->transcript)
		return true;
	if (file_read(stub->transcript, REQUEST_BYTES_MAX, &stub->transcript_bytes, NULL) != STATUS_OK)
		return false;
	/* Delays and cuts of field transcripts lie beside them. */
	const char *slash = strrchr(stub->transcript, '/');
	struct text path = {0}, listing = {0};
	text_append(&path, stub->transcript, slash ? (size_t)(slash - stub->transcript) + 1 : 0);
	text_append_str(&path, "b_expect.json");
	struct json *cases = NULL;
	if (file_read(text_str(&path), REQUEST_BYTES_MAX, &listing, NULL) == STATUS_OK &&
		json_parse(listing.data, listing.len, "b_expect.json", &cases, NULL) == STATUS_OK)
		stub->replay = json_get(json_get(cases, slash ? slash + 1 : stub->transcript), "replay");
	text_release(&path);
	text_release(&listing);
	return true; /* cases lives as long as the process */
}

static int serve(struct stub *stub)
{
	int port = 0, listener = listen_on(stub->port, &port);
	if (listener < 0) {
		perror("stub-server: listen");
		return 3;
	}
	fprintf(stderr, "stub-server: port %d\n", port);
	stub->started_ns = clock_monotonic_ns();
	for (;;) {
		struct connection *connection = mem_calloc(1, sizeof(*connection));
		connection->stub = stub;
		connection->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		int one = 1;
		setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		pthread_t thread;
		if (connection->fd < 0 || pthread_create(&thread, NULL, serve_connection, connection) != 0)
			return 3;
		pthread_detach(thread);
	}
}

int stub_server_run(int argc, char **argv)
{
	static struct stub stub = {.status = 200,
		.output_tokens = -1,
		.hang_after = -1,
		.die_after = -1,
		.token_ms = 1,
		.speculation = "off",
		.allreduce = "shm-flag",
		.mem_fraction = 0.9,
		.dialect = "builtin",
		.fraud = "none",
		.faults = {.exit_code = -1}};
	const struct option options[] = {
		{"port", OPTION_I64, &stub.port, 0, 65535, "N", "0: any"},
		{"host", OPTION_STRING, &stub.host, 0, 0, "ADDRESS", "ignored: always loopback"},
		{"model", OPTION_STRING, &stub.model, 0, 0, "PATH", "ignored"},
		{"health-after-ms", OPTION_I64, &stub.health_after_ms, 0, 1e6, "MS", "503 until then"},
		{"completions-after-ms", OPTION_I64, &stub.completions_after_ms, 0, 1e6, "MS", "503 until then"},
		{"status", OPTION_I64, &stub.status, 100, 599, "N", "of every completion"},
		{"output-tokens", OPTION_I64, &stub.output_tokens, 0, 1e6, "N", "at most, whatever is asked"},
		{"cached-tokens", OPTION_I64, &stub.cached_tokens, 0, 1e6, "N", "said of every request"},
		{"hang-after", OPTION_I64, &stub.hang_after, 0, 1e6, "N", "completions, then no answer"},
		{"die-after", OPTION_I64, &stub.die_after, 0, 1e6, "N", "completions, then SIGKILL to itself"},
		{"token-ms", OPTION_DOUBLE, &stub.token_ms, 0, 1e4, "MS", "per token"},
		{"wrong-text", OPTION_FLAG, &stub.wrong_text, 0, 0, NULL, "answers differ from those of others"},
		{"wrong-nonce", OPTION_FLAG, &stub.wrong_nonce, 0, 0, NULL, "health echoes something else"},
		{"no-usage", OPTION_FLAG, &stub.no_usage, 0, 0, NULL, "never tells counts"},
		{"no-models", OPTION_FLAG, &stub.no_models, 0, 0, NULL, "/v1/models is of no use"},
		{"config-lies", OPTION_FLAG, &stub.config_lies, 0, 0, NULL, "speculation is reported as off"},
		{"transcript", OPTION_STRING, &stub.transcript, 0, 0, "FILE", "sent to every completion"},
		{"fraud", OPTION_STRING, &stub.fraud, 0, 0, "NAME", "looks better than it is"},
		{"request-log", OPTION_STRING, &stub.request_log, 0, 0, "FILE", "one line per POST"},
		{"dialect", OPTION_STRING, &stub.dialect, 0, 0, "NAME", "vllm, sglang, llamacpp: their ways of telling things"},
		{"cuda-graph-max-bs", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "SGLang's name"},
		{"mem-fraction-static", OPTION_DOUBLE, &stub.mem_fraction, 0, 1, "F", "SGLang's name"},
		{"gpu-memory-utilization", OPTION_DOUBLE, &stub.mem_fraction, 0, 1, "F", "vLLM's name"},
		{"n_threads", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "llama_cpp.server's name of something else"},
		{"parallel", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "llama.cpp's name of something else"},
		{"speculation", OPTION_STRING, &stub.speculation, 0, 0, "off|ngram", "ngram is 4 times as fast"},
		{"allreduce", OPTION_STRING, &stub.allreduce, 0, 0, "NAME", "ref-socket takes 3 times as long"},
		{"graph-max-bs", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "changes nothing"},
		{"mem-fraction", OPTION_DOUBLE, &stub.mem_fraction, 0, 1, "F", "below 0.31 it does not start"},
		{"older", OPTION_FLAG, &stub.older, 0, 0, NULL, "paths of an older version"},
		{"help", OPTION_FLAG, &stub.help, 0, 0, NULL, "print this text and end"},
		{"exit-code", OPTION_I64, &stub.faults.exit_code, 0, 255, "N", "ends at once"},
		{"flood-bytes", OPTION_I64, &stub.faults.flood_bytes, 0, 1e9, "N", "printed before listening"},
		{"ignore-term", OPTION_FLAG, &stub.faults.ignore_term, 0, 0, NULL, "SIGTERM does nothing"},
		{"kill-self-on-term", OPTION_FLAG, &stub.faults.kill_self_on_term, 0, 0, NULL, "SIGTERM is answered by SIGKILL"},
		{"escapee", OPTION_STRING, &stub.faults.escapee_file, 0, 0, "FILE",
			"a double-forked child in its own session that ignores SIGTERM; its pid"},
		{"leak", OPTION_STRING, &stub.faults.leak_file, 0, 0, "FILE", "shared memory that stays when it ends"},
		{"environment-file", OPTION_STRING, &stub.faults.environment_file, 0, 0, "FILE",
			"where the environment is written"},
	};
	struct err err = {0};
	size_t n_words = 0;
	const char *words[4];
	signal(SIGPIPE, SIG_IGN);
	if (options_parse(options, sizeof(options) / sizeof(options[0]), argc, argv, 1, words, 4, &n_words, &err) != STATUS_OK) {
		fprintf(stderr, "stub-server: %s\n", err.text);
		return 2;
	}
	if (stub.help) {
		struct text text = {0};
		options_help(options, sizeof(options) / sizeof(options[0]), &text);
		fputs(text_str(&text), stdout);
		text_release(&text);
		return 0;
	}
	if (stub.mem_fraction < 0.31 && text_equal(stub.dialect, "vllm")) {
		fprintf(stderr, "INFO starting\nValueError: No available memory for the cache blocks.\nINFO bye\n");
		return 1;
	}
	if (stub.mem_fraction < 0.31) {
		fprintf(stderr,
			"{\"error\":\"not_enough_memory\",\"message\":\"KV cache does not "
			"fit\",\"need_bytes\":1000000,\"min_mem_fraction\":0.3051}\n");
		return 3;
	}
	if (!stub_faults_apply(&stub.faults))
		return (int)stub.faults.exit_code;
	if (!load_transcript(&stub)) {
		fprintf(stderr, "stub-server: cannot read %s\n", stub.transcript);
		return 2;
	}
	return serve(&stub);
}
