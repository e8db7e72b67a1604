/* Arithmetic of chain speculation: what a verify step keeps, how long the next draft may be, and the counters. Pure.
 *
 * A verify step computes logits after the last token and after each draft. The tokens are then sampled in order with the
 * request's ordinary sampler; as long as the sampled token equals the draft, the next row's logits are those of the true
 * text and sampling goes on. Every token kept is thus the sampler's own draw on the true text: with noise keyed by
 * (seed, position) the text equals, token for token, the one without speculation. */
#ifndef ENGINE_ACCEPT_H
#define ENGINE_ACCEPT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/drafter.h"

/* Samples the token of row (0: after the last token, j: after draft j). *last says that the text ends with it. */
typedef enum status (*accept_sample)(void *ctx, int32_t row, int32_t *token, bool *last, struct err *err);

struct accept_result {
	int32_t n_tokens; /* sampled and kept, 1 .. n_drafts + 1: all rows up to n_tokens - 1 were asked, in order */
	int32_t n_accepted; /* drafts among them: the sampled token equalled the draft */
};

/* Walks the chain of n_drafts drafts. A text that ends inside an accepted run is cut there. */
enum status accept_chain(
	const int32_t *drafts, int32_t n_drafts, accept_sample sample, void *ctx, struct accept_result *out, struct err *err);

/* --- How much to draft ------------------------------------------------------------------------------------------------
 * Per sequence: the length begins at 3, doubles (to the switch's maximum) when all drafts were accepted, falls to what was
 * accepted plus one when some were, halves when none was. After ACCEPT_MISSES_MAX steps without any hit it pauses for 4 steps, each
 * time twice as long up to 64, and then tries one draft again: text that never repeats costs next to nothing.
 * Per step: all sequences together draft at most ACCEPT_ROWS_MAX tokens, since a verify row costs the more the closer the
 * batch is to being bound by arithmetic. */
#define ACCEPT_ROWS_MAX 32 /* guess: rows beyond which a step's time grows in proportion on the machines we know */
#define ACCEPT_MISSES_MAX 3 /* guess */

struct accept_pace { /* of one sequence; set up by accept_pace_init */
	int32_t length_max; /* --spec-draft-max */
	int32_t length; /* most drafts of the next step */
	int32_t misses; /* steps in a row without an accepted draft */
	int32_t pause, pause_next; /* steps left without drafting; length of the next pause */
};

void accept_pace_init(struct accept_pace *pace, int32_t length_max);

/* Drafts that the sequence may make in a step where n_decoding sequences decode. Counts a pause down: call once a step. */
int32_t accept_pace_next(struct accept_pace *pace, int32_t n_decoding);

/* After a step that verified n_drafts > 0 drafts. */
void accept_pace_record(struct accept_pace *pace, int32_t n_drafts, int32_t n_accepted);

/* --- Counters --------------------------------------------------------------------------------------------------------- */

struct accept_counters {
	uint64_t verify_steps; /* sequences verified, once for each step */
	uint64_t drafted, accepted;
	uint64_t accepted_at[DRAFTER_TOKENS_MAX]; /* by position in the draft, from 0 */
};

void accept_count(struct accept_counters *counters, int32_t n_drafts, int32_t n_accepted);

#endif
