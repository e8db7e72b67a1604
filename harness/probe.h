/* What is known about the machine: lasting facts that make measurements comparable or not, and readings around a launch that show
 * whether it was disturbed. One const struct probe_ops per kind of machine. */
#ifndef HARNESS_PROBE_H
#define HARNESS_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

#define PROBE_GPUS_MAX 16
#define PROBE_GPU_PIDS_MAX 64

/* One GPU at one moment; NaN where it does not tell. */
struct probe_gpu {
	double mhz, memory_mhz, celsius, watts;
	double joules; /* a counter */
	double used_mib;
	bool throttled; /* clocks are low because of heat or a brake, not because of a power limit that always holds */
	int pids[PROBE_GPU_PIDS_MAX]; /* processes that compute on it */
	int n_pids;
};

/* The machine at one moment: cheap enough to be taken several times a second. Counters are -1, levels NaN, where unknown. */
struct probe_sample {
	int64_t at_ns;
	int64_t ticks_all, ticks_busy, ticks_stolen; /* of all CPUs, since boot */
	int64_t throttle_count; /* since boot */
	double cpu_mhz, cpu_celsius; /* mean clock, hottest sensor */
	double cpu_joules; /* a counter of all packages */
	double memory_available_mib;
	struct probe_gpu gpus[PROBE_GPUS_MAX];
	int n_gpus;
};

struct probe_ops {
	const char *name; /* "linux" */
	/* Everything worth recording once: host, cpu, cpus, memory, kernel, governor, limits, gpus, driver. Caller frees. */
	struct json *(*facts)(void);
	/* Quick counters and levels: load, memory available and shared, memory used on GPUs, CPU ticks (busy, stolen, all), thermal
	 * throttle count, processes killed for lack of memory. Caller frees.
	 */
	struct json *(*reading)(void *session);
	/* What samples need to stay open for; NULL is a good session. */
	void *(*open)(void);
	void (*close)(void *session);
	/* May be called from a thread of its own, one at a time. */
	void (*sample)(void *session, struct probe_sample *out);
};

extern const struct probe_ops probe_linux;

/* The facts that decide whether two measurements can be compared (processor, number of CPUs, memory, GPUs and their power limits,
 * driver, architecture), as a SHA-256 in hex. Host names and kernel releases are recorded but change nothing. Limits of a GPU's
 * clocks are no fact: its library sets locked clocks and has no call that tells them; the clocks of each run are in its
 * conditions. Pure. */
void probe_machine_hash(const struct json *facts, char out[65]);

/* Whether more than limit_mib of what was free before is still held: memory of the GPUs, and shared memory of the machine, which
 * is all that outlives its processes there. what says which. Pure. */
bool probe_memory_held(const struct json *before, const struct json *after, double limit_mib, char what[128]);

/* Processes of the machine, whoever's, that the kernel killed for lack of memory between two readings; -1 where it does not tell.
 * Pure. */
int64_t probe_oom_kills(const struct json *before, const struct json *after);

/* {"before": …, "after": …, "cpu_busy_frac", "cpu_steal_frac", "throttled"} from two readings, which it takes over. Pure. */
struct json *probe_compare(struct json *before, struct json *after);

#endif
