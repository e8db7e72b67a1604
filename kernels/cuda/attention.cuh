/* What the attention kernels share: sizes, how heads are dealt to blocks, rotation, places in the paged cache. */
#ifndef KERNELS_CUDA_ATTENTION_CUH
#define KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"

#define ATTENTION_SPLITS_MAX 16 /* guess: 8 KV heads times 16 fill the card once */
#define ATTENTION_SPLIT_TOKENS_MIN 256 /* one pass of a decode block; a shorter split would cost more in merging than it saves */
#define ATTENTION_HEADS_MAX 128
#define ATTENTION_HEAD_DIM_MAX 256
#define ATTENTION_HEAD_DIM_STEP 2 /* dimensions are rotated in pairs */
#define ATTENTION_HEADS_PER_BLOCK 8 /* query heads of one block: half the rows of a tensor core tile */
#define ATTENTION_MIXED_BLOCKS 16 /* guess: blocks per KV head for the few rows that the prefill kernels leave out */
#define ATTENTION_SAME_BITS_ROWS 16 /* steps of 2 to so many rows give a row the same bits: kn.h */
#define ATTENTION_MANY_WARPS 5 /* pairs of a row and KV head for each processor; measured: ATTENTION_NOTES.md */
#define ATTENTION_DECODE_ROWS_MAX 128 /* larger steps take the prefill kernel where rows of one sequence lie together */
#define PREFILL_LINES 128 /* pairs of a row and a head in one tile of the prefill kernels */
#define CACHE_PART 64 /* elements of 128 bytes of the fp16 cache */
#define CACHE_GROUP 8 /* lines whose parts lie together */
#define LOG2_E 1.44269504088896340736f

/* A head size that there are kernels of tensor cores for, as a type. */
template <int HEAD_DIM> struct attention_head_dim {
	static constexpr int value = HEAD_DIM;
};

/* What launch makes of the one of them that equals head_dim. */
template <typename Launch> static cudaError_t for_head_dim(int head_dim, Launch launch)
{
	switch (head_dim) {
	case 64:
		return launch(attention_head_dim<64>());
	case 96:
		return launch(attention_head_dim<96>());
	case 128:
		return launch(attention_head_dim<128>());
	case 256:
		return launch(attention_head_dim<256>());
	default:
		return cudaErrorInvalidValue;
	}
}

/* The first error of all of them. */
template <typename Prepare> static cudaError_t for_every_head_dim(Prepare prepare)
{
	static const int head_dims[] = {64, 96, 128, 256};
	cudaError_t error = cudaSuccess;
	for (int head_dim : head_dims)
		error = error ? error : for_head_dim(head_dim, prepare);
	return error;
}

/* Which query heads a block works on. They share a KV head. */
struct attention_cut {
	int group; /* query heads per KV head; 1 when heads were split unevenly */
	int parts; /* blocks per KV head */
	int heads_per_block; /* of the last part: what is left */
	int n_groups; /* blocks per row and split */
	int n_rows;
	int tile_rows; /* rows of one tile of the prefill kernel; 0: every row is decoded */
	enum pack_form out_form; /* of args.out */
};

struct attention_heads {
	int first, count, kv_head;
};

static __device__ __forceinline__ struct attention_heads heads_of_block(
	const struct kn_attention &a, const struct attention_cut &cut, int block)
{
	const int kv = cut.parts == 1 ? block : block / cut.parts, part = block - kv * cut.parts;
	const int first = kv * cut.group + part * cut.heads_per_block;
	return {first, min(cut.heads_per_block, cut.group - part * cut.heads_per_block),
		a.uniform_groups ? kv : a.kv_head_of_head[first]};
}

/* Whether the prefill kernel takes the tile of this row: all its rows belong to one sequence. Slots are not written during a step.
 * Asked by whole warps, with the same row. */
