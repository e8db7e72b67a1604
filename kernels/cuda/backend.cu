/* The table of CUDA operations: life, memory, packed matrices and plans. A plan is a CUDA graph captured from the stream. */
#include <stdio.h>
#include <string.h>

extern "C" {
#include "base/mem.h"
}
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/upload.cuh"

enum status cuda_status(cudaError_t error, const char *what, struct err *err)
{
	if (error == cudaSuccess)
		return STATUS_OK;
	return err_set(err, error == cudaErrorMemoryAllocation ? STATUS_NO_MEMORY : STATUS_UNAVAILABLE, "%s: %s", what,
		cudaGetErrorString(error));
}

/* --- life --------------------------------------------------------------------------------------------------------- */

static size_t prepared_bytes(const struct kn_options *options)
{
	return (size_t)options->rows_max * (size_t)options->cols_max * sizeof(float);
}

static size_t partials_bytes(const struct kn_options *options)
{
	/* n_heads * head_dim floats a row and split, a pair per head of 64 or more, and heads rounded up to even blocks: a quarter
	 * more. */
	size_t rows = (size_t)(options->rows_max < ATTENTION_DECODE_ROWS_MAX ? options->rows_max : ATTENTION_DECODE_ROWS_MAX);
	return rows * ATTENTION_SPLITS_MAX * (size_t)options->cols_max * 5 / 4 * sizeof(float);
}

static size_t tickets_bytes(const struct kn_options *options)
{
	(void)options;
	return ATTENTION_DECODE_ROWS_MAX * ATTENTION_HEADS_MAX * sizeof(uint32_t);
}

static uint64_t cuda_workspace_bytes_needed(const struct kn_options *options)
{
	return GEMM_WORKSPACE_BYTES + 3 * prepared_bytes(options) + partials_bytes(options) + tickets_bytes(options) +
		quant_workspace_bytes(options);
}

static void cuda_destroy(struct kn_backend *backend)
{
	if (!backend)
		return;
	cudaSetDevice(backend->device);
	if (backend->gemm)
		gemm_cache_release(backend->gemm);
	mem_free(backend->gemm);
	batch_destroy(backend->batch);
	upload_release(backend->upload);
	cudaFree(backend->blas_workspace);
	cudaFree(backend->prepared);
	cudaFree(backend->product);
	cudaFree(backend->attention_partials);
	cudaFree(backend->attention_tickets);
	quant_release(backend);
	if (backend->blas)
		cublasLtDestroy(backend->blas);
	if (backend->stream)
		cudaStreamDestroy(backend->stream);
	mem_free(backend);
}

static enum status allocate_workspace(struct kn_backend *backend, const struct kn_options *options, struct err *err)
{
	cudaError_t error = cudaMalloc(&backend->blas_workspace, GEMM_WORKSPACE_BYTES);
	if (!error)
		error = cudaMalloc(&backend->prepared, prepared_bytes(options));
	if (!error)
		error = cudaMalloc(&backend->product, 2 * prepared_bytes(options));
	if (!error)
		error = cudaMalloc((void **)&backend->attention_partials, partials_bytes(options));
	if (!error)
		error = cudaMalloc((void **)&backend->attention_tickets, tickets_bytes(options));
	if (!error)
		error = cudaMemset(backend->attention_tickets, 0, tickets_bytes(options));
	/* A tool that looks for reads of unwritten memory does not see what the GEMM library's kernels for Hopper write here. */
	if (!error)
		error = cudaMemset(backend->blas_workspace, 0, GEMM_WORKSPACE_BYTES);
	if (!error)
		error = cudaMemset(backend->prepared, 0, prepared_bytes(options));
	if (!error)
		error = cudaMemset(backend->product, 0, 2 * prepared_bytes(options));
	return cuda_status(error, "device workspace", err);
}

