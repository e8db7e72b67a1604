/* One exchange with a server, and the loop that drives all that are under way: libcurl connects, sends, and reads heads and plain
 * answers; once a stream of events has begun its socket is read here. Internal to the client, which decides what is sent when. The
 * only module that knows libcurl.
 *
 * Layers, top to bottom: client (loads and single requests), transfer (connections), ready (which sockets),
 * arrival (when bytes came) and acks. */
#ifndef HARNESS_TRANSFER_H
#define HARNESS_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "harness/chunked.h"
#include "harness/client.h"
#include "harness/completion.h"

#define TRANSFER_ERROR_BYTES 256 /* CURL_ERROR_SIZE */

struct transfer_loop;

/* What has come over all transfers that share one. */
struct transfer_tally {
	int64_t progress_ns; /* when an event, or bytes of a document, came last */
	int n_done; /* transfers under way whose "[DONE]" has come */
};

/* Completions are split into events as they come; a plain answer is kept whole. Zero-initialised; the caller sets the first part
 * before transfer_prepare, and may change it between two exchanges. */
struct transfer {
	struct completion_answer *answer; /* of a completion, else NULL */
	struct transfer_tally *tally; /* of a completion, else NULL */
	struct text *body; /* of a plain answer, else NULL */

	/* For the caller to read. */
	bool active; /* between begin and end */
	int64_t done_ns; /* when "[DONE]" came; 0: it has not */

	/* Of transfer.c. */
	struct transfer_loop *loop;
	void *easy; /* CURL */
	struct curl_slist *headers;
	int fd; /* -1: libcurl has none open for this */
	bool may_read_directly, direct, over; /* over: read directly to its end, which is not yet reported */
	bool is_chunked; /* the body of a completion comes as it was sent: taking it off its chunks is ours */
	struct chunked chunked;
	int64_t received; /* bytes of the body as they were sent */
	unsigned direct_reads;
	struct transfer *next_over;
	struct err err; /* why no more is taken, or why a stream that was read directly broke off */
	char curl_error[TRANSFER_ERROR_BYTES];
};

/* STATUS_INPUT with a reason when url is none that a request could be sent to. */
enum status transfer_check_url(const char *url, struct err *err);

enum status transfer_loop_create(struct transfer_loop **out, struct err *err);
void transfer_loop_destroy(struct transfer_loop *loop);

/* The beginning and the end of a load, or of a wait for a single answer: watched descriptors are in the loop meanwhile, and what
 * is learnt about the server holds for as long. watch may be NULL. */
void transfer_loop_enter(struct transfer_loop *loop, const struct client_watch *watch);
void transfer_loop_leave(struct transfer_loop *loop, const struct client_watch *watch);

/* Waits for sockets or watched descriptors, timeout_ns at most, and works on what is ready. *watched is set when one of the latter
 * is readable; *allowed_ns is how long the wait was allowed to take. */
enum status transfer_loop_step(struct transfer_loop *loop, int64_t timeout_ns, bool *watched, int64_t *allowed_ns, struct err *err);

/* The next transfer that has come to its end since; NULL: none. It stays active until transfer_end. *reason: why it ended early,
 * valid until then; NULL when it ended well. */
struct transfer *transfer_loop_next_over(struct transfer_loop *loop, const char **reason);

/* Everything that exchanges with the same address have in common. */
enum status transfer_prepare(
	struct transfer_loop *loop, struct transfer *transfer, const char *url, const char *api_key, struct err *err);
void transfer_release(struct transfer *transfer);

/* Sends body, or asks without one when it is NULL. The bytes are not copied: they outlive the exchange. */
enum status transfer_begin(struct transfer *transfer, const struct client_body *body, struct err *err);
/* Ends it, whether it was over or not, and closes its connection. */
void transfer_end(struct transfer *transfer);

int transfer_http_status(const struct transfer *transfer); /* 0: no answer */

#endif
