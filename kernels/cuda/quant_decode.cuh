/* Weights of one unit against activations: from a stage in shared memory to fp32 sums, by tensor core products of 16 rows.
 *
 * Whole numbers up to 2048 are exact in fp16, so nibbles and bytes become fp16 by setting the exponent around them: 0x6400 makes
 * 1024 + v of the bits 0 to 9, 0x5400 makes 64 + v of a v at bits 4 to 9. Nibbles keep that offset through the product, whose sums
 * begin with minus what it adds (the panel holds it); longer values lose it by an exact subtraction. Scales are applied to the fp32
 * sums of the columns that share them. */
#ifndef KERNELS_CUDA_QUANT_DECODE_CUH
#define KERNELS_CUDA_QUANT_DECODE_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/quant_panel.cuh"

/* (a & MASK) | b in one instruction, which the compiler would not choose for two constants. */
template <uint32_t MASK> static __device__ __forceinline__ uint32_t masked_or(uint32_t a, uint32_t b)
{
	uint32_t out;
	asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "n"(MASK), "r"(b));
	return out;
}

static __device__ __forceinline__ uint32_t minus(uint32_t pair, uint32_t offset)
{
	const __half2 difference = __hsub2(*(const __half2 *)&pair, *(const __half2 *)&offset);
	return *(const uint32_t *)&difference;
}

static __device__ __forceinline__ float2 to_floats(uint32_t pair)
{
	return __half22float2(*(const __half2 *)&pair);
}

#define F16_1024 0x64006400u /* pairs of 1024, 64, 1024 + 32, 64 + 32, 1024 + 128 */
#define F16_64 0x54005400u
#define F16_1056 0x64206420u
#define F16_96 0x56005600u
#define F16_1152 0x64806480u

/* Fragment of 16 rows by 16 columns for each depth, from row g and row g + 8 of a block of 32 columns. */
struct quant_fragments {
	uint32_t a[2][4];

	/* Pairs 0 and 2 get 1024 more, pairs 1 and 3 64. */
	__device__ __forceinline__ void from_nibbles(uint32_t low, uint32_t high)
	{
		const uint32_t words[2] = {low, high};
#pragma unroll
		for (int row = 0; row < 2; row++) {
			const uint32_t w = words[row], upper = w >> 8;
			a[0][row] = masked_or<0x000f000fu>(w, F16_1024);
			a[0][2 + row] = masked_or<0x00f000f0u>(w, F16_64);
			a[1][row] = masked_or<0x000f000fu>(upper, F16_1024);
			a[1][2 + row] = masked_or<0x00f000f0u>(upper, F16_64);
		}
	}

	/* Nibbles with two more bits each, less 32. */
	__device__ __forceinline__ void from_six_bits(uint32_t low, uint32_t high, uint32_t bits)
	{
		const uint32_t words[2] = {low, high};
#pragma unroll
		for (int row = 0; row < 2; row++) {
			const uint32_t w = words[row], upper = w >> 8;
			const uint32_t first = row ? __funnelshift_r(bits, bits, 8) : bits;
			const uint32_t second = row ? __funnelshift_r(bits, bits, 10) : bits >> 2;
			a[0][row] = minus(masked_or<0x00300030u>(first, masked_or<0x000f000fu>(w, F16_1024)), F16_1056);
			a[0][2 + row] = minus(masked_or<0x03000300u>(first, masked_or<0x00f000f0u>(w, F16_64)), F16_96);
			a[1][row] = minus(masked_or<0x00300030u>(second, masked_or<0x000f000fu>(upper, F16_1024)), F16_1056);
			a[1][2 + row] = minus(masked_or<0x03000300u>(second, masked_or<0x00f000f0u>(upper, F16_64)), F16_96);
		}
	}

	/* words: row g depth 0, row g depth 1, row g + 8 depth 0 and 1. Bytes are 128 more than their value. */
	__device__ __forceinline__ void from_bytes(uint4 words)
	{
		const uint32_t w[2][2] = {{words.x, words.y}, {words.z, words.w}};
#pragma unroll
		for (int row = 0; row < 2; row++)
#pragma unroll
			for (int depth = 0; depth < 2; depth++) {
				a[depth][row] = minus(__byte_perm(w[row][depth], F16_1024 >> 8, 0x4140), F16_1152);
				a[depth][2 + row] = minus(__byte_perm(w[row][depth], F16_1024 >> 8, 0x4342), F16_1152);
			}
	}