static enum status cuda_create(const struct kn_options *options, struct kn_backend **out, struct err *err)
{
	struct cudaDeviceProp properties;
	*out = NULL;
	ASSERT(options->rows_max <= KN_ROWS_MAX);
	enum status status = cuda_status(cudaSetDevice(options->device), "GPU", err);
	if (!status)
		status = cuda_status(cudaGetDeviceProperties(&properties, options->device), "GPU properties", err);
	if (status)
		return status;
	struct kn_backend *backend = (struct kn_backend *)mem_calloc(1, sizeof *backend);
	backend->device = options->device;
	backend->n_sms = properties.multiProcessorCount;
	backend->is_hopper = properties.major == 9 && properties.minor == 0;
	backend->rows_max = options->rows_max;
	backend->deterministic = options->deterministic;
	backend->cols_max = options->cols_max;
	snprintf(backend->description, sizeof backend->description, "%s, sm_%d%d, %d SMs, %zu MiB", properties.name,
		properties.major, properties.minor, properties.multiProcessorCount, properties.totalGlobalMem >> 20);
	status = cuda_status(cudaStreamCreateWithFlags(&backend->stream, cudaStreamNonBlocking), "stream", err);
	if (!status && cublasLtCreate(&backend->blas) != CUBLAS_STATUS_SUCCESS)
		status = err_set(err, STATUS_UNAVAILABLE, "cuBLASLt cannot be set up on this GPU");
	if (!status)
		status = allocate_workspace(backend, options, err);
	if (!status)
		status = quant_init(backend, options, err);
	if (!status)
		status = gemm_cache_create(backend, (struct gemm_cache *)mem_calloc(1, sizeof(struct gemm_cache)), err);
	if (!status)
		status = cuda_status(attention_decode_init(), "attention", err);
	if (!status && backend->is_hopper)
		status = cuda_status(attention_many_init(), "attention", err);
	if (!status)
		status = cuda_status(attention_prefill_init(), "attention", err);
	if (!status && backend->is_hopper)
		status = cuda_status(attention_prefill_hopper_init(), "attention", err);
	if (!status && backend->is_hopper)
		status = batch_create(backend, err);
	if (status) {
		cuda_destroy(backend);
		return status;
	}
	*out = backend;
	return STATUS_OK;
}

static const char *cuda_describe(const struct kn_backend *backend)
{
	return backend->description;
}

/* --- memory ------------------------------------------------------------------------------------------------------- */

static enum status cuda_alloc(struct kn_backend *backend, size_t bytes, void **out, struct err *err)
{
	*out = NULL;
	enum status status = cuda_status(cudaMalloc(out, bytes), "device memory", err);
	if (status)
		return status;
	status = cuda_status(cudaMemsetAsync(*out, 0, bytes, backend->stream), "clearing device memory", err);
	if (status) {
		cudaFree(*out);
		*out = NULL;
	}
	return status;
}

static void cuda_release(struct kn_backend *backend, void *block, size_t bytes)
{
	(void)backend;
	(void)bytes;
	cudaFree(block);
}

static enum status cuda_to_device(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err)
{
	return cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, backend->stream), "copy to the GPU", err);
}

static enum status cuda_synchronize(struct kn_backend *backend, struct err *err)
{
	return cuda_status(cudaStreamSynchronize(backend->stream), "GPU", err);
}

static enum status cuda_to_host(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err)
{
	enum status status =
		cuda_status(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, backend->stream), "copy from the GPU", err);
	return status ? status : cuda_synchronize(backend, err);
}

static enum status cuda_pin(struct kn_backend *backend, void *host, size_t bytes, struct err *err)
{
	(void)backend;
	return cuda_status(cudaHostRegister(host, bytes, cudaHostRegisterDefault), "fixing host memory", err);
}

static void cuda_unpin(struct kn_backend *backend, void *host)
{
	(void)backend;
	cudaHostUnregister(host);
}

extern "C" enum status kn_cuda_memory(int device, uint64_t *total, uint64_t *free_now, struct err *err)
{
	size_t free_bytes = 0, total_bytes = 0;
	enum status status = cuda_status(cudaSetDevice(device), "GPU", err);
	if (!status)
		status = cuda_status(cudaMemGetInfo(&free_bytes, &total_bytes), "GPU memory", err);
	*total = total_bytes;
	*free_now = free_bytes;
	return status;
}

