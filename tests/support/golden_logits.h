/* Logits of the real model by transformers (tests/golden/logits/), and how far a forward pass is from them. */
#ifndef TESTS_SUPPORT_GOLDEN_LOGITS_H
#define TESTS_SUPPORT_GOLDEN_LOGITS_H

#include "base/json.h"
#include "tests/support/forward_run.h"

#define GOLDEN_TOKENS_MAX 1024

struct golden_bounds {
	double relative; /* ||ours - theirs|| / ||theirs|| */
	double top; /* |ours - theirs| of each of the highest logits */
};

/* A file of tests/golden/logits/; caller frees. These functions fail the running test when anything fails. */
struct json *golden_logits_open(const char *name);

/* Returns how many. */
int golden_logits_ids(const struct json *array, int32_t ids[GOLDEN_TOKENS_MAX]);

/* Runs settings (sequences are filled in here, n_sequences of them together, 0: 4) over the cases of holder and prints the largest
 * distances as those of what. root holds the shape of what is stored. */
void golden_logits_check(const char *what, const struct forward_run *settings, const struct json *root, const struct json *holder,
	struct golden_bounds bounds);

/* Each token of the reference's continuation of a case must be ours too, given those before it, unless its margin was below
 * near_tie. */
void golden_logits_check_greedy(const struct forward_run *settings, const struct json *one, int vocab, double near_tie);

#endif
