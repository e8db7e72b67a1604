/* Continuous batching over paged blocks: admission, decode first, chunked prefill, preemption of the newest. */
#include "engine/scheduler.h"

#include <string.h>

#include "base/mem.h"

struct scheduler {
	struct scheduler_options options;
	struct sequence **running; /* [slots_max], oldest first; arrival order, since admission never overtakes */
	int32_t *free_slots; /* stack */
	struct schedule_part *parts; /* [slots_max] */
	int32_t n_running, n_free_slots;
	struct sequence *first, *last; /* queue; preempted sequences are put in front */
	int32_t n_waiting, n_fresh; /* n_fresh: waiting ones that never ran, which queue_max limits */
	uint64_t preemptions;
};

/* What one call of scheduler_plan may still use. */
struct budget {
	int32_t prefill_rows, rows, logits;
};

struct scheduler *scheduler_create(const struct scheduler_options *options)
{
	size_t slots_max = (size_t)options->limits.slots_max;
	ASSERT(options->limits.slots_max > 0 && options->chunk_tokens > 0 &&
		options->limits.logits_max >= options->limits.slots_max);
	ASSERT(options->limits.rows_max > options->limits.slots_max);
	struct scheduler *scheduler = mem_calloc(1, sizeof *scheduler);
	scheduler->options = *options;
	scheduler->running = mem_calloc(slots_max, sizeof(struct sequence *));
	scheduler->free_slots = mem_calloc(slots_max, sizeof *scheduler->free_slots);
	scheduler->parts = mem_calloc(slots_max, sizeof *scheduler->parts);
	for (int32_t slot = options->limits.slots_max - 1; slot >= 0; slot--)
		scheduler->free_slots[scheduler->n_free_slots++] = slot;
	return scheduler;
}

void scheduler_destroy(struct scheduler *scheduler)
{
	if (!scheduler)
		return;
	mem_free(scheduler->parts);
	mem_free(scheduler->free_slots);
	mem_free(scheduler->running);
	mem_free(scheduler);
}

static int32_t min_i32(int32_t a, int32_t b)
{
	return a < b ? a : b;
}

/* --- Queue ----------------------------------------------------------------------------------------------------------- */

static void queue_insert(struct scheduler *scheduler, struct sequence *sequence, bool in_front)
{
	sequence->before = in_front ? NULL : scheduler->last;
	sequence->after = in_front ? scheduler->first : NULL;
	*(sequence->before ? &sequence->before->after : &scheduler->first) = sequence;
	*(sequence->after ? &sequence->after->before : &scheduler->last) = sequence;
	sequence->state = SEQUENCE_WAITING;
	scheduler->n_waiting++;
	scheduler->n_fresh += sequence->preemptions == 0;
}

static void queue_remove(struct scheduler *scheduler, struct sequence *sequence)
{
	*(sequence->before ? &sequence->before->after : &scheduler->first) = sequence->after;
	*(sequence->after ? &sequence->after->before : &scheduler->last) = sequence->before;
	sequence->before = sequence->after = NULL;
	scheduler->n_waiting--;
	scheduler->n_fresh -= sequence->preemptions == 0;
}

/* Positions a sequence ever stores: the last token of an answer is sampled but never computed. */
static int32_t positions_max(const struct sequence *sequence)
{
	return sequence->tokens_max - 1;
}

enum status scheduler_submit(struct scheduler *scheduler, struct sequence *sequence, struct err *err)
{
	struct kvcache_counts blocks;
	kvcache_counts(scheduler->options.kvcache, &blocks);
	int32_t prompt = sequence->n_prompt, answer = sequence->tokens_max - sequence->n_prompt;
	if (prompt < 1)
		return err_set_code(err, STATUS_INPUT, "empty_prompt", "the prompt has no tokens");
	if (answer < 1)
		return err_set_code(err, STATUS_INPUT, "bad_max_tokens", "%d tokens were asked for; needed is at least 1", answer);
	if (sequence->tokens_max > scheduler->options.max_model_len)
		return err_set_code(err, STATUS_INPUT, "context_length_exceeded",
			"%d prompt tokens and up to %d answer tokens exceed the maximum context length of %d tokens", prompt,
			answer, scheduler->options.max_model_len);
	if (kvcache_blocks_for(positions_max(sequence)) > blocks.total)
		return err_set_code(err, STATUS_INPUT, "context_length_exceeded",
			"%d prompt tokens and up to %d answer tokens need %d cache blocks of %d tokens, and there are %d", prompt,
			answer, kvcache_blocks_for(positions_max(sequence)), KN_KV_BLOCK_TOKENS, blocks.total);
	if (scheduler->n_fresh >= scheduler->options.queue_max)
		return err_set_code(err, STATUS_UNAVAILABLE, "queue_full", "%d requests are waiting already; try again later",
			scheduler->n_fresh);
	sequence->n_tokens = prompt;
	sequence->n_computed = sequence->n_cached = sequence->n_drafts = sequence->n_logits = sequence->preemptions = 0;
	sequence->slot = -1;
	queue_insert(scheduler, sequence, false);
	return STATUS_OK;
}

