/* Computing the metrics of a run, and the table of them. See metric.h. */
#include "harness/metric.h"

#include <math.h>
#include <string.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/text.h"
#include "harness/result.h"
#include "harness/stats.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1e6

#define AT(member) offsetof(struct run_metrics, member)
#define TOKENS (METRIC_NEEDS_STREAM | METRIC_NEEDS_TWO_TOKENS)

const struct metric_spec metric_specs[] = {
	{"output_tps", NULL, "tok/s", true, true, 0, METRIC_ZERO_IS_NONE, AT(output_tps)},
	{"steady_tps", NULL, "tok/s", true, true, TOKENS | METRIC_NEEDS_CLOSED_LOOP, METRIC_ZERO_IS_NONE, AT(steady_tps)},
	{"total_tps", NULL, "tok/s", true, true, 0, METRIC_ZERO_IS_NONE, AT(total_tps)},
	{"request_rps", NULL, "req/s", true, true, 0, METRIC_ZERO_IS_NONE, AT(request_rps)},
	{"request_tps_mean", NULL, "tok/s", true, true, 0, METRIC_ZERO_IS_NONE, AT(request_tps_mean)},
	{"ttft_ms_p50", "ttft_p50_ms", "ms", false, true, METRIC_NEEDS_STREAM, METRIC_ZERO_IS_NONE, AT(ttft_ms_p50)},
	{"ttft_ms_p90", "ttft_p90_ms", "ms", false, true, METRIC_NEEDS_STREAM, METRIC_ZERO_IS_NONE, AT(ttft_ms_p90)},
	{"ttft_ms_p95", "ttft_p95_ms", "ms", false, true, METRIC_NEEDS_STREAM, METRIC_ZERO_IS_NONE, AT(ttft_ms_p95)},
	{"ttft_ms_p99", "ttft_p99_ms", "ms", false, true, METRIC_NEEDS_STREAM, METRIC_ZERO_IS_NONE, AT(ttft_ms_p99)},
	{"tpot_ms_p50", "tpot_p50_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(tpot_ms_p50)},
	{"tpot_ms_p90", "tpot_p90_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(tpot_ms_p90)},
	{"tpot_ms_p95", "tpot_p95_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(tpot_ms_p95)},
	{"tpot_ms_p99", "tpot_p99_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(tpot_ms_p99)},
	{"itl_ms_p50", "itl_p50_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(itl_ms_p50)},
	{"itl_ms_p90", "itl_p90_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(itl_ms_p90)},
	{"itl_ms_p95", "itl_p95_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(itl_ms_p95)},
	{"itl_ms_p99", "itl_p99_ms", "ms", false, true, TOKENS, METRIC_ZERO_IS_NONE, AT(itl_ms_p99)},
	{"e2e_ms_p50", "e2e_p50_ms", "ms", false, true, 0, METRIC_ZERO_IS_NONE, AT(e2e_ms_p50)},
	{"e2e_ms_p90", "e2e_p90_ms", "ms", false, true, 0, METRIC_ZERO_IS_NONE, AT(e2e_ms_p90)},
	{"e2e_ms_p95", "e2e_p95_ms", "ms", false, true, 0, METRIC_ZERO_IS_NONE, AT(e2e_ms_p95)},
	{"e2e_ms_p99", "e2e_p99_ms", "ms", false, true, 0, METRIC_ZERO_IS_NONE, AT(e2e_ms_p99)},
	{"wait_ms_p50", NULL, "ms", false, false, 0, METRIC_ZERO_IS_NONE, AT(wait_ms_p50)},
	{"wait_ms_p99", NULL, "ms", false, false, 0, METRIC_ZERO_IS_NONE, AT(wait_ms_p99)},
	{"goodput_frac", NULL, "fraction", true, true, METRIC_NEEDS_GOODPUT, METRIC_ZERO_HALF_OF_ALL, AT(goodput_frac)},
	{"goodput_rps", NULL, "req/s", true, true, METRIC_NEEDS_GOODPUT, METRIC_ZERO_HALF_A_RATE, AT(goodput_rps)},
	{"completed_frac", NULL, "fraction", true, true, 0, METRIC_ZERO_HALF_OF_ALL, AT(completed_frac)},
	{"cached_frac", NULL, "fraction", true, true, METRIC_NEEDS_SHARING, METRIC_ZERO_IS_NONE, AT(cached_frac)},
	{"accept_frac", NULL, "fraction", true, true, METRIC_NEEDS_TWO_TOKENS, METRIC_ZERO_IS_NONE, AT(accept_frac)},
	{"accept_length", NULL, "tokens", true, true, METRIC_NEEDS_TWO_TOKENS, METRIC_ZERO_IS_NONE, AT(accept_length)},
	{"client_cpu_frac", NULL, "fraction", false, true, 0, METRIC_ZERO_IS_NONE, AT(client_cpu_frac)},
	{"tokens_per_joule", NULL, "tokens/J", true, true, 0, METRIC_ZERO_IS_NONE, AT(tokens_per_joule)},
};
const size_t metric_specs_count = sizeof metric_specs / sizeof metric_specs[0];

const struct metric_spec *metric_by_name(const char *name)
{
	for (size_t i = 0; name && i < metric_specs_count; i++)
		if (text_equal(metric_specs[i].name, name) || text_equal(metric_specs[i].other, name))
			return &metric_specs[i];
	return NULL;
}

double run_metric_by_name(const struct run_metrics *metrics, const char *name)
{
	const struct metric_spec *spec = metric_by_name(name);
	double value = NAN;
	if (spec)
		memcpy(&value, (const char *)metrics + spec->offset, sizeof value);
	return value;
}

void metric_mean_add(struct metric_mean *mean, const struct metric_spec *spec, double value)
{
	bool counts = spec->zero != METRIC_ZERO_IS_NONE;
	if (!isfinite(value) || value < 0 || (value == 0 && !counts))
		return;
	mean->sum += counts ? value : log(value);
	mean->count++;
}

double metric_mean_log(const struct metric_mean *mean, const struct metric_spec *spec)
{
	if (!mean->count)
		return NAN;
	double average = mean->sum / mean->count;
	return spec->zero == METRIC_ZERO_IS_NONE ? average : log(average);
}

double metric_log_half(const struct metric_spec *spec, double requests, double seconds)
{
	double whole = spec->zero == METRIC_ZERO_HALF_OF_ALL ? requests : spec->zero == METRIC_ZERO_HALF_A_RATE ? seconds : NAN;
	return whole > 0 && isfinite(whole) ? log(0.5 / whole) : NAN;
}

bool goodput_is_stated(const struct goodput_limits *limits)
{
	return limits->ttft_ms > 0 || limits->tpot_ms > 0 || limits->e2e_ms > 0;
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

#define GAP_TOKENS_MAX \
	256 /* guess: above what any speculation brings at once; the rest of a larger count is no sample of its own */

/* Tokens that share the gap before event i, at least one. */
static size_t tokens_of_gap(const struct request_result *request, size_t i)
{
	double tokens = tokens_of_event(request, i);
	return tokens > 1 ? (size_t)lround(fmin(tokens, GAP_TOKENS_MAX)) : 1;
}

static void add_token_gaps(const struct request_result *request, struct samples *itl)
{
	for (size_t i = 1; i < request->n_times; i++) {
		size_t tokens = tokens_of_gap(request, i);
		double gap_ms = (double)(request->token_times_ns[i] - request->token_times_ns[i - 1]) / NS_PER_MS;
		for (size_t k = 0; k < tokens; k++)
			samples_add(itl, gap_ms / fmax(1, tokens_of_event(request, i)));
	}
}

static size_t count_token_gaps(const struct run_result *run)
{
	size_t gaps = 0;
	for (size_t r = 0; r < run->n_requests; r++)
		for (size_t i = 1; run->requests[r].ok && i < run->requests[r].n_times; i++)
			gaps += tokens_of_gap(&run->requests[r], i);
	return gaps;
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

/* A time in which every slot was busy. */
struct window {
	int64_t begin_ns, end_ns;
};

/* The window that a time after its beginning and up to its end lies in; they are in order. */
static bool is_in_a_window(const struct window *windows, size_t n, int64_t at_ns)
{
	size_t low = 0, high = n; /* windows before low begin before at_ns, those from high on do not */
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (windows[middle].begin_ns < at_ns)
			low = middle + 1;
		else
			high = middle;
	}
	return low > 0 && at_ns <= windows[low - 1].end_ns;
}

static double tokens_within(const struct run_result *run, const struct window *windows, size_t n)
{
	double tokens = 0;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		for (size_t i = 0; request->ok && i < request->n_times; i++)
			if (is_in_a_window(windows, n, request->token_times_ns[i]))
				tokens += tokens_of_event(request, i);
	}
	return tokens;
}

/* Beginnings and ends of decoding in order. Returns how many edges there are, two for each request that decodes. */
static size_t collect_edges(const struct run_result *run, struct edge *edges)
{
	size_t n = 0;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		if (!request->ok || request->n_times < 2)
			continue;
		edges[n++] = (struct edge){request->first_token_ns, 1};
		edges[n++] = (struct edge){request->last_token_ns, -1};
	}
	if (n)
		qsort(edges, n, sizeof(*edges), compare_edges);
	return n;
}

static double steady_tokens_per_second(const struct run_result *run, int concurrency)
{
	struct edge *edges = mem_calloc(2 * run->n_requests + 1, sizeof(*edges));
	struct window *windows = mem_calloc(2 * run->n_requests + 1, sizeof(*windows));
	size_t n = collect_edges(run, edges), n_windows = 0;
	int full = concurrency < (int)(n / 2) ? concurrency : (int)(n / 2), busy = 0;
	double ns = 0;
	for (size_t i = 0; i + 1 < n; i++) {
		busy += edges[i].step;
		if (busy < full || edges[i + 1].at_ns == edges[i].at_ns)
			continue;
		windows[n_windows++] = (struct window){edges[i].at_ns, edges[i + 1].at_ns};
		ns += (double)(edges[i + 1].at_ns - edges[i].at_ns);
	}
	double tokens = tokens_within(run, windows, n_windows);
	mem_free(windows);
	mem_free(edges);
	return ns > 0 && full > 0 ? tokens / (ns / NS_PER_S) : NAN;
}

/* Servers that tell neither for each request count both for all. */
static void take_counters(const struct run_result *run, struct run_metrics *out)
{
	const struct run_counters *counters = &run->counters;
	if (run->counted && isnan(out->cached_frac) && counters->looked_up > 0 && counters->cached >= 0)
		out->cached_frac = round(counters->cached) / round(counters->looked_up);
	if (run->counted && isnan(out->accept_frac) && counters->drafted > 0 && counters->accepted >= 0)
		out->accept_frac = round(counters->accepted) / round(counters->drafted);
	out->accept_length = run->counted && counters->rounds > 0 && counters->accepted >= 0
		? 1 + counters->accepted / counters->rounds
		: counters->accept_length > 0 ? counters->accept_length
					      : NAN;
}

/* Counts, and rates over the span of the run's good requests, whose seconds are returned; NaN when there is none. */
static double sum_up(const struct run_result *run, struct run_metrics *out)
{
	int64_t first_ns = INT64_MAX, last_ns = 0;
	int64_t cached = 0, cached_of = 0, accepted = 0, drafted = 0;
	size_t good = 0;
	bool all_counted = true, prompts_counted = true;
	for (size_t r = 0; r < run->n_requests; r++) {
		const struct request_result *request = &run->requests[r];
		if (request->sent_ns > 0 && request->sent_ns < first_ns)
			first_ns = request->sent_ns;
		if (!request->ok)
			continue;
		good++;
		all_counted = all_counted && request->completion_tokens >= 0;
		prompts_counted = prompts_counted && request->prompt_tokens >= 0;
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
	out->cached_frac = cached_of ? (double)cached / (double)cached_of : NAN;
	out->accept_frac = drafted ? (double)accepted / (double)drafted : NAN;
	double seconds = good && last_ns > first_ns ? (double)(last_ns - first_ns) / NS_PER_S : NAN;
	/* A request whose server did not count would make the rate too low; no rate is better than a wrong one. */
	out->output_tps = all_counted ? (double)out->output_tokens / seconds : NAN;
	out->total_tps = all_counted && prompts_counted ? (double)(out->output_tokens + out->prompt_tokens) / seconds : NAN;
	out->request_rps = (double)good / seconds;
	return seconds;
}

static bool is_within(const struct request_result *request, const struct goodput_limits *limits)
{
	double tpot_ms = request_tpot_ms(request);
	bool one_token = request->completion_tokens >= 0 && request->completion_tokens < 2;
	return request->ok && (limits->ttft_ms <= 0 || request_ttft_ms(request) <= limits->ttft_ms) &&
		(limits->tpot_ms <= 0 || one_token || tpot_ms <= limits->tpot_ms) &&
		(limits->e2e_ms <= 0 || request_e2e_ms(request) <= limits->e2e_ms);
}

static void count_goodput(const struct run_result *run, double seconds, struct run_metrics *out)
{
	size_t within = 0;
	out->goodput_frac = out->goodput_rps = NAN;
	if (!goodput_is_stated(&run->goodput) || !run->n_requests)
		return;
	for (size_t r = 0; r < run->n_requests; r++)
		within += is_within(&run->requests[r], &run->goodput);
	out->goodput_frac = (double)within / (double)run->n_requests;
	out->goodput_rps = (double)within / seconds;
}

/* Sorts the samples. out[i] is the quantile of fractions[i]. */
static void take_quantiles(struct samples *samples, const double *fractions, size_t n, double *const *out)
{
	stats_sort(samples->values, samples->count);
	for (size_t i = 0; i < n; i++)
		*out[i] = stats_quantile_sorted(samples->values, samples->count, fractions[i]);
}

static void take_percentiles(struct samples *samples, double *p50, double *p90, double *p95, double *p99)
{
	static const double fractions[] = {0.5, 0.9, 0.95, 0.99};
	double *const out[] = {p50, p90, p95, p99};
	take_quantiles(samples, fractions, 4, out);
}

static void take_latencies(const struct run_result *run, struct run_metrics *out)
{
	size_t n = run->n_requests;
	double *room = mem_calloc(5 * n + count_token_gaps(run) + 1, sizeof(*room));
	struct samples ttft = {room, 0}, tpot = {room + n, 0}, e2e = {room + 2 * n, 0}, tps = {room + 3 * n, 0},
		       wait = {room + 4 * n, 0}, itl = {room + 5 * n, 0};
	for (size_t r = 0; r < n; r++) {
		const struct request_result *request = &run->requests[r];
		if (request->due_ns > 0 && request->sent_ns > 0)
			samples_add(&wait, (double)(request->sent_ns - request->due_ns) / NS_PER_MS);
		if (!request->ok)
			continue;
		samples_add(&ttft, request_ttft_ms(request));
		samples_add(&tpot, request_tpot_ms(request));
		samples_add(&e2e, request_e2e_ms(request));
		if (request->completion_tokens > 0 && request_e2e_ms(request) > 0)
			samples_add(&tps, request->completion_tokens / (request_e2e_ms(request) / 1e3));
		add_token_gaps(request, &itl);
	}
	out->request_tps_mean = samples_mean(&tps);
	take_percentiles(&ttft, &out->ttft_ms_p50, &out->ttft_ms_p90, &out->ttft_ms_p95, &out->ttft_ms_p99);
	take_percentiles(&tpot, &out->tpot_ms_p50, &out->tpot_ms_p90, &out->tpot_ms_p95, &out->tpot_ms_p99);
	take_percentiles(&itl, &out->itl_ms_p50, &out->itl_ms_p90, &out->itl_ms_p95, &out->itl_ms_p99);
	take_percentiles(&e2e, &out->e2e_ms_p50, &out->e2e_ms_p90, &out->e2e_ms_p95, &out->e2e_ms_p99);
	static const double ends[] = {0.5, 0.99};
	double *const waits[] = {&out->wait_ms_p50, &out->wait_ms_p99};
	take_quantiles(&wait, ends, 2, waits);
	mem_free(room);
}

void run_metrics_compute(const struct run_result *run, int concurrency, struct run_metrics *out)
{
	*out = (struct run_metrics){0};
	double seconds = sum_up(run, out);
	take_counters(run, out);
	count_goodput(run, seconds, out);
	take_latencies(run, out);
	out->steady_tps = steady_tokens_per_second(run, concurrency);
	out->client_cpu_frac = run->conditions.client_cpu_frac;
	out->tokens_per_joule =
		run->conditions.joules > 0 ? (double)out->output_tokens / run->conditions.joules : NAN; /* of good requests only */
}
