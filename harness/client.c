/* Loads and single requests: which body is sent when, what ends a wait, and what came of each request. */
#include "harness/client.h"

#include <stdio.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "harness/completion.h"
#include "harness/pacer.h"
#include "harness/stats.h"
#include "harness/transfer.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1000000

/* A server that keeps the socket open after "[DONE]" gets this long to end its answer in good order; guess, two thirds of the time
 * after which a reader would call it slow. It is no part of any figure. */
#define LINGER_NS ((int64_t)50 * NS_PER_MS)

#define OPEN_FILES_SPARE 64 /* beside the requests: database, log, terminal, guard */
#define OPEN_FILES_WANTED ((rlim_t)CLIENT_CONCURRENCY_MAX + OPEN_FILES_SPARE)

#define LATE_FRACTION 0.99 /* of the requests, those that were sent latest left out */
#define WAIT_NS_MAX ((int64_t)250 * NS_PER_MS) /* how late a passed deadline may be noticed */

struct client {
	struct transfer_loop *loop;
};

/* Every request in flight is an open file. Raised at once and not when a load needs it, so that all engines started by this process
 * inherit the same limit. */
static void allow_open_files(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= OPEN_FILES_WANTED)
		return;
	limit.rlim_cur = limit.rlim_max < OPEN_FILES_WANTED ? limit.rlim_max : OPEN_FILES_WANTED;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static enum status check_concurrency(int concurrency, struct err *err)
{
	struct rlimit limit = {0};
	if (concurrency < 1 || concurrency > CLIENT_CONCURRENCY_MAX)
		return err_set(err, STATUS_INPUT, "concurrency %d is outside 1..%d", concurrency, CLIENT_CONCURRENCY_MAX);
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)concurrency + OPEN_FILES_SPARE > limit.rlim_cur)
		return err_set(err, STATUS_UNAVAILABLE, "concurrency %d needs %d open files, the limit is %llu (ulimit -n)",
			concurrency, concurrency + OPEN_FILES_SPARE, (unsigned long long)limit.rlim_cur);
	return STATUS_OK;
}

enum status client_check_url(const char *url, struct err *err)
{
	return transfer_check_url(url, err);
}

enum status client_create(struct client **out, struct err *err)
{
	*out = NULL;
	allow_open_files();
	struct client *client = mem_calloc(1, sizeof(*client));
	enum status status = transfer_loop_create(&client->loop, err);
	if (status)
		mem_free(client);
	else
		*out = client;
	return status;
}

void client_destroy(struct client *client)
{
	if (!client)
		return;
	transfer_loop_destroy(client->loop);
	mem_free(client);
}

static bool watch_says_stop(const struct client_watch *watch)
{
	return watch && watch->stop && watch->stop(watch->ctx);
}

