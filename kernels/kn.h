/* Compute backend: the operations one rank needs for one step, behind one table of functions.
 *
 * A step works on rows; a row is one token of one sequence. Activations are backend memory: fp32 on the CPU backend.
 * Every operation on a row gives the same bits whatever the other rows, the number of rows and the number of threads are. (CUDA:
 * within steps of one row, of 2 to 16 rows, and above of one number of rows and one kind, which says whether sequences have few
 * rows each; these take different kernels.)
 *
 * Between plan_begin and plan_end operations are recorded, not run; plan_run runs them all. Everything that changes from step to
 * step (ids, positions, block tables, the number of valid keys) is read from the buffers given when recording, at run time, so one
 * plan serves every step of its row count. (CPU: a list run in one dispatch of the thread pool. CUDA: a graph.)
 *
 * Operations never allocate. Valid C17 and C++17. */
#ifndef KERNELS_KN_H
#define KERNELS_KN_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KN_ROWS_MAX 65535 /* of one step: what CUDA takes as second size of a grid */
#define KN_KV_BLOCK_TOKENS 16 /* tokens in one block of the paged KV cache */

struct kn_backend; /* one per rank; used from one thread */
struct kn_matrix; /* weights in the backend's own layout, owned by the backend's user */
struct kn_plan; /* recorded operations */

struct kn_options {
	int threads; /* CPU: threads of this rank, the caller's thread included; >= 1 */
	int rows_max; /* most rows of one step, at most KN_ROWS_MAX */
	int64_t cols_max; /* widest input of a matrix product */
	int device; /* GPU ordinal; ignored on CPU */
	const char *isa; /* CPU: NULL or "auto", else "scalar", "avx2", "avx512" */
	int deterministic; /* CUDA: 1 holds the rule above for steps of any number of rows, at a cost; CPUs always do */
};

/* Part of a stored tensor of shape [rows, cols], row-major by blocks. Column bounds fall on block boundaries.
 * DTYPE_F8_E4M3 has scales: the value of element [r, c] of the stored tensor is its byte as a number times
 * scales[r / scale_rows * ceil(cols / scale_cols) + c / scale_cols]. One scale for all: scale_rows = rows, scale_cols = cols; one
 * for each row: 1, cols; square blocks: 128, 128. Row and column bounds of the part need not fall on those blocks. */
struct kn_slice {
	enum dtype dtype;
	const void *data;
	int64_t rows, cols;
	int64_t row_begin, row_end;
	int64_t col_begin, col_end;
	const float *scales; /* of the whole stored tensor, host memory that lives as long as data; NULL for other types */
	int64_t scale_rows, scale_cols; /* how many rows and columns share a scale; 0 for other types */
};

enum kn_epilogue {
	KN_STORE, /* y = product */
	KN_ADD, /* y += product */
	KN_SWIGLU, /* weights are [gate; up], each half the rows: y = silu(gate) * up */
};

/* y[n_rows, w.rows] = epilogue(norm(x)[n_rows, w.cols] * w^T). fp32 accumulation in an order fixed by the column index.
 * y must not overlap x. KN_SWIGLU: gate and up are slices of the same shape, or halves of a multiple of 16 rows.
 * norm_weight NULL: x is used as it is; else x is RMS-normalised over w.cols first: x / sqrt(mean(x^2) + eps) * norm_weight. */
struct kn_matmul {
	const struct kn_matrix *w;
	const float *x;
	int64_t x_stride; /* elements between rows */
	const float *norm_weight;
	float norm_eps;
	enum kn_epilogue epilogue;
	float *y;
	int64_t y_stride;
	const int32_t *row_index; /* NULL, or n_rows indexes into x: the rows to use (for logits of some rows only) */
	/* NULL, or the matrix of the one product that will read y (with KN_SWIGLU only): y, and that product's x with x_for_w set,
	 * then hold whatever the backend thinks best for it. That product takes as many rows, no norm and no row_index. */
	const struct kn_matrix *reader;
	int x_for_w; /* 1: x was written by an operation whose reader was w */
};

enum kn_kv_type { KN_KV_F16, KN_KV_F32 };

/* Rotary embedding in place on q and k, append of k and v to the paged cache, then causal attention of every row over
 * its sequence up to its own position. Rows of one sequence must come in ascending position; all rows' keys and values
 * are written before any row attends, so rows of one chunk see each other causally. */
