/* Least squares for y = arm + block + noise on whichever cells are present, and paired differences. */
#include "harness/stats.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

/* Working state of one fit. Arms and blocks that no chain of cells connects with arm 0 are left out. */
struct layout {
	const struct stats_cell *cells;
	size_t n_cells;
	int n_arms, n_blocks;
	bool *arm_in, *block_in;
	double *matrix; /* [n_arms, n_arms] normal equations with the blocks eliminated; then their Cholesky factor */
	double *rhs; /* [n_arms] */
	double *block_sum;
	int *block_count;
};

static void find_connected(struct layout *layout)
{
	layout->arm_in[0] = true;
	for (bool changed = true; changed;) { /* at most one round per arm or block */
		changed = false;
		for (size_t i = 0; i < layout->n_cells; i++) {
			bool *arm = &layout->arm_in[layout->cells[i].arm], *block = &layout->block_in[layout->cells[i].block];
			if (*arm != *block)
				*arm = *block = changed = true;
		}
	}
}

static bool is_in(const struct layout *layout, size_t cell)
{
	return layout->arm_in[layout->cells[cell].arm];
}

/* Arms i and j share w = sum over their common blocks of 1 / (cells in the block); A = diag(cells of i) - w (Searle, Linear
 * Models, chapter 7). Arm 0 is the reference and drops out. */
static void build_equations(struct layout *layout)
{
	int n = layout->n_arms;
	for (size_t i = 0; i < layout->n_cells; i++)
		if (is_in(layout, i)) {
			layout->block_sum[layout->cells[i].block] += layout->cells[i].y;
			layout->block_count[layout->cells[i].block]++;
		}
	for (size_t i = 0; i < layout->n_cells; i++) {
		const struct stats_cell *cell = &layout->cells[i];
		if (!is_in(layout, i))
			continue;
		int count = layout->block_count[cell->block];
		layout->matrix[cell->arm * n + cell->arm] += 1;
		layout->rhs[cell->arm] += cell->y - layout->block_sum[cell->block] / count;
		for (size_t k = 0; k < layout->n_cells; k++)
			if (layout->cells[k].block == cell->block)
				layout->matrix[cell->arm * n + layout->cells[k].arm] -= 1.0 / count;
	}
	for (int arm = 0; arm < n; arm++)
		if (arm == 0 || !layout->arm_in[arm]) { /* fixed at zero: an identity row keeps the factorisation regular */
			for (int other = 0; other < n; other++)
				layout->matrix[arm * n + other] = layout->matrix[other * n + arm] = 0;
			layout->matrix[arm * n + arm] = 1;
			layout->rhs[arm] = 0;
		}
}

/* In place, lower triangle. The matrix is positive definite for a connected layout. */
static void factor(double *matrix, int n)
{
	for (int j = 0; j < n; j++) {
		for (int i = j; i < n; i++) {
			double sum = matrix[i * n + j];
			for (int k = 0; k < j; k++)
				sum -= matrix[i * n + k] * matrix[j * n + k];
			matrix[i * n + j] = i == j ? sqrt(sum) : sum / matrix[j * n + j];
		}
	}
}

static void forward(const double *lower, int n, double *x)
{
	for (int i = 0; i < n; i++) {
		for (int k = 0; k < i; k++)
			x[i] -= lower[i * n + k] * x[k];
		x[i] /= lower[i * n + i];
	}
}

static void backward(const double *lower, int n, double *x)
{
	for (int i = n - 1; i >= 0; i--) {
		for (int k = i + 1; k < n; k++)
			x[i] -= lower[k * n + i] * x[k];
		x[i] /= lower[i * n + i];
	}
}

/* Diagonal of the inverse: the squared length of a column of the inverse factor. */
static double inverse_diagonal(const double *lower, int n, int arm, double *scratch)
{
	memset(scratch, 0, (size_t)n * sizeof *scratch);
	scratch[arm] = 1;
	forward(lower, n, scratch);
	double sum = 0;
	for (int i = 0; i < n; i++)
		sum += scratch[i] * scratch[i];
	return sum;
}

static void solve(struct layout *layout, struct stats_two_way *out)
{
	int n = layout->n_arms;
	double *scratch = mem_calloc((size_t)n, sizeof *scratch);
	factor(layout->matrix, n);
	forward(layout->matrix, n, layout->rhs);
	backward(layout->matrix, n, layout->rhs);
	for (int arm = 0; arm < n; arm++) {
		bool fitted = layout->arm_in[arm];
		out->effect[arm] = !fitted ? NAN : arm ? layout->rhs[arm] : 0;
		out->variance[arm] = !fitted ? NAN : arm ? inverse_diagonal(layout->matrix, n, arm, scratch) : 0;
	}
	mem_free(scratch);
}

