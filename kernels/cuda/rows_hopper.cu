/* Matrix product for 2 to 128 rows on Hopper: streams the weights once through shared memory, on warpgroup products.
 *
 * Weights are the 64-line operand, activations the other, so rows of activations cost hardly more than one as long as memory is the
 * limit. One warp asks the copy engine for tiles of 64 columns, as many ahead as fit; those of the weights before the wait for the
 * kernel in front. Where weight rows alone give too few blocks, the blocks of a cluster share the columns and add their sums in rank
 * order through shared memory. How columns are shared depends on the matrix alone, so a row's bits depend neither on the number
 * of rows nor on the other rows. */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/rows.cuh"

#define ROWS_COLUMNS 64 /* of one stage: a line of 128 bytes */
#define ROWS_BOX 32 /* weight rows of one copy */
#define ROWS_RANKS_MAX 8 /* blocks of a cluster that every Hopper takes */
#define ROWS_TILES_PER_SM 4 /* tiles of 64 weight rows in flight on one processor: see rows_shape */

struct rows_args {
	void *y;
	int64_t y_stride;
	int rows, cols, n_rows;
	enum kn_epilogue epilogue;
	bool y_prepared; /* y in the weights' type, else fp32 */
	bool y_by_four; /* lines of y are aligned for stores of four elements */
};

/* A block: GROUPS * 64 weight rows for up to N rows of activations. Stages are as many as let GROUPS * (blocks on a processor) be
 * ROWS_TILES_PER_SM. */
template <int GROUPS, int N, int STAGES_> struct rows_shape {
	static constexpr int STAGES = STAGES_, LINES = GROUPS * 64, BLOCKS = ROWS_TILES_PER_SM / GROUPS;
	static constexpr int WARPS = GROUPS * 4, THREADS = WARPS * CUDA_WARP + CUDA_WARP; /* the last warp asks for copies */
	static constexpr int W_BYTES = LINES * HOPPER_LINE_BYTES, X_BYTES = N * HOPPER_LINE_BYTES, STAGE_BYTES = W_BYTES + X_BYTES;
	static constexpr int SUMS_STRIDE = LINES + 4; /* floats of one row's sums; lanes of a warp hit different banks */
	static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + HOPPER_ATOM_BYTES; /* the latter for alignment */
	static_assert(N * SUMS_STRIDE * 4 <= STAGES * STAGE_BYTES, "sums lie over the stages");
};

/* Weights of one stage. With SwiGLU the first half of a block's lines are gates, the second their ups. */
template <class SHAPE>
static __device__ __forceinline__ void request_weights(
	const struct rows_args &a, const CUtensorMap *map, int tile, int chunk, uint32_t to, uint64_t *full)
{
	constexpr int BOXES = SHAPE::LINES / ROWS_BOX;
#pragma unroll
	for (int i = 0; i < BOXES; i++) {
		int row = tile * SHAPE::LINES + i * ROWS_BOX;
		if (a.epilogue == KN_SWIGLU)
			row = tile * (SHAPE::LINES / 2) + i % (BOXES / 2) * ROWS_BOX + (i < BOXES / 2 ? 0 : a.rows / 2);
		box_copy(to + i * (ROWS_BOX * HOPPER_LINE_BYTES), map, chunk * ROWS_COLUMNS, row, full, HOPPER_EVICT_FIRST);
	}
}

