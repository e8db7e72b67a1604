/* Keeping client and engine apart on CPUs of their own while a launch is measured, as "pin" of an experiment asks. */
#ifndef HARNESS_PIN_H
#define HARNESS_PIN_H

#include "base/json.h"
#include "harness/experiment.h"

/* What a launch needs to know: filled by pin_begin, undone by pin_end. */
struct pin_session {
	bool pinned;
	struct cpu_list before; /* of this thread */
	struct cpu_list engine; /* for the engine: as asked, or all that this thread had */
};

/* STATUS_INPUT when the experiment asks for CPUs that this process may not use, naming the first. */
enum status pin_check(const struct experiment *experiment, struct err *err);

/* Pins the calling thread, and what it starts, to the client's CPUs. Without a "pin" nothing happens. */
enum status pin_begin(const struct experiment *experiment, struct pin_session *session, struct err *err);
void pin_end(const struct pin_session *session);

/* {"client": "0", "engine": "1-3"}: CPUs on which both may run now, as the kernel tells; NULL when nothing is pinned. engine: its
 * process. Caller frees. */
struct json *pin_record(const struct pin_session *session, pid_t engine);

#endif