	/* The same of e4m3 values. Before compute capability 8.9: sign and the other bits moved to where fp16 has them give the
	 * value times 2^-8, subnormal ones too. */
	__device__ __forceinline__ void from_f8(uint4 words)
	{
		const uint32_t w[2][2] = {{words.x, words.y}, {words.z, words.w}};
#pragma unroll
		for (int row = 0; row < 2; row++)
#pragma unroll
			for (int depth = 0; depth < 2; depth++)
				f8_pairs(w[row][depth], &a[depth][row], &a[depth][2 + row]);
	}

	/* The lower two of four values, and the upper two. */
	static __device__ __forceinline__ void f8_pairs(uint32_t bytes, uint32_t *low, uint32_t *high)
	{
#if __CUDA_ARCH__ >= 890
		asm("{\n"
		    ".reg .b16 low, high;\n"
		    "mov.b32 {low, high}, %2;\n"
		    "cvt.rn.f16x2.e4m3x2 %0, low;\n"
		    "cvt.rn.f16x2.e4m3x2 %1, high;\n"
		    "}"
			: "=r"(*low), "=r"(*high)
			: "r"(bytes));
#else
		*low = f8_pair(__byte_perm(bytes, 0, 0x1404));
		*high = f8_pair(__byte_perm(bytes, 0, 0x3424));
#endif
	}

	/* spread: bytes, each above a zero one. */
	static __device__ __forceinline__ uint32_t f8_pair(uint32_t spread)
	{
		const uint32_t factor = 0x5c005c00u, pair = (spread & 0x80008000u) | ((spread >> 1) & 0x3f803f80u); /* 256 */
		const __half2 value = __hmul2(*(const __half2 *)&pair, *(const __half2 *)&factor);
		return *(const uint32_t *)&value;
	}
};

/* Where a lane stands and what it multiplies with. A tile of activation rows is 8 columns of the product, of which a lane gets the
 * sums of columns 2t and 2t + 1. */
template <int ROWS> struct quant_lane {
	static const int TILES = ROWS / 8;
	int lane, g, t;
	const __half *x; /* of this lane's columns */
	const float *offsets, *sums; /* of the two rows whose sums it gets */
	const __half *parts;

	__device__ quant_lane(const struct quant_panel<ROWS> &panel)
	{
		lane = threadIdx.x % CUDA_WARP;
		g = lane / 4;
		t = lane % 4;
		x = panel.x + g * 32 + 8 * t;
		offsets = panel.offsets + 2 * t;
		sums = panel.sums + 2 * t;
		parts = panel.parts + g * 16 + t * 4;
	}

	__device__ __forceinline__ uint4 input(int block, int n) const
	{
		return *(const uint4 *)(x + (block * ROWS + n * 8) * 32);
	}

	/* Sets the sums to what takes the offset of nibbles away. */
	__device__ __forceinline__ void begin(int block, int n, float (&c)[4]) const
	{
		const float2 two = *(const float2 *)(offsets + block * ROWS + n * 8);
		c[0] = c[2] = two.x;
		c[1] = c[3] = two.y;
	}

	/* S of the block, for both columns. */
	__device__ __forceinline__ float2 sum(int block, int n) const
	{
		return *(const float2 *)(sums + block * ROWS + n * 8);
	}

	/* c += fragments * activations of a block, of both depths. */
	__device__ __forceinline__ void multiply(const struct quant_fragments &f, uint4 x, float (&c)[4]) const
	{
		mma_f16(c, f.a[0], x.x, x.y);
		mma_f16(c, f.a[1], x.z, x.w);
	}

	/* acc += scales of rows g and g + 8 times c. */
	__device__ __forceinline__ void add(float (&acc)[4], float low, float high, const float (&c)[4]) const
	{
		acc[0] = fmaf(low, c[0], acc[0]);
		acc[1] = fmaf(low, c[1], acc[1]);
		acc[2] = fmaf(high, c[2], acc[2]);
		acc[3] = fmaf(high, c[3], acc[3]);
	}
};

/* Scales and minimums of sub-blocks t and t + 4 of a unit of Q4_K, as they are stored. */
struct quant_scales_q4_k {
	uint32_t packed, rest;

	/* Pairs of fp16; low: of row g, high: of row g + 8. */
	struct halves {
		uint32_t scales_low, scales_high, mins_low, mins_high;
	};