static __device__ __forceinline__ bool tile_is_prefill(const struct kn_attention &a, const struct attention_cut &cut, int row)
{
	if (cut.tile_rows == 0)
		return false;
	const int begin = row / cut.tile_rows * cut.tile_rows, end = min(begin + cut.tile_rows, cut.n_rows);
	bool same = true;
	for (int i = begin + (int)threadIdx.x % CUDA_WARP; i < end; i += CUDA_WARP)
		same = same && a.slots[i] == a.slots[begin];
	return __all_sync(0xffffffffu, same);
}

/* First element of a block of one KV head in a cache of HEAD_DIM wide lines. */
static __device__ __forceinline__ int64_t cache_at(const struct kn_attention &a, int32_t block, int kv_head)
{
	return ((int64_t)block * a.n_kv_heads + kv_head) * KN_KV_BLOCK_TOKENS * a.head_dim;
}

/* Place of element d of a line inside the block of one KV head, fp16. Heads of whole parts of CACHE_PART elements are kept in
 * groups of CACHE_GROUP lines, a group part by part, and the 16-byte pieces of a part permuted as in the tiles of hopper.cuh:
 * blocks copied one behind the other as they are form such a tile, and loads of matrices hit every bank once. */
static __device__ __forceinline__ int cache_place(int head_dim, int line, int d)
{
	if (head_dim % CACHE_PART != 0)
		return line * head_dim + d;
	return (line / CACHE_GROUP * (head_dim / CACHE_PART) + d / CACHE_PART) * (CACHE_GROUP * CACHE_PART) +
		line % CACHE_GROUP * CACHE_PART + ((d % CACHE_PART / 8) ^ (line % CACHE_GROUP)) * 8 + d % 8;
}

/* Line (x) and first element (y) of the 16-byte piece number piece of such a block, in the order of their addresses. */
static __device__ __forceinline__ int2 cache_piece(int head_dim, int piece)
{
	if (head_dim % CACHE_PART != 0)
		return make_int2(piece / (head_dim / 8), piece % (head_dim / 8) * 8);
	const int parts = head_dim / CACHE_PART, line = piece / 8 % CACHE_GROUP, part = piece / (8 * CACHE_GROUP) % parts;
	return make_int2(piece / (8 * CACHE_GROUP) / parts * CACHE_GROUP + line, part * CACHE_PART + (piece % 8 ^ line) * 8);
}

/* Results: element at of args.out, or it and its neighbour. */
static __device__ __forceinline__ void store_out(
	const struct kn_attention &a, const struct attention_cut &cut, int64_t at, float value)
{
	if (cut.out_form == PACK_F32)
		a.out[at] = value;
	else
		((uint16_t *)a.out)[at] = cut.out_form == PACK_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(value))
								    : __half_as_ushort(__float2half_rn(value));
}

static __device__ __forceinline__ void store_out_pair(
	const struct kn_attention &a, const struct attention_cut &cut, int64_t at, float2 value)
{
	const __nv_bfloat162 bf16 = __float22bfloat162_rn(value);
	if (cut.out_form == PACK_F32)
		*(float2 *)(a.out + at) = value;
	else
		*(uint32_t *)((uint16_t *)a.out + at) =
			cut.out_form == PACK_BF16 ? *(const uint32_t *)&bf16 : pack_f16(value.x, value.y);
}

/* Rotation of one pair, each rounding written out so that every kernel that does it gives the same bits. */
static __device__ __forceinline__ float2 rotate(float x, float y, float2 turn)
{
	return make_float2(__fmaf_rn(x, turn.x, -__fmul_rn(y, turn.y)), __fmaf_rn(x, turn.y, __fmul_rn(y, turn.x)));
}

/* Elements of pair number pair of a head. */
static __device__ __forceinline__ int2 pair_at(const struct kn_attention &a, int pair)
{
	return a.rope_interleaved ? make_int2(2 * pair, 2 * pair + 1) : make_int2(pair, pair + a.head_dim / 2);
}

/* Four neighbouring pairs of a head. */
struct four_pairs {
	float x[4], y[4];
};

