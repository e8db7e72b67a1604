/* Seeded random stored tensors and activations. */
#include "tests/support/random_tensor.h"

#include <string.h>

#include "base/mem.h"
#include "base/random.h"

static void put_f16(uint8_t *at, double value)
{
	uint16_t bits = dtype_f32_to_f16((float)value);

	memcpy(at, &bits, sizeof bits);
}

/* Offsets of the f16 scales in a stored block, -1 when absent, and their usual size. */
struct scales {
	int scale, min;
	double size;
};

static struct scales scales_of(enum dtype dtype)
{
	switch (dtype) {
	case DTYPE_Q4_0:
		return (struct scales){0, -1, 0.2};
	case DTYPE_Q4_1:
		return (struct scales){0, 2, 0.2};
	case DTYPE_Q8_0:
		return (struct scales){0, -1, 0.01};
	case DTYPE_Q4_K:
		return (struct scales){0, 2, 0.005};
	case DTYPE_Q6_K:
		return (struct scales){208, -1, 0.0005};
	default:
		return (struct scales){-1, -1, 0};
	}
}

/* Every 8-bit float but NaN. */
static void fill_f8(int64_t n, uint64_t seed, uint8_t *out)
{
	for (int64_t i = 0; i < n; i++) {
		uint64_t byte = random_below(seed, 2, (uint64_t)i, 254);

		out[i] = (uint8_t)(byte < 127 ? byte : byte + 1);
	}
}

static void fill_plain(enum dtype dtype, int64_t n, uint64_t seed, uint8_t *out)
{
	for (int64_t i = 0; i < n; i++) {
		float value = (float)random_normal(seed, 1, (uint64_t)i);
		uint32_t bits;

		memcpy(&bits, &value, sizeof bits);
		if (dtype == DTYPE_F32)
			memcpy(out + 4 * i, &bits, 4);
		else if (dtype == DTYPE_F16)
			put_f16(out + 2 * i, (double)value);
		else
			memcpy(out + 2 * i, (uint8_t *)&bits + 2, 2);
	}
}

void *random_tensor(enum dtype dtype, int64_t n_elements, uint64_t seed)
{
	int64_t block_bytes = dtype_block_bytes(dtype), n_blocks = n_elements / dtype_block_elements(dtype);
	struct scales scales = scales_of(dtype);
	uint8_t *bytes = mem_calloc((size_t)(n_blocks * block_bytes), 1);

	if (dtype == DTYPE_F8_E4M3) {
		fill_f8(n_elements, seed, bytes);
		return bytes;
	}
	if (scales.scale < 0) {
		fill_plain(dtype, n_elements, seed, bytes);
		return bytes;
	}
	for (int64_t i = 0; i < n_blocks * block_bytes; i++)
		bytes[i] = (uint8_t)random_below(seed, 2, (uint64_t)i, 256);
	for (int64_t i = 0; i < n_blocks; i++) {
		uint8_t *block = bytes + i * block_bytes;

		put_f16(block + scales.scale, scales.size * (0.5 + random_uniform(seed, 3, (uint64_t)i)));
		if (scales.min >= 0)
			put_f16(block + scales.min,
				scales.size * (random_uniform(seed, 4, (uint64_t)i) - (dtype == DTYPE_Q4_1 ? 8.0 : 0.0)));
	}
	return bytes;
}

void random_activations(float *out, int64_t n, uint64_t seed)
{
	for (int64_t i = 0; i < n; i++)
		out[i] = (float)random_normal(seed, 5, (uint64_t)i) * (i % 97 == 0 ? 30.0f : 1.0f);
}
