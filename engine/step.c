/* Layout of a step in one block of memory: nine arrays, each on its own cache lines. */
#include "engine/step.h"

#include <string.h>

#define LINE_BYTES 64 /* cache line of x86-64 and most others */

#define ARRAYS 9

/* Room for count elements of size bytes at *offset, which moves past them to the next line. */
static size_t place(size_t *offset, size_t count, size_t size)
{
	size_t at = *offset;
	*offset = (at + count * size + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
	return at;
}

/* Offsets in the order of the struct's members; the total is returned. */
static size_t layout(const struct step_limits *limits, size_t offsets[ARRAYS])
{
	size_t rows = (size_t)limits->rows_max, logits = (size_t)limits->logits_max, offset = 0;
	offsets[0] = place(&offset, 1, sizeof(int32_t));
	offsets[1] = place(&offset, 1, sizeof(int32_t));
	offsets[2] = place(&offset, rows, sizeof(int32_t));
	offsets[3] = place(&offset, rows, sizeof(int32_t));
	offsets[4] = place(&offset, rows, sizeof(int32_t));
	offsets[5] = place(&offset, rows, sizeof(int32_t));
	offsets[6] = place(&offset, logits, sizeof(int32_t));
	offsets[7] = place(&offset, logits, sizeof(struct kn_sampling));
	offsets[8] = place(&offset, ((size_t)limits->slots_max + 1) * (size_t)limits->blocks_per_slot_max, sizeof(int32_t));
	return offset;
}

size_t step_bytes(const struct step_limits *limits)
{
	size_t offsets[ARRAYS];
	return layout(limits, offsets);
}

void step_bind(const struct step_limits *limits, void *memory, struct step *out)
{
	size_t offsets[ARRAYS];
	layout(limits, offsets);
	char *base = memory;
	*out = (struct step){
		.n_rows = (int32_t *)(base + offsets[0]),
		.n_logits = (int32_t *)(base + offsets[1]),
		.tokens = (int32_t *)(base + offsets[2]),
		.positions = (int32_t *)(base + offsets[3]),
		.slots = (int32_t *)(base + offsets[4]),
		.sources = (int32_t *)(base + offsets[5]),
		.logit_rows = (int32_t *)(base + offsets[6]),
		.sampling = (struct kn_sampling *)(base + offsets[7]),
		.block_tables = (int32_t *)(base + offsets[8]),
	};
}

struct kn_step_arrays step_arrays(const struct step *step)
{
	return (struct kn_step_arrays){
		.n_rows = step->n_rows,
		.n_logits = step->n_logits,
		.tokens = step->tokens,
		.positions = step->positions,
		.slots = step->slots,
		.sources = step->sources,
		.logit_rows = step->logit_rows,
		.sampling = step->sampling,
		.block_tables = step->block_tables,
	};
}

void step_copy(const struct step_limits *limits, const struct step *from, const struct step *to)
{
	size_t n_rows = (size_t)*from->n_rows, n_logits = (size_t)*from->n_logits, row_bytes = n_rows * sizeof(int32_t);
	*to->n_rows = *from->n_rows;
	*to->n_logits = *from->n_logits;
	memcpy(to->tokens, from->tokens, row_bytes);
	memcpy(to->positions, from->positions, row_bytes);
	memcpy(to->slots, from->slots, row_bytes);
	memcpy(to->sources, from->sources, row_bytes);
	memcpy(to->logit_rows, from->logit_rows, n_logits * sizeof(int32_t));
	memcpy(to->sampling, from->sampling, n_logits * sizeof *from->sampling);
	for (size_t row = 0; row < n_rows; row++) {
		/* Rows of a sequence come in ascending position, so the last of a run of one slot reaches furthest. */
		if (row + 1 < n_rows && from->slots[row + 1] == from->slots[row])
			continue;
		size_t line = (size_t)from->slots[row] * (size_t)limits->blocks_per_slot_max;
		memcpy(to->block_tables + line, from->block_tables + line,
			((size_t)from->positions[row] / KN_KV_BLOCK_TOKENS + 1) * sizeof(int32_t));
	}
}
