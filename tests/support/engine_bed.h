/* Runs requests on a whole engine over a tiny model, and waits for them with a deadline. */
#ifndef TESTS_SUPPORT_ENGINE_BED_H
#define TESTS_SUPPORT_ENGINE_BED_H

#include <stdatomic.h>

#include "engine/drafter.h"
#include "engine/engine.h"
#include "tests/support/tiny_gguf.h"

#define BED_TOKENS_MAX 512

/* One request and everything that came of it. Filled on the step thread, read after bed_wait. */
struct bed_run {
	int32_t prompt[BED_TOKENS_MAX];
	size_t n_prompt;
	struct sampling sampling;
	int cancel_after; /* asks for an end when so many tokens came; 0: never */

	int32_t tokens[BED_TOKENS_MAX];
	size_t n_tokens, n_calls;
	float logprobs[BED_TOKENS_MAX];
	int32_t n_logits; /* calls of on_logits, checked to be ascending and before the first token */
	float last_logits[BED_TOKENS_MAX];
	struct engine_result result;
	char error[256];
	_Atomic uint32_t done;
	struct engine *engine;
	uint64_t id;
};

/* Defaults for a tiny model at path: one thread, no speculation. */
void bed_options(const char *path, struct engine_options *out);

/* Fails the running test when it cannot. drafter_ops NULL: as options say. */
struct engine *bed_open(const struct engine_options *options, const struct drafter_ops *drafter_ops);

/* The budget at which the same engine has n_blocks usable KV blocks (with --mem-fraction 1). */
long long bed_budget_for(const struct engine_options *options, int32_t n_blocks);

/* Greedy, no end token, n_answer tokens. The prompt is n_prompt tokens drawn from seed, repetitive in part. */
void bed_run_init(struct bed_run *run, uint64_t seed, size_t n_prompt, int n_answer);

void bed_submit(struct engine *engine, struct bed_run *run);
void bed_wait(struct bed_run *run);
void bed_run(struct engine *engine, struct bed_run *run);

/* As bed_run, with a prompt that may be longer than the run holds. */
void bed_run_long(struct engine *engine, struct bed_run *run, const int32_t *prompt, size_t n_prompt);

/* --- Twelve requests of many shapes, and their texts from the plainest engine: alone, no cache, no drafts, no plans ------- */

#define BED_SHAPES 12
struct bed_texts {
	char path[TINY_PATH_BYTES]; /* of the tiny model */
	struct bed_run runs[BED_SHAPES];
};
void bed_shape(struct bed_run *run, int i);
void bed_texts_make(struct bed_texts *texts);
void bed_texts_release(struct bed_texts *texts); /* removes the model */

/* Fails unless run, of shape i, has the plain text and, where asked for, its log-probabilities bit for bit. */
void bed_check_text(const struct bed_texts *texts, const struct bed_run *run, int i, const char *what);

/* Submits all shapes, together or one after the other; fails unless each has its plain text and nothing is held afterwards. */
void bed_check_all(const struct bed_texts *texts, struct engine *engine, const char *what, bool together);

/* Fails unless no sequence runs or waits and no block is held. */
void bed_check_idle(const struct engine *engine);

/* Value of a sample such as verdict_kv_blocks{state="free"} in the engine's metrics; fails the test when it is not there. */
double bed_metric(const struct engine *engine, const char *sample);

#endif