/* The copying lane: chunks [begin, end) of the columns. */
template <class SHAPE>
static __device__ __forceinline__ void request_all(const struct rows_args &a, const CUtensorMap *w_map, const CUtensorMap *x_map,
	int tile, int begin, int end, uint32_t stages, uint64_t *full, uint64_t *empty)
{
	const int ahead = min(end - begin, SHAPE::STAGES);
	for (int i = 0; i < ahead; i++) {
		barrier_expect(&full[i], SHAPE::STAGE_BYTES);
		request_weights<SHAPE>(a, w_map, tile, begin + i, stages + i * SHAPE::STAGE_BYTES, &full[i]);
	}
	dependency_wait();
	for (int i = 0; i < ahead; i++)
		box_copy(stages + i * SHAPE::STAGE_BYTES + SHAPE::W_BYTES, x_map, (begin + i) * ROWS_COLUMNS, 0, &full[i],
			HOPPER_EVICT_LAST);
	int stage = 0, parity = 0;
	for (int chunk = begin + ahead; chunk < end; chunk++) {
		const uint32_t to = stages + stage * SHAPE::STAGE_BYTES;
		barrier_wait(&empty[stage], parity);
		barrier_expect(&full[stage], SHAPE::STAGE_BYTES);
		request_weights<SHAPE>(a, w_map, tile, chunk, to, &full[stage]);
		box_copy(to + SHAPE::W_BYTES, x_map, chunk * ROWS_COLUMNS, 0, &full[stage], HOPPER_EVICT_LAST);
		if (++stage == SHAPE::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
}

/* A multiplying warpgroup: its 64 lines over n_chunks stages. */
template <enum pack_form FORM, class SHAPE, int COUNT>
static __device__ __forceinline__ void multiply_all(
	float (&d)[COUNT], int n_chunks, uint32_t stages, uint64_t *full, uint64_t *empty)
{
	const int group = threadIdx.x / HOPPER_GROUP_THREADS, lane = threadIdx.x % CUDA_WARP;
	int stage = 0, parity = 0, before = 0;
#pragma unroll 1
	for (int i = 0; i < n_chunks; i++) {
		const uint32_t at = stages + stage * SHAPE::STAGE_BYTES;
		barrier_wait(&full[stage], parity);
		products_begin();
#pragma unroll
		for (int k = 0; k < ROWS_COLUMNS; k += 16) {
			const uint64_t w = tile_along_depth(at + group * (64 * HOPPER_LINE_BYTES) + k * 2);
			const uint64_t x = tile_along_depth(at + SHAPE::W_BYTES + k * 2);
			if (FORM == PACK_BF16)
				product_bf16(d, w, x, true);
			else
				product_f16(d, w, x, true);
		}
		products_commit();
		if (i > 0) {
			products_wait<1>();
			if (lane == 0)
				barrier_arrive(&empty[before]);
		}
		before = stage;
		if (++stage == SHAPE::STAGES) {
			stage = 0;
			parity ^= 1;
		}
	}
	products_wait<0>();
	products_hold(d);
}

template <typename T> struct alignas(4 * sizeof(T)) four {
	T value[4];
};

/* Four neighbouring results of one row; those past the last column are dropped. */
template <typename T>
static __device__ __forceinline__ void store_results(const struct rows_args &a, int row, int column, int n_columns, const float4 &v)
{
	const float values[4] = {v.x, v.y, v.z, v.w};
	T *to = (T *)a.y + row * a.y_stride + column;
	struct four<T> results = {};
	const bool whole = a.y_by_four && column + 4 <= n_columns;
	if (a.epilogue == KN_ADD && whole)
		results = *(const struct four<T> *)to;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		if (a.epilogue == KN_ADD && !whole && column + i < n_columns)
			results.value[i] = to[i];
		results.value[i] = (T)((float)results.value[i] + values[i]);
		if (!whole && column + i < n_columns)
			to[i] = results.value[i];
	}
	if (whole)
		*(struct four<T> *)to = results;
}

/* Adds the ranks' sums of four lines of one row, in rank order. */
static __device__ __forceinline__ float4 add_ranks(uint32_t at, int n_ranks)
{
	float4 total = cluster_load(at, 0);
#pragma unroll 4
	for (int rank = 1; rank < n_ranks; rank++) {
		const float4 v = cluster_load(at, rank);
		total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
	}
	return total;
}

/* Rows of the block's result take turns over the ranks; neighbouring threads have neighbouring lines. */
template <enum pack_form FORM, class SHAPE>
static __device__ __forceinline__ void finish_rows(
	const struct rows_args &a, const float *sums, int tile, int rank, int n_ranks, int n_threads)
{
	const bool gated = a.epilogue == KN_SWIGLU;
	const int columns = gated ? SHAPE::LINES / 2 : SHAPE::LINES, n_columns = gated ? a.rows / 2 : a.rows;
	const int quads = columns / 4;
	for (int i = threadIdx.x; i / quads * n_ranks + rank < a.n_rows; i += n_threads) {
		const int row = i / quads * n_ranks + rank, line = i % quads * 4, column = tile * columns + line;
		const uint32_t at = shared_address(sums + row * SHAPE::SUMS_STRIDE + line);
		float4 v = add_ranks(at, n_ranks);
		if (gated) {
			const float4 up = add_ranks(at + columns * (int)sizeof(float), n_ranks);
			v = make_float4(swiglu(v.x, up.x), swiglu(v.y, up.y), swiglu(v.z, up.z), swiglu(v.w, up.w));
		}
		if (!a.y_prepared)
			store_results<float>(a, row, column, n_columns, v);
		else if (FORM == PACK_BF16)
			store_results<__nv_bfloat16>(a, row, column, n_columns, v);
		else
			store_results<__half>(a, row, column, n_columns, v);
	}
}

/* Cluster: one tile of weight rows; rank: a stretch of the columns. Warpgroup: 64 of the lines. Shared: stages of weights and
 * activations, 1024-byte aligned; sums [N][SUMS_STRIDE] lie over them at the end. */
template <enum pack_form FORM, int GROUPS, int N, int STAGES>
__global__ void __launch_bounds__(rows_shape<GROUPS, N, STAGES>::THREADS, rows_shape<GROUPS, N, STAGES>::BLOCKS)
	rows_kernel(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map, const struct rows_args a,
		int n_ranks)
{
	using shape = rows_shape<GROUPS, N, STAGES>;
	extern __shared__ uint8_t shared[];
	__shared__ uint64_t full[STAGES], empty[STAGES];
	const uint32_t skip = -shared_address(shared) & (HOPPER_ATOM_BYTES - 1);
	const uint32_t stages = shared_address(shared) + skip;
	float *sums = (float *)(shared + skip);
	const int warp = threadIdx.x / CUDA_WARP, lane = threadIdx.x % CUDA_WARP;
	const int tile = blockIdx.x / n_ranks, rank = blockIdx.x % n_ranks; /* clusters are runs of n_ranks blocks */
	const int n_chunks = (a.cols + ROWS_COLUMNS - 1) / ROWS_COLUMNS;
	const int begin = n_chunks * rank / n_ranks, end = n_chunks * (rank + 1) / n_ranks;
	if (threadIdx.x == 0) {
		for (int i = 0; i < STAGES; i++) {
			barrier_init(&full[i], 1);
			barrier_init(&empty[i], shape::WARPS);
		}
		barrier_init_done();
	}
	__syncthreads();
	dependency_release();
	float d[N / 2] = {};
	if (warp == shape::WARPS) {
		if (lane == 0)
			request_all<shape>(a, &w_map, &x_map, tile, begin, end, stages, full, empty);
		__syncwarp();
	} else {
		multiply_all<FORM, shape>(d, end - begin, stages, full, empty);
	}
	__syncthreads(); /* all stages were read */
	if (warp < shape::WARPS)
#pragma unroll
		for (int i = 0; i < N / 2; i++)
			sums[(i / 4 * 8 + lane % 4 * 2 + i % 2) * shape::SUMS_STRIDE + warp * 16 + lane / 4 + i / 2 % 2 * 8] = d[i];
	if (n_ranks > 1)
		cluster_sync();
	else
		__syncthreads();
	dependency_wait(); /* y may have been read by the kernel in front */
	finish_rows<FORM, shape>(a, sums, tile, rank, n_ranks, shape::THREADS);
	__syncwarp();
	if (n_ranks > 1)
		cluster_sync(); /* no block leaves while another reads its sums */
}

/* --- launch ------------------------------------------------------------------------------------------------------- */

/* Lines of a 16-bit matrix as boxes of box_lines by ROWS_COLUMNS. */
static bool make_map(
	const struct kn_backend *backend, enum pack_form form, const void *data, int64_t lines, int64_t cols, int64_t stride,
	int box_lines, CUtensorMap *out)
{
	const cuuint64_t sizes[2] = {(cuuint64_t)cols, (cuuint64_t)lines}, strides[1] = {(cuuint64_t)stride * 2};
	const cuuint32_t box[2] = {ROWS_COLUMNS, (cuuint32_t)box_lines}, steps[2] = {1, 1};
	return backend->encode_map(out, form == PACK_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
		       (void *)data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
		       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Blocks that share a tile's columns: as many as one wave of the card holds. A function of the matrix alone. */
static int count_ranks(const struct kn_backend *backend, int64_t rows, int64_t cols)
{
	const int64_t tiles = (rows + 63) / 64, chunks = (cols + ROWS_COLUMNS - 1) / ROWS_COLUMNS;
	int ranks = ROWS_RANKS_MAX;
	while (ranks > 1 && (tiles * ranks > (int64_t)backend->n_sms * ROWS_TILES_PER_SM || chunks < 2 * ranks))
		ranks /= 2;
	return ranks;
}

template <enum pack_form FORM, int GROUPS, int N, int STAGES>
static cudaError_t launch(struct kn_backend *backend, const struct kn_matrix *w, const void *x, int64_t x_stride,
	const struct rows_args &args)
{
	using shape = rows_shape<GROUPS, N, STAGES>;
	CUtensorMap w_map, x_map;
	if (!make_map(backend, FORM, w->data, w->rows, w->cols, w->cols, ROWS_BOX, &w_map) ||
		!make_map(backend, FORM, x, args.n_rows, w->cols, x_stride, N, &x_map))
		return cudaErrorInvalidValue;
	const int ranks = count_ranks(backend, w->rows, w->cols);
	cudaLaunchAttribute attributes[2] = {};
	attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attributes[0].val.programmaticStreamSerializationAllowed = 1;
	attributes[1].id = cudaLaunchAttributeClusterDimension;
	attributes[1].val.clusterDim = {(unsigned)ranks, 1, 1};
	cudaLaunchConfig_t config = {};
	config.gridDim = dim3((unsigned)((w->rows + shape::LINES - 1) / shape::LINES * ranks));
	config.blockDim = dim3(shape::THREADS);
	config.dynamicSmemBytes = shape::SHARED_BYTES;
	config.stream = backend->stream;
	config.attrs = attributes;
	config.numAttrs = 2;
	return cudaLaunchKernelEx(&config, rows_kernel<FORM, GROUPS, N, STAGES>, w_map, x_map, args, ranks);
}

template <enum pack_form FORM>
static cudaError_t launch_for(struct kn_backend *backend, const struct kn_matrix *w, const void *x, int64_t x_stride,
	const struct rows_args &args)
{
	if (args.n_rows <= 8)
		return launch<FORM, 1, 8, 6>(backend, w, x, x_stride, args);
	if (args.n_rows <= 16)
		return launch<FORM, 1, 16, 5>(backend, w, x, x_stride, args);
	if (args.n_rows <= 32)
		return launch<FORM, 1, 32, 4>(backend, w, x, x_stride, args);
	if (args.n_rows <= 64)
		return launch<FORM, 2, 64, 4>(backend, w, x, x_stride, args);
	return launch<FORM, 2, 128, 3>(backend, w, x, x_stride, args);
}

bool rows_hopper_takes(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	return backend->is_hopper && n_rows <= ROWS_HOPPER_MAX && args->w->form != PACK_F32 && args->w->rows <= INT32_MAX &&
		args->w->rows % 2 == 0;
}

enum status kn_cuda_rows_hopper(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const struct kn_matrix *w = args->w;
	const void *x;
	int64_t x_stride;
	ASSERT(rows_hopper_takes(backend, args, n_rows));
	cudaError_t error = elementwise_input(backend, args, n_rows, &x, &x_stride);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	struct rows_args rows = {};
	rows.y = args->y;
	rows.y_stride = args->y_stride;
	rows.rows = (int)w->rows;
	rows.cols = (int)w->cols;
	rows.n_rows = n_rows;
	rows.epilogue = args->epilogue;
	rows.y_prepared = args->epilogue == KN_SWIGLU && is_prepared_for(args->reader, n_rows);
	rows.y_by_four = args->y_stride % 4 == 0 && (uintptr_t)args->y % 16 == 0;
	error = w->form == PACK_BF16 ? launch_for<PACK_BF16>(backend, w, x, x_stride, rows)
				     : launch_for<PACK_F16>(backend, w, x, x_stride, rows);
	return cuda_status(error, "matrix product of few rows", err);
}

template <enum pack_form FORM, int GROUPS, int N, int STAGES> static cudaError_t raise_shared(void)
{
	return cudaFuncSetAttribute(rows_kernel<FORM, GROUPS, N, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
		rows_shape<GROUPS, N, STAGES>::SHARED_BYTES);
}

template <enum pack_form FORM> static cudaError_t raise_all(void)
{
	cudaError_t error = raise_shared<FORM, 1, 8, 6>();
	error = error ? error : raise_shared<FORM, 1, 16, 5>();
	error = error ? error : raise_shared<FORM, 1, 32, 4>();
	error = error ? error : raise_shared<FORM, 2, 64, 4>();
	return error ? error : raise_shared<FORM, 2, 128, 3>();
}

cudaError_t rows_hopper_init(void)
{
	cudaError_t error = raise_all<PACK_BF16>();
	return error ? error : raise_all<PACK_F16>();
}
