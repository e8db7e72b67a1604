/* One step of the engine: which rows every rank runs. Written by rank 0, read by all; lives in shared memory, fixed size. */
#ifndef ENGINE_STEP_H
#define ENGINE_STEP_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kn.h"

/* Limits fixed at start from the options; all ranks agree on them. */
struct step_limits {
	int32_t rows_max; /* tokens in one step (prefill chunk plus decode rows) */
	int32_t slots_max; /* sequences in flight (--max-num-seqs) */
	int32_t blocks_per_slot_max; /* ceil(max_model_len / 16) */
	int32_t logits_max; /* rows whose logits may be asked in one step; <= rows_max */
};

/* Views into one block of memory laid out by step_bind; struct kn_step_arrays says what each holds. Zeroed memory is a step of
 * which nothing depends on the step before, and whose tokens are the likeliest. */
struct step {
	int32_t *n_rows; /* [1] */
	int32_t *n_logits; /* [1] */
	int32_t *tokens; /* [rows_max] */
	int32_t *positions; /* [rows_max] */
	int32_t *slots; /* [rows_max] */
	int32_t *sources; /* [rows_max] */
	int32_t *logit_rows; /* [logits_max] row numbers, ascending */
	struct kn_sampling *sampling; /* [logits_max] */
	int32_t *block_tables; /* [slots_max + 1][blocks_per_slot_max]; block 0 is a dummy, and all that the last line names */
};

size_t step_bytes(const struct step_limits *limits);
void step_bind(const struct step_limits *limits, void *memory, struct step *out);

/* The same views as a backend knows them. */
struct kn_step_arrays step_arrays(const struct step *step);

/* Copies what a step uses: its rows, and of the block tables the lines of its sequences up to their last position. */
void step_copy(const struct step_limits *limits, const struct step *from, const struct step *to);

#endif
