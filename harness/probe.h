/* What is known about the machine: lasting facts that make measurements comparable or not, and readings around a launch that show
 * whether it was disturbed. One const struct probe_ops per kind of machine. */
#ifndef HARNESS_PROBE_H
#define HARNESS_PROBE_H

#include <stdbool.h>

#include "base/json.h"

struct probe_ops {
	const char *name; /* "linux" */
	/* Everything worth recording once: host, cpu, cpus, memory, kernel, governor, limits, gpus, driver. Caller frees. */
	struct json *(*facts)(void);
	/* Quick counters and levels: load, memory available and shared, memory used on GPUs, CPU ticks (busy, stolen, all), thermal
	 * throttle count. Caller frees.
	 */
	struct json *(*reading)(void);
};

extern const struct probe_ops probe_linux;

/* The facts that decide whether two measurements can be compared (processor, number of CPUs, memory, GPUs, driver, architecture),
 * as a SHA-256 in hex. Host names and kernel releases are recorded but change nothing. Pure. */
void probe_machine_hash(const struct json *facts, char out[65]);

/* Whether more than limit_mib of what was free before is still held: memory of the GPUs, and shared memory of the machine, which
 * is all that outlives its processes there. what says which. Pure. */
bool probe_memory_held(const struct json *before, const struct json *after, double limit_mib, char what[128]);

/* {"before": …, "after": …, "cpu_busy_frac", "cpu_steal_frac", "throttled"} from two readings, which it takes over. Pure. */
struct json *probe_compare(struct json *before, struct json *after);

#endif
