/* Made-up launches. See launch_make.h. */
#include "tests/support/launch_make.h"

#include <stdio.h>

#include "base/mem.h"

#define REQUESTS 2
#define TOKENS 4

/* All requests are sent at once; their tokens end at the same time, so that tok/s is tokens over that time. */
static void make_request(struct request_result *request, int64_t begin_ns, int64_t duration_ns)
{
	*request = (struct request_result){.ok = true,
		.http_status = 200,
		.prompt_tokens = 16,
		.completion_tokens = TOKENS,
		.cached_tokens = -1,
		.drafted = -1,
		.accepted = -1,
		.sent_ns = begin_ns,
		.n_times = TOKENS};
	snprintf(request->finish_reason, sizeof request->finish_reason, "length");
	request->text = mem_strdup("one two three four");
	request->token_times_ns = mem_calloc(TOKENS, sizeof *request->token_times_ns);
	request->token_counts = mem_calloc(TOKENS, sizeof *request->token_counts);
	for (int i = 0; i < TOKENS; i++) {
		request->token_times_ns[i] = begin_ns + duration_ns * (i + 1) / TOKENS;
		request->token_counts[i] = i + 1;
	}
	request->first_token_ns = request->token_times_ns[0];
	request->last_token_ns = request->token_times_ns[TOKENS - 1];
	request->end_ns = request->last_token_ns;
}

static void make_run(struct run_result *run, int workload, int index, bool warmup, double tps)
{
	int64_t begin_ns = 1000000000, duration_ns = (int64_t)(1e9 * REQUESTS * TOKENS / tps);
	*run = (struct run_result){.workload = workload,
		.index = index,
		.warmup = warmup,
		.n_requests = REQUESTS,
		.begin_ns = begin_ns,
		.end_ns = begin_ns + duration_ns};
	run->requests = mem_calloc(REQUESTS, sizeof *run->requests);
	for (int i = 0; i < REQUESTS; i++)
		make_request(&run->requests[i], begin_ns, duration_ns);
}

void launch_make(struct launch_result *launch, const struct experiment *experiment, int arm, int block, double tps)
{
	*launch = (struct launch_result){.arm = arm,
		.block = block,
		.order = arm,
		.exit_code = 0,
		.exit_signal = -1,
		.started_utc_ns = 1700000000000000000 + block,
		.spawn_to_ready_ns = 900000000,
		.total_ns = 4000000000,
		.peak_memory_bytes = 123456789};
	launch->command = mem_strdup("[\"verdict-engine\",\"serve\"]");
	launch->log_tail = mem_strdup("ready\n");
	launch->fingerprint = mem_strdup("[\"a\",\"b\"]");
	launch->runs = mem_calloc((size_t)experiment->n_workloads * 3, sizeof *launch->runs);
	for (int workload = 0; workload < experiment->n_workloads; workload++)
		for (int i = 0; i < 3 && experiment->workloads[workload].applies[arm]; i++)
			make_run(&launch->runs[launch->n_runs++], workload, i ? i - 1 : 0, i == 0, tps);
}

void launch_make_failed(struct launch_result *launch, int arm, int block, enum failure failure, const char *reason)
{
	*launch = (struct launch_result){.arm = arm,
		.block = block,
		.order = arm,
		.failure = failure,
		.exit_code = 3,
		.exit_signal = -1,
		.started_utc_ns = 1700000000000000000 + block,
		.total_ns = 300000000};
	snprintf(launch->reason, sizeof launch->reason, "%s", reason);
	snprintf(launch->phase, sizeof launch->phase, "launch");
	launch->log_tail = mem_strdup("loading\n{\"error\":\"not_enough_memory\"}\n");
}
