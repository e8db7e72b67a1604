/* When the requests of an open loop are due, as times from the beginning of a run. Pure: the same seed gives the same times, so
 * every arm of an experiment meets the same load.
 *
 * The first request is due at once. Gaps follow as in the benchmarks of vLLM: constant, or gamma-distributed with shape burstiness
 * and the mean that the rate gives (1: a Poisson process; below it comes in bursts, above it is more even). A ramp changes the rate
 * linearly in time from rate to rate_end over the whole run: a process of rate 1 is stretched by the inverse of the integral of the
 * rate (Lewis and Shedler, Naval Res. Logist. Q. 1979). */
#ifndef HARNESS_SCHEDULE_H
#define HARNESS_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

enum schedule_kind {
	SCHEDULE_CLOSED, /* a request ends, the next is sent: there are no due times */
	SCHEDULE_AT_ONCE, /* rate "inf" */
	SCHEDULE_CONSTANT,
	SCHEDULE_GAMMA,
	SCHEDULE_TRACE /* as a file says: see trace_request.at_ms */
};

struct schedule {
	enum schedule_kind kind;
	double rate, rate_end; /* requests/s at the beginning and the end; equal unless it is a ramp */
	double burstiness; /* SCHEDULE_GAMMA; 1 is Poisson */
	double speed; /* SCHEDULE_TRACE: 2 replays in half the time */
};

/* Fills due_ns[n], never falling. Not for closed loops and traces. */
void schedule_fill(const struct schedule *schedule, uint64_t seed, size_t n, int64_t *due_ns);

/* Expected seconds from the first to the last arrival; 0 for closed loops, and for traces, which tell it themselves. */
double schedule_seconds(const struct schedule *schedule, size_t n);

/* A gamma deviate with mean 1 from (seed, stream) alone. shape above 0. Marsaglia and Tsang, ACM Trans. Math. Softw. 2000. */
double schedule_gap(double shape, uint64_t seed, uint64_t stream);

#endif
