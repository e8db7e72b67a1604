/* Attention of many rows of one sequence over the paged fp16 cache on Hopper: warpgroup products, keys and values by bulk copies.
 *
 * The arithmetic is attention_prefill.cu's: q and the weights rounded to fp16, online softmax, fp32 sums. As in FlashAttention-3
 * (arXiv 2407.08608), one warp asks for keys and one for values, two warpgroups of 64 lines each take turns at the tensor cores,
 * and the scores of one tile are multiplied while the weights of the tile before meet their values. The cache lies so that blocks
 * copied one behind the other are a swizzled tile (see cache_place). */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/hopper.cuh"

#define FLASH_KEYS 128 /* of one tile: eight blocks of the cache */
#define FLASH_BLOCKS (FLASH_KEYS / KN_KV_BLOCK_TOKENS)
#define FLASH_STAGES 3 /* what shared memory holds for heads of 128 */
#define FLASH_GROUPS 2 /* multiplying warpgroups; one more in front of them asks for tiles */
#define FLASH_CONSUMERS (FLASH_GROUPS * HOPPER_GROUP_THREADS)
#define FLASH_THREADS (FLASH_CONSUMERS + HOPPER_GROUP_THREADS)
#define FLASH_GROUP_LINES 64
#define FLASH_REGISTERS_COPYING 24
#define FLASH_REGISTERS_MULTIPLYING 240 /* 24 + 2 * 240 a lane fill a processor's 512 */

enum flash_barrier {
	FLASH_QUERIES = 1,
	FLASH_TURN, /* and one more: each group's turn at the tensor cores */
	FLASH_PEAKS = FLASH_TURN + 2, /* and one more: within each group */
};

template <int HEAD_DIM> struct flash_shape {
	static constexpr int PARTS = HEAD_DIM / CACHE_PART;
	static constexpr int GROUP_BYTES = PARTS * HOPPER_ATOM_BYTES; /* of eight lines */
	static constexpr int BLOCK_BYTES = KN_KV_BLOCK_TOKENS / CACHE_GROUP * GROUP_BYTES;
	static constexpr int TILE_BYTES = FLASH_BLOCKS * BLOCK_BYTES, QUERY_BYTES = PREFILL_LINES / CACHE_GROUP * GROUP_BYTES;
	static constexpr int SHARED_BYTES = QUERY_BYTES + 2 * FLASH_STAGES * TILE_BYTES + HOPPER_ATOM_BYTES; /* for alignment */
};

/* Stages of keys or of values. */
struct flash_stages {
	uint32_t tiles;
	uint64_t *full, *empty; /* [FLASH_STAGES] */
};

/* A place in the ring of stages. */
struct flash_stage {
	int number, parity;

	__device__ __forceinline__ void advance(void)
	{
		if (++number == FLASH_STAGES) {
			number = 0;
			parity ^= 1;
		}
	}
};

/* What one block works on. */
struct flash_tile {
	int first_row, n_lines, first_position, last_position, n_tiles;
	const int32_t *table;
	struct attention_heads heads;
};

/* A copying warp: a tile of keys or values after the other. Past the last block that one is read again: its keys are masked. */
template <int HEAD_DIM>
static __device__ __forceinline__ void request_all(
	const struct kn_attention &a, const struct flash_tile &tile, const void *cache, const struct flash_stages &stages)
{
	using shape = flash_shape<HEAD_DIM>;
	const int lane = threadIdx.x % CUDA_WARP, last_block = tile.last_position / KN_KV_BLOCK_TOKENS;
	struct flash_stage stage = {};
#pragma unroll 1
	for (int t = 0; t < tile.n_tiles; t++) {
		const int32_t block = tile.table[min(t * FLASH_BLOCKS + lane % FLASH_BLOCKS, last_block)];
		const __half *from = (const __half *)cache + cache_at(a, block, tile.heads.kv_head);
		if (t >= FLASH_STAGES)
			barrier_wait(&stages.empty[stage.number], stage.parity ^ 1);
		if (lane == 0)
			barrier_expect(&stages.full[stage.number], shape::TILE_BYTES);
		__syncwarp();
		if (lane < FLASH_BLOCKS)
			bulk_copy(stages.tiles + stage.number * shape::TILE_BYTES + lane * shape::BLOCK_BYTES, from,
				shape::BLOCK_BYTES, &stages.full[stage.number]);
		stage.advance();
	}
}

