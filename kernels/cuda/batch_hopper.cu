/* Matrix products for up to 128 rows on Hopper: which kernel, tiles and arguments. The kernel is in batch_hopper.cuh. */
#include <cudaTypedefs.h>

extern "C" {
#include "base/mem.h"
}
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/batch_hopper.cuh"
#include "kernels/cuda/elementwise.cuh"

struct batch_variant {
	int rows, tile, split, parts, threads, shared_bytes;
	void (*kernels[2])(struct batch_args, CUtensorMap, CUtensorMap); /* by enum pack_form: bf16, fp16 */
};

template <typename SHAPE> static constexpr struct batch_variant batch_variant_of(void)
{
	return {SHAPE::ROWS, SHAPE::TILE, SHAPE::SPLIT, SHAPE::PARTS, batch_threads<SHAPE>(), sizeof(typename SHAPE::memory),
		{batch_kernel<PACK_BF16, SHAPE>, batch_kernel<PACK_F16, SHAPE>}};
}

/* Lower ones would read many more activations than weights, and do too little between two barriers: see NOTES.md. */
#define BATCH_TILES(ROWS) \
	batch_variant_of<low_shape<ROWS>>(), batch_variant_of<tall_shape<ROWS, 96, 2>>(), \
		batch_variant_of<tall_shape<ROWS, 64, 1>>(), batch_variant_of<tall_shape<ROWS, 128, 1>>(), \
		batch_variant_of<tall_shape<ROWS, 192, 1>>(), batch_variant_of<tall_shape<ROWS, 224, 1>>()

static const struct batch_variant batch_variants[] = {BATCH_TILES(32), BATCH_TILES(64), BATCH_TILES(128)};

#define BATCH_N_VARIANTS (sizeof batch_variants / sizeof batch_variants[0])

