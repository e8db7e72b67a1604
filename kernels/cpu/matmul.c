/* Matrix product in two phases: rows are normalised and quantised once, then threads share out the panels of weights.
 * Which thread computes a panel, and in which tile, does not change a bit of it. */
#include "kernels/cpu/matmul.h"

#include <math.h>
#include <string.h>

#define ROW_BLOCK_BYTES (384 * 1024) /* quantised rows that pass over all panels at once: they stay in a 1 MiB L2 cache */

enum status matmul_check(const struct kn_backend *backend, const struct kn_matmul *args, int n_rows, struct err *err)
{
	if (!args->w || !args->x || !args->y)
		return err_set(err, STATUS_INTERNAL, "matmul without weights, input or output");
	if (n_rows < 1 || n_rows > backend->rows_max)
		return err_set(err, STATUS_INTERNAL, "matmul of %d rows, expected 1 to %d", n_rows, backend->rows_max);
	if (args->w->cols > backend->cols_max)
		return err_set(err, STATUS_INTERNAL, "matmul of %lld columns, expected at most %lld", (long long)args->w->cols,
			(long long)backend->cols_max);
	if (args->epilogue != KN_STORE && args->epilogue != KN_ADD && args->epilogue != KN_SWIGLU)
		return err_set(err, STATUS_INTERNAL, "matmul with epilogue %d", (int)args->epilogue);
	if (args->epilogue == KN_SWIGLU && args->w->paired_panels == 0)
		return err_set(err, STATUS_INTERNAL,
			"swiglu over %lld rows: gate and up must be slices of equal shape, or halves of a "
			"multiple of %d rows",
			(long long)args->w->rows, PANEL_ROWS);
	return STATUS_OK;
}

static void prepare_row(const struct kn_backend *backend, const struct kn_matmul *args, int row, const struct activations *into)
{
	const struct micro *micro = backend->micro;
	const float *x = args->x + (args->row_index ? args->row_index[row] : row) * args->x_stride;
	float *values = into->values + row * into->col_stride;
	int64_t cols = args->w->cols;

	if (args->norm_weight) {
		float scale = 1.0f / sqrtf(micro->sum_squares(x, cols) / (float)cols + args->norm_eps);

		micro->normalize(x, scale, args->norm_weight, cols, values);
		x = values;
	} else if (args->w->has_plain) {
		memcpy(values, x, (size_t)cols * sizeof(*values));
	}
	if (args->w->has_quantized)
		micro->quantize(x, cols, into->quants + row * into->col_stride, into->blocks + row * into->col_stride / BLOCK_COLS);
}

/* Rows ready for the products: this thread's own copy, or the shared one with a barrier. */
static const struct activations *prepare(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, int thread)
{
	const struct activations *into = &backend->shared;
	int64_t begin = 0, end = n_rows;
	bool own = n_rows <= PRIVATE_ROWS_MAX;

	if (own)
		into = &backend->scratch[thread].own;
	else
		thread_share(n_rows, thread, backend->threads, &begin, &end);
	for (int64_t row = begin; row < end; row++)
		prepare_row(backend, args, (int)row, into);
	if (!own)
		pool_barrier(backend->pool);
	return into;
}

/* Products of some panels of a segment with some rows. */
struct tile {
	const struct segment *segment;
	int64_t panel; /* within the segment */
	int n_panels;
	int row_begin, n_rows;
};

static void multiply(
	const struct kn_backend *backend, int64_t cols, const struct activations *x, const struct tile *tile, float *out)
{
	struct micro_product product = {
		.panels = tile->segment->panels + tile->panel * tile->segment->panel_bytes,
		.panel_bytes = tile->segment->panel_bytes,
		.n_panels = tile->n_panels,
		.n_cols = cols,
		.activations = x,
		.row_begin = tile->row_begin,
		.n_rows = tile->n_rows,
		.out = out,
	};

	backend->micro->multiply[tile->segment->form](&product);
}

