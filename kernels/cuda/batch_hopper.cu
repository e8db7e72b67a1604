/* Matrix product for 17 to 128 rows on Hopper: streams the weights once; warpgroup products of activation rows by weight rows.
 *
 * A block has a tile of weight rows, as tall as makes one block for nearly every processor, so that all end together and no sums
 * need to meet in memory. Short matrices are also split by columns between the two blocks of a cluster, which exchange halves of
 * their sums through shared memory at the end. All stages of weights are requested before the wait for the kernel in front. Where a
 * row's columns are added in which order depends on the shape and the number of rows alone. */
#include <cudaTypedefs.h>

extern "C" {
#include "base/mem.h"
}
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/hopper.cuh"

#define BATCH_DEPTH 64 /* columns of a stage: one swizzled line */
#define BATCH_GROUPS 2 /* multiplying warpgroups */
#define BATCH_CONSUMERS (BATCH_GROUPS * HOPPER_GROUP_THREADS)
#define BATCH_THREADS (BATCH_CONSUMERS + CUDA_WARP) /* and one warp that requests */
#define BATCH_SHARED_BYTES (225 << 10) /* of the 227 KB that a block may have */
#define BATCH_ALL 1 /* number of the barrier of all multiplying threads */

struct batch_args {
	void *y;
	int64_t y_stride;
	int rows, n_rows;
	int n_blocks; /* of BATCH_DEPTH columns */
	enum kn_epilogue epilogue;
	bool y_prepared; /* y in the weights' type, else fp32 */
	bool in_pairs; /* two neighbours of y are aligned for one store */
};

/* A kernel's sizes. ROWS: activation rows, 64 a product at least. With 128 each warpgroup multiplies 64 rows by all weight rows of
 * the tile, else all rows by half of them. */
template <int ROWS, int TILE, int SPLIT> struct batch_shape {
	static constexpr int COLUMNS = ROWS == 128 ? TILE : TILE / 2; /* of a product */
	static constexpr int W_BYTES = TILE * HOPPER_LINE_BYTES, X_BYTES = ROWS * HOPPER_LINE_BYTES;
	static constexpr int X_STAGE_BYTES =
		(ROWS < 64 ? 64 : ROWS) * HOPPER_LINE_BYTES; /* rows past the last: whatever is there */
	static constexpr int STAGES = BATCH_SHARED_BYTES / (W_BYTES + X_STAGE_BYTES);

	/* Shared memory. */
	struct memory {
		alignas(HOPPER_ATOM_BYTES) uint8_t w[STAGES][W_BYTES];
		uint8_t x[STAGES][X_STAGE_BYTES];
		uint64_t w_full[STAGES], x_full[STAGES], empty[STAGES];
	};
	static_assert(sizeof(struct memory) <= 227 << 10, "a block's shared memory");
	static_assert(COLUMNS % 8 == 0 && (SPLIT == 1 || COLUMNS / 8 * BATCH_CONSUMERS * sizeof(float4) <= sizeof(struct memory)),
		"a tile");
};

/* --- requesting thread -------------------------------------------------------------------------------------------- */

