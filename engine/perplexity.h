/* Perplexity of a text under a model: exp of the mean negative log likelihood of its tokens. */
#ifndef ENGINE_PERPLEXITY_H
#define ENGINE_PERPLEXITY_H

#include "engine/engine.h"

struct perplexity {
	size_t tokens; /* of the text, BOS included where the model adds it */
	size_t predicted; /* all but the first of each window */
	size_t windows;
	double nll; /* nats, summed over predicted tokens; log-softmax in double */
	double perplexity; /* exp(nll / predicted) */
};

/* Windows of `context` tokens without overlap, each from an empty cache; a text that fits is one window, so the figure is
 * that of a single forward pass: exp of the mean cross entropy of tokens 1, 2, …, as Hugging Face's model(labels=ids).
 * context: 2 to engine_max_model_len - 1. Fewer than 2 tokens: STATUS_INPUT. */
enum status perplexity_run(
	struct engine *engine, const int32_t *tokens, size_t count, int context, struct perplexity *out, struct err *err);

/* -log softmax(logits)[id] in nats, by the shifted sum of exponentials, in double. */
double perplexity_nll(const float *logits, int vocab, int32_t id);

#endif
