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
static cublasStatus_t make_layouts(const struct gemm_shape *shape, struct gemm_choice *out)
{
	cublasStatus_t status = cublasLtMatrixLayoutCreate(&out->w, data_type(shape->form), shape->cols, shape->rows, shape->cols);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatrixLayoutCreate(&out->x, data_type(shape->form), shape->cols, shape->n_rows, shape->x_stride);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatrixLayoutCreate(&out->y, data_type(shape->y_form), shape->rows, shape->n_rows, shape->y_stride);
	return status;
}

static bool same_shape(const struct gemm_shape *a, const struct gemm_shape *b)
{
	return a->form == b->form && a->y_form == b->y_form && a->rows == b->rows && a->cols == b->cols && a->n_rows == b->n_rows &&
		a->x_stride == b->x_stride && a->y_stride == b->y_stride;
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

/* Asks the library's heuristic for an algorithm for the layouts of *choice. */
static cublasStatus_t ask(struct kn_backend *backend, struct gemm_choice *choice)
{
	cublasLtMatmulPreference_t preference;
	cublasStatus_t status = cublasLtMatmulPreferenceCreate(&preference);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	uint64_t workspace = GEMM_WORKSPACE_BYTES;
	cublasLtMatmulHeuristicResult_t result;
	int found = 0;
	status = cublasLtMatmulPreferenceSetAttribute(
		preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatmulAlgoGetHeuristic(backend->blas, backend->gemm->operation, choice->w, choice->x, choice->y,
			choice->y, preference, 1, &result, &found);
	cublasLtMatmulPreferenceDestroy(preference);
	if (status == CUBLAS_STATUS_SUCCESS && found == 0)
		status = CUBLAS_STATUS_NOT_SUPPORTED;
	if (status == CUBLAS_STATUS_SUCCESS)
		choice->algorithm = result.algo;
	return status;
}

/* The algorithm that all row counts up to shape->n_rows, a multiple of GEMM_ROWS_STEP, and above the last multiple share. */
static cublasStatus_t find_proposal(
	struct kn_backend *backend, const struct gemm_shape *shape, const cublasLtMatmulAlgo_t **out)
{
	struct gemm_cache *cache = backend->gemm;
	for (int i = 0; i < cache->n_proposals; i++)
		if (same_shape(&cache->proposals[i].shape, shape)) {
			*out = &cache->proposals[i].algorithm;
			return CUBLAS_STATUS_SUCCESS;
		}
	struct gemm_choice asked = {};
	cublasStatus_t status = make_layouts(shape, &asked);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = ask(backend, &asked);
	if (status == CUBLAS_STATUS_SUCCESS) {
		struct gemm_proposal *proposal = &cache->proposals[cache->next_proposal];
		proposal->shape = *shape;
		proposal->algorithm = asked.algorithm;
		*out = &proposal->algorithm;
		cache->next_proposal = (cache->next_proposal + 1) % GEMM_PROPOSALS_MAX;
		if (cache->n_proposals < GEMM_PROPOSALS_MAX)
			cache->n_proposals++;
	}
	release_layouts(&asked);
	return status;
}

/* True when an algorithm that was proposed for more rows computes the layouts of *choice in the workspace there is. */
static bool computes(const struct kn_backend *backend, const cublasLtMatmulAlgo_t *algorithm, const struct gemm_choice *choice)
{
	cublasLtMatmulHeuristicResult_t result = {};
	cublasStatus_t status = cublasLtMatmulAlgoCheck(
		backend->blas, backend->gemm->operation, choice->w, choice->x, choice->y, choice->y, algorithm, &result);
	return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= GEMM_WORKSPACE_BYTES;
}

/* Prompts come in every length, and each new one would cost a question for every matrix and the first run of whatever kernels the
 * answers name; so neighbouring lengths share an answer. Batches have few sizes, which come again in every step: each has its own.
 * An algorithm follows from the shape alone, whatever ran before, so that equal steps keep equal bits. */
static cublasStatus_t choose_algorithm(struct kn_backend *backend, const struct gemm_shape *shape, struct gemm_choice *choice)
{
	if (shape->n_rows <= GEMM_ROWS_OWN)
		return ask(backend, choice);
	struct gemm_shape shared = *shape;
	shared.n_rows = (shape->n_rows + GEMM_ROWS_STEP - 1) / GEMM_ROWS_STEP * GEMM_ROWS_STEP;
	const cublasLtMatmulAlgo_t *proposed = NULL;
	if (find_proposal(backend, &shared, &proposed) != CUBLAS_STATUS_SUCCESS || !computes(backend, proposed, choice))
		return ask(backend, choice);
	choice->algorithm = *proposed;
	return CUBLAS_STATUS_SUCCESS;
}

/* Layouts and an algorithm for a shape, made once and kept: a table of GEMM_CHOICES_MAX entries, replaced round robin. */
static cublasStatus_t find_choice(struct kn_backend *backend, const struct gemm_shape *shape, struct gemm_choice **out)
{
	struct gemm_cache *cache = backend->gemm;
	for (int i = 0; i < cache->n_choices; i++)
		if (same_shape(&cache->choices[i].shape, shape)) {
			*out = &cache->choices[i];
			return CUBLAS_STATUS_SUCCESS;
		}
	struct gemm_choice *choice = &cache->choices[cache->next];
	release_layouts(choice);
	cublasStatus_t status = make_layouts(shape, choice);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = choose_algorithm(backend, shape, choice);
	if (status != CUBLAS_STATUS_SUCCESS)
		return status;
	choice->shape = *shape;
	cache->next = (cache->next + 1) % GEMM_CHOICES_MAX;
	if (cache->n_choices < GEMM_CHOICES_MAX)
		cache->n_choices++;
	*out = choice;
	return CUBLAS_STATUS_SUCCESS;
}

enum status kn_cuda_gemm_of(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, const void *x, int64_t x_stride,
	struct err *err)
{
	const struct kn_matrix *w = args->w;
	const bool gated = args->epilogue == KN_SWIGLU;
	const float one = 1.0f, keep = args->epilogue == KN_ADD ? 1.0f : 0.0f;
	void *y = gated ? backend->product : args->y;
	struct gemm_shape shape = {};
	shape.form = w->form;
	shape.y_form = gated && w->form == PACK_BF16 ? PACK_BF16 : PACK_F32;
	shape.rows = w->rows;
	shape.cols = w->cols;
	shape.n_rows = n_rows;
	shape.x_stride = x_stride;
	shape.y_stride = gated ? w->rows : args->y_stride;
	ASSERT(gated || !is_prepared_for(args->reader, n_rows)); /* only SwiGLU and attention feed a product alone */
	struct gemm_choice *choice;
	cublasStatus_t status = find_choice(backend, &shape, &choice);
	if (status == CUBLAS_STATUS_SUCCESS)
		status = cublasLtMatmul(backend->blas, backend->gemm->operation, &one, w->data, choice->w, x, choice->x, &keep, y,
			choice->y, y, choice->y, &choice->algorithm, backend->blas_workspace, GEMM_WORKSPACE_BYTES,
			backend->stream);
	if (status != CUBLAS_STATUS_SUCCESS)
		return err_set(err, STATUS_UNAVAILABLE, "cuBLASLt refused a product of [%d, %lld] with [%lld, %lld]: %s", n_rows,
			(long long)w->cols, (long long)w->rows, (long long)w->cols, cublasLtGetStatusString(status));
	return gated ? cuda_status(elementwise_swiglu(backend, args, n_rows), "swiglu", err) : STATUS_OK;
}

enum status kn_cuda_gemm(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	const void *x;
	int64_t x_stride;
	cudaError_t error = elementwise_input(backend, args, n_rows, &x, &x_stride);
	if (error)
		return cuda_status(error, "input of a matrix product", err);
	return kn_cuda_gemm_of(backend, args, n_rows, x, x_stride, err);
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
