/* Releasing what a launch produced, and the metrics of one run. Pure. */
#include "harness/result.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "harness/stats.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1e6

static const char *const failure_names[] = {
	[FAILURE_NONE] = "none",
	[FAILURE_LAUNCH_ERROR] = "launch_error",
	[FAILURE_READY_TIMEOUT] = "ready_timeout",
	[FAILURE_OOM_LOAD] = "oom_load",
	[FAILURE_OOM_RUN] = "oom_run",
	[FAILURE_CRASH] = "crash",
	[FAILURE_HANG] = "hang",
	[FAILURE_CLIENT_ERROR] = "client_error",
	[FAILURE_INACTIVE] = "inactive",
	[FAILURE_WRONG_OUTPUT] = "wrong_output",
	[FAILURE_GUARD] = "guard",
};
#define N_FAILURES (sizeof(failure_names) / sizeof(failure_names[0]))

const char *failure_name(enum failure failure)
{
	return (size_t)failure < N_FAILURES ? failure_names[failure] : "unknown";
}

bool failure_from_name(const char *name, enum failure *out)
{
	for (size_t i = 0; i < N_FAILURES; i++) {
		if (!text_equal(name, failure_names[i]))
			continue;
		*out = (enum failure)i;
		return true;
	}
	return false;
}

const char *request_flag_name(unsigned flag)
{
	switch (flag) {
	case REQUEST_NO_USAGE:
		return "no usage";
	case REQUEST_SHORT_OUTPUT:
		return "short output";
	case REQUEST_NO_OUTPUT:
		return "no output";
	case REQUEST_TRUNCATED:
		return "truncated";
	case REQUEST_LONG_OUTPUT:
		return "long output";
	case REQUEST_NOT_STREAMED:
		return "not streamed";
	default:
		return "unknown";
	}
}

void request_result_release(struct request_result *request)
{
	mem_free(request->error);
	mem_free(request->text);
	mem_free(request->token_times_ns);
	mem_free(request->token_counts);
	*request = (struct request_result){0};
}

void run_result_release(struct run_result *run)
{
	for (size_t i = 0; i < run->n_requests; i++)
		request_result_release(&run->requests[i]);
	mem_free(run->requests);
	*run = (struct run_result){0};
}

void launch_result_release(struct launch_result *launch)
{
	for (size_t i = 0; i < launch->n_runs; i++)
		run_result_release(&launch->runs[i]);
	mem_free(launch->runs);
	mem_free(launch->log_tail);
	mem_free(launch->command);
	mem_free(launch->fingerprint);
	json_free(launch->effective_config);
	json_free(launch->probes);
	*launch = (struct launch_result){0};
}

/* One sample set, filled request by request. */
struct samples {
	double *values;
	size_t count;
};

static void samples_add(struct samples *samples, double value)
{
	if (isfinite(value))
		samples->values[samples->count++] = value;
}

static double samples_mean(const struct samples *samples)
{
	double sum = 0;
	for (size_t i = 0; i < samples->count; i++)
		sum += samples->values[i];
	return samples->count ? sum / (double)samples->count : NAN;
}

/* Tokens that arrived with event i: told by continuous usage, else an even share. */
static double tokens_of_event(const struct request_result *request, size_t i)
{
	if (request->token_counts[i] > 0)
		return request->token_counts[i] - (i ? request->token_counts[i - 1] : 0);
	return request->completion_tokens >= 0 ? (double)request->completion_tokens / (double)request->n_times : NAN;
}

/* Between two tokens of one event no time passes for the reader; the gap before the event is shared by its tokens. */
static void add_token_gaps(const struct request_result *request, struct samples *itl)
{
	for (size_t i = 1; i < request->n_times; i++) {
		double tokens = fmax(1.0, tokens_of_event(request, i));
		double gap_ms = (double)(request->token_times_ns[i] - request->token_times_ns[i - 1]) / NS_PER_MS;
		samples_add(itl, gap_ms / tokens);
	}
}

