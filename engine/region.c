/* Layout of the ranks' shared memory: header, step, collective's area, logits; each on its own pages. */
#include "engine/region.h"

#include <string.h>

#include "kernels/comm/auto.h"

#define PAGE_BYTES 4096 /* also separates areas that different ranks write */

static size_t place(size_t *offset, size_t bytes)
{
	size_t at = *offset;
	*offset = (at + bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	return at;
}

struct offsets {
	size_t header, step, comm, logits, end;
};

static void layout(const struct rank_setup *setup, struct offsets *out)
{
	size_t offset = 0;
	out->header = place(&offset, sizeof(struct region_header));
	out->step = place(&offset, step_bytes(&setup->limits));
	out->comm = place(&offset, region_comm_bytes(setup));
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
	const struct comm_ops *ops;
	if (setup->world == 1)
		return 0;
	if (strcmp(setup->allreduce, "auto") == 0)
		return comm_auto_shared_bytes(setup->world, region_comm_count(setup));
	return comm_find(setup->allreduce, "cpu", &ops, NULL) == STATUS_OK
		? ops->shared_bytes(setup->world, region_comm_count(setup))
		: 0;
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
	*out = (struct region){.header = header, .logits = (void *)(base + offsets.logits)};
	step_bind(&setup->limits, base + offsets.step, &out->step);
	if (region_comm_bytes(setup) > 0)
		out->comm_shared = base + offsets.comm;
}
