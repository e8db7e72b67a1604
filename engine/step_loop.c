/* The step thread: plan, compute, sample, tell. Allocates nothing; sleeps on a condition while there is nothing to do. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/engine_state.h"

static struct job *job_of(const struct sequence *sequence)
{
	return sequence->owner;
}

/* Nanoseconds since *mark, which moves on to now. */
static int64_t lap(int64_t *mark)
{
	int64_t now = clock_monotonic_ns(), passed = now - *mark;
	*mark = now;
	return passed;
}

/* --- Ending jobs ----------------------------------------------------------------------------------------------------- */

/* Times that never came count as now: the request ended before. */
static void fill_result(const struct job *job, struct engine_result *out)
{
	int64_t now = clock_monotonic_ns();
	int64_t admitted = job->admitted_ns ? job->admitted_ns : now;
	int64_t first = job->first_token_ns ? job->first_token_ns : now;
	*out = (struct engine_result){
		.finish = job->finish,
		.prompt_tokens = job->sequence.n_prompt,
		.cached_tokens = job->sequence.n_cached,
		.completion_tokens = job->completion_tokens,
		.drafted = job->drafted,
		.accepted = job->accepted,
		.verify_steps = job->verify_steps,
		.queued_ns = admitted - job->submitted_ns,
		.prefill_ns = first - admitted,
		.decode_ns = now - first,
		.error = job->finish == FINISH_ERROR ? job->error : NULL,
	};
}

/* Under the lock; the job's blocks are free and its counts in the metrics before the listener hears of its end. */
static void retire(struct engine *engine, struct job *job, enum finish finish)
{
	job->finish = finish;
	scheduler_end(engine->scheduler, &job->sequence);
	engine_unlink_job(engine, job);
	struct metrics *metrics = &engine->metrics;
	metrics->requests[finish]++;
	metrics->prompt_tokens += (uint64_t)job->sequence.n_prompt;
	metrics->cached_tokens += (uint64_t)job->sequence.n_cached;
	metrics->generated_tokens += (uint64_t)job->completion_tokens;
}

/* Without the lock. */
static void tell_end(struct job *job)
{
	struct engine_result result;
	fill_result(job, &result);
	if (job->listener.on_done)
		job->listener.on_done(job->listener.ctx, &result);
	mem_free(job->sequence.tokens);
	mem_free(job);
}

/* Ends all jobs, or the cancelled ones, one at a time. Lock held before and after, not while a listener is called. */
static void end_jobs(struct engine *engine, bool all, enum finish finish, const char *error)
{
	for (struct job *job = engine->first_job; job;) {
		if (!all && !job->cancelled) {
			job = job->after;
			continue;
		}
		if (error)
			snprintf(job->error, sizeof job->error, "%s", error);
		retire(engine, job, finish);
		pthread_mutex_unlock(&engine->lock);
		tell_end(job);
		pthread_mutex_lock(&engine->lock);
		job = engine->first_job; /* the list may have changed meanwhile */
	}
}

/* --- Before a step --------------------------------------------------------------------------------------------------- */

static int32_t count_decoding(const struct engine *engine)
{
	int32_t count = 0;
	struct sequence *sequence;
	for (int32_t i = 0; (sequence = scheduler_running(engine->scheduler, i)); i++)
		count += sequence->n_tokens - sequence->n_computed == 1;
	return count;
}

static void offer_drafts(struct engine *engine)
{
	struct sequence *sequence;
	if (!engine->drafter_ops)
		return;
	int32_t n_decoding = count_decoding(engine);
	for (int32_t i = 0; (sequence = scheduler_running(engine->scheduler, i)); i++) {
		struct job *job = job_of(sequence);
		int32_t room = scheduler_may_draft(sequence);
		sequence->n_drafts = 0;
		if (room == 0)
			continue;
		int32_t wanted = accept_pace_next(&job->pace, n_decoding);
		wanted = wanted < room ? wanted : room;
		if (wanted == 0)
			continue;
		if (job->drafted_stay != sequence->preemptions) { /* the slot was another sequence's */
			engine->drafter_ops->begin(engine->drafter, sequence->slot);
			job->drafted_stay = sequence->preemptions;
		}
		sequence->n_drafts = engine->drafter_ops->draft(
			engine->drafter, sequence->slot, sequence->tokens, sequence->n_tokens, wanted, sequence->drafts);
	}
}

static void write_part(const struct schedule_part *part, const struct step *step)
{
	const struct sequence *sequence = part->sequence;
	for (int32_t i = 0; i < part->n_rows; i++) {
		int32_t position = part->position + i, row = part->row + i;
		bool known = position < sequence->n_tokens;
		step->tokens[row] = known ? sequence->tokens[position] : sequence->drafts[position - sequence->n_tokens];
		step->positions[row] = position;
		step->slots[row] = sequence->slot;
	}
	for (int32_t i = 0; i < part->n_logits; i++)
		step->logit_rows[part->logit + i] = part->row + part->n_rows - part->n_logits + i;
}

