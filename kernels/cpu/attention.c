/* Attention over the paged cache. Inside one block of one KV head, keys lie as [head_dim][16 tokens] so that 16 scores are
 * made at once without adding across lanes, and values as [16 tokens][head_dim].
 *
 * A query's softmax is made over chunks of 256 tokens in ascending order with a running maximum, so its bits depend on its
 * own sequence only. Queries that read the same keys (heads of a group, neighbouring rows) are computed together to share
 * the loads. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

#define PREFETCH_TOKENS (2 * KN_KV_BLOCK_TOKENS) /* about 150 ns of work; 1 to 6 blocks measured the same on Zen 4 */
#define GROUP_ROWS 4 /* rows of one sequence that are attended together: with 3 heads a group they fill 12 queries */

enum status attention_check(const struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err)
{
	if (!args->qkv || !args->out || !args->k_cache || !args->v_cache || !args->positions || !args->slots ||
		!args->block_tables || !args->rope_cos_sin || !args->kv_head_of_head)
		return err_set(err, STATUS_INTERNAL, "attention with a missing buffer");
	if (n_rows < 1 || n_rows > backend->rows_max)
		return err_set(err, STATUS_INTERNAL, "attention of %d rows, expected 1 to %d", n_rows, backend->rows_max);
	if (args->head_dim < 1 || args->head_dim % ATTENTION_HEAD_DIM_STEP != 0 || args->head_dim > ATTENTION_HEAD_DIM_MAX)
		return err_set(err, STATUS_INPUT, "head size %d, expected a multiple of %d up to %d", args->head_dim,
			ATTENTION_HEAD_DIM_STEP, ATTENTION_HEAD_DIM_MAX);
	if (args->n_heads < 1 || args->n_kv_heads < 1)
		return err_set(err, STATUS_INTERNAL, "attention with %d heads and %d KV heads", args->n_heads, args->n_kv_heads);
	if (args->kv_type != KN_KV_F16 && args->kv_type != KN_KV_F32)
		return err_set(err, STATUS_INTERNAL, "attention with KV type %d", (int)args->kv_type);
	for (int head = 0; head < args->n_heads; head++)
		if (args->kv_head_of_head[head] < 0 || args->kv_head_of_head[head] >= args->n_kv_heads)
			return err_set(err, STATUS_INTERNAL, "head %d reads KV head %d of %d", head,
				(int)args->kv_head_of_head[head], args->n_kv_heads);
	return STATUS_OK;
}

static int64_t element_bytes(const struct kn_attention *args)
{
	return args->kv_type == KN_KV_F16 ? 2 : 4;
}

static float *qkv_head(const struct kn_attention *args, int64_t row, int head)
{
	return args->qkv + (row * (args->n_heads + 2 * args->n_kv_heads) + head) * args->head_dim;
}

/* Bytes from the start of a cache to the block that holds token `position` of a sequence, for one KV head. */
static int64_t block_offset(const struct kn_attention *args, int32_t slot, int64_t position, int kv_head)
{
	int64_t block = args->block_tables[slot * args->block_table_stride + position / KN_KV_BLOCK_TOKENS];

	return (block * args->n_kv_heads + kv_head) * KN_KV_BLOCK_TOKENS * args->head_dim * element_bytes(args);
}

static void rotate(const struct kn_attention *args, float *head, const float *cos_sin)
{
	int half = args->head_dim / 2;
	int step = args->rope_interleaved ? 2 : 1, distance = args->rope_interleaved ? 1 : half;

	for (int i = 0; i < half; i++) {
		float *first = head + i * step, *second = first + distance;
		float a = *first, b = *second, c = cos_sin[2 * i], s = cos_sin[2 * i + 1];

		*first = a * c - b * s;
		*second = a * s + b * c;
	}
}

static void append(const struct kn_backend *backend, const struct kn_attention *args, int64_t row, int kv_head, uint16_t *halves)
{
	int64_t position = args->positions[row], offset = block_offset(args, args->slots[row], position, kv_head);
	const float *key = qkv_head(args, row, args->n_heads + kv_head);
	const float *value = qkv_head(args, row, args->n_heads + args->n_kv_heads + kv_head);
	void *keys = (uint8_t *)args->k_cache + offset, *values = (uint8_t *)args->v_cache + offset;
	int token = (int)(position % KN_KV_BLOCK_TOKENS), head_dim = args->head_dim;

	if (args->kv_type == KN_KV_F32) {
		for (int d = 0; d < head_dim; d++)
			((float *)keys)[d * KN_KV_BLOCK_TOKENS + token] = key[d];
		memcpy((float *)values + token * head_dim, value, (size_t)head_dim * sizeof(*value));
		return;
	}
	backend->micro->to_f16(key, head_dim, halves);
	for (int d = 0; d < head_dim; d++)
		((uint16_t *)keys)[d * KN_KV_BLOCK_TOKENS + token] = halves[d];
	backend->micro->to_f16(value, head_dim, (uint16_t *)values + token * head_dim);
}

