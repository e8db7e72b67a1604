/* Slopes over the requests of a run. See saturation.h. */
#include "harness/saturation.h"

#include <math.h>

#include "base/mem.h"
#include "harness/stats.h"

#define LEVEL 0.05

/* Whether y rises with x by more than chance: a straight line by least squares, one-sided t. */
static bool rises(const double *x, const double *y, size_t n)
{
	double mean_x = 0, mean_y = 0, xx = 0, xy = 0, yy = 0;
	for (size_t i = 0; i < n; i++) {
		mean_x += x[i] / (double)n;
		mean_y += y[i] / (double)n;
	}
	for (size_t i = 0; i < n; i++) {
		xx += (x[i] - mean_x) * (x[i] - mean_x);
		xy += (x[i] - mean_x) * (y[i] - mean_y);
		yy += (y[i] - mean_y) * (y[i] - mean_y);
	}
	double slope = xy / xx, df = (double)n - 2, residual = fmax(0, yy - slope * xy);
	if (!(slope > 0))
		return false; /* also when all came at once */
	return residual == 0 || slope / sqrt(residual / df / xx) > stats_student_quantile(1 - LEVEL, df);
}

/* Requests that were sent before and had not ended at a time. */
static double in_flight_at(const struct run_result *run, int64_t at_ns)
{
	int count = 0;
	for (size_t i = 0; i < run->n_requests; i++)
		count += run->requests[i].due_ns <= at_ns && run->requests[i].end_ns > at_ns;
	return count;
}

bool saturation_of(const struct run_result *run)
{
	double *room = mem_calloc(3 * run->n_requests + 1, sizeof *room);
	double *due_s = room, *ttft_ms = room + run->n_requests, *in_flight = room + 2 * run->n_requests;
	size_t n = 0;
	for (size_t i = 0; i < run->n_requests; i++) {
		const struct request_result *request = &run->requests[i];
		if (!request->ok || request->due_ns <= 0 || request->first_token_ns <= 0)
			continue;
		/* From the due time on: a request that waits for a slot waits for the server. */
		due_s[n] = (double)(request->due_ns - run->begin_ns) / 1e9;
		ttft_ms[n] = (double)(request->first_token_ns - request->due_ns) / 1e6;
		in_flight[n++] = in_flight_at(run, request->due_ns);
	}
	bool saturated = false;
	if (n >= SATURATION_REQUESTS_MIN) {
		double first = stats_quantile(ttft_ms, n / 4, 0.5), last = stats_quantile(ttft_ms + n - n / 4, n / 4, 0.5);
		saturated = last > SATURATION_TTFT_MS_MIN && last >= 2 * first && rises(due_s, ttft_ms, n) &&
			rises(due_s, in_flight, n);
	}
	mem_free(room);
	return saturated;
}
