/* Pieces of a many-row product that are not the product: preparing its input, finishing its output. */
#ifndef KERNELS_CUDA_ELEMENTWISE_CUH
#define KERNELS_CUDA_ELEMENTWISE_CUH

#include "kernels/cuda/device.cuh"

/* backend->prepared[n_rows][w.cols] in the weights' own type, from args' x (gathered, normalised). */
cudaError_t elementwise_prepare(struct kn_backend *backend, const struct kn_matmul *args, enum pack_form form, int n_rows);

/* y[row][i] = silu(product[row][i]) * product[row][cols + i] for i < cols. */
cudaError_t elementwise_swiglu(
	struct kn_backend *backend, const float *product, float *y, int64_t y_stride, int64_t cols, int n_rows);

#endif
