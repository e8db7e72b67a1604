/* libcurl's socket interface over a set of ready sockets. A wake-up costs what the ready sockets cost, however many others wait.
 *
 * Once a stream of events has begun, its socket is read here and not by libcurl, which would ask the kernel about the socket again
 * after each read and keep a buffer for every connection. TLS stays with libcurl. What each choice costs: CLIENT_NOTES.md. */
#include "harness/transfer.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/version.h"
#include "harness/acks.h"
#include "harness/arrival.h"
#include "harness/ready.h"

#define NS_PER_MS 1000000
#define READY_MAX 256 /* sockets taken from the kernel at once */
#define READ_BYTES ((size_t)64 << 10) /* at once from a socket; a burst of events comes in few reads then */

/* What is ready: a pointer to the transfer whose socket is read directly, or one of libcurl's sockets, or a watched descriptor. */
#define CURL_TAG ((uint64_t)1 << 63) /* the rest is the descriptor; pointers of user space do not have this bit */
#define WATCH_TAG UINT64_MAX

struct transfer_loop {
	CURLM *multi;
	struct ready_set ready;
	struct arrival_clock clock;
	struct acks acks;
	char *buffer; /* READ_BYTES */
	struct transfer *begun; /* whose stream of events libcurl has just read from */
	struct transfer *over; /* read directly to their ends */
	int64_t arrived_ns; /* of the bytes that libcurl is about to read; 0: unknown */
	int64_t timer_at_ns; /* when libcurl wants to be called without any socket being ready; -1: never */
};

_Static_assert(TRANSFER_ERROR_BYTES >= CURL_ERROR_SIZE, "libcurl's words fit");

/* --- What libcurl tells ------------------------------------------------------------------------------------------------------ */

/* What it wants to know about a socket. A socket that it has closed is gone from the set already. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *socket_ctx)
{
	struct transfer_loop *loop = ctx;
	struct transfer *transfer = NULL;
	curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
	if (transfer)
		transfer->fd = what == CURL_POLL_REMOVE ? -1 : fd;
	if (what == CURL_POLL_REMOVE)
		ready_remove(&loop->ready, fd);
	else
		ready_put(&loop->ready, fd, (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
			CURL_TAG | (uint64_t)fd);
	return 0;
}

static int on_timer(CURLM *multi, long timeout_ms, void *ctx)
{
	struct transfer_loop *loop = ctx;
	loop->timer_at_ns = timeout_ms < 0 ? -1 : clock_monotonic_ns() + (int64_t)timeout_ms * NS_PER_MS;
	return 0;
}

static int on_new_socket(void *ctx, curl_socket_t fd, curlsocktype purpose)
{
	arrival_ask(fd);
	return CURL_SOCKOPT_OK;
}

/* Body bytes as they were sent, to events. False: no more is taken, transfer->err says why. */
static bool feed_body(struct transfer *transfer, const char *bytes, size_t len, int64_t at_ns)
{
	const char *data = bytes;
	size_t data_len = len;
	transfer->received += (int64_t)len;
	if (!transfer->is_chunked)
		return completion_feed(transfer->answer, data, data_len, at_ns, &transfer->err) == STATUS_OK;
	while (chunked_next(&transfer->chunked, &bytes, &len, &data, &data_len, &transfer->err))
		if (completion_feed(transfer->answer, data, data_len, at_ns, &transfer->err) != STATUS_OK)
			return false;
	return transfer->err.status == STATUS_OK;
}

