/* `verdict bench URL`: the classic benchmark of a server that already runs. */
#include <string.h>
#include <strings.h>

#include "base/mem.h"
#include "base/options.h"
#include "harness/bench_json.h"
#include "harness/client.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/interrupt.h"
#include "harness/report.h"
#include "harness/workload.h"

#define MODELS_TIMEOUT_S 3.0 /* guess: a server that needs longer to name its models is not worth waiting for */

struct bench {
	const char *url, *prompt, *model, *protocol, *api_key;
	long long runs, warmup, requests, concurrency, prompt_tokens, output_tokens, seed;
	double temperature, timeout_s, stall_s;
	bool ignore_eos, json, help;
	/* Resolved. */
	struct text endpoint, base, model_name;
	struct client *client;
	struct interrupt interrupt;
	struct client_watch watch;
};

static const char help_text[] =
	"usage: verdict bench URL [options]\n"
	"\n"
	"Measures an OpenAI-compatible server that already runs: warm-up, then runs, each of them a number of streamed requests at "
	"a fixed\n"
	"concurrency. Prints a line per run (tokens, seconds, tok/s, prompt tokens) and the overall. It POSTs exactly\n"
	"(warmup + runs) x requests times. Tokens are those that the server's usage tells; where it tells none they are unknown.\n"
	"\n"
	"URL is the server's address, such as http://127.0.0.1:8000; a path /v1 is taken as well.\n";

static const char help_end[] = "\n"
			       "Exit codes: 0 every request succeeded; 1 some failed; 2 bad usage; 3 none succeeded, or the server "
			       "stalled; 130 interrupted.\n";

#define N_OPTIONS 15
static void fill_options(struct bench *bench, struct option options[N_OPTIONS])
{
	const struct option table[N_OPTIONS] = {
		{"runs", OPTION_I64, &bench->runs, 1, 1000, "N", "Measured runs (default 5)."},
		{"warmup", OPTION_I64, &bench->warmup, 0, 1000, "N", "Runs before them that are not counted (default 2)."},
		{"requests", OPTION_I64, &bench->requests, 1, 100000, "N", "Requests per run (default: the concurrency)."},
		{"concurrency", OPTION_I64, &bench->concurrency, 1, CLIENT_CONCURRENCY_MAX, "N",
			"Requests in flight at once (default 1)."},
		{"prompt-tokens", OPTION_I64, &bench->prompt_tokens, 1, 1000000, "N",
			"Length of made-up prompts, about (default 128)."},
		{"output-tokens", OPTION_I64, &bench->output_tokens, 1, 1000000, "N", "max_tokens of each request (default 128)."},
		{"prompt", OPTION_STRING, &bench->prompt, 1, 0, "TEXT", "Send this text instead of a made-up prompt."},
		{"model", OPTION_STRING, &bench->model, 1, 0, "NAME",
			"Model to ask for (default: the first that /v1/models names)."},
		{"protocol", OPTION_STRING, &bench->protocol, 1, 0, "completions|chat", "Endpoint (default completions)."},
		{"temperature", OPTION_DOUBLE, &bench->temperature, 0, 10, "T", "Sampling temperature (default 0)."},
		{"seed", OPTION_I64, &bench->seed, 0, 1e15, "N", "Seed of made-up prompts (default 1)."},
		{"ignore-eos", OPTION_FLAG, &bench->ignore_eos, 0, 0, NULL,
			"Ask for the full length (default; --no-ignore-eos to let the model stop)."},
		{"api-key", OPTION_STRING, &bench->api_key, 1, 0, "KEY", "Sent as a bearer token."},
		{"json", OPTION_FLAG, &bench->json, 0, 0, NULL, "Print one JSON document instead of lines."},
		{"help", OPTION_FLAG, &bench->help, 0, 0, NULL, "Print this text."},
	};
	memcpy(options, table, sizeof(table));
}

static bool strip_end(struct text *text, const char *end)
{
	size_t len = strlen(end);
	if (text->len < len || memcmp(text->data + text->len - len, end, len) != 0)
		return false;
	text_truncate(text, text->len - len);
	return true;
}

