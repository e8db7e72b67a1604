/* libcurl's multi interface, driven by one loop for both kinds of request. */
#include "harness/client.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/version.h"
#include "harness/completion.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1000000

/* A server that keeps the socket open after "[DONE]" gets this long to end its answer in good order; guess, two thirds of the time
 * after which a reader would call it slow. It is no part of any figure. */
#define LINGER_NS ((int64_t)50 * NS_PER_MS)

#define OPEN_FILES_SPARE 64 /* beside the requests: database, log, terminal, guard */
#define OPEN_FILES_WANTED ((rlim_t)CLIENT_CONCURRENCY_MAX + OPEN_FILES_SPARE)

#define POLL_MS_MAX 250 /* how late a passed deadline may be noticed */

struct client {
	CURLM *multi;
};

/* One exchange with a server. Completions are split into events as they come; a plain answer is kept whole. */
struct transfer {
	CURL *easy;
	struct curl_slist *headers;
	bool active;
	bool is_completion;
	struct completion_answer *answer; /* of a completion */
	struct text *body; /* of a plain answer */
	int64_t *progress_ns; /* set when an event or a byte of a document came */
	int64_t linger_until_ns; /* 0: "[DONE]" has not come */
	struct err err; /* of our own refusal to take more */
	size_t index;
	char curl_error[CURL_ERROR_SIZE];
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

enum status client_create(struct client **out, struct err *err)
{
	*out = NULL;
	allow_open_files();
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library does not start");
	CURLM *multi = curl_multi_init();
	if (!multi) {
		curl_global_cleanup();
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library has no memory");
	}
	*out = mem_calloc(1, sizeof(**out));
	(*out)->multi = multi;
	return STATUS_OK;
}

void client_destroy(struct client *client)
{
	if (!client)
		return;
	curl_multi_cleanup(client->multi);
	curl_global_cleanup();
	mem_free(client);
}

static size_t on_completion_bytes(struct transfer *transfer, const char *bytes, size_t len, int64_t now_ns)
{
	struct completion_answer *answer = transfer->answer;
	if (answer->form == COMPLETION_UNDECIDED) {
		long status = 0;
		char *type = NULL;
		curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
		curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_TYPE, &type);
		completion_begin(answer, (int)status, type);
	}
	size_t events_before = answer->n_events;
	if (completion_feed(answer, bytes, len, now_ns, &transfer->err) != STATUS_OK)
		return 0;
	if (answer->n_events > events_before || answer->done || answer->form == COMPLETION_DOCUMENT)
		*transfer->progress_ns = now_ns;
	if (answer->done && !transfer->linger_until_ns)
		transfer->linger_until_ns = now_ns + LINGER_NS;
	return len;
}

/* libcurl calls this at each read from the socket; the clock is read first, so that nothing we do counts as waiting. */
static size_t on_bytes(char *bytes, size_t size, size_t count, void *ctx)
{
	int64_t now_ns = clock_monotonic_ns();
	struct transfer *transfer = ctx;
	size_t len = size * count;
	if (transfer->is_completion)
		return on_completion_bytes(transfer, bytes, len, now_ns);
	if (len > CLIENT_ANSWER_BYTES_MAX - transfer->body->len) {
		err_set(&transfer->err, STATUS_INPUT, "the answer is larger than %zu bytes", CLIENT_ANSWER_BYTES_MAX);
		return 0;
	}
	text_append(transfer->body, bytes, len);
	return len;
}

static enum status prepare(struct transfer *transfer, const char *url, const char *api_key, struct err *err)
{
	transfer->easy = curl_easy_init();
	if (!transfer->easy)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library has no memory");
	transfer->headers = curl_slist_append(NULL, "Content-Type: application/json");
	/* An empty Expect keeps libcurl from waiting for "100 Continue" before it sends a large body. */
	transfer->headers = curl_slist_append(transfer->headers, "Expect:");
	if (api_key) {
		struct text header = {0};
		text_printf(&header, "Authorization: Bearer %s", api_key);
		transfer->headers = curl_slist_append(transfer->headers, text_str(&header));
		text_release(&header);
	}
	CURL *easy = transfer->easy;
	char agent[64];
	snprintf(agent, sizeof(agent), "verdict/%s", version_number());
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, agent);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer->headers);
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_NOPROXY, "*");
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
	curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->curl_error);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
	return STATUS_OK;
}

