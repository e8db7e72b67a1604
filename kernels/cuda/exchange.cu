/* Fetches a step from the stage in host memory where the host left it. */
#include "kernels/cuda/device.cuh"

#define THREADS 128

/* Block: one row of the plan; its scalars, its sampling if it has logits, and its line of the block table as far as it reads. Host
 * memory is read over the link: all of a thread's loads are in flight together. Rows that the step does not have become token 0 of
 * the dummy line, at ascending positions of its one block. Nothing after this kernel starts before it has ended (see
 * kn_cuda_embed), since attention looks at slots and positions before it waits for the kernel in front of it. */
static __global__ void __launch_bounds__(THREADS) take_kernel(const struct kn_exchange e)
{
	const int row = blockIdx.x, thread = threadIdx.x;
	dependency_wait();
	const struct kn_step_arrays &from = e.stages[(e.turn->turn + 1) % 2], &to = e.step;
	const int n_rows = *from.n_rows, n_logits = *from.n_logits;
	if (row == 0 && thread == 0) {
		unsigned long long now;
		asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
		e.turn->begin_ns = now;
		*to.n_rows = n_rows;
		*to.n_logits = n_logits;
	}
	if (row >= n_rows) {
		if (thread == 0) {
			to.tokens[row] = 0;
			to.positions[row] = (row - n_rows) % KN_KV_BLOCK_TOKENS;
			to.slots[row] = e.slots_max;
		}
		return;
	}
	const int position = from.positions[row], slot = from.slots[row];
	const bool is_last = row + 1 == n_rows || from.slots[row + 1] != slot;
	if (thread == 0) {
		const int source = from.sources[row];
		to.tokens[row] = source > 0 ? max(e.sampled[source - 1].id, 0) : from.tokens[row];
		to.positions[row] = position;
		to.slots[row] = slot;
		if (row < n_logits) {
			to.logit_rows[row] = from.logit_rows[row];
			to.sampling[row] = from.sampling[row];
		}
	}
	/* Rows of a sequence come in ascending position, so the last of a run of one slot reaches furthest. */
	const int64_t line = slot * e.block_table_stride;
	for (int i = thread; is_last && i <= position / KN_KV_BLOCK_TOKENS; i += THREADS)
		to.block_tables[line + i] = from.block_tables[line + i];
}

enum status kn_cuda_take(struct kn_backend *backend, const struct kn_exchange *exchange, int n_rows, struct err *err)
{
	return cuda_status(
		launch_dependent(backend->stream, dim3(n_rows), dim3(THREADS), 0, take_kernel, *exchange), "taking a step", err);
}
