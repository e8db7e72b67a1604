/* Element and block types of stored tensors. Numbers are GGUF's type ids. Valid C17 and C++17. */
#ifndef KERNELS_DTYPE_H
#define KERNELS_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dtype {
	DTYPE_F32 = 0,
	DTYPE_F16 = 1,
	DTYPE_Q4_0 = 2,
	DTYPE_Q4_1 = 3,
	DTYPE_Q8_0 = 8,
	DTYPE_Q4_K = 12,
	DTYPE_Q6_K = 14,
	DTYPE_BF16 = 30,
	/* Not a GGUF type, so its number lies where GGUF will have none: OCP 8-bit float, 4 exponent and 3 fraction bits, as
	 * safetensors hold it. Bare bytes: the scales that belong to them lie in struct kn_slice. */
	DTYPE_F8_E4M3 = 1000
};

/* Name such as "Q4_1"; for an id this program does not know, NULL. */
const char *dtype_name(enum dtype dtype);

/* Elements in one block (1 for plain types) and its bytes; 0 when the type is not supported. */
int64_t dtype_block_elements(enum dtype dtype);
int64_t dtype_block_bytes(enum dtype dtype);

/* True, with the reason in *why, for ids that files may hold but that were withdrawn from the format. */
bool dtype_is_retired(uint32_t id, const char **why);

/* Bytes of n_elements contiguous elements; n_elements must be a multiple of the block. False on overflow or misfit. */
bool dtype_bytes(enum dtype dtype, int64_t n_elements, uint64_t *bytes);

/* Scalar reference: n_elements from stored form to fp32, bit-exact by the format's published formulas.
 * src need not be aligned. n_elements is a multiple of the block. F8_E4M3: the bare bytes, no scale. Cost: one pass. */
void dtype_dequantize(enum dtype dtype, const void *src, float *dst, int64_t n_elements);

/* Parts of the K-quant blocks, for code that repacks weights without losing a bit. Q4_K: 6-bit scale and minimum of the 32
 * elements of sub-block index (0..7). Q6_K: quant of an element, -32..31. */
void dtype_q4_k_scale_min(const uint8_t *block, int index, uint8_t *scale, uint8_t *min);
int dtype_q6_k_quant(const uint8_t *block, int element);

float dtype_f16_to_f32(uint16_t bits);
uint16_t dtype_f32_to_f16(float value); /* round to nearest even */
float dtype_bf16_to_f32(uint16_t bits);
float dtype_f8_e4m3_to_f32(uint8_t bits); /* bias 7, no infinities; 0x7f and 0xff are NaN */

#ifdef __cplusplus
}
#endif
#endif