/* Rotation of queries and keys, and append, shared out over the threads by heads of rows. */
static void rotate_and_append(struct kn_backend *backend, const struct kn_attention *args, int n_rows, int thread)
{
	int heads = args->n_heads + args->n_kv_heads;
	int64_t begin, end;

	thread_share((int64_t)n_rows * heads, thread, backend->threads, &begin, &end);
	for (int64_t i = begin; i < end; i++) {
		int64_t row = i / heads;
		int head = (int)(i % heads);

		rotate(args, qkv_head(args, row, head), args->rope_cos_sin + (int64_t)args->positions[row] * args->head_dim);
		if (head >= args->n_heads)
			append(backend, args, row, head - args->n_heads, backend->scratch[thread].halves);
	}
}

/* Queries that read the same keys: n_heads consecutive heads of n_rows consecutive rows of one sequence. */
struct group {
	int row, n_rows;
	int head, n_heads;
};

/* Tokens of one sequence that are scored together, and where their blocks lie for one KV head. */
struct chunk {
	const struct kn_attention *args;
	int32_t slot;
	int kv_head;
	int64_t begin, end, tokens; /* tokens: of the sequence, as far as any query of the group sees */
};

/* Block of a cache that holds `token`. */
static const void *cache_block(const struct chunk *chunk, const void *cache, int64_t token)
{
	return (const uint8_t *)cache + block_offset(chunk->args, chunk->slot, token, chunk->kv_head);
}

/* Blocks lie anywhere in the cache, so the hardware does not foresee them: while one is in work, the one that is needed
 * PREFETCH_TOKENS later is requested. Keys are followed by the values of the same chunk, those by the next chunk's keys. */
static const void *key_block_ahead(const struct chunk *chunk, int64_t token)
{
	int64_t ahead = token + PREFETCH_TOKENS, past = ahead - chunk->end;

	if (past < 0)
		return cache_block(chunk, chunk->args->k_cache, ahead);
	return cache_block(chunk, chunk->args->v_cache, chunk->begin + past < chunk->end ? chunk->begin + past : chunk->begin);
}

static const void *value_block_ahead(const struct chunk *chunk, int64_t token)
{
	int64_t ahead = token + PREFETCH_TOKENS;

	if (ahead < chunk->end)
		return cache_block(chunk, chunk->args->v_cache, ahead);
	return cache_block(chunk, chunk->args->k_cache, ahead < chunk->tokens ? ahead : chunk->begin);
}

static void score_chunk(const struct kn_backend *backend, const struct chunk *chunk, const float *const *queries, int n_queries,
	struct attention_scratch *scratch)
{
	const struct kn_attention *args = chunk->args;

	struct score_args block = {
		.queries = queries,
		.head_dim = args->head_dim,
		.scale = args->scale,
		.out_stride = ATTENTION_CHUNK,
	};

	for (int64_t token = chunk->begin; token < chunk->end; token += KN_KV_BLOCK_TOKENS) {
		block.keys = cache_block(chunk, args->k_cache, token);
		block.ahead = key_block_ahead(chunk, token);
		block.out = &scratch->scores[0][token - chunk->begin];
		backend->micro->scores(&block, n_queries, args->kv_type);
	}
}

/* Adds the weighted values of tokens [token, token + 16) to all queries: together as far as the shortest query reaches,
 * then one by one. counts[q] is the number of tokens that query q sees, ascending. */
static void add_values(const struct kn_backend *backend, const struct chunk *chunk, const int64_t *counts, int n_queries,
	int64_t token, struct attention_scratch *scratch)
{
	const struct kn_attention *args = chunk->args;
	int column = (int)(token - chunk->begin), common = (int)(counts[0] - token);
	struct accumulate_args block = {
		.weights_stride = ATTENTION_CHUNK,
		.values = cache_block(chunk, args->v_cache, token),
		.ahead = value_block_ahead(chunk, token),
		.head_dim = args->head_dim,
		.sums_stride = ATTENTION_HEAD_DIM_MAX,
	};

	common = common < 0 ? 0 : common > KN_KV_BLOCK_TOKENS ? KN_KV_BLOCK_TOKENS : common;
	if (common > 0) {
		block.weights = &scratch->scores[0][column];
		block.sums = scratch->sums[0];
		block.token_end = common;
		backend->micro->accumulate(&block, n_queries, args->kv_type);
	}
	for (int q = 0; q < n_queries && common < KN_KV_BLOCK_TOKENS; q++) {
		int64_t left = counts[q] - token;

		if (left <= common)
			continue;
		block.weights = &scratch->scores[q][column];
		block.sums = scratch->sums[q];
		block.token_begin = common;
		block.token_end = left > KN_KV_BLOCK_TOKENS ? KN_KV_BLOCK_TOKENS : (int)left;
		backend->micro->accumulate(&block, 1, args->kv_type);
	}
}

