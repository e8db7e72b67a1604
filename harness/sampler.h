/* Watches the machine while a run goes on: a thread that takes a sample several times a second, and what the samples say together.
 */
#ifndef HARNESS_SAMPLER_H
#define HARNESS_SAMPLER_H

#include <sys/types.h>

#include "harness/experiment.h"
#include "harness/probe.h"
#include "harness/result.h"

#define SAMPLER_PERIOD_MS 200 /* guess: ten samples in a run of two seconds; each costs well below a millisecond */
#define SAMPLER_SAMPLES_MAX 1500 /* five minutes at that rate; longer runs thin out what they have and sample half as often */

struct sampler;

/* root: the process whose descendants are the engine's; 0 when nobody knows them. */
struct sampler *sampler_start(const struct probe_ops *probe, void *session, pid_t root);

/* Ends the thread, takes a last sample and says what all of them say. client_cpu_frac is left to the caller. */
void sampler_stop(struct sampler *sampler, struct run_conditions *out);

/* What samples say. own_ticks: CPU time of the engine's processes (engine_ticks) and of this one in between, -1 when the engine is
 * unknown. pids: the engine's processes. Pure. */
struct sampler_ours {
	int64_t own_ticks, engine_ticks;
	const pid_t *pids;
	size_t n_pids;
};
void sampler_summarise(const struct probe_sample *samples, int count, const struct sampler_ours *ours, struct run_conditions *out);

/* Whether the machine was too disturbed for the run to count: then reason begins with "void: ". Unknown conditions disturb nobody.
 * Shares of CPU time are not judged over less than CONDITIONS_SECONDS_MIN, since the kernel counts in steps of 10 ms. Pure. */
#define CONDITIONS_SECONDS_MIN 0.5
bool conditions_void(const struct run_conditions *conditions, const struct guards *guards, char reason[128]);

/* Conditions as JSON, unknown ones left out. Caller frees. Pure. */
struct json *conditions_json(const struct run_conditions *conditions);

#endif
