/* One sample of processors and memory, out of /proc and /sys. */
#ifndef HARNESS_PROBE_CPU_H
#define HARNESS_PROBE_CPU_H

#include "harness/probe.h"

/* Overwrites *out; no GPUs. Takes well below a millisecond on a machine of a few CPUs. */
void probe_sample_cpu(struct probe_sample *out);

#endif