static void set_body(struct transfer *transfer, const struct client_body *body)
{
	curl_easy_setopt(transfer->easy, CURLOPT_POST, 1L);
	curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
	curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDS, body->bytes); /* not copied: bodies outlive the transfer */
}

static void transfer_release(struct client *client, struct transfer *transfer)
{
	if (transfer->active)
		curl_multi_remove_handle(client->multi, transfer->easy);
	if (transfer->easy)
		curl_easy_cleanup(transfer->easy);
	curl_slist_free_all(transfer->headers);
	*transfer = (struct transfer){0};
}

/* Why a transfer ended, in words; NULL when it ended well. */
static const char *end_of(const struct transfer *transfer, CURLcode code)
{
	if (code == CURLE_OK)
		return NULL;
	if (transfer->err.status)
		return transfer->err.text;
	return transfer->curl_error[0] ? transfer->curl_error : curl_easy_strerror(code);
}

static bool watch_says_stop(const struct client_watch *watch)
{
	return watch && watch->stop && watch->stop(watch->ctx);
}

/* Waits for sockets or watched descriptors, timeout_ms at most. *watched: one of the latter is readable. */
static enum status wait_for_io(
	struct client *client, const struct client_watch *watch, int timeout_ms, bool *watched, struct err *err)
{
	struct curl_waitfd fds[CLIENT_WATCH_MAX];
	unsigned n = 0;
	for (size_t i = 0; watch && i < watch->n_fds; i++)
		fds[n++] = (struct curl_waitfd){.fd = watch->fds[i], .events = CURL_WAIT_POLLIN};
	CURLMcode code = curl_multi_poll(client->multi, fds, n, timeout_ms, NULL);
	if (code != CURLM_OK)
		return err_set(err, STATUS_UNAVAILABLE, "waiting for the server: %s", curl_multi_strerror(code));
	*watched = false;
	for (unsigned i = 0; i < n; i++)
		*watched = *watched || fds[i].revents;
	return STATUS_OK;
}

/* One load while it runs. */
struct load_run {
	struct client *client;
	const struct client_load *load;
	struct transfer *slots;
	int n_slots;
	struct completion_answer *answers; /* by request */
	char **transport_errors; /* by request; NULL: ended well */
	int64_t *sent_ns; /* by request; 0: never sent */
	size_t next, ended;
	int64_t begin_ns, progress_ns;
};

static enum status start_request(struct load_run *run, struct transfer *slot, struct err *err)
{
	size_t index = run->next++;
	slot->is_completion = true;
	slot->answer = &run->answers[index];
	slot->progress_ns = &run->progress_ns;
	slot->linger_until_ns = 0;
	slot->index = index;
	slot->curl_error[0] = '\0';
	err_clear(&slot->err);
	set_body(slot, &run->load->bodies[index]);
	run->sent_ns[index] = clock_monotonic_ns();
	run->progress_ns = run->sent_ns[index];
	CURLMcode code = curl_multi_add_handle(run->client->multi, slot->easy);
	if (code != CURLM_OK)
		return err_set(err, STATUS_UNAVAILABLE, "request %zu: %s", index, curl_multi_strerror(code));
	slot->active = true;
	return STATUS_OK;
}