/* --- Running --------------------------------------------------------------------------------------------------------- */

struct sequence *scheduler_running(const struct scheduler *scheduler, int32_t index)
{
	return index < scheduler->n_running ? scheduler->running[index] : NULL;
}

static int32_t pending(const struct sequence *sequence)
{
	return sequence->n_tokens - sequence->n_computed;
}

/* Its last token is being computed: nothing is left to plan. */
static bool is_full(const struct sequence *sequence)
{
	return sequence->n_tokens == sequence->tokens_max;
}

int32_t scheduler_may_draft(const struct sequence *sequence)
{
	if (sequence->state != SEQUENCE_RUNNING || pending(sequence) != 1 || sequence->all_logits)
		return 0;
	return min_i32(sequence->tokens_max - sequence->n_tokens - 1, DRAFTER_TOKENS_MAX); /* the bonus token needs room too */
}

static void leave_slot(struct scheduler *scheduler, struct sequence *sequence)
{
	int32_t index = 0;
	while (scheduler->running[index] != sequence)
		index++;
	scheduler->n_running--;
	memmove(scheduler->running + index, scheduler->running + index + 1,
		(size_t)(scheduler->n_running - index) * sizeof(struct sequence *));
	kvcache_close(scheduler->options.kvcache, sequence->slot);
	scheduler->free_slots[scheduler->n_free_slots++] = sequence->slot;
	sequence->slot = -1;
	sequence->n_computed = 0;
	sequence->n_drafts = 0;
}

static void preempt_newest(struct scheduler *scheduler)
{
	ASSERT(scheduler->n_running > 1); /* alone, a sequence always fits: submit made sure */
	struct sequence *sequence = scheduler->running[scheduler->n_running - 1];
	leave_slot(scheduler, sequence);
	sequence->preemptions++;
	scheduler->preemptions++;
	queue_insert(scheduler, sequence, true);
}

void scheduler_end(struct scheduler *scheduler, struct sequence *sequence)
{
	if (sequence->state == SEQUENCE_RUNNING)
		leave_slot(scheduler, sequence);
	else if (sequence->state == SEQUENCE_WAITING)
		queue_remove(scheduler, sequence);
	sequence->state = SEQUENCE_ENDED;
}

/* --- Planning -------------------------------------------------------------------------------------------------------- */

static void add_part(struct schedule *out, struct budget *budget, struct sequence *sequence, int32_t n_rows, int32_t n_drafts)
{
	struct schedule_part *part = &out->parts[out->n_parts++];
	bool samples = sequence->n_computed + n_rows - n_drafts == sequence->n_tokens;
	int32_t n_logits = samples ? 1 + n_drafts : 0;
	if (sequence->all_logits && sequence->n_computed + n_rows > sequence->n_logits) {
		/* Positions whose logits a preempted sequence had before need no second look. */
		int32_t from = sequence->n_logits > sequence->n_computed ? sequence->n_logits : sequence->n_computed;
		n_logits = sequence->n_computed + n_rows - from;
	}
	*part = (struct schedule_part){
		.sequence = sequence,
		.position = sequence->n_computed,
		.n_rows = n_rows,
		.n_drafts = n_drafts,
		.row = out->n_rows,
		.logit = out->n_logits,
		.n_logits = n_logits,
		.samples = samples,
	};
	out->n_rows += n_rows;
	out->n_logits += n_logits;
	budget->rows -= n_rows;
	budget->logits -= n_logits;
	ASSERT(budget->rows >= 0 && budget->logits >= 0);
}

/* Decoding sequences still to come need a row and a line of logits each: drafts must leave those. */
static int32_t drafts_that_fit(const struct sequence *sequence, const struct budget *budget, int32_t n_others)
{
	int32_t room = min_i32(budget->rows, budget->logits) - n_others - 1;
	int32_t wanted = min_i32(sequence->n_drafts, scheduler_may_draft(sequence));
	return room < wanted ? (room > 0 ? room : 0) : wanted;
}

