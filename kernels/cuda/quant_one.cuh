/* Weights of one stage against one row of activations: from shared memory to fp32 sums, by tensor core products of bytes.
 *
 * The row is kept as whole numbers of 16 bits, each as two signed bytes: q = 256 * high + low. The bytes and nibbles of the stored
 * forms are the other factor as they are. One row fills two of the eight columns of such a product, its high and its low bytes, so
 * four blocks of 32 columns (with Q6_K four of 16) take turns: each is multiplied with a factor that holds its bytes in columns of
 * its own and zeros in the others, and all are added up in one result, of which lane t = lane % 4 gets block t. So every lane
 * applies the scale of one block to a row g and a row g + 8, g = lane / 4. Offsets of the stored values times the sum of the block
 * are what the low column begins with. 8-bit floats are multiplied in fp16, by one column; the others are zeros, since the tensor
 * core takes power for what is multiplied in vain (QUANT_NOTES.md).
 *
 * Panel, for columns rounded up to 256:
 *   words  [block of 32 columns][high, low][4 t][depth]: bytes of columns 16 * depth + 4t to + 3
 *   sums   [block][depth] sum of 16 whole numbers
 *   or for F8 halves [block][4 t][8]: columns 4t to 4t + 3, then 16 + 4t to 16 + 4t + 3 */
#ifndef KERNELS_CUDA_QUANT_ONE_CUH
#define KERNELS_CUDA_QUANT_ONE_CUH

#include "kernels/cuda/quant_decode.cuh"

#define QUANT_ONE_LARGEST 32512 /* of the whole numbers: high bytes up to 127 */

struct quant_one_panel {
	uint32_t *words;
	int32_t *sums;

	static __host__ __device__ constexpr size_t bytes(int64_t cols)
	{
		const size_t padded = (size_t)(cols + QUANT_SUPER_COLS - 1) / QUANT_SUPER_COLS * QUANT_SUPER_COLS;
		return padded * 2 + padded / 16 * 4;
	}

	__device__ quant_one_panel(void *memory, int64_t cols)
	{
		const size_t padded = (size_t)(cols + QUANT_SUPER_COLS - 1) / QUANT_SUPER_COLS * QUANT_SUPER_COLS;
		words = (uint32_t *)memory;
		sums = (int32_t *)(words + padded / 2);
	}

	/* A lane's eight neighbouring columns times scale, at most QUANT_ONE_LARGEST, beginning at a multiple of 8. The whole warp
	 * calls; nothing is stored for a lane that is not inside. Adding 1.5 * 2^23 rounds to a whole number, whose low 16 bits
	 * then are those of the sum. */
	__device__ __forceinline__ void put_bytes(int column, bool inside, const float (&v)[8], float scale) const
	{
		uint32_t q[8], sum = 0u - 8u * 0x4b400000u;
#pragma unroll
		for (int i = 0; i < 8; i++) {
			q[i] = __float_as_uint(fmaf(v[i], scale, 12582912.0f));
			sum += q[i];
		}
		sum += __shfl_xor_sync(0xffffffffu, sum, 1);
		if (!inside)
			return;
		const int depth = column % 32 / 16, t = column % 16 / 4;
		uint32_t *to = words + column / 32 * 16 + 2 * t + depth;
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const uint32_t *four = q + 4 * i;
			to[2 * i] = __byte_perm(__byte_perm(four[0] + 128, four[1] + 128, 0x0051),
				__byte_perm(four[2] + 128, four[3] + 128, 0x0051), 0x5410);
			to[8 + 2 * i] =
				__byte_perm(__byte_perm(four[0], four[1], 0x0040), __byte_perm(four[2], four[3], 0x0040), 0x5410);
		}
		if (column % 16 == 0)
			sums[column / 16] = (int32_t)sum;
	}

	/* The same for F8, any values of fp16. */
	__device__ __forceinline__ void put_halves(int column, bool inside, const float (&v)[8], float scale) const
	{
		if (!inside)
			return;
		const int depth = column % 32 / 16, t = column % 16 / 4;
		uint32_t *to = words + column / 32 * 16 + 4 * t + 2 * depth;
		*(uint2 *)to = make_uint2(pack_f16(v[0] * scale, v[1] * scale), pack_f16(v[2] * scale, v[3] * scale));
		*(uint2 *)(to + 4) = make_uint2(pack_f16(v[4] * scale, v[5] * scale), pack_f16(v[6] * scale, v[7] * scale));
	}
};

