/* The only allocator. Small blocks never fail: running out of them ends the process with a message, since no caller
 * can do anything better. Blocks whose size a user chooses (weights, KV, queues) come from mem_map, which can fail. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>

#include "base/err.h"

#define MEM_BLOCK_BYTES_MAX ((size_t)1 << 40) /* guess: larger requests are bugs or hostile sizes */

/* Zeroed memory for count elements of size bytes; overflow of the product ends the process. Free with mem_free. */
void *mem_calloc(size_t count, size_t size);

/* Grows or shrinks a block to count elements of size bytes. New bytes are not initialised. */
void *mem_realloc(void *block, size_t count, size_t size);

/* Zeroed memory aligned to alignment bytes (a power of two, at least 8). Free with mem_free. */
void *mem_calloc_aligned(size_t alignment, size_t count, size_t size);

char *mem_strdup(const char *text);
char *mem_strndup(const char *text, size_t len); /* copies exactly len bytes and adds a NUL */

/* Frees a block from any function above; NULL is allowed. */
void mem_free(void *block);

/* Zeroed private pages, real from their first use on. *out is page aligned. Fails with STATUS_NO_MEMORY. */
enum status mem_map(size_t bytes, void **out, struct err *err);

/* Asks for huge pages: for memory that is used whole and streamed, such as weights. Memory that is touched here and there,
 * such as a KV pool, would pay 2 MiB for each place. A hint: refusal costs speed only. */
void mem_advise_huge(void *block, size_t bytes);

void mem_unmap(void *block, size_t bytes);

/* Memory named by its lifetime: everything in an arena is released at once. Grows by chunks; never moves a block. */
struct arena {
	struct arena_chunk *chunks; /* newest first */
	size_t used_bytes;
};

void *arena_calloc(struct arena *arena, size_t count, size_t size); /* zeroed, 64-byte aligned */
char *arena_strndup(struct arena *arena, const char *text, size_t len);
void arena_release(struct arena *arena);

#endif
