/* Memory of packed weights. Matrices of a layer are smaller than a huge page, so they are cut one after another from large
 * chunks: with one mapping each, most of a model would lie on small pages and be read more slowly. */
#ifndef KERNELS_CPU_STORE_H
#define KERNELS_CPU_STORE_H

#include <stddef.h>

#include "base/err.h"

/* `struct store store = {0};` is empty. One thread at a time. */
struct store {
	struct store_chunk *chunks; /* newest first */
};

/* Zeroed memory on a cache-line boundary. Physical memory beyond what is asked for: less than a huge page a chunk. */
enum status store_take(struct store *store, size_t bytes, void **out, struct err *err);

/* Gives a block back; a chunk is returned to the system with its last block. */
void store_put(struct store *store, void *block);

#endif
