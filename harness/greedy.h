/* Mode greedy: a chain of experiments. Each changes one factor at a time from its baseline; the winner becomes the baseline of the
 * next, until nothing helps; at the end fresh launches compare what was reached with where it began. Every link is an experiment of
 * its own in the store, made from the one before and its winner alone, so that a killed search resumes. Pure. */
#ifndef HARNESS_GREEDY_H
#define HARNESS_GREEDY_H

#include "harness/experiment.h"

/* The document of the next stage: the winner's settings as baseline, without the factors that it changed. NULL when no factor is
 * left. name: of the first stage. Caller frees. */
struct json *greedy_next(const struct experiment *stage, int winner, const char *name, int number);

/* The document that confirms a search: the first baseline against the last winner, in confirm_winner_blocks fresh blocks, which no
 * budget cuts short. first: document of the first stage. Caller frees. */
struct json *greedy_final(const struct json *first, const struct experiment *stage, int winner, const char *name);

#endif