static int64_t min_ns(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* --- A load ------------------------------------------------------------------------------------------------------------------ */

/* Requests that are in flight at the same time, each in a slot of its own. */
struct slot {
	struct transfer transfer; /* first: a transfer that is over is found in its slot */
	size_t index; /* of the request */
};

/* One load while it runs. The arrays go by request. */
struct load_run {
	const struct client_load *load;
	struct transfer_loop *loop;
	struct slot *slots;
	int n_slots, n_active;
	struct transfer_tally tally;
	struct completion_answer *answers;
	char **transport_errors; /* NULL: ended well */
	int64_t *sent_ns; /* 0: never sent */
	double *late_ms; /* of those that were sent */
	struct pacer pacer;
	size_t next, ended, failed; /* failed: without an answer that could be one, whatever is in it */
	int64_t begin_ns;
};

static enum status load_run_init(struct load_run *run, struct client *client, const struct client_load *load, struct err *err)
{
	size_t n = load->n_bodies;
	*run = (struct load_run){.load = load, .loop = client->loop, .pacer = {.due_ns = load->due_ns}};
	run->n_slots = (size_t)load->concurrency < n ? load->concurrency : (int)n;
	run->slots = mem_calloc((size_t)run->n_slots + 1, sizeof(run->slots[0]));
	run->answers = mem_calloc(n + 1, sizeof(run->answers[0]));
	run->transport_errors = mem_calloc(n + 1, sizeof(run->transport_errors[0]));
	run->sent_ns = mem_calloc(n + 1, sizeof(run->sent_ns[0]));
	run->late_ms = mem_calloc(n + 1, sizeof(run->late_ms[0]));
	enum status status = STATUS_OK;
	for (int i = 0; i < run->n_slots && !status; i++) {
		run->slots[i].transfer.tally = &run->tally;
		status = transfer_prepare(run->loop, &run->slots[i].transfer, load->url, load->api_key, err);
	}
	return status;
}

static void load_run_release(struct load_run *run)
{
	for (int i = 0; i < run->n_slots; i++)
		transfer_release(&run->slots[i].transfer);
	for (size_t i = 0; i < run->load->n_bodies; i++) {
		completion_answer_release(&run->answers[i]);
		mem_free(run->transport_errors[i]);
	}
	mem_free(run->slots);
	mem_free(run->answers);
	mem_free(run->transport_errors);
	mem_free(run->sent_ns);
	mem_free(run->late_ms);
}

static enum status start_request(struct load_run *run, struct slot *slot, struct err *err)
{
	slot->index = run->next++;
	slot->transfer.answer = &run->answers[slot->index];
	run->sent_ns[slot->index] = run->tally.progress_ns = clock_monotonic_ns();
	run->late_ms[slot->index] = (double)pacer_late_ns(&run->pacer, slot->index, run->sent_ns[slot->index]) / NS_PER_MS;
	enum status status = transfer_begin(&slot->transfer, &run->load->bodies[slot->index], err);
	if (status)
		return err_add(err, "request %zu", slot->index);
	run->n_active++;
	return STATUS_OK;
}

static void end_request(struct load_run *run, struct slot *slot, const char *transport_error)
{
	struct completion_answer *answer = slot->transfer.answer;
	int http_status = transfer_http_status(&slot->transfer);
	if (transport_error)
		run->transport_errors[slot->index] = mem_strdup(transport_error);
	run->failed += transport_error || http_status != 200;
	transfer_end(&slot->transfer);
	if (answer->form == COMPLETION_UNDECIDED && http_status > 0)
		completion_begin(answer, http_status, NULL); /* an answer without a body */
	if (!answer->end_ns)
		answer->end_ns = clock_monotonic_ns();
	if (run->n_active == run->n_slots)
		pacer_note_free(&run->pacer, clock_monotonic_ns());
	run->n_active--;
	run->ended++;
}

/* Requests that are over, and those that have told "[DONE]" and then nothing for too long. */
static void collect_ended(struct load_run *run, int64_t now_ns)
{
	const char *reason;
	for (struct transfer *over; (over = transfer_loop_next_over(run->loop, &reason));)
		end_request(run, (struct slot *)over, reason);
	for (int i = 0; run->tally.n_done && i < run->n_slots; i++) {
		struct slot *slot = &run->slots[i];
		if (slot->transfer.active && slot->transfer.done_ns && now_ns >= slot->transfer.done_ns + LINGER_NS)
			end_request(run, slot, NULL);
	}
}

static bool has_failed(const struct load_run *run)
{
	return run->load->failures_max && run->failed > run->load->failures_max;
}

/* There is a request, and a slot for it. */
static bool can_start(const struct load_run *run)
{
	return run->n_active < run->n_slots && run->next < run->load->n_bodies && !has_failed(run);
}

static enum status fill_slots(struct load_run *run, int64_t now_ns, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; i < run->n_slots && can_start(run) && !pacer_wait_ns(&run->pacer, run->next, now_ns) && !status; i++)
		if (!run->slots[i].transfer.active)
			status = start_request(run, &run->slots[i], err);
	return status;
}

/* Time until the nearest deadline. */
static int64_t time_to_wait_ns(const struct load_run *run, int64_t now_ns)
{
	int64_t wait_ns = WAIT_NS_MAX;
	if (can_start(run))
		wait_ns = min_ns(wait_ns, pacer_wait_ns(&run->pacer, run->next, now_ns));
	for (int i = 0; run->tally.n_done && i < run->n_slots; i++) {
		const struct transfer *transfer = &run->slots[i].transfer;
		if (transfer->active && transfer->done_ns)
			wait_ns = min_ns(wait_ns, transfer->done_ns + LINGER_NS - now_ns);
	}
	return wait_ns > 0 ? wait_ns : 0;
}

static bool is_over(const struct load_run *run, int64_t now_ns, struct client_report *report)
{
	if (run->ended == run->load->n_bodies)
		return true;
	if (has_failed(run) && run->n_active == 0)
		report->end = CLIENT_FAILED;
	/* Between the requests of an open loop there is nothing to be heard. */
	if (run->n_active > 0 && (double)(now_ns - run->tally.progress_ns) > run->load->stall_s * NS_PER_S)
		report->end = CLIENT_STALLED;
	else if ((double)(now_ns - run->begin_ns) > run->load->run_timeout_s * NS_PER_S)
		report->end = CLIENT_TIMED_OUT;
	return report->end != CLIENT_COMPLETED;
}

static enum status drive(struct load_run *run, struct client_report *report, struct err *err)
{
	for (;;) {
		int64_t round_ns = clock_monotonic_ns(), allowed_ns = 0;
		bool watched = false;
		enum status status = fill_slots(run, round_ns, err);
		if (!status)
			status = transfer_loop_step(run->loop, time_to_wait_ns(run, round_ns), &watched, &allowed_ns, err);
		if (status)
			return status;
		int64_t now_ns = clock_monotonic_ns();
		double late_s = (double)(now_ns - round_ns - allowed_ns) / NS_PER_S;
		report->longest_gap_s = late_s > report->longest_gap_s ? late_s : report->longest_gap_s;
		collect_ended(run, now_ns);
		if (is_over(run, now_ns, report))
			return STATUS_OK;
		if (watched && watch_says_stop(run->load->watch)) {
			report->end = CLIENT_STOPPED;
			return STATUS_OK;
		}
	}
}

