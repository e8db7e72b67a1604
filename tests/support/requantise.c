/* Makes GGUF files of the real model in other weight types. Formulas: ggml's quantize_row_*_ref, as also in the Python package
 * gguf, which the golden data of these files comes from. */
#include "tests/support/requantise.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/gguf.h"
#include "tests/support/gguf_build.h"

#define BLOCK 32 /* elements that share a scale in Q8_0 and Q4_0 */

static void store_f16(float value, uint8_t *out)
{
	uint16_t bits = dtype_f32_to_f16(value);
	memcpy(out, &bits, sizeof bits);
}

static void block_to_q8_0(const float *values, uint8_t *out)
{
	float largest = 0;
	for (int i = 0; i < BLOCK; i++)
		largest = fmaxf(largest, fabsf(values[i]));
	float scale = largest / 127, inverse = scale == 0 ? 0 : 1 / scale;
	store_f16(scale, out);
	for (int i = 0; i < BLOCK; i++)
		out[2 + i] = (uint8_t)(int8_t)roundf(values[i] * inverse);
}

static uint8_t q4_0_quant(float value, float inverse)
{
	float quant = truncf(value * inverse + 8.5f);
	return quant > 15 ? 15 : (uint8_t)quant;
}

/* The value farthest from zero, with its sign, becomes -8. */
static void block_to_q4_0(const float *values, uint8_t *out)
{
	float farthest = values[0];
	for (int i = 1; i < BLOCK; i++)
		if (fabsf(values[i]) > fabsf(farthest))
			farthest = values[i];
	float scale = farthest / -8, inverse = scale == 0 ? 0 : 1 / scale;
	store_f16(scale, out);
	for (int i = 0; i < BLOCK / 2; i++)
		out[2 + i] = (uint8_t)(q4_0_quant(values[i], inverse) | q4_0_quant(values[i + BLOCK / 2], inverse) << 4);
}

/* Rounds to the nearest, ties to even. */
static void block_to_bf16(const float *values, uint8_t *out)
{
	for (int i = 0; i < BLOCK; i++) {
		uint32_t bits;
		memcpy(&bits, &values[i], sizeof bits);
		uint16_t upper = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
		memcpy(out + 2 * i, &upper, sizeof upper);
	}
}

static void block_to_f16(const float *values, uint8_t *out)
{
	for (int i = 0; i < BLOCK; i++)
		store_f16(values[i], out + 2 * i);
}

static void block_to_f32(const float *values, uint8_t *out)
{
	memcpy(out, values, BLOCK * sizeof *values);
}

static const struct {
	enum dtype dtype;
	void (*convert)(const float *values, uint8_t *out); /* of BLOCK values */
} conversions[] = {
	{DTYPE_Q8_0, block_to_q8_0},
	{DTYPE_Q4_0, block_to_q4_0},
	{DTYPE_BF16, block_to_bf16},
	{DTYPE_F16, block_to_f16},
	{DTYPE_F32, block_to_f32},
};

static void quantise(enum dtype dtype, const float *values, int64_t count, uint8_t *out)
{
	size_t i = 0;
	while (conversions[i].dtype != dtype)
		assert_true(++i < sizeof conversions / sizeof conversions[0]);
	int64_t bytes = BLOCK / dtype_block_elements(dtype) * dtype_block_bytes(dtype);
	for (int64_t done = 0; done < count; done += BLOCK, out += bytes)
		conversions[i].convert(values + done, out);
}

static int64_t elements_of(const struct gguf_tensor *tensor)
{
	int64_t count = 1;
	for (int i = 0; i < tensor->n_dims; i++)
		count *= tensor->dims[i];
	return count;
}

static bool changes(const struct gguf_tensor *tensor)
{
	return tensor->n_dims == 2;
}

/* Bytes of the tensor in the new file, a multiple of the alignment for all of this model's. */
static uint64_t bytes_in_copy(const struct gguf *gguf, const struct gguf_tensor *tensor, enum dtype dtype)
{
	uint64_t bytes = tensor->bytes;
	if (changes(tensor))
		assert_true(dtype_bytes(dtype, elements_of(tensor), &bytes));
	assert_int_equal(bytes % gguf->alignment, 0);
	return bytes;
}

/* The metadata as it is, and a directory for the new sizes. */
static void write_head(int fd, const struct gguf *gguf, enum dtype dtype)
{
	const struct gguf_value *last = &gguf->values[gguf->n_values - 1];
	size_t last_bytes = gguf_type_bytes(last->type);
	assert_true(last_bytes > 0); /* a number, so its end, that of the metadata, is easily told */
	const uint8_t *end = last->bytes + last_bytes;
	struct gguf_build build = {.n_values = gguf->n_values};
	const size_t begin = 24; /* after magic, version and two counts */
	text_append(&build.values, (const char *)gguf->map.data + begin, (size_t)(end - gguf->map.data) - begin);
	uint64_t offset = 0;
	for (size_t i = 0; i < gguf->n_tensors; i++) {
		const struct gguf_tensor *tensor = &gguf->tensors[i];
		char name[256];
		uint64_t dims[GGUF_DIMS_MAX];
		snprintf(name, sizeof name, "%.*s", (int)tensor->name.len, tensor->name.data);
		for (int d = 0; d < tensor->n_dims; d++)
			dims[d] = (uint64_t)tensor->dims[d];
		gguf_build_tensor_entry(
			&build, name, changes(tensor) ? dtype : tensor->dtype, (uint32_t)tensor->n_dims, dims, offset);
		offset += bytes_in_copy(gguf, tensor, dtype);
	}
	struct text head = {0};
	struct err err = {0};
	gguf_build_finish(&build, &head);
	if (file_write_all(fd, head.data, head.len, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	text_release(&head);
	gguf_build_release(&build);
}

static void write_tensor(int fd, const struct gguf_tensor *tensor, enum dtype dtype, uint64_t bytes, struct sha256 *sha)
{
	int64_t count = elements_of(tensor);
	uint8_t *made = NULL;
	if (changes(tensor)) {
		float *values = mem_calloc((size_t)count, sizeof *values);
		made = mem_calloc(bytes, 1);
		dtype_dequantize(tensor->dtype, tensor->data, values, count);
		quantise(dtype, values, count, made);
		mem_free(values);
	}
	const uint8_t *data = made ? made : tensor->data;
	struct err err = {0};
	if (file_write_all(fd, data, bytes, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	sha256_update(sha, data, bytes < REQUANTISE_DIGEST_BYTES ? bytes : REQUANTISE_DIGEST_BYTES);
	mem_free(made);
}

struct requantised requantise(const char *source, enum dtype dtype)
{
	struct requantised file = {.fd = memfd_create("requantised", MFD_CLOEXEC)};
	struct gguf gguf = {0};
	struct err err = {0};
	assert_true(file.fd >= 0);
	snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
	if (gguf_open(source, &gguf, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	write_head(file.fd, &gguf, dtype);
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	for (size_t i = 0; i < gguf.n_tensors; i++)
		write_tensor(file.fd, &gguf.tensors[i], dtype, bytes_in_copy(&gguf, &gguf.tensors[i], dtype), &sha);
	sha256_finish(&sha, digest);
	sha256_hex(digest, file.digest);
	gguf_close(&gguf);
	return file;
}

void requantised_release(struct requantised *file)
{
	close(file->fd);
	file->fd = -1;
}
