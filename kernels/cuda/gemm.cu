/* Matrix product for many rows: prepared input in the weights' type, then cuBLASLt with fp32 accumulation and output. */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm.cuh"

static cudaDataType_t data_type(enum pack_form form)
{
	switch (form) {
	case PACK_BF16:
		return CUDA_R_16BF;
	case PACK_F16:
		return CUDA_R_16F;
	default:
		return CUDA_R_32F;
	}
}

/* The library is column-major: row-major y[n, rows] = x[n, cols] * w[rows, cols]^T is its Y[rows, n] = W^T * X. */
static cublasStatus_t make_layouts(const struct kn_matrix *w, int n_rows, int64_t y_stride, struct gemm_choice *out)
{
	cublasStatus_t status = cublasLtMatrixLayoutCreate(&out->w, data_type(w->form), w->cols, w->rows, w->cols);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatrixLayoutCreate(&out->x, data_type(w->form), w->cols, n_rows, w->cols);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatrixLayoutCreate(&out->y, CUDA_R_32F, w->rows, n_rows, y_stride);
	return status;
}

static void release_layouts(struct gemm_choice *choice)
{
	if (choice->w)
		cublasLtMatrixLayoutDestroy(choice->w);
	if (choice->x)
		cublasLtMatrixLayoutDestroy(choice->x);
	if (choice->y)
		cublasLtMatrixLayoutDestroy(choice->y);
	*choice = {};
}

/* Asks the library's heuristic once per shape and keeps the answer: a table of GEMM_CHOICES_MAX entries, replaced round robin. */
static cublasStatus_t find_choice(
	struct kn_backend *backend, const struct kn_matrix *w, int n_rows, int64_t y_stride, struct gemm_choice **out)
{
	struct gemm_cache *cache = backend->gemm;
	for (int i = 0; i < cache->n_choices; i++) {
		struct gemm_choice *choice = &cache->choices[i];
		if (choice->form == w->form && choice->rows == w->rows && choice->cols == w->cols && choice->n_rows == n_rows &&
			choice->y_stride == y_stride) {
			*out = choice;
			return CUBLAS_STATUS_SUCCESS;
		}
	}
	struct gemm_choice *choice = &cache->choices[cache->next];
	release_layouts(choice);
	cublasStatus_t status = make_layouts(w, n_rows, y_stride, choice);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	cublasLtMatmulPreference_t preference;
	status = cublasLtMatmulPreferenceCreate(&preference);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	uint64_t workspace = GEMM_WORKSPACE_BYTES;
	cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	cublasLtMatmulHeuristicResult_t result;
	int found = 0;
	status = cublasLtMatmulAlgoGetHeuristic(
		backend->blas, cache->operation, choice->w, choice->x, choice->y, choice->y, preference, 1, &result, &found);
	cublasLtMatmulPreferenceDestroy(preference);
	if (status == CUBLAS_STATUS_SUCCESS && found == 0)
		status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	choice->algorithm = result.algo;
	choice->form = w->form;
	choice->rows = w->rows;
	choice->cols = w->cols;
	choice->n_rows = n_rows;
	choice->y_stride = y_stride;
	cache->next = (cache->next + 1) % GEMM_CHOICES_MAX;
	if (cache->n_choices < GEMM_CHOICES_MAX)
		cache->n_choices++;
	*out = choice;
	return CUBLAS_STATUS_SUCCESS;
}

enum status kn_cuda_gemm(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const struct kn_matrix *w = args->w;
	const bool swiglu = args->epilogue == KN_SWIGLU;
	float *y = swiglu ? backend->product : args->y;
	const int64_t y_stride = swiglu ? w->rows : args->y_stride;
	const float one = 1.0f, keep = args->epilogue == KN_ADD ? 1.0f : 0.0f;
	cudaError_t error = elementwise_prepare(backend, args, w->form, n_rows);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	struct gemm_choice *choice;
	cublasStatus_t status = find_choice(backend, w, n_rows, y_stride, &choice);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatmul(backend->blas, backend->gemm->operation, &one, w->data, choice->w, backend->prepared,
			choice->x, &keep, y, choice->y, y, choice->y, &choice->algorithm, backend->blas_workspace,
			GEMM_WORKSPACE_BYTES, backend->stream);
	if (status != CUBLAS_STATUS_SUCCESS)
		return err_set(err, STATUS_UNAVAILABLE, "cuBLASLt refused a product of [%d, %lld] with [%lld, %lld]: %s", n_rows,
			(long long)w->cols, (long long)w->rows, (long long)w->cols, cublasLtGetStatusString(status));
	if (swiglu)
		return cuda_status(
			elementwise_swiglu(backend, backend->product, args->y, args->y_stride, w->rows / 2, n_rows), "swiglu", err);
	return STATUS_OK;
}

enum status gemm_cache_create(struct kn_backend *backend, struct gemm_cache *cache, struct err *err)
{
	backend->gemm = cache;
	cublasStatus_t status = cublasLtMatmulDescCreate(&cache->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
	if (status == CUBLAS_STATUS_SUCCESS) {
		cublasOperation_t transposed = CUBLAS_OP_T;
		status = cublasLtMatmulDescSetAttribute(
			cache->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
	}
	if (status != CUBLAS_STATUS_SUCCESS)
		return err_set(err, STATUS_UNAVAILABLE, "cuBLASLt: %s", cublasLtGetStatusString(status));
	return STATUS_OK;
}

void gemm_cache_release(struct gemm_cache *cache)
{
	for (int i = 0; i < GEMM_CHOICES_MAX; i++)
		release_layouts(&cache->choices[i]);
	if (cache->operation)
		cublasLtMatmulDescDestroy(cache->operation);
}