/* c += a * b for 16 rows by 32 columns of unsigned bytes and 8 columns of signed ones; a register holds four neighbours along the
 * depth, and otherwise fragments are as in mma.cuh. Source: PTX ISA, "Matrix Fragments for mma.m16n8k32". */
static __device__ __forceinline__ void mma_bytes(
	int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
	asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
		     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
		     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Where a lane stands. */
struct quant_one_lane {
	int lane, g, t;
	const uint32_t *words; /* the panel's */
	const int32_t *sums;

	__device__ quant_one_lane(const struct quant_one_panel &panel)
	    : lane(threadIdx.x % CUDA_WARP), g(lane / 4), t(lane % 4), words(panel.words), sums(panel.sums)
	{
	}

	/* Bytes of block g / 2 of the four from `block` on, high ones for even g. */
	__device__ __forceinline__ uint2 bytes(int block) const
	{
		return *(const uint2 *)(words + block * 16 + lane * 2);
	}

	/* The same in the order of nibbles: columns 4t, 16 + 4t, 4t + 1, 17 + 4t, then 4t + 2, 18 + 4t, 4t + 3, 19 + 4t. */
	__device__ __forceinline__ uint2 nibble_bytes(int block) const
	{
		const uint2 b = bytes(block);
		return make_uint2(__byte_perm(b.x, b.y, 0x5140), __byte_perm(b.x, b.y, 0x7362));
	}

	/* Sum of a block. */
	__device__ __forceinline__ int sum(int block) const
	{
		const int2 two = *(const int2 *)(sums + 2 * block);
		return two.x + two.y;
	}
};

/* Adds a block: words of rows g and g + 8. */
static __device__ __forceinline__ void add_nibbles(int (&c)[4], uint32_t low, uint32_t high, uint2 own)
{
	mma_bytes(c, low & 0x0f0f0f0fu, high & 0x0f0f0f0fu, low >> 4 & 0x0f0f0f0fu, high >> 4 & 0x0f0f0f0fu, own.x, own.y);
}

/* What the high and the low column make together, for row g and row g + 8. */
static __device__ __forceinline__ float2 both_parts(const int (&c)[4])
{
	return make_float2((float)(c[0] * 256 + c[1]), (float)(c[2] * 256 + c[3]));
}

/* What a lane has of the row for a stage's columns, of which `column` is the first: loaded for each stage, or but once where a warp
 * has so few columns that its lanes keep theirs. */
template <int FORM> struct one_row;

/* What a lane takes of a stage. Weights can be in registers before they are worked on, so that the slot is filled again meanwhile.
 * multiply() gets how many whole units are in it; acc: of rows g and g + 8. */
template <int FORM> struct one_stage;

/* The 512 bytes of each unit, or of each 512 columns' nibbles, that all lanes share. */
template <int N>
static __device__ __forceinline__ void load_words(uint4 (&out)[N], const uint8_t *stage, int step, const struct quant_one_lane &l)
{
#pragma unroll
	for (int i = 0; i < N; i++)
		out[i] = *(const uint4 *)(stage + i * step + l.lane * 16);
}

/* Bytes of four blocks for a product each, of whose columns a lane has those of one block alone. */
static __device__ __forceinline__ void keep_own(uint2 (&out)[4], uint2 bytes, const struct quant_one_lane &l)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		out[i] = l.g / 2 == i ? bytes : make_uint2(0, 0);
}

