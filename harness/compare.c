/* Pools the variance of all arms that are about equally noisy, and compares each arm with arm 0. See compare.h. */
#include "harness/compare.h"

#include <math.h>

#include "base/mem.h"

#define NOISY_BLOCKS_MIN 3 /* a variance from fewer cells says nothing */

struct pool {
	struct stats_cell *cells; /* those of the arms that are still in the pool */
	size_t n_cells;
	struct stats_two_way fit;
};

static void fill_pool(struct pool *pool, const struct stats_cell *cells, size_t n_cells, const bool *left_out)
{
	pool->n_cells = 0;
	for (size_t i = 0; i < n_cells; i++)
		if (!left_out[cells[i].arm])
			pool->cells[pool->n_cells++] = cells[i];
}

/* Chance that the ratio of two variances of equally noisy arms is at least f. */
static double variance_ratio_p(double f, double df1, double df2)
{
	return isinf(f) ? 0 : stats_incomplete_beta(df2 / 2, df1 / 2, df2 / (df2 + df1 * f));
}

/* The arm whose own residual variance exceeds that of the others most, or 0 when none does so clearly. With a arms
 * in a block, removing one of them lowers the residual sum of squares by its own residuals' squares times a / (a - 1): exact
 * for complete layouts, close for others. */
static int find_noisy(const struct pool *pool, int n_arms)
{
	double *squares = mem_calloc((size_t)n_arms, sizeof *squares), total = 0;
	int *count = mem_calloc((size_t)n_arms, sizeof *count), arms = 0, worst = 0;
	for (size_t i = 0; i < pool->n_cells; i++) {
		double residual = pool->fit.residual[i];
		if (isnan(residual))
			continue;
		squares[pool->cells[i].arm] += residual * residual;
		total += residual * residual;
		arms += count[pool->cells[i].arm]++ == 0;
	}
	double worst_ratio = COMPARE_NOISY_RATIO, share = arms > 1 ? (double)arms / (arms - 1) : NAN;
	for (int arm = 1; arm < n_arms; arm++) {
		double own = share * squares[arm] / (count[arm] - 1);
		double others_df = pool->fit.df - (count[arm] - 1);
		if (count[arm] < NOISY_BLOCKS_MIN || others_df < 1)
			continue;
		double others = fmax(0, total - share * squares[arm]) / others_df;
		double ratio = others > 0 ? own / others : own > 0 ? INFINITY : 0;
		bool unlikely = variance_ratio_p(ratio, count[arm] - 1, others_df) * (arms - 1) < COMPARE_NOISY_LEVEL;
		if (ratio > worst_ratio && unlikely) {
			worst_ratio = ratio;
			worst = arm;
		}
	}
	mem_free(squares);
	mem_free(count);
	return worst;
}

static void from_pool(const struct stats_two_way *fit, int arm, struct comparison *out)
{
	out->effect = fit->effect[arm];
	out->df = fit->df;
	out->sd = sqrt(fit->residual_variance);
	out->std_error = out->sd * sqrt(fit->variance[arm]);
}

static void from_pairs(double mean, double sd, int pairs, struct comparison *out)
{
	out->paired = true;
	out->effect = mean;
	out->df = pairs - 1;
	out->sd = sd / sqrt(2); /* a difference carries the noise of two cells */
	out->std_error = sd / sqrt(pairs);
}

static void finish(struct comparison *out)
{
	/* No noise at all happens with made-up data only; then any difference is certain. */
	if (out->std_error == 0)
		out->p = out->effect == 0 ? 1 : 0;
	else
		out->p = stats_student_two_sided_p(out->effect / out->std_error, out->df);
}

/* The cells with log_half in place of ln(0). Returns how many there are. */
static size_t settle_zeros(const struct stats_cell *cells, size_t n_cells, double log_half, struct stats_cell *out)
{
	size_t count = 0;
	for (size_t i = 0; i < n_cells; i++) {
		struct stats_cell cell = cells[i];
		cell.y = isinf(cell.y) ? log_half : cell.y;
		if (isfinite(cell.y))
			out[count++] = cell;
	}
	return count;
}

static void mark_zero_arms(const struct stats_cell *cells, size_t n_cells, int n_arms, struct comparison *out, bool *left_out)
{
	for (int arm = 0; arm < n_arms; arm++) {
		int own = 0, zeros = 0;
		for (size_t i = 0; i < n_cells; i++) {
			own += cells[i].arm == arm;
			zeros += cells[i].arm == arm && isinf(cells[i].y);
		}
		out[arm] = (struct comparison){.zero = own && zeros == own};
		left_out[arm] = arm && (out[arm].zero || out[0].zero);
	}
}

enum status compare_arms(const struct stats_cell *given, size_t n_given, int n_arms, int n_blocks, double log_half,
	struct comparison *out, struct err *err)
{
	bool *left_out = mem_calloc((size_t)n_arms, sizeof *left_out);
	struct stats_cell *cells = mem_calloc(n_given + 1, sizeof *cells);
	size_t n_cells = settle_zeros(given, n_given, log_half, cells);
	struct pool pool = {mem_calloc(n_cells + 1, sizeof *pool.cells), 0, {0}};
	enum status status = STATUS_OK;
	mark_zero_arms(given, isnan(log_half) ? 0 : n_given, n_arms, out, left_out);
	for (;;) { /* leaves out one arm per round */
		fill_pool(&pool, cells, n_cells, left_out);
		status = stats_two_way_fit(pool.cells, pool.n_cells, n_arms, n_blocks, &pool.fit, err);
		int noisy = status ? 0 : find_noisy(&pool, n_arms);
		if (!noisy)
			break;
		left_out[noisy] = true;
		stats_two_way_release(&pool.fit);
	}
	for (int arm = 0; arm < n_arms && !status; arm++) {
		double mean, sd;
		out[arm].blocks = stats_paired(cells, n_cells, arm, n_blocks, &mean, &sd);
		if (left_out[arm])
			from_pairs(mean, sd, out[arm].blocks, &out[arm]);
		else
			from_pool(&pool.fit, arm, &out[arm]);
		finish(&out[arm]);
	}
	stats_two_way_release(&pool.fit);
	mem_free(pool.cells);
	mem_free(cells);
	mem_free(left_out);
	return status;
}
