/* Matrix product for a few rows of activations. */
#ifndef KERNELS_CUDA_FEW_CUH
#define KERNELS_CUDA_FEW_CUH

#include "kernels/cuda/device.cuh"

#define FEW_ROWS_MAX 16 /* two columns of tensor core tiles; above, reading activations costs more than the library's GEMM */

/* 1 to FEW_ROWS_MAX rows, weights in bf16 or fp16. SwiGLU weights have a multiple of 16 rows. */
enum status kn_cuda_few(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);

#endif