/* --- packed matrices ---------------------------------------------------------------------------------------------- */

/* Plain types stay as they are when all slices agree, 8-bit and 4-bit ones in the layout of quant.cuh; what fits neither becomes
 * fp16, which holds block-quantised values to within 2^-11 of themselves. */
static enum pack_form form_of(const struct kn_slice *slices, size_t n_slices)
{
	struct quant_layout layout;
	uint64_t bytes;
	if (quant_lay_out(slices, n_slices, &layout, &bytes))
		return PACK_QUANT;
	for (size_t i = 1; i < n_slices; i++)
		if (slices[i].dtype != slices[0].dtype)
			return PACK_F16;
	switch (slices[0].dtype) {
	case DTYPE_BF16:
		return PACK_BF16;
	case DTYPE_F32:
		return PACK_F32;
	default:
		return PACK_F16;
	}
}

static size_t form_bytes(enum pack_form form)
{
	return form == PACK_F32 ? 4 : 2;
}

static int64_t count_rows(const struct kn_slice *slices, size_t n_slices)
{
	int64_t rows = 0;
	for (size_t i = 0; i < n_slices; i++)
		rows += slices[i].row_end - slices[i].row_begin;
	return rows;
}

static uint64_t cuda_matrix_bytes_needed(const struct kn_slice *slices, size_t n_slices)
{
	int64_t cols = slices[0].col_end - slices[0].col_begin;
	struct quant_layout layout;
	uint64_t bytes;
	if (quant_lay_out(slices, n_slices, &layout, &bytes))
		return bytes;
	return (uint64_t)(count_rows(slices, n_slices) * cols) * form_bytes(form_of(slices, n_slices));
}

static uint64_t cuda_matrix_bytes(const struct kn_matrix *matrix)
{
	return matrix->bytes;
}

/* One row of a slice into the packed form, through fp32. */
static void convert_row(const struct kn_slice *slice, int64_t row, enum pack_form form, float *wide, void *out)
{
	int64_t cols = slice->col_end - slice->col_begin;
	uint64_t row_bytes = 0, skip = 0;
	ASSERT(dtype_bytes(slice->dtype, slice->cols, &row_bytes) && dtype_bytes(slice->dtype, slice->col_begin, &skip));
	const uint8_t *at = (const uint8_t *)slice->data + (uint64_t)row * row_bytes + skip;
	if ((form == PACK_BF16 && slice->dtype == DTYPE_BF16) || (form == PACK_F16 && slice->dtype == DTYPE_F16) ||
		(form == PACK_F32 && slice->dtype == DTYPE_F32)) {
		memcpy(out, at, (size_t)cols * form_bytes(form));
		return;
	}
	dtype_dequantize(slice->dtype, at, wide, cols);
	const int64_t scales_per_line = slice->scales ? (slice->cols + slice->scale_cols - 1) / slice->scale_cols : 0;
	for (int64_t i = 0; slice->scales && i < cols; i++)
		wide[i] *= slice->scales[row / slice->scale_rows * scales_per_line + (slice->col_begin + i) / slice->scale_cols];
	for (int64_t i = 0; i < cols; i++)
		((uint16_t *)out)[i] = dtype_f32_to_f16(wide[i]);
}

struct slice_rows {
	const struct kn_slice *slice;
	enum pack_form form;
};

static void fill_rows(const void *ctx, int64_t row, int64_t n, uint8_t *out)
{
	const struct slice_rows *rows = (const struct slice_rows *)ctx;
	const int64_t cols = rows->slice->col_end - rows->slice->col_begin;
	float *wide = (float *)mem_calloc((size_t)cols, sizeof *wide);
	for (int64_t i = 0; i < n; i++)
		convert_row(rows->slice, rows->slice->row_begin + row + i, rows->form, wide,
			out + (size_t)(i * cols) * form_bytes(rows->form));
	mem_free(wide);
}

