/* The phases of a launch in order, and what each may find wrong. */
#include "harness/measure.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "harness/environment.h"
#include "harness/measure_internal.h"
#include "harness/sampler.h"

#define LOG_TAIL_BYTES 8192
#define PORT_FREE_TIMEOUT_S 5.0 /* after the last process is gone; guess, the kernel closes sockets at once */
#define FLUSH_TIMEOUT_S 10.0
#define GAP_S_MAX 1.0 /* guess: no scheduler leaves a process out that long unless the machine or a person stopped it */
#define FINGERPRINT_TIMEOUT_S 120.0
#define FAILURES_MAX_LEAST 8 /* guess: enough to see a pattern, soon reached by a server that refuses everything */
#define WARMUP_WINDOW 3 /* passes that must agree; Triton's Perf Analyzer takes as many */
#define WARMUP_PASSES_MAX 100
#define WARMUP_SLOTS_MAX 8 /* of an open loop without a limit: guess, enough for a batch to form */
#define MEMORY_POLL_NS 100000000
#define END_OF_ENGINE_S 1.0 /* guess: a process that has closed its sockets is reaped within this */

/* ---- recording ---- */

bool measuring_failed(const struct measuring *measuring)
{
	return measuring->result->failure != FAILURE_NONE;
}

void measuring_fail(struct measuring *measuring, enum failure failure, const char *reason, ...)
{
	struct launch_result *result = measuring->result;
	if (measuring_failed(measuring))
		return;
	va_list args;
	va_start(args, reason);
	vsnprintf(result->reason, sizeof(result->reason), reason, args);
	va_end(args);
	result->failure = failure;
}

static void report(struct measuring *measuring, int workload, int run, int runs, double tokens_per_s)
{
	struct measure_progress progress = {measuring->result->phase, workload, run, runs, tokens_per_s};
	if (measuring->measure->on_progress)
		measuring->measure->on_progress(measuring->measure->ctx, &progress);
}

/* A failure keeps the phase in which it happened. */
void measuring_enter(struct measuring *measuring, const char *phase)
{
	if (!measuring_failed(measuring))
		snprintf(measuring->result->phase, sizeof(measuring->result->phase), "%s", phase);
	report(measuring, -1, 0, 0, NAN);
}

bool measuring_engine_gone(struct measuring *measuring)
{
	if (!measuring->launch)
		return false;
	const struct launch_state *state = launch_update(measuring->launch);
	return state->exited || state->clean || state->guard_lost;
}

static bool stop_waiting(void *ctx)
{
	struct measuring *measuring = ctx;
	return interrupt_check(measuring->measure->interrupt) || measuring_engine_gone(measuring);
}

void measuring_watch(struct measuring *measuring, struct client_watch *watch)
{
	*watch = (struct client_watch){.stop = stop_waiting, .ctx = measuring};
	watch->fds[watch->n_fds++] = measuring->measure->interrupt->fd;
	if (measuring->launch && launch_fd(measuring->launch) >= 0)
		watch->fds[watch->n_fds++] = launch_fd(measuring->launch);
}

struct request_style measuring_style(const struct measuring *measuring)
{
	return (struct request_style){
		.model = measuring->model.len ? text_str(&measuring->model) : NULL,
		.whole_answer = measuring->target->whole_answers_only,
		.continuous_usage = measuring->target->continuous_usage,
		.no_prompt_cache = measuring->target->per_request_cache,
	};
}

/* ---- explaining ---- */

