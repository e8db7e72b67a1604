/* From the logits of one row to one token: greedy or random, with the probabilities that clients ask for.
 *
 * Order of the filters, each over what the one before it left, probabilities renormalised in between (as Hugging Face
 * transformers orders its warpers): temperature, top_k, top_p, min_p. Equal logits are ordered by id, lowest first; top_k
 * keeps exactly k tokens, top_p the shortest head of the order whose probability reaches p (at least one token), min_p those
 * of at least min_p times the likeliest. Of what is left the token with the largest logit / T + Gumbel noise wins, which draws
 * each in proportion to its probability. The noise depends on (seed, position, token) alone. So a token depends on its logits
 * row and nothing else: not on batch, step, or speculation. And a row that is slightly off, as with other ranks, gives another
 * token only at a near tie or at a filter's edge: raising one token's logit can make that token win but no other. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include <stdint.h>

#include "base/err.h"
#include "engine/engine.h"
#include "kernels/kn.h"

#define SAMPLER_TEMPERATURE_MIN KN_TEMPERATURE_MIN

struct sampler; /* scratch for one vocabulary; one thread uses it */

struct sampler *sampler_create(int32_t vocab);
void sampler_destroy(struct sampler *sampler);

/* Picks the token at position (counted from the first prompt token) from logits [vocab]. With sampling->logprobs >= 0 the
 * log-probabilities of *out are those of the raw logits, before temperature and filters, as OpenAI's are; otherwise 0.
 * A NaN, +infinity, or nothing above -infinity: STATUS_INTERNAL, the model's numbers are broken. Allocates nothing.
 * Cost: O(vocab), about one pass for greedy, an exponential and a hash per id for random. */
enum status sampler_sample(struct sampler *sampler, const float *logits, const struct sampling *sampling, int64_t position,
	struct engine_token *out, struct err *err);

#endif
