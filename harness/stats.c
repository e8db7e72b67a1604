/* Distributions and test levels: normal, Student t, incomplete beta, Holm, Pocock. The block + arm layout is in stats_layout.c. */
#include "harness/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

double stats_normal_cdf(double x)
{
	return 0.5 * erfc(-x / sqrt(2));
}

double stats_normal_quantile(double p)
{
	if (isnan(p) || p < 0 || p > 1)
		return NAN;
	if (p == 0 || p == 1)
		return p == 0 ? -INFINITY : INFINITY;
	if (p == 0.5)
		return 0;
	if (p > 0.5)
		return -stats_normal_quantile(1 - p);
	/* Abramowitz and Stegun 26.2.23 is within 4.5e-4; each Halley step then triples the number of right digits. */
	double t = sqrt(-2 * log(p));
	double x = -(t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))));
	for (int i = 0; i < 3; i++) {
		double step = (stats_normal_cdf(x) - p) * sqrt(2 * M_PI) * exp(x * x / 2);
		x -= step / (1 + x * step / 2);
	}
	return x;
}

/* Continued fraction of the incomplete beta function; converges fast for x below (a + 1) / (a + b + 2). */
static double beta_fraction(double a, double b, double x)
{
	const double tiny = 1e-300;
	double c = 1, d = 1 - (a + b) * x / (a + 1);
	d = 1 / (fabs(d) < tiny ? tiny : d);
	double fraction = d;
	for (int m = 1; m <= 10000; m++) { /* O(sqrt(max(a, b))) terms are enough: far fewer for any df in use */
		double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
		double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
		d = 1 + even * d;
		c = 1 + even / c;
		d = 1 / (fabs(d) < tiny ? tiny : d);
		c = fabs(c) < tiny ? tiny : c;
		fraction *= d * c;
		d = 1 + odd * d;
		c = 1 + odd / c;
		d = 1 / (fabs(d) < tiny ? tiny : d);
		c = fabs(c) < tiny ? tiny : c;
		fraction *= d * c;
		if (fabs(d * c - 1) < 1e-16)
			break;
	}
	return fraction;
}

static double log_gamma(double x)
{
	int sign; /* lgamma itself writes a global */
	return lgamma_r(x, &sign);
}

/* I_x(a, b) with y = 1 - x given apart, because the subtraction loses digits where x is near 1. */
static double incomplete_beta(double a, double b, double x, double y)
{
	if (x <= 0 || y <= 0)
		return x <= 0 ? 0 : 1;
	double front = exp(log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * log(x) + b * log(y));
	if (x < (a + 1) / (a + b + 2))
		return front * beta_fraction(a, b, x) / a;
	return 1 - front * beta_fraction(b, a, y) / b;
}

double stats_incomplete_beta(double a, double b, double x)
{
	if (!(a > 0) || !(b > 0) || !(x >= 0 && x <= 1))
		return NAN;
	return incomplete_beta(a, b, x, 1 - x);
}

double stats_student_two_sided_p(double t, double df)
{
	if (isnan(t) || !(df > 0))
		return NAN;
	if (isinf(t))
		return 0;
	return incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t));
}

double stats_student_cdf(double t, double df)
{
	double tail = stats_student_two_sided_p(t, df) / 2;
	return t > 0 ? 1 - tail : tail;
}

static double student_density(double t, double df)
{
	return exp(log_gamma((df + 1) / 2) - log_gamma(df / 2) - (df + 1) / 2 * log1p(t * t / df)) / sqrt(df * M_PI);
}

