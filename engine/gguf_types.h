/* Inside the GGUF module: little-endian loads and the tables of published types. */
#ifndef ENGINE_GGUF_TYPES_H
#define ENGINE_GGUF_TYPES_H

#include "engine/gguf.h"

/* How a tensor type lies in a file. */
struct gguf_tensor_type {
	const char *name;
	int block_elements, block_bytes;
};

/* False for ids that were never published; retired ids are not in the table (dtype_is_retired tells them). */
bool gguf_tensor_type(uint32_t id, struct gguf_tensor_type *out);

uint32_t gguf_load_u32(const uint8_t *bytes);
uint64_t gguf_load_u64(const uint8_t *bytes);

/* Length for "%.*s" in messages, cut so that one long name cannot push the reason out of the text. */
int gguf_print_len(struct gguf_string string);

#endif
