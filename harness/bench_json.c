/* Sums over runs and how they are written. */
#include "harness/bench_json.h"

#include <math.h>
#include <stdio.h>

#include "base/mem.h"
#include "harness/stats.h"

/* What is said of a run, and of all runs together. */
struct summary {
	size_t requests, failed;
	int64_t prompt_tokens, tokens; /* of good requests */
	bool prompt_known, tokens_known;
	double seconds; /* from the first send to the last token */
};

static void sum_run(const struct run_result *run, struct summary *summary)
{
	int64_t first_ns = INT64_MAX, last_ns = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		summary->requests++;
		if (!request->ok) {
			summary->failed++;
			continue;
		}
		summary->tokens_known = summary->tokens_known && request->completion_tokens >= 0;
		summary->prompt_known = summary->prompt_known && request->prompt_tokens >= 0;
		summary->tokens += request->completion_tokens > 0 ? request->completion_tokens : 0;
		summary->prompt_tokens += request->prompt_tokens > 0 ? request->prompt_tokens : 0;
		first_ns = request->sent_ns < first_ns ? request->sent_ns : first_ns;
		last_ns = request->end_ns > last_ns ? request->end_ns : last_ns;
	}
	if (last_ns > first_ns)
		summary->seconds += (double)(last_ns - first_ns) / 1e9;
}

static struct summary sum_runs(const struct run_result *runs, size_t n)
{
	struct summary summary = {.tokens_known = true, .prompt_known = true};
	for (size_t i = 0; i < n; i++)
		sum_run(&runs[i], &summary);
	if (summary.failed == summary.requests)
		summary.tokens_known = summary.prompt_known = false;
	return summary;
}

/* NaN when it would be a division by nothing or a count that nobody told. */
static double rate(const struct summary *summary)
{
	return summary->tokens_known && summary->seconds > 0 ? (double)summary->tokens / summary->seconds : NAN;
}

static void write_counts(const struct summary *summary, struct text *out)
{
	if (summary->tokens_known)
		text_printf(out, "%lld tokens", (long long)summary->tokens);
	else
		text_append_str(out, "tokens unknown");
	text_printf(out, "  %.3f s", summary->seconds);
	if (isfinite(rate(summary)))
		text_printf(out, "  %.1f tok/s", rate(summary));
	if (summary->prompt_known)
		text_printf(out, "  prompt %lld", (long long)summary->prompt_tokens);
	if (summary->failed)
		text_printf(out, "  %zu of %zu requests failed", summary->failed, summary->requests);
}

void bench_run_line(const struct run_result *run, int number, int runs, int concurrency, struct text *out)
{
	struct summary summary = sum_runs(run, 1);
	struct run_metrics metrics;
	run_metrics_compute(run, concurrency, &metrics);
	text_printf(out, "%s %d/%d  ", run->warmup ? "warm-up" : "run", number, runs);
	write_counts(&summary, out);
	if (isfinite(metrics.ttft_ms_p50))
		text_printf(out, "  first token %.1f ms", metrics.ttft_ms_p50);
	text_append_char(out, '\n');
}

/* Rates of runs in the order of runs, their median, and which of them do not belong to the others. */
struct spread {
	double *rates, median;
	bool *is_outlier;
	size_t n, n_outliers;
};

static struct spread spread_of(const struct run_result *runs, size_t n)
{
	struct spread spread = {.rates = mem_calloc(n + 1, sizeof(double)), .is_outlier = mem_calloc(n + 1, sizeof(bool)), .n = n};
	for (size_t i = 0; i < n; i++) {
		struct summary one = sum_runs(&runs[i], 1);
		spread.rates[i] = rate(&one);
	}
	spread.median = stats_quantile(spread.rates, n, 0.5);
	spread.n_outliers = stats_outliers(spread.rates, n, spread.is_outlier);
	return spread;
}

static void spread_release(struct spread *spread)
{
	mem_free(spread->rates);
	mem_free(spread->is_outlier);
}

static void say_outliers(const struct spread *spread, struct text *out)
{
	for (size_t i = 0; i < spread->n; i++)
		if (spread->is_outlier[i])
			text_printf(out, "noisy: run %zu is %.0f %% %s than the median: an outlier%s\n", i + 1,
				100 * fabs(spread->rates[i] / spread->median - 1),
				spread->rates[i] < spread->median ? "slower" : "faster",
				i == 0 && spread->rates[i] < spread->median ? ", the server was not warm (--warmup)" : "");
}

void bench_overall_line(const struct run_result *runs, size_t n, int concurrency, struct text *out)
{
	struct summary all = sum_runs(runs, n);
	struct spread spread = spread_of(runs, n);
	double low = INFINITY, high = -INFINITY;
	for (size_t i = 0; i < n; i++) {
		low = fmin(low, spread.rates[i]);
		high = fmax(high, spread.rates[i]);
	}
	text_append_str(out, "overall  ");
	write_counts(&all, out);
	if (n > 1 && isfinite(low))
		text_printf(out, "  runs %.1f to %.1f tok/s", low, high);
	if (n > 2 && isfinite(spread.median))
		text_printf(out, "  median %.1f", spread.median);
	text_append_char(out, '\n');
	say_outliers(&spread, out);
	spread_release(&spread);
}

