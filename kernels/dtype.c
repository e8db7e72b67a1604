/* Sizes, names and scalar dequantisation of the stored tensor types. The formulas are the published reference of the
 * GGUF quantisation formats (gguf-py, gguf/quants.py), evaluated in fp32 in the same order, so results are bit-exact. */
#include "kernels/dtype.h"

#include <string.h>

#define K_BLOCK 256 /* elements of one super-block of the K-quants: format */

struct dtype_info {
	const char *name;
	int64_t block_elements;
	int64_t block_bytes;
};

static const struct dtype_info *info_of(enum dtype dtype)
{
	static const struct dtype_info f32 = {"F32", 1, 4}, f16 = {"F16", 1, 2}, bf16 = {"BF16", 1, 2};
	static const struct dtype_info q4_0 = {"Q4_0", 32, 18}, q4_1 = {"Q4_1", 32, 20}, q8_0 = {"Q8_0", 32, 34};
	static const struct dtype_info q4_k = {"Q4_K", K_BLOCK, 144}, q6_k = {"Q6_K", K_BLOCK, 210};
	static const struct dtype_info f8_e4m3 = {"F8_E4M3", 1, 1};

	switch (dtype) {
	case DTYPE_F32:
		return &f32;
	case DTYPE_F16:
		return &f16;
	case DTYPE_BF16:
		return &bf16;
	case DTYPE_Q4_0:
		return &q4_0;
	case DTYPE_Q4_1:
		return &q4_1;
	case DTYPE_Q8_0:
		return &q8_0;
	case DTYPE_Q4_K:
		return &q4_k;
	case DTYPE_Q6_K:
		return &q6_k;
	case DTYPE_F8_E4M3:
		return &f8_e4m3;
	}
	return NULL;
}

const char *dtype_name(enum dtype dtype)
{
	const struct dtype_info *info = info_of(dtype);

	return info ? info->name : NULL;
}

int64_t dtype_block_elements(enum dtype dtype)
{
	const struct dtype_info *info = info_of(dtype);

	return info ? info->block_elements : 0;
}

int64_t dtype_block_bytes(enum dtype dtype)
{
	const struct dtype_info *info = info_of(dtype);

	return info ? info->block_bytes : 0;
}

bool dtype_is_retired(uint32_t id, const char **why)
{
	switch (id) {
	case 4:
		*why = "Q4_2 was removed from the format in 2023; requantise the model";
		return true;
	case 5:
		*why = "Q4_3 was removed from the format in 2023; requantise the model";
		return true;
	case 31:
	case 32:
	case 33:
		*why = "Q4_0_4_4, Q4_0_4_8 and Q4_0_8_8 were removed from the format; requantise the model to Q4_0";
		return true;
	case 36:
	case 37:
	case 38:
		*why = "IQ4_NL_4_4, IQ4_NL_4_8 and IQ4_NL_8_8 were removed from the format; requantise the model to IQ4_NL";
		return true;
	default:
		return false;
	}
}

bool dtype_bytes(enum dtype dtype, int64_t n_elements, uint64_t *bytes)
{
	const struct dtype_info *info = info_of(dtype);
	uint64_t result;

	if (!info || n_elements < 0 || n_elements % info->block_elements != 0)
		return false;
	if (__builtin_mul_overflow((uint64_t)(n_elements / info->block_elements), (uint64_t)info->block_bytes, &result))
		return false;
	*bytes = result;
	return true;
}

