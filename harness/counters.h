/* What a server counts while it serves, from the text of its /metrics (Prometheus exposition format), as the difference between two
 * readings. Pure. */
#ifndef HARNESS_COUNTERS_H
#define HARNESS_COUNTERS_H

#include "base/json.h"
#include "harness/result.h"

/* Names of the counters as they stand in the text; NULL: the server has none. */
struct counter_names {
	const char *prompt, *generated; /* tokens */
	const char *looked_up, *cached; /* prompt tokens asked of the prefix cache, and found there */
	const char *drafted, *accepted; /* tokens of speculation */
	const char *rounds; /* of drafting and verifying */
	const char *looked_up_before, *cached_before; /* what looked_up and cached were called in older versions */
};

/* Sums every counter over its label sets; -1 where the text has no such counter. */
void counters_read(const char *text, const struct counter_names *names, struct run_counters *out);

/* The labels of the first line of a metric, as an object of label and value: numbers, True, False and None as such, all else as
 * text. NULL where the text has no such line. Caller frees. */
struct json *counters_labels(const char *text, const char *name);

/* after - before; -1 where either is unknown or the counter was reset in between. Where rounds are counted and accepted tokens are
 * not, accept_length is how many tokens were generated in a round, the first of each request among them; else it is 0. */
struct run_counters counters_difference(const struct run_counters *before, const struct run_counters *after);

#endif
