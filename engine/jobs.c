/* Requests coming in: checks, queueing, cancelling. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_state.h"

static enum status check_sampling(const struct sampling *sampling, struct err *err)
{
	if (!(sampling->temperature >= 0) || !isfinite(sampling->temperature))
		return err_set_code(err, STATUS_INPUT, "bad_sampling", "temperature must be a number of at least 0");
	if (sampling->top_k < 0)
		return err_set_code(err, STATUS_INPUT, "bad_sampling", "top_k must be at least 0");
	if (!(sampling->top_p >= 0 && sampling->top_p <= 1))
		return err_set_code(err, STATUS_INPUT, "bad_sampling", "top_p must lie between 0 and 1");
	if (!(sampling->min_p >= 0 && sampling->min_p <= 1))
		return err_set_code(err, STATUS_INPUT, "bad_sampling", "min_p must lie between 0 and 1");
	if (sampling->logprobs < -1 || sampling->logprobs > ENGINE_LOGPROBS_MAX)
		return err_set_code(err, STATUS_INPUT, "bad_sampling", "logprobs must lie between 0 and %d", ENGINE_LOGPROBS_MAX);
	return STATUS_OK;
}

static enum status check_prompt(
	const struct engine *engine, const int32_t *prompt, size_t count, const struct sampling *sampling, struct err *err)
{
	int32_t longest = engine->setup.rank.max_model_len;
	/* Before anything is allocated by these numbers; the scheduler knows the finer limits. */
	if (count >= (size_t)longest || sampling->max_tokens >= longest)
		return err_set_code(err, STATUS_INPUT, "context_length_exceeded",
			"%zu prompt tokens and up to %d answer tokens exceed the maximum context length of %d tokens", count,
			sampling->max_tokens, longest);
	for (size_t i = 0; i < count; i++)
		if (prompt[i] < 0 || prompt[i] >= engine->config.vocab)
			return err_set_code(err, STATUS_INPUT, "bad_token", "prompt token %zu is %d, and ids go from 0 to %d", i,
				prompt[i], engine->config.vocab - 1);
	return STATUS_OK;
}

static struct job *make_job(const struct engine *engine, const int32_t *prompt, size_t count, const struct sampling *sampling,
	const struct engine_listener *listener)
{
	int answer = sampling->max_tokens > 0 ? sampling->max_tokens : 0;
	struct job *job = mem_calloc(1, sizeof *job);
	job->sampling = *sampling;
	job->listener = *listener;
	job->drafted_stay = -1;
	job->foreseen_at = -1;
	job->sequence.n_prompt = (int32_t)count;
	job->sequence.tokens_max = (int32_t)count + answer;
	job->sequence.tokens = mem_calloc(count + (size_t)answer + 1, sizeof *job->sequence.tokens);
	if (count > 0)
		memcpy(job->sequence.tokens, prompt, count * sizeof *prompt);
	job->sequence.all_logits = sampling->logits == ENGINE_LOGITS_ALL;
	job->sequence.owner = job;
	accept_pace_init(&job->pace, (int32_t)engine->options.spec_draft_max);
	job->submitted_ns = clock_monotonic_ns();
	return job;
}

static void free_job(struct job *job)
{
	mem_free(job->sequence.tokens);
	mem_free(job);
}

static void link_job(struct engine *engine, struct job *job)
{
	job->before = engine->last_job;
	*(engine->last_job ? &engine->last_job->after : &engine->first_job) = job;
	engine->last_job = job;
}

void engine_unlink_job(struct engine *engine, struct job *job)
{
	*(job->before ? &job->before->after : &engine->first_job) = job->after;
	*(job->after ? &job->after->before : &engine->last_job) = job->before;
}

static enum status queue_job(struct engine *engine, struct job *job, uint64_t *id, struct err *err)
{
	enum engine_phase phase = atomic_load(&engine->phase);
	if (phase == ENGINE_FAILED)
		return err_set_code(err, STATUS_UNAVAILABLE, "engine_failed", "the engine has failed: %s", engine->failure.text);
	if (phase == ENGINE_STOPPING)
		return err_set_code(err, STATUS_UNAVAILABLE, "engine_stopping", "the engine is stopping");
	enum status status = scheduler_submit(engine->scheduler, &job->sequence, err);
	if (status != STATUS_OK)
		return status;
	job->id = *id = ++engine->last_id;
	link_job(engine, job);
	pthread_cond_signal(&engine->work);
	return STATUS_OK;
}

enum status engine_submit(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling,
	const struct engine_listener *listener, uint64_t *id, struct err *err)
{
	enum status status = check_sampling(sampling, err);
	if (status == STATUS_OK)
		status = check_prompt(engine, prompt, prompt_count, sampling, err);
	if (status != STATUS_OK)
		return status;
	struct job *job = make_job(engine, prompt, prompt_count, sampling, listener);
	pthread_mutex_lock(&engine->lock);
	status = queue_job(engine, job, id, err);
	pthread_mutex_unlock(&engine->lock);
	if (status != STATUS_OK)
		free_job(job);
	return status;
}

void engine_cancel(struct engine *engine, uint64_t id)
{
	pthread_mutex_lock(&engine->lock);
	for (struct job *job = engine->first_job; job; job = job->after)
		if (job->id == id)
			job->cancelled = true;
	pthread_cond_signal(&engine->work);
	pthread_mutex_unlock(&engine->lock);
}

void engine_flush_cache(struct engine *engine)
{
	pthread_mutex_lock(&engine->lock);
	kvcache_flush(engine->kvcache);
	pthread_mutex_unlock(&engine->lock);
}
