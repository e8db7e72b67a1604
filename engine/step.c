/* Layout of a step in one block of memory: seven arrays, each on its own cache lines. */
#include "engine/step.h"

#define LINE_BYTES 64 /* cache line of x86-64 and most others */

/* Room for count elements at *offset, which moves past them to the next line. */
static size_t place(size_t *offset, size_t count)
{
	size_t at = *offset;
	*offset = (at + count * sizeof(int32_t) + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
	return at;
}

/* Offsets in the order of the struct's members; the total is returned. */
static size_t layout(const struct step_limits *limits, size_t offsets[7])
{
	size_t rows = (size_t)limits->rows_max, offset = 0;
	offsets[0] = place(&offset, 1);
	offsets[1] = place(&offset, 1);
	offsets[2] = place(&offset, rows);
	offsets[3] = place(&offset, rows);
	offsets[4] = place(&offset, rows);
	offsets[5] = place(&offset, (size_t)limits->logits_max);
	offsets[6] = place(&offset, (size_t)limits->slots_max * (size_t)limits->blocks_per_slot_max);
	return offset;
}

size_t step_bytes(const struct step_limits *limits)
{
	size_t offsets[7];
	return layout(limits, offsets);
}

void step_bind(const struct step_limits *limits, void *memory, struct step *out)
{
	size_t offsets[7];
	layout(limits, offsets);
	char *base = memory;
	*out = (struct step){
		.n_rows = (int32_t *)(base + offsets[0]),
		.n_logits = (int32_t *)(base + offsets[1]),
		.tokens = (int32_t *)(base + offsets[2]),
		.positions = (int32_t *)(base + offsets[3]),
		.slots = (int32_t *)(base + offsets[4]),
		.logit_rows = (int32_t *)(base + offsets[5]),
		.block_tables = (int32_t *)(base + offsets[6]),
	};
}
