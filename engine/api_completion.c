/* A request at work. The server thread parses, encodes and submits one generation per choice; the engine's step thread
 * then drives everything through the listener: text is decoded, held back while it may become a stop string, and queued.
 * The last choice to finish ends the exchange. */
#include "engine/api_completion.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "engine/api_prompts.h"
#include "engine/api_reply.h"

struct completion;

struct choice {
	struct completion *completion;
	int index;
	bool first_of_prompt; /* counts the prompt's tokens */
	_Atomic uint64_t handle; /* the engine's id plus one; 0 until submit returned it */
	atomic_bool cancel_wanted;

	/* Guarded by completion->lock. */
	struct text bytes; /* generated, not yet whole code points */
	struct stop_filter stop;
	struct text content; /* whole reply: all text so far; stream: text of the next event */
	struct logprob_writer logprobs;
	int tokens; /* up to the stop string */
	bool opened; /* its role event was written */
	struct engine_result result;
	const char *finish_reason;
};

struct completion {
	struct api_gate *gate;
	struct api_backend backend;
	struct http_exchange *exchange;
	struct api_request request;
	atomic_int refs; /* the exchange, the start, and each generation in the engine */

	pthread_mutex_t lock;
	struct api_reply reply;
	struct choice *choices;
	int n_choices, unfinished;
	int prompt_tokens;
	bool stream_begun;
	struct api_error error; /* set: the request has failed */
	struct text scratch; /* events being written */
};

/* ---- life ---- */

static void completion_unref(void *ctx)
{
	struct completion *completion = ctx;

	if (atomic_fetch_sub(&completion->refs, 1) > 1)
		return;
	for (int i = 0; i < completion->n_choices; i++) {
		struct choice *choice = &completion->choices[i];
		text_release(&choice->bytes);
		text_release(&choice->content);
		stop_filter_release(&choice->stop);
		logprob_release(&choice->logprobs);
	}
	mem_free(completion->choices);
	text_release(&completion->scratch);
	api_reply_release(&completion->reply);
	api_request_release(&completion->request);
	pthread_mutex_destroy(&completion->lock);
	mem_free(completion);
}

/* Asks the engine to end a generation early, now or as soon as its id is known. */
static void cancel_choice(struct choice *choice)
{
	const struct api_backend *backend = &choice->completion->backend;

	atomic_store(&choice->cancel_wanted, true);
	uint64_t handle = atomic_load(&choice->handle);
	if (handle)
		backend->ops->cancel(backend->self, handle - 1);
}

/* The client has left: its generations are worth nothing any more. Server thread. */
static void on_gone(void *ctx)
{
	struct completion *completion = ctx;

	pthread_mutex_lock(&completion->gate->lock);
	if (completion->gate->backend.ops) { /* else the engine is ending, and with it every generation */
		for (int i = 0; i < completion->n_choices; i++)
			cancel_choice(&completion->choices[i]);
	}
	pthread_mutex_unlock(&completion->gate->lock);
}

static struct api_usage sum_usage(const struct completion *completion)
{
	struct api_usage usage = {.prompt_tokens = completion->prompt_tokens};

	for (int i = 0; i < completion->n_choices; i++) {
		const struct choice *choice = &completion->choices[i];
		const struct engine_result *result = &choice->result;
		usage.completion_tokens += choice->tokens;
		usage.cached_tokens += choice->first_of_prompt ? result->cached_tokens : 0;
		usage.drafted += result->drafted;
		usage.accepted += result->accepted;
		usage.verify_steps += result->verify_steps;
		usage.queued_ns = result->queued_ns > usage.queued_ns ? result->queued_ns : usage.queued_ns;
		usage.prefill_ns = result->prefill_ns > usage.prefill_ns ? result->prefill_ns : usage.prefill_ns;
		usage.decode_ns = result->decode_ns > usage.decode_ns ? result->decode_ns : usage.decode_ns;
	}
	return usage;
}

static void reply_whole(struct completion *completion)
{
	struct api_usage usage = sum_usage(completion);
	struct text body = {0};

	api_reply_begin(&completion->reply, &body);
	for (int i = 0; i < completion->n_choices; i++) {
		struct choice *choice = &completion->choices[i];
		struct api_part part = {choice->index, &choice->content, &choice->logprobs, choice->finish_reason};
		api_reply_choice(&completion->reply, &part, &body);
	}
	api_reply_end(&usage, &body);
	http_reply(completion->exchange, 200, "application/json", NULL, &body);
}

static void end_stream(struct completion *completion)
{
	struct text last = {0};

	if (completion->error.http_status) {
		api_reply_error_event(&completion->error, &last);
	} else if (completion->request.include_usage) {
		struct api_usage usage = sum_usage(completion);
		api_reply_usage_event(&completion->reply, &usage, &last);
	}
	api_reply_done_event(&last);
	http_stream_write(completion->exchange, last.data, last.len);
	text_release(&last);
	http_stream_end(completion->exchange);
}