struct batch {
	PFN_cuTensorMapEncodeTiled_v12000 encode;
	float *squares; /* see struct batch_args */
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

static int tiles_of(const struct batch_variant *variant, int64_t w_rows)
{
	const int64_t tiles = (w_rows + variant->tile - 1) / variant->tile;
	return tiles > INT32_MAX / 2 ? INT32_MAX / 2 : (int)tiles;
}

/* Parts that the squares of a row of results come in. */
static int squares_of(const struct batch_variant *variant, int64_t w_rows)
{
	return tiles_of(variant, w_rows) * variant->parts;
}

/* The variant with most blocks that all run at once, for as few rows as will do: these come first. NULL: none. */
static const struct batch_variant *choose(int n_sms, const struct kn_matrix *w, enum kn_epilogue epilogue, int n_rows)
{
	const struct batch_variant *best = nullptr;
	int most = 0;
	for (size_t i = 0; i < BATCH_N_VARIANTS; i++) {
		const struct batch_variant *variant = &batch_variants[i];
		const int n_blocks = tiles_of(variant, w->rows) * variant->split;
		if (variant->rows < n_rows || n_blocks > n_sms || n_blocks <= most || (epilogue == KN_SWIGLU && variant->split > 1))
			continue;
		best = variant;
		most = n_blocks;
	}
	return 4 * most >= 3 * n_sms ? best : nullptr; /* guess: with fewer the library is as fast */
}

bool batch_takes(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows)
{
	const struct kn_matrix *w = args->w;
	const bool whole_eights = w->rows % (args->epilogue == KN_SWIGLU ? 16 : 8) == 0; /* of gates and of ups */
	const bool y_prepared = is_prepared_for(args->reader, n_rows); /* then stored in pieces of 16 bytes, else in pairs */
	const bool y_aligned = y_prepared ? args->y_stride % 8 == 0 && (uintptr_t)args->y % 16 == 0
					  : args->y_stride % 2 == 0 && (uintptr_t)args->y % 8 == 0;
	/* Prepared input always is; what another operation left need not be. Tensor maps want 16 bytes. */
	const bool x_aligned = !args->x_for_w || (args->x_stride % 8 == 0 && (uintptr_t)args->x % 16 == 0);
	const bool writes_own = !y_prepared || args->reader->form == w->form; /* or fp32 */
	return backend->batch && n_rows <= BATCH_ROWS_MAX && (w->form == PACK_BF16 || w->form == PACK_F16) && whole_eights &&
		y_aligned && x_aligned && writes_own && w->cols >= 2 * BATCH_DEPTH &&
		choose(backend->n_sms, w, args->epilogue, n_rows);
}

/* Whether second can read what first leaves, in bf16. A norm's input leaves out its division by the root of the mean square, so it
 * may be too large for fp16. */
static bool follows(const struct kn_matmul *first, const struct kn_matmul *second, int n_rows)
{
	if (second->x != first->y || second->x_stride != first->y_stride || second->w->cols > first->w->rows || second->row_index)
		return false;
	if (!second->norm_weight)
		return second->x_for_w && first->reader == second->w && is_prepared_for(second->w, n_rows);
	return first->epilogue == KN_ADD && !first->norm_weight && second->epilogue != KN_ADD &&
		second->w->cols == first->w->rows && (uintptr_t)second->norm_weight % 8 == 0;
}

bool batch_takes_chain(const struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows)
{
	for (int i = 0; i < count; i++)
		if (!batch_takes(backend, &chain[i], n_rows) || chain[i].w->form != PACK_BF16 ||
			(i > 0 && !follows(&chain[i - 1], &chain[i], n_rows)))
			return false;
	return true;
}

static cudaError_t launch(const struct kn_backend *backend, const struct batch_variant *variant, const struct kn_matmul *args,
	const void *x, int64_t x_stride, const struct batch_args &a)
{
	const struct kn_matrix *w = args->w;
	CUtensorMap w_map, x_map;
	if (map_weights(backend->batch, w, args->epilogue, variant->tile, &w_map) != CUDA_SUCCESS ||
		map_inputs(backend->batch, w, x, x_stride, a.n_rows, variant->rows, &x_map) != CUDA_SUCCESS)
		return cudaErrorInvalidValue;
	cudaLaunchAttribute attributes[2] = {};
	cudaLaunchConfig_t config = {};
	attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attributes[0].val.programmaticStreamSerializationAllowed = 1;
	attributes[1].id = cudaLaunchAttributeClusterDimension;
	attributes[1].val.clusterDim = {(unsigned)variant->split, 1, 1};
	config.gridDim = dim3((unsigned)(tiles_of(variant, w->rows) * variant->split));
	config.blockDim = dim3(variant->threads);
	config.dynamicSmemBytes = variant->shared_bytes;
	config.stream = backend->stream;
	config.attrs = attributes;
	config.numAttrs = 2;
	return cudaLaunchKernelEx(&config, variant->kernels[w->form == PACK_BF16 ? 0 : 1], a, w_map, x_map);
}

enum status kn_cuda_batch(struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err)
{
	const void *x;
	int64_t x_stride;
	cudaError_t error = elementwise_input(backend, &chain[0], n_rows, &x, &x_stride);
	int n_squares = 0;
	for (int i = 0; i < count && !error; i++) {
		const struct kn_matmul *args = &chain[i],
				       *next = i + 1 < count && chain[i + 1].norm_weight ? &chain[i + 1] : nullptr;
		const struct batch_variant *variant = choose(backend->n_sms, args->w, args->epilogue, n_rows);
		struct batch_args a = {};
		a.y = args->y;
		a.y_stride = args->y_stride;
		a.rows = (int)args->w->rows;
		a.n_rows = n_rows;
		a.n_blocks = (int)((args->w->cols + BATCH_DEPTH - 1) / BATCH_DEPTH);
		a.epilogue = args->epilogue;
		a.y_prepared = is_prepared_for(args->reader, n_rows);
		a.n_squares = n_squares;
		a.eps = args->norm_eps;
		a.mean_of = 1.0f / (float)args->w->cols;
		a.norm_weight = next ? next->norm_weight : nullptr;
		a.normed = (__nv_bfloat16 *)backend->product;
		a.squares = backend->batch->squares;
		error = launch(backend, variant, args, x, x_stride, a);
		n_squares = next ? squares_of(variant, args->w->rows) : 0;
		x = next ? backend->product : args->y;
		x_stride = next ? args->w->rows : args->y_stride;
	}
	return cuda_status(error, "matrix products of tens of rows", err);
}

enum status batch_create(struct kn_backend *backend, struct err *err)
{
	cudaDriverEntryPointQueryResult found;
	void *encode = nullptr;
	const size_t squares_bytes = 2 * (size_t)backend->n_sms * BATCH_ROWS_MAX * sizeof(float); /* two parts a block at most */
	struct batch *batch = backend->batch = (struct batch *)mem_calloc(1, sizeof *backend->batch);
	cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
	if (!error && !encode)
		error = cudaErrorNotSupported;
	batch->encode = (PFN_cuTensorMapEncodeTiled_v12000)encode;
	for (size_t i = 0; i < BATCH_N_VARIANTS && !error; i++)
		for (int form = 0; form < 2 && !error; form++)
			error = cudaFuncSetAttribute(batch_variants[i].kernels[form], cudaFuncAttributeMaxDynamicSharedMemorySize,
				batch_variants[i].shared_bytes);
	if (!error)
		error = cudaMalloc((void **)&batch->squares, squares_bytes);
	if (!error)
		error = cudaMemset(batch->squares, 0, squares_bytes); /* rows past the last are read, to no effect */
	return cuda_status(error, "matrix product of tens of rows", err);
}

void batch_destroy(struct batch *batch)
{
	if (!batch)
		return;
	cudaFree(batch->squares);
	mem_free(batch);
}
