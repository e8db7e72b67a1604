/* Ending a step: its tokens, what they mean for their sequences, and who is told. */
#include <stdio.h>

#include "base/clock.h"
#include "engine/engine_state.h"

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

/* Its rows in steps under way compute in vain. */
static void leave_flights(struct engine *engine, const struct job *job)
{
	for (int i = engine->settling ? 1 : 0; i < engine->n_flights; i++)
		for (int32_t k = 0; k < engine->flights[i].schedule.n_parts; k++)
			if (engine->flights[i].parts[k].sequence == &job->sequence)
				engine->flights[i].parts[k].sequence = NULL;
}

void engine_retire(struct engine *engine, struct job *job, enum finish finish)
{
	job->finish = finish;
	leave_flights(engine, job);
	scheduler_end(engine->scheduler, &job->sequence);
	engine_unlink_job(engine, job);
	struct metrics *metrics = &engine->metrics;
	metrics->requests[finish]++;
	metrics->prompt_tokens += (uint64_t)job->sequence.n_prompt;
	metrics->cached_tokens += (uint64_t)job->sequence.n_cached;
	metrics->generated_tokens += (uint64_t)job->completion_tokens;
}

void engine_tell_end(struct job *job)
{
	struct engine_result result;
	fill_result(job, &result);
	if (job->listener.on_done)
		job->listener.on_done(job->listener.ctx, &result);
	mem_free(job->sequence.tokens);
	mem_free(job);
}

/* --- Computing and sampling ------------------------------------------------------------------------------------------ */

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

