/* Pieces of a many-row product that are not the product: preparing its input, finishing its output. */
#ifndef KERNELS_CUDA_ELEMENTWISE_CUH
#define KERNELS_CUDA_ELEMENTWISE_CUH

#include "kernels/cuda/device.cuh"

/* backend->prepared[n_rows][w.cols] in a 16-bit or fp32 form, from args' x (gathered, normalised). */
cudaError_t elementwise_prepare(struct kn_backend *backend, const struct kn_matmul *args, enum pack_form form, int n_rows);

/* The input of a product in the weights' own type: args' x where an operation left it so, else prepared. */
cudaError_t elementwise_input(
	struct kn_backend *backend, const struct kn_matmul *args, int n_rows, const void **x, int64_t *x_stride);

/* args' y[row][i] = silu(product[row][i]) * product[row][w.rows / 2 + i], from backend->product: bf16 for bf16 weights, which
 * rounds no more than their inputs are, else fp32. */
cudaError_t elementwise_swiglu(struct kn_backend *backend, const struct kn_matmul *args, int n_rows);

#endif
