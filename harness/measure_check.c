/* What the requests of a run gave, held against what was asked: failures that only show in the answers. */
#include <stdlib.h>

#include "harness/measure_internal.h"

#define CACHED_RANDOM_FRAC_MAX 0.01 /* guess: a first token that all prompts share, and rounding */
#define COUNT_SLACK_TOKENS 2 /* an end token that is counted and not sent, and a parser's cut */

/* Requests that failed on a living server. */
void measuring_check_completed(struct measuring *measuring, const struct run_result *run)
{
	const char *first = NULL;
	size_t failed = 0, unsent = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		failed += !run->requests[i].ok && run->requests[i].sent_ns > 0;
		unsent += run->requests[i].sent_ns == 0;
		first = !first && !run->requests[i].ok ? run->requests[i].error : first;
	}
	double completed = run->n_requests ? (double)(run->n_requests - failed - unsent) / (double)run->n_requests : 1;
	if (measuring_failed(measuring) || completed >= measuring->experiment->guards.completed_frac)
		return;
	struct text log = {0};
	enum failure failure = FAILURE_NONE;
	char reason[512];
	if (measuring->launch)
		logring_read_tail(launch_log(measuring->launch), LOG_EXPLAIN_BYTES, &log);
	if (measuring->target->explain(measuring->target, text_str(&log), true, &failure, reason) && failure == FAILURE_OOM_RUN)
		measuring_fail(measuring, failure, "%s", reason);
	else
		measuring_fail(measuring, FAILURE_CLIENT_ERROR, "client_error: %zu of %zu requests failed%s: %.300s", failed,
			run->n_requests, unsent ? ", after which no more were sent" : "", first);
	text_release(&log);
}

/* A fast answer of the wrong length is no speed. */
static void check_lengths(struct measuring *measuring, const struct workload *workload, const struct run_result *run)
{
	const struct request_result *first = NULL;
	size_t uncounted = 0, wrong = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		if (!request->ok)
			continue;
		uncounted += (request->flags & REQUEST_NO_USAGE) != 0;
		/* A model that may stop early is allowed a short answer, never a long one. */
		bool is_wrong =
			(request->flags & REQUEST_LONG_OUTPUT) || (workload->ignore_eos && (request->flags & REQUEST_SHORT_OUTPUT));
		first = is_wrong && !first ? request : first;
		wrong += is_wrong;
	}
	if (uncounted)
		measuring_fail(measuring, FAILURE_GUARD, "guard: the server told no token counts for %zu of %zu requests",
			uncounted, run->n_requests);
	else if (wrong && measuring->experiment->guards.output_len_exact)
		measuring_fail(measuring, FAILURE_GUARD, "guard: %zu of %zu answers have the wrong length: %d tokens instead of %d",
			wrong, run->n_requests, first->completion_tokens, first->asked_tokens);
}

/* How far the events of a stream are from the server's count of their tokens; 0: no further than chunking explains. Several tokens
 * may come in one event, never one token in several, but for parsers that cut a few; and what a stream counts itself is the count.
 */
static int mismatch_of(const struct request_result *request)
{
	int events = (int)request->n_times, tokens = request->completion_tokens;
	int counted = events ? request->token_counts[events - 1] : 0;
	if (!request->ok || tokens < 0 || events == 0)
		return 0;
	if (counted > 0)
		return abs(counted - tokens);
	return events > tokens ? events - tokens : 0;
}

static void check_counts(struct measuring *measuring, const struct run_result *run)
{
	double limit_pct = measuring->experiment->guards.token_count_mismatch_pct;
	const struct request_result *first = NULL;
	size_t wrong = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		double slack = COUNT_SLACK_TOKENS + limit_pct / 100 * request->completion_tokens;
		if (mismatch_of(request) <= slack)
			continue;
		first = first ? first : request;
		wrong++;
	}
	if (wrong)
		measuring_fail(measuring, FAILURE_GUARD,
			"guard: the stream of %zu of %zu answers does not fit the server's count: %d tokens in %zu events", wrong,
			run->n_requests, first->completion_tokens, first->n_times);
}

/* Prompts of random tokens share nothing, so whatever comes from a cache is a repeated prompt. Texts may share a template. */
static double cached_limit(const struct experiment *experiment, const struct workload *workload)
{
	double limit = experiment->guards.cached_prompt_frac_max;
	if (limit >= 0)
		return limit;
	return workload->dataset == DATASET_RANDOM_IDS ? CACHED_RANDOM_FRAC_MAX : 1; /* groups and traces are made to share */
}

void measuring_check_run(struct measuring *measuring, const struct workload *workload, const struct run_result *run)
{
	struct run_metrics metrics;
	measuring_check_completed(measuring, run);
	check_lengths(measuring, workload, run);
	check_counts(measuring, run);
	run_metrics_compute(run, workload_slots(workload), &metrics);
	double limit = cached_limit(measuring->experiment, workload);
	if (workload->cache == CACHE_COLD && metrics.cached_frac > limit)
		measuring_fail(measuring, FAILURE_GUARD,
			"guard: %.1f %% of the prompt tokens came from a cache that should be cold (limit %.1f %%)",
			metrics.cached_frac * 100, limit * 100);
}
