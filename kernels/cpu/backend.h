/* What the parts of the CPU backend share: the backend itself and recorded operations. */
#ifndef KERNELS_CPU_BACKEND_H
#define KERNELS_CPU_BACKEND_H

#include "kernels/cpu/micro.h"
#include "kernels/cpu/pack.h"
#include "kernels/cpu/pool.h"
#include "kernels/kn.h"

#define TILE_ROWS 48 /* rows of one product tile: its results and a panel stay in L1 and L2 */
#define TILE_PANELS 4 /* panels of one tile: enough independent sums to hide the latency of fp32 fma for one row */
#define PRIVATE_ROWS_MAX 2 /* up to so many rows every thread prepares its own copy instead of meeting at a barrier */

struct attention_scratch {
	float scores[ATTENTION_QUERIES_MAX][ATTENTION_CHUNK];
	float sums[ATTENTION_QUERIES_MAX][ATTENTION_HEAD_DIM_MAX];
	struct softmax_state states[ATTENTION_QUERIES_MAX];
};

/* Working memory of one thread; only that thread touches it during a run. */
struct thread_scratch {
	float tile[TILE_PANELS * TILE_ROWS * PANEL_ROWS];
	float up_tile[TILE_PANELS * TILE_ROWS * PANEL_ROWS];
	struct attention_scratch attention;
	uint16_t halves[ATTENTION_HEAD_DIM_MAX];
	struct activations own; /* PRIVATE_ROWS_MAX rows */
};

struct kn_backend {
	const struct micro *micro;
	struct pool *pool;
	struct store store; /* of weights */
	int threads, rows_max;
	int64_t cols_max;
	struct activations shared; /* rows_max rows; written row by row before a barrier, read after it */
	struct thread_scratch *scratch; /* [threads] */
	void *workspace; /* holds the scratch and all activations */
	size_t workspace_bytes;
	struct kn_plan *recording; /* NULL when operations run at once */
	char description[64];
};

enum op_kind { OP_EMBED, OP_MATMUL, OP_HEADS, OP_ATTENTION, OP_ADD, OP_CALL };

/* One operation with its arguments. */
struct op {
	enum op_kind kind;
	int n_rows;
	union {
		struct {
			const struct kn_matrix *table;
			const int32_t *ids;
			float *out;
			int64_t out_stride;
		} embed;
		struct kn_matmul matmul;
		struct kn_heads heads;
		struct kn_attention attention;
		struct {
			float *x;
			const float *y;
			int64_t n;
		} add;
		struct {
			kn_callback callback;
			void *ctx;
		} call;
	};
};

struct kn_plan {
	size_t n_ops, capacity;
	struct op *ops; /* owned */
};

/* Runs operations in order in one dispatch of the pool. After a failing callback the rest is skipped. */
enum status run_ops(struct kn_backend *backend, const struct op *ops, size_t n_ops, struct err *err);

/* x += y for 16 elements: a fixed count and no overlap let the compiler use vectors. */
static inline void add_lanes(float *restrict x, const float *restrict y)
{
	for (int i = 0; i < PANEL_ROWS; i++)
		x[i] += y[i];
}

/* Share of one thread of n equal items: [*begin, *end). */
static inline void thread_share(int64_t n, int thread, int threads, int64_t *begin, int64_t *end)
{
	*begin = n * thread / threads;
	*end = n * (thread + 1) / threads;
}

#endif