static enum status upload_slice(
	struct kn_backend *backend, struct kn_matrix *matrix, const struct kn_slice *slice, int64_t row_at, struct err *err)
{
	const size_t line = (size_t)matrix->cols * form_bytes(matrix->form);
	const struct slice_rows rows = {slice, matrix->form};
	return upload_rows(backend, (uint8_t *)matrix->data + (size_t)row_at * line, slice->row_end - slice->row_begin, line, fill_rows,
		&rows, err);
}

static void cuda_matrix_destroy(struct kn_backend *backend, struct kn_matrix *matrix)
{
	(void)backend;
	if (matrix)
		cudaFree(matrix->data);
	mem_free(matrix);
}

static enum status cuda_matrix_create(
	struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices, struct kn_matrix **out, struct err *err)
{
	struct kn_matrix *matrix = (struct kn_matrix *)mem_calloc(1, sizeof *matrix);
	*out = NULL;
	matrix->form = form_of(slices, n_slices);
	matrix->rows = count_rows(slices, n_slices);
	matrix->cols = slices[0].col_end - slices[0].col_begin;
	matrix->bytes = cuda_matrix_bytes_needed(slices, n_slices);
	enum status status = STATUS_OK;
	if (matrix->cols % 8 != 0)
		status = err_set(
			err, STATUS_INPUT, "a weight matrix with %lld columns: GPUs need a multiple of 8", (long long)matrix->cols);
	for (size_t i = 0; i < n_slices && !status; i++)
		if (slices[i].scales && (slices[i].scale_rows < 1 || slices[i].scale_cols < 1))
			status = err_set(err, STATUS_INPUT, "slice %zu of a matrix: scales of %lld rows by %lld columns", i,
				(long long)slices[i].scale_rows, (long long)slices[i].scale_cols);
	if (!status)
		status = cuda_status(cudaMalloc(&matrix->data, matrix->bytes), "device memory for weights", err);
	if (!status && matrix->form == PACK_QUANT)
		status = quant_upload(backend, slices, n_slices, matrix, err);
	int64_t row_at = 0;
	for (size_t i = 0; i < n_slices && !status && matrix->form != PACK_QUANT; i++) {
		status = upload_slice(backend, matrix, &slices[i], row_at, err);
		row_at += slices[i].row_end - slices[i].row_begin;
	}
	if (status) {
		cuda_matrix_destroy(backend, matrix);
		return status;
	}
	*out = matrix;
	return STATUS_OK;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

struct kn_plan {
	cudaGraphExec_t executable;
	uint64_t bytes; /* fall of free device memory while it was made */
};

static size_t free_bytes(void)
{
	size_t free_now = 0, total = 0;
	cudaMemGetInfo(&free_now, &total);
	return free_now;
}

static enum status cuda_plan_begin(struct kn_backend *backend, struct err *err)
{
	enum status status =
		cuda_status(cudaStreamBeginCapture(backend->stream, cudaStreamCaptureModeThreadLocal), "graph capture", err);
	backend->capturing = !status;
	return status;
}

static void cuda_plan_destroy(struct kn_backend *backend, struct kn_plan *plan)
{
	(void)backend;
	if (plan && plan->executable)
		cudaGraphExecDestroy(plan->executable);
	mem_free(plan);
}

static enum status cuda_plan_end(struct kn_backend *backend, struct kn_plan **out, struct err *err)
{
	cudaGraph_t graph = NULL;
	*out = NULL;
	backend->capturing = false;
	enum status status = cuda_status(cudaStreamEndCapture(backend->stream, &graph), "graph capture", err);
	if (status)
		return status;
	struct kn_plan *plan = (struct kn_plan *)mem_calloc(1, sizeof *plan);
	size_t before = free_bytes();
	status = cuda_status(cudaGraphInstantiate(&plan->executable, graph, 0), "graph", err);
	if (!status)
		status = cuda_status(cudaGraphUpload(plan->executable, backend->stream), "graph upload", err);
	if (!status)
		status = cuda_synchronize(backend, err);
	size_t after = free_bytes();
	plan->bytes = before > after ? before - after : 0;
	cudaGraphDestroy(graph);
	if (status) {
		cuda_plan_destroy(backend, plan);
		return status;
	}
	*out = plan;
	return STATUS_OK;
}

static enum status cuda_plan_run(struct kn_backend *backend, struct kn_plan *plan, struct err *err)
{
	return cuda_status(cudaGraphLaunch(plan->executable, backend->stream), "graph launch", err);
}

static uint64_t cuda_plan_bytes(const struct kn_plan *plan)
{
	return plan->bytes;
}

/* Room to plan with: an H200 (driver 580, 2026-11-30) took 3 to 6 KB, 2 MiB at a time. What a plan really took is in its bytes. */
#define PLAN_BYTES_PER_OPERATION 16384

static uint64_t cuda_plan_bytes_needed(size_t n_operations)
{
	return (uint64_t)n_operations * PLAN_BYTES_PER_OPERATION;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

static enum status cuda_matmul(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	if (args->w->form == PACK_QUANT)
		return kn_cuda_quant_matmul(backend, args, n_rows, err);
	if (backend->deterministic)
		return kn_cuda_matmul_invariant(backend, args, n_rows, err);
	if (n_rows == 1 && !args->row_index && args->w->cols <= ONE_ROW_COLS_MAX)
		return kn_cuda_gemv(backend, args, err);
	if (n_rows <= FEW_ROWS_MAX && args->w->form != PACK_F32)
		return kn_cuda_few(backend, args, n_rows, err);
	if (batch_takes(backend, args, n_rows))
		return kn_cuda_batch(backend, args, 1, n_rows, err);
	return kn_cuda_gemm(backend, args, n_rows, err);
}

static enum status cuda_matmul_chain(
	struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err)
{
	if (!backend->deterministic && n_rows > 1 && batch_takes_chain(backend, chain, count, n_rows))
		return kn_cuda_batch(backend, chain, count, n_rows, err);
	enum status status = STATUS_OK;
	for (int i = 0; i < count && !status; i++)
		status = cuda_matmul(backend, &chain[i], n_rows, err);
	return status;
}

static enum status cuda_call(struct kn_backend *backend, kn_callback callback, void *ctx, struct err *err)
{
	if (backend->capturing)
		return err_set(err, STATUS_UNAVAILABLE, "a host callback cannot be part of a graph");
	enum status status = cuda_synchronize(backend, err);
	return status ? status : callback(ctx, err);
}

static enum status cuda_check(struct kn_backend *backend, struct err *err)
{
	cudaError_t error = cudaStreamQuery(backend->stream);
	return error == cudaErrorNotReady ? STATUS_OK : cuda_status(error, "GPU", err);
}

extern "C" const struct kn_ops kn_cuda_ops = {
	"cuda",
	1,
	ATTENTION_HEAD_DIM_STEP,
	ATTENTION_HEAD_DIM_MAX,
	cuda_create,
	cuda_destroy,
	cuda_workspace_bytes_needed,
	cuda_describe,
	cuda_alloc,
	cuda_release,
	cuda_to_device,
	cuda_to_host,
	cuda_pin,
	cuda_unpin,
	cuda_matrix_create,
	cuda_matrix_destroy,
	cuda_matrix_bytes,
	cuda_matrix_bytes_needed,
	cuda_plan_begin,
	cuda_plan_end,
	cuda_plan_run,
	cuda_plan_bytes,
	cuda_plan_bytes_needed,
	cuda_plan_destroy,
	kn_cuda_embed,
	cuda_matmul,
	cuda_matmul_chain,
	kn_cuda_attention,
	kn_cuda_adjust_heads,
	kn_cuda_add,
	cuda_call,
	cuda_synchronize,
	kn_cuda_take,
	kn_cuda_sample,
	kn_cuda_sample_scratch_bytes,
	cuda_check,
};