template <> struct one_row<QUANT_Q8_0> {
	uint2 own[4];
	int offset;

	__device__ __forceinline__ void load(int column, const struct quant_one_lane &l)
	{
		keep_own(own, l.bytes(column / 32), l);
		offset = -128 * l.sum(column / 32 + l.t);
	}
};

template <> struct one_stage<QUANT_Q8_0> {
	uint4 words[4];
	uint32_t factors;

	__device__ __forceinline__ void load(const uint8_t *stage, const struct quant_one_lane &l)
	{
		load_words(words, stage, quant_unit_bytes(QUANT_Q8_0), l);
		factors = *(const uint32_t *)(stage + l.t * quant_unit_bytes(QUANT_Q8_0) + 512 + l.g * 4);
	}
	__device__ __forceinline__ void multiply(
		const struct one_row<QUANT_Q8_0> &row, int n_units, const struct quant_one_lane &l, float (&acc)[2]) const
	{
		int c[4] = {0, row.offset, 0, row.offset};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			if (i >= n_units)
				break;
			mma_bytes(c, words[i].x, words[i].z, words[i].y, words[i].w, row.own[i].x, row.own[i].y);
		}
		const float2 d = to_floats(l.t < n_units ? factors : 0), values = both_parts(c);
		acc[0] = fmaf(d.x, values.x, acc[0]);
		acc[1] = fmaf(d.y, values.y, acc[1]);
	}
};

struct four_bit_row {
	uint2 own[4];
	int sum;

	__device__ __forceinline__ void load(int column, const struct quant_one_lane &l)
	{
		keep_own(own, l.nibble_bytes(column / 32), l);
		sum = l.sum(column / 32 + l.t);
	}
};

template <> struct one_row<QUANT_Q4_0> : four_bit_row {
};

template <> struct one_row<QUANT_Q4_1> : four_bit_row {
};

template <int FORM> struct four_bit_stage {
	uint4 words[2];
	uint32_t factors, mins; /* mins: Q4_1 */

	__device__ __forceinline__ void load(const uint8_t *stage, const struct quant_one_lane &l)
	{
		const uint8_t *at = stage + l.t / 2 * quant_unit_bytes(FORM) + 512 + l.g * 8 + l.t % 2 * 4;
		load_words(words, stage, quant_unit_bytes(FORM), l);
		factors = *(const uint32_t *)at;
		mins = FORM == QUANT_Q4_1 ? *(const uint32_t *)(at + 64) : 0;
	}
	__device__ __forceinline__ void multiply(
		const struct one_row<FORM> &row, int n_units, const struct quant_one_lane &l, float (&acc)[2]) const
	{
		const int offset = FORM == QUANT_Q4_0 ? -8 * row.sum : 0;
		int c[4] = {0, offset, 0, offset};
#pragma unroll
		for (int i = 0; i < 2; i++) {
			if (i >= n_units)
				break;
			add_nibbles(c, words[i].x, words[i].y, row.own[2 * i]);
			add_nibbles(c, words[i].z, words[i].w, row.own[2 * i + 1]);
		}
		const bool inside = l.t / 2 < n_units;
		const float2 d = to_floats(inside ? factors : 0), values = both_parts(c);
		acc[0] = fmaf(d.x, values.x, acc[0]);
		acc[1] = fmaf(d.y, values.y, acc[1]);
		if (FORM == QUANT_Q4_1) {
			const float2 min = to_floats(inside ? mins : 0);
			acc[0] = fmaf(min.x, (float)row.sum, acc[0]);
			acc[1] = fmaf(min.y, (float)row.sum, acc[1]);
		}
	}
};

template <> struct one_stage<QUANT_Q4_0> : four_bit_stage<QUANT_Q4_0> {
};

template <> struct one_stage<QUANT_Q4_1> : four_bit_stage<QUANT_Q4_1> {
};

