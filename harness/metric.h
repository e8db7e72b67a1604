/* The metrics of one run: how each is defined, which way is better, and what a load must have to give it. Computed from the raw
 * samples of a run; percentiles interpolate between order statistics as numpy does. Pure.
 *
 * Definitions are those of the serving benchmarks of vLLM (benchmarks/serve) and SGLang (bench_serving), but for what is said here:
 *   TTFT  first token - send. An event without output is no token.
 *   E2E   last token - send; sockets that stay open add nothing.
 *   TPOT  (last token - first token) / (tokens - 1), of requests with at least two tokens that came at different times.
 *   ITL   gap between two arrivals / tokens of the later one, once for each of these tokens (as SGLang; vLLM takes the bare gap,
 * which makes speculation look slow). Tokens of an event are those that continuous usage tells, else an even share. Tokens come
 * from the server's usage, never from events or a tokenizer. Times count from the actual send; what an open loop's request waited
 * before it, for a free slot or for the client, is wait. Goodput: requests that succeed within every limit that the workload
 * states. A request of one token has no TPOT to miss. */
#ifndef HARNESS_METRIC_H
#define HARNESS_METRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run_result;

/* Limits of single requests in milliseconds; 0: none. */
struct goodput_limits {
	double ttft_ms, tpot_ms, e2e_ms;
};
bool goodput_is_stated(const struct goodput_limits *limits);

/* NaN where undefined. */
struct run_metrics {
	double output_tps; /* completed output tokens / (last token - first send), failed requests excluded */
	double steady_tps; /* over the window in which every slot was busy */
	double total_tps; /* as output_tps, of prompt and output tokens */
	double request_rps; /* completed requests over the same time */
	double request_tps_mean; /* mean of each request's own tokens / E2E */
	double ttft_ms_p50, ttft_ms_p90, ttft_ms_p95, ttft_ms_p99;
	double tpot_ms_p50, tpot_ms_p90, tpot_ms_p95, tpot_ms_p99;
	double itl_ms_p50, itl_ms_p90, itl_ms_p95, itl_ms_p99;
	double e2e_ms_p50, e2e_ms_p90, e2e_ms_p95, e2e_ms_p99;
	double wait_ms_p50, wait_ms_p99;
	double goodput_frac; /* of all requests */
	double goodput_rps; /* such requests, over the time of output_tps */
	double completed_frac; /* good requests of all */
	double cached_frac; /* cached prompt tokens of all prompt tokens, over requests that tell both */
	double accept_frac; /* accepted draft tokens of all drafted, over requests that tell both, else from the server's counters
			     */
	double accept_length; /* mean tokens that a verify step yields, its own one included, as the server counts */
	double client_cpu_frac; /* of one core */
	double tokens_per_joule; /* output tokens, where the conditions tell the energy */
	int64_t prompt_tokens, output_tokens;
};

/* output_tps needs two different times; steady_tps is over the time in which min(concurrency, requests) good requests were between
 * their first and last token. */
void run_metrics_compute(const struct run_result *run, int concurrency, struct run_metrics *out);

/* What a load must have to give a metric. */
enum {
	METRIC_NEEDS_STREAM = 1, /* times of single tokens */
	METRIC_NEEDS_TWO_TOKENS = 2, /* answers of more than one token */
	METRIC_NEEDS_CLOSED_LOOP = 4,
	METRIC_NEEDS_GOODPUT = 8, /* limits of single requests */
	METRIC_NEEDS_SHARING = 16 /* prompts that have something in common */
};

/* Whether zero, which has no logarithm, is a value of the metric. Where it is, the metric counts requests, and half a request (of
 * all, or over the time) stands for zero beside launches that are above it. */
enum metric_zero { METRIC_ZERO_IS_NONE, METRIC_ZERO_HALF_OF_ALL, METRIC_ZERO_HALF_A_RATE };

struct metric_spec {
	const char *name;
	const char *other; /* the spelling with the percentile in the middle that other tools use; NULL: none */
	const char *unit;
	bool higher_is_better;
	bool decides; /* may be the metric of an experiment, or a limit */
	unsigned needs;
	enum metric_zero zero;
	size_t offset; /* of the double in struct run_metrics */
};
extern const struct metric_spec metric_specs[];
extern const size_t metric_specs_count;

const struct metric_spec *metric_by_name(const char *name); /* by either spelling; NULL for unknown names */
double run_metric_by_name(const struct run_metrics *metrics, const char *name); /* NaN for unknown names */

/* The mean of a metric over the runs of a launch: geometric; arithmetic where zero is a value, because counts add up.
 * Zero-initialised. Values that are none are passed over. */
struct metric_mean {
	double sum;
	int count;
};
void metric_mean_add(struct metric_mean *mean, const struct metric_spec *spec, double value);
/* Its ln, as comparisons take it: -INFINITY when every run gave zero, NaN when none gave a value. */
double metric_mean_log(const struct metric_mean *mean, const struct metric_spec *spec);

/* ln of half a request, of so many or over so many seconds; NaN where zero is no value of the metric. */
double metric_log_half(const struct metric_spec *spec, double requests, double seconds);

#endif
