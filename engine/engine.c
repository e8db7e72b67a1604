/* Making and ending the engine: model, memory plan, ranks, step thread, and the first token as proof. */
#include "engine/engine.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/wait.h"
#include "engine/dummy.h"
#include "engine/engine_state.h"

#define RANKS_START_TIMEOUT_NS (600LL * 1000000000) /* guess: a large model from a slow disk */

/* --- Parts ----------------------------------------------------------------------------------------------------------- */

static const char *keep_text(struct engine *engine, const char *text)
{
	return text ? arena_strndup(&engine->arena, text, strlen(text)) : NULL;
}

/* A shape goes by its prefix from here on, so that every rank finds in the path alone what to open. */
static const char *keep_model_path(struct engine *engine, const struct engine_options *options)
{
	bool is_shape = text_equal(options->load_format, "dummy") && !dummy_is_named_by(options->model_path);
	size_t prefix = is_shape ? strlen(DUMMY_PREFIX) : 0, len = strlen(options->model_path);
	char *path = arena_calloc(&engine->arena, prefix + len + 1, 1);
	memcpy(path, DUMMY_PREFIX, prefix);
	memcpy(path + prefix, options->model_path, len);
	return path;
}

static void keep_options(struct engine *engine, const struct engine_options *options)
{
	struct engine_options *kept = &engine->options;
	*kept = *options;
	kept->load_format = keep_text(engine, options->load_format);
	kept->model_path = keep_model_path(engine, options);
	kept->device = keep_text(engine, options->device);
	kept->allreduce = keep_text(engine, options->allreduce);
	kept->tokenizer_pre = keep_text(engine, options->tokenizer_pre);
	kept->kv_type = keep_text(engine, options->kv_type);
	kept->isa = keep_text(engine, options->isa);
	kept->mem_fraction = keep_text(engine, options->mem_fraction);
	kept->mem_budget_text = keep_text(engine, options->mem_budget_text);
	kept->speculation = keep_text(engine, options->speculation);
	kept->run_ahead = keep_text(engine, options->run_ahead);
}

static enum status open_model(struct engine *engine, struct err *err)
{
	enum status status = source_open(engine->options.model_path, &engine->source, err);
	if (status == STATUS_OK)
		status = model_config_read(&engine->source, &engine->config, err);
	if (status == STATUS_OK)
		status = tokenizer_open(&engine->source, engine->options.tokenizer_pre, &engine->tokenizer, err);
	/* Fewer tokens than rows are common: rows are added to round their number. */
	if (status == STATUS_OK && tokenizer_vocab_size(engine->tokenizer) > engine->config.vocab)
		status = err_set(err, STATUS_INPUT, "the tokenizer has %d tokens, but the model only %d",
			(int)tokenizer_vocab_size(engine->tokenizer), engine->config.vocab);
	if (status == STATUS_OK)
		status = setup_resolve(&engine->options, &engine->source, &engine->config, &engine->setup, err);
	return status;
}

#define MIB (1024.0 * 1024.0)

static void log_plan(const struct memplan *plan)
{
	const struct memplan_request *request = &plan->request;
	log_info("memory",
		"%s; weights %.1f MiB, workspace %.1f, step plans up to %.1f, collectives and logits %.1f, KV cache %.1f (%d "
		"blocks), left %.1f (reserve %.1f)",
		plan->fraction_why, (double)request->weights_bytes / MIB, (double)request->workspace_bytes / MIB,
		(double)request->plans_bytes / MIB, (double)(request->collectives_bytes + request->logits_bytes) / MIB,
		(double)plan->kv_bytes / MIB, plan->n_blocks, (double)plan->left_bytes / MIB, (double)plan->reserve_bytes / MIB);
	if (plan->warning[0])
		log_warn("memory", "%s", plan->warning);
}

static void log_step_plans(const struct forward *forward)
{
	int count = forward_plans_count(forward);
	uint64_t bytes = 0, total = 0;
	int largest = 0;
	for (int i = 0; i < count; i++, total += bytes)
		largest = forward_plan_at(forward, i, &bytes);
	if (count > 0)
		log_info("memory", "%d step plans for up to %d rows hold %.1f MiB", count, largest, (double)total / MIB);
}