template <> struct one_row<QUANT_Q4_K> {
	uint2 first[4], second[4];
	float sum, other;

	__device__ __forceinline__ void load(int column, const struct quant_one_lane &l)
	{
		const int block = column / 32;
		keep_own(first, l.nibble_bytes(block), l);
		keep_own(second, l.nibble_bytes(block + 4), l);
		sum = (float)l.sum(block + l.t);
		other = (float)l.sum(block + 4 + l.t);
	}
};

/* A result for sub-blocks 0 to 3 and one for 4 to 7; lane t has the scales of sub-blocks t and t + 4. */
template <> struct one_stage<QUANT_Q4_K> {
	uint4 words[4];
	struct quant_scales_q4_k scales;
	uint2 factors; /* d and dmin of rows g and g + 8 */

	__device__ __forceinline__ void load(const uint8_t *stage, const struct quant_one_lane &l)
	{
		load_words(words, stage, 512, l);
		scales.load(stage, l.lane);
		factors = *(const uint2 *)(stage + 2240 + l.g * 8);
	}
	__device__ __forceinline__ void multiply(
		const struct one_row<QUANT_Q4_K> &row, int, const struct quant_one_lane &l, float (&acc)[2]) const
	{
		int c[4] = {}, e[4] = {};
#pragma unroll
		for (int chunk = 0; chunk < 4; chunk++) {
			add_nibbles(c, words[chunk].x, words[chunk].y, row.first[chunk]);
			add_nibbles(e, words[chunk].z, words[chunk].w, row.second[chunk]);
		}
		const struct quant_scales_q4_k::halves halves = scales.unpack();
		const float2 low = to_floats(factors.x), high = to_floats(factors.y);
		const float2 v = both_parts(c), w = both_parts(e);
		const float2 scale_low = to_floats(halves.scales_low), scale_high = to_floats(halves.scales_high);
		const float2 min_low = to_floats(halves.mins_low), min_high = to_floats(halves.mins_high);
		acc[0] = fmaf(low.x, fmaf(scale_low.y, w.x, scale_low.x * v.x), acc[0]);
		acc[0] = fmaf(-low.y, fmaf(min_low.y, row.other, min_low.x * row.sum), acc[0]);
		acc[1] = fmaf(high.x, fmaf(scale_high.y, w.y, scale_high.x * v.y), acc[1]);
		acc[1] = fmaf(-high.y, fmaf(min_high.y, row.other, min_high.x * row.sum), acc[1]);
	}
};

/* Four nibbles and the two bits above each: of pairs 0 and 2, or with SECOND of pairs 1 and 3, of a row whose bits were brought to
 * where from_six_bits has those of row g. */
template <bool SECOND> static __device__ __forceinline__ uint32_t six_bits(uint32_t nibbles, uint32_t bits)
{
	const uint32_t even = SECOND ? bits >> 4 : bits, odd = SECOND ? bits << 2 : bits << 6;
	const uint32_t low = SECOND ? nibbles >> 4 & 0x0f0f0f0fu : nibbles & 0x0f0f0f0fu;
	return masked_or<0x30003000u>(odd, masked_or<0x00300030u>(even, low));
}

template <> struct one_row<QUANT_Q6_K> {
	int block;

	__device__ __forceinline__ void load(int column, const struct quant_one_lane &)
	{
		block = column / 32;
	}
};

/* A result for each chunk of two sub-blocks, in whose four pairs of columns stand the halves of 16 columns, which have scales of
 * their own. */
