/* Adds biases to q, k and v and normalises heads of q and k. Each head of each row is one thread's, so a row's bits depend on
 * nothing else. */
#include "kernels/cpu/heads.h"

#include <math.h>

enum status heads_check(const struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err)
{
	if (!args->qkv || !args->q_norm != !args->k_norm || (!args->bias && !args->q_norm))
		return err_set(err, STATUS_INTERNAL, "adjustment of heads with a missing buffer");
	if (n_rows < 1 || n_rows > backend->rows_max)
		return err_set(err, STATUS_INTERNAL, "adjustment of %d rows, expected 1 to %d", n_rows, backend->rows_max);
	if (args->n_heads < 1 || args->n_kv_heads < 1 || args->head_dim < 1)
		return err_set(err, STATUS_INTERNAL, "adjustment of %d heads and %d KV heads of %d", args->n_heads,
			args->n_kv_heads, args->head_dim);
	return STATUS_OK;
}

static void normalise(float *head, const float *norm, int head_dim, float eps)
{
	double squares = 0;
	float scale;

	for (int d = 0; d < head_dim; d++)
		squares += (double)head[d] * (double)head[d];
	scale = (float)(1.0 / sqrt(squares / head_dim + (double)eps));
	for (int d = 0; d < head_dim; d++)
		head[d] = head[d] * scale * norm[d];
}

void heads_run(struct kn_backend *backend, const struct kn_heads *args, int n_rows, int thread)
{
	int n_heads = args->n_heads + 2 * args->n_kv_heads, head_dim = args->head_dim;
	int64_t begin, end;

	thread_share((int64_t)n_rows * n_heads, thread, backend->threads, &begin, &end);
	for (int64_t i = begin; i < end; i++) {
		int head = (int)(i % n_heads);
		float *values = args->qkv + i * head_dim;
		const float *bias = args->bias ? args->bias + (int64_t)head * head_dim : NULL;

		for (int d = 0; bias && d < head_dim; d++)
			values[d] += bias[d];
		if (args->q_norm && head < args->n_heads + args->n_kv_heads)
			normalise(values, head < args->n_heads ? args->q_norm : args->k_norm, head_dim, args->norm_eps);
	}
}