struct edge {
	int64_t at_ns;
	int step; /* +1: a request begins to decode, -1: it is through */
};

static int compare_edges(const void *a, const void *b)
{
	const struct edge *left = a, *right = b;
	if (left->at_ns != right->at_ns)
		return left->at_ns < right->at_ns ? -1 : 1;
	return left->step - right->step;
}

static double tokens_between(const struct run_result *run, int64_t begin_ns, int64_t end_ns)
{
	double tokens = 0;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		for (size_t i = 0; request->ok && i < request->n_times; i++)
			if (request->token_times_ns[i] > begin_ns && request->token_times_ns[i] <= end_ns)
				tokens += tokens_of_event(request, i);
	}
	return tokens;
}

static double steady_tokens_per_second(const struct run_result *run, int concurrency)
{
	struct edge *edges = mem_calloc(2 * run->n_requests + 1, sizeof(*edges));
	size_t n = 0, good = 0;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		if (!request->ok || request->n_times < 2)
			continue;
		good++;
		edges[n++] = (struct edge){request->first_token_ns, 1};
		edges[n++] = (struct edge){request->last_token_ns, -1};
	}
	qsort(edges, n, sizeof(*edges), compare_edges);
	int full = concurrency < (int)good ? concurrency : (int)good;
	int busy = 0;
	double tokens = 0, ns = 0;
	for (size_t i = 0; i + 1 < n; i++) {
		busy += edges[i].step;
		if (busy < full || edges[i + 1].at_ns == edges[i].at_ns)
			continue;
		tokens += tokens_between(run, edges[i].at_ns, edges[i + 1].at_ns);
		ns += (double)(edges[i + 1].at_ns - edges[i].at_ns);
	}
	mem_free(edges);
	return ns > 0 && full > 0 ? tokens / (ns / NS_PER_S) : NAN;
}

/* Counts and the span of the run's good requests. */
static void sum_up(const struct run_result *run, struct run_metrics *out)
{
	int64_t first_ns = INT64_MAX, last_ns = 0;
	int64_t cached = 0, cached_of = 0, accepted = 0, drafted = 0;
	size_t good = 0;
	bool all_counted = true;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		if (request->sent_ns > 0 && request->sent_ns < first_ns)
			first_ns = request->sent_ns;
		if (!request->ok)
			continue;
		good++;
		all_counted = all_counted && request->completion_tokens >= 0;
		out->output_tokens += request->completion_tokens > 0 ? request->completion_tokens : 0;
		out->prompt_tokens += request->prompt_tokens > 0 ? request->prompt_tokens : 0;
		int64_t end_ns = request->last_token_ns > 0 ? request->last_token_ns : request->end_ns;
		last_ns = end_ns > last_ns ? end_ns : last_ns;
		if (request->cached_tokens >= 0 && request->prompt_tokens > 0) {
			cached += request->cached_tokens;
			cached_of += request->prompt_tokens;
		}
		if (request->drafted > 0 && request->accepted >= 0) {
			accepted += request->accepted;
			drafted += request->drafted;
		}
	}
	out->completed_frac = run->n_requests ? (double)good / (double)run->n_requests : NAN;
	/* Servers that tell neither for each request count both for all. */
	const struct run_counters *counters = &run->counters;
	if (run->counted && !cached_of && counters->looked_up > 0 && counters->cached >= 0) {
		cached = llround(counters->cached);
		cached_of = llround(counters->looked_up);
	}
	if (run->counted && !drafted && counters->drafted > 0 && counters->accepted >= 0) {
		accepted = llround(counters->accepted);
		drafted = llround(counters->drafted);
	}
	out->cached_frac = cached_of ? (double)cached / (double)cached_of : NAN;
	out->accept_frac = drafted ? (double)accepted / (double)drafted : NAN;
	/* A request whose server did not count would make the rate too low; no rate is better than a wrong one. */
	out->output_tps = good && all_counted && last_ns > first_ns
		? (double)out->output_tokens / ((double)(last_ns - first_ns) / NS_PER_S)
		: NAN;
}

