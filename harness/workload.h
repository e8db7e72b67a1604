/* What is sent to a server: JSON bodies of completion requests. Pure: the same arguments give the same bytes, so every arm of an
 * experiment gets the same prompts, and every run of a launch gets others (a repeated prompt would meet a warm prefix cache). */
#ifndef HARNESS_WORKLOAD_H
#define HARNESS_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "harness/client.h"
#include "harness/experiment.h"

/* How a server wants to be asked. */
struct request_style {
	const char *model; /* NULL: no "model" in the body */
	bool chat; /* messages instead of prompt */
	int max_tokens;
	double temperature;
	uint64_t seed; /* sent when temperature is above 0 */
	bool ignore_eos; /* sent when true */
	bool whole_answer; /* asks for one document instead of a stream */
	bool continuous_usage; /* asks for counts in every event */
	bool no_prompt_cache; /* sends cache_prompt: false */
};

/* Bodies of one run, in the order in which they are sent. Released by request_bodies_release. */
struct request_bodies {
	struct text *texts;
	struct client_body *items; /* views of texts */
	size_t count, capacity;
};

void request_bodies_add_text(struct request_bodies *bodies, const struct request_style *style, const char *prompt);
/* messages: [{"role", "content"}]; prefix goes before the first one's content. */
void request_bodies_add_messages(
	struct request_bodies *bodies, const struct request_style *style, const char *messages, const char *prefix);
void request_bodies_add_ids(struct request_bodies *bodies, const struct request_style *style, const int32_t *ids, size_t count);
void request_bodies_release(struct request_bodies *bodies);

/* Token ids that no model of this vocabulary uses for anything special: families keep their special tokens at either end, so the
 * first and the last eighth are left out. */
#define WORKLOAD_VOCABULARY_DEFAULT 32000 /* the smallest of today's common vocabularies (Llama 2) */

/* Appends count common English words, each with a space before it. Each is one token in SmolLM2's vocabulary (checked 2026-11-29),
 * and in most others, so that count words are about count tokens for a server that takes no token ids. */
void workload_words(uint64_t seed, size_t count, struct text *out);

/* Bodies for a run of a workload. run counts measured runs from 0; warm-up runs have their own numbers from WORKLOAD_WARMUP_RUN on.
 * style gives model and manners; prompts, lengths and sampling are the workload's. vocabulary bounds random ids. A text that was
 * used before in the same launch gets a number put before it, so that no two prompts of a cold workload begin alike. */
#define WORKLOAD_WARMUP_RUN 1000000
void workload_build_run(const struct workload *workload, int run, int requests, int runs_per_launch,
	const struct request_style *style, int vocabulary, struct request_bodies *out);

/* When the requests of a run are due, in nanoseconds from its beginning; NULL in a closed loop. Caller frees. */
int64_t *workload_due_times(const struct workload *workload, int run);

/* The fixed prompts whose greedy answers are compared between arms. */
#define WORKLOAD_FINGERPRINT_TOKENS 24 /* guess: long enough for a wrong kernel to show, short enough to cost little */
#define WORKLOAD_FINGERPRINT_LONG_TOKENS_MAX 256 /* guess: some seconds of a small engine on a CPU */

/* Tokens of the first fingerprint prompt: as many as the longest answer that is measured, within the two limits above, because some
 * faults show late (a cache block that is wrong, a loop of a speculative decoder). */
int workload_fingerprint_tokens(const struct workload *workloads, int n_workloads);

/* The first prompt is asked for long_tokens, the others for WORKLOAD_FINGERPRINT_TOKENS. */
void workload_build_fingerprint(int prompts, int long_tokens, const struct request_style *style, struct request_bodies *out);

/* One short request for one token: the proof that a server serves. */
void workload_build_probe(const struct request_style *style, struct request_bodies *out);

#endif
