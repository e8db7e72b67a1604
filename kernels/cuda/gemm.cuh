/* Remembered choices of the GEMM library, one per shape; row counts of long prompts share them with their neighbours. */
#ifndef KERNELS_CUDA_GEMM_CUH
#define KERNELS_CUDA_GEMM_CUH

#include "kernels/cuda/device.cuh"

#define GEMM_WORKSPACE_BYTES ((size_t)32 << 20) /* what the library's documentation advises for Hopper */
#define GEMM_CHOICES_MAX 512 /* guess: 5 shapes of a model times about 100 row counts */
/* Up to it every row count has a choice of its own; guess: above the batches that steps are planned for. */
#define GEMM_ROWS_OWN 256
#define GEMM_ROWS_STEP 128 /* guess: tiles mostly have 128 or 256 rows there, and a count and its next multiple need as many */
#define GEMM_PROPOSALS_MAX 256 /* 4 shapes of a layer times the multiples up to 8192 rows */

struct gemm_shape {
	enum pack_form form, y_form;
	int64_t rows, cols, x_stride, y_stride;
	int n_rows;
};

struct gemm_choice {
	struct gemm_shape shape;
	cublasLtMatrixLayout_t w, x, y;
	cublasLtMatmulAlgo_t algorithm;
};

/* What the library proposed for a multiple of GEMM_ROWS_STEP rows. */
struct gemm_proposal {
	struct gemm_shape shape;
	cublasLtMatmulAlgo_t algorithm;
};

struct gemm_cache {
	cublasLtMatmulDesc_t operation;
	struct gemm_choice choices[GEMM_CHOICES_MAX];
	int n_choices, next;
	struct gemm_proposal proposals[GEMM_PROPOSALS_MAX];
	int n_proposals, next_proposal;
};

/* The product alone, of an input that is in the weights' type already. */
enum status kn_cuda_gemm_of(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, const void *x, int64_t x_stride,
	struct err *err);

/* Prepares *cache (zeroed memory) and hangs it into the backend. */
enum status gemm_cache_create(struct kn_backend *backend, struct gemm_cache *cache, struct err *err);
void gemm_cache_release(struct gemm_cache *cache);

#endif
