/* The allocator behind everything, and arenas on top of it. */
#include "base/mem.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ARENA_CHUNK_BYTES ((size_t)64 * 1024)
#define ARENA_ALIGNMENT 64

/* Ends the process: a program that cannot get a few kilobytes cannot report properly either. */
static void out_of_memory(size_t bytes)
{
	char text[96];
	int len = snprintf(text, sizeof text, "out of memory: could not get %zu bytes\n", bytes);
	if (len > 0 && write(STDERR_FILENO, text, (size_t)len) < 0)
		abort();
	abort();
}

static size_t product(size_t count, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(count, size, &bytes) || bytes > MEM_BLOCK_BYTES_MAX)
		out_of_memory(SIZE_MAX);
	return bytes ? bytes : 1;
}

void *mem_calloc(size_t count, size_t size)
{
	size_t bytes = product(count, size);
	void *block = calloc(1, bytes);
	if (!block)
		out_of_memory(bytes);
	return block;
}

void *mem_realloc(void *block, size_t count, size_t size)
{
	size_t bytes = product(count, size);
	void *grown = realloc(block, bytes);
	if (!grown)
		out_of_memory(bytes);
	return grown;
}

void *mem_calloc_aligned(size_t alignment, size_t count, size_t size)
{
	size_t bytes = product(count, size);
	void *block = NULL;
	if (posix_memalign(&block, alignment, bytes) != 0)
		out_of_memory(bytes);
	return memset(block, 0, bytes);
}

char *mem_strdup(const char *text)
{
	return mem_strndup(text, strlen(text));
}

char *mem_strndup(const char *text, size_t len)
{
	char *copy = mem_calloc(len + 1, 1);
	if (len)
		memcpy(copy, text, len);
	return copy;
}

void mem_free(void *block)
{
	free(block);
}

enum status mem_map(size_t bytes, void **out, struct err *err)
{
	*out = NULL;
	if (bytes == 0 || bytes > MEM_BLOCK_BYTES_MAX)
		return err_set(err, STATUS_NO_MEMORY, "cannot map %zu bytes", bytes);
	void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (block == MAP_FAILED)
		return err_set(err, STATUS_NO_MEMORY, "cannot map %zu bytes", bytes);
	*out = block;
	return STATUS_OK;
}

void mem_advise_huge(void *block, size_t bytes)
{
	madvise(block, bytes, MADV_HUGEPAGE);
}

void mem_unmap(void *block, size_t bytes)
{
	if (block)
		munmap(block, bytes);
}

struct arena_chunk {
	struct arena_chunk *older;
	size_t used, size;
	alignas(ARENA_ALIGNMENT) unsigned char bytes[];
};

void *arena_calloc(struct arena *arena, size_t count, size_t size)
{
	size_t bytes = product(count, size);
	bytes = (bytes + ARENA_ALIGNMENT - 1) & ~(size_t)(ARENA_ALIGNMENT - 1);
	struct arena_chunk *chunk = arena->chunks;
	if (!chunk || chunk->size - chunk->used < bytes) {
		size_t room = bytes > ARENA_CHUNK_BYTES ? bytes : ARENA_CHUNK_BYTES;
		chunk = mem_calloc_aligned(ARENA_ALIGNMENT, 1, sizeof *chunk + room);
		chunk->older = arena->chunks;
		chunk->size = room;
		arena->chunks = chunk;
	}
	void *block = chunk->bytes + chunk->used;
	chunk->used += bytes;
	arena->used_bytes += bytes;
	return block;
}

char *arena_strndup(struct arena *arena, const char *text, size_t len)
{
	char *copy = arena_calloc(arena, len + 1, 1);
	if (len)
		memcpy(copy, text, len);
	return copy;
}

void arena_release(struct arena *arena)
{
	struct arena_chunk *chunk = arena->chunks;
	while (chunk) {
		struct arena_chunk *older = chunk->older;
		mem_free(chunk);
		chunk = older;
	}
	*arena = (struct arena){0};
}
