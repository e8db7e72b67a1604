/* libcurl's socket interface over epoll, driven by one loop for both kinds of request. A wake-up costs what the ready sockets cost,
 * however many others wait. */
#include "harness/client.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/version.h"
#include "harness/chunked.h"
#include "harness/completion.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1000000

/* A server that keeps the socket open after "[DONE]" gets this long to end its answer in good order; guess, two thirds of the time
 * after which a reader would call it slow. It is no part of any figure. */
#define LINGER_NS ((int64_t)50 * NS_PER_MS)

#define OPEN_FILES_SPARE 64 /* beside the requests: database, log, terminal, guard */
#define OPEN_FILES_WANTED ((rlim_t)CLIENT_CONCURRENCY_MAX + OPEN_FILES_SPARE)

#define POLL_MS_MAX 250 /* how late a passed deadline may be noticed */
#define READY_MAX 64 /* sockets taken from the kernel at once */
#define READ_BYTES (64L << 10) /* at once from a socket; a burst of events comes in few reads then */
#define WATCH_TAG ((uint64_t)1 << 32) /* marks a watched descriptor among libcurl's sockets */
#define DIRECT_TAG ((uint64_t)1 << 33) /* marks a socket that is read directly; the rest is the index of its slot */

/* Once a stream of events has begun, its socket is read here and not by libcurl, which would ask the kernel about the socket again
 * after each read and keep a buffer for every connection. Measured with bench_client, 256 streams of 100 events a second, on two
 * cores of a Xeon that others were using, 2026-11-30: 11.7 µs of CPU an event with curl_multi_poll, 7 to 9 with epoll, 4 to 10 with
 * direct reads. TLS stays with libcurl. */
struct client {
	char *buffer; /* READ_BYTES */
	struct transfer *slots; /* of the load that runs */
	struct transfer *begun; /* whose stream of events libcurl has just read from */
	CURLM *multi;
	int epoll_fd;
	int64_t timer_at_ns; /* when libcurl wants to be called without any socket being ready; -1: never */
};

/* One exchange with a server. Completions are split into events as they come; a plain answer is kept whole. */
struct transfer {
	CURL *easy;
	struct curl_slist *headers;
	bool active;
	bool is_completion;
	struct client *client; /* of a completion */
	struct completion_answer *answer; /* of a completion */
	struct text *body; /* of a plain answer */
	int64_t *progress_ns; /* set when an event or a byte of a document came */
	int *n_lingering; /* counts the transfers that linger or have ended while read directly */
	bool is_chunked; /* the body of a completion comes as it was sent: taking it off its chunks is ours */
	struct chunked chunked;
	int64_t received; /* bytes of the body as they were sent */
	bool may_read_directly, direct, direct_ended;
	curl_socket_t fd; /* -1: libcurl has none open for this */
	int slot; /* index among the slots of the load */
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

/* libcurl tells what it wants to know about a socket. A socket that it has closed is gone from the set already. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx)
{
	struct client *client = ctx;
	struct transfer *transfer = NULL;
	curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
	if (transfer)
		transfer->fd = what == CURL_POLL_REMOVE ? -1 : fd;
	struct epoll_event event = {.data.u64 = (uint64_t)fd};
	if (what == CURL_POLL_REMOVE) {
		epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
		return 0;
	}
	event.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u);
	if (epoll_ctl(client->epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0)
		epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, fd, &event);
	return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *ctx)
{
	struct client *client = ctx;
	client->timer_at_ns = timeout_ms < 0 ? -1 : clock_monotonic_ns() + (int64_t)timeout_ms * NS_PER_MS;
	return 0;
}

enum status client_check_url(const char *url, struct err *err)
{
	CURLU *parts = curl_url();
	CURLUcode code = parts ? curl_url_set(parts, CURLUPART_URL, url, 0) : CURLUE_OUT_OF_MEMORY;
	curl_url_cleanup(parts);
	return code == CURLUE_OK ? STATUS_OK : err_set(err, STATUS_INPUT, "'%s': %s", url, curl_url_strerror(code));
}

enum status client_create(struct client **out, struct err *err)
{
	*out = NULL;
	allow_open_files();
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library does not start");
	struct client *client = mem_calloc(1, sizeof(*client));
	client->timer_at_ns = -1;
	client->multi = curl_multi_init();
	client->buffer = mem_calloc(1, READ_BYTES);
	client->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (!client->multi || client->epoll_fd < 0) {
		client_destroy(client);
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library has no memory");
	}
	curl_multi_setopt(client->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(client->multi, CURLMOPT_SOCKETDATA, client);
	curl_multi_setopt(client->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(client->multi, CURLMOPT_TIMERDATA, client);
	*out = client;
	return STATUS_OK;
}

void client_destroy(struct client *client)
{
	if (!client)
		return;
	curl_multi_cleanup(client->multi); /* NULL is fine */
	if (client->epoll_fd >= 0)
		close(client->epoll_fd);
	curl_global_cleanup();
	mem_free(client->buffer);
	mem_free(client);
}

