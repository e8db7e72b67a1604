/* Statistics for verdicts: distributions, the block + arm layout, multiplicity, group-sequential levels. Pure; no I/O.
 * Checked against scipy and statsmodels by tests/golden/stats. NaN in gives NaN out. */
#ifndef HARNESS_STATS_H
#define HARNESS_STATS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

double stats_normal_cdf(double x);
double stats_normal_quantile(double p); /* p in (0, 1); -inf and +inf at 0 and 1 */

/* Regularised incomplete beta function I_x(a, b), by Lentz's continued fraction (Numerical Recipes 6.4; DLMF 8.17.22). */
double stats_incomplete_beta(double a, double b, double x);

/* Student's t with df > 0 degrees of freedom (df need not be whole). */
double stats_student_cdf(double t, double df);
double stats_student_two_sided_p(double t, double df); /* P(|T| >= |t|), accurate in the far tail */
double stats_student_quantile(double p, double df);

/* Percentile by linear interpolation between order statistics (type 7, as numpy). fraction in [0, 1]. NaN when n is 0.
 * Does not change values. stats_quantile_sorted is told that they rise. */
double stats_quantile(const double *values, size_t n, double fraction);
double stats_quantile_sorted(const double *values, size_t n, double fraction);
void stats_sort(double *values, size_t n); /* rising */

/* Marks values that do not belong to the others: further from the median than STATS_OUTLIER_MADS median absolute deviations (scaled
 * to a standard deviation) and than a tenth of the median. Returns how many; none below STATS_OUTLIER_VALUES_MIN values. NaN is
 * none. */
#define STATS_OUTLIER_MADS 5.0 /* guess: noise of a run is far inside, lazy loading far outside */
#define STATS_OUTLIER_VALUES_MIN 4
size_t stats_outliers(const double *values, size_t n, bool *is_outlier);

/* Holm's step-down adjustment. family is the number of hypotheses counted, at least n: those that were never tested count
 * as not rejected (p = 1). NaN entries of p stay NaN. adjusted may be p. (Holm, Scand. J. Statist. 1979.) */
void stats_holm(const double *p, size_t n, size_t family, double *adjusted);

/* Two-sided level of each of looks equally spaced looks that keeps the overall level at alpha (Pocock, Biometrika 1977),
 * by recursive numerical integration (Armitage, McPherson and Rowe, J. R. Statist. Soc. A 1969). looks in [1, 8]. */
double stats_pocock_level(double alpha, int looks);

/* Further blocks after which an effect of delta could be told from none: 2 (t s / delta)^2 less those there are, at least 1. */
double stats_needed_blocks(double sd, double delta, double level, double df, int blocks);

struct stats_cell {
	int arm, block;
	double y;
};

/* The difference of two independent means without the assumption of equal variances (Welch, Biometrika 1947). NaN with fewer than
 * two values on a side. */
struct stats_difference {
	double difference; /* mean of b less mean of a */
	double std_error, df, p;
};
struct stats_difference stats_welch(const double *a, size_t n_a, const double *b, size_t n_b);

/* y = arm + block + noise, fitted by least squares on the cells present. */
struct stats_two_way {
	int n_arms;
	double *effect; /* [n_arms] arm - arm 0; NaN when no chain of shared blocks connects the arm with arm 0 */
	double *variance; /* [n_arms] variance of the effect in units of residual_variance */
	double *residual; /* [n_cells] in the order given; NaN outside the part connected with arm 0 */
	double residual_variance; /* NaN when df is 0 */
	double df; /* cells - arms - blocks + 1, over the part connected with arm 0 */
};

/* At most one cell per arm and block. Release with stats_two_way_release. STATUS_INTERNAL when indices are out of range. */
enum status stats_two_way_fit(
	const struct stats_cell *cells, size_t n_cells, int n_arms, int n_blocks, struct stats_two_way *out, struct err *err);
void stats_two_way_release(struct stats_two_way *fit);

/* Paired differences arm - arm 0 over the blocks that have both. Returns their number; mean and sd are NaN below 1 and 2. */
int stats_paired(const struct stats_cell *cells, size_t n_cells, int arm, int n_blocks, double *mean, double *sd);

#endif