/* Starts the children and lets all ranks load at the same time. */
static enum status start_ranks(struct engine *engine, struct err *err)
{
	static const char *const no_arguments[] = {NULL};
	const struct ranks_options options = {
		.world = engine->setup.rank.world,
		.shared_bytes = region_bytes(&engine->setup.rank),
		.argv = no_arguments,
		.start_timeout_ns = RANKS_START_TIMEOUT_NS,
	};
	enum status status = ranks_start(&options, &engine->ranks, err);
	if (status != STATUS_OK)
		return status;
	region_init(&engine->setup.rank, ranks_shared(engine->ranks), &engine->region);
	ranks_post(engine->ranks, REGION_COMMAND_LOAD);
	const struct rank_peers peers = {
		.rank = 0,
		.sockets = ranks_sockets(engine->ranks),
		.abort_word = ranks_abort_word(engine->ranks),
	};
	status = rank_create(&engine->region, &engine->source, &engine->config, &peers, &engine->rank, err);
	if (status == STATUS_OK)
		status = ranks_await_ready(engine->ranks, err);
	if (status != STATUS_OK)
		return status;
	ranks_post(engine->ranks, REGION_COMMAND_CONNECT);
	return rank_connect(engine->rank, err);
}

/* Everything that the step thread works with; from here on it allocates nothing. */
static enum status make_step_state(struct engine *engine, struct err *err)
{
	const struct rank_setup *setup = &engine->setup.rank;
	engine->kvcache = kvcache_create(&(struct kvcache_options){
		.n_blocks = setup->n_blocks,
		.slots_max = setup->limits.slots_max,
		.blocks_per_slot_max = setup->limits.blocks_per_slot_max,
		.prefix_cache = engine->options.prefix_cache,
		.hash_mask = UINT64_MAX,
		.block_tables = engine->region.step.block_tables,
	});
	engine->scheduler = scheduler_create(&(struct scheduler_options){
		.limits = setup->limits,
		.chunk_tokens = engine->setup.chunk_tokens,
		.queue_max = (int32_t)engine->options.queue_max,
		.max_model_len = setup->max_model_len,
		.kvcache = engine->kvcache,
	});
	engine->sampler = sampler_create(engine->config.vocab);
	engine->tokens = mem_calloc((size_t)setup->limits.logits_max, sizeof *engine->tokens);
	for (int i = 0; i < 2; i++)
		engine->flights[i].parts = mem_calloc((size_t)setup->limits.slots_max, sizeof *engine->flights[i].parts);
	if (!engine->drafter_ops)
		return STATUS_OK;
	const struct drafter_options options = {
		.slots_max = setup->limits.slots_max,
		.tokens_max = setup->max_model_len,
		.ngram_min = (int32_t)engine->options.spec_ngram_min,
		.ngram_max = (int32_t)engine->options.spec_ngram_max,
	};
	return engine->drafter_ops->create(&options, &engine->drafter, err);
}

