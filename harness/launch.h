/* One engine process and all its descendants, from start to the last one gone. The work is done by a guard process
 * (harness/guard.h), so that it is done too when this process is killed; here is its other end. */
#ifndef HARNESS_LAUNCH_H
#define HARNESS_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "harness/logring.h"
#include "harness/target.h"

struct launch_request {
	const struct string_vector *arguments; /* the first is looked up in PATH */
	const struct string_vector *environment; /* all of it, as "NAME=value" */
	const char *cpus; /* that the engine may run on; NULL: as this process */
	const char *guard_program; /* run as "PROGRAM guard"; NULL: the running program */
};

struct launch_state {
	pid_t pid; /* of the engine; 0: it was not started */
	int exec_errno; /* why it could not be started; 0 otherwise */
	bool exited; /* the engine's own process has ended */
	int exit_code; /* -1: none, or a signal ended it */
	int exit_signal; /* -1: none */
	bool stop_requested; /* by us, before it exited: then its exit is no crash */
	bool clean; /* nothing of it is left, except survivors */
	int survivors; /* descendants that SIGKILL did not end */
	bool guard_lost; /* the guard ended without its last word; launch_stop then does its work, and sets clean and survivors */
};

struct launch;

/* Starts guard and engine, makes this process a subreaper (of what a lost guard leaves), and returns once the engine runs its own
 * program or has failed to: state->exec_errno tells. Errors are those of this machine: STATUS_UNAVAILABLE. *out is released by
 * launch_destroy. */
enum status launch_start(const struct launch_request *request, struct launch **out, struct err *err);

/* Readable when launch_update has something new. */
int launch_fd(const struct launch *launch);

/* Takes what the guard has said since. Does not wait. The state is valid until the next call. */
const struct launch_state *launch_update(struct launch *launch);

/* Ends the engine: SIGTERM to everything that this launch started, SIGKILL to what is left after term_s, and waits for the end,
 * which is bounded: what cannot be killed is counted in survivors. Also when it has ended by itself. */
const struct launch_state *launch_stop(struct launch *launch, double term_s);

/* The log so far. */
const struct logring *launch_log(const struct launch *launch);

/* The process whose descendants are this launch's processes. */
pid_t launch_guard_pid(const struct launch *launch);

/* Stops what still runs, in haste. */
void launch_destroy(struct launch *launch);

#endif