/* Writes the finished tile to y; lanes past the segment's last row are padding. */
static void finish(const struct kn_matmul *args, const struct tile *tile, const float *results)
{
	for (int panel = 0; panel < tile->n_panels; panel++) {
		int64_t first = (tile->panel + panel) * PANEL_ROWS;
		int64_t left = tile->segment->rows - first;
		int lanes = left < PANEL_ROWS ? (int)left : PANEL_ROWS;

		for (int row = 0; row < tile->n_rows; row++, results += PANEL_ROWS) {
			float *y = args->y + (tile->row_begin + row) * args->y_stride + tile->segment->row_begin + first;

			if (args->epilogue != KN_ADD)
				memcpy(y, results, (size_t)lanes * sizeof(*y));
			else if (lanes == PANEL_ROWS)
				add_lanes(y, results);
			else
				for (int lane = 0; lane < lanes; lane++)
					y[lane] += results[lane];
		}
	}
}

static int min_int(int64_t a, int64_t b)
{
	return (int)(a < b ? a : b);
}

/* Panels [begin, end) of the matrix, or for KN_SWIGLU pairs of panels of its two halves, with rows [row_begin, row_end). */
static void run_panels(struct kn_backend *backend, const struct kn_matmul *args, const struct activations *x, int64_t begin,
	int64_t end, int row_begin, int row_end, struct thread_scratch *scratch)
{
	const struct kn_matrix *w = args->w;
	bool paired = args->epilogue == KN_SWIGLU;

	for (int64_t panel = begin; panel < end;) {
		const struct segment *segment = pack_segment_of_panel(w, panel), *up_segment = segment;
		int64_t up_panel = panel + w->paired_panels;
		int n_panels = min_int(min_int(end - panel, segment->panel_begin + segment->n_panels - panel), TILE_PANELS);

		if (paired) {
			up_segment = pack_segment_of_panel(w, up_panel);
			n_panels = min_int(n_panels, up_segment->panel_begin + up_segment->n_panels - up_panel);
		}
		for (int row = row_begin; row < row_end; row += TILE_ROWS) {
			int n_rows = min_int(row_end - row, TILE_ROWS);
			struct tile tile = {segment, panel - segment->panel_begin, n_panels, row, n_rows};

			multiply(backend, w->cols, x, &tile, scratch->tile);
			if (paired) {
				struct tile up = {up_segment, up_panel - up_segment->panel_begin, n_panels, row, n_rows};

				multiply(backend, w->cols, x, &up, scratch->up_tile);
				backend->micro->swiglu(
					scratch->tile, scratch->up_tile, (int64_t)n_panels * n_rows * PANEL_ROWS, scratch->tile);
			}
			finish(args, &tile, scratch->tile);
		}
		panel += n_panels;
	}
}

/* First panel of a thread's share when panels are shared out by their bytes, which differ between segments. */
static int64_t share_begin(const struct kn_matrix *w, int thread, int threads)
{
	int64_t total = 0, target;

	for (size_t i = 0; i < w->n_segments; i++)
		total += w->segments[i].n_panels * w->segments[i].panel_bytes;
	target = total / threads * thread + total % threads * thread / threads;
	if (thread == threads)
		return w->n_panels;
	for (size_t i = 0; i < w->n_segments; i++) {
		const struct segment *segment = &w->segments[i];

		if (target < segment->n_panels * segment->panel_bytes)
			return segment->panel_begin + target / segment->panel_bytes;
		target -= segment->n_panels * segment->panel_bytes;
	}
	return w->n_panels;
}

void matmul_run(struct kn_backend *backend, const struct kn_matmul *args, int n_rows, int thread)
{
	const struct activations *x = prepare(backend, args, n_rows, thread);
	int64_t begin, end, row_bytes = args->w->cols * (args->w->has_plain ? (int64_t)sizeof(float) : (int64_t)sizeof(int16_t));
	int row_block = min_int(ROW_BLOCK_BYTES / row_bytes / TILE_ROWS, n_rows) * TILE_ROWS;

	if (row_block == 0)
		row_block = TILE_ROWS;
	if (args->epilogue == KN_SWIGLU) {
		thread_share(args->w->paired_panels, thread, backend->threads, &begin, &end);
	} else {
		begin = share_begin(args->w, thread, backend->threads);
		end = share_begin(args->w, thread + 1, backend->threads);
	}
	for (int row = 0; row < n_rows; row += row_block)
		run_panels(backend, args, x, begin, end, row, min_int(row + row_block, n_rows), &backend->scratch[thread]);
}