/* Body bytes as they were sent, to events. False: no more is taken, transfer->err says why. */
static bool feed_body(struct transfer *transfer, const char *bytes, size_t len, int64_t now_ns)
{
	const char *data = bytes;
	size_t data_len = len;
	transfer->received += (int64_t)len;
	if (!transfer->is_chunked)
		return completion_feed(transfer->answer, data, data_len, now_ns, &transfer->err) == STATUS_OK;
	while (chunked_next(&transfer->chunked, &bytes, &len, &data, &data_len, &transfer->err))
		if (completion_feed(transfer->answer, data, data_len, now_ns, &transfer->err) != STATUS_OK)
			return false;
	return transfer->err.status == STATUS_OK;
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
	if (!feed_body(transfer, bytes, len, now_ns))
		return 0;
	if (answer->n_events > events_before || answer->done || answer->form == COMPLETION_DOCUMENT)
		*transfer->progress_ns = now_ns;
	if (answer->done && !transfer->linger_until_ns) {
		transfer->linger_until_ns = now_ns + LINGER_NS;
		++*transfer->n_lingering;
	}
	transfer->client->begun = answer->form == COMPLETION_EVENTS ? transfer : NULL;
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

/* One header line of an answer: only whether the body is chunked matters. An interim answer has headers of its own. */
static size_t on_header(char *line, size_t size, size_t count, void *ctx)
{
	static const char name[] = "transfer-encoding:";
	struct transfer *transfer = ctx;
	size_t len = size * count;
	if (len >= 5 && memcmp(line, "HTTP/", 5) == 0)
		transfer->is_chunked = false;
	else if (len > sizeof(name) && strncasecmp(line, name, sizeof(name) - 1) == 0)
		for (size_t i = sizeof(name) - 1; i + 7 <= len; i++)
			transfer->is_chunked = transfer->is_chunked || strncasecmp(line + i, "chunked", 7) == 0;
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
	curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, READ_BYTES);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->curl_error);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
	transfer->fd = -1;
	if (transfer->is_completion) {
		curl_easy_setopt(easy, CURLOPT_HTTP_TRANSFER_DECODING, 0L);
		curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
		curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer);
		transfer->may_read_directly = strncasecmp(url, "http://", 7) == 0;
	}
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

/* Watched descriptors are in the set from the beginning of a wait to its end. */
static void begin_watch(struct client *client, const struct client_watch *watch)
{
	for (size_t i = 0; watch && i < watch->n_fds; i++) {
		struct epoll_event event = {.events = EPOLLIN, .data.u64 = WATCH_TAG};
		epoll_ctl(client->epoll_fd, EPOLL_CTL_ADD, watch->fds[i], &event);
	}
}

static void end_watch(struct client *client, const struct client_watch *watch)
{
	for (size_t i = 0; watch && i < watch->n_fds; i++)
		epoll_ctl(client->epoll_fd, EPOLL_CTL_DEL, watch->fds[i], NULL);
}

/* Lets libcurl work on one socket, or on what its timer is for. */
static enum status act(struct client *client, curl_socket_t fd, int mask, struct err *err)
{
	int running;
	CURLMcode code = curl_multi_socket_action(client->multi, fd, mask, &running);
	return code == CURLM_OK ? STATUS_OK
				: err_set(err, STATUS_UNAVAILABLE, "the HTTP client library: %s", curl_multi_strerror(code));
}

