/* What every CUDA source of the backend shares: the backend itself, packed matrices, error checks, dependent launches. */
#ifndef KERNELS_CUDA_DEVICE_CUH
#define KERNELS_CUDA_DEVICE_CUH

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/cuda/quant.cuh"
#include "kernels/kn.h"

#define CUDA_WARP 32
/* Columns of kn_cuda_gemv: its widest kernel has 28 warps, whose threads have 4 times 8 columns. Wider products of one row take the
 * kernels for several. */
#define ONE_ROW_COLS_MAX 28672

struct kn_backend {
	int device, n_sms, rows_max;
	bool is_hopper; /* kernels compiled for sm_90a run here */
	int64_t cols_max;
	cudaStream_t stream;
	cublasLtHandle_t blas;
	void *blas_workspace;
	struct gemm_cache *gemm;
	struct batch *batch; /* see batch.cuh; NULL: not this GPU */
	struct upload *upload; /* made with the first weights */
	void *prepared; /* [rows_max][cols_max] input of a many-row product, in the weights' type */
	/* [rows_max][2 * cols_max] fp32: gate and up before SwiGLU, in fp32 or bf16; or what a norm between two products of
	 * batch.cuh reads. Each is written and read within one operation or one chain of them. */
	void *product;
	float *attention_partials; /* see attention.cu */
	uint32_t *attention_tickets;
	struct quant_workspace quant;
	bool capturing;
	bool deterministic; /* a row's bits are the same in steps of any size */
	char description[384];
};

/* How the elements of a packed matrix lie in device memory. */
enum pack_form : int {
	PACK_BF16, /* [rows][cols] */
	PACK_F16,
	PACK_F32,
	PACK_QUANT, /* see quant.cuh */
};

struct kn_matrix {
	enum pack_form form;
	int64_t rows, cols;
	void *data;
	uint64_t bytes;
	struct quant_layout quant; /* PACK_QUANT only; its pointers lead into data */
};

/* Whether what an operation writes for the product with reader is kept in that matrix's type instead of fp32: such products round
 * their input to it anyway. Those of one row take fp32. */
static inline bool is_prepared_for(const struct kn_matrix *reader, int n_rows)
{
	return reader && n_rows > 1 && (reader->form == PACK_BF16 || reader->form == PACK_F16);
}

/* The form of what an operation writes for the product with reader: reader's own, whatever the operation's own weights are. */
static inline enum pack_form form_for(const struct kn_matrix *reader, int n_rows)
{
	return is_prepared_for(reader, n_rows) ? reader->form : PACK_F32;
}

/* Checks a runtime call: `return cuda_status(cudaMalloc(…), "device memory", err)`. */
enum status cuda_status(cudaError_t error, const char *what, struct err *err);

/* Launches with programmatic stream serialisation, so that a kernel's prologue overlaps the tail of the one before it. Kernels
 * launched so call dependency_wait() before they read what an earlier kernel wrote or write what one reads. */
template <typename... Params, typename... Args>
static cudaError_t launch_dependent(
	cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(Params...), Args... args)
{
	cudaLaunchAttribute attribute = {};
	attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	attribute.val.programmaticStreamSerializationAllowed = 1;
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = block;
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	config.attrs = &attribute;
	config.numAttrs = 1;
	return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

/* Launches in plain stream order. */
template <typename... Params, typename... Args>
static cudaError_t launch_after(
	cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes, void (*kernel)(Params...), Args... args)
{
	cudaLaunchConfig_t config = {};
	config.gridDim = grid;
	config.blockDim = block;
	config.dynamicSmemBytes = shared_bytes;
	config.stream = stream;
	return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

static __device__ __forceinline__ void dependency_wait(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel's blocks be scheduled as this grid's leave; it still waits for this grid's end in dependency_wait. */
static __device__ __forceinline__ void dependency_release(void)
{
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ __forceinline__ float swiglu(float gate, float up)
{
	return gate / (1.0f + __expf(-gate)) * up;
}

static __device__ __forceinline__ float warp_sum(float value)
{
	for (int offset = CUDA_WARP / 2; offset > 0; offset /= 2)
		value += __shfl_xor_sync(0xffffffffu, value, offset);
	return value;
}

/* The operations, one source each. All enqueue on backend->stream and neither allocate nor synchronise. */
enum status kn_cuda_gemv(struct kn_backend *backend, const struct kn_matmul *args, struct err *err);
enum status kn_cuda_matmul_invariant(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);
enum status kn_cuda_gemm(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);
enum status kn_cuda_attention(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err);
enum status kn_cuda_embed(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
	int64_t out_stride, struct err *err);
enum status kn_cuda_adjust_heads(struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err);
/* exchange.cu and sample.cu; see struct kn_ops. */
enum status kn_cuda_take(struct kn_backend *backend, const struct kn_exchange *exchange, int n_rows, struct err *err);
enum status kn_cuda_sample(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
	int n_logits, struct err *err);
uint64_t kn_cuda_sample_scratch_bytes(int logits_max, int64_t vocab);
enum status kn_cuda_add(struct kn_backend *backend, float *x, const float *y, int64_t n, struct err *err);

#endif