double stats_student_quantile(double p, double df)
{
	if (isnan(p) || p < 0 || p > 1 || !(df > 0))
		return NAN;
	if (p == 0 || p == 1)
		return p == 0 ? -INFINITY : INFINITY;
	if (p == 0.5)
		return 0;
	double tails = 2 * (p < 0.5 ? p : 1 - p); /* P(|T| >= t) of the positive t looked for */
	double low = 0, high = 1;
	while (stats_student_two_sided_p(high, df) > tails && high < 1e300)
		high *= 2;
	/* Newton's method kept inside a shrinking bracket: the tail is convex, so it cannot cycle. */
	double t = high / 2;
	for (int i = 0; i < 200; i++) {
		double excess = stats_student_two_sided_p(t, df) - tails;
		if (excess > 0)
			low = t;
		else
			high = t;
		double next = t + excess / (2 * student_density(t, df));
		if (!(next > low && next < high))
			next = low + (high - low) / 2;
		if (fabs(next - t) <= 1e-15 * t)
			break;
		t = next;
	}
	return p < 0.5 ? -t : t;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

void stats_sort(double *values, size_t n)
{
	if (n)
		qsort(values, n, sizeof *values, compare_doubles);
}

double stats_quantile_sorted(const double *values, size_t n, double fraction)
{
	if (!n || !(fraction >= 0 && fraction <= 1))
		return NAN;
	double rank = fraction * (double)(n - 1);
	size_t below = (size_t)rank;
	double result = values[below];
	if (below + 1 < n)
		result += (rank - (double)below) * (values[below + 1] - values[below]);
	return result;
}

double stats_quantile(const double *values, size_t n, double fraction)
{
	double *sorted = mem_calloc(n + 1, sizeof *sorted);
	if (n)
		memcpy(sorted, values, n * sizeof *sorted);
	stats_sort(sorted, n);
	double result = stats_quantile_sorted(sorted, n, fraction);
	mem_free(sorted);
	return result;
}

void stats_holm(const double *p, size_t n, size_t family, double *adjusted)
{
	bool *done = mem_calloc(n ? n : 1, sizeof *done);
	double *result = mem_calloc(n ? n : 1, sizeof *result);
	double largest = 0;
	for (size_t i = 0; i < n; i++)
		result[i] = NAN;
	for (size_t rank = 0; rank < n; rank++) {
		size_t best = n;
		for (size_t i = 0; i < n; i++)
			if (!done[i] && !isnan(p[i]) && (best == n || p[i] < p[best]))
				best = i;
		if (best == n)
			break;
		done[best] = true;
		largest = fmax(largest, fmin(1, (double)(family - rank) * p[best]));
		result[best] = largest;
	}
	memcpy(adjusted, result, n * sizeof *result);
	mem_free(result);
	mem_free(done);
}

#define POCOCK_POINTS 129 /* Simpson's rule, odd; the level is then right to better than 1e-6, as the tests check */

static double normal_density(double x)
{
	return exp(-x * x / 2) / sqrt(2 * M_PI);
}

/* Weight of point i in Simpson's rule on POCOCK_POINTS points that are step apart. */
static double simpson_weight(int i, double step)
{
	return step / 3 * (i == 0 || i == POCOCK_POINTS - 1 ? 1 : i % 2 ? 4 : 2);
}

/* Probability that a sum of standard normal steps leaves |S_k| < bound sqrt(k) at any of the looks. */
static double pocock_crossing(double bound, int looks)
{
	double density[POCOCK_POINTS], next[POCOCK_POINTS];
	double edge = bound, step = 2 * edge / (POCOCK_POINTS - 1);
	for (int i = 0; i < POCOCK_POINTS; i++)
		density[i] = normal_density(-edge + i * step);
	for (int look = 2; look < looks; look++) {
		double wide = bound * sqrt(look), wide_step = 2 * wide / (POCOCK_POINTS - 1);
		for (int j = 0; j < POCOCK_POINTS; j++) {
			next[j] = 0;
			for (int i = 0; i < POCOCK_POINTS; i++)
				next[j] += simpson_weight(i, step) * density[i] *
					normal_density(-wide + j * wide_step - (-edge + i * step));
		}
		memcpy(density, next, sizeof density);
		edge = wide;
		step = wide_step;
	}
	double last = bound * sqrt(looks), inside = 0;
	for (int i = 0; i < POCOCK_POINTS; i++) {
		double at = -edge + i * step;
		inside += simpson_weight(i, step) * density[i] * (stats_normal_cdf(last - at) - stats_normal_cdf(-last - at));
	}
	return 1 - inside;
}

double stats_pocock_level(double alpha, int looks)
{
	if (!(alpha > 0 && alpha < 1) || looks < 1 || looks > 8)
		return NAN;
	if (looks == 1)
		return alpha;
	/* The bound lies between the single look's and Bonferroni's. */
	double low = stats_normal_quantile(1 - alpha / 2), high = stats_normal_quantile(1 - alpha / 2 / looks);
	for (int i = 0; i < 40; i++) {
		double middle = (low + high) / 2;
		if (pocock_crossing(middle, looks) > alpha)
			low = middle;
		else
			high = middle;
	}
	return erfc((low + high) / 2 / sqrt(2));
}

double stats_needed_blocks(double sd, double delta, double level, double df, int blocks)
{
	if (!(sd >= 0) || !(delta > 0) || !(df > 0))
		return NAN;
	double t = stats_student_quantile(1 - level / 2, df);
	return fmax(1, ceil(2 * (t * sd / delta) * (t * sd / delta)) - blocks);
}

size_t stats_outliers(const double *values, size_t n, bool *is_outlier)
{
	double *apart = mem_calloc(n + 1, sizeof(*apart)), median = stats_quantile(values, n, 0.5);
	size_t count = 0;
	for (size_t i = 0; i < n; i++)
		apart[i] = fabs(values[i] - median);
	double limit = fmax(STATS_OUTLIER_MADS * 1.4826 * stats_quantile(apart, n, 0.5), fabs(median) / 10);
	for (size_t i = 0; i < n; i++) {
		is_outlier[i] = n >= STATS_OUTLIER_VALUES_MIN && apart[i] > limit;
		count += is_outlier[i];
	}
	mem_free(apart);
	return count;
}

static double mean_of(const double *values, size_t n, double *variance_of_mean)
{
	double mean = 0, squares = 0;
	for (size_t i = 0; i < n; i++)
		mean += values[i] / (double)n;
	for (size_t i = 0; i < n; i++)
		squares += (values[i] - mean) * (values[i] - mean);
	*variance_of_mean = n > 1 ? squares / (double)(n - 1) / (double)n : NAN;
	return n ? mean : NAN;
}

struct stats_difference stats_welch(const double *a, size_t n_a, const double *b, size_t n_b)
{
	double va, vb, mean_a = mean_of(a, n_a, &va), mean_b = mean_of(b, n_b, &vb);
	struct stats_difference out = {.difference = mean_b - mean_a, .std_error = sqrt(va + vb)};
	out.df = (va + vb) * (va + vb) / (va * va / ((double)n_a - 1) + vb * vb / ((double)n_b - 1));
	out.p = stats_student_two_sided_p(out.difference / out.std_error, out.df);
	return out;
}