/* The multiplying threads: q of all lines as a swizzled tile; lines past the last are zero. */
template <int HEAD_DIM>
static __device__ __forceinline__ void fill_queries(
	const struct kn_attention &a, const struct flash_tile &tile, __half *query, int thread)
{
	constexpr int QUADS = HEAD_DIM / 8;
	const float scale = a.scale * LOG2_E;
#pragma unroll 4
	for (int i = thread; i < PREFILL_LINES * QUADS; i += FLASH_CONSUMERS) {
		const int line = i / QUADS, pair = i % QUADS * 4, row = line / tile.heads.count;
		struct four_pairs pairs = {};
		if (line < tile.n_lines)
			pairs = rotate_four(a,
				a.qkv + (int64_t)(tile.first_row + row) * ((a.n_heads + 2 * a.n_kv_heads) * HEAD_DIM) +
					(tile.heads.first + line % tile.heads.count) * HEAD_DIM,
				min(tile.first_position + row, tile.last_position), pair, scale); /* those that fill up a plan have gaps */
		const int2 runs = runs_of(a, pair);
		store_pairs(pairs, a.rope_interleaved, query + cache_place(HEAD_DIM, line, runs.x),
			query + cache_place(HEAD_DIM, line, runs.y));
	}
	publish_shared();
	named_sync(FLASH_QUERIES, FLASH_CONSUMERS);
}

/* A multiplying thread's lines g and g + 8 of its warp's 16. */
struct flash_lines {
	int seen[2]; /* last key that the line may see */
	float peak[2], sum[2]; /* sum: of this lane's keys; lanes are added at the end */
};

/* Scores of a group's lines with the keys of one tile. */
template <int HEAD_DIM> static __device__ __forceinline__ void score_tile(float (&score)[64], uint32_t query, uint32_t keys)
{
	using shape = flash_shape<HEAD_DIM>;
	products_begin();
#pragma unroll
	for (int d = 0; d < HEAD_DIM; d += 16) {
		const int inside = d / CACHE_PART * HOPPER_ATOM_BYTES + d % CACHE_PART * 2;
		product_f16(score, tile_along_depth(query + inside, shape::GROUP_BYTES),
			tile_along_depth(keys + inside, shape::GROUP_BYTES), d > 0);
	}
	products_commit();
}

template <int HEAD_DIM>
static __device__ __forceinline__ void add_values(float (&out)[HEAD_DIM / 2], const uint32_t (&weights)[8][4], uint32_t values)
{
	using shape = flash_shape<HEAD_DIM>;
	products_begin();
#pragma unroll
	for (int k = 0; k < FLASH_KEYS / 16; k++)
		product_across_f16(
			out, weights[k], tile_across_depth(values + k * shape::BLOCK_BYTES, HOPPER_ATOM_BYTES, shape::GROUP_BYTES));
	products_commit();
}

/* Scores become weights in the running softmax; keep is what earlier results are worth now. */
static __device__ __forceinline__ void soften(
	struct flash_lines &lines, float (&score)[64], int first_key, bool masked, float (&keep)[2])
{
	const int t = threadIdx.x % 4;
	if (masked) {
#pragma unroll
		for (int i = 0; i < 64; i++)
			if (first_key + i / 4 * 8 + 2 * t + i % 2 > lines.seen[i / 2 % 2])
				score[i] = -INFINITY;
	}
#pragma unroll
	for (int i = 0; i < 2; i++) {
		float top = lines.peak[i], total = 0.0f;
#pragma unroll
		for (int n = 0; n < 16; n++)
			top = fmaxf(top, fmaxf(score[4 * n + 2 * i], score[4 * n + 2 * i + 1]));
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
		top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
		keep[i] = exp2_fast(lines.peak[i] - top);
#pragma unroll
		for (int n = 0; n < 16; n++)
#pragma unroll
			for (int c = 0; c < 2; c++) {
				score[4 * n + 2 * i + c] = exp2_fast(score[4 * n + 2 * i + c] - top);
				total += score[4 * n + 2 * i + c];
			}
		lines.peak[i] = top;
		lines.sum[i] = lines.sum[i] * keep[i] + total;
	}
}

