/* Sums the surprise at every token of a text, window by window. */
#include "engine/perplexity.h"

#include <math.h>

#include "engine/request.h"

/* One window in progress; the step thread adds, in ascending position. */
struct window {
	const int32_t *tokens;
	size_t count;
	double nll;
	size_t predicted;
};

double perplexity_nll(const float *logits, int vocab, int32_t id)
{
	/* Relative to the largest, whose own exponential is 1: nothing overflows, and log1p keeps the rest's last digits. */
	int best = 0;
	double rest = 0;
	for (int i = 1; i < vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	for (int i = 0; i < vocab; i++)
		if (i != best)
			rest += exp((double)logits[i] - (double)logits[best]);
	return (double)logits[best] + log1p(rest) - (double)logits[id];
}

static void add_position(void *ctx, int position, const float *logits, int vocab)
{
	struct window *window = ctx;
	if ((size_t)position + 1 >= window->count)
		return; /* what the last token predicts lies outside */
	window->nll += perplexity_nll(logits, vocab, window->tokens[position + 1]);
	window->predicted++;
}

enum status perplexity_run(
	struct engine *engine, const int32_t *tokens, size_t count, int context, struct perplexity *out, struct err *err)
{
	const struct sampling sampling = {
		.top_p = 1, .logprobs = -1, .ignore_eos = true, .max_tokens = 1, .logits = ENGINE_LOGITS_ALL};
	*out = (struct perplexity){.tokens = count};
	if (count < 2)
		return err_set(err, STATUS_INPUT, "the text has %zu token%s; at least 2 are needed to predict one from another",
			count, count == 1 ? "" : "s");
	if (context < 2 || context > engine_max_model_len(engine) - 1)
		return err_set(err, STATUS_INPUT, "a window of %d tokens is not possible, expected 2 to %d", context,
			engine_max_model_len(engine) - 1);
	for (size_t begin = 0; begin < count; begin += (size_t)context) {
		size_t left = count - begin;
		struct window window = {.tokens = tokens + begin, .count = left < (size_t)context ? left : (size_t)context};
		struct engine_listener listener = {.on_logits = add_position, .ctx = &window};
		struct engine_result result;
		if (window.count < 2)
			break; /* a single last token has nothing before it */
		enum status status = request_run(engine, window.tokens, window.count, &sampling, &listener, &result, err);
		if (status != STATUS_OK)
			return err_add(err, "window at token %zu", begin);
		if (window.predicted != window.count - 1)
			return err_set(err, STATUS_INTERNAL, "window at token %zu: logits of %zu positions, expected %zu", begin,
				window.predicted, window.count - 1);
		out->nll += window.nll;
		out->predicted += window.predicted;
		out->windows++;
	}
	out->perplexity = exp(out->nll / (double)out->predicted);
	return STATUS_OK;
}