/* What libcurl would take, but is no server's address. The rest is for it to refuse. */
static enum status check_address(const char *url, struct err *err)
{
	const char *scheme = strstr(url, "://"), *host = scheme ? scheme + strlen("://") : url;
	if (scheme && strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
		return err_set(err, STATUS_INPUT, "'%s' is no http or https address", url);
	if (!host[strspn(host, " \t/")] || *host == '/')
		return err_set(err, STATUS_INPUT, "'%s' names no server; an address is like http://127.0.0.1:8000", url);
	if (strpbrk(host, "?#"))
		return err_set(err, STATUS_INPUT, "'%s': an address with a query or a fragment is none of a server", url);
	size_t authority = strcspn(host, "/");
	const char *port = memrchr(host, ':', authority);
	if (port && port[1] == '0' && port + 1 + strspn(port + 1, "0") == host + authority)
		return err_set(err, STATUS_INPUT, "'%s': nothing can be reached at port 0", url);
	return STATUS_OK;
}

/* It becomes a line of the request's head. */
static enum status check_key(const char *key, struct err *err)
{
	for (; key && *key; key++)
		if ((unsigned char)*key < 0x20 || *key == 0x7f)
			return err_set(err, STATUS_INPUT, "--api-key: must not contain control characters");
	return STATUS_OK;
}

/* Address without a path, and the endpoint on it. */
static enum status resolve_url(struct bench *bench, struct err *err)
{
	const char *scheme = strstr(bench->url, "://");
	if (check_address(bench->url, err) || check_key(bench->api_key, err))
		return STATUS_INPUT;
	text_printf(&bench->base, "%s%s", scheme ? "" : "http://", bench->url);
	while (strip_end(&bench->base, "/"))
		;
	if (strip_end(&bench->base, "/chat/completions"))
		bench->protocol = bench->protocol ? bench->protocol : "chat";
	else
		strip_end(&bench->base, "/completions");
	strip_end(&bench->base, "/v1");
	bool chat = text_equal(bench->protocol, "chat");
	if (bench->protocol && !chat && !text_equal(bench->protocol, "completions"))
		return err_set(err, STATUS_INPUT, "--protocol takes completions or chat, not '%s'", bench->protocol);
	text_printf(&bench->endpoint, "%s/v1/%s", text_str(&bench->base), chat ? "chat/completions" : "completions");
	return client_check_url(text_str(&bench->endpoint), err);
}

/* The first model the server names. Servers without a usable /v1/models are asked without a model. */
static void find_model(struct bench *bench)
{
	if (bench->model) {
		text_append_str(&bench->model_name, bench->model);
		return;
	}
	struct text url = {0};
	text_printf(&url, "%s/v1/models", text_str(&bench->base));
	struct client_answer answer;
	struct json *models = NULL;
	if (client_request(bench->client, text_str(&url), bench->api_key, NULL, MODELS_TIMEOUT_S, &bench->watch, &answer, NULL) ==
			STATUS_OK &&
		json_parse(text_str(&answer.body), answer.body.len, "models", &models, NULL) == STATUS_OK) {
		const char *name = json_text(json_get(json_at(json_get(models, "data"), 0), "id"));
		text_append_str(&bench->model_name, name ? name : "");
	}
	json_free(models);
	text_release(&answer.body);
	text_release(&url);
}

static void build_bodies(const struct bench *bench, int run, struct request_bodies *bodies)
{
	struct request_style style = {
		.model = bench->model_name.len ? text_str(&bench->model_name) : NULL,
		.chat = text_equal(bench->protocol, "chat"),
		.max_tokens = (int)bench->output_tokens,
		.temperature = bench->temperature,
		.ignore_eos = bench->ignore_eos,
	};
	for (long long i = 0; i < bench->requests; i++) {
		/* Every prompt of every run differs, or the second run would meet a warm prefix cache. */
		uint64_t seed =
			(uint64_t)bench->seed * 0x9E3779B97F4A7C15u + (uint64_t)run * (uint64_t)bench->requests + (uint64_t)i;
		style.seed = seed;
		struct text prompt = {0};
		if (bench->prompt)
			text_append_str(&prompt, bench->prompt);
		else
			workload_words(seed, (size_t)bench->prompt_tokens, &prompt);
		request_bodies_add_text(bodies, &style, text_str(&prompt));
		text_release(&prompt);
	}
}

static enum status run_once(struct bench *bench, int run, struct run_result *out, struct err *err)
{
	if (interrupt_check(&bench->interrupt))
		return err_set(err, STATUS_INTERRUPTED, "interrupted");
	struct request_bodies bodies = {0};
	build_bodies(bench, run, &bodies);
	struct client_load load = {
		.url = text_str(&bench->endpoint),
		.api_key = bench->api_key,
		.bodies = bodies.items,
		.n_bodies = bodies.count,
		.concurrency = (int)bench->concurrency,
		.run_timeout_s = bench->timeout_s,
		.stall_s = bench->stall_s,
		.watch = &bench->watch,
	};
	struct client_report report;
	enum status status = client_run_load(bench->client, &load, out, &report, err);
	if (!status && report.end == CLIENT_STOPPED)
		status = err_set(err, STATUS_INTERRUPTED, "interrupted");
	else if (!status && report.end != CLIENT_COMPLETED)
		status = err_set(err, STATUS_TIMEOUT, "%s: %s", text_str(&bench->endpoint),
			report.end == CLIENT_STALLED ? "the server stalled" : "a run took too long");
	request_bodies_release(&bodies);
	return status;
}

static enum status print_run(const struct bench *bench, const struct run_result *run, int number, int runs, struct err *err)
{
	if (bench->json)
		return STATUS_OK;
	struct text text = {0};
	bench_run_line(run, number, runs, (int)bench->concurrency, &text);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

static enum status print_end(const struct bench *bench, const struct run_result *runs, size_t n, struct err *err)
{
	struct text text = {0};
	if (bench->json) {
		struct json *document = bench_document(runs, n, (int)bench->concurrency);
		enum status printed = report_print_json(document, err);
		json_free(document);
		return printed;
	}
	bench_overall_line(runs, n, (int)bench->concurrency, &text);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

static enum status judge(const struct run_result *runs, size_t n, struct err *err)
{
	size_t total;
	const char *first_error;
	size_t failed = bench_failed(runs, n, &total, &first_error);
	if (failed == 0)
		return STATUS_OK;
	if (failed == total)
		return err_set(err, STATUS_UNAVAILABLE, "no request succeeded: %s", first_error);
	return err_set(err, STATUS_ANSWER_BAD, "%zu of %zu requests failed: %s", failed, total, first_error);
}

static enum status measure(struct bench *bench, struct err *err)
{
	find_model(bench);
	struct run_result *runs = mem_calloc((size_t)bench->runs, sizeof(*runs));
	size_t n = 0;
	enum status status = STATUS_OK;
	for (int i = 0; i < bench->warmup && !status; i++) {
		struct run_result warmup = {.warmup = true};
		status = run_once(bench, i, &warmup, err);
		if (!status)
			status = print_run(bench, &warmup, i + 1, (int)bench->warmup, err);
		run_result_release(&warmup);
	}
	while (n < (size_t)bench->runs && !status) {
		status = run_once(bench, (int)bench->warmup + (int)n, &runs[n], err);
		n++;
		if (!status)
			status = print_run(bench, &runs[n - 1], (int)n, (int)bench->runs, err);
	}
	/* A stalled server has an answer too: what it did until then. */
	if (status == STATUS_OK || (status == STATUS_TIMEOUT && n > 0))
		print_end(bench, runs, n, err);
	if (!status)
		status = judge(runs, n, err);
	for (size_t i = 0; i < n; i++)
		run_result_release(&runs[i]);
	mem_free(runs);
	return status;
}

static bool stop_on_signal(void *ctx)
{
	return interrupt_check(ctx);
}

enum status cmd_bench(int argc, char **argv, struct err *err)
{
	struct bench bench = {.runs = 5,
		.warmup = 2,
		.concurrency = 1,
		.prompt_tokens = 128,
		.output_tokens = 128,
		.seed = 1,
		.ignore_eos = true,
		.timeout_s = 3600,
		.stall_s = 120,
		.interrupt = {.fd = -1}};
	struct option options[N_OPTIONS];
	const char *words[2];
	size_t n_words = 0;
	fill_options(&bench, options);
	enum status status = options_parse(options, N_OPTIONS, argc, argv, 2, words, 2, &n_words, err);
	if (!status && bench.help)
		return cmd_print_help(help_text, options, N_OPTIONS, help_end, err);
	if (!status && n_words != 1)
		status = err_set(err, STATUS_INPUT, "bench takes one URL, got %zu (see verdict bench --help)", n_words);
	if (status)
		return status;
	bench.url = words[0];
	bench.requests = bench.requests > 0 ? bench.requests : bench.concurrency;
	status = resolve_url(&bench, err);
	if (!status)
		status = interrupt_open(&bench.interrupt, err);
	bench.watch =
		(struct client_watch){.fds = {bench.interrupt.fd}, .n_fds = 1, .stop = stop_on_signal, .ctx = &bench.interrupt};
	if (!status)
		status = client_create(&bench.client, err);
	if (!status)
		status = measure(&bench, err);
	client_destroy(bench.client);
	interrupt_close(&bench.interrupt);
	text_release(&bench.endpoint);
	text_release(&bench.base);
	text_release(&bench.model_name);
	return status;
}