static float float_of_bits(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static uint32_t bits_of_float(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

float dtype_f16_to_f32(uint16_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
	uint32_t exponent = (bits >> 10) & 0x1f;
	uint32_t mantissa = bits & 0x3ff;

	if (exponent == 0x1f) /* infinity or NaN; the quiet bit is set as the F16C instruction does */
		return float_of_bits(sign | 0x7f800000 | (mantissa << 13) | (mantissa ? 0x00400000 : 0));
	if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 is exact in fp32 */
		float magnitude = (float)mantissa * 0x1p-24f;

		return float_of_bits(sign | bits_of_float(magnitude));
	}
	return float_of_bits(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t dtype_f32_to_f16(float value)
{
	uint32_t bits = bits_of_float(value);
	uint32_t sign = (bits >> 16) & 0x8000;
	uint32_t magnitude = bits & 0x7fffffff;

	if (magnitude > 0x7f800000) /* NaN: keep the top of the payload, set the quiet bit */
		return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
	if (magnitude >= 0x477ff000) /* 65520 and above round to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (magnitude < 0x38800000) { /* below 2^-14: subnormal; adding 0.5 rounds to units of 2^-24 in the FPU */
		float rounded = float_of_bits(magnitude) + 0.5f;

		return (uint16_t)(sign | (bits_of_float(rounded) - 0x3f000000));
	}
	magnitude += 0xfff + ((magnitude >> 13) & 1); /* nearest, ties to even */
	return (uint16_t)(sign | ((magnitude - 0x38000000) >> 13));
}

float dtype_bf16_to_f32(uint16_t bits)
{
	return float_of_bits((uint32_t)bits << 16);
}

float dtype_f8_e4m3_to_f32(uint8_t bits)
{
	uint32_t sign = (uint32_t)(bits & 0x80) << 24, exponent = (bits >> 3) & 15, mantissa = bits & 7;

	if ((bits & 0x7f) == 0x7f)
		return float_of_bits(sign | 0x7fc00000);
	if (exponent == 0) /* zero or subnormal: units of 2^-9 */
		return float_of_bits(sign | bits_of_float((float)mantissa * 0x1p-9f));
	return float_of_bits(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

static uint16_t load_u16(const uint8_t *bytes)
{
	return (uint16_t)(bytes[0] | (bytes[1] << 8));
}

static float load_f16(const uint8_t *bytes)
{
	return dtype_f16_to_f32(load_u16(bytes));
}

/* Block: f16 d; 16 bytes, low nibbles are elements 0..15, high nibbles 16..31. value = d * (q - 8). */
static void dequantize_q4_0(const uint8_t *block, float *dst)
{
	float d = load_f16(block);

	for (int i = 0; i < 16; i++) {
		dst[i] = d * (float)((block[2 + i] & 15) - 8);
		dst[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
	}
}

/* Block: f16 d, f16 m; nibbles as in Q4_0. value = d * q + m. */
static void dequantize_q4_1(const uint8_t *block, float *dst)
{
	float d = load_f16(block);
	float m = load_f16(block + 2);

	for (int i = 0; i < 16; i++) {
		float low = d * (float)(block[4 + i] & 15);
		float high = d * (float)(block[4 + i] >> 4);

		dst[i] = low + m;
		dst[i + 16] = high + m;
	}
}

/* Block: f16 d; 32 signed bytes. value = q * d. */
static void dequantize_q8_0(const uint8_t *block, float *dst)
{
	float d = load_f16(block);

	for (int i = 0; i < 32; i++)
		dst[i] = (float)(int8_t)block[2 + i] * d;
}

void dtype_q4_k_scale_min(const uint8_t *block, int index, uint8_t *scale, uint8_t *min)
{
	const uint8_t *packed = block + 4; /* 12 bytes */

	if (index < 4) {
		*scale = packed[index] & 63;
		*min = packed[index + 4] & 63;
	} else {
		*scale = (uint8_t)((packed[index + 4] & 15) | ((packed[index - 4] >> 6) << 4));
		*min = (uint8_t)((packed[index + 4] >> 4) | ((packed[index] >> 6) << 4));
	}
}

/* Block: f16 d, f16 dmin, 12 bytes of 6-bit scales and minimums, 128 bytes. Each 32 bytes hold sub-block 2j in the low
 * and 2j + 1 in the high nibbles. value = (d * scale) * q - (dmin * min). */
static void dequantize_q4_k(const uint8_t *block, float *dst)
{
	for (int sub = 0; sub < 8; sub++) {
		const uint8_t *quants = block + 16 + 32 * (sub / 2);
		int shift = 4 * (sub % 2);
		uint8_t scale_bits, min_bits;

		dtype_q4_k_scale_min(block, sub, &scale_bits, &min_bits);
		float scale = load_f16(block) * (float)scale_bits, min = load_f16(block + 2) * (float)min_bits;
		for (int i = 0; i < 32; i++) {
			float product = scale * (float)((quants[i] >> shift) & 15);

			dst[32 * sub + i] = product - min;
		}
	}
}

int dtype_q6_k_quant(const uint8_t *block, int element)
{
	int half = element / 128, group = element % 128 / 32, lane = element % 32;
	const uint8_t *low = block + 64 * half + 32 * (group % 2);
	const uint8_t *high = block + 128 + 32 * half;
	int low_bits = (low[lane] >> (4 * (group / 2))) & 15;
	int high_bits = (high[lane] >> (2 * group)) & 3;

	return (low_bits | (high_bits << 4)) - 32;
}

/* Block: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one per 16 elements), f16 d.
 * value = (d * scale) * q. */
static void dequantize_q6_k(const uint8_t *block, float *dst)
{
	for (int i = 0; i < K_BLOCK; i++) {
		float scale = load_f16(block + 208) * (float)(int8_t)block[192 + i / 16];

		dst[i] = scale * (float)dtype_q6_k_quant(block, i);
	}
}

void dtype_dequantize(enum dtype dtype, const void *src, float *dst, int64_t n_elements)
{
	int64_t block_elements = dtype_block_elements(dtype), block_bytes = dtype_block_bytes(dtype);
	const uint8_t *bytes = src;

	for (int64_t i = 0; i < n_elements; i += block_elements, bytes += block_bytes) {
		switch (dtype) {
		case DTYPE_F32:
			memcpy(dst + i, bytes, sizeof(float));
			break;
		case DTYPE_F16:
			dst[i] = load_f16(bytes);
			break;
		case DTYPE_BF16:
			dst[i] = dtype_bf16_to_f32(load_u16(bytes));
			break;
		case DTYPE_Q4_0:
			dequantize_q4_0(bytes, dst + i);
			break;
		case DTYPE_Q4_1:
			dequantize_q4_1(bytes, dst + i);
			break;
		case DTYPE_Q8_0:
			dequantize_q8_0(bytes, dst + i);
			break;
		case DTYPE_Q4_K:
			dequantize_q4_k(bytes, dst + i);
			break;
		case DTYPE_Q6_K:
			dequantize_q6_k(bytes, dst + i);
			break;
		case DTYPE_F8_E4M3:
			dst[i] = dtype_f8_e4m3_to_f32(*bytes);
			break;
		}
	}
}