static int64_t min_ns(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* Whether all of a body has come, as its length or its last chunk tells. */
static bool body_is_over(const struct transfer *transfer)
{
	curl_off_t length = -1;
	if (transfer->is_chunked)
		return transfer->chunked.state == CHUNKED_DONE;
	curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	return length >= 0 && transfer->received >= length;
}

/* Takes the socket of a stream that has begun out of libcurl's hands: what it has read so far it has delivered. */
static void take_over(struct client *client, struct transfer *transfer)
{
	struct epoll_event event = {.events = EPOLLIN, .data.u64 = DIRECT_TAG | (uint64_t)transfer->slot};
	if (transfer->fd >= 0 && !transfer->err.status && !body_is_over(transfer))
		transfer->direct = epoll_ctl(client->epoll_fd, EPOLL_CTL_MOD, transfer->fd, &event) == 0;
}

static void end_directly(struct transfer *transfer, const char *error)
{
	snprintf(transfer->curl_error, sizeof(transfer->curl_error), "%.200s", error);
	transfer->direct_ended = true;
	++*transfer->n_lingering;
}

static void read_directly(struct client *client, struct transfer *transfer)
{
	ssize_t got = recv(transfer->fd, client->buffer, READ_BYTES, MSG_DONTWAIT);
	int errnum = errno;
	int64_t now_ns = clock_monotonic_ns();
	if (got > 0) {
		if (on_completion_bytes(transfer, client->buffer, (size_t)got, now_ns) != (size_t)got)
			end_directly(transfer, transfer->err.text);
		else if (body_is_over(transfer))
			end_directly(transfer, "");
	} else if (got == 0) {
		curl_off_t length = -1;
		curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
		end_directly(
			transfer, transfer->is_chunked || length >= 0 ? "the connection closed before the end of the body" : "");
	} else if (errnum != EAGAIN && errnum != EINTR) {
		end_directly(transfer, strerror(errnum));
	}
}

/* Lets libcurl work on a socket, and takes the socket over when a stream has begun on it. */
static enum status work_on(struct client *client, const struct epoll_event *ready, struct err *err)
{
	if (ready->data.u64 & DIRECT_TAG) {
		struct transfer *transfer = &client->slots[ready->data.u64 & ~DIRECT_TAG];
		if (transfer->active && transfer->direct && !transfer->direct_ended)
			read_directly(client, transfer);
		return STATUS_OK;
	}
	int mask = (ready->events & EPOLLIN ? CURL_CSELECT_IN : 0) | (ready->events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
		(ready->events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
	client->begun = NULL;
	enum status status = act(client, (curl_socket_t)ready->data.u64, mask, err);
	struct transfer *begun = client->begun;
	if (!status && begun && begun->may_read_directly)
		take_over(client, begun);
	return status;
}

/* Waits for sockets or watched descriptors, timeout_ns at most, and lets libcurl work on what is ready. *watched: one of the latter
 * is readable. *waited_ns: how long the wait was allowed to take. */
static enum status do_io(struct client *client, int64_t timeout_ns, bool *watched, int64_t *waited_ns, struct err *err)
{
	struct epoll_event ready[READY_MAX];
	int64_t now_ns = clock_monotonic_ns();
	if (client->timer_at_ns >= 0)
		timeout_ns = min_ns(timeout_ns, client->timer_at_ns > now_ns ? client->timer_at_ns - now_ns : 0);
	*waited_ns = timeout_ns;
	int n = epoll_wait(client->epoll_fd, ready, READY_MAX, (int)((timeout_ns + NS_PER_MS - 1) / NS_PER_MS));
	if (n < 0 && errno != EINTR)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "waiting for the server");
	enum status status = STATUS_OK;
	for (int i = 0; i < n && !status; i++) {
		if (ready[i].data.u64 == WATCH_TAG)
			*watched = true;
		else
			status = work_on(client, &ready[i], err);
	}
	if (!status && client->timer_at_ns >= 0 && clock_monotonic_ns() >= client->timer_at_ns) {
		client->timer_at_ns = -1;
		status = act(client, CURL_SOCKET_TIMEOUT, 0, err);
	}
	return status;
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
	int n_active, n_lingering; /* slots */
	int64_t begin_ns, progress_ns;
};

static enum status start_request(struct load_run *run, struct transfer *slot, struct err *err)
{
	size_t index = run->next++;
	slot->answer = &run->answers[index];
	slot->progress_ns = &run->progress_ns;
	slot->n_lingering = &run->n_lingering;
	slot->linger_until_ns = slot->received = 0;
	slot->direct = slot->direct_ended = slot->is_chunked = false;
	slot->chunked = (struct chunked){0};
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
	run->n_active++;
	return STATUS_OK;
}

static void end_request(struct load_run *run, struct transfer *slot, const char *transport_error)
{
	curl_multi_remove_handle(run->client->multi, slot->easy);
	slot->active = false;
	run->n_active--;
	run->n_lingering -= (slot->linger_until_ns != 0) + slot->direct_ended;
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

static void collect_ended(struct load_run *run, int64_t now_ns)
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
	for (int i = 0; run->n_lingering && i < run->n_slots; i++) {
		struct transfer *slot = &run->slots[i];
		if (slot->active && slot->direct_ended)
			end_request(run, slot, slot->curl_error[0] ? slot->curl_error : NULL);
		else if (slot->active && slot->linger_until_ns && now_ns >= slot->linger_until_ns)
			end_request(run, slot, NULL);
	}
}

static enum status fill_slots(struct load_run *run, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; run->n_active < run->n_slots && run->next < run->load->n_bodies && i < run->n_slots && !status; i++)
		if (!run->slots[i].active)
			status = start_request(run, &run->slots[i], err);
	return status;
}

/* Time until the nearest deadline. */
static int64_t time_to_wait_ns(const struct load_run *run, int64_t now_ns)
{
	int64_t wait_ns = (int64_t)POLL_MS_MAX * NS_PER_MS;
	for (int i = 0; run->n_lingering && i < run->n_slots; i++)
		if (run->slots[i].active && run->slots[i].linger_until_ns)
			wait_ns = min_ns(wait_ns, run->slots[i].linger_until_ns - now_ns);
	return wait_ns > 0 ? wait_ns : 0;
}

static bool is_over(const struct load_run *run, int64_t now_ns, struct client_report *report)
{
	if (run->ended == run->load->n_bodies)
		return true;
	if ((double)(now_ns - run->progress_ns) > run->load->stall_s * NS_PER_S)
		report->end = CLIENT_STALLED;
	else if ((double)(now_ns - run->begin_ns) > run->load->run_timeout_s * NS_PER_S)
		report->end = CLIENT_TIMED_OUT;
	return report->end != CLIENT_COMPLETED;
}

static enum status drive(struct load_run *run, struct client_report *report, struct err *err)
{
	for (;;) {
		int64_t round_ns = clock_monotonic_ns(), waited_ns = 0;
		bool watched = false;
		enum status status = fill_slots(run, err);
		if (!status)
			status = do_io(run->client, time_to_wait_ns(run, round_ns), &watched, &waited_ns, err);
		if (status)
			return status;
		int64_t now_ns = clock_monotonic_ns();
		double late_s = (double)(now_ns - round_ns - waited_ns) / NS_PER_S;
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
	for (int i = 0; i < run.n_slots && !status; i++) {
		run.slots[i].is_completion = true;
		run.slots[i].client = client;
		run.slots[i].slot = i;
		status = prepare(&run.slots[i], load->url, load->api_key, err);
	}
	if (!status) {
		client->slots = run.slots;
		run.begin_ns = run.progress_ns = out->begin_ns = clock_monotonic_ns();
		int64_t cpu_ns = clock_thread_cpu_ns();
		begin_watch(client, load->watch);
		status = drive(&run, report, err);
		end_watch(client, load->watch);
		out->end_ns = clock_monotonic_ns();
		report->cpu_frac = (double)(clock_thread_cpu_ns() - cpu_ns) / (double)(out->end_ns - out->begin_ns + 1);
	}
	if (!status) {
		cut_off(&run, report);
		read_answers(&run, out);
	}
	for (int i = 0; i < run.n_slots; i++)
		transfer_release(client, &run.slots[i]);
	client->slots = NULL;
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
		int left;
		int64_t waited_ns = 0;
		bool watched = false;
		CURLMsg *message = curl_multi_info_read(client->multi, &left);
		if (message && message->msg == CURLMSG_DONE) {
			const char *reason = end_of(transfer, message->data.result);
			return reason ? err_set(err, STATUS_UNAVAILABLE, "%s", reason) : STATUS_OK;
		}
		int64_t left_ns = deadline_ns - clock_monotonic_ns();
		if (left_ns <= 0)
			return err_set(err, STATUS_TIMEOUT, "no answer within %g s", timeout_s);
		enum status status = do_io(client, min_ns(left_ns, (int64_t)POLL_MS_MAX * NS_PER_MS), &watched, &waited_ns, err);
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
	begin_watch(client, watch);
	status = drive_one(client, &transfer, timeout_s, watch, err);
	end_watch(client, watch);
	long http_status = 0;
	curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &http_status);
	answer->http_status = (int)http_status;
out:
	if (status)
		err_add(err, "%s %s", body ? "POST" : "GET", url);
	transfer_release(client, &transfer);
	return status;
}