/* Every choice has finished: nobody else touches the completion, so no lock is held. */
static void completion_end(struct completion *completion)
{
	if (completion->stream_begun)
		end_stream(completion);
	else if (completion->error.http_status)
		api_reply_refusal(completion->exchange, &completion->error, NULL);
	else
		reply_whole(completion);
}

/* ---- text, on the step thread, lock held ---- */

/* Sends what a choice has to say. Nothing is begun before the first token, so that an early failure is still a plain HTTP error. */
static void send_event(struct choice *choice, bool last_of_all)
{
	struct completion *completion = choice->completion;
	struct text *out = &completion->scratch;
	struct api_part part = {choice->index, &choice->content, &choice->logprobs, choice->finish_reason};
	struct api_usage totals, running = {.prompt_tokens = completion->prompt_tokens};
	bool facts = last_of_all && !completion->request.include_usage;

	if (!completion->stream_begun) {
		completion->stream_begun = true;
		http_stream_begin(completion->exchange, 200, "text/event-stream; charset=utf-8");
	}
	text_clear(out);
	if (completion->request.kind == API_CHAT && !choice->opened)
		api_reply_role_event(&completion->reply, choice->index, out);
	choice->opened = true;
	if (facts)
		totals = sum_usage(completion);
	for (int i = 0; i < completion->n_choices; i++)
		running.completion_tokens += completion->choices[i].tokens;
	api_reply_event(
		&completion->reply, &part, completion->request.continuous_usage ? &running : NULL, facts ? &totals : NULL, out);
	http_stream_write(completion->exchange, out->data, out->len);
	text_clear(&choice->content);
}

/* Moves the whole code points of choice->bytes through the stop filter; all bytes at the end of the text. */
static void release_text(struct choice *choice, bool at_end)
{
	struct text *bytes = &choice->bytes;
	size_t ready = at_end ? bytes->len : utf8_complete_prefix(text_str(bytes), bytes->len);

	if (utf8_is_valid(text_str(bytes), ready)) {
		stop_filter_push(&choice->stop, text_str(bytes), ready, &choice->content);
	} else {
		struct text valid = {0};
		utf8_append_lossy(&valid, text_str(bytes), ready);
		stop_filter_push(&choice->stop, text_str(&valid), valid.len, &choice->content);
		text_release(&valid);
	}
	if (ready) {
		memmove(bytes->data, bytes->data + ready, bytes->len - ready);
		text_truncate(bytes, bytes->len - ready);
	}
	if (at_end && !choice->stop.matched)
		stop_filter_finish(&choice->stop, &choice->content);
}

/* Returns true when a stop string has just been found. */
static bool take_tokens(struct choice *choice, const struct engine_token *tokens, size_t count)
{
	const struct completion *completion = choice->completion;

	for (size_t i = 0; i < count; i++) {
		choice->tokens++;
		completion->backend.ops->token_bytes(completion->backend.self, tokens[i].id, false, &choice->bytes);
		release_text(choice, false);
		logprob_add(&choice->logprobs, &completion->backend, &tokens[i]);
		if (choice->stop.matched)
			return true;
	}
	return false;
}

static void on_tokens(void *ctx, const struct engine_token *tokens, size_t count)
{
	struct choice *choice = ctx;
	struct completion *completion = choice->completion;
	bool stopped = false;

	pthread_mutex_lock(&completion->lock);
	if (!choice->stop.matched && !completion->error.http_status) {
		stopped = take_tokens(choice, tokens, count);
		if (completion->request.stream &&
			(choice->content.len || choice->logprobs.count || completion->request.continuous_usage))
			send_event(choice, false);
	}
	pthread_mutex_unlock(&completion->lock);
	if (stopped)
		cancel_choice(choice);
}

/* ---- the end of a choice ---- */

/* Why a generation ended, in OpenAI's words; NULL and an error when it was no regular end. */
static const char *finish_reason(struct choice *choice, const struct engine_result *result)
{
	struct api_error *error = &choice->completion->error;

	if (choice->stop.matched)
		return "stop";
	switch (result->finish) {
	case FINISH_STOP:
		return "stop";
	case FINISH_LENGTH:
		return "length";
	case FINISH_ERROR:
		api_error_set(error, 500, "engine_error", NULL, "%s", result->error ? result->error : "the engine failed");
		return NULL;
	case FINISH_CANCELLED:
	case FINISH_NONE:
		break;
	}
	api_error_set(error, 503, "cancelled", NULL, "the generation was cancelled before its end");
	return NULL;
}

static void cancel_others(struct choice *choice)
{
	struct completion *completion = choice->completion;

	for (int i = 0; i < completion->n_choices; i++) {
		if (&completion->choices[i] != choice)
			cancel_choice(&completion->choices[i]);
	}
}

