/* When a load may send its next request: at once in a closed loop, at its due time in an open one; and how late it was sent
 * although it was due and a slot was free, which is the client's fault and makes the load another one than was asked for. Pure. */
#ifndef HARNESS_PACER_H
#define HARNESS_PACER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialised but for begin_ns and due_ns it is at the beginning of a load. */
struct pacer {
	const int64_t *due_ns; /* from the beginning of the load, never falling; NULL: a closed loop */
	int64_t begin_ns;
	int64_t full_until_ns; /* the last time at which every slot was busy; 0: there was none */
};

/* The monotonic time at which a request is due; 0 in a closed loop. */
int64_t pacer_due_ns(const struct pacer *pacer, size_t request);

/* Nanoseconds until it may be sent; 0: now. */
int64_t pacer_wait_ns(const struct pacer *pacer, size_t request, int64_t now_ns);

/* A slot has become free and all others are busy. */
void pacer_note_free(struct pacer *pacer, int64_t now_ns);

/* Nanoseconds by which a request that is sent now is late; 0 in a closed loop. */
int64_t pacer_late_ns(const struct pacer *pacer, size_t request, int64_t now_ns);

#endif
