/* One prompt through the engine, with everything worth comparing: ids, text, logits, rates. */
#ifndef ENGINE_ONCE_H
#define ENGINE_ONCE_H

#include "base/hash.h"
#include "base/json.h"
#include "engine/engine.h"

#define ONCE_TOP_LOGITS 10

struct once_logit {
	int32_t id;
	float value;
};

/* {0} is empty; released by once_result_release. */
struct once_result {
	struct token_list ids;
	struct text text; /* decoded ids, control tokens left out, invalid UTF-8 replaced */
	float *logits; /* [vocab] of the last prompt position */
	int vocab;
	char logits_hash[SHA256_HEX_BYTES]; /* of their fp32 bytes */
	struct once_logit top[ONCE_TOP_LOGITS]; /* highest first, lower id first among equals */
	int n_top;
	double prefill_tok_per_s; /* prompt tokens over the time from submitting to the first token */
	double decode_tok_per_s; /* tokens after the first callback's over the time from it to the last; 0 when there are none */
	struct engine_device_times device; /* of the measured run */
	struct engine_result engine;
};

/* Runs the request warmup times unmeasured, forgets cached prefixes, then runs it measured. sampling->logits is set here. */
enum status once_run(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling, int warmup,
	struct once_result *out, struct err *err);

/* Caller frees. */
struct json *once_json(const struct once_result *result, const int32_t *prompt, size_t prompt_count, bool all_logits);

void once_result_release(struct once_result *result);

#endif
