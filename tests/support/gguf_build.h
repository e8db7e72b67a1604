/* Writes small GGUF files in memory, sound or broken on purpose. */
#ifndef TESTS_SUPPORT_GGUF_BUILD_H
#define TESTS_SUPPORT_GGUF_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "base/text.h"
#include "engine/gguf.h"

/* `struct gguf_build build = {0};` then values, tensors, gguf_build_finish; gguf_build_release at the end. */
struct gguf_build {
	struct text values, tensors, data;
	uint64_t n_values, n_tensors;
	uint32_t alignment; /* 0: the default of 32, not written; else written as general.alignment by finish */
	uint32_t version; /* 0: version 3 */
};

void gguf_build_u32(struct gguf_build *build, const char *key, uint32_t value);
void gguf_build_u64(struct gguf_build *build, const char *key, uint64_t value);
void gguf_build_i32(struct gguf_build *build, const char *key, int32_t value);
void gguf_build_f32(struct gguf_build *build, const char *key, float value);
void gguf_build_bool(struct gguf_build *build, const char *key, int value);
void gguf_build_string(struct gguf_build *build, const char *key, const char *value);
void gguf_build_strings(struct gguf_build *build, const char *key, const char *const *items, size_t count);
void gguf_build_i32s(struct gguf_build *build, const char *key, const int32_t *items, size_t count);

/* A value of any type whose bytes the caller made. */
void gguf_build_raw(struct gguf_build *build, const char *key, uint32_t type, const void *bytes, size_t len);

/* dims fastest first. The data is aligned and its offset written. */
void gguf_build_tensor(
	struct gguf_build *build, const char *name, uint32_t type, int n_dims, const int64_t *dims, const void *data, size_t bytes);

/* A directory entry with any offset and no data. */
void gguf_build_tensor_entry(
	struct gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t offset);

/* Appends the whole file to out. */
void gguf_build_finish(struct gguf_build *build, struct text *out);
void gguf_build_release(struct gguf_build *build);

/* Finishes, writes the file at path and releases. Fails the running test when it cannot. */
void gguf_build_write(struct gguf_build *build, const char *path);

#endif