static bool take_completion(struct transfer *transfer, const char *bytes, size_t len, int64_t at_ns)
{
	struct completion_answer *answer = transfer->answer;
	if (answer->form == COMPLETION_UNDECIDED) {
		char *type = NULL;
		curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_TYPE, &type);
		completion_begin(answer, transfer_http_status(transfer), type);
	}
	size_t events_before = answer->n_events;
	if (!feed_body(transfer, bytes, len, at_ns))
		return false;
	if (answer->n_events > events_before || answer->done || answer->form == COMPLETION_DOCUMENT)
		transfer->tally->progress_ns = at_ns;
	if (answer->done && !transfer->done_ns) {
		transfer->done_ns = at_ns;
		transfer->tally->n_done++;
	}
	return true;
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *ctx)
{
	struct transfer *transfer = ctx;
	struct transfer_loop *loop = transfer->loop;
	size_t len = size * count;
	if (transfer->answer) {
		if (!take_completion(transfer, bytes, len, loop->arrived_ns ? loop->arrived_ns : clock_monotonic_ns()))
			return 0;
		loop->begun = transfer->answer->form == COMPLETION_EVENTS ? transfer : NULL;
		return len;
	}
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

/* --- Streams that are read directly ------------------------------------------------------------------------------------------ */

/* -1: the head does not tell. */
static int64_t content_length(const struct transfer *transfer)
{
	curl_off_t length = -1;
	curl_easy_getinfo(transfer->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	return length;
}

/* Whether all of a body has come, as its length or its last chunk tells. */
static bool body_is_over(const struct transfer *transfer)
{
	if (transfer->is_chunked)
		return transfer->chunked.state == CHUNKED_DONE;
	int64_t length = content_length(transfer);
	return length >= 0 && transfer->received >= length;
}

/* Takes the socket of a stream that has begun out of libcurl's hands: what it has read so far it has delivered. */
static void take_over(struct transfer_loop *loop, struct transfer *transfer)
{
	if (!transfer->direct && transfer->may_read_directly && transfer->fd >= 0 && !transfer->err.status &&
		!body_is_over(transfer)) {
		transfer->direct = ready_put(&loop->ready, transfer->fd, EPOLLIN, (uint64_t)(uintptr_t)transfer);
		ready_note_stream(&loop->ready, transfer->direct ? 1 : 0);
	}
}

static void end_directly(struct transfer_loop *loop, struct transfer *transfer)
{
	transfer->over = true;
	transfer->next_over = loop->over;
	loop->over = transfer;
}

/* Reads once: a socket that holds more is ready again in the next round, after the others. */
static void read_directly(struct transfer_loop *loop, struct transfer *transfer)
{
	int64_t at_ns;
	acks_before_read(&loop->acks, transfer->fd, transfer->direct_reads++, loop->ready.pausing);
	ssize_t got = arrival_read(transfer->fd, loop->buffer, READ_BYTES, &loop->clock, &at_ns);
	int errnum = errno;
	if (got > 0) {
		ready_note_read(&loop->ready, (size_t)got);
		acks_after_read(&loop->acks, transfer->fd, (size_t)got, at_ns);
		if (take_completion(transfer, loop->buffer, (size_t)got, at_ns) && !body_is_over(transfer))
			return;
	} else if (got < 0) {
		if (errnum == EAGAIN || errnum == EINTR)
			return;
		err_set(&transfer->err, STATUS_UNAVAILABLE, "%s", strerror(errnum));
	} else if (transfer->is_chunked || content_length(transfer) >= 0) {
		err_set(&transfer->err, STATUS_UNAVAILABLE, "the connection closed before the end of the body");
	}
	end_directly(loop, transfer);
}

/* --- The loop ---------------------------------------------------------------------------------------------------------------- */

enum status transfer_check_url(const char *url, struct err *err)
{
	CURLU *parts = curl_url();
	CURLUcode code = parts ? curl_url_set(parts, CURLUPART_URL, url, 0) : CURLUE_OUT_OF_MEMORY;
	curl_url_cleanup(parts);
	return code == CURLUE_OK ? STATUS_OK : err_set(err, STATUS_INPUT, "'%s': %s", url, curl_url_strerror(code));
}

enum status transfer_loop_create(struct transfer_loop **out, struct err *err)
{
	*out = NULL;
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library does not start");
	struct transfer_loop *loop = mem_calloc(1, sizeof(*loop));
	loop->timer_at_ns = -1;
	loop->buffer = mem_calloc(1, READ_BYTES);
	loop->multi = curl_multi_init();
	enum status status = ready_open(&loop->ready, err);
	if (!status && !loop->multi)
		status = err_set(err, STATUS_UNAVAILABLE, "the HTTP client library has no memory");
	if (status) {
		transfer_loop_destroy(loop);
		return status;
	}
	curl_multi_setopt(loop->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
	curl_multi_setopt(loop->multi, CURLMOPT_SOCKETDATA, loop);
	curl_multi_setopt(loop->multi, CURLMOPT_TIMERFUNCTION, on_timer);
	curl_multi_setopt(loop->multi, CURLMOPT_TIMERDATA, loop);
	*out = loop;
	return STATUS_OK;
}

void transfer_loop_destroy(struct transfer_loop *loop)
{
	if (!loop)
		return;
	curl_multi_cleanup(loop->multi); /* NULL is fine */
	ready_close(&loop->ready);
	curl_global_cleanup();
	mem_free(loop->buffer);
	mem_free(loop);
}

void transfer_loop_enter(struct transfer_loop *loop, const struct client_watch *watch)
{
	acks_init(&loop->acks);
	for (size_t i = 0; watch && i < watch->n_fds; i++)
		ready_put(&loop->ready, watch->fds[i], EPOLLIN, WATCH_TAG);
}

void transfer_loop_leave(struct transfer_loop *loop, const struct client_watch *watch)
{
	for (size_t i = 0; watch && i < watch->n_fds; i++)
		ready_remove(&loop->ready, watch->fds[i]);
}

/* Lets libcurl work on one socket, or on what its timer is for. */
static enum status act(struct transfer_loop *loop, curl_socket_t fd, int mask, struct err *err)
{
	int running;
	loop->begun = NULL;
	CURLMcode code = curl_multi_socket_action(loop->multi, fd, mask, &running);
	if (code != CURLM_OK)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library: %s", curl_multi_strerror(code));
	if (loop->begun)
		take_over(loop, loop->begun);
	return STATUS_OK;
}

static enum status work_on(struct transfer_loop *loop, const struct epoll_event *ready, struct err *err)
{
	if (!(ready->data.u64 & CURL_TAG)) {
		struct transfer *transfer = (struct transfer *)(uintptr_t)ready->data.u64; // NOLINT(performance-no-int-to-ptr)
		if (transfer->active && transfer->direct && !transfer->over)
			read_directly(loop, transfer);
		return STATUS_OK;
	}
	curl_socket_t fd = (curl_socket_t)(ready->data.u64 & ~CURL_TAG);
	int mask = (ready->events & EPOLLIN ? CURL_CSELECT_IN : 0) | (ready->events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
		(ready->events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
	loop->arrived_ns = mask & CURL_CSELECT_IN ? arrival_peek(fd, loop->buffer, READ_BYTES, &loop->clock) : 0;
	enum status status = act(loop, fd, mask, err);
	loop->arrived_ns = 0;
	return status;
}

enum status transfer_loop_step(struct transfer_loop *loop, int64_t timeout_ns, bool *watched, int64_t *allowed_ns, struct err *err)
{
	struct epoll_event ready[READY_MAX];
	int64_t now_ns = clock_monotonic_ns(), timer_ns = loop->timer_at_ns - now_ns;
	if (loop->timer_at_ns >= 0 && timer_ns < timeout_ns)
		timeout_ns = timer_ns > 0 ? timer_ns : 0;
	*allowed_ns = timeout_ns;
	int n = ready_wait(&loop->ready, timeout_ns, ready, READY_MAX);
	if (n < 0 && errno != EINTR)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "waiting for the server");
	arrival_begin_round(&loop->clock);
	enum status status = STATUS_OK;
	for (int i = 0; i < n && !status; i++) {
		if (ready[i].data.u64 == WATCH_TAG)
			*watched = true;
		else
			status = work_on(loop, &ready[i], err);
	}
	if (!status && loop->timer_at_ns >= 0 && clock_monotonic_ns() >= loop->timer_at_ns) {
		loop->timer_at_ns = -1;
		status = act(loop, CURL_SOCKET_TIMEOUT, 0, err);
	}
	return status;
}

struct transfer *transfer_loop_next_over(struct transfer_loop *loop, const char **reason)
{
	struct transfer *transfer = loop->over;
	*reason = NULL;
	if (transfer) {
		loop->over = transfer->next_over;
		*reason = transfer->err.status ? transfer->err.text : NULL;
		return transfer;
	}
	int left;
	for (CURLMsg *message; (message = curl_multi_info_read(loop->multi, &left));) {
		if (message->msg != CURLMSG_DONE)
			continue;
		CURLcode code = message->data.result;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
		if (code != CURLE_OK && transfer->err.status)
			*reason = transfer->err.text;
		else if (code != CURLE_OK)
			*reason = transfer->curl_error[0] ? transfer->curl_error : curl_easy_strerror(code);
		return transfer;
	}
	return NULL;
}

/* --- One exchange ------------------------------------------------------------------------------------------------------------ */

static void add_header(struct transfer *transfer, const char *line)
{
	transfer->headers = curl_slist_append(transfer->headers, line);
}

static void set_options(struct transfer *transfer, const char *url)
{
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
	curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, (long)READ_BYTES);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->curl_error);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer);
	curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer);
	if (!transfer->body) {
		curl_easy_setopt(easy, CURLOPT_HTTP_TRANSFER_DECODING, 0L);
		curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
		curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer);
		curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_new_socket);
		transfer->may_read_directly = strncasecmp(url, "http://", 7) == 0;
	}
}