	__device__ __forceinline__ void load(const uint8_t *unit, int lane)
	{
		packed = *(const uint32_t *)(unit + 2048 + lane * 4);
		rest = *(const uint16_t *)(unit + 2176 + lane * 2);
	}
	__device__ __forceinline__ struct halves unpack(void) const
	{
		const uint32_t spread = __byte_perm(rest, 0, 0x4140);
		struct halves out;
		out.scales_low = minus(masked_or<0x003f003fu>(packed, F16_1024), F16_1024);
		out.mins_low = minus(masked_or<0x003f003fu>(packed >> 6, F16_1024), F16_1024);
		out.mins_high = minus(masked_or<0x003f003fu>(spread, F16_1024), F16_1024);
		out.scales_high =
			minus(masked_or<0x00300030u>(spread >> 2, masked_or<0x000f000fu>(packed >> 12, F16_1024)), F16_1024);
		return out;
	}
};

template <bool HAS_MIN, int ROWS>
static __device__ __forceinline__ void unit_q4(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	const uint4 quants = *(const uint4 *)(unit + l.lane * 16);
	const uint2 scales = *(const uint2 *)(unit + 512 + l.g * 8);
	const uint2 mins = HAS_MIN ? *(const uint2 *)(unit + 576 + l.g * 8) : make_uint2(0, 0);
#pragma unroll
	for (int b = 0; b < 2; b++) {
		const int block = 2 * index + b;
		struct quant_fragments f;
		f.from_nibbles(b ? quants.z : quants.x, b ? quants.w : quants.y);
		const float2 scale = to_floats(b ? scales.y : scales.x), min = to_floats(b ? mins.y : mins.x);
#pragma unroll
		for (int n = 0; n < l.TILES; n++) {
			float c[4];
			const float2 sum = l.sum(block, n);
			l.begin(block, n, c);
			l.multiply(f, l.input(block, n), c);
			if (!HAS_MIN) {
				c[0] = fmaf(-8.0f, sum.x, c[0]);
				c[1] = fmaf(-8.0f, sum.y, c[1]);
				c[2] = fmaf(-8.0f, sum.x, c[2]);
				c[3] = fmaf(-8.0f, sum.y, c[3]);
			}
			l.add(acc[n], scale.x, scale.y, c);
			if (HAS_MIN) {
				const float means[4] = {sum.x, sum.y, sum.x, sum.y};
				l.add(acc[n], min.x, min.y, means);
			}
		}
	}
}

template <int ROWS>
static __device__ __forceinline__ void unit_q8_0(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	struct quant_fragments f;
	f.from_bytes(*(const uint4 *)(unit + l.lane * 16));
	const float2 scale = to_floats(*(const uint32_t *)(unit + 512 + l.g * 4));
#pragma unroll
	for (int n = 0; n < l.TILES; n++) {
		float c[4] = {};
		l.multiply(f, l.input(index, n), c);
		l.add(acc[n], scale.x, scale.y, c);
	}
}

template <int ROWS>
static __device__ __forceinline__ void unit_f8(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	float c[quant_lane<ROWS>::TILES][4] = {};
#pragma unroll
	for (int b = 0; b < 4; b++) {
		struct quant_fragments f;
		f.from_f8(*(const uint4 *)(unit + b * 512 + l.lane * 16));
#pragma unroll
		for (int n = 0; n < l.TILES; n++)
			l.multiply(f, l.input(4 * index + b, n), c[n]);
	}
	const float scale = *(const float *)(unit + quant_unit_bytes(QUANT_F8)); /* copied there with the unit */
#pragma unroll
	for (int n = 0; n < l.TILES; n++)
		l.add(acc[n], scale, scale, c[n]);
}

/* Minimums are a product too: of the rows' eight minimums with the eight sums of the activations, each sum as an fp16 value and
 * what that drops. */