/* Blocks for one decoding sequence: drafts go first, then the newest sequences, at last itself (false). */
static bool reserve_decode(struct scheduler *scheduler, struct sequence *sequence, int32_t *n_drafts)
{
	struct kvcache *kvcache = scheduler->options.kvcache;
	while (!kvcache_reserve(kvcache, sequence->slot, sequence->n_tokens + *n_drafts)) {
		if (*n_drafts > 0) {
			*n_drafts = 0;
			continue;
		}
		preempt_newest(scheduler);
		if (sequence->state != SEQUENCE_RUNNING)
			return false;
	}
	return true;
}

static void plan_decode(struct scheduler *scheduler, struct schedule *out, struct budget *budget)
{
	for (int32_t i = 0; i < scheduler->n_running; i++) {
		struct sequence *sequence = scheduler->running[i];
		if (pending(sequence) != 1 || is_full(sequence))
			continue;
		int32_t n_drafts = drafts_that_fit(sequence, budget, scheduler->n_running - i - 1);
		if (!reserve_decode(scheduler, sequence, &n_drafts))
			break; /* it was the last of the list */
		sequence->n_drafts = n_drafts;
		add_part(out, budget, sequence, 1 + n_drafts, n_drafts);
		out->n_decode_parts++;
	}
}

/* A piece of one sequence's prompt, as long as rows, logits and blocks allow. False when there is nothing to be had. */
static bool plan_prefill_piece(struct scheduler *scheduler, struct sequence *sequence, struct schedule *out, struct budget *budget)
{
	struct kvcache *kvcache = scheduler->options.kvcache;
	int32_t n_rows = min_i32(pending(sequence), min_i32(budget->prefill_rows, budget->rows));
	if (sequence->all_logits) {
		int32_t known = sequence->n_logits > sequence->n_computed ? sequence->n_logits - sequence->n_computed : 0;
		n_rows = min_i32(n_rows, known + budget->logits);
	} else if (budget->logits == 0 && n_rows == pending(sequence)) {
		n_rows--;
	}
	int64_t room = (int64_t)(kvcache_held(kvcache, sequence->slot) + kvcache_available(kvcache)) * KN_KV_BLOCK_TOKENS;
	if (sequence->n_computed + n_rows > room)
		n_rows = (int32_t)room - sequence->n_computed;
	if (n_rows <= 0)
		return false;
	bool reserved = kvcache_reserve(kvcache, sequence->slot, sequence->n_computed + n_rows);
	ASSERT(reserved);
	add_part(out, budget, sequence, n_rows, 0);
	out->n_prefill_rows += n_rows;
	budget->prefill_rows -= n_rows;
	return true;
}

static bool can_move(const struct scheduler *scheduler)
{
	for (int32_t i = 0; i < scheduler->n_running; i++)
		if (!is_full(scheduler->running[i]))
			return true;
	return false;
}

static void plan_prefill(struct scheduler *scheduler, struct schedule *out, struct budget *budget)
{
	for (int32_t i = 0; i < scheduler->n_running; i++)
		if (pending(scheduler->running[i]) > 1)
			plan_prefill_piece(scheduler, scheduler->running[i], out, budget);
	/* Sequences in mid-prompt can block each other: the newest makes way until one moves. */
	while (out->n_parts == 0 && can_move(scheduler)) {
		if (scheduler->n_running > 1)
			preempt_newest(scheduler);
		for (int32_t i = 0; i < scheduler->n_running && out->n_parts == 0; i++)
			if (!is_full(scheduler->running[i]))
				plan_prefill_piece(scheduler, scheduler->running[i], out, budget);
		ASSERT(out->n_parts > 0 || scheduler->n_running > 1 || !can_move(scheduler));
	}
}

/* Positions that the sequence needs to compute all it knows and the next token. */
static int32_t positions_soon(const struct sequence *sequence)
{
	return min_i32(sequence->n_tokens + 1, positions_max(sequence));
}

/* True when the head of the queue can compute all it knows without taking blocks that running sequences need for that. */
static bool has_room_for(const struct scheduler *scheduler, const struct sequence *sequence)
{
	struct kvcache *kvcache = scheduler->options.kvcache;
	int64_t available = kvcache_available(kvcache);
	for (int32_t i = 0; i < scheduler->n_running; i++) {
		const struct sequence *other = scheduler->running[i];
		int32_t missing = kvcache_blocks_for(positions_soon(other)) - kvcache_held(kvcache, other->slot);
		available -= missing > 0 ? missing : 0;
	}
	int32_t unheld = 0, cached = 0;
	if (!sequence->all_logits)
		cached = kvcache_peek(kvcache, sequence->tokens, sequence->n_tokens, &unheld);
	return kvcache_blocks_for(positions_soon(sequence)) - cached / KN_KV_BLOCK_TOKENS + unheld <= available;
}

