/* Gaps, and the stretching of time for ramps. See schedule.h. */
#include "harness/schedule.h"

#include <math.h>
#include <stdbool.h>

#include "base/random.h"

#define NS_PER_S 1e9
#define REJECTIONS_MAX 64 /* each try is accepted with a chance above 0.95 */

double schedule_gap(double shape, uint64_t seed, uint64_t stream)
{
	if (shape == 1)
		return -log(random_uniform(seed, stream, 0));
	/* Below 1 the method takes shape + 1 and a power of another uniform number. */
	double boost = shape < 1 ? pow(random_uniform(seed, stream, 0), 1 / shape) : 1;
	double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3, c = 1 / sqrt(9 * d), v = 1;
	for (uint64_t attempt = 1; attempt <= REJECTIONS_MAX; attempt++) {
		double x = random_normal(seed, stream, 2 * attempt), u = random_uniform(seed, stream, 2 * attempt + 1);
		v = (1 + c * x) * (1 + c * x) * (1 + c * x);
		if (v > 0 && log(u) < 0.5 * x * x + d - d * v + d * log(v))
			break;
		v = 1;
	}
	return boost * d * v / shape;
}

/* Seconds until a ramp that n arrivals take has let count of them arrive. The integral of the rate over time t is
 * rate t + (rate_end - rate) t² / (2 length); length = 2 n / (rate + rate_end) makes it n at the end. Later the end's rate holds.
 */
static double time_of(const struct schedule *schedule, double count, double n)
{
	double from = schedule->rate, to = schedule->rate_end;
	if (from == to)
		return count / from;
	double length = 2 * n / (from + to), slope = (to - from) / length;
	if (count > n)
		return length + (count - n) / to;
	/* The root that stays exact when the slope is small. */
	return 2 * count / (from + sqrt(fmax(0, from * from + 2 * slope * count)));
}

void schedule_fill(const struct schedule *schedule, uint64_t seed, size_t n, int64_t *due_ns)
{
	double count = 0;
	for (size_t i = 0; i < n; i++) {
		if (i > 0)
			count += schedule->kind == SCHEDULE_GAMMA ? schedule_gap(schedule->burstiness, seed, i) : 1;
		due_ns[i] = schedule->kind == SCHEDULE_AT_ONCE || i == 0
			? 0
			: (int64_t)(time_of(schedule, count, (double)(n - 1)) * NS_PER_S);
	}
}

double schedule_seconds(const struct schedule *schedule, size_t n)
{
	bool timed = schedule->kind == SCHEDULE_CONSTANT || schedule->kind == SCHEDULE_GAMMA;
	return timed && n > 1 ? time_of(schedule, (double)(n - 1), (double)(n - 1)) : 0;
}