static struct json *new_count(bool known, int64_t count)
{
	return known ? json_new_integer(count) : json_new_null();
}

/* {"503": 2}: how often each answer came among the failed; "none" where no answer came. */
static struct json *new_failures(const struct run_result *runs, size_t n)
{
	struct json *counts = json_new_object();
	for (size_t r = 0; r < n; r++) {
		for (size_t i = 0; i < runs[r].n_requests; i++) {
			if (runs[r].requests[i].ok)
				continue;
			char key[16] = "none";
			if (runs[r].requests[i].http_status > 0)
				snprintf(key, sizeof(key), "%d", runs[r].requests[i].http_status);
			json_set(counts, key, json_new_integer(json_int(json_get(counts, key), 0) + 1));
		}
	}
	return counts;
}

static struct json *new_summary(const struct run_result *runs, size_t n)
{
	struct summary summary = sum_runs(runs, n);
	struct json *object = json_new_object();
	json_set(object, "requests", json_new_integer((int64_t)summary.requests));
	json_set(object, "failed", json_new_integer((int64_t)summary.failed));
	json_set(object, "failed_by_status", new_failures(runs, n));
	json_set(object, "prompt_tokens", new_count(summary.prompt_known, summary.prompt_tokens));
	json_set(object, "completion_tokens", new_count(summary.tokens_known, summary.tokens));
	json_set(object, "seconds", json_new_number(summary.seconds));
	json_set(object, "tok_per_s", json_new_number(rate(&summary)));
	return object;
}

static struct json *new_run(const struct run_result *run, int number, int concurrency)
{
	struct json *object = new_summary(run, 1);
	struct run_metrics metrics;
	run_metrics_compute(run, concurrency, &metrics);
	json_set(object, "run", json_new_integer(number));
	static const char *const names[] = {"steady_tps", "ttft_ms_p50", "ttft_ms_p90", "tpot_ms_p50", "tpot_ms_p90", "itl_ms_p50",
		"itl_ms_p99", "e2e_ms_p50", "e2e_ms_p90", "cached_frac", "accept_frac"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		json_set(object, names[i], json_new_number(run_metric_by_name(&metrics, names[i])));
	return object;
}

static struct json *new_request(const struct request_result *request, int run)
{
	struct json *object = json_new_object(), *flags = json_new_array();
	json_set(object, "run", json_new_integer(run));
	json_set(object, "ok", json_new_bool(request->ok));
	json_set(object, "error", json_new_string(request->error));
	json_set(object, "status", new_count(request->http_status > 0, request->http_status));
	json_set(object, "prompt_tokens", new_count(request->prompt_tokens >= 0, request->prompt_tokens));
	json_set(object, "completion_tokens", new_count(request->completion_tokens >= 0, request->completion_tokens));
	json_set(object, "cached_tokens", new_count(request->cached_tokens >= 0, request->cached_tokens));
	json_set(object, "text", json_new_string(request->text));
	json_set(object, "ttft_ms", json_new_number(request_ttft_ms(request)));
	json_set(object, "e2e_ms", json_new_number(request_e2e_ms(request)));
	json_set(object, "tpot_ms", json_new_number(request_tpot_ms(request)));
	json_set(object, "finish_reason", json_new_string(request->finish_reason[0] ? request->finish_reason : NULL));
	for (int bit = 0; bit < REQUEST_FLAGS_COUNT; bit++)
		if (request->flags & (1u << bit))
			json_append(flags, json_new_string(request_flag_name(1u << bit)));
	json_set(object, "flags", flags);
	return object;
}

struct json *bench_document(const struct run_result *runs, size_t n, int concurrency)
{
	struct json *document = json_new_object(), *run_list = json_new_array(), *requests = json_new_array();
	for (size_t r = 0; r < n; r++) {
		json_append(run_list, new_run(&runs[r], (int)r + 1, concurrency));
		for (size_t i = 0; i < runs[r].n_requests; i++)
			json_append(requests, new_request(&runs[r].requests[i], (int)r + 1));
	}
	json_set(document, "runs", run_list);
	struct json *overall = new_summary(runs, n), *outliers = json_new_array();
	struct spread spread = spread_of(runs, n);
	for (size_t i = 0; i < n; i++)
		if (spread.is_outlier[i])
			json_append(outliers, json_new_integer((int64_t)i + 1));
	json_set(overall, "median_tok_per_s", json_new_number(spread.median));
	json_set(overall, "outlier_runs", outliers);
	spread_release(&spread);
	json_set(document, "overall", overall);
	json_set(document, "requests", requests);
	return document;
}

size_t bench_failed(const struct run_result *runs, size_t n, size_t *total, const char **first_error)
{
	size_t failed = 0;
	*total = 0;
	*first_error = NULL;
	for (size_t r = 0; r < n; r++) {
		for (size_t i = 0; i < runs[r].n_requests; i++) {
			(*total)++;
			if (runs[r].requests[i].ok)
				continue;
			failed++;
			*first_error = *first_error ? *first_error : runs[r].requests[i].error;
		}
	}
	return failed;
}