/* Block tables are in place already: the cache accounting keeps them in the step's memory. */
static void write_step(const struct engine *engine, const struct schedule *schedule)
{
	const struct step *step = &engine->region.step;
	*step->n_rows = schedule->n_rows;
	*step->n_logits = schedule->n_logits;
	int64_t now = clock_monotonic_ns();
	for (int32_t i = 0; i < schedule->n_parts; i++) {
		struct job *job = job_of(schedule->parts[i].sequence);
		if (job->admitted_ns == 0)
			job->admitted_ns = now;
		write_part(&schedule->parts[i], step);
	}
}

/* --- The step -------------------------------------------------------------------------------------------------------- */

/* All ranks run the step; it ends here when all have ended it, so every slice of the logits is there. */
static enum status compute(struct engine *engine, struct forward_times *times, struct err *err)
{
	bool alone = engine->setup.rank.world == 1;
	int64_t begin_ns = clock_monotonic_ns();
	if (!alone)
		ranks_post(engine->ranks, RANKS_COMMAND_STEP);
	enum status status = rank_step(engine->rank, times, err);
	times->total_ns = clock_monotonic_ns() - begin_ns;
	if (status == STATUS_RANK_DIED)
		ranks_fail(engine->ranks, err);
	return status;
}

/* Sampling of one sequence's lines of logits, as accept_chain asks for it. */
struct sample_run {
	struct engine *engine;
	struct job *job;
	const struct schedule_part *part;
	struct engine_token *out; /* [1 + n_drafts] */
};

static const float *logits_line(const struct engine *engine, int32_t line)
{
	return engine->region.logits + (int64_t)line * engine->config.vocab;
}

static enum status sample_row(void *ctx, int32_t row, int32_t *token, bool *last, struct err *err)
{
	struct sample_run *run = ctx;
	const struct schedule_part *part = run->part;
	const struct sequence *sequence = part->sequence;
	int32_t line = part->logit + part->n_logits - 1 - part->n_drafts + row, position = sequence->n_tokens + row;
	enum status status = sampler_sample(
		run->engine->sampler, logits_line(run->engine, line), &run->job->sampling, position, &run->out[row], err);
	if (status != STATUS_OK)
		return status;
	*token = run->out[row].id;
	bool is_end = !run->job->sampling.ignore_eos && tokenizer_is_end(run->engine->tokenizer, *token);
	if (is_end)
		run->job->finish = FINISH_STOP;
	else if (position + 1 == sequence->tokens_max)
		run->job->finish = FINISH_LENGTH;
	*last = run->job->finish != FINISH_NONE;
	return STATUS_OK;
}

static void sample_part(struct engine *engine, const struct schedule_part *part)
{
	struct job *job = job_of(part->sequence);
	struct accept_result accepted = {0};
	struct err err = {0};
	job->first_new = part->logit;
	job->n_new = job->n_accepted = 0;
	if (!part->samples)
		return;
	struct sample_run run = {.engine = engine, .job = job, .part = part, .out = engine->tokens + part->logit};
	if (accept_chain(part->sequence->drafts, part->n_drafts, sample_row, &run, &accepted, &err) != STATUS_OK) {
		job->finish = FINISH_ERROR;
		snprintf(job->error, sizeof job->error, "%s", err.text);
		return;
	}
	job->n_new = accepted.n_tokens;
	job->n_accepted = accepted.n_accepted;
}

/* --- After a step ---------------------------------------------------------------------------------------------------- */

static void count_verify(struct engine *engine, struct job *job, int32_t n_drafts)
{
	job->drafted += n_drafts;
	job->accepted += job->n_accepted;
	job->verify_steps++;
	accept_pace_record(&job->pace, n_drafts, job->n_accepted);
	accept_count(&engine->metrics.accept, n_drafts, job->n_accepted);
}

/* Under the lock: what the step gave becomes part of the sequence, or ends it. */
static void settle_part(struct engine *engine, const struct schedule_part *part, int64_t now_ns)
{
	struct job *job = job_of(part->sequence);
	int32_t ids[DRAFTER_TOKENS_MAX + 1];
	if (job->finish == FINISH_ERROR) {
		retire(engine, job, job->finish);
		return;
	}
	for (int32_t i = 0; i < job->n_new; i++)
		ids[i] = engine->tokens[job->first_new + i].id;
	scheduler_advance(engine->scheduler, part, ids, job->n_new, job->n_accepted);
	if (part->n_drafts > 0)
		count_verify(engine, job, part->n_drafts);
	job->completion_tokens += job->n_new;
	if (job->n_new > 0 && job->first_token_ns == 0)
		job->first_token_ns = now_ns;
	if (job->finish != FINISH_NONE)
		retire(engine, job, job->finish);
}