static void end_request(struct load_run *run, struct transfer *slot, const char *transport_error)
{
	curl_multi_remove_handle(run->client->multi, slot->easy);
	slot->active = false;
	struct completion_answer *answer = slot->answer;
	long status = 0;
	curl_easy_getinfo(slot->easy, CURLINFO_RESPONSE_CODE, &status);
	if (answer->form == COMPLETION_UNDECIDED && status > 0)
		completion_begin(answer, (int)status, NULL); /* an answer without a body */
	if (!answer->end_ns)
		answer->end_ns = clock_monotonic_ns();
	if (transport_error)
		run->transport_errors[slot->index] = mem_strdup(transport_error);
	run->ended++;
}

static void collect_ended(struct load_run *run)
{
	int left;
	for (CURLMsg *message; (message = curl_multi_info_read(run->client->multi, &left));) {
		if (message->msg != CURLMSG_DONE)
			continue;
		CURLcode code = message->data.result;
		struct transfer *slot = NULL;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &slot);
		end_request(run, slot, end_of(slot, code));
	}
	int64_t now_ns = clock_monotonic_ns();
	for (int i = 0; i < run->n_slots; i++)
		if (run->slots[i].active && run->slots[i].linger_until_ns && now_ns >= run->slots[i].linger_until_ns)
			end_request(run, &run->slots[i], NULL);
}

static enum status fill_slots(struct load_run *run, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; i < run->n_slots && run->next < run->load->n_bodies && !status; i++)
		if (!run->slots[i].active)
			status = start_request(run, &run->slots[i], err);
	return status;
}

/* Milliseconds until the nearest deadline, as poll wants them. */
static int time_to_wait_ms(const struct load_run *run, int64_t now_ns)
{
	int64_t wait_ns = (int64_t)POLL_MS_MAX * NS_PER_MS;
	for (int i = 0; i < run->n_slots; i++) {
		int64_t until_ns = run->slots[i].linger_until_ns - now_ns;
		if (run->slots[i].active && run->slots[i].linger_until_ns && until_ns < wait_ns)
			wait_ns = until_ns > 0 ? until_ns : 0;
	}
	return (int)((wait_ns + NS_PER_MS - 1) / NS_PER_MS);
}

static bool is_over(struct load_run *run, struct client_report *report)
{
	if (run->ended == run->load->n_bodies)
		return true;
	int64_t now_ns = clock_monotonic_ns();
	if ((double)(now_ns - run->progress_ns) > run->load->stall_s * NS_PER_S)
		report->end = CLIENT_STALLED;
	else if ((double)(now_ns - run->begin_ns) > run->load->run_timeout_s * NS_PER_S)
		report->end = CLIENT_TIMED_OUT;
	return report->end != CLIENT_COMPLETED;
}

static enum status drive(struct load_run *run, struct client_report *report, struct err *err)
{
	enum status status = STATUS_OK;
	for (;;) {
		int64_t round_ns = clock_monotonic_ns();
		status = fill_slots(run, err);
		int running;
		if (!status && curl_multi_perform(run->client->multi, &running) != CURLM_OK)
			status = err_set(err, STATUS_UNAVAILABLE, "the HTTP client library failed");
		if (status)
			return status;
		size_t ended_before = run->ended;
		collect_ended(run);
		if (is_over(run, report))
			return STATUS_OK;
		if (run->ended > ended_before)
			continue; /* a slot is free: the next request goes out before we wait */
		bool watched = false;
		int wait_ms = time_to_wait_ms(run, clock_monotonic_ns());
		status = wait_for_io(run->client, run->load->watch, wait_ms, &watched, err);
		if (status)
			return status;
		double late_s = (double)(clock_monotonic_ns() - round_ns) / NS_PER_S - wait_ms / 1e3;
		report->longest_gap_s = late_s > report->longest_gap_s ? late_s : report->longest_gap_s;
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
	else
		snprintf(out, 96, "the run was stopped");
}

static void cut_off(struct load_run *run, const struct client_report *report)
{
	char why[96];
	describe_cut(run->load, report->end, why);
	for (int i = 0; i < run->n_slots; i++)
		if (run->slots[i].active)
			end_request(run, &run->slots[i], run->slots[i].linger_until_ns ? NULL : why);
	for (; run->next < run->load->n_bodies; run->next++)
		run->transport_errors[run->next] = mem_strdup("not sent: the run had ended");
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
	}
}

