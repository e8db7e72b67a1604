/* Weights on their way to the GPU, through two pieces of fixed host memory that take turns: one is filled by several threads while
 * the other is copied. */
#ifndef KERNELS_CUDA_UPLOAD_CUH
#define KERNELS_CUDA_UPLOAD_CUH

#include "kernels/cuda/device.cuh"

#define UPLOAD_STAGE_BYTES ((size_t)32 << 20) /* guess: large enough to run at the link's rate */

struct upload {
	void *stages[2];
	cudaEvent_t copied[2]; /* stage may be filled again */
	int turn;
};

/* Writes rows [row, row + n) in the packed form to out. Called by several threads at once. */
typedef void (*upload_fill)(const void *ctx, int64_t row, int64_t n, uint8_t *out);

/* Enqueues the copy of n_rows lines to dst; what fill reads may go when it returns. A line is at most UPLOAD_STAGE_BYTES long. */
enum status upload_rows(struct kn_backend *backend, void *dst, int64_t n_rows, size_t line_bytes, upload_fill fill, const void *ctx,
	struct err *err);
void upload_release(struct upload *upload);

#endif
