/* The running engine: requests in, tokens out. Owns scheduler, KV accounting, sampler, drafter, ranks and the step thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "engine/tokenizer.h"

struct engine;

/* Every switch of `serve`, `once` and `perplexity`; filled from the command line by engine/options.c. */
struct engine_options {
	const char *load_format; /* "auto", or "dummy": model_path names a shape whose weights are made up (engine/dummy.h) */
	const char *model_path, *device, *allreduce, *tokenizer_pre, *kv_type, *isa;
	const char *mem_fraction; /* "auto" or a number in (0, 1] */
	const char *mem_budget_text; /* as written, "2GiB"; NULL: the memory of the machine; mem_budget comes from it */
	const char *speculation; /* "off", "ngram" */
	const char *run_ahead; /* "auto", "off" */
	bool allreduce_force, prefix_cache, deterministic;
	long long tp, threads, max_model_len, max_num_seqs, chunk_tokens, graph_max_bs, mem_budget, queue_max;
	long long spec_draft_max, spec_ngram_min, spec_ngram_max;
	long long rank_timeout_ms;
};

/* Whose logits a request wants to see beside its tokens. */
enum engine_logits {
	ENGINE_LOGITS_NONE,
	ENGINE_LOGITS_LAST /* last prompt position */,
	ENGINE_LOGITS_ALL /* every prompt position */
};

struct sampling {
	double temperature; /* 0: greedy */
	int top_k; /* 0: off */
	double top_p, min_p; /* 1 and 0: off */
	uint64_t seed;
	int logprobs; /* alternatives to report per token; -1: none at all */
	bool ignore_eos;
	int max_tokens;
	enum engine_logits logits; /* ENGINE_LOGITS_ALL computes the whole prompt anew: no prefix is reused */
};

enum finish { FINISH_NONE, FINISH_STOP /* end token */, FINISH_LENGTH, FINISH_CANCELLED, FINISH_ERROR };

#define ENGINE_LOGPROBS_MAX 20
struct engine_token {
	int32_t id;
	float logprob;
	int n_top;
	int32_t top_ids[ENGINE_LOGPROBS_MAX];
	float top_logprobs[ENGINE_LOGPROBS_MAX];
};

struct engine_result { /* final facts of a request */
	enum finish finish;
	int prompt_tokens, cached_tokens, completion_tokens;
	int drafted, accepted, verify_steps;
	int64_t queued_ns, prefill_ns, decode_ns;
	const char *error; /* for FINISH_ERROR; borrowed for the call */
};

/* Both run on the step thread and must not block. A token callback gets one or more tokens (several after a verify step). */
struct engine_listener {
	void (*on_tokens)(void *ctx, const struct engine_token *tokens, size_t count);
	void (*on_done)(void *ctx, const struct engine_result *result); /* exactly once, last */
	/* May be NULL unless sampling.logits asks. Raw fp32 logits [vocab] of prompt position, ascending, before the first token;
	 * borrowed for the call. */
	void (*on_logits)(void *ctx, int position, const float *logits, int vocab);
	void *ctx;
};

/* Loads the model, starts ranks and the step thread, generates one token to prove itself. Blocks until then. */
enum status engine_create(const struct engine_options *options, struct engine **out, struct err *err);
void engine_destroy(struct engine *engine);

/* Queues a request and names it in *id. prompt is copied. Too long, empty, out-of-range ids: STATUS_INPUT; queue full:
 * STATUS_UNAVAILABLE. */
enum status engine_submit(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling,
	const struct engine_listener *listener, uint64_t *id, struct err *err);

/* Asks for an early end (client gone, stop string found). on_done still comes; tokens of a step under way may come before it.
 * Unknown ids are ignored. Any thread, also from a listener. */
void engine_cancel(struct engine *engine, uint64_t id);

/* Forgets cached prefixes of ended requests. */
void engine_flush_cache(struct engine *engine);

/* True from engine_create on; false for good once a step has failed: all requests then end with FINISH_ERROR. */
bool engine_is_ready(const struct engine *engine);
const struct tokenizer *engine_tokenizer(const struct engine *engine);
const struct source *engine_source(const struct engine *engine);
int engine_max_model_len(const struct engine *engine);
const char *engine_model_name(const struct engine *engine);

/* Resolved value and reason of every setting. Caller frees.
 * {"settings": {"graph_max_bs": {"value": 8, "requested": "8", "why": "…"}, …}, "rank_pids": […], "memory": {…}, …} */
struct json *engine_config_json(const struct engine *engine);

/* What the device did since the engine was ready, where it is one of its own; zeros elsewhere. */
struct engine_device_times {
	uint64_t steps;
	int64_t busy_ns; /* in steps */
	int64_t gap_ns; /* between steps, waiting for the host with work at hand */
};
void engine_device_times(const struct engine *engine, struct engine_device_times *out);

/* Appends Prometheus text (verdict_… counters and gauges). */
void engine_metrics_text(const struct engine *engine, struct text *out);

#endif