template <> struct one_stage<QUANT_Q6_K> {
	uint4 words[4];
	uint2 bits[4];
	int scales[8];
	uint32_t factors;

	__device__ __forceinline__ void load(const uint8_t *stage, const struct quant_one_lane &l)
	{
		const uint8_t *scale_bytes = stage + 3072 + l.g * 32 + l.t;
		load_words(words, stage, 512, l);
#pragma unroll
		for (int chunk = 0; chunk < 4; chunk++) {
			bits[chunk] = *(const uint2 *)(stage + 2048 + chunk * 256 + l.lane * 8);
			scales[2 * chunk] = scale_bytes[chunk * 8];
			scales[2 * chunk + 1] = scale_bytes[chunk * 8 + 4];
		}
		factors = *(const uint32_t *)(stage + 3328 + l.g * 4);
	}
	__device__ __forceinline__ void multiply(
		const struct one_row<QUANT_Q6_K> &row, int, const struct quant_one_lane &l, float (&acc)[2]) const
	{
		const int depth = l.g / 2 % 2;
		const uint32_t order = depth ? 0x1404 : 0x4140, next_order = depth ? 0x3424 : 0x4342;
		const uint32_t *x = l.words + (row.block + l.g / 4) * 16 + l.g % 2 * 8 + 2 * l.t + depth;
		float low = 0.0f, high = 0.0f;
#pragma unroll
		for (int chunk = 0; chunk < 4; chunk++) {
			const uint32_t word = x[chunk * 32];
			const uint32_t b0 = __byte_perm(word, 0, order), b1 = __byte_perm(word, 0, next_order);
			const int offset = -32 * l.sums[2 * (row.block + 2 * chunk) + l.t];
			int c[4] = {0, offset, 0, offset};
#pragma unroll
			for (int b = 0; b < 2; b++) {
				const uint32_t q = b ? words[chunk].z : words[chunk].x, r = b ? words[chunk].w : words[chunk].y;
				const uint32_t of_q = b ? bits[chunk].y : bits[chunk].x, of_r = __funnelshift_r(of_q, of_q, 8);
				const bool own = l.g / 4 == b;
				mma_bytes(c, six_bits<false>(q, of_q), six_bits<false>(r, of_r), six_bits<true>(q, of_q),
					six_bits<true>(r, of_r), own ? b0 : 0, own ? b1 : 0);
			}
			const float2 values = both_parts(c);
			low = fmaf((float)(scales[2 * chunk] - 128), values.x, low);
			high = fmaf((float)(scales[2 * chunk + 1] - 128), values.y, high);
		}
		const float2 d = to_floats(factors);
		acc[0] = fmaf(d.x, low, acc[0]);
		acc[1] = fmaf(d.y, high, acc[1]);
	}
};

template <> struct one_row<QUANT_F8> {
	uint4 words[4]; /* of the first column */

	__device__ __forceinline__ void load(int column, const struct quant_one_lane &l)
	{
#pragma unroll
		for (int b = 0; b < 4; b++)
			words[b] = l.g == 0 ? *(const uint4 *)(l.words + column / 2 + 4 * l.t + b * 16) : make_uint4(0, 0, 0, 0);
	}
};

/* The first of four lanes gets the sums, the others zeros. */
template <> struct one_stage<QUANT_F8> {
	uint4 words[4];
	float factor;

	__device__ __forceinline__ void load(const uint8_t *stage, const struct quant_one_lane &l)
	{
		load_words(words, stage, 512, l);
		factor = *(const float *)(stage + quant_unit_bytes(QUANT_F8)); /* copied there with the unit */
	}
	__device__ __forceinline__ void multiply(
		const struct one_row<QUANT_F8> &row, int, const struct quant_one_lane &, float (&acc)[2]) const
	{
		float c[2][4] = {};
#pragma unroll
		for (int b = 0; b < 4; b++) {
			struct quant_fragments f;
			f.from_f8(words[b]);
			mma_f16(c[0], f.a[0], row.words[b].x, row.words[b].y);
			mma_f16(c[1], f.a[1], row.words[b].z, row.words[b].w);
		}
		acc[0] = fmaf(factor, c[0][0] + c[1][0], acc[0]);
		acc[1] = fmaf(factor, c[0][2] + c[1][2], acc[1]);
	}
};

#endif