struct kn_attention {
	float *qkv; /* [n_rows, (n_heads + 2 * n_kv_heads) * head_dim]; q and k are changed in place */
	float *out; /* [n_rows, n_heads * head_dim] */
	int n_heads, n_kv_heads, head_dim; /* of this rank */
	const int32_t *kv_head_of_head; /* [n_heads] index among this rank's KV heads */
	int uniform_groups; /* 1: kv_head_of_head[h] is h / (n_heads / n_kv_heads) for every h; 0: heads were split unevenly */
	/* This layer's: [n_blocks][n_kv_heads][KN_KV_BLOCK_TOKENS * head_dim] of kv_type; the order inside a block of one KV
	 * head is the backend's own. */
	void *k_cache, *v_cache;
	enum kn_kv_type kv_type;
	const int32_t *positions; /* [n_rows] */
	const int32_t *slots; /* [n_rows] line of block_tables that the row's sequence uses */
	const int32_t *block_tables; /* [slots][block_table_stride] block numbers */
	int64_t block_table_stride;
	const float *rope_cos_sin; /* [context][head_dim] pairs (cos, sin), from rope_table_fill */
	int rope_interleaved; /* 1: pairs (2i, 2i+1) as in GGUF llama files; 0: pairs (i, i + head_dim/2) */
	float scale; /* usually 1 / sqrt(head_dim) */
	const struct kn_matrix *reader; /* of out, as in kn_matmul */
	int few_rows_each; /* 1: sequences have one row or a few, as where every row asks for logits; for speed alone */
};

/* What some families do to q, k and v before attention, in place: a bias, then RMS norm of every head of q and k by itself:
 * x / sqrt(mean(x^2) + eps) * norm over its head_dim. What is NULL is left out; at least one is there, the two norms together. */
struct kn_heads {
	float *qkv; /* [n_rows, (n_heads + 2 * n_kv_heads) * head_dim] */
	int n_heads, n_kv_heads, head_dim; /* of this rank; head_dim as in attention */
	const float *bias; /* [(n_heads + 2 * n_kv_heads) * head_dim] */
	const float *q_norm, *k_norm; /* [head_dim] */
	float norm_eps;
};

#define KN_TEMPERATURE_MIN 1e-5 /* temperatures below are greedy: 1/T would leave fp32's range */
#define KN_SAMPLE_STREAM 0x5a11 /* stream of base/random that sampling draws from */

/* How one row's token is picked; engine/sampler.h defines what the numbers mean. */
struct kn_sampling {
	double temperature, top_p, min_p;
	uint64_t seed;
	int64_t position; /* the noise is that of (seed, position) */
	int32_t top_k;
	int32_t wants_logprob; /* 1: out.logprob is computed; else it is 0 */
};

/* What came of it. A negative id: the row's numbers are broken. */
enum { KN_SAMPLED_NAN = -1, KN_SAMPLED_INFINITY = -2, KN_SAMPLED_NOTHING = -3 };
struct kn_sampled {
	int32_t id;
	float logprob; /* of the raw logits */
};

/* The arrays of one step. Their sizes are the user's; see engine/step.h. */
struct kn_step_arrays {
	int32_t *n_rows, *n_logits; /* [1] */
	int32_t *tokens, *positions, *slots; /* [rows] */
	int32_t *sources; /* [rows] 0: the token is in tokens; i > 0: it is what the step before sampled as its outcome i - 1 */
	int32_t *logit_rows; /* [logits] */
	struct kn_sampling *sampling; /* [logits] */
	int32_t *block_tables; /* [slots + 1][stride]; the last line is for rows that fill up a plan, and names block 0 alone */
};

/* What the host learns of a step when it has ended: written last, turn after all else. */
struct kn_report {
	uint64_t begin_ns, end_ns; /* by the device's clock */
	uint32_t turn; /* number of the step that ended; wraps */
};

/* Backend memory, zeroed before the first step: which step it is, and what its report will say. */
struct kn_turn {
	uint64_t begin_ns;
	uint32_t turn, rows_done;
};

/* Passes steps to a backend with memory of its own and their outcomes back, so that the host can leave the next step while one
 * runs. Steps are numbered from 1; step n lies in stage n % 2, and so do its outcomes and its report. Host memory is
 * fixed by pin, and may be written again when the step's report is there. */
struct kn_exchange {
	struct kn_step_arrays stages[2]; /* host */
	struct kn_sampled *outcomes[2]; /* host, [logits] */
	struct kn_report *reports; /* host, [2] */
	struct kn_step_arrays step; /* backend */
	struct kn_sampled *sampled; /* backend, [logits]: outcomes of the last step */
	struct kn_turn *turn; /* backend */
	void *scratch; /* backend, sample_scratch_bytes, zeroed at first */
	int64_t block_table_stride;
	int32_t slots_max; /* number of the dummy line of block_tables */
	int32_t logits_max;
};

/* Work done by one thread in the middle of a step, such as an allreduce. */
typedef enum status (*kn_callback)(void *ctx, struct err *err);

struct kn_ops {
	const char *name; /* "cpu", "cuda" */
	int own_memory; /* 1: operations reach only memory from alloc, not the host's */
	int head_dim_step, head_dim_max; /* attention takes multiples of the one up to the other as head_dim, and no others */
	enum status (*create)(const struct kn_options *options, struct kn_backend **out, struct err *err);
	void (*destroy)(struct kn_backend *backend);
	/* Bytes that create allocates for its own scratch memory (for memory plans). */
	uint64_t (*workspace_bytes_needed)(const struct kn_options *options);
	const char *(*describe)(const struct kn_backend *backend); /* chosen instruction set, device name; borrowed */