enum status transfer_prepare(
	struct transfer_loop *loop, struct transfer *transfer, const char *url, const char *api_key, struct err *err)
{
	transfer->loop = loop;
	transfer->fd = -1;
	transfer->easy = curl_easy_init();
	if (!transfer->easy)
		return err_set(err, STATUS_UNAVAILABLE, "the HTTP client library has no memory");
	add_header(transfer, "Content-Type: application/json");
	/* An empty Expect keeps libcurl from waiting for "100 Continue" before it sends a large body. */
	add_header(transfer, "Expect:");
	if (api_key) {
		struct text header = {0};
		text_printf(&header, "Authorization: Bearer %s", api_key);
		add_header(transfer, text_str(&header));
		text_release(&header);
	}
	set_options(transfer, url);
	return STATUS_OK;
}

enum status transfer_begin(struct transfer *transfer, const struct client_body *body, struct err *err)
{
	transfer->direct = transfer->over = transfer->is_chunked = false;
	transfer->done_ns = transfer->received = 0;
	transfer->direct_reads = 0;
	transfer->chunked = (struct chunked){0};
	transfer->curl_error[0] = '\0';
	err_clear(&transfer->err);
	if (body) {
		curl_easy_setopt(transfer->easy, CURLOPT_POST, 1L);
		curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body->len);
		curl_easy_setopt(transfer->easy, CURLOPT_POSTFIELDS, body->bytes);
	}
	CURLMcode code = curl_multi_add_handle(transfer->loop->multi, transfer->easy);
	if (code != CURLM_OK)
		return err_set(err, STATUS_UNAVAILABLE, "%s", curl_multi_strerror(code));
	transfer->active = true;
	return STATUS_OK;
}

void transfer_end(struct transfer *transfer)
{
	acks_forget(&transfer->loop->acks, transfer->fd);
	curl_multi_remove_handle(transfer->loop->multi, transfer->easy);
	transfer->active = false;
	transfer->fd = -1;
	if (transfer->direct)
		ready_note_stream(&transfer->loop->ready, -1);
	transfer->direct = false;
	if (transfer->done_ns)
		transfer->tally->n_done--;
	for (struct transfer **link = &transfer->loop->over; *link; link = &(*link)->next_over)
		if (*link == transfer) {
			*link = transfer->next_over;
			return;
		}
}

void transfer_release(struct transfer *transfer)
{
	if (transfer->active)
		transfer_end(transfer);
	curl_easy_cleanup(transfer->easy); /* NULL is fine */
	curl_slist_free_all(transfer->headers);
	*transfer = (struct transfer){0};
}

int transfer_http_status(const struct transfer *transfer)
{
	long status = 0;
	if (transfer->easy)
		curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
	return (int)status;
}
