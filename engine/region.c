/* Layout of the ranks' shared memory: header, step, one area per candidate collective, logits; each on its own pages. */
#include "engine/region.h"

#include <string.h>

#define PAGE_BYTES 4096 /* also separates areas that different ranks write */

static size_t place(size_t *offset, size_t bytes)
{
	size_t at = *offset;
	*offset = (at + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return at;
}

/* A named backend is the only candidate; "auto" has all of them. */
static bool is_candidate(const struct rank_setup *setup, const struct comm_ops *ops)
{
	return setup->world > 1 && (strcmp(setup->allreduce, "auto") == 0 || strcmp(setup->allreduce, ops->name) == 0);
}

struct offsets { size_t header, step, comm[REGION_BACKENDS_MAX], logits, end; };

static size_t comm_bytes(const struct rank_setup *setup, size_t index)
{
	const struct comm_ops *ops = comm_cpu_backends[index];
	return is_candidate(setup, ops) ? ops->shared_bytes(setup->world, region_comm_count(setup)) : 0;
}

static void layout(const struct rank_setup *setup, struct offsets *out)
{
	size_t offset = 0;
	ASSERT(comm_cpu_backends_count <= REGION_BACKENDS_MAX);
	*out = (struct offsets){0};
	out->header = place(&offset, sizeof(struct region_header));
	out->step = place(&offset, step_bytes(&setup->limits));
	for (size_t i = 0; i < comm_cpu_backends_count; i++)
		out->comm[i] = place(&offset, comm_bytes(setup, i));
	out->logits = place(&offset, (size_t)setup->limits.logits_max * (size_t)setup->vocab * sizeof(float));
	out->end = offset;
}

size_t region_comm_count(const struct rank_setup *setup)
{
	return (size_t)setup->limits.rows_max * (size_t)setup->hidden;
}

size_t region_bytes(const struct rank_setup *setup)
{
	struct offsets offsets;
	layout(setup, &offsets);
	return offsets.end;
}

size_t region_comm_bytes(const struct rank_setup *setup)
{
	size_t bytes = 0;
	for (size_t i = 0; i < comm_cpu_backends_count; i++)
		bytes += comm_bytes(setup, i);
	return bytes;
}

void region_init(const struct rank_setup *setup, void *memory, struct region *out)
{
	struct region_header *header = memory;
	header->setup = *setup;
	region_bind(memory, out);
}

void region_bind(void *memory, struct region *out)
{
	struct offsets offsets;
	char *base = memory;
	struct region_header *header = memory;
	const struct rank_setup *setup = &header->setup;
	layout(setup, &offsets);
	*out = (struct region){.header = header, .logits = (float *)(base + offsets.logits)};
	step_bind(&setup->limits, base + offsets.step, &out->step);
	for (size_t i = 0; i < comm_cpu_backends_count; i++)
		if (comm_bytes(setup, i) > 0)
			out->comm_shared[i] = base + offsets.comm[i];
}