	enum status (*alloc)(struct kn_backend *backend, size_t bytes, void **out, struct err *err); /* zeroed, 64-byte aligned */
	void (*release)(struct kn_backend *backend, void *block, size_t bytes);
	/* src may be reused when it returns, unless it was fixed by pin. */
	enum status (*to_device)(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err);
	enum status (*to_host)(struct kn_backend *backend, void *dst, const void *src, size_t bytes, struct err *err);
	/* Fixes host memory that copies often come from or go to, so that they run at the link's rate. Until unpin. */
	enum status (*pin)(struct kn_backend *backend, void *host, size_t bytes, struct err *err);
	void (*unpin)(struct kn_backend *backend, void *host);

	/* Concatenates slices (equal column counts, types may differ) by rows into one packed matrix. For KN_SWIGLU: gate rows,
	 * then as many up rows. */
	enum status (*matrix_create)(struct kn_backend *backend, const struct kn_slice *slices, size_t n_slices,
		struct kn_matrix **out, struct err *err);
	void (*matrix_destroy)(struct kn_backend *backend, struct kn_matrix *matrix);
	uint64_t (*matrix_bytes)(const struct kn_matrix *matrix);
	/* Bytes matrix_create will hold for slices, without making it (for memory plans). */
	uint64_t (*matrix_bytes_needed)(const struct kn_slice *slices, size_t n_slices);

	/* After a begin that went well plan_end is called in any case, also when an operation in between failed. */
	enum status (*plan_begin)(struct kn_backend *backend, struct err *err);
	enum status (*plan_end)(struct kn_backend *backend, struct kn_plan **out, struct err *err);
	enum status (*plan_run)(struct kn_backend *backend, struct kn_plan *plan, struct err *err);
	uint64_t (*plan_bytes)(const struct kn_plan *plan);
	/* Most bytes that a plan of n_operations holds, before it is recorded (for memory plans). */
	uint64_t (*plan_bytes_needed)(size_t n_operations);
	void (*plan_destroy)(struct kn_backend *backend, struct kn_plan *plan);

	enum status (*embed)(struct kn_backend *backend, const struct kn_matrix *table, const int32_t *ids, int n_rows, float *out,
		int64_t out_stride, struct err *err);
	enum status (*matmul)(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err);
	/* As matmul of each in turn, but for rounding: where each reads the y of the one before, a backend may do their norms
	 * within the products. */
	enum status (*matmul_chain)(
		struct kn_backend *backend, const struct kn_matmul *chain, int count, int n_rows, struct err *err);
	enum status (*attention)(struct kn_backend *backend, const struct kn_attention *args, int n_rows, struct err *err);
	enum status (*adjust_heads)(struct kn_backend *backend, const struct kn_heads *args, int n_rows, struct err *err);
	enum status (*add)(
		struct kn_backend *backend, float *x, const float *y, int64_t n, struct err *err); /* x += y; no overlap */
	enum status (*call)(struct kn_backend *backend, kn_callback callback, void *ctx, struct err *err);
	enum status (*synchronize)(struct kn_backend *backend, struct err *err);

	/* For backends with memory of their own; others refuse: their users read and write it directly. */
	/* First operation of a step: fetches the next stage, rows from its n_rows to n_rows becoming rows of the dummy line. */
	enum status (*take)(struct kn_backend *backend, const struct kn_exchange *exchange, int n_rows, struct err *err);
	/* Last operation of a step: picks the tokens of the first n_logits rows of logits [.., vocab], and reports. 0 is allowed.
	 */
	enum status (*sample)(struct kn_backend *backend, const struct kn_exchange *exchange, const float *logits, int64_t vocab,
		int n_logits, struct err *err);
	uint64_t (*sample_scratch_bytes)(int logits_max, int64_t vocab);
	/* Whether everything up to here went well, without waiting for what is under way. */
	enum status (*check)(struct kn_backend *backend, struct err *err);
};

extern const struct kn_ops kn_cpu_ops;
extern const struct kn_ops kn_cuda_ops; /* linked in GPU builds only */

/* Memory of a GPU in bytes, whole and free now (what this process holds is not free). Linked in GPU builds only.
 * STATUS_UNAVAILABLE with the driver's reason when there is no such GPU. */
enum status kn_cuda_memory(int device, uint64_t *total, uint64_t *free_now, struct err *err);

/* Other processes that hold memory of the GPU, by pid, name and MiB, as one line of text cut to out_bytes; empty when there are
 * none, or when the driver's management library is missing or does not tell. Linked in GPU builds only. */
void kn_cuda_others(int device, char *out, size_t out_bytes);

/* Cosine and sine for positions [0, context) and head_dim/2 frequencies, computed in double: out[p][2i] = cos, [2i+1] = sin.
 * freq_factors NULL or [head_dim/2] divisors of the frequency (llama3 scaling). Source: RoFormer, arXiv 2104.09864. */
void kn_rope_table_fill(float *out, int64_t context, int head_dim, double freq_base, const float *freq_factors);

#ifdef __cplusplus
}
#endif
#endif
