/* Where engines are started. Local is the only place so far; another one (ssh, a batch system) is another const struct runner_ops.
 */
#ifndef HARNESS_RUNNER_H
#define HARNESS_RUNNER_H

#include "harness/launch.h"

struct runner_ops {
	const char *name; /* "local" */
	const char *host; /* at which engines started here answer */
	/* A port that nobody listens on. Another process may take it before the engine does: the proof of identity then fails. */
	enum status (*free_port)(int *port, struct err *err);
	bool (*port_is_free)(int port);
	enum status (*start)(const struct launch_request *request, struct launch **out, struct err *err);
	/* Whether a process of this launch listens on port. */
	bool (*owns_port)(const struct launch *launch, int port);
	/* Sum of the largest resident sets of the processes that live now; 0 unknown. */
	uint64_t (*peak_memory_bytes)(const struct launch *launch);
};

extern const struct runner_ops runner_local;

#endif