/* Why requests that have not ended will not: one sentence for all of them. */
static void describe_cut(const struct client_load *load, enum client_end end, char out[96])
{
	if (end == CLIENT_STALLED)
		snprintf(out, 96, "no event for %g s", load->stall_s);
	else if (end == CLIENT_TIMED_OUT)
		snprintf(out, 96, "the run did not end within %g s", load->run_timeout_s);
	else if (end == CLIENT_FAILED)
		snprintf(out, 96, "too many requests had failed");
	else
		snprintf(out, 96, "the run was stopped");
}

static void cut_off(struct load_run *run, const struct client_report *report)
{
	char why[96];
	describe_cut(run->load, report->end, why);
	for (int i = 0; i < run->n_slots; i++)
		if (run->slots[i].transfer.active)
			end_request(run, &run->slots[i], run->slots[i].transfer.done_ns ? NULL : why);
	for (; run->next < run->load->n_bodies; run->next++)
		run->transport_errors[run->next] = mem_strdup(
			report->end == CLIENT_FAILED ? "not sent: too many requests had failed" : "not sent: the run had ended");
}

static void read_answers(struct load_run *run, struct run_result *out)
{
	size_t n = run->load->n_bodies;
	out->requests = mem_calloc(n, sizeof(out->requests[0]));
	out->n_requests = n;
	for (size_t i = 0; i < n; i++) {
		out->requests[i].sent_ns = run->sent_ns[i];
		completion_finish(
			&run->answers[i], run->load->bodies[i].expected_tokens, run->transport_errors[i], &out->requests[i]);
		out->requests[i].due_ns = pacer_due_ns(&run->pacer, i);
	}
}

enum status client_run_load(struct client *client, const struct client_load *load, struct run_result *out,
	struct client_report *report, struct err *err)
{
	*report = (struct client_report){0};
	enum status status = check_concurrency(load->concurrency, err);
	if (status)
		return status;
	struct load_run run;
	status = load_run_init(&run, client, load, err);
	if (!status) {
		run.begin_ns = run.tally.progress_ns = run.pacer.begin_ns = out->begin_ns = clock_monotonic_ns();
		int64_t cpu_ns = clock_thread_cpu_ns();
		transfer_loop_enter(client->loop, load->watch);
		status = drive(&run, report, err);
		transfer_loop_leave(client->loop, load->watch);
		out->end_ns = clock_monotonic_ns();
		report->cpu_frac = (double)(clock_thread_cpu_ns() - cpu_ns) / (double)(out->end_ns - out->begin_ns + 1);
	}
	if (!status) {
		report->late_ms = load->due_ns ? stats_quantile(run.late_ms, run.next, LATE_FRACTION) : 0;
		cut_off(&run, report);
		read_answers(&run, out);
	}
	load_run_release(&run);
	return status;
}

/* --- A single request -------------------------------------------------------------------------------------------------------- */

/* Runs one transfer until it has ended or may not go on. */
static enum status drive_one(struct transfer_loop *loop, double timeout_s, const struct client_watch *watch, struct err *err)
{
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)(timeout_s * NS_PER_S);
	for (;;) {
		const char *reason;
		if (transfer_loop_next_over(loop, &reason))
			return reason ? err_set(err, STATUS_UNAVAILABLE, "%s", reason) : STATUS_OK;
		int64_t left_ns = deadline_ns - clock_monotonic_ns(), allowed_ns = 0;
		if (left_ns <= 0)
			return err_set(err, STATUS_TIMEOUT, "no answer within %g s", timeout_s);
		bool watched = false;
		enum status status = transfer_loop_step(loop, min_ns(left_ns, WAIT_NS_MAX), &watched, &allowed_ns, err);
		if (status)
			return status;
		if (watched && watch_says_stop(watch))
			return err_set(err, STATUS_INTERRUPTED, "stopped while waiting for an answer");
	}
}

enum status client_request(struct client *client, const char *url, const char *api_key, const struct client_body *body,
	double timeout_s, const struct client_watch *watch, struct client_answer *answer, struct err *err)
{
	*answer = (struct client_answer){0};
	struct transfer transfer = {.body = &answer->body};
	enum status status = transfer_prepare(client->loop, &transfer, url, api_key, err);
	if (!status)
		status = transfer_begin(&transfer, body, err);
	if (!status) {
		transfer_loop_enter(client->loop, watch);
		status = drive_one(client->loop, timeout_s, watch, err);
		transfer_loop_leave(client->loop, watch);
		answer->http_status = transfer_http_status(&transfer);
	}
	if (status)
		err_add(err, "%s %s", body ? "POST" : "GET", url);
	transfer_release(&transfer);
	return status;
}