static void on_done(void *ctx, const struct engine_result *result)
{
	struct choice *choice = ctx;
	struct completion *completion = choice->completion;

	pthread_mutex_lock(&completion->lock);
	bool failed_before = completion->error.http_status != 0;
	choice->result = *result;
	choice->result.error = NULL; /* borrowed for this call only */
	choice->finish_reason = finish_reason(choice, result);
	if (!choice->stop.matched)
		choice->tokens = result->completion_tokens;
	bool last = --completion->unfinished == 0;
	bool failed = completion->error.http_status != 0;
	if (!failed) {
		release_text(choice, true);
		if (completion->request.stream)
			send_event(choice, last);
	}
	pthread_mutex_unlock(&completion->lock);

	if (last)
		completion_end(completion);
	else if (failed && !failed_before)
		cancel_others(choice);
	completion_unref(completion);
}

/* ---- the start, on the server thread, gate held ---- */

/* Takes over the request. */
static struct completion *completion_new(
	struct api_gate *gate, struct http_exchange *exchange, struct api_request *request, const struct api_prompts *prompts)
{
	struct completion *completion = mem_calloc(1, sizeof(*completion));

	completion->gate = gate;
	completion->backend = gate->backend;
	completion->exchange = exchange;
	completion->request = *request;
	request = &completion->request;
	atomic_init(&completion->refs, 2);
	pthread_mutex_init(&completion->lock, NULL);
	api_reply_init(&completion->reply, request->kind, request->stream, gate->backend.ops->model_name(gate->backend.self));
	completion->prompt_tokens = prompts->tokens;
	completion->n_choices = (int)prompts->count * request->n;
	completion->unfinished = completion->n_choices;
	completion->choices = mem_calloc((size_t)completion->n_choices, sizeof(*completion->choices));
	for (int i = 0; i < completion->n_choices; i++) {
		struct choice *choice = &completion->choices[i];
		choice->completion = completion;
		choice->index = i;
		choice->first_of_prompt = i % request->n == 0;
		choice->stop = (struct stop_filter){.strings = request->stops, .count = request->n_stops};
		choice->logprobs = (struct logprob_writer){.kind = request->kind, .alternatives = request->sampling.logprobs};
	}
	return completion;
}

/* Seeds of the choices of one prompt differ; the first is the request's own. */
static uint64_t choice_seed(const struct completion *completion, int index)
{
	const struct api_request *request = &completion->request;

	return request->has_seed ? request->sampling.seed + (uint64_t)(index % request->n) : random_entropy();
}

static enum status submit_choice(struct choice *choice, const struct token_list *prompt, int max_tokens, struct api_error *error)
{
	struct completion *completion = choice->completion;
	const struct api_backend *backend = &completion->backend;
	struct sampling sampling = completion->request.sampling;
	struct engine_listener listener = {.on_tokens = on_tokens, .on_done = on_done, .ctx = choice};
	struct err err = {0};
	uint64_t id = 0;

	sampling.seed = choice_seed(completion, choice->index);
	sampling.max_tokens = max_tokens;
	atomic_fetch_add(&completion->refs, 1);
	if (backend->ops->submit(backend->self, prompt->ids, prompt->count, &sampling, &listener, &id, &err) != STATUS_OK) {
		completion_unref(completion);
		return api_engine_refusal(&err, error);
	}
	/* The step thread may already have asked for the end. */
	atomic_store(&choice->handle, id + 1);
	if (atomic_load(&choice->cancel_wanted))
		backend->ops->cancel(backend->self, id);
	return STATUS_OK;
}

/* Choices from first on never reached the engine: the request fails with error, and ends when the others have. */
static void abandon_from(struct completion *completion, int first, const struct api_error *error)
{
	pthread_mutex_lock(&completion->lock);
	if (!completion->error.http_status)
		completion->error = *error;
	completion->unfinished -= completion->n_choices - first;
	bool last = completion->unfinished == 0;
	pthread_mutex_unlock(&completion->lock);
	for (int i = 0; i < first; i++)
		cancel_choice(&completion->choices[i]);
	if (last)
		completion_end(completion);
}

static void submit_all(struct completion *completion, const struct api_prompts *prompts)
{
	for (int i = 0; i < completion->n_choices; i++) {
		int prompt = i / completion->request.n;
		struct api_error error = {0};
		if (submit_choice(&completion->choices[i], &prompts->lists[prompt], prompts->max_tokens[prompt], &error) !=
			STATUS_OK) {
			abandon_from(completion, i, &error);
			return;
		}
	}
}

void api_completion_start(struct api_gate *gate, struct http_exchange *exchange, enum api_kind kind)
{
	struct api_request request;
	struct api_prompts prompts = {0};
	struct api_error error = {0};
	size_t body_len;
	const char *body = http_body(exchange, &body_len);

	enum status status = api_request_parse(kind, body, body_len, &request, &error);
	if (status == STATUS_OK)
		status = api_prompts_encode(&gate->backend, gate->token_bytes_max, &request, &prompts, &error);
	if (status == STATUS_OK) {
		struct completion *completion = completion_new(gate, exchange, &request, &prompts);
		http_attach(exchange, completion, on_gone, completion_unref);
		submit_all(completion, &prompts);
		completion_unref(completion);
	} else {
		api_request_release(&request);
		api_reply_refusal(exchange, &error, NULL);
	}
	api_prompts_release(&prompts);
}
