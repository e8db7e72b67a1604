/* A small process that stands between the harness and one engine. It starts the engine, drains its log, and when it is told to,
 * when the engine ends, or when the harness dies in whatever way, it ends the engine and every descendant of it: also those that
 * left the session, ignored SIGTERM or were forked twice, because it is their subreaper. It signals nothing else.
 *
 * Runs as `verdict guard` (a command that help does not list), started by harness/launch.c with two descriptors:
 *   GUARD_CONTROL_FD  one end of a SOCK_SEQPACKET pair; its end of file means that the harness is gone
 *   GUARD_SPEC_FD     a memory file with the launch: see struct guard_spec; the log ring is in another, named there */
#ifndef HARNESS_GUARD_H
#define HARNESS_GUARD_H

#include <stdint.h>

#include "base/err.h"
#include "harness/target.h"

#define GUARD_COMMAND "guard"
#define GUARD_CONTROL_FD 3
#define GUARD_SPEC_FD 4
#define GUARD_LOG_FD 5

/* From harness to guard: one 32-bit word, the milliseconds between SIGTERM and SIGKILL. */

/* From guard to harness. */
enum guard_event {
	GUARD_STARTED, /* pid: the engine's process, which is also its group and session */
	GUARD_EXEC_FAILED, /* detail: errno */
	GUARD_EXITED, /* code: exit code or -1, detail: signal or -1; descendants may live on until GUARD_CLEAN */
	GUARD_CLEAN /* code: number of processes that did not die; the guard ends after it */
};

struct guard_message {
	uint32_t event;
	int32_t pid, code, detail;
};

/* What to launch. Written and read as NUL-terminated fields: term_ms, CPUs, number of arguments, arguments, number of variables,
 * variables. */
struct guard_spec {
	struct string_vector arguments, environment;
	char *cpus; /* list of those that the engine may run on; "": as the guard */
	uint32_t orphan_term_ms; /* SIGTERM to SIGKILL when the harness is gone */
};

enum status guard_spec_write(int fd, const struct guard_spec *spec, struct err *err);
enum status guard_spec_read(int fd, struct guard_spec *spec, struct err *err);
void guard_spec_release(struct guard_spec *spec);

/* The guard process. Returns its exit code. */
int guard_run(void);

#endif
