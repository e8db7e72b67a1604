/* What verdicts share with their callers: names, the minimum effect, what stands for zero. See verdict.h. */
#include "harness/verdict.h"

#include <math.h>

#include "base/mem.h"
#include "harness/stats.h"

#define MIN_EFFECT_KNOWN_MIN 20 /* A/A effects before their spread is believed */
#define MIN_EFFECT_CAP_PCT 5.0 /* a noisy machine must not hide effects larger than this */

const char *verdict_name(enum verdict verdict)
{
	static const char *const names[] = {"helped", "hurt", "neutral", "failed", "void"};
	return (size_t)verdict < sizeof names / sizeof names[0] ? names[verdict] : "unknown";
}

double verdict_min_effect(double floor_pct, const double *aa_effects, size_t n)
{
	if (n < MIN_EFFECT_KNOWN_MIN)
		return floor_pct;
	double *sizes = mem_calloc(n, sizeof *sizes);
	for (size_t i = 0; i < n; i++)
		sizes[i] = fabs(aa_effects[i]);
	double spread = stats_quantile(sizes, n, 0.95);
	mem_free(sizes);
	return fmax(floor_pct, fmin(MIN_EFFECT_CAP_PCT, spread));
}

double verdict_log_half(const struct launch_cell *cells, size_t n_cells, const char *metric, int workload)
{
	const struct metric_spec *spec = metric_by_name(metric);
	double half = NAN;
	for (size_t i = 0; i < n_cells; i++)
		half = fmin(half, metric_log_half(spec, cells[i].requests[workload], cells[i].seconds[workload]));
	return half;
}
