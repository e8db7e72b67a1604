/* Names of failures, releasing what a launch produced, and the latencies of one request. Pure. */
#include "harness/result.h"

#include <math.h>

#include "base/mem.h"
#include "base/text.h"

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