/* Blocks begin to end of a tile, through the ring of stages. */
template <int ROWS, int TILE, int SPLIT>
static __device__ __forceinline__ void batch_request(const struct batch_args &a,
	typename batch_shape<ROWS, TILE, SPLIT>::memory &shared, const CUtensorMap *w_map, const CUtensorMap *x_map, int line,
	int begin, int end)
{
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	const bool gated = a.epilogue == KN_SWIGLU;
	const int first_end = min(begin + shape::STAGES, end);
	const auto request_w = [&](int block, int stage) {
		barrier_expect(&shared.w_full[stage], shape::W_BYTES);
		tensor_copy(shared_address(shared.w[stage]), w_map, block * BATCH_DEPTH, gated ? 0 : line, 0, gated ? line / 16 : 0,
			&shared.w_full[stage], HOPPER_READ_ONCE);
	};
	const auto request_x = [&](int block, int stage) {
		barrier_expect(&shared.x_full[stage], shape::X_BYTES);
		tensor_copy(
			shared_address(shared.x[stage]), x_map, block * BATCH_DEPTH, 0, &shared.x_full[stage], HOPPER_READ_OFTEN);
	};
	for (int block = begin; block < first_end; block++)
		request_w(block, block - begin);
	dependency_wait();
	for (int block = begin; block < first_end; block++)
		request_x(block, block - begin);
	int stage = 0, parity = 0;
	for (int block = first_end; block < end; block++) {
		barrier_wait(&shared.empty[stage], parity);
		request_w(block, stage);
		request_x(block, stage);
		if (++stage == shape::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
}

/* --- multiplying threads ------------------------------------------------------------------------------------------ */

template <enum pack_form FORM, int COUNT>
static __device__ __forceinline__ void batch_product(float (&sums)[COUNT], uint64_t x, uint64_t w, int add)
{
	if (FORM == PACK_BF16)
		product_bf16(sums, x, w, add);
	else
		product_f16(sums, x, w, add);
}

template <enum pack_form FORM, int ROWS, int TILE, int SPLIT>
static __device__ __forceinline__ void batch_multiply(float (&sums)[batch_shape<ROWS, TILE, SPLIT>::COLUMNS / 2],
	typename batch_shape<ROWS, TILE, SPLIT>::memory &shared, int n_blocks)
{
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	const int part = threadIdx.x / HOPPER_GROUP_THREADS;
	const int x_part = ROWS == 128 ? part * 64 * HOPPER_LINE_BYTES : 0;
	const int w_part = ROWS == 128 ? 0 : part * shape::COLUMNS * HOPPER_LINE_BYTES;
	int stage = 0, parity = 0, before = 0;
#pragma unroll 1
	for (int i = 0; i < n_blocks; i++) {
		barrier_wait(&shared.w_full[stage], parity);
		barrier_wait(&shared.x_full[stage], parity);
		const uint64_t x = tile_along_depth(shared_address(shared.x[stage]) + x_part, HOPPER_ATOM_BYTES);
		const uint64_t w = tile_along_depth(shared_address(shared.w[stage]) + w_part, HOPPER_ATOM_BYTES);
		products_begin();
#pragma unroll
		for (int k = 0; k < BATCH_DEPTH / 16; k++) /* 32 bytes further each, in units of 16 */
			batch_product<FORM>(sums, x + 2 * k, w + 2 * k, i > 0 || k > 0);
		products_commit();
		products_wait<1>();
		if (i > 0 && threadIdx.x % CUDA_WARP == 0)
			barrier_arrive(&shared.empty[before]);
		before = stage;
		if (++stage == shape::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
	products_wait<0>();
	products_hold(sums);
}

/* Where an accumulator's elements go: sums[4 * j + 2 * half + c] is activation row + 8 * half, weight row line + 8 * j + c. */
struct batch_place {
	int row, line;

	template <int ROWS, int COLUMNS> static __device__ __forceinline__ batch_place of_thread(int first_line)
	{
		const int part = threadIdx.x / HOPPER_GROUP_THREADS, warp = threadIdx.x / CUDA_WARP % 4,
			  lane = threadIdx.x % CUDA_WARP;
		return {(ROWS == 128 ? part * 64 : 0) + warp * 16 + lane / 4,
			first_line + (ROWS == 128 ? 0 : part * COLUMNS) + lane % 4 * 2};
	}
};

/* Two neighbours in a row of y. */
template <typename T, typename PAIR>
static __device__ __forceinline__ void store_two(const struct batch_args &a, int row, int at, int end, T first, T second)
{
	if (row >= a.n_rows || at >= end)
		return;
	T *to = (T *)a.y + row * a.y_stride + at;
	if (a.in_pairs && at + 1 < end) {
		*(PAIR *)to = PAIR{first, second};
		return;
	}
	to[0] = first;
	if (at + 1 < end)
		to[1] = second;
}

/* SwiGLU: eight gates and their ups are neighbours in the tile. */
template <enum pack_form FORM, int COUNT>
static __device__ __forceinline__ void batch_store_gated(
	const struct batch_args &a, const struct batch_place &place, const float (&sums)[COUNT])
{
	const int lane_at = place.line % 8, end = a.rows / 2;
#pragma unroll
	for (int j = 0; j < COUNT / 4; j += 2)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const float *gate = &sums[4 * j + 2 * half], *up = gate + 4;
			const float first = swiglu(gate[0], up[0]), second = swiglu(gate[1], up[1]);
			const int row = place.row + half * 8, at = (place.line - lane_at) / 2 + j * 4 + lane_at;
			if (!a.y_prepared)
				store_two<float, float2>(a, row, at, end, first, second);
			else if (FORM == PACK_BF16)
				store_two<__nv_bfloat16, __nv_bfloat162>(
					a, row, at, end, __float2bfloat16_rn(first), __float2bfloat16_rn(second));
			else
				store_two<__half, __half2>(a, row, at, end, __float2half_rn(first), __float2half_rn(second));
		}
}

/* Adds what y has to the sums of eights [begin, end) of weight rows. */
template <int COUNT>
static __device__ __forceinline__ void batch_add(
	const struct batch_args &a, const struct batch_place &place, float (&sums)[COUNT], int begin, int end)
{
#pragma unroll
	for (int j = 0; j < COUNT / 4; j++)
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const int row = place.row + half * 8, at = place.line + j * 8;
			const float *from = (const float *)a.y + row * a.y_stride + at;
			if (j < begin || j >= end || row >= a.n_rows)
				continue;
			if (at < a.rows)
				sums[4 * j + 2 * half] += from[0];
			if (at + 1 < a.rows)
				sums[4 * j + 2 * half + 1] += from[1];
		}
}

template <int COUNT>
static __device__ __forceinline__ void batch_store(
	const struct batch_args &a, const struct batch_place &place, const float (&sums)[COUNT], int begin, int end)
{
#pragma unroll
	for (int j = 0; j < COUNT / 4; j++)
#pragma unroll
		for (int half = 0; half < 2; half++)
			if (j >= begin && j < end)
				store_two<float, float2>(a, place.row + half * 8, place.line + j * 8, a.rows,
					sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
}

/* The other block's sums of eights [begin, end), which this one finishes, and this one's of the rest for the other. memory: what
 * held the stages. All threads that multiply; those that request take part in the barriers of the cluster. */
template <int COUNT>
static __device__ __forceinline__ void batch_exchange(float (&sums)[COUNT], uint8_t *memory, int rank, int begin, int end)
{
	float4 *mine = (float4 *)memory + threadIdx.x;
	named_sync(BATCH_ALL, BATCH_CONSUMERS); /* the other warpgroup reads its last stage */
#pragma unroll
	for (int j = 0; j < COUNT / 4; j++)
		if (j < begin || j >= end)
			mine[j * BATCH_CONSUMERS] = make_float4(sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]);
	cluster_arrive();
	cluster_wait();
#pragma unroll
	for (int j = 0; j < COUNT / 4; j++) {
		if (j < begin || j >= end)
			continue;
		const float4 other = load_from_rank(shared_address(mine + j * BATCH_CONSUMERS), rank ^ 1);
		sums[4 * j] += other.x;
		sums[4 * j + 1] += other.y;
		sums[4 * j + 2] += other.z;
		sums[4 * j + 3] += other.w;
	}
}

/* Cluster: a tile of TILE weight rows. Block: the columns of its rank among SPLIT. Warps 0 to 7: two warpgroups that multiply. Warp
 * 8: its first lane requests weights and inputs. */
template <enum pack_form FORM, int ROWS, int TILE, int SPLIT>
__global__ void __launch_bounds__(BATCH_THREADS, 1) batch_kernel(
	const struct batch_args a, const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map)
{
	using shape = batch_shape<ROWS, TILE, SPLIT>;
	extern __shared__ __align__(HOPPER_ATOM_BYTES) uint8_t memory[];
	auto &shared = *(typename shape::memory *)memory;
	const int rank = SPLIT == 1 ? 0 : cluster_rank(), line = blockIdx.x / SPLIT * TILE;
	const int begin = a.n_blocks * rank / SPLIT, end = a.n_blocks * (rank + 1) / SPLIT;
	if (threadIdx.x == BATCH_CONSUMERS) {
		for (int i = 0; i < shape::STAGES; i++) {
			barrier_init(&shared.w_full[i], 1);
			barrier_init(&shared.x_full[i], 1);
			barrier_init(&shared.empty[i], BATCH_CONSUMERS / CUDA_WARP);
		}
		barrier_init_done();
	}
	__syncthreads();
	dependency_release();
	if (threadIdx.x >= BATCH_CONSUMERS) {
		if (threadIdx.x == BATCH_CONSUMERS)
			batch_request<ROWS, TILE, SPLIT>(a, shared, &w_map, &x_map, line, begin, end);
		__syncwarp();
		for (int i = 0; SPLIT > 1 && i < 2; i++) {
			cluster_arrive();
			cluster_wait();
		}
		return;
	}
	float sums[shape::COLUMNS / 2];
	constexpr int EIGHTS = shape::COLUMNS / 8;
	const struct batch_place place = batch_place::of_thread<ROWS, shape::COLUMNS>(line);
	const int my_begin = SPLIT > 1 && rank == 1 ? EIGHTS / 2 : 0, my_end = SPLIT > 1 && rank == 0 ? EIGHTS / 2 : EIGHTS;
	dependency_wait(); /* y may still be read or written by the kernel in front */
	batch_multiply<FORM, ROWS, TILE, SPLIT>(sums, shared, end - begin);
	if (a.epilogue == KN_ADD)
		batch_add(a, place, sums, my_begin, my_end);
	if (SPLIT > 1)
		batch_exchange(sums, memory, rank, my_begin, my_end);
	if (SPLIT == 1 && a.epilogue == KN_SWIGLU)
		batch_store_gated<FORM>(a, place, sums);
	else
		batch_store(a, place, sums, my_begin, my_end);
	if (SPLIT > 1) { /* the other block reads this one's memory */
		cluster_arrive();
		cluster_wait();
	}
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

struct batch_variant {
	int rows, tile, split, shared_bytes;
	void (*kernels[2])(struct batch_args, CUtensorMap, CUtensorMap); /* by enum pack_form: bf16, fp16 */
};

template <int ROWS, int TILE, int SPLIT> static constexpr struct batch_variant batch_variant_of(void)
{
	return {ROWS, TILE, SPLIT, sizeof(typename batch_shape<ROWS, TILE, SPLIT>::memory),
		{batch_kernel<PACK_BF16, ROWS, TILE, SPLIT>, batch_kernel<PACK_F16, ROWS, TILE, SPLIT>}};
}

/* Lower tiles would read more activations than weights, and do too little between two barriers: measured, see NOTES.md. */
#define BATCH_TILES(ROWS) \
	batch_variant_of<ROWS, 64, 2>(), batch_variant_of<ROWS, 96, 2>(), batch_variant_of<ROWS, 64, 1>(), \
		batch_variant_of<ROWS, 128, 1>(), batch_variant_of<ROWS, 192, 1>(), batch_variant_of<ROWS, 224, 1>()

static const struct batch_variant batch_variants[] = {BATCH_TILES(32), BATCH_TILES(64), BATCH_TILES(128)};

#define BATCH_N_VARIANTS (sizeof batch_variants / sizeof batch_variants[0])

struct batch {
	PFN_cuTensorMapEncodeTiled_v12000 encode;
};

static CUtensorMapDataType batch_type(enum pack_form form)
{
	return form == PACK_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

static CUresult map_weights(
	const struct batch *batch, const struct kn_matrix *w, enum kn_epilogue epilogue, int tile, CUtensorMap *out)
{
	const cuuint64_t cols = (cuuint64_t)w->cols, rows = (cuuint64_t)w->rows, line = cols * 2;
	const bool gated = epilogue == KN_SWIGLU; /* eight gates, their ups, the next eight gates */
	const cuuint64_t plain_sizes[4] = {cols, rows, 1, 1}, gated_sizes[4] = {cols, 8, 2, rows / 16};
	const cuuint64_t plain_strides[3] = {line, rows * line, rows * line}, gated_strides[3] = {line, rows / 2 * line, 8 * line};
	const cuuint32_t height = (cuuint32_t)tile, plain_box[4] = {BATCH_DEPTH, height, 1, 1},
			 gated_box[4] = {BATCH_DEPTH, 8, 2, height / 16};
	const cuuint32_t steps[4] = {1, 1, 1, 1};
	return batch->encode(out, batch_type(w->form), 4, w->data, gated ? gated_sizes : plain_sizes,
		gated ? gated_strides : plain_strides, gated ? gated_box : plain_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
		CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static CUresult map_inputs(const struct batch *batch, const struct kn_matrix *w, const void *x, int64_t x_stride, int n_rows,
	int rows, CUtensorMap *out)
{
	const cuuint64_t sizes[2] = {(cuuint64_t)w->cols, (cuuint64_t)n_rows}, strides[1] = {(cuuint64_t)x_stride * 2};
	const cuuint32_t box[2] = {BATCH_DEPTH, (cuuint32_t)rows}, steps[2] = {1, 1};
	return batch->encode(out, batch_type(w->form), 2, const_cast<void *>(x), sizes, strides, box, steps,
		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

/* One product: what batch_variant, input and matrix say. */
static cudaError_t batch_run(const struct batch *batch, const struct batch_variant *variant, cudaStream_t stream,
	const struct kn_matmul *args, int n_rows, const void *x, int64_t x_stride)
{
	const struct kn_matrix *w = args->w;
	CUtensorMap w_map, x_map;
	if (map_weights(batch, w, args->epilogue, variant->tile, &w_map) != CUDA_SUCCESS ||
		map_inputs(batch, w, x, x_stride, n_rows, variant->rows, &x_map) != CUDA_SUCCESS)
		return cudaErrorInvalidValue;
	struct batch_args a = {};
	a.y = args->y;
	a.y_stride = args->y_stride;
	a.rows = (int)w->rows;
	a.n_rows = n_rows;
	a.n_blocks = (int)((w->cols + BATCH_DEPTH - 1) / BATCH_DEPTH);
	a.epilogue = args->epilogue;
	a.y_prepared = is_prepared_for(args->reader, n_rows);
	a.in_pairs = args->y_stride % 2 == 0 && (uintptr_t)args->y % 8 == 0;
	cudaLaunchAttribute attributes[2] = {};
	attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attributes[0].val.programmaticStreamSerializationAllowed = 1;
	attributes[1].id = cudaLaunchAttributeClusterDimension;
	attributes[1].val.clusterDim = {(unsigned)variant->split, 1, 1};
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3((unsigned)((w->rows + variant->tile - 1) / variant->tile * variant->split));
	config.blockDim = dim3(BATCH_THREADS);
	config.dynamicSmemBytes = variant->shared_bytes;
	config.stream = stream;
	config.attrs = attributes;
	config.numAttrs = 2;
	return cudaLaunchKernelEx(&config, variant->kernels[w->form == PACK_BF16 ? 0 : 1], a, w_map, x_map);
}

static int blocks_of(const struct batch_variant *variant, int64_t w_rows)
{
	const int64_t tiles = (w_rows + variant->tile - 1) / variant->tile;
	return tiles > INT32_MAX / 2 ? INT32_MAX : (int)tiles * variant->split;
}

/* The variant with most blocks that all run at once, for as few rows as will do: these come first. NULL: none. */
static const struct batch_variant *choose(int n_sms, const struct kn_matrix *w, enum kn_epilogue epilogue, int n_rows)
{
	const struct batch_variant *best = nullptr;
	for (size_t i = 0; i < BATCH_N_VARIANTS; i++) {
		const struct batch_variant *variant = &batch_variants[i];
		const int n = blocks_of(variant, w->rows);
		if (variant->rows < n_rows || n > n_sms || (epilogue == KN_SWIGLU && variant->split > 1))
			continue;
		if (!best || n > blocks_of(best, w->rows))
			best = variant;
	}
	return best && 4 * blocks_of(best, w->rows) >= 3 * n_sms ? best : nullptr; /* guess: with fewer the library is as fast */
}

bool batch_takes(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	const struct kn_matrix *w = args->w;
	const bool whole_eights = args->epilogue != KN_SWIGLU || w->rows % 16 == 0; /* of gates and of ups */
	return backend->batch && n_rows <= BATCH_ROWS_MAX && (w->form == PACK_BF16 || w->form == PACK_F16) && whole_eights &&
		w->cols >= 2 * BATCH_DEPTH && choose(backend->n_sms, w, args->epilogue, n_rows);
}

enum status kn_cuda_batch(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const void *x;
	int64_t x_stride;
	cudaError_t error = elementwise_input(backend, args, n_rows, &x, &x_stride);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	const struct batch_variant *variant = choose(backend->n_sms, args->w, args->epilogue, n_rows);
	return cuda_status(batch_run(backend->batch, variant, backend->stream, args, n_rows, x, x_stride),
		"matrix product of tens of rows", err);
}

enum status batch_create(struct kn_backend *backend, struct err *err)
{
	cudaDriverEntryPointQueryResult found;
	void *encode = nullptr;
	cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
	if (!error && !encode)
		error = cudaErrorNotSupported;
	for (size_t i = 0; i < BATCH_N_VARIANTS && !error; i++)
		for (int form = 0; form < 2 && !error; form++)
			error = cudaFuncSetAttribute(batch_variants[i].kernels[form], cudaFuncAttributeMaxDynamicSharedMemorySize,
				batch_variants[i].shared_bytes);
	if (error)
		return cuda_status(error, "matrix product of tens of rows", err);
	backend->batch = (struct batch *)mem_calloc(1, sizeof *backend->batch);
	backend->batch->encode = (PFN_cuTensorMapEncodeTiled_v12000)encode;
	return STATUS_OK;
}

void batch_destroy(struct batch *batch)
{
	mem_free(batch);
}