/* Where a head's four pairs from number pair on lie: two runs of four elements each, which begin at x and at y. */
static __device__ __forceinline__ int2 runs_of(const struct kn_attention &a, int pair)
{
	return a.rope_interleaved ? make_int2(2 * pair, 2 * pair + 4) : make_int2(pair, pair + a.head_dim / 2);
}

/* Stores pairs as fp16 in those two runs. */
static __device__ __forceinline__ void store_pairs(const struct four_pairs &p, bool interleaved, __half *first, __half *second)
{
	*(uint2 *)first = interleaved ? make_uint2(pack_f16(p.x[0], p.y[0]), pack_f16(p.x[1], p.y[1]))
				      : make_uint2(pack_f16(p.x[0], p.x[1]), pack_f16(p.x[2], p.x[3]));
	*(uint2 *)second = interleaved ? make_uint2(pack_f16(p.x[2], p.y[2]), pack_f16(p.x[3], p.y[3]))
				       : make_uint2(pack_f16(p.y[0], p.y[1]), pack_f16(p.y[2], p.y[3]));
}

/* What store_pairs loses. */
static __device__ __forceinline__ struct four_pairs rest_of(const struct four_pairs &p)
{
	struct four_pairs out;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		out.x[k] = p.x[k] - __half2float(__float2half_rn(p.x[k]));
		out.y[k] = p.y[k] - __half2float(__float2half_rn(p.y[k]));
	}
	return out;
}

/* Four pairs, of which low and high are the two runs, rotated by the turns and times scale. */
static __device__ __forceinline__ struct four_pairs rotate_runs(
	float4 low, float4 high, float4 first, float4 second, bool interleaved, float scale)
{
	const float2 turn[4] = {{first.x, first.y}, {first.z, first.w}, {second.x, second.y}, {second.z, second.w}};
	const float x[4] = {low.x, interleaved ? low.z : low.y, interleaved ? high.x : low.z, interleaved ? high.z : low.w};
	const float y[4] = {interleaved ? low.y : high.x, interleaved ? low.w : high.y, interleaved ? high.y : high.z, high.w};
	struct four_pairs out;
#pragma unroll
	for (int k = 0; k < 4; k++) {
		const float2 value = rotate(x[k], y[k], turn[k]);
		out.x[k] = value.x * scale;
		out.y[k] = value.y * scale;
	}
	return out;
}

/* Pairs pair to pair + 3 of a head, rotated and times scale. */
static __device__ __forceinline__ struct four_pairs rotate_four(
	const struct kn_attention &a, const float *head, int position, int pair, float scale)
{
	const int2 runs = runs_of(a, pair);
	const float4 *turns = (const float4 *)(a.rope_cos_sin + (int64_t)position * a.head_dim + 2 * pair);
	return rotate_runs(
		*(const float4 *)(head + runs.x), *(const float4 *)(head + runs.y), turns[0], turns[1], a.rope_interleaved, scale);
}

/* fp16 cache, one row a block: short or long context, few rows. Appends, but with cut->tile_rows: keys and values must have been
 * appended then. */
cudaError_t attention_decode(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
/* The same on Hopper for so many rows, few of a sequence, that most warps have one and a KV head to themselves, a row's keys cut
 * into other splits. */
bool attention_many_takes(
	const struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
cudaError_t attention_many(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
/* fp16 cache, tiles of rows of one sequence; keys and values appended. Rows of mixed tiles are left out. */
cudaError_t attention_prefill(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
/* The same on Hopper for some head sizes. */
bool attention_prefill_hopper_takes(const struct kn_backend *backend, const struct kn_attention *args);
cudaError_t attention_prefill_hopper(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
/* fp32 cache of any head size up to ATTENTION_HEAD_DIM_MAX, and fp16 cache of those that for_head_dim does not know, whose lines
 * then lie as they are. Rotates and appends. A row has the same bits in any step. */
cudaError_t attention_plain(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut);
/* Raises the kernels' limits of shared memory; once per device. */
cudaError_t attention_decode_init(void);
cudaError_t attention_many_init(void);
cudaError_t attention_prefill_init(void);
cudaError_t attention_prefill_hopper_init(void);

#endif
