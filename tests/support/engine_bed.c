/* A whole engine under test. */
#include "tests/support/engine_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/text.h"
#include "base/wait.h"
#include "engine/engine_state.h"
#include "engine/options.h"

#define DEADLINE_NS (60LL * 1000000000)

void bed_options(const char *path, struct engine_options *out)
{
	engine_options_init(out);
	out->device = "cpu";
	out->model_path = path;
	out->threads = 1;
	out->mem_budget_text = "64MiB";
	out->mem_budget = 64 << 20;
	out->mem_fraction = "1";
	out->max_num_seqs = 8;
	out->chunk_tokens = 64;
	out->queue_max = 1000;
	out->graph_max_bs = 4;
}

struct engine *bed_open(const struct engine_options *options, const struct drafter_ops *drafter_ops)
{
	struct engine *engine = NULL;
	struct err err = {0};
	enum status status =
		drafter_ops ? engine_create_with(options, drafter_ops, &engine, &err) : engine_create(options, &engine, &err);
	if (status != STATUS_OK)
		fail_msg("%s", err.text);
	return engine;
}

long long bed_budget_for(const struct engine_options *options, int32_t n_blocks)
{
	struct engine *engine = bed_open(options, NULL);
	struct json *config = engine_config_json(engine);
	const struct json *memory = json_get(config, "memory");
	static const char *const terms[] = {"weights_bytes", "workspace_bytes", "plans_bytes", "collectives_bytes", "logits_bytes"};
	double bytes = json_number(json_get(memory, "kv_block_bytes"), 0) * (n_blocks + 1);
	for (size_t i = 0; i < sizeof terms / sizeof terms[0]; i++)
		bytes += json_number(json_get(memory, terms[i]), 0);
	json_free(config);
	engine_destroy(engine);
	return (long long)bytes;
}

void bed_run_init(struct bed_run *run, uint64_t seed, size_t n_prompt, int n_answer)
{
	assert_true(n_prompt <= BED_TOKENS_MAX && n_answer <= BED_TOKENS_MAX);
	memset(run, 0, sizeof *run);
	run->n_prompt = n_prompt;
	run->sampling = (struct sampling){.top_p = 1, .seed = seed, .logprobs = -1, .ignore_eos = true, .max_tokens = n_answer};
	for (size_t i = 0; i < n_prompt; i++) /* phrases of up to 12 tokens, each said up to three times */
		run->prompt[i] = 3 + (int32_t)random_below(seed, i / 36, i % 12, 256);
}

static void take_tokens(void *ctx, const struct engine_token *tokens, size_t count)
{
	struct bed_run *run = ctx;
	run->n_calls++;
	for (size_t i = 0; i < count; i++) {
		if (run->n_tokens == BED_TOKENS_MAX)
			abort(); /* only the main thread may assert */
		run->logprobs[run->n_tokens] = tokens[i].logprob;
		run->tokens[run->n_tokens++] = tokens[i].id;
	}
	if (run->cancel_after && run->n_tokens >= (size_t)run->cancel_after)
		engine_cancel(run->engine, run->id);
}

static void take_logits(void *ctx, int position, const float *logits, int vocab)
{
	struct bed_run *run = ctx;
	if (run->n_tokens > 0 || vocab > BED_TOKENS_MAX || (run->sampling.logits == ENGINE_LOGITS_ALL && position != run->n_logits))
		abort();
	run->n_logits++;
	memcpy(run->last_logits, logits, (size_t)vocab * sizeof *logits);
}

static void take_end(void *ctx, const struct engine_result *result)
{
	struct bed_run *run = ctx;
	run->result = *result;
	if (result->error)
		memcpy(run->error, result->error, strnlen(result->error, sizeof run->error - 1));
	atomic_store(&run->done, 1);
	wait_wake_all(&run->done);
}

static void submit(struct engine *engine, struct bed_run *run, const int32_t *prompt, size_t n_prompt)
{
	const struct engine_listener listener = {
		.on_tokens = take_tokens, .on_done = take_end, .on_logits = take_logits, .ctx = run};
	struct err err = {0};
	run->engine = engine;
	if (engine_submit(engine, prompt, n_prompt, &run->sampling, &listener, &run->id, &err))
		fail_msg("%s", err.text);
}

