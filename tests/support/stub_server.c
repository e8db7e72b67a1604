/* The stub server: options, connections by hand on blocking sockets, one thread each, and everything but completions. Loopback
 * only. */
#include "tests/support/stub_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/options.h"
#include "tests/support/stub_internal.h"

static bool before(const struct stub *stub, long long after_ms)
{
	return clock_monotonic_ns() - stub->started_ns < after_ms * STUB_MS;
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
		stub_answer(fd, flush ? 200 : 404, "application/json", "{}");
		return;
	}
	if (stub->transcript) {
		stub_replay_transcript(stub, fd);
		return;
	}
	struct json *request = NULL;
	if (before(stub, stub->completions_after_ms)) {
		stub_answer_error(fd, 503, "still loading");
	} else if (stub->status != 200) {
		stub_answer_error(fd, (int)stub->status, "as ordered");
	} else if (json_parse(text_str(body), body->len, "body", &request, NULL) != STATUS_OK) {
		stub_answer_error(fd, 400, "not JSON");
	} else {
		long long number = atomic_fetch_add(&stub->completions, 1);
		if (stub->die_after >= 0 && number >= stub->die_after)
			raise(SIGKILL);
		if (stub_has_fraud(stub, "dies-at-once"))
			raise(SIGABRT);
		if (stub_has_fraud(stub, "loses-a-rank")) {
			fprintf(stderr, "stub-server: rank 1 (pid 9) was killed\n{\"error\":\"rank_died\",\"rank\":1}\n");
			_exit(4);
		}
		while (stub->hang_after >= 0 && number >= stub->hang_after)
			clock_sleep_ns(1000 * STUB_MS);
		if (stub_has_fraud(stub, "half-failing") && number % 2 == 1)
			stub_answer_error(fd, 500, "every second one fails");
		else if (json_bool(json_get(request, "stream"), false))
			stub_stream_tokens(stub, fd, request, chat);
		else
			stub_answer_whole(stub, fd, request, chat);
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
	stub_answer(fd, 200, "application/json", text_str(&text));
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
			"vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} %lld.0\n"
			"vllm:spec_decode_num_drafts_total{engine=\"0\"} %lld.0\n"
			"vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",gpu_memory_utilization=\"%g\"} 1.0\n",
			prompt, generated, prompt, generated * 2, generated, generated / 2,
			stub->config_lies ? 0.5 : stub->mem_fraction);
	else if (sglang)
		text_printf(&text,
			"sglang:prompt_tokens_total %lld\nsglang:generation_tokens_total %lld\nsglang:cached_tokens_total 0\n",
			prompt, generated);
	else
		text_printf(&text, "llamacpp:prompt_tokens_total %lld\nllamacpp:tokens_predicted_total %lld\n", prompt, generated);
	stub_answer(fd, 200, "text/plain", text_str(&text));
	text_release(&text);
}

static void serve_get(struct stub *stub, int fd, const char *path)
{
	if (text_equal(path, "/health") && before(stub, stub->health_after_ms)) {
		stub_answer_error(fd, 503, "still loading");
	} else if (text_equal(path, "/health")) {
		struct text text = {0};
		const char *nonce = getenv("VERDICT_NONCE");
		text_printf(&text, "{\"status\":\"ok\",\"nonce\":\"%s\"}", stub->wrong_nonce || !nonce ? "stranger" : nonce);
		stub_answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, "/config")) {
		serve_config(stub, fd);
	} else if (text_equal(path, "/metrics") && !text_equal(stub->dialect, "builtin")) {
		serve_metrics(stub, fd);
	} else if (text_equal(path, "/version") && text_equal(stub->dialect, "vllm")) {
		stub_answer(fd, 200, "application/json", "{\"version\":\"0.12.0\"}");
	} else if (text_equal(path, "/server_info") && text_equal(stub->dialect, "vllm") && !stub->older &&
		getenv("VLLM_SERVER_DEV_MODE")) {
		struct text text = {0};
		text_printf(&text,
			"{\"vllm_config\":{\"cache_config\":{\"gpu_memory_utilization\":%g},\"scheduler_config\":{\"max_num_seqs\":"
			"%lld}},\"vllm_env\":{}}",
			stub->config_lies ? 0.5 : stub->mem_fraction, stub->config_lies ? 160 : stub->graph_max_bs);
		stub_answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, stub->older ? "/get_server_info" : "/server_info") && text_equal(stub->dialect, "sglang")) {
		struct text text = {0};
		text_printf(&text,
			"{\"cuda_graph_max_bs_decode\":%lld,\"mem_fraction_static\":%g,\"version\":\"0.5.4\",\"internal_states\":"
			"[{\"avg_spec_accept_length\":2.5}]}",
			stub->config_lies ? 160 : stub->graph_max_bs, stub->mem_fraction);
		stub_answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, "/props") && text_equal(stub->dialect, "llamacpp")) {
		struct text text = {0};
		text_printf(
			&text, "{\"total_slots\":%lld,\"build_info\":\"b7000-abc\"}", stub->config_lies ? 1 : stub->graph_max_bs);
		stub_answer(fd, 200, "application/json", text_str(&text));
		text_release(&text);
	} else if (text_equal(path, "/v1/models") && !stub->no_models) {
		stub_answer(fd, 200, "application/json", "{\"data\":[{\"id\":\"stub-model\",\"max_model_len\":4096}]}");
	} else {
		stub_answer(fd, stub->no_models ? 200 : 404, "application/json", "{\"status\":\"ok\"}");
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
		if (got <= 0 || head->len > STUB_REQUEST_BYTES_MAX)
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
		if (got <= 0 || body->len > STUB_REQUEST_BYTES_MAX)
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
		{"tells-acceptance", OPTION_FLAG, &stub.tells_acceptance, 0, 0, NULL,
			"of drafts in every answer: a fifth, times how fast the settings make it, whatever the clock says"},
		{"transcript", OPTION_STRING, &stub.transcript, 0, 0, "FILE", "sent to every completion"},
		{"fraud", OPTION_STRING, &stub.fraud, 0, 0, "NAME", "looks better than it is"},
		{"request-log", OPTION_STRING, &stub.request_log, 0, 0, "FILE", "one line per POST"},
		{"dialect", OPTION_STRING, &stub.dialect, 0, 0, "NAME", "vllm, sglang, llamacpp: their ways of telling things"},
		{"cuda-graph-max-bs-decode", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "SGLang's name"},
		{"mem-fraction-static", OPTION_DOUBLE, &stub.mem_fraction, 0, 1, "F", "SGLang's name"},
		{"gpu-memory-utilization", OPTION_DOUBLE, &stub.mem_fraction, 0, 1, "F", "vLLM's name"},
		{"max-num-seqs", OPTION_I64, &stub.graph_max_bs, 0, 1e6, "N", "vLLM's name of something else"},
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
		{"headless", OPTION_FLAG, &stub.faults.headless, 0, 0, NULL, "the escapee's first thread ends, another goes on"},
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
	if (!stub_load_transcript(&stub)) {
		fprintf(stderr, "stub-server: cannot read %s\n", stub.transcript);
		return 2;
	}
	return serve(&stub);
}
