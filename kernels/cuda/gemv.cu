/* Launch of the one-row product: constants per number of columns, chosen by measurement (see NOTES.md). */
#include "kernels/cuda/gemv.cuh"

#define GEMV_SHARED_BYTES_MAX (48 << 10) /* what a kernel gets without asking for more */

/* How a product of some number of columns is cut. */
struct gemv_cut {
	int warps, blocks_per_sm;
};

static struct gemv_cut cut_of(int64_t cols)
{
	if (cols <= 2048)
		return {8, 4};
	if (cols <= 4096)
		return {16, 2};
	if (cols <= 8192)
		return {32, 1};
	return {28, 1};
}

/* Eight 16-byte loads in flight per lane of long rows, four of short ones; an fp32 chunk takes two loads. */
template <enum pack_form FORM>
static cudaError_t launch(cudaStream_t stream, int n_blocks, size_t shared_bytes, const struct gemv_args &args)
{
	constexpr int WIDTH = FORM == PACK_F32 ? 2 : 1;
	dim3 grid(n_blocks), block(cut_of(args.cols).warps * CUDA_WARP);
	if (args.cols <= 2048)
		return launch_dependent(stream, grid, block, shared_bytes, gemv_kernel<FORM, 8, 1, 4 / WIDTH, 4>, args);
	if (args.cols <= 4096)
		return launch_dependent(stream, grid, block, shared_bytes, gemv_kernel<FORM, 16, 1, 4 / WIDTH, 2>, args);
	if (args.cols <= 8192)
		return launch_dependent(stream, grid, block, shared_bytes, gemv_kernel<FORM, 32, 1, 4 / WIDTH, 1>, args);
	if (args.cols <= 14336)
		return launch_dependent(stream, grid, block, shared_bytes, gemv_kernel<FORM, 28, 2, 2 / WIDTH, 1>, args);
	return launch_dependent(stream, grid, block, shared_bytes, gemv_kernel<FORM, 28, 4, 1, 1>, args);
}

enum status kn_cuda_gemv(struct kn_backend *backend, const struct kn_matmul *args, struct err *err)
{
	const struct kn_matrix *w = args->w;
	const struct gemv_cut cut = cut_of(w->cols);
	ASSERT(w->cols % 8 == 0 && w->cols <= ONE_ROW_COLS_MAX);
	struct gemv_args gemv = {};
	gemv.weights = w->data;
	gemv.x = args->x;
	gemv.norm_weight = args->norm_weight;
	gemv.norm_eps = args->norm_eps;
	gemv.y = args->y;
	gemv.rows = w->rows;
	gemv.cols = w->cols;
	gemv.epilogue = args->epilogue;
	int64_t waves = 0, n_blocks;
	size_t shared_bytes;
	do { /* one wave of blocks, unless their partial sums do not fit */
		n_blocks = (int64_t)backend->n_sms * cut.blocks_per_sm * ++waves;
		gemv.rows_per_block = (int)((w->rows + n_blocks - 1) / n_blocks);
		gemv.rows_per_block += gemv.rows_per_block % 2; /* gate and up stay together */
		shared_bytes = (size_t)(gemv.rows_per_block + 1) * cut.warps * sizeof(float);
	} while (shared_bytes > GEMV_SHARED_BYTES_MAX);
	n_blocks = (w->rows + gemv.rows_per_block - 1) / gemv.rows_per_block;
	cudaError_t error = cudaErrorInvalidValue;
	switch (w->form) {
	case PACK_BF16:
		error = launch<PACK_BF16>(backend->stream, (int)n_blocks, shared_bytes, gemv);
		break;
	case PACK_F16:
		error = launch<PACK_F16>(backend->stream, (int)n_blocks, shared_bytes, gemv);
		break;
	case PACK_F32:
		error = launch<PACK_F32>(backend->stream, (int)n_blocks, shared_bytes, gemv);
		break;
	case PACK_QUANT:
		break;
	}
	return cuda_status(error, "gemv", err);
}
