/* Matrix product for tens of rows on Hopper, and for a layer of 2 rows and more. */
#ifndef KERNELS_CUDA_BATCH_CUH
#define KERNELS_CUDA_BATCH_CUH

#include "kernels/cuda/device.cuh"

#define BATCH_ROWS_MAX 128

/* Whether there is a kernel for a product: at most BATCH_ROWS_MAX rows, weights in bf16 or fp16 whose tiles occupy nearly all
 * processors at once and whose rows (with SwiGLU those of gate and of up) are whole eights, y in aligned pairs, or where it is
 * prepared for a reader in aligned pieces of 16 bytes, x that another operation left in such pieces, on a GPU with is_hopper. */
bool batch_takes(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows);

/* The same for products each of which reads what the one before it wrote, with the norms between them in the kernels of the
 * products: bf16 only. */
bool batch_takes_chain(const struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows);

/* A product that batch_takes, or several that batch_takes_chain. */
enum status kn_cuda_batch(struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err);

/* Makes backend->batch, on a GPU with is_hopper. */
enum status batch_create(struct kn_backend *backend, struct err *err);
void batch_destroy(struct batch *batch);

#endif
