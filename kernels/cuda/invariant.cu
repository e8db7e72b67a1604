/* Products whose rows have the same bits in a step of any size: by the kernel for few rows alone, which adds up a row's columns in
 * the same order whatever the other rows are, or by the one for one row where the other does not take the weights (fp32). Weights
 * are read once for every few rows, so prefill costs several times what it does otherwise. */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/few.cuh"

/* One row; gathered first, since that kernel takes no index. */
static enum status one_row(struct kn_backend *backend, struct kn_matmul *args, struct err *err)
{
	if (args->row_index) {
		struct kn_matmul gather = *args;
		gather.norm_weight = NULL;
		cudaError_t error = elementwise_prepare(backend, &gather, PACK_F32, 1);
		if (error)
			return cuda_status(error, "input of a matrix product", err);
		args->x = (const float *)backend->prepared;
		args->row_index = NULL;
	}
	return kn_cuda_gemv(backend, args, err);
}

enum status kn_cuda_matmul_invariant(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const bool by_one = args->w->form == PACK_F32;
	const int step = by_one ? 1 : FEW_ROWS_MAX;
	enum status status = STATUS_OK;
	if (by_one && args->w->cols > ONE_ROW_COLS_MAX)
		return err_set(err, STATUS_INPUT, "fp32 weights of %lld columns: with --deterministic GPUs take at most %d",
			(long long)args->w->cols, ONE_ROW_COLS_MAX);
	for (int row = 0; row < n_rows && !status; row += step) {
		struct kn_matmul part = *args;
		part.reader = NULL; /* inputs stay fp32 between products: parts are not cut as their readers' are */
		part.x_for_w = 0;
		if (part.row_index)
			part.row_index += row;
		else
			part.x += row * args->x_stride;
		part.y += row * args->y_stride;
		status = by_one ? one_row(backend, &part, err)
				: kn_cuda_few(backend, &part, n_rows - row < step ? n_rows - row : step, err);
	}
	return status;
}
