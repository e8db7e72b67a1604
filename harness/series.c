/* Prediction intervals and second differences of logarithms. */
#include "harness/series.h"

#include <math.h>
#include <stdbool.h>

#include "base/mem.h"
#include "harness/stats.h"

/* A value against what it is compared with: the difference, and which side it is on when that means something, else 0. */
struct departure {
	double difference;
	int side;
};

static struct departure judge(double difference, double limit)
{
	return (struct departure){difference, difference >= limit ? 1 : difference <= -limit ? -1 : 0};
}

/* The value y after n values. */
static struct departure from_window(const double *window, size_t n, double y, double delta)
{
	double mean = 0, squares = 0;
	for (size_t i = 0; i < n; i++)
		mean += window[i] / (double)n;
	for (size_t i = 0; i < n; i++)
		squares += (window[i] - mean) * (window[i] - mean);
	double sd = sqrt(squares / (double)(n - 1)), t = stats_student_quantile(1 - SERIES_STEP_LEVEL / 2, (double)(n - 1));
	return judge(y - mean, fmax(delta, t * sd * sqrt(1 + 1 / (double)n)));
}

/* The last of n values against the first. */
static struct departure from_first(const double *y, size_t n, double limit)
{
	if (n < 3)
		return (struct departure){0};
	double squares = 0;
	for (size_t i = 1; i + 1 < n; i++) {
		double second = y[i + 1] - 2 * y[i] + y[i - 1];
		squares += second * second;
	}
	/* A second difference has 6 times the variance of a value. Neighbours share two values, so there is less in them than their
	 * number says: half is counted. */
	double count = (double)(n - 2), sd = sqrt(squares / count / 6);
	double t = stats_student_quantile(1 - SERIES_DRIFT_LEVEL / 2, fmax(1, count / 2));
	return judge(y[n - 1] - y[0], fmax(limit, t * sd * sqrt(2)));
}

/* Whether the values at and before `at` confirm each other; begin: where the stretch begins. */
static bool find(const double *y, size_t begin, size_t at, const struct series_limits *limits, struct series_finding *out)
{
	size_t first = at - 1, before = first - begin;
	double step = log1p(limits->min_effect_pct / 100), drift = -log1p(-limits->drift_pct / 100);
	if (before >= SERIES_VALUES_MIN) {
		size_t n = before < SERIES_WINDOW ? before : SERIES_WINDOW;
		struct departure a = from_window(y + first - n, n, y[first], step), b = from_window(y + first - n, n, y[at], step);
		*out = (struct series_finding){SERIES_STEP, first, at, 100 * expm1((a.difference + b.difference) / 2)};
		if (a.side && a.side == b.side)
			return true;
	}
	struct departure a = from_first(y + begin, before + 1, drift), b = from_first(y + begin, before + 2, drift);
	*out = (struct series_finding){SERIES_DRIFT, first, at, 100 * expm1(a.difference)};
	return a.side && a.side == b.side;
}

size_t series_scan(const double *values, size_t n, const struct series_limits *limits, struct series_finding *out, size_t n_out)
{
	double *y = mem_calloc(n + 1, sizeof(*y));
	size_t begin = 0, found = 0;
	for (size_t i = 0; i < n; i++)
		y[i] = log(values[i]);
	for (size_t i = 1; i < n; i++) {
		struct series_finding finding;
		if (i == begin || !find(y, begin, i, limits, &finding))
			continue;
		if (found < n_out)
			out[found] = finding;
		found++;
		begin = finding.since;
	}
	mem_free(y);
	return found;
}