enum status client_run_load(struct client *client, const struct client_load *load, struct run_result *out,
	struct client_report *report, struct err *err)
{
	size_t n = load->n_bodies;
	*report = (struct client_report){0};
	enum status status = check_concurrency(load->concurrency, err);
	if (status)
		return status;
	struct load_run run = {.client = client, .load = load};
	run.n_slots = (size_t)load->concurrency < n ? load->concurrency : (int)n;
	run.slots = mem_calloc((size_t)run.n_slots + 1, sizeof(run.slots[0]));
	run.answers = mem_calloc(n + 1, sizeof(run.answers[0]));
	run.transport_errors = mem_calloc(n + 1, sizeof(run.transport_errors[0]));
	run.sent_ns = mem_calloc(n + 1, sizeof(run.sent_ns[0]));
	for (int i = 0; i < run.n_slots && !status; i++)
		status = prepare(&run.slots[i], load->url, load->api_key, err);
	if (!status) {
		run.begin_ns = run.progress_ns = out->begin_ns = clock_monotonic_ns();
		int64_t cpu_ns = clock_thread_cpu_ns();
		status = drive(&run, report, err);
		out->end_ns = clock_monotonic_ns();
		report->cpu_frac = (double)(clock_thread_cpu_ns() - cpu_ns) / (double)(out->end_ns - out->begin_ns + 1);
	}
	if (!status) {
		cut_off(&run, report);
		read_answers(&run, out);
	}
	for (int i = 0; i < run.n_slots; i++)
		transfer_release(client, &run.slots[i]);
	for (size_t i = 0; i < n; i++) {
		completion_answer_release(&run.answers[i]);
		mem_free(run.transport_errors[i]);
	}
	mem_free(run.slots);
	mem_free(run.answers);
	mem_free(run.transport_errors);
	mem_free(run.sent_ns);
	return status;
}

/* Runs one transfer until it has ended or may not go on. */
static enum status drive_one(
	struct client *client, struct transfer *transfer, double timeout_s, const struct client_watch *watch, struct err *err)
{
	int64_t deadline_ns = clock_monotonic_ns() + (int64_t)(timeout_s * NS_PER_S);
	for (;;) {
		int running, left;
		if (curl_multi_perform(client->multi, &running) != CURLM_OK)
			return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library failed");
		CURLMsg *message = curl_multi_info_read(client->multi, &left);
		if (message && message->msg == CURLMSG_DONE) {
			const char *reason = end_of(transfer, message->data.result);
			return reason ? err_set(err, STATUS_UNAVAILABLE, "%s", reason) : STATUS_OK;
		}
		int64_t left_ns = deadline_ns - clock_monotonic_ns();
		if (left_ns <= 0)
			return err_set(err, STATUS_TIMEOUT, "no answer within %g s", timeout_s);
		int64_t wait_ms = left_ns / NS_PER_MS + 1;
		bool watched = false;
		enum status status = wait_for_io(client, watch, wait_ms < POLL_MS_MAX ? (int)wait_ms : POLL_MS_MAX, &watched, err);
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
	enum status status = prepare(&transfer, url, api_key, err);
	if (status)
		goto out;
	if (body)
		set_body(&transfer, body);
	CURLMcode code = curl_multi_add_handle(client->multi, transfer.easy);
	if (code != CURLM_OK) {
		status = err_set(err, STATUS_UNAVAILABLE, "%s", curl_multi_strerror(code));
		goto out;
	}
	transfer.active = true;
	status = drive_one(client, &transfer, timeout_s, watch, err);
	long http_status = 0;
	curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &http_status);
	answer->http_status = (int)http_status;
out:
	if (status)
		err_add(err, "%s %s", body ? "POST" : "GET", url);
	transfer_release(client, &transfer);
	return status;
}
