/* From a started process to a server that is proven to be the right one, to work, and to run under the settings that were asked. */
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "harness/measure_internal.h"

#define HEALTH_TIMEOUT_S 2.0 /* guess: a health answer that takes longer is not one */
#define POLL_INTERVAL_MS 25 /* between two health requests: start-up is timed to within this */

struct attempt {
	char seen[256]; /* what the last try met, for the message when time is up */
	bool was_healthy; /* it has said once that it is ready: what ends it from then on is no refusal to start */
};

static double seconds_left(const struct measuring *measuring)
{
	double spent_s = (double)(clock_monotonic_ns() - measuring->begin_ns) / 1e9;
	return measuring->engine->ready_timeout_s - spent_s;
}

/* The server that answers must be the one that was started. */
static void check_identity(struct measuring *measuring, const struct text *health)
{
	if (measuring->target->identity == TARGET_IDENTITY_NONCE) {
		struct json *document = NULL;
		json_parse(text_str(health), health->len, "health", &document, NULL);
		const char *nonce = json_text(json_get(document, "nonce"));
		if (!text_equal(nonce, measuring->nonce))
			measuring_fail(measuring, FAILURE_LAUNCH_ERROR,
				"launch_error: another server answers on port %d (it echoes %s)", measuring->port,
				nonce ? "another nonce" : "no nonce");
		json_free(document);
	} else if (measuring->target->identity == TARGET_IDENTITY_SOCKET) {
		if (!measuring->measure->runner->owns_port(measuring->launch, measuring->port))
			measuring_fail(measuring, FAILURE_LAUNCH_ERROR,
				"launch_error: another server answers on port %d: no process of this launch listens there",
				measuring->port);
	}
}

/* One real token. False: not yet. */
static bool generates(struct measuring *measuring, struct attempt *attempt)
{
	struct request_bodies bodies = {0};
	struct request_style style = measuring_style(measuring);
	struct client_watch watch;
	char url[512];
	const char *endpoint = measuring->experiment->workloads[0].endpoint;
	style.chat = strcmp(endpoint, "/v1/chat/completions") == 0;
	snprintf(url, sizeof(url), "%s%s", measuring->base_url, endpoint);
	measuring_watch(measuring, &watch);
	workload_build_probe(&style, &bodies);
	double left_s = fmax(0.1, seconds_left(measuring));
	struct client_load load = {.url = url,
		.bodies = bodies.items,
		.n_bodies = bodies.count,
		.concurrency = 1,
		.run_timeout_s = left_s,
		.stall_s = left_s,
		.watch = &watch};
	struct run_result run = {0};
	struct client_report report;
	bool generated = false;
	if (client_run_load(measuring->measure->client, &load, &run, &report, NULL) == STATUS_OK && run.n_requests == 1) {
		const struct request_result *request = &run.requests[0];
		generated = request->ok && (request->completion_tokens > 0 || request->n_times > 0);
		snprintf(attempt->seen, sizeof(attempt->seen), "%s: %.200s", endpoint,
			request->error ? request->error : "no token came");
	}
	run_result_release(&run);
	request_bodies_release(&bodies);
	return generated;
}

static const char *ready_path(const struct measuring *measuring)
{
	const char *path = measuring->engine->ready_path;
	return path ? path : measuring->target->ready_path;
}

/* The first model that the server names; many servers want to hear it back. */
static void find_model(struct measuring *measuring)
{
	struct client_answer answer;
	struct json *models = NULL;
	measuring_get(measuring, "/v1/models", HEALTH_TIMEOUT_S, &answer, NULL);
	if (answer.http_status == 200)
		json_parse(text_str(&answer.body), answer.body.len, "models", &models, NULL);
	const char *name = json_text(json_get(json_at(json_get(models, "data"), 0), "id"));
	text_clear(&measuring->model);
	text_append_str(&measuring->model, name ? name : "");
	json_free(models);
	text_release(&answer.body);
}

/* True when ready, or when a failure has been recorded. */
static bool try_once(struct measuring *measuring, struct attempt *attempt)
{
	struct client_answer answer;
	struct err err = {0};
	measuring_get(measuring, ready_path(measuring), fmin(HEALTH_TIMEOUT_S, fmax(0.1, seconds_left(measuring))), &answer, &err);
	bool healthy = answer.http_status == 200 && !err.status;
	attempt->was_healthy = attempt->was_healthy || healthy;
	if (err.status)
		snprintf(attempt->seen, sizeof(attempt->seen), "%.250s", err.text);
	else if (!healthy)
		snprintf(attempt->seen, sizeof(attempt->seen), "%s: HTTP %d", ready_path(measuring), answer.http_status);
	else
		check_identity(measuring, &answer.body);
	text_release(&answer.body);
	if (!healthy || measuring_failed(measuring))
		return measuring_failed(measuring);
	find_model(measuring);
	return generates(measuring, attempt);
}

/* A moment's rest that the engine's end and signals cut short. */
static void pause_between_tries(struct measuring *measuring)
{
	struct client_watch watch;
	struct pollfd fds[CLIENT_WATCH_MAX];
	measuring_watch(measuring, &watch);
	for (size_t i = 0; i < watch.n_fds; i++)
		fds[i] = (struct pollfd){.fd = watch.fds[i], .events = POLLIN};
	poll(fds, watch.n_fds, POLL_INTERVAL_MS);
}

enum status measuring_wait_ready(struct measuring *measuring, struct err *err)
{
	struct attempt attempt = {.seen = "no answer"};
	measuring_enter(measuring, "ready");
	for (;;) {
		if (interrupt_check(measuring->measure->interrupt))
			return err_set(err, STATUS_INTERRUPTED, "interrupted");
		if (measuring_engine_gone(measuring)) {
			measuring_explain_exit(measuring, attempt.was_healthy);
			return STATUS_OK;
		}
		if (try_once(measuring, &attempt))
			break;
		if (seconds_left(measuring) <= 0) {
			measuring_fail(measuring, FAILURE_READY_TIMEOUT, "ready_timeout: not ready within %g s (%s)",
				measuring->engine->ready_timeout_s, attempt.seen);
			return STATUS_OK;
		}
		pause_between_tries(measuring);
	}
	measuring->result->spawn_to_ready_ns = clock_monotonic_ns() - measuring->begin_ns;
	if (!measuring_failed(measuring))
		measuring_read_back(measuring);
	return STATUS_OK;
}