void run_metrics_compute(const struct run_result *run, int concurrency, struct run_metrics *out)
{
	*out = (struct run_metrics){0};
	sum_up(run, out);
	size_t n = run->n_requests + 1, n_gaps = 1;
	for (size_t r = 0; r < run->n_requests; r++)
		n_gaps += run->requests[r].n_times;
	double *room = mem_calloc(4 * n + n_gaps, sizeof(*room));
	struct samples ttft = {room, 0}, tpot = {room + n, 0}, e2e = {room + 2 * n, 0}, tps = {room + 3 * n, 0},
		       itl = {room + 4 * n, 0};
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		if (!request->ok)
			continue;
		samples_add(&ttft, request_ttft_ms(request));
		samples_add(&tpot, request_tpot_ms(request));
		samples_add(&e2e, request_e2e_ms(request));
		if (request->completion_tokens > 0 && request_e2e_ms(request) > 0)
			samples_add(&tps, request->completion_tokens / (request_e2e_ms(request) / 1e3));
		add_token_gaps(request, &itl);
	}
	out->tokens_per_joule =
		run->conditions.joules > 0 ? (double)out->output_tokens / run->conditions.joules : NAN; /* of good requests only */
	out->steady_tps = steady_tokens_per_second(run, concurrency);
	out->request_tps_mean = samples_mean(&tps);
	out->ttft_ms_p50 = stats_quantile(ttft.values, ttft.count, 0.5);
	out->ttft_ms_p90 = stats_quantile(ttft.values, ttft.count, 0.9);
	out->tpot_ms_p50 = stats_quantile(tpot.values, tpot.count, 0.5);
	out->tpot_ms_p90 = stats_quantile(tpot.values, tpot.count, 0.9);
	out->itl_ms_p50 = stats_quantile(itl.values, itl.count, 0.5);
	out->itl_ms_p99 = stats_quantile(itl.values, itl.count, 0.99);
	out->e2e_ms_p50 = stats_quantile(e2e.values, e2e.count, 0.5);
	out->e2e_ms_p90 = stats_quantile(e2e.values, e2e.count, 0.9);
	mem_free(room);
}

double request_ttft_ms(const struct request_result *request)
{
	return request->first_token_ns > 0 ? (double)(request->first_token_ns - request->sent_ns) / NS_PER_MS : NAN;
}

double request_tpot_ms(const struct request_result *request)
{
	if (request->completion_tokens < 2 || request->n_times < 2)
		return NAN;
	return (double)(request->last_token_ns - request->first_token_ns) / NS_PER_MS / (request->completion_tokens - 1);
}

double request_e2e_ms(const struct request_result *request)
{
	return request->end_ns > 0 ? (double)(request->end_ns - request->sent_ns) / NS_PER_MS : NAN;
}

double run_metric_by_name(const struct run_metrics *metrics, const char *name)
{
	const struct {
		const char *name;
		double value;
	} table[] = {
		{"output_tps", metrics->output_tps},
		{"steady_tps", metrics->steady_tps},
		{"request_tps_mean", metrics->request_tps_mean},
		{"ttft_ms_p50", metrics->ttft_ms_p50},
		{"ttft_ms_p90", metrics->ttft_ms_p90},
		{"tpot_ms_p50", metrics->tpot_ms_p50},
		{"tpot_ms_p90", metrics->tpot_ms_p90},
		{"itl_ms_p50", metrics->itl_ms_p50},
		{"itl_ms_p99", metrics->itl_ms_p99},
		{"e2e_ms_p50", metrics->e2e_ms_p50},
		{"e2e_ms_p90", metrics->e2e_ms_p90},
		{"completed_frac", metrics->completed_frac},
		{"cached_frac", metrics->cached_frac},
		{"accept_frac", metrics->accept_frac},
		{"tokens_per_joule", metrics->tokens_per_joule},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (text_equal(table[i].name, name))
			return table[i].value;
	return NAN;
}
