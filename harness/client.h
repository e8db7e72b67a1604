/* The HTTP client of the harness: one load of streamed completions at a fixed concurrency, and single requests.
 *
 * Manners: proxies are never used, whatever the environment says; redirects are not followed; nothing is ever sent twice. Every
 * request has a connection of its own: libcurl silently repeats a request when a kept connection turns out to be dead, and a repeat
 * inside a timed run would be work that nobody counted. The cost of the handshake is part of the request's time.
 *
 * The time of an event is the one at which the kernel received the bytes that complete it, told with the read (harness/arrival.h);
 * bench_client prints how long after their sending that is. Events that one read brings share its time, so those that come to one
 * stream within one or two milliseconds may, while more than 4,000 come a second (harness/ready.h). Why it is so: CLIENT_NOTES.md.
 */
#ifndef HARNESS_CLIENT_H
#define HARNESS_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "harness/result.h"

#define CLIENT_CONCURRENCY_MAX \
	4096 /* guess: above what any server batches; the limit on open files is raised to it where it may be */
#define CLIENT_WATCH_MAX 4
#define CLIENT_ANSWER_BYTES_MAX ((size_t)16 << 20) /* of single requests */

struct client;

/* STATUS_INPUT with a reason when url is none that a request could be sent to. */
enum status client_check_url(const char *url, struct err *err);

enum status client_create(struct client **out, struct err *err);
void client_destroy(struct client *client);

/* What else may end a wait: when one of the descriptors becomes readable, stop is asked; true ends the wait at once. */
struct client_watch {
	int fds[CLIENT_WATCH_MAX];
	size_t n_fds;
	bool (*stop)(void *ctx);
	void *ctx;
};

struct client_body {
	const char *bytes;
	size_t len;
	int expected_tokens; /* max_tokens asked for; -1 unknown */
};

/* A closed loop: concurrency requests in flight until all are through. Or an open one: each is sent at its due time, or when a slot
 * is free after that. Both send in the order of bodies. */
struct client_load {
	const char *url; /* of the completion endpoint */
	const char *api_key; /* NULL: none */
	const struct client_body *bodies;
	size_t n_bodies;
	const int64_t *due_ns; /* [n_bodies] from the beginning, never falling; NULL: a closed loop */
	int concurrency; /* in flight at most */
	double run_timeout_s; /* for the whole load */
	double stall_s; /* without any event while requests are in flight */
	size_t failures_max; /* with more refused or broken off nothing more is sent, and what is under way is waited for; 0: no
				limit */
	const struct client_watch *watch; /* may be NULL */
};

enum client_end {
	CLIENT_COMPLETED,
	CLIENT_STALLED,
	CLIENT_TIMED_OUT,
	CLIENT_STOPPED, /* by the watch */
	CLIENT_FAILED /* too many requests */
};

struct client_report {
	enum client_end end;
	double cpu_frac; /* CPU time of the client for each second of the load */
	double late_ms; /* 99th percentile of how late requests were sent although they were due and a slot was free; 0 in a closed
			 * loop. Waits are timed in whole milliseconds, so one of them is to be expected. */
	double longest_gap_s; /* longest time in which this process was not run although it was due: its times are off by as much */
};

/* Sends every body once and fills out's requests (in order of bodies) and its begin and end; out is released by the caller.
 * Refusals, errors and requests cut short or never sent are results, not errors of this function. Nothing is parsed or printed
 * while the load runs, beyond splitting events. */
enum status client_run_load(struct client *client, const struct client_load *load, struct run_result *out,
	struct client_report *report, struct err *err);

struct client_answer {
	int http_status; /* 0: no answer */
	struct text body;
};

/* One request, answered in full: POST when body is not NULL, else GET. No answer is STATUS_UNAVAILABLE, a passed deadline
 * STATUS_TIMEOUT, the watch STATUS_INTERRUPTED; any status code is success. The caller releases answer->body. */
enum status client_request(struct client *client, const char *url, const char *api_key, const struct client_body *body,
	double timeout_s, const struct client_watch *watch, struct client_answer *answer, struct err *err);

#endif