static void write_outputs(const struct kn_attention *args, const struct group *group, const struct attention_scratch *scratch)
{
	for (int q = 0; q < group->n_rows * group->n_heads; q++) {
		int64_t row = group->row + q / group->n_heads;
		int head = group->head + q % group->n_heads;
		float inverse = 1.0f / micro_tree_sum(scratch->states[q].sums);
		float *out = args->out + (row * args->n_heads + head) * args->head_dim;

		for (int d = 0; d < args->head_dim; d++)
			out[d] = scratch->sums[q][d] * inverse;
	}
}

static void attend(const struct kn_backend *backend, const struct kn_attention *args, const struct group *group,
	struct attention_scratch *scratch)
{
	const float *queries[ATTENTION_QUERIES_MAX];
	int64_t counts[ATTENTION_QUERIES_MAX];
	int n_queries = group->n_rows * group->n_heads;
	struct chunk chunk = {.args = args,
		.slot = args->slots[group->row],
		.kv_head = args->kv_head_of_head[group->head],
		.tokens = args->positions[group->row + group->n_rows - 1] + 1};

	for (int q = 0; q < n_queries; q++) {
		int row = group->row + q / group->n_heads;

		queries[q] = qkv_head(args, row, group->head + q % group->n_heads);
		counts[q] = args->positions[row] + 1;
		scratch->states[q] = (struct softmax_state){.max = -INFINITY};
		memset(scratch->sums[q], 0, (size_t)args->head_dim * sizeof(float));
	}
	for (; chunk.begin < chunk.tokens; chunk.begin = chunk.end) {
		chunk.end = chunk.begin + ATTENTION_CHUNK < chunk.tokens ? chunk.begin + ATTENTION_CHUNK : chunk.tokens;
		score_chunk(backend, &chunk, queries, n_queries, scratch);
		for (int q = 0; q < n_queries; q++) {
			int64_t n = (counts[q] < chunk.end ? counts[q] : chunk.end) - chunk.begin;

			if (n > 0)
				backend->micro->softmax(
					scratch->scores[q], (int)n, &scratch->states[q], scratch->sums[q], args->head_dim);
		}
		for (int64_t token = chunk.begin; token < chunk.end; token += KN_KV_BLOCK_TOKENS)
			add_values(backend, &chunk, counts, n_queries, token, scratch);
	}
	write_outputs(args, group, scratch);
}

/* Rows from `row` on that can be attended together. */
static int rows_together(const struct kn_attention *args, int row, int n_rows)
{
	int n = 1;

	while (n < GROUP_ROWS && row + n < n_rows && args->slots[row + n] == args->slots[row] &&
		args->positions[row + n] == args->positions[row] + n)
		n++;
	return n;
}

/* Cost of one head of some rows: the tokens it reads, and about as much as 64 tokens for everything else (guess). */
static int64_t head_cost(const struct kn_attention *args, int row, int n_rows)
{
	return (int64_t)n_rows * (args->positions[row] + 64);
}

/* Heads of a block of rows that fall to the thread whose share of the total cost is [low, high): those whose cost starts
 * in it. `before` is the cost of everything earlier. */
static void attend_share(const struct kn_backend *backend, const struct kn_attention *args, int row, int n_rows, int64_t before,
	int64_t low, int64_t high, struct attention_scratch *scratch)
{
	int64_t cost = head_cost(args, row, n_rows);
	int heads_max = ATTENTION_QUERIES_MAX / n_rows;

	for (int head = 0; head < args->n_heads;) {
		int n = 1;

		if (before + head * cost < low || before + head * cost >= high) {
			head++;
			continue;
		}
		while (n < heads_max && head + n < args->n_heads && before + (head + n) * cost < high &&
			args->kv_head_of_head[head + n] == args->kv_head_of_head[head])
			n++;
		attend(backend, args, &(struct group){row, n_rows, head, n}, scratch);
		head += n;
	}
}

void attention_run(struct kn_backend *backend, const struct kn_attention *args, int n_rows, int thread)
{
	struct attention_scratch *scratch = &backend->scratch[thread].attention;
	int64_t total = 0, before = 0, low, high;

	rotate_and_append(backend, args, n_rows, thread);
	pool_barrier(backend->pool);
	for (int row = 0, n; row < n_rows; row += n) {
		n = rows_together(args, row, n_rows);
		total += head_cost(args, row, n) * args->n_heads;
	}
	thread_share(total, thread, backend->threads, &low, &high);
	for (int row = 0, n; row < n_rows; row += n) {
		n = rows_together(args, row, n_rows);
		attend_share(backend, args, row, n, before, low, high, scratch);
		before += head_cost(args, row, n) * args->n_heads;
	}
}