static void find_residuals(struct layout *layout, struct stats_two_way *out)
{
	double *block = mem_calloc((size_t)layout->n_blocks, sizeof *block);
	double squares = 0;
	int cells = 0, arms = 0, blocks = 0;
	for (size_t i = 0; i < layout->n_cells; i++)
		if (is_in(layout, i))
			block[layout->cells[i].block] += layout->cells[i].y - out->effect[layout->cells[i].arm];
	for (size_t i = 0; i < layout->n_cells; i++) {
		const struct stats_cell *cell = &layout->cells[i];
		out->residual[i] = NAN;
		if (!is_in(layout, i))
			continue;
		out->residual[i] = cell->y - out->effect[cell->arm] - block[cell->block] / layout->block_count[cell->block];
		squares += out->residual[i] * out->residual[i];
		cells++;
	}
	for (int arm = 0; arm < layout->n_arms; arm++)
		arms += layout->arm_in[arm];
	for (int b = 0; b < layout->n_blocks; b++)
		blocks += layout->block_in[b];
	out->df = cells ? cells - arms - blocks + 1 : 0;
	out->residual_variance = out->df > 0 ? squares / out->df : NAN;
	mem_free(block);
}

enum status stats_two_way_fit(
	const struct stats_cell *cells, size_t n_cells, int n_arms, int n_blocks, struct stats_two_way *out, struct err *err)
{
	*out = (struct stats_two_way){0};
	if (n_arms < 1 || n_blocks < 1)
		return err_set(err, STATUS_INTERNAL, "a layout needs arms and blocks, has %d and %d", n_arms, n_blocks);
	for (size_t i = 0; i < n_cells; i++)
		if (cells[i].arm < 0 || cells[i].arm >= n_arms || cells[i].block < 0 || cells[i].block >= n_blocks ||
			!isfinite(cells[i].y))
			return err_set(err, STATUS_INTERNAL, "cell %zu of the layout is out of range", i);
	struct arena arena = {0};
	size_t arms = (size_t)n_arms, blocks = (size_t)n_blocks;
	struct layout layout = {cells, n_cells, n_arms, n_blocks, .arm_in = arena_calloc(&arena, arms, sizeof(bool)),
		.block_in = arena_calloc(&arena, blocks, sizeof(bool)), .matrix = arena_calloc(&arena, arms * arms, sizeof(double)),
		.rhs = arena_calloc(&arena, arms, sizeof(double)), .block_sum = arena_calloc(&arena, blocks, sizeof(double)),
		.block_count = arena_calloc(&arena, blocks, sizeof(int))};
	out->n_arms = n_arms;
	out->effect = mem_calloc(arms, sizeof *out->effect);
	out->variance = mem_calloc(arms, sizeof *out->variance);
	out->residual = mem_calloc(n_cells ? n_cells : 1, sizeof *out->residual);
	find_connected(&layout);
	build_equations(&layout);
	solve(&layout, out);
	find_residuals(&layout, out);
	arena_release(&arena);
	return STATUS_OK;
}

void stats_two_way_release(struct stats_two_way *fit)
{
	mem_free(fit->effect);
	mem_free(fit->variance);
	mem_free(fit->residual);
	*fit = (struct stats_two_way){0};
}

int stats_paired(const struct stats_cell *cells, size_t n_cells, int arm, int n_blocks, double *mean, double *sd)
{
	double *base = mem_calloc((size_t)n_blocks, sizeof *base), *difference = mem_calloc((size_t)n_blocks, sizeof *difference);
	int pairs = 0;
	double sum = 0, squares = 0;
	for (int block = 0; block < n_blocks; block++)
		base[block] = NAN;
	for (size_t i = 0; i < n_cells; i++)
		if (cells[i].arm == 0)
			base[cells[i].block] = cells[i].y;
	for (size_t i = 0; i < n_cells; i++)
		if (cells[i].arm == arm && !isnan(base[cells[i].block])) {
			difference[pairs] = cells[i].y - base[cells[i].block];
			sum += difference[pairs++];
		}
	*mean = pairs ? sum / pairs : NAN;
	for (int i = 0; i < pairs; i++)
		squares += (difference[i] - *mean) * (difference[i] - *mean);
	*sd = pairs > 1 ? sqrt(squares / (pairs - 1)) : NAN;
	mem_free(base);
	mem_free(difference);
	return pairs;
}
