/* What has happened to a figure from one measurement to the next: steps, and losses that creep. Pure, and blind to everything but
 * the order of the values: the same values give the same findings whatever dates or revisions they belong to.
 *
 * A step is two values in a row outside the prediction interval of up to SERIES_WINDOW values before them, on the same side, and
 * further away than the minimum effect: the second value is the measurement that confirms the first. With fewer than
 * SERIES_VALUES_MIN values before it nothing is called a step.
 *
 * A drift is two values in a row that differ from the reference by the drift limit and by more than the noise explains. The
 * reference is the first value of the stretch, so that many losses, each too small to be seen, are seen together. The noise is
 * estimated from second differences, to which a steady slope adds nothing (von Neumann, Kent, Bellinson and Hart, Ann. Math.
 * Statist. 1941, one order higher).
 *
 * A finding ends the stretch: what follows is compared with the new level, so that one change is told once. Of 30 values of pure
 * noise with a standard deviation of 3 % one series in thirty has a finding (tests/harness/test_series.c). */
#ifndef HARNESS_SERIES_H
#define HARNESS_SERIES_H

#include <stddef.h>

#define SERIES_WINDOW 14
#define SERIES_VALUES_MIN 5
#define SERIES_STEP_LEVEL 0.02 /* two-sided, of one value */
#define SERIES_DRIFT_LEVEL 0.005

enum series_kind { SERIES_STEP, SERIES_DRIFT };

struct series_limits {
	double min_effect_pct; /* of a step */
	double drift_pct;
};

struct series_finding {
	enum series_kind kind;
	size_t since, seen; /* the first value of the new level, and the one that confirmed it */
	double effect_pct; /* of a step: mean of both against the mean before; of a drift: of the first against the reference */
};

/* Values are positive and in order. Returns how many findings there are; out holds the first n_out of them. */
size_t series_scan(const double *values, size_t n, const struct series_limits *limits, struct series_finding *out, size_t n_out);

#endif