static __device__ __forceinline__ void pack_weights(const float (&score)[64], uint32_t (&weights)[8][4])
{
#pragma unroll
	for (int k = 0; k < 8; k++)
#pragma unroll
		for (int i = 0; i < 4; i++)
			weights[k][i] = pack_f16(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
}

/* One arrival of each warp: its group has read a stage. */
static __device__ __forceinline__ void give_back(uint64_t *empty)
{
	if (threadIdx.x % CUDA_WARP == 0)
		barrier_arrive(empty);
}

/* A multiplying warpgroup over all tiles of keys; out is not yet divided by the sums. The groups' turns keep one group's products
 * under way while the other takes exponentials. */
template <int HEAD_DIM>
static __device__ __forceinline__ void attend_tiles(const struct flash_tile &tile, uint32_t queries,
	const struct flash_stages &keys, const struct flash_stages &values, int group, struct flash_lines &lines,
	float (&out)[HEAD_DIM / 2])
{
	using shape = flash_shape<HEAD_DIM>;
	const uint32_t query = queries + group * (FLASH_GROUP_LINES / CACHE_GROUP * shape::GROUP_BYTES);
	const int n_tiles = tile.n_tiles, unmasked = (tile.first_position + 1) / FLASH_KEYS; /* tiles that every line sees */
	struct flash_stage stage = {}, before = {};
	float score[64], keep[2];
	uint32_t weights[8][4];
	if (group == 1 && n_tiles > 1)
		named_arrive(FLASH_TURN, FLASH_CONSUMERS);
	barrier_wait(&keys.full[0], 0);
	score_tile<HEAD_DIM>(score, query, keys.tiles);
	products_wait<0>();
	products_hold(score);
	give_back(&keys.empty[0]);
	soften(lines, score, 0, unmasked == 0, keep);
	pack_weights(score, weights);
	products_hold(weights);
#pragma unroll 1
	for (int t = 1; t < n_tiles; t++) {
		stage.advance();
		named_sync(FLASH_TURN + group, FLASH_CONSUMERS);
		barrier_wait(&keys.full[stage.number], stage.parity);
		score_tile<HEAD_DIM>(score, query, keys.tiles + stage.number * shape::TILE_BYTES);
		barrier_wait(&values.full[before.number], before.parity);
		add_values<HEAD_DIM>(out, weights, values.tiles + before.number * shape::TILE_BYTES);
		if (group == 0 || t + 1 < n_tiles)
			named_arrive(FLASH_TURN + (1 - group), FLASH_CONSUMERS);
		products_wait<1>();
		products_hold(score);
		give_back(&keys.empty[stage.number]);
		soften(lines, score, t * FLASH_KEYS, t >= unmasked, keep);
		/* Peaks seldom move after the first tiles. The branch also holds the compiler from waiting before the exponentials; the
		 * whole group takes it or none of it, as a wait for products has to be met by all of a group's warps. */
		if (named_any(FLASH_PEAKS + group, HOPPER_GROUP_THREADS, keep[0] != 1.0f || keep[1] != 1.0f)) {
			products_wait<0>();
			products_hold(out);
#pragma unroll
			for (int i = 0; i < HEAD_DIM / 2; i++)
				out[i] *= keep[i / 2 % 2];
		}
		products_wait<0>();
		products_hold(out);
		give_back(&values.empty[before.number]);
		before.advance();
		pack_weights(score, weights);
		products_hold(out);
		products_hold(weights);
	}
	barrier_wait(&values.full[before.number], before.parity);
	add_values<HEAD_DIM>(out, weights, values.tiles + before.number * shape::TILE_BYTES);
	products_wait<0>();
	products_hold(out);
}

/* A multiplying thread: rows of one sequence come in ascending position without gaps. Lines past the last see the first key, and
 * are dropped. */
template <int HEAD_DIM>
static __device__ __forceinline__ void multiply_all(const struct kn_attention &a, const struct attention_cut &cut,
	const struct flash_tile &tile, __half *query, const struct flash_stages &keys, const struct flash_stages &values)
{
	const int thread = threadIdx.x - HOPPER_GROUP_THREADS, lane = thread % CUDA_WARP;
	const int first_line = thread / CUDA_WARP * 16 + lane / 4;
	struct flash_lines lines;
	float out[HEAD_DIM / 2] = {};
	fill_queries<HEAD_DIM>(a, tile, query, thread);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int line = first_line + 8 * i;
		lines.seen[i] = line < tile.n_lines ? tile.first_position + line / tile.heads.count : 0;
		lines.peak[i] = -INFINITY;
		lines.sum[i] = 0.0f;
	}
	attend_tiles<HEAD_DIM>(tile, shared_address(query), keys, values, thread / HOPPER_GROUP_THREADS, lines, out);
#pragma unroll
	for (int i = 0; i < 2; i++) {
		const int line = first_line + 8 * i, row = tile.first_row + line / tile.heads.count;
		float total = lines.sum[i];
		total += __shfl_xor_sync(0xffffffffu, total, 1);
		total += __shfl_xor_sync(0xffffffffu, total, 2);
		if (line >= tile.n_lines)
			continue;
		const int64_t to =
			((int64_t)row * a.n_heads + tile.heads.first + line % tile.heads.count) * HEAD_DIM + lane % 4 * 2;
		const float scale = 1.0f / total;
#pragma unroll
		for (int d = 0; d < HEAD_DIM / 8; d++)
			store_out_pair(a, cut, to + d * 8, make_float2(out[4 * d + 2 * i] * scale, out[4 * d + 2 * i + 1] * scale));
	}
}

