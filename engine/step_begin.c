/* Beginning a step: drafts, plan, and the step's arrays in memory that the ranks read. */
#include <string.h>

#include "base/clock.h"
#include "engine/engine_state.h"

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

/* How the lines of logits that continue the text are sampled; others are not looked at. */
static void write_sampling(const struct schedule_part *part, const struct step *step)
{
	const struct sampling *asked = &job_of(part->sequence)->sampling;
	int32_t first = part->logit + part->n_logits - 1 - part->n_drafts;
	memset(step->sampling + part->logit, 0, (size_t)part->n_logits * sizeof *step->sampling);
	for (int32_t i = 0; part->samples && i <= part->n_drafts; i++)
		step->sampling[first + i] = (struct kn_sampling){
			.temperature = asked->temperature,
			.top_p = asked->top_p,
			.min_p = asked->min_p,
			.seed = asked->seed,
			.position = part->sequence->n_tokens + i,
			.top_k = asked->top_k,
			.wants_logprob = asked->logprobs >= 0,
		};
}

static void write_part(const struct schedule_part *part, const struct step *step)
{
	const struct sequence *sequence = part->sequence;
	const struct job *job = job_of(sequence);
	for (int32_t i = 0; i < part->n_rows; i++) {
		int32_t position = part->position + i, row = part->row + i;
		bool known = position < sequence->n_tokens;
		step->tokens[row] = known ? sequence->tokens[position] : sequence->drafts[position - sequence->n_tokens];
		step->sources[row] = position == job->foreseen_at ? job->foreseen_line + 1 : 0;
		step->positions[row] = position;
		step->slots[row] = sequence->slot;
	}
	for (int32_t i = 0; i < part->n_logits; i++)
		step->logit_rows[part->logit + i] = part->row + part->n_rows - part->n_logits + i;
	write_sampling(part, step);
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

/* Whether the listener wants more of these logits than a token and its own log-probability. */
static bool wants_logits(const struct schedule_part *part)
{
	const struct job *job = job_of(part->sequence);
	if (part->n_logits == 0)
		return false;
	return (part->samples && job->sampling.logprobs > 0) ||
		(job->sampling.logits != ENGINE_LOGITS_NONE && job->n_positions_seen < job->sequence.n_prompt);
}

static void keep_schedule(const struct schedule *schedule, struct flight *flight)
{
	flight->schedule = *schedule;
	flight->schedule.parts = flight->parts;
	flight->verifies = flight->foreseen = flight->wants_logits = false;
	for (int32_t i = 0; i < schedule->n_parts; i++) {
		flight->parts[i] = schedule->parts[i];
		flight->verifies |= schedule->parts[i].n_drafts > 0;
		flight->wants_logits |= wants_logits(&schedule->parts[i]);
	}
}

enum status engine_begin_step(struct engine *engine, struct flight *flight, struct err *err)
{
	struct schedule schedule;
	int64_t begin_ns = clock_monotonic_ns(), drafted_ns = begin_ns;
	if (engine->drafter_ops) {
		offer_drafts(engine);
		drafted_ns = clock_monotonic_ns();
		engine->metrics.phase_ns[PHASE_DRAFT] += drafted_ns - begin_ns;
	}
	scheduler_plan(engine->scheduler, &schedule);
	keep_schedule(&schedule, flight);
	if (schedule.n_parts == 0)
		return STATUS_OK;
	flight->follows = !engine->slept;
	engine->slept = false;
	write_step(engine, &schedule);
	if (!forward_samples(rank_forward(engine->rank))) {
		engine->metrics.phase_ns[PHASE_HOST] += clock_monotonic_ns() - drafted_ns;
		return STATUS_OK; /* computed in engine_end_step */
	}
	pthread_mutex_unlock(&engine->lock);
	enum status status = rank_launch(engine->rank, err);
	pthread_mutex_lock(&engine->lock);
	return status;
}