static enum status start_thread(struct engine *engine, struct err *err)
{
	int errnum = pthread_create(&engine->thread, NULL, engine_run_steps, engine);
	if (errnum != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start the step thread");
	engine->thread_started = true;
	return STATUS_OK;
}

/* --- Proof ----------------------------------------------------------------------------------------------------------- */

struct proof {
	_Atomic uint32_t done;
	enum finish finish;
	char error[ERR_TEXT_BYTES_MAX];
	int n_tokens;
};

static void proof_tokens(void *ctx, const struct engine_token *tokens, size_t count)
{
	((struct proof *)ctx)->n_tokens += (int)count;
}

static void proof_done(void *ctx, const struct engine_result *result)
{
	struct proof *proof = ctx;
	proof->finish = result->finish;
	if (result->error)
		memcpy(proof->error, result->error, strlen(result->error) + 1);
	atomic_store(&proof->done, 1);
	wait_wake_all(&proof->done);
}

/* One token through the whole path. The counters start at zero after it, and nothing of it stays cached. */
static enum status prove(struct engine *engine, struct err *err)
{
	int32_t bos = tokenizer_bos(engine->tokenizer), prompt = bos >= 0 ? bos : 0;
	const struct sampling sampling = {.top_p = 1, .logprobs = -1, .ignore_eos = true, .max_tokens = 1};
	struct proof proof = {0};
	const struct engine_listener listener = {.on_tokens = proof_tokens, .on_done = proof_done, .ctx = &proof};
	uint64_t id;
	enum status status = engine_submit(engine, &prompt, 1, &sampling, &listener, &id, err);
	if (status != STATUS_OK)
		return err_add(err, "first token");
	while (atomic_load(&proof.done) == 0) /* bounded: ranks that stall end the process after their own time limit */
		wait_while_equal(&proof.done, 0, 0, NULL, INT64_MAX);
	if (proof.finish != FINISH_LENGTH || proof.n_tokens != 1)
		return err_set(err, STATUS_INTERNAL, "first token: %s", proof.error[0] ? proof.error : "none came");
	pthread_mutex_lock(&engine->lock);
	kvcache_flush(engine->kvcache);
	rank_allreduce_stats(engine->rank, &engine->allreduce_base);
	engine->metrics = (struct metrics){.allreduce = engine->allreduce_base};
	atomic_store(&engine->phase, ENGINE_READY);
	pthread_mutex_unlock(&engine->lock);
	return STATUS_OK;
}

/* --- Public ---------------------------------------------------------------------------------------------------------- */

static enum status make(struct engine *engine, struct err *err)
{
	enum status status = open_model(engine, err);
	if (status == STATUS_OK) {
		log_plan(&engine->setup.memplan);
		status = start_ranks(engine, err);
	}
	if (status == STATUS_OK) {
		log_step_plans(rank_forward(engine->rank));
		status = make_step_state(engine, err);
	}
	if (status == STATUS_OK)
		status = start_thread(engine, err);
	if (status == STATUS_OK)
		status = prove(engine, err);
	return status;
}

enum status engine_create_with(
	const struct engine_options *options, const struct drafter_ops *drafter_ops, struct engine **out, struct err *err)
{
	*out = NULL;
	int64_t begin_ns = clock_monotonic_ns();
	struct engine *engine = mem_calloc(1, sizeof *engine);
	keep_options(engine, options);
	engine->drafter_ops = drafter_ops;
	pthread_mutex_init(&engine->lock, NULL);
	pthread_cond_init(&engine->work, NULL);
	enum status status = make(engine, err);
	if (status != STATUS_OK) {
		engine_destroy(engine);
		return status;
	}
	log_info("engine", "ready after %.1f s: %s, %d rank(s) of %d thread(s), %d KV blocks, allreduce %s, speculation %s",
		(double)(clock_monotonic_ns() - begin_ns) / 1e9, engine_model_name(engine), engine->setup.rank.world,
		engine->setup.rank.threads, engine->setup.rank.n_blocks, rank_allreduce_name(engine->rank),
		drafter_ops ? drafter_ops->name : "off");
	*out = engine;
	return STATUS_OK;
}

enum status engine_create(const struct engine_options *options, struct engine **out, struct err *err)
{
	const struct drafter_ops *drafter_ops;
	*out = NULL;
	enum status status = drafter_find(options->speculation, &drafter_ops, err);
	return status == STATUS_OK ? engine_create_with(options, drafter_ops, out, err) : status;
}

static void stop_thread(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	atomic_store(&engine->phase, ENGINE_STOPPING);
	pthread_cond_signal(&engine->work);
	pthread_mutex_unlock(&engine->lock);
	pthread_join(engine->thread, NULL);
}

void engine_destroy(struct engine *engine)
{
	if (!engine)
		return;
	if (engine->thread_started)
		stop_thread(engine);
	if (engine->drafter)
		engine->drafter_ops->destroy(engine->drafter);
	mem_free(engine->tokens);
	for (int i = 0; i < 2; i++)
		mem_free(engine->flights[i].parts);
	sampler_destroy(engine->sampler);
	scheduler_destroy(engine->scheduler);
	kvcache_destroy(engine->kvcache);
	rank_destroy(engine->rank);
	ranks_stop(engine->ranks);
	tokenizer_close(engine->tokenizer);
	source_close(&engine->source);
	pthread_cond_destroy(&engine->work);
	pthread_mutex_destroy(&engine->lock);
	arena_release(&engine->arena);
	mem_free(engine);
}

bool engine_is_ready(const struct engine *engine)
{
	return atomic_load(&engine->phase) == ENGINE_READY;
}

const struct tokenizer *engine_tokenizer(const struct engine *engine)
{
	return engine->tokenizer;
}

const struct source *engine_source(const struct engine *engine)
{
	return &engine->source;
}

int engine_max_model_len(const struct engine *engine)
{
	return engine->setup.rank.max_model_len;
}

const char *engine_model_name(const struct engine *engine)
{
	const char *path = engine->options.model_path, *slash = strrchr(path, '/');
	return engine->config.name[0] ? engine->config.name : slash ? slash + 1 : path;
}
