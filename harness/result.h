/* What one launch of one arm produced: raw samples and how it ended. Filled by measuring, kept by the store, judged by verdict. */
#ifndef HARNESS_RESULT_H
#define HARNESS_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "harness/metric.h"

enum failure {
	FAILURE_NONE,
	FAILURE_LAUNCH_ERROR,
	FAILURE_READY_TIMEOUT,
	FAILURE_OOM_LOAD,
	FAILURE_OOM_RUN,
	FAILURE_CRASH,
	FAILURE_HANG,
	FAILURE_CLIENT_ERROR,
	FAILURE_INACTIVE,
	FAILURE_WRONG_OUTPUT,
	FAILURE_GUARD
};
const char *failure_name(enum failure failure); /* "oom_load", … ; "none" */
bool failure_from_name(const char *name, enum failure *out);

/* Flags of a request that qualify its numbers. */
enum {
	REQUEST_NO_USAGE = 1,
	REQUEST_SHORT_OUTPUT = 2,
	REQUEST_NO_OUTPUT = 4,
	REQUEST_TRUNCATED = 8,
	REQUEST_LONG_OUTPUT = 16,
	REQUEST_NOT_STREAMED = 32 /* the whole answer came as one document: no time of a first token */
};
#define REQUEST_FLAGS_COUNT 6
const char *request_flag_name(unsigned flag); /* "no usage", "short output", …; flag has one bit set */

/* Times are nanoseconds of the monotonic clock; 0 = did not happen. Counts are -1 where the server did not say. */
struct request_result {
	bool ok;
	int http_status;
	unsigned flags;
	char *error; /* NULL when ok */
	char *text; /* joined output; may hold NULs as U+FFFD */
	char finish_reason[24];
	int prompt_tokens, completion_tokens, cached_tokens, drafted, accepted;
	int asked_tokens; /* max_tokens of the request; 0 or -1 unknown */
	int64_t due_ns; /* when an open loop wanted it sent; 0: in a closed loop */
	int64_t sent_ns, first_token_ns, last_token_ns, end_ns;
	int64_t *token_times_ns; /* arrival of each event that carried output */
	int *token_counts; /* tokens known to have arrived by then when usage is continuous, else 0 */
	size_t n_times;
};

/* What the machine was like during a run. NaN or -1 where unknown. Shares of CPU time are of all CPUs, but the client's is of one.
 */
struct run_conditions {
	int samples;
	double seconds;
	double client_late_ms; /* see client_report; 0 in closed loops */
	double client_cpu_frac, engine_cpu_frac, foreign_cpu_frac, steal_cpu_frac;
	double throttle_frac; /* of the intervals between samples */
	double cpu_mhz, cpu_celsius_max;
	double memory_available_mib_min;
	int foreign_gpu_processes; /* most at once, on GPUs that the engine uses */
	int gpus; /* that the engine uses */
	double gpu_mhz, gpu_celsius_max, gpu_watts; /* means over these GPUs; watts are their sum */
	double joules; /* of these GPUs, and of the CPUs where they tell */
};

/* What the server counted during a run, other clients included; -1: unknown. */
struct run_counters {
	double prompt, generated, looked_up, cached, drafted, accepted;
	double rounds; /* of drafting and verifying */
	double accept_length; /* mean tokens of a verify step, where the server tells it itself; 0: it does not */
};

struct run_result {
	int workload; /* index into experiment->workloads */
	int index; /* 0-based among measured runs of that workload in this launch */
	bool warmup;
	bool voided;
	char void_reason[128];
	struct request_result *requests;
	size_t n_requests;
	int64_t begin_ns, end_ns;
	struct goodput_limits goodput; /* of its workload */
	struct run_conditions conditions;
	bool counted; /* counters were read */
	struct run_counters counters;
};

struct launch_result {
	int arm, block, order; /* arm index, block from 0, position within the block */
	int attempt; /* 0, or the retry number */
	enum failure failure;
	char reason[512]; /* begins with the class when failed: "oom_load: needs mem_fraction 0.31" */
	char phase[24]; /* "launch", "ready", "warmup", "run", "stop" */
	bool machine_dirty; /* the machine did not come back; blame it, not the next candidate */
	char dirty_reason[128]; /* what is left of it; "" when nothing is */
	int exit_code, exit_signal; /* -1 where unknown; after our own stop request both say how it stopped */
	int64_t started_utc_ns, spawn_to_ready_ns, total_ns;
	uint64_t peak_memory_bytes; /* largest resident set of the process tree seen; 0 unknown */
	char *log_tail; /* last lines, at most 8 KiB */
	char *command; /* argument vector as JSON */
	struct json *effective_config; /* read back; NULL when the adapter has none */
	struct json *probes; /* machine readings; NULL when none */
	char *fingerprint; /* greedy outputs on the fixed prompts as a JSON array of texts; NULL when not taken */
	struct run_result *runs;
	size_t n_runs;
};

/* Of one request; NaN where undefined. End to end counts to the last token where there is one, so that a socket that the server
 * keeps open adds nothing. Time per output token needs two tokens that arrived at different times to be told. */
double request_ttft_ms(const struct request_result *request);
double request_tpot_ms(const struct request_result *request);
double request_e2e_ms(const struct request_result *request);

void request_result_release(struct request_result *request);
void run_result_release(struct run_result *run);
void launch_result_release(struct launch_result *launch);

#endif
