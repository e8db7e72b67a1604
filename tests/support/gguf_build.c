/* Writes small GGUF files in memory, sound or broken on purpose. */
#include "tests/support/gguf_build.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/file.h"

static void put_u32(struct text *out, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		text_append_char(out, (char)(value >> 8 * i));
}

static void put_u64(struct text *out, uint64_t value)
{
	put_u32(out, (uint32_t)value);
	put_u32(out, (uint32_t)(value >> 32));
}

static void put_string(struct text *out, const char *string)
{
	put_u64(out, strlen(string));
	text_append_str(out, string);
}

static void begin_value(struct gguf_build *build, const char *key, uint32_t type)
{
	build->n_values++;
	put_string(&build->values, key);
	put_u32(&build->values, type);
}

void gguf_build_raw(struct gguf_build *build, const char *key, uint32_t type, const void *bytes, size_t len)
{
	begin_value(build, key, type);
	text_append(&build->values, bytes, len);
}

void gguf_build_u32(struct gguf_build *build, const char *key, uint32_t value)
{
	begin_value(build, key, GGUF_U32);
	put_u32(&build->values, value);
}

void gguf_build_u64(struct gguf_build *build, const char *key, uint64_t value)
{
	begin_value(build, key, GGUF_U64);
	put_u64(&build->values, value);
}

void gguf_build_i32(struct gguf_build *build, const char *key, int32_t value)
{
	begin_value(build, key, GGUF_I32);
	put_u32(&build->values, (uint32_t)value);
}

void gguf_build_f32(struct gguf_build *build, const char *key, float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	begin_value(build, key, GGUF_F32);
	put_u32(&build->values, bits);
}

void gguf_build_bool(struct gguf_build *build, const char *key, int value)
{
	begin_value(build, key, GGUF_BOOL);
	text_append_char(&build->values, (char)value);
}

void gguf_build_string(struct gguf_build *build, const char *key, const char *value)
{
	begin_value(build, key, GGUF_STRING);
	put_string(&build->values, value);
}

void gguf_build_strings(struct gguf_build *build, const char *key, const char *const *items, size_t count)
{
	begin_value(build, key, GGUF_ARRAY);
	put_u32(&build->values, GGUF_STRING);
	put_u64(&build->values, count);
	for (size_t i = 0; i < count; i++)
		put_string(&build->values, items[i]);
}

void gguf_build_i32s(struct gguf_build *build, const char *key, const int32_t *items, size_t count)
{
	begin_value(build, key, GGUF_ARRAY);
	put_u32(&build->values, GGUF_I32);
	put_u64(&build->values, count);
	for (size_t i = 0; i < count; i++)
		put_u32(&build->values, (uint32_t)items[i]);
}

static uint32_t alignment_of(const struct gguf_build *build)
{
	return build->alignment ? build->alignment : 32;
}

static void pad(struct text *out, uint32_t alignment)
{
	while (out->len % alignment)
		text_append_char(out, '\0');
}

void gguf_build_tensor_entry(
	struct gguf_build *build, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
	build->n_tensors++;
	put_string(&build->tensors, name);
	put_u32(&build->tensors, n_dims);
	for (uint32_t i = 0; i < n_dims; i++)
		put_u64(&build->tensors, dims[i]);
	put_u32(&build->tensors, type);
	put_u64(&build->tensors, offset);
}

void gguf_build_tensor(
	struct gguf_build *build, const char *name, uint32_t type, int n_dims, const int64_t *dims, const void *data, size_t bytes)
{
	uint64_t stored[GGUF_DIMS_MAX];

	for (int i = 0; i < n_dims; i++)
		stored[i] = (uint64_t)dims[i];
	pad(&build->data, alignment_of(build));
	gguf_build_tensor_entry(build, name, type, (uint32_t)n_dims, stored, build->data.len);
	text_append(&build->data, data, bytes);
}

void gguf_build_finish(struct gguf_build *build, struct text *out)
{
	struct text file = {0};

	if (build->alignment)
		gguf_build_u32(build, "general.alignment", build->alignment);
	text_append_str(&file, "GGUF");
	put_u32(&file, build->version ? build->version : 3);
	put_u64(&file, build->n_tensors);
	put_u64(&file, build->n_values);
	text_append(&file, build->values.data, build->values.len);
	text_append(&file, build->tensors.data, build->tensors.len);
	pad(&file, alignment_of(build));
	text_append(&file, build->data.data, build->data.len);
	text_append(out, file.data, file.len);
	text_release(&file);
}

void gguf_build_release(struct gguf_build *build)
{
	text_release(&build->values);
	text_release(&build->tensors);
	text_release(&build->data);
	*build = (struct gguf_build){0};
}

void gguf_build_write(struct gguf_build *build, const char *path)
{
	struct text file = {0};
	struct err err = {0};

	gguf_build_finish(build, &file);
	if (file_write_atomic(path, file.data, file.len, &err))
		fail_msg("%s", err.text);
	text_release(&file);
	gguf_build_release(build);
}
