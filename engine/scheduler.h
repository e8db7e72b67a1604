/* Which rows the next step computes. Pure: no clock, no I/O, no memory after create; it moves sequences and counts blocks.
 *
 * Every sequence is a list of known tokens, of which the first n_computed have keys and values. A running sequence with one
 * token pending decodes (its row may be followed by drafts to verify); one with more pending computes a piece of its prompt.
 * A step takes all decoding sequences first, oldest first, then up to chunk_tokens prompt tokens, first come first served:
 * long prompts never hold up decoding, and a step's length is bounded. When blocks run out the newest sequence is preempted:
 * it gives up its blocks, waits in front of the queue and later computes its tokens anew (or finds them cached). The oldest
 * sequence is never preempted and every accepted sequence fits alone, so something always moves. One thread at a time. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/drafter.h"
#include "engine/kvcache.h"
#include "engine/step.h"

enum sequence_state { SEQUENCE_NEW, SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_ENDED };

/* Storage is the caller's, from submit to end. */
struct sequence {
	/* Set by the caller before scheduler_submit. */
	int32_t *tokens; /* [tokens_max], the prompt first */
	int32_t n_prompt;
	int32_t tokens_max; /* prompt plus longest answer */
	bool all_logits; /* logits of every prompt position are wanted; no cached prefix is used */
	void *owner;

	/* Set by the caller before each scheduler_plan, for a sequence that scheduler_may_draft: guesses of what comes next. */
	int32_t drafts[DRAFTER_TOKENS_MAX];
	int32_t n_drafts;

	/* Kept here; read-only for the caller. */
	enum sequence_state state;
	int32_t n_tokens; /* known: prompt and answer so far */
	int32_t n_computed; /* of those, with final keys and values in blocks of slot */
	int32_t n_cached; /* prompt tokens that a cached prefix saved, at the first admission */
	int32_t n_logits; /* with all_logits: leading positions whose logits were in a step */
	int32_t slot; /* -1 unless running */
	int32_t preemptions; /* each ended a stay in one slot */
	struct sequence *before, *after; /* in the queue */
};

/* One sequence's rows in a step: positions [position, position + n_rows), the last n_drafts of them drafts. */
struct schedule_part {
	struct sequence *sequence;
	int32_t position, n_rows, n_drafts;
	int32_t row; /* its first row in the step */
	int32_t logit, n_logits; /* its first line of logits, and how many: those of its last rows */
	bool samples; /* its last 1 + n_drafts lines of logits continue the text; false in mid-prompt */
};

struct schedule {
	struct schedule_part *parts; /* [n_parts], owned by the scheduler, valid until the next plan */
	int32_t n_parts, n_rows, n_logits;
	int32_t n_decode_parts, n_prefill_rows;
};

struct scheduler_options {
	struct step_limits limits;
	int32_t chunk_tokens;
	int32_t queue_max; /* sequences that never ran yet */
	int32_t max_model_len;
	struct kvcache *kvcache; /* borrowed */
};

struct scheduler_counts {
	int32_t running, waiting;
	uint64_t preemptions;
};

struct scheduler;
struct scheduler *scheduler_create(const struct scheduler_options *options);
void scheduler_destroy(struct scheduler *scheduler);

/* Queues a sequence. One that could never run is refused at once: empty or longer than max_model_len or than all blocks
 * together, STATUS_INPUT; a full queue is STATUS_UNAVAILABLE. */
enum status scheduler_submit(struct scheduler *scheduler, struct sequence *sequence, struct err *err);

/* Running sequences, oldest first; NULL past the last. */
struct sequence *scheduler_running(const struct scheduler *scheduler, int32_t index);

/* Most drafts that could be of use to a sequence: 0 unless it decodes next and has room. */
int32_t scheduler_may_draft(const struct sequence *sequence);

/* Chooses the next step's rows, admitting and preempting; may cut drafts. An empty schedule means nothing can run. */
void scheduler_plan(struct scheduler *scheduler, struct schedule *out);

/* After the step of a part ran, or once it is sure to run before the next one: its keys and values are final up to the accepted
 * drafts, and tokens [n_tokens] were sampled (0 in mid-prompt). Rejected drafts' blocks go back. Call once for every part before
 * the next plan. The last token may be any: the caller puts the right one into sequence->tokens before its position is planned for
 * computing anew, and a sequence that is full then rests until scheduler_end. */
void scheduler_advance(
	struct scheduler *scheduler, const struct schedule_part *part, const int32_t *tokens, int32_t n_tokens, int32_t n_accepted);

/* Takes a sequence out, wherever it is (finished, cancelled); its computed full blocks stay findable. Between steps. */
void scheduler_end(struct scheduler *scheduler, struct sequence *sequence);

void scheduler_counts(const struct scheduler *scheduler, struct scheduler_counts *out);

/* NULL when lists, slots and blocks agree (kvcache_check included), else what is wrong. For tests. */
const char *scheduler_check(const struct scheduler *scheduler);

#endif
