/* Two stages, each filled by all threads of a pool. */
extern "C" {
#include "base/file.h"
#include "base/mem.h"
#include "kernels/cpu/pool.h"
}
#include "kernels/cuda/upload.cuh"

#define THREADS_MAX 8 /* guess: enough to copy at the link's rate */
#define POOL_BYTES_MIN ((size_t)4 << 20) /* guess: for less, starting threads takes longer than copying */

static enum status create(struct upload **out, struct err *err)
{
	struct upload *upload = (struct upload *)mem_calloc(1, sizeof *upload);
	cudaError_t error = cudaSuccess;
	for (int i = 0; i < 2 && !error; i++) {
		error = cudaMallocHost(&upload->stages[i], UPLOAD_STAGE_BYTES);
		if (!error)
			error = cudaEventCreateWithFlags(&upload->copied[i], cudaEventDisableTiming);
	}
	if (error) {
		upload_release(upload);
		return cuda_status(error, "fixed host memory", err);
	}
	*out = upload;
	return STATUS_OK;
}

void upload_release(struct upload *upload)
{
	if (!upload)
		return;
	for (int i = 0; i < 2; i++) {
		if (upload->copied[i])
			cudaEventDestroy(upload->copied[i]);
		cudaFreeHost(upload->stages[i]);
	}
	mem_free(upload);
}

struct share {
	upload_fill fill;
	const void *ctx;
	int64_t row, n;
	size_t line_bytes;
	uint8_t *out;
	int threads;
};

static void fill_share(void *ctx, int thread)
{
	const struct share *share = (const struct share *)ctx;
	const int64_t begin = share->n * thread / share->threads, end = share->n * (thread + 1) / share->threads;
	if (end > begin)
		share->fill(share->ctx, share->row + begin, end - begin, share->out + (size_t)begin * share->line_bytes);
}

static enum status upload_with(struct kn_backend *backend, struct pool *pool, void *dst, int64_t n_rows, struct share *share,
	struct err *err)
{
	struct upload *upload = backend->upload;
	const int64_t batch = (int64_t)(UPLOAD_STAGE_BYTES / share->line_bytes);
	enum status status = STATUS_OK;
	for (share->row = 0; share->row < n_rows && !status; share->row += batch) {
		const int i = upload->turn = !upload->turn;
		share->n = n_rows - share->row < batch ? n_rows - share->row : batch;
		share->out = (uint8_t *)upload->stages[i];
		status = cuda_status(cudaEventSynchronize(upload->copied[i]), "weights to the GPU", err);
		if (status)
			break;
		if (pool)
			pool_run(pool, fill_share, share);
		else
			fill_share(share, 0);
		cudaError_t error = cudaMemcpyAsync((uint8_t *)dst + (size_t)share->row * share->line_bytes, share->out,
			(size_t)share->n * share->line_bytes, cudaMemcpyHostToDevice, backend->stream);
		if (!error)
			error = cudaEventRecord(upload->copied[i], backend->stream);
		status = cuda_status(error, "weights to the GPU", err);
	}
	return status;
}

enum status upload_rows(struct kn_backend *backend, void *dst, int64_t n_rows, size_t line_bytes, upload_fill fill, const void *ctx,
	struct err *err)
{
	ASSERT(line_bytes <= UPLOAD_STAGE_BYTES);
	enum status status = backend->upload ? STATUS_OK : create(&backend->upload, err);
	struct pool *pool = NULL;
	const int cpus = file_machine_cpus(), threads = cpus < THREADS_MAX ? cpus : THREADS_MAX;
	if (!status && (size_t)n_rows * line_bytes >= POOL_BYTES_MIN && threads > 1)
		status = pool_create(threads, &pool, err);
	struct share share = {fill, ctx, 0, 0, line_bytes, NULL, pool ? threads : 1};
	if (!status)
		status = upload_with(backend, pool, dst, n_rows, &share, err);
	pool_destroy(pool);
	return status;
}