static void admit(struct scheduler *scheduler, struct sequence *sequence)
{
	queue_remove(scheduler, sequence);
	sequence->slot = scheduler->free_slots[--scheduler->n_free_slots];
	sequence->state = SEQUENCE_RUNNING;
	scheduler->running[scheduler->n_running++] = sequence;
	/* A sequence that wants all logits must compute all positions; open without tokens matches nothing. */
	int32_t n_known = sequence->all_logits ? 0 : sequence->n_tokens;
	sequence->n_computed = kvcache_open(scheduler->options.kvcache, sequence->slot, sequence->tokens, n_known);
	if (sequence->preemptions == 0)
		sequence->n_cached = sequence->n_computed;
}

static void plan_admission(struct scheduler *scheduler, struct schedule *out, struct budget *budget)
{
	while (scheduler->first && scheduler->n_free_slots > 0 && budget->prefill_rows > 0 && budget->logits > 0 &&
		budget->rows > 0) {
		struct sequence *sequence = scheduler->first;
		if (!has_room_for(scheduler, sequence))
			return;
		admit(scheduler, sequence);
		plan_prefill_piece(scheduler, sequence, out, budget);
	}
}

void scheduler_plan(struct scheduler *scheduler, struct schedule *out)
{
	struct budget budget = {
		.prefill_rows = scheduler->options.chunk_tokens,
		.rows = scheduler->options.limits.rows_max,
		.logits = scheduler->options.limits.logits_max,
	};
	uint64_t preemptions = scheduler->preemptions;
	*out = (struct schedule){.parts = scheduler->parts};
	plan_decode(scheduler, out, &budget);
	plan_prefill(scheduler, out, &budget);
	if (scheduler->preemptions == preemptions) /* whoever just made way does not come back at once */
		plan_admission(scheduler, out, &budget);
}

void scheduler_advance(
	struct scheduler *scheduler, const struct schedule_part *part, const int32_t *tokens, int32_t n_tokens, int32_t n_accepted)
{
	struct sequence *sequence = part->sequence;
	ASSERT(sequence->state == SEQUENCE_RUNNING && n_accepted <= part->n_drafts && n_accepted <= n_tokens);
	ASSERT(sequence->n_tokens + n_tokens <= sequence->tokens_max && (n_tokens > 0) == part->samples);
	if (n_tokens > 0)
		memcpy(sequence->tokens + sequence->n_tokens, tokens, (size_t)n_tokens * sizeof *tokens);
	sequence->n_tokens += n_tokens;
	sequence->n_computed = part->position + part->n_rows - part->n_drafts + n_accepted;
	if (sequence->all_logits && sequence->n_computed > sequence->n_logits)
		sequence->n_logits = sequence->n_computed;
	sequence->n_drafts = 0;
	kvcache_truncate(scheduler->options.kvcache, sequence->slot, sequence->n_computed);
	kvcache_commit(scheduler->options.kvcache, sequence->slot, sequence->tokens, sequence->n_computed);
}

void scheduler_counts(const struct scheduler *scheduler, struct scheduler_counts *out)
{
	*out = (struct scheduler_counts){
		.running = scheduler->n_running,
		.waiting = scheduler->n_waiting,
		.preemptions = scheduler->preemptions,
	};
}

const char *scheduler_check(const struct scheduler *scheduler)
{
	int32_t n_waiting = 0, n_fresh = 0;
	const struct sequence *before = NULL;
	for (const struct sequence *sequence = scheduler->first; sequence; sequence = sequence->after) {
		if (sequence->before != before || sequence->state != SEQUENCE_WAITING || sequence->slot != -1 ||
			n_waiting > scheduler->n_waiting)
			return "the queue is broken";
		n_waiting++;
		n_fresh += sequence->preemptions == 0;
		before = sequence;
	}
	if (before != scheduler->last || n_waiting != scheduler->n_waiting || n_fresh != scheduler->n_fresh)
		return "the queue is miscounted";
	if (scheduler->n_running + scheduler->n_free_slots != scheduler->options.limits.slots_max)
		return "a slot is lost";
	for (int32_t i = 0; i < scheduler->n_running; i++) {
		const struct sequence *sequence = scheduler->running[i];
		if (sequence->state != SEQUENCE_RUNNING || sequence->slot < 0 || sequence->n_computed >= sequence->n_tokens + 1)
			return "a running sequence is in a wrong state";
		if (kvcache_blocks_for(sequence->n_computed) > kvcache_held(scheduler->options.kvcache, sequence->slot))
			return "a running sequence lacks blocks for what it computed";
	}
	return kvcache_check(scheduler->options.kvcache);
}