/* Logits that the host looks at itself; the steps behind this one were not begun. */
static enum status fetch_logits(struct engine *engine, const struct flight *flight, struct err *err)
{
	for (int32_t i = 0; flight->wants_logits && i < flight->schedule.n_parts; i++) {
		const struct schedule_part *part = &flight->parts[i];
		enum status status = forward_fetch_logits(rank_forward(engine->rank), part->logit, part->n_logits, err);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

/* Sampling of one sequence's lines of logits, as accept_chain asks for it. */
struct sample_run {
	struct engine *engine;
	const struct kn_sampled *sampled; /* by the device, one for each line; NULL: sampled here */
	struct job *job;
	const struct schedule_part *part;
	int32_t first_position; /* of the first token */
	struct engine_token *out; /* [1 + n_drafts] */
};

static const float *logits_line(const struct engine *engine, int32_t line)
{
	return engine->region.logits + (int64_t)line * engine->config.vocab;
}

/* What the device picked; refused in the reference sampler's words. */
static enum status read_sampled(const struct kn_sampled *sampled, struct engine_token *out, struct err *err)
{
	*out = (struct engine_token){.id = sampled->id, .logprob = sampled->logprob};
	if (sampled->id >= 0)
		return STATUS_OK;
	return sampled->id == KN_SAMPLED_NOTHING ? err_set(err, STATUS_INTERNAL, "the model gave -infinity as logit of every token")
						 : err_set(err, STATUS_INTERNAL, "the model gave %s as logit of a token",
							   sampled->id == KN_SAMPLED_NAN ? "NaN" : "infinity");
}

static enum status sample_row(void *ctx, int32_t row, int32_t *token, bool *last, struct err *err)
{
	struct sample_run *run = ctx;
	const struct schedule_part *part = run->part;
	int32_t line = part->logit + part->n_logits - 1 - part->n_drafts + row, position = run->first_position + row;
	bool here = !run->sampled || run->job->sampling.logprobs > 0; /* alternatives are listed on the host */
	enum status status = here ? sampler_sample(run->engine->sampler, logits_line(run->engine, line), &run->job->sampling,
					    position, &run->out[row], err)
				  : read_sampled(&run->sampled[line], &run->out[row], err);
	if (status != STATUS_OK)
		return status;
	*token = run->out[row].id;
	bool is_end = !run->job->sampling.ignore_eos && tokenizer_is_end(run->engine->tokenizer, *token);
	if (is_end)
		run->job->finish = FINISH_STOP;
	else if (position + 1 == part->sequence->tokens_max)
		run->job->finish = FINISH_LENGTH;
	*last = run->job->finish != FINISH_NONE;
	return STATUS_OK;
}

static void sample_part(
	struct engine *engine, const struct flight *flight, const struct schedule_part *part, const struct kn_sampled *sampled)
{
	struct job *job = job_of(part->sequence);
	struct accept_result accepted = {0};
	struct err err = {0};
	job->first_new = part->logit;
	job->n_new = job->n_accepted = 0;
	if (!part->samples)
		return;
	struct sample_run run = {
		.engine = engine,
		.sampled = sampled,
		.job = job,
		.part = part,
		.first_position = flight->foreseen ? job->foreseen_at : part->sequence->n_tokens,
		.out = engine->tokens + part->logit,
	};
	if (accept_chain(part->sequence->drafts, part->n_drafts, sample_row, &run, &accepted, &err) != STATUS_OK) {
		job->finish = FINISH_ERROR;
		snprintf(job->error, sizeof job->error, "%s", err.text);
		return;
	}
	job->n_new = accepted.n_tokens;
	job->n_accepted = accepted.n_accepted;
}

/* --- Settling --------------------------------------------------------------------------------------------------------- */

static void count_verify(struct engine *engine, struct job *job, int32_t n_drafts)
{
	job->drafted += n_drafts;
	job->accepted += job->n_accepted;
	job->verify_steps++;
	accept_pace_record(&job->pace, n_drafts, job->n_accepted);
	accept_count(&engine->metrics.accept, n_drafts, job->n_accepted);
}

bool engine_may_foresee(const struct engine *engine, const struct flight *flight)
{
	return engine->setup.run_ahead && !engine->drafter_ops && !flight->wants_logits;
}

void engine_foresee(struct engine *engine, struct flight *flight)
{
	static const int32_t any_token = 0;
	for (int32_t i = 0; i < flight->schedule.n_parts; i++) {
		const struct schedule_part *part = &flight->parts[i];
		if (!part->sequence)
			continue;
		struct job *job = job_of(part->sequence);
		scheduler_advance(engine->scheduler, part, &any_token, part->samples ? 1 : 0, 0);
		if (!part->samples)
			continue;
		job->foreseen_at = part->sequence->n_tokens - 1;
		job->foreseen_line = part->logit + part->n_logits - 1;
	}
	flight->foreseen = true;
}

/* Puts the tokens into the sequence: the one that was foreseen into its place. */
static void take_tokens(struct engine *engine, const struct flight *flight, const struct schedule_part *part, struct job *job)
{
	int32_t ids[DRAFTER_TOKENS_MAX + 1];
	for (int32_t i = 0; i < job->n_new; i++)
		ids[i] = engine->tokens[job->first_new + i].id;
	if (!flight->foreseen) {
		scheduler_advance(engine->scheduler, part, ids, job->n_new, job->n_accepted);
	} else if (part->samples) {
		part->sequence->tokens[job->foreseen_at] = ids[0];
		job->foreseen_at = -1;
	}
}

/* Under the lock: what the step gave becomes part of the sequence, or ends it. */
static void settle_part(struct engine *engine, const struct flight *flight, const struct schedule_part *part, int64_t now_ns)
{
	struct job *job = job_of(part->sequence);
	if (job->finish == FINISH_ERROR) {
		engine_retire(engine, job, job->finish);
		return;
	}
	take_tokens(engine, flight, part, job);
	if (part->n_drafts > 0)
		count_verify(engine, job, part->n_drafts);
	job->completion_tokens += job->n_new;
	if (job->n_new > 0 && job->first_token_ns == 0)
		job->first_token_ns = now_ns;
	if (job->finish != FINISH_NONE)
		engine_retire(engine, job, job->finish);
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
		engine_tell_end(job);
}

/* On a device of its own a step's time is the device's, and the host's what passed between two steps while there was work. */
static void count_device_time(struct engine *engine, const struct flight *flight, const struct forward_times *times)
{
	struct metrics *metrics = &engine->metrics;
	metrics->device_steps++;
	metrics->device_ns += times->end_ns - times->begin_ns;
	if (flight->follows && times->begin_ns > engine->device_end_ns) {
		int64_t gap_ns = times->begin_ns - engine->device_end_ns;
		metrics->gap_ns += gap_ns;
		metrics->phase_ns[PHASE_HOST] += gap_ns;
	}
	engine->device_end_ns = times->end_ns;
}

static void count_step(struct engine *engine, const struct flight *flight, const struct forward_times *times)
{
	const struct schedule *schedule = &flight->schedule;
	struct metrics *metrics = &engine->metrics;
	enum step_kind kind = STEP_MIXED;
	if (schedule->n_prefill_rows == 0)
		kind = STEP_DECODE;
	else if (schedule->n_decode_parts == 0)
		kind = STEP_PREFILL;
	metrics->steps[kind][times->used_plan != 0]++;
	metrics->steps_above_plans += kind == STEP_DECODE && !times->used_plan && engine->setup.rank.graph_max_bs > 0;
	metrics->phase_ns[PHASE_ALLREDUCE] += times->allreduce_ns;
	metrics->phase_ns[flight->verifies ? PHASE_VERIFY : PHASE_FORWARD] += times->total_ns - times->allreduce_ns;
	if (times->end_ns > 0)
		count_device_time(engine, flight, times);
	rank_allreduce_stats(engine->rank, &metrics->allreduce);
}

/* Without the lock: the step's outcome, wherever it comes from. */
static enum status finish_step(struct engine *engine, const struct flight *flight, const struct kn_sampled **sampled,
	struct forward_times *times, struct err *err)
{
	*sampled = NULL;
	if (!forward_samples(rank_forward(engine->rank)))
		return compute(engine, times, err);
	enum status status = rank_await(engine->rank, sampled, times, err);
	return status == STATUS_OK ? fetch_logits(engine, flight, err) : status;
}

enum status engine_end_step(struct engine *engine, struct flight *flight, struct err *err)
{
	const struct kn_sampled *sampled;
	struct forward_times times = {0};
	pthread_mutex_unlock(&engine->lock);
	enum status status = finish_step(engine, flight, &sampled, &times, err);
	int64_t mark = clock_monotonic_ns();
	for (int32_t i = 0; status == STATUS_OK && i < flight->schedule.n_parts; i++)
		if (flight->parts[i].sequence)
			sample_part(engine, flight, &flight->parts[i], sampled);
	int64_t sample_ns = lap(&mark);
	pthread_mutex_lock(&engine->lock);
	if (status != STATUS_OK)
		return status;
	engine->settling = true;
	for (int32_t i = 0; i < flight->schedule.n_parts; i++)
		if (flight->parts[i].sequence)
			settle_part(engine, flight, &flight->parts[i], mark);
	engine->settling = false;
	count_step(engine, flight, &times);
	pthread_mutex_unlock(&engine->lock);

	for (int32_t i = 0; i < flight->schedule.n_parts; i++)
		if (flight->parts[i].sequence)
			tell_part(engine, &flight->parts[i]);
	pthread_mutex_lock(&engine->lock);
	if (times.end_ns == 0) { /* else the device's clock tells what the host cost */
		engine->metrics.phase_ns[PHASE_SAMPLE] += sample_ns;
		engine->metrics.phase_ns[PHASE_HOST] += clock_monotonic_ns() - mark;
	}
	return STATUS_OK;
}