/* Block: one tile of rows and the query heads of one block (see attention_cut). Warpgroup 0: its first two warps ask for copies;
 * warpgroups 1 and 2: 64 lines each, all keys. Shared, 1024-byte aligned: queries, FLASH_STAGES tiles of keys, as many of values.
 */
template <int HEAD_DIM>
static __global__ void __launch_bounds__(FLASH_THREADS, 1)
	attention_prefill_hopper_kernel(const struct kn_attention a, const struct attention_cut cut)
{
	using shape = flash_shape<HEAD_DIM>;
	extern __shared__ uint8_t memory[];
	__shared__ uint64_t barriers[4][FLASH_STAGES];
	__half *query = (__half *)(memory + (-shared_address(memory) & (HOPPER_ATOM_BYTES - 1)));
	const struct flash_stages keys = {shared_address(query) + shape::QUERY_BYTES, barriers[0], barriers[1]};
	const struct flash_stages values = {keys.tiles + FLASH_STAGES * shape::TILE_BYTES, barriers[2], barriers[3]};
	struct flash_tile tile;
	tile.first_row = (gridDim.x - 1 - blockIdx.x) * cut.tile_rows; /* those with most keys first */
	const int n_rows = min(cut.tile_rows, cut.n_rows - tile.first_row);
	tile.heads = heads_of_block(a, cut, blockIdx.y);
	tile.n_lines = n_rows * tile.heads.count;
	if (threadIdx.x < 4 * FLASH_STAGES) {
		barrier_init(&barriers[threadIdx.x / FLASH_STAGES][threadIdx.x % FLASH_STAGES],
			threadIdx.x / FLASH_STAGES % 2 ? FLASH_CONSUMERS / CUDA_WARP : 1);
		barrier_init_done();
	}
	dependency_release();
	dependency_wait();
	if (!tile_is_prefill(a, cut, tile.first_row))
		return;
	tile.first_position = a.positions[tile.first_row];
	tile.last_position = a.positions[tile.first_row + n_rows - 1];
	tile.n_tiles = tile.last_position / FLASH_KEYS + 1;
	tile.table = a.block_tables + a.slots[tile.first_row] * a.block_table_stride;
	__syncthreads();
	if (threadIdx.x < HOPPER_GROUP_THREADS) {
		registers_decrease<FLASH_REGISTERS_COPYING>();
		if (threadIdx.x < CUDA_WARP)
			request_all<HEAD_DIM>(a, tile, a.k_cache, keys);
		else if (threadIdx.x < 2 * CUDA_WARP)
			request_all<HEAD_DIM>(a, tile, a.v_cache, values);
	} else {
		registers_increase<FLASH_REGISTERS_MULTIPLYING>();
		multiply_all<HEAD_DIM>(a, cut, tile, query, keys, values);
	}
}

template <int HEAD_DIM>
static cudaError_t launch(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	dim3 grid((cut->n_rows + cut->tile_rows - 1) / cut->tile_rows, cut->n_groups);
	return launch_dependent(backend->stream, grid, dim3(FLASH_THREADS), flash_shape<HEAD_DIM>::SHARED_BYTES,
		attention_prefill_hopper_kernel<HEAD_DIM>, *args, *cut);
}

bool attention_prefill_hopper_takes(const struct kn_backend *backend, const struct kn_attention *args)
{
	return backend->is_hopper && (args->head_dim == 64 || args->head_dim == 128);
}

cudaError_t attention_prefill_hopper(struct kn_backend *backend, const struct kn_attention *args, const struct attention_cut *cut)
{
	return args->head_dim == 64 ? launch<64>(backend, args, cut) : launch<128>(backend, args, cut);
}

template <int HEAD_DIM> static cudaError_t raise_shared(void)
{
	return cudaFuncSetAttribute(attention_prefill_hopper_kernel<HEAD_DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize,
		flash_shape<HEAD_DIM>::SHARED_BYTES);
}

cudaError_t attention_prefill_hopper_init(void)
{
	cudaError_t error = raise_shared<64>();
	return error ? error : raise_shared<128>();
}
