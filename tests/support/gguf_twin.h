/* The weights of a Hugging Face folder written once more as a GGUF file, as converters do it. */
#ifndef TESTS_SUPPORT_GGUF_TWIN_H
#define TESTS_SUPPORT_GGUF_TWIN_H

#include <stdbool.h>

/* Writes path, the weights in their type or as F32; fails the running test when it cannot. For families whose files have no scales.
 * The tokenizer is that of the folder's vocabulary.gguf; without one there is none. */
void gguf_twin_write(const char *folder, bool as_f32, const char *path);

#endif