/* The last line of the log that is not empty, shortened. */
static void last_log_line(const struct text *log, char out[256])
{
	const char *bytes = text_str(log);
	size_t end = log->len;
	while (end > 0 && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r' || bytes[end - 1] == ' '))
		end--;
	size_t begin = end;
	while (begin > 0 && bytes[begin - 1] != '\n')
		begin--;
	snprintf(out, 256, "%.*s", (int)(end - begin < 240 ? end - begin : 240), bytes + begin);
}

/* Processes that the kernel has killed for lack of memory since this launch began; -1: it keeps no count. */
static int64_t oom_kills(const struct measuring *measuring)
{
	struct json *now = measuring->measure->probe->reading(measuring->session);
	int64_t kills = probe_oom_kills(measuring->before, now);
	json_free(now);
	return kills;
}

void measuring_explain_exit(struct measuring *measuring, bool running)
{
	/* What the engine said last may still be in the pipe; all of it is here once the guard is done. */
	const struct launch_state *state = launch_stop(measuring->launch, measuring->engine->term_s);
	struct text log = {0};
	enum failure failure;
	char reason[512], line[256];
	logring_read_tail(launch_log(measuring->launch), LOG_EXPLAIN_BYTES, &log);
	last_log_line(&log, line);
	bool explained = measuring->target->explain(measuring->target, text_str(&log), running, &failure, reason);
	/* The count is the whole machine's: it explains a SIGKILL, of the engine or of a rank whose end it tells, and nothing else.
	 */
	bool killed = state->exit_signal == SIGKILL || (explained && failure == FAILURE_CRASH && strstr(reason, "rank_died"));
	int64_t kills = killed ? oom_kills(measuring) : 0;
	if (kills > 0)
		measuring_fail(measuring, running ? FAILURE_OOM_RUN : FAILURE_OOM_LOAD,
			"%s: the kernel ran out of memory and killed %lld process%s",
			failure_name(running ? FAILURE_OOM_RUN : FAILURE_OOM_LOAD), (long long)kills, kills == 1 ? "" : "es");
	else if (explained)
		measuring_fail(measuring, failure, "%s", reason);
	else if (state->exit_signal == SIGKILL)
		measuring_fail(measuring, FAILURE_CRASH, "crash: killed by SIGKILL, which this program did not send%s",
			kills < 0 ? " (perhaps the kernel, for lack of memory: it keeps no count here)"
				  : ", nor the kernel for lack of memory");
	else if (state->exit_signal > 0)
		measuring_fail(measuring, FAILURE_CRASH, "crash: ended by signal %d (%s)%s%s", state->exit_signal,
			strsignal(state->exit_signal), line[0] ? ": " : "", line);
	else if (state->guard_lost && !state->exited)
		measuring_fail(measuring, FAILURE_CRASH, "crash: the guard process was lost, and the engine with it");
	else
		measuring_fail(measuring, running ? FAILURE_CRASH : FAILURE_LAUNCH_ERROR, "%s: ended with exit code %d%s%s",
			failure_name(running ? FAILURE_CRASH : FAILURE_LAUNCH_ERROR), state->exit_code, line[0] ? ": " : "", line);
	text_release(&log);
}

/* ---- starting ---- */

static enum status start(struct measuring *measuring, struct err *err)
{
	const struct measure *measure = measuring->measure;
	struct string_vector arguments = {0}, overrides = {0}, environment = {0};
	struct json *record = NULL;
	enum status status = measure->runner->free_port(&measuring->port, err);
	struct target_launch target = {measuring->experiment, measuring->arm, measure->engine_program, measuring->port};
	if (!status)
		status = target_command(&target, &arguments, err);
	if (!status)
		status = target_environment(&target, &overrides, err);
	if (!status) {
		environment_build(measure->environment, &overrides, measuring->port, measuring->nonce, &environment, &record);
		measuring->result->command = string_vector_json(&arguments);
		struct text cpus = {0};
		if (measuring->pin.pinned)
			cpu_list_text(&measuring->pin.engine, &cpus);
		struct launch_request request = {.arguments = &arguments,
			.environment = &environment,
			.cpus = text_str(&cpus),
			.guard_program = measure->guard_program};
		status = measure->runner->start(&request, &measuring->launch, err);
		text_release(&cpus);
	}
	if (!status && launch_update(measuring->launch)->exec_errno)
		measuring_fail(measuring, FAILURE_LAUNCH_ERROR, "launch_error: cannot run '%s': %s", arguments.items[0],
			strerror(launch_update(measuring->launch)->exec_errno));
	if (record) {
		measuring->result->probes = json_new_object();
		json_set(measuring->result->probes, "environment", record);
	}
	struct json *pinned = measuring->launch ? pin_record(&measuring->pin, launch_update(measuring->launch)->pid) : NULL;
	if (pinned)
		json_set(measuring->result->probes, "pin", pinned);
	snprintf(measuring->base_url, sizeof(measuring->base_url), "http://%s:%d", measure->runner->host, measuring->port);
	string_vector_release(&arguments);
	string_vector_release(&overrides);
	string_vector_release(&environment);
	return status;
}

/* A running server's address, without a trailing slash or /v1. */
static void attach(struct measuring *measuring)
{
	struct text url = {0};
	text_append_str(&url, measuring->engine->url);
	while (url.len > 0 && url.data[url.len - 1] == '/')
		text_truncate(&url, url.len - 1);
	if (url.len > 3 && strcmp(url.data + url.len - 3, "/v1") == 0)
		text_truncate(&url, url.len - 3);
	snprintf(measuring->base_url, sizeof(measuring->base_url), "%s", text_str(&url));
	text_release(&url);
}

/* ---- running ---- */

/* Requests that broke off often mean that the engine is dying; its end is told a moment later than the broken connection. */
static void wait_for_end_of_engine(struct measuring *measuring, const struct run_result *run)
{
	bool broken = false;
	for (size_t i = 0; i < run->n_requests; i++)
		broken = broken ||
			(!run->requests[i].ok &&
				(run->requests[i].http_status == 0 || (run->requests[i].flags & REQUEST_TRUNCATED)));
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(END_OF_ENGINE_S * 1e9);
	while (broken && measuring->launch && !measuring_engine_gone(measuring) && clock_monotonic_ns() < until_ns) {
		struct pollfd wait = {.fd = launch_fd(measuring->launch), .events = POLLIN};
		poll(&wait, 1, 50);
	}
}

/* More failures than these break the guard, whatever comes after them; 0: there is no such number. A few are always waited for, so
 * that the reason can tell a single refusal from a rain of them. */
static size_t failures_max(const struct measuring *measuring, size_t requests)
{
	double allowed = (1 - measuring->experiment->guards.completed_frac) * (double)requests;
	return allowed < (double)requests ? (size_t)fmax(FAILURES_MAX_LEAST, allowed) : 0;
}

/* One set of bodies and how they are sent. */
struct sending {
	const char *endpoint;
	const struct request_bodies *bodies;
	const int64_t *due_ns; /* NULL: a closed loop */
	int concurrency;
	double timeout_s;
};

/* Sends one set of bodies. What ended it early is a failure or an interruption; what the requests gave is left to the caller. */
static enum status send_bodies(struct measuring *measuring, const struct sending *sending, struct run_result *run,
	struct client_report *report_out, struct err *err)
{
	const struct protocol *protocol = &measuring->experiment->protocol;
	char url[512];
	struct client_watch watch;
	measuring_watch(measuring, &watch);
	snprintf(url, sizeof(url), "%s%s", measuring->base_url, sending->endpoint);
	struct client_load load = {.url = url,
		.bodies = sending->bodies->items,
		.n_bodies = sending->bodies->count,
		.due_ns = sending->due_ns,
		.concurrency = sending->concurrency,
		.run_timeout_s = sending->timeout_s,
		.failures_max = failures_max(measuring, sending->bodies->count),
		/* A whole answer gives no event until it is there. */
		.stall_s = measuring->target->whole_answers_only ? sending->timeout_s : protocol->stall_s,
		.watch = &watch};
	enum status status = client_run_load(measuring->measure->client, &load, run, report_out, err);
	if (status)
		return status;
	if (interrupt_check(measuring->measure->interrupt))
		return err_set(err, STATUS_INTERRUPTED, "interrupted");
	if (report_out->end == CLIENT_COMPLETED || report_out->end == CLIENT_FAILED)
		wait_for_end_of_engine(measuring, run);
	if (measuring_engine_gone(measuring))
		measuring_explain_exit(measuring, true);
	else if (report_out->end == CLIENT_STALLED)
		measuring_fail(measuring, FAILURE_HANG, "hang: no event for %g s while requests were in flight", protocol->stall_s);
	else if (report_out->end == CLIENT_TIMED_OUT)
		measuring_fail(measuring, FAILURE_HANG, "hang: the run did not end within %g s", sending->timeout_s);
	return STATUS_OK;
}

static void flush_cache(struct measuring *measuring)
{
	if (!measuring->target->flush_path)
		return;
	char url[512];
	struct client_watch watch;
	struct client_body body = {"", 0, -1};
	struct client_answer answer;
	measuring_watch(measuring, &watch);
	snprintf(url, sizeof(url), "%s%s", measuring->base_url, measuring->target->flush_path);
	/* Whether it worked shows in the share of cached tokens; an engine without the call has other prompts in every run. */
	client_request(measuring->measure->client, url, NULL, &body, FLUSH_TIMEOUT_S, &watch, &answer, NULL);
	text_release(&answer.body);
}

static struct run_result *add_run(struct launch_result *result, int workload, int index, bool warmup)
{
	result->runs = mem_realloc(result->runs, result->n_runs + 1, sizeof(result->runs[0]));
	struct run_result *run = &result->runs[result->n_runs++];
	*run = (struct run_result){.workload = workload, .index = index, .warmup = warmup};
	return run;
}

/* Warm-up is a closed loop, whatever the load is. */
static int warmup_slots(const struct workload *workload)
{
	int slots = workload_slots(workload);
	return workload->concurrency || slots < WARMUP_SLOTS_MAX ? slots : WARMUP_SLOTS_MAX;
}

static enum status run_once(struct measuring *measuring, int workload_index, int index, bool warmup, struct err *err)
{
	const struct experiment *experiment = measuring->experiment;
	const struct workload *workload = &experiment->workloads[workload_index];
	const struct protocol *protocol = &experiment->protocol;
	struct request_bodies bodies = {0};
	struct request_style style = measuring_style(measuring);
	int requests = warmup ? protocol->warmup_requests * warmup_slots(workload) : workload->requests;
	workload_build_run(workload, warmup ? WORKLOAD_WARMUP_RUN + index : index, requests, protocol->runs_per_launch, &style,
		measuring->vocabulary, &bodies);
	if (workload->cache == CACHE_COLD)
		flush_cache(measuring);
	struct run_counters before = {0}, after = {0};
	bool counts = measuring_read_counters(measuring, &before);
	struct run_result *run = add_run(measuring->result, workload_index, index, warmup);
	struct client_report report_of_run = {0};
	struct sampler *sampler = sampler_start(
		measuring->measure->probe, measuring->session, measuring->launch ? launch_guard_pid(measuring->launch) : 0);
	int64_t *due_ns = warmup ? NULL : workload_due_times(workload, index);
	const struct sending sending = {workload->endpoint, &bodies, due_ns,
		warmup ? warmup_slots(workload) : workload_slots(workload), protocol->run_timeout_s};
	enum status status = send_bodies(measuring, &sending, run, &report_of_run, err);
	mem_free(due_ns);
	run->goodput = workload->goodput;
	for (size_t i = 0; i < run->n_requests; i++)
		run->requests[i].asked_tokens = bodies.items[i].expected_tokens;
	sampler_stop(sampler, &run->conditions);
	run->conditions.client_cpu_frac = report_of_run.cpu_frac;
	run->conditions.client_late_ms = report_of_run.late_ms;
	run->counted = counts && !status && !measuring_failed(measuring) && measuring_read_counters(measuring, &after);
	if (run->counted)
		run->counters = counters_difference(&before, &after);
	if (!status && !measuring_failed(measuring) && workload->cache == CACHE_COLD && run->counters.accept_length <= 0)
		run->counters.accept_length = measuring_read_accept_length(measuring);
	if (!status && !measuring_failed(measuring))
		measuring_check_run(measuring, workload, run);
	run->voided = conditions_void(&run->conditions, &experiment->guards, run->void_reason);
	if (!status && report_of_run.longest_gap_s > GAP_S_MAX) {
		run->voided = true;
		snprintf(run->void_reason, sizeof(run->void_reason), "void: the harness was not run for %.1f s",
			report_of_run.longest_gap_s);
	}
	request_bodies_release(&bodies);
	return status;
}

/* Speed of the run that has just ended. */
static double last_tps(const struct measuring *measuring)
{
	const struct run_result *run = &measuring->result->runs[measuring->result->n_runs - 1];
	struct run_metrics metrics;
	run_metrics_compute(run, workload_slots(&measuring->experiment->workloads[run->workload]), &metrics);
	return metrics.output_tps;
}

/* Warms up once, or again and again until the last three passes agree, which is when caches, clocks and kernels made on demand have
 * settled. A machine on which they never do is measured all the same, and its verdicts show it. */
static enum status warm_up(struct measuring *measuring, int workload_index, struct err *err)
{
	const struct protocol *protocol = &measuring->experiment->protocol;
	double tps[WARMUP_WINDOW] = {0};
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(protocol->warmup_max_s * 1e9);
	enum status status = STATUS_OK;
	for (int pass = 0; pass < WARMUP_PASSES_MAX && !status && !measuring_failed(measuring); pass++) {
		status = run_once(measuring, workload_index, pass, true, err);
		if (status || measuring_failed(measuring) || protocol->warmup_stable_pct <= 0)
			break;
		tps[pass % WARMUP_WINDOW] = last_tps(measuring);
		double low = tps[0], high = tps[0];
		for (int i = 1; i < WARMUP_WINDOW; i++) {
			low = fmin(low, tps[i]);
			high = fmax(high, tps[i]);
		}
		bool stable = pass + 1 >= WARMUP_WINDOW && high <= low * (1 + protocol->warmup_stable_pct / 100);
		if (stable || clock_monotonic_ns() >= until_ns)
			break;
	}
	return status;
}

static enum status run_workload(struct measuring *measuring, int workload_index, int *done, int total, struct err *err)
{
	const struct experiment *experiment = measuring->experiment;
	enum status status = STATUS_OK;
	if (experiment->protocol.warmup_requests > 0) {
		measuring_enter(measuring, "warmup");
		status = warm_up(measuring, workload_index, err);
	}
	if (!status)
		measuring_enter(measuring, "run");
	for (int i = 0; i < experiment->protocol.runs_per_launch && !status && !measuring_failed(measuring); i++) {
		report(measuring, workload_index, *done + 1, total, NAN);
		status = run_once(measuring, workload_index, i, false, err);
		(*done)++;
		if (status)
			break;
		report(measuring, workload_index, *done, total, last_tps(measuring));
	}
	return status;
}

/* Greedy answers to fixed prompts, one at a time, so that batching cannot change them. */
static enum status take_fingerprint(struct measuring *measuring, struct err *err)
{
	int prompts = measuring->experiment->guards.fingerprint_prompts;
	if (prompts == 0)
		return STATUS_OK;
	struct request_bodies bodies = {0};
	struct request_style style = measuring_style(measuring);
	const char *endpoint = measuring->experiment->workloads[0].endpoint;
	style.chat = strcmp(endpoint, "/v1/chat/completions") == 0;
	int asked = measuring->experiment->guards.fingerprint_tokens;
	if (asked == 0)
		asked = workload_fingerprint_tokens(measuring->experiment->workloads, measuring->experiment->n_workloads);
	workload_build_fingerprint(prompts, asked, &style, &bodies);
	measuring_enter(measuring, "warmup");
	struct run_result run = {0};
	struct client_report report_of_run = {0};
	const struct sending sending = {endpoint, &bodies, NULL, 1, FINGERPRINT_TIMEOUT_S};
	enum status status = send_bodies(measuring, &sending, &run, &report_of_run, err);
	if (!status && !measuring_failed(measuring))
		measuring_check_completed(measuring, &run);
	if (!status && !measuring_failed(measuring)) {
		struct json *texts = json_new_array();
		struct text text = {0};
		for (size_t i = 0; i < run.n_requests; i++)
			json_append(texts, json_new_string(run.requests[i].text));
		json_write(texts, JSON_STYLE_COMPACT, &text);
		measuring->result->fingerprint = text_take(&text);
		json_free(texts);
	}
	run_result_release(&run);
	request_bodies_release(&bodies);
	return status;
}

static enum status run_all(struct measuring *measuring, struct err *err)
{
	const struct experiment *experiment = measuring->experiment;
	int arm = (int)(measuring->arm - experiment->arms), total = 0, done = 0;
	for (int i = 0; i < experiment->n_workloads; i++)
		total += experiment->workloads[i].applies[arm] ? experiment->protocol.runs_per_launch : 0;
	enum status status = take_fingerprint(measuring, err);
	for (int i = 0; i < experiment->n_workloads && !status && !measuring_failed(measuring); i++)
		if (experiment->workloads[i].applies[arm])
			status = run_workload(measuring, i, &done, total, err);
	return status;
}

/* ---- ending ---- */

/* Memory that outlives its processes would be missing to the next launch, which would be blamed for it. The kernel takes a while to
 * give back much memory, so it gets one. */
static void wait_for_memory(struct measuring *measuring)
{
	const struct engine_spec *engine = measuring->engine;
	struct launch_result *result = measuring->result;
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(engine->memory_wait_s * 1e9);
	while (!result->machine_dirty) {
		char what[128];
		struct json *now = measuring->measure->probe->reading(measuring->session);
		bool held = probe_memory_held(measuring->before, now, engine->memory_within_mib, what);
		json_free(now);
		if (!held)
			return;
		result->machine_dirty = clock_monotonic_ns() > until_ns || interrupt_check(measuring->measure->interrupt);
		if (result->machine_dirty)
			snprintf(result->dirty_reason, sizeof(result->dirty_reason), "%s", what);
		else
			clock_sleep_ns(MEMORY_POLL_NS);
	}
}

static void stop(struct measuring *measuring)
{
	struct launch_result *result = measuring->result;
	if (!measuring->launch)
		return;
	result->peak_memory_bytes = measuring->measure->runner->peak_memory_bytes(measuring->launch);
	measuring_enter(measuring, "stop");
	const struct launch_state *state = launch_stop(measuring->launch, measuring->engine->term_s);
	result->exit_code = state->exit_code;
	result->exit_signal = state->exit_signal;
	result->machine_dirty = state->survivors > 0;
	if (result->machine_dirty)
		snprintf(result->dirty_reason, sizeof(result->dirty_reason), "processes of the engine are left");
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(PORT_FREE_TIMEOUT_S * 1e9);
	while (!result->machine_dirty && !measuring->measure->runner->port_is_free(measuring->port)) {
		result->machine_dirty = clock_monotonic_ns() > until_ns;
		if (result->machine_dirty)
			snprintf(result->dirty_reason, sizeof(result->dirty_reason), "port %d is still listened on",
				measuring->port);
		clock_sleep_ns(10000000);
	}
	wait_for_memory(measuring);
	struct text tail = {0};
	logring_read_tail(launch_log(measuring->launch), LOG_TAIL_BYTES, &tail);
	result->log_tail = text_take(&tail);
	launch_destroy(measuring->launch);
	measuring->launch = NULL;
}

enum status measure_launch(const struct measure *measure, int arm, struct launch_result *out, struct err *err)
{
	const struct experiment *experiment = measure->experiment;
	const struct engine_spec *engine = arm_engine(experiment, &experiment->arms[arm]);
	*out = (struct launch_result){.arm = arm, .exit_code = -1, .exit_signal = -1, .started_utc_ns = clock_realtime_ns()};
	struct measuring measuring = {.measure = measure,
		.experiment = experiment,
		.arm = &experiment->arms[arm],
		.engine = engine,
		.target = target_of_engine(engine),
		.result = out,
		.vocabulary = WORKLOAD_VOCABULARY_DEFAULT,
		.begin_ns = clock_monotonic_ns()};
	ASSERT(measuring.target);
	snprintf(measuring.nonce, sizeof(measuring.nonce), "%016llx%016llx", (unsigned long long)random_entropy(),
		(unsigned long long)random_entropy());
	measuring.session = measure->probe->open();
	measuring.before = measure->probe->reading(measuring.session);
	enum status status = STATUS_OK;
	measuring_enter(&measuring, "launch");
	status = pin_begin(experiment, &measuring.pin, err);
	if (!status && measuring.target->launches)
		status = start(&measuring, err);
	else if (!status)
		attach(&measuring);
	if (!status && !measuring_failed(&measuring))
		status = measuring_wait_ready(&measuring, err);
	if (!status && !measuring_failed(&measuring))
		status = run_all(&measuring, err);
	stop(&measuring);
	out->total_ns = clock_monotonic_ns() - measuring.begin_ns;
	if (!out->probes)
		out->probes = json_new_object();
	json_set(out->probes, "machine", probe_compare(measuring.before, measure->probe->reading(measuring.session)));
	measure->probe->close(measuring.session);
	pin_end(&measuring.pin);
	text_release(&measuring.model);
	return status;
}
