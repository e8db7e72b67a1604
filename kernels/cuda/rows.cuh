/* Matrix product for 2 to 128 rows of activations, on Hopper. */
#ifndef KERNELS_CUDA_ROWS_CUH
#define KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/device.cuh"

#define ROWS_HOPPER_MAX 128 /* above, arithmetic is the limit and the library's larger tiles win */

/* Whether kn_cuda_rows_hopper can do this product. */
bool rows_hopper_takes(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows);
enum status kn_cuda_rows_hopper(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);
/* Raises the kernels' limits of shared memory; once per device, on Hopper only. */
cudaError_t rows_hopper_init(void);

#endif
