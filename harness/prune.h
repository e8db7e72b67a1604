/* Settings that need not be launched because a smaller one ran out of memory already. Pure. */
#ifndef HARNESS_PRUNE_H
#define HARNESS_PRUNE_H

#include "harness/store.h"

/* Adds a failed cell, marked pruned, for every candidate that asks at least as much memory as one that failed with oom_load or
 * oom_run: every knob of matrix.monotone_oom is as far or farther in its direction, every other knob is the same. Candidates with a
 * launch of their own are left alone. remembered: rows of store_oom_memory, from earlier experiments; NULL: none. */
void prune_add(const struct experiment *experiment, const struct json *remembered, struct launch_cells *cells);

#endif
