/* Llama forward pass in double precision, one token after the other, straight from the definition: what the engine's fast
 * one is compared with. No cache, no batching, no blocks; slow and simple. */
#ifndef TESTS_SUPPORT_REFERENCE_LLAMA_H
#define TESTS_SUPPORT_REFERENCE_LLAMA_H

#include <stdint.h>

#include "engine/model.h"
#include "engine/source.h"

/* Logits [n][vocab] of every position of tokens[0..n). */
void reference_llama_logits(
	const struct source *source, const struct model_config *config, const int32_t *tokens, int n, double *out);

/* Size of the difference relative to the reference: sqrt(sum (a - b)^2 / sum b^2). */
double reference_relative_error(const float *a, const double *b, int64_t count);

#endif