/* Without the lock: logits that the listener asked for, each prompt position once. */
static void tell_logits(const struct engine *engine, struct job *job, const struct schedule_part *part)
{
	int32_t n_prompt = job->sequence.n_prompt;
	if (job->sampling.logits == ENGINE_LOGITS_NONE || !job->listener.on_logits || job->n_positions_seen == n_prompt)
		return;
	for (int32_t i = 0; i < part->n_logits; i++) {
		int32_t position = part->position + part->n_rows - part->n_logits + i;
		bool wanted = job->sampling.logits == ENGINE_LOGITS_ALL || position == n_prompt - 1;
		if (position >= n_prompt || position < job->n_positions_seen || !wanted)
			continue;
		job->n_positions_seen = position + 1;
		job->listener.on_logits(job->listener.ctx, position, logits_line(engine, part->logit + i), engine->config.vocab);
	}
}

/* Without the lock. A job that was retired is gone after this. */
static void tell_part(const struct engine *engine, const struct schedule_part *part)
{
	struct job *job = job_of(part->sequence);
	tell_logits(engine, job, part);
	if (job->n_new > 0 && job->listener.on_tokens)
		job->listener.on_tokens(job->listener.ctx, engine->tokens + job->first_new, (size_t)job->n_new);
	if (job->finish != FINISH_NONE)
		tell_end(job);
}

static void count_step(struct engine *engine, const struct schedule *schedule, const struct forward_times *times, bool verified)
{
	struct metrics *metrics = &engine->metrics;
	enum step_kind kind = STEP_MIXED;
	if (schedule->n_prefill_rows == 0)
		kind = STEP_DECODE;
	else if (schedule->n_decode_parts == 0)
		kind = STEP_PREFILL;
	metrics->steps[kind][times->used_plan != 0]++;
	metrics->phase_ns[PHASE_ALLREDUCE] += times->allreduce_ns;
	metrics->phase_ns[verified ? PHASE_VERIFY : PHASE_FORWARD] += times->total_ns - times->allreduce_ns;
	rank_allreduce_stats(engine->rank, &metrics->allreduce);
}

/* Lock held before and after. On an error nothing was settled: the caller ends all jobs. */
static enum status run_step(struct engine *engine, struct err *err)
{
	struct schedule schedule;
	struct forward_times times = {0};
	int64_t ns[PHASE_COUNT] = {0}, begin = clock_monotonic_ns(), mark = begin;
	offer_drafts(engine);
	ns[PHASE_DRAFT] = engine->drafter_ops ? lap(&mark) : 0;
	scheduler_plan(engine->scheduler, &schedule);
	ASSERT(schedule.n_parts > 0); /* some job can always move */
	write_step(engine, &schedule);
	pthread_mutex_unlock(&engine->lock);

	enum status status = compute(engine, &times, err);
	mark = clock_monotonic_ns();
	bool verified = false;
	for (int32_t i = 0; status == STATUS_OK && i < schedule.n_parts; i++) {
		sample_part(engine, &schedule.parts[i]);
		verified |= schedule.parts[i].n_drafts > 0;
	}
	ns[PHASE_SAMPLE] = lap(&mark);
	pthread_mutex_lock(&engine->lock);
	if (status != STATUS_OK)
		return status;
	for (int32_t i = 0; i < schedule.n_parts; i++)
		settle_part(engine, &schedule.parts[i], mark);
	count_step(engine, &schedule, &times, verified);
	pthread_mutex_unlock(&engine->lock);

	for (int32_t i = 0; i < schedule.n_parts; i++)
		tell_part(engine, &schedule.parts[i]);
	pthread_mutex_lock(&engine->lock);
	ns[PHASE_HOST] = clock_monotonic_ns() - begin - ns[PHASE_DRAFT] - ns[PHASE_SAMPLE] - times.total_ns;
	for (int phase = 0; phase < PHASE_COUNT; phase++)
		engine->metrics.phase_ns[phase] += ns[phase];
	return STATUS_OK;
}

void *engine_run_steps(void *ctx)
{
	struct engine *engine = ctx;
	struct err err = {0};
	pthread_mutex_lock(&engine->lock);
	while (atomic_load(&engine->phase) != ENGINE_STOPPING) {
		end_jobs(engine, false, FINISH_CANCELLED, NULL);
		if (!engine->first_job) {
			pthread_cond_wait(&engine->work, &engine->lock);
			continue;
		}
		if (run_step(engine, &err) == STATUS_OK)
			continue;
		/* A step that fails leaves ranks out of step and caches half written: nothing can go on from here. */
		log_error("engine", "a step failed: %s", err.text);
		engine->failure = err;
		atomic_store(&engine->phase, ENGINE_FAILED);
		end_jobs(engine, true, FINISH_ERROR, err.text);
		break;
	}
	end_jobs(engine, true, FINISH_CANCELLED, NULL);
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}
