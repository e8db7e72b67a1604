/* One launch of one arm, measured: start, proof of identity, ready, read back, fingerprint, then for each workload warm-up and
 * runs, collect, stop. Whatever happens to the engine is a result; only what keeps this machine from measuring is an error. */
#ifndef HARNESS_MEASURE_H
#define HARNESS_MEASURE_H

#include "harness/client.h"
#include "harness/experiment.h"
#include "harness/interrupt.h"
#include "harness/probe.h"
#include "harness/result.h"
#include "harness/runner.h"

/* Where a launch stands, for people who wait. */
struct measure_progress {
	const char *phase; /* "launch", "ready", "warmup", "run", "stop" */
	int workload; /* index; -1 outside of workloads */
	int run, runs; /* measured run, from 1, of so many over all workloads; 0 outside of runs */
	double tokens_per_s; /* of the run that has just ended; NaN otherwise */
};

struct measure {
	const struct experiment *experiment;
	const struct runner_ops *runner;
	const struct probe_ops *probe;
	struct client *client;
	struct interrupt *interrupt;
	const char *engine_program; /* the built-in engine, where the experiment names no command */
	const char *guard_program; /* see struct launch_request; NULL: the running program */
	char *const *environment; /* inherited, NULL-terminated */
	void (*on_progress)(void *ctx, const struct measure_progress *progress); /* may be NULL */
	void *ctx;
};

/* Fills *out but for block, order and attempt; the caller releases it, whatever is returned. STATUS_INTERRUPTED: a signal came, the
 * engine has been stopped, *out is not a result. STATUS_INPUT: the arm cannot be made into a command line. STATUS_UNAVAILABLE: no
 * guard, port or memory for it here. */
enum status measure_launch(const struct measure *measure, int arm, struct launch_result *out, struct err *err);

#endif
