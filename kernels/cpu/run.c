/* Runs lists of operations on the pool: one dispatch for a whole plan, a barrier after each operation. */
#include <stdatomic.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/backend.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/matmul.h"

struct run {
	struct kn_backend *backend;
	const struct op *ops;
	size_t n_ops;
	/* Number of the operation that failed. Threads leave after that operation's barrier, so all leave at the same one even
	 * when some look while thread 0 is already in a later operation. Written by thread 0. */
	_Atomic size_t failed_at;
	enum status status; /* thread 0's, like err */
	struct err *err;
};

static bool is_token(const struct op *op, int64_t row)
{
	return op->embed.ids[row] >= 0 && op->embed.ids[row] < op->embed.table->rows;
}

static void embed_run(struct run *run, const struct op *op, int thread)
{
	int64_t begin, end;

	thread_share(op->n_rows, thread, run->backend->threads, &begin, &end);
	for (int64_t row = begin; row < end; row++)
		if (is_token(op, row))
			pack_read_row(op->embed.table, op->embed.ids[row], op->embed.out + row * op->embed.out_stride);
	for (int64_t row = 0; thread == 0 && row < op->n_rows; row++)
		if (!is_token(op, row) && run->status == STATUS_OK)
			run->status = err_set(run->err, STATUS_INTERNAL, "token %d of row %lld is not within a table of %lld rows",
				(int)op->embed.ids[row], (long long)row, (long long)op->embed.table->rows);
}

static void add_run(struct run *run, const struct op *op, int thread)
{
	int64_t whole = op->add.n / PANEL_ROWS * PANEL_ROWS, begin, end;

	thread_share(whole / PANEL_ROWS, thread, run->backend->threads, &begin, &end);
	for (int64_t i = begin * PANEL_ROWS; i < end * PANEL_ROWS; i += PANEL_ROWS)
		add_lanes(op->add.x + i, op->add.y + i);
	for (int64_t i = whole; thread == 0 && i < op->add.n; i++)
		op->add.x[i] += op->add.y[i];
}

static void op_run(struct run *run, const struct op *op, int thread)
{
	switch (op->kind) {
	case OP_EMBED:
		embed_run(run, op, thread);
		break;
	case OP_MATMUL:
		matmul_run(run->backend, &op->matmul, op->n_rows, thread);
		break;
	case OP_HEADS:
		heads_run(run->backend, &op->heads, op->n_rows, thread);
		break;
	case OP_ATTENTION:
		attention_run(run->backend, &op->attention, op->n_rows, thread);
		break;
	case OP_ADD:
		add_run(run, op, thread);
		break;
	case OP_CALL:
		if (thread == 0)
			run->status = op->call.callback(op->call.ctx, run->err);
		break;
	}
}

static void run_thread(void *ctx, int thread)
{
	struct run *run = ctx;

	for (size_t i = 0; i < run->n_ops; i++) {
		op_run(run, &run->ops[i], thread);
		if (thread == 0 && run->status != STATUS_OK)
			atomic_store_explicit(&run->failed_at, i, memory_order_relaxed);
		if (i + 1 == run->n_ops) /* the dispatch ends with a barrier of its own */
			break;
		pool_barrier(run->backend->pool);
		if (atomic_load_explicit(&run->failed_at, memory_order_relaxed) <= i)
			break;
	}
}

enum status run_ops(struct kn_backend *backend, const struct op *ops, size_t n_ops, struct err *err)
{
	struct run run = {.backend = backend, .ops = ops, .n_ops = n_ops, .failed_at = SIZE_MAX, .err = err};

	if (n_ops > 0)
		pool_run(backend->pool, run_thread, &run);
	return run.status;
}
