/* Bridges the step thread's callbacks and a caller that waits. */
#include "engine/request.h"

#include <stdatomic.h>

#include "base/wait.h"

/* Written by the step thread until done is set, read by the waiting thread after. */
struct waiter {
	const struct engine_listener *listener;
	struct engine_result result;
	struct err err;
	_Atomic uint32_t done;
};

static void pass_tokens(void *ctx, const struct engine_token *tokens, size_t count)
{
	const struct waiter *waiter = ctx;
	if (waiter->listener->on_tokens)
		waiter->listener->on_tokens(waiter->listener->ctx, tokens, count);
}

static void pass_logits(void *ctx, int position, const float *logits, int vocab)
{
	const struct waiter *waiter = ctx;
	if (waiter->listener->on_logits)
		waiter->listener->on_logits(waiter->listener->ctx, position, logits, vocab);
}

static void note_done(void *ctx, const struct engine_result *result)
{
	struct waiter *waiter = ctx;
	waiter->result = *result;
	waiter->result.error = NULL;
	if (result->finish == FINISH_ERROR)
		err_set(&waiter->err, STATUS_UNAVAILABLE, "%s", result->error ? result->error : "the request failed");
	atomic_store(&waiter->done, 1);
	wait_wake_all(&waiter->done);
}

enum status request_run(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling,
	const struct engine_listener *listener, struct engine_result *result, struct err *err)
{
	struct waiter waiter = {.listener = listener};
	struct engine_listener bridge = {.on_tokens = pass_tokens, .on_done = note_done, .on_logits = pass_logits, .ctx = &waiter};
	uint64_t id;
	enum status status = engine_submit(engine, prompt, prompt_count, sampling, &bridge, &id, err);
	if (status != STATUS_OK)
		return status;
	while (atomic_load(&waiter.done) == 0)
		wait_while_equal(&waiter.done, 0, 0, NULL, INT64_MAX);
	*result = waiter.result;
	return waiter.err.status == STATUS_OK ? STATUS_OK : err_set(err, waiter.err.status, "%s", waiter.err.text);
}

const char *request_finish_name(enum finish finish)
{
	switch (finish) {
	case FINISH_NONE:
		return "none";
	case FINISH_STOP:
		return "stop";
	case FINISH_LENGTH:
		return "length";
	case FINISH_CANCELLED:
		return "cancelled";
	case FINISH_ERROR:
		return "error";
	}
	return "none";
}

enum status request_encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
	struct token_list *out, struct err *err)
{
	if (tokenizer_adds_bos(tokenizer) && tokenizer_bos(tokenizer) >= 0)
		token_list_append(out, tokenizer_bos(tokenizer));
	return tokenizer_encode(tokenizer, text, len, parse_special, out, err);
}
