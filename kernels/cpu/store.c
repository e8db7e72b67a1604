/* Chunks of mapped memory, filled front to back. */
#include "kernels/cpu/store.h"

#include <stdint.h>

#include "base/mem.h"

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define CHUNK_BYTES ((size_t)64 << 20) /* guess: 32 huge pages; what is never touched costs address space only */
#define BLOCK_ALIGNMENT ((size_t)64) /* cache line */

struct store_chunk {
	struct store_chunk *older;
	void *mapping;
	size_t mapped_bytes;
	uint8_t *begin; /* first huge page boundary of the mapping */
	size_t used, size;
	size_t n_blocks; /* taken and not put back */
};

static enum status add_chunk(struct store *store, size_t bytes, struct err *err)
{
	size_t size = bytes > CHUNK_BYTES ? (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES : CHUNK_BYTES;
	struct store_chunk *chunk = mem_calloc(1, sizeof *chunk);
	enum status status = mem_map(size + HUGE_PAGE_BYTES, &chunk->mapping, err);

	if (status != STATUS_OK) {
		mem_free(chunk);
		return status;
	}
	mem_advise_huge(chunk->mapping, size + HUGE_PAGE_BYTES);
	chunk->mapped_bytes = size + HUGE_PAGE_BYTES;
	chunk->begin =
		(uint8_t *)chunk->mapping + (HUGE_PAGE_BYTES - (uintptr_t)chunk->mapping % HUGE_PAGE_BYTES) % HUGE_PAGE_BYTES;
	chunk->size = size;
	chunk->older = store->chunks;
	store->chunks = chunk;
	return STATUS_OK;
}

enum status store_take(struct store *store, size_t bytes, void **out, struct err *err)
{
	size_t rounded = (bytes + BLOCK_ALIGNMENT - 1) / BLOCK_ALIGNMENT * BLOCK_ALIGNMENT;
	struct store_chunk *chunk = store->chunks;

	*out = NULL;
	if (bytes == 0 || bytes > MEM_BLOCK_BYTES_MAX)
		return err_set(err, STATUS_NO_MEMORY, "cannot map %zu bytes", bytes);
	while (chunk && chunk->size - chunk->used < rounded)
		chunk = chunk->older;
	if (!chunk) {
		enum status status = add_chunk(store, rounded, err);

		if (status != STATUS_OK)
			return status;
		chunk = store->chunks;
	}
	*out = chunk->begin + chunk->used;
	chunk->used += rounded;
	chunk->n_blocks++;
	return STATUS_OK;
}

void store_put(struct store *store, void *block)
{
	struct store_chunk **link = &store->chunks, *chunk;

	if (!block)
		return;
	while ((uint8_t *)block < (*link)->begin || (uint8_t *)block >= (*link)->begin + (*link)->size)
		link = &(*link)->older;
	chunk = *link;
	if (--chunk->n_blocks > 0)
		return;
	*link = chunk->older;
	mem_unmap(chunk->mapping, chunk->mapped_bytes);
	mem_free(chunk);
}