template <int ROWS>
static __device__ __forceinline__ void unit_q4_k(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	struct quant_scales_q4_k packed;
	packed.load(unit, l.lane);
	const struct quant_scales_q4_k::halves scales = packed.unpack();
	const uint2 factors = *(const uint2 *)(unit + 2240 + l.g * 8);
	float sums[quant_lane<ROWS>::TILES][4] = {};
#pragma unroll
	for (int chunk = 0; chunk < 4; chunk++) {
		const uint4 quants = *(const uint4 *)(unit + chunk * 512 + l.lane * 16);
		const float2 low = to_floats(__shfl_sync(0xffffffffu, scales.scales_low, chunk, 4));
		const float2 high = to_floats(__shfl_sync(0xffffffffu, scales.scales_high, chunk, 4));
#pragma unroll
		for (int b = 0; b < 2; b++) {
			const int block = 8 * index + chunk + 4 * b;
			struct quant_fragments f;
			f.from_nibbles(b ? quants.z : quants.x, b ? quants.w : quants.y);
#pragma unroll
			for (int n = 0; n < l.TILES; n++) {
				float c[4];
				l.begin(block, n, c);
				l.multiply(f, l.input(block, n), c);
				l.add(sums[n], b ? low.y : low.x, b ? high.y : high.x, c);
			}
		}
	}
	const float2 low = to_floats(factors.x), high = to_floats(factors.y); /* d and dmin of rows g and g + 8 */
	const uint32_t mins[4] = {scales.mins_low, scales.mins_high, scales.mins_low, scales.mins_high};
#pragma unroll
	for (int n = 0; n < l.TILES; n++) {
		float c[4] = {};
		const uint2 parts = *(const uint2 *)(l.parts + (index * ROWS + n * 8) * 16);
		mma_f16(c, mins, parts.x, parts.y);
		l.add(acc[n], low.x, high.x, sums[n]);
		l.add(acc[n], -low.y, -high.y, c);
	}
}

template <int ROWS>
static __device__ __forceinline__ void unit_q6_k(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	const uint2 packed = *(const uint2 *)(unit + 3072 + l.lane * 8);
	const uint32_t factors = *(const uint32_t *)(unit + 3328 + l.g * 4);
	/* Scales of chunk t: [row half][block], the pair of both depths. */
	uint32_t scales[2][2];
#pragma unroll
	for (int row = 0; row < 2; row++) {
		const uint32_t word = row ? packed.y : packed.x;
		scales[row][0] = minus(__byte_perm(word, F16_1024 >> 8, 0x4140), F16_1152);
		scales[row][1] = minus(__byte_perm(word, F16_1024 >> 8, 0x4342), F16_1152);
	}
	float sums[quant_lane<ROWS>::TILES][4] = {};
#pragma unroll
	for (int chunk = 0; chunk < 4; chunk++) {
		const uint4 quants = *(const uint4 *)(unit + chunk * 512 + l.lane * 16);
		const uint2 bits = *(const uint2 *)(unit + 2048 + chunk * 256 + l.lane * 8);
#pragma unroll
		for (int b = 0; b < 2; b++) {
			const int block = 8 * index + 2 * chunk + b;
			const float2 low = to_floats(__shfl_sync(0xffffffffu, scales[0][b], chunk, 4));
			const float2 high = to_floats(__shfl_sync(0xffffffffu, scales[1][b], chunk, 4));
			struct quant_fragments f;
			f.from_six_bits(b ? quants.z : quants.x, b ? quants.w : quants.y, b ? bits.y : bits.x);
#pragma unroll
			for (int n = 0; n < l.TILES; n++) {
				const uint4 x = l.input(block, n);
				float first[4] = {}, second[4] = {};
				mma_f16(first, f.a[0], x.x, x.y);
				mma_f16(second, f.a[1], x.z, x.w);
				l.add(sums[n], low.x, high.x, first);
				l.add(sums[n], low.y, high.y, second);
			}
		}
	}
	const float2 d = to_floats(factors);
#pragma unroll
	for (int n = 0; n < l.TILES; n++)
		l.add(acc[n], d.x, d.y, sums[n]);
}

template <int FORM, int ROWS>
static __device__ __forceinline__ void unit_product(
	const uint8_t *unit, int index, const struct quant_lane<ROWS> &l, float (&acc)[quant_lane<ROWS>::TILES][4])
{
	if (FORM == QUANT_Q4_0)
		unit_q4<false, ROWS>(unit, index, l, acc);
	else if (FORM == QUANT_Q4_1)
		unit_q4<true, ROWS>(unit, index, l, acc);
	else if (FORM == QUANT_Q8_0)
		unit_q8_0<ROWS>(unit, index, l, acc);
	else if (FORM == QUANT_F8)
		unit_f8<ROWS>(unit, index, l, acc);
	else if (FORM == QUANT_Q4_K)
		unit_q4_k<ROWS>(unit, index, l, acc);
	else
		unit_q6_k<ROWS>(unit, index, l, acc);
}

#endif