void bed_submit(struct engine *engine, struct bed_run *run)
{
	submit(engine, run, run->prompt, run->n_prompt);
}

void bed_wait(struct bed_run *run)
{
	int64_t deadline_ns = clock_monotonic_ns() + DEADLINE_NS;
	while (atomic_load(&run->done) == 0)
		if (!wait_while_equal(&run->done, 0, 0, NULL, deadline_ns))
			fail_msg("a request did not end in time");
}

void bed_run(struct engine *engine, struct bed_run *run)
{
	bed_submit(engine, run);
	bed_wait(run);
}

void bed_shape(struct bed_run *run, int i)
{
	static const size_t prompts[BED_SHAPES] = {1, 2, 15, 16, 17, 33, 64, 65, 90, 100, 130, 140};
	bed_run_init(run, (uint64_t)i / 2, prompts[i], 60); /* pairs of prompts with a common beginning */
	run->sampling.temperature = i % 2 ? 1.0 : 0;
	run->sampling.top_k = i % 4 == 3 ? 20 : 0;
	run->sampling.top_p = i % 3 == 2 ? 0.9 : 1;
	run->sampling.logprobs = i == 5 ? 3 : -1;
}

void bed_texts_make(struct bed_texts *texts)
{
	struct tiny_model model = tiny_model_default();
	struct engine_options options;
	tiny_model_write_temp(&model, texts->path);
	bed_options(texts->path, &options);
	options.graph_max_bs = 0;
	options.prefix_cache = false;
	options.chunk_tokens = 512;
	options.max_num_seqs = 1;
	struct engine *engine = bed_open(&options, NULL);
	for (int i = 0; i < BED_SHAPES; i++) {
		bed_shape(&texts->runs[i], i);
		bed_run(engine, &texts->runs[i]);
	}
	engine_destroy(engine);
}

void bed_texts_release(struct bed_texts *texts)
{
	unlink(texts->path);
}

void bed_run_long(struct engine *engine, struct bed_run *run, const int32_t *prompt, size_t n_prompt)
{
	submit(engine, run, prompt, n_prompt);
	bed_wait(run);
}

double bed_metric(const struct engine *engine, const char *sample)
{
	struct text text = {0}, line = {0};
	engine_metrics_text(engine, &text);
	text_printf(&line, "\n%s ", sample);
	const char *found = strstr(text_str(&text), text_str(&line));
	if (!found)
		fail_msg("no metric %s", sample);
	double value = strtod(found + line.len, NULL);
	text_release(&line);
	text_release(&text);
	return value;
}

void bed_check_idle(const struct engine *engine)
{
	assert_int_equal((int)bed_metric(engine, "verdict_running"), 0);
	assert_int_equal((int)bed_metric(engine, "verdict_waiting"), 0);
	assert_int_equal((int)bed_metric(engine, "verdict_kv_blocks{state=\"used\"}"), 0);
}

void bed_check_text(const struct bed_texts *texts, const struct bed_run *run, int i, const char *what)
{
	const struct bed_run *plain = &texts->runs[i];
	if (run->n_tokens != plain->n_tokens || memcmp(run->tokens, plain->tokens, run->n_tokens * sizeof *run->tokens) != 0)
		fail_msg("%s: text %d differs from the one made plainly (%zu and %zu tokens)", what, i, run->n_tokens,
			plain->n_tokens);
	assert_memory_equal(run->logprobs, plain->logprobs, run->n_tokens * sizeof *run->logprobs);
}

void bed_check_all(const struct bed_texts *texts, struct engine *engine, const char *what, bool together)
{
	struct bed_run *runs = mem_calloc(BED_SHAPES, sizeof *runs);
	for (int i = 0; i < BED_SHAPES; i++) {
		bed_shape(&runs[i], i);
		bed_submit(engine, &runs[i]);
		if (!together)
			bed_wait(&runs[i]);
	}
	for (int i = 0; i < BED_SHAPES; i++) {
		bed_wait(&runs[i]);
		bed_check_text(texts, &runs[i], i, what);
		assert_int_equal(runs[i].result.finish, FINISH_LENGTH);
		assert_int_equal(runs[i].result.completion_tokens, 60);
	}
	bed_check_idle(engine);
	mem_free(runs);
}
