/* Which descriptors are ready: an epoll set for sockets that are read a little at a time. A wake-up costs more than a read (on a
 * virtual machine several times more), so while many sockets become ready in quick succession the set lets them gather for
 * READY_PAUSE_NS before it looks, or up to twice that where a stream is silent for much longer between its events. Times are not
 * touched by that, since the kernel stamps arrivals (harness/arrival.h); a request that follows an ended one may begin later by as
 * much. */
#ifndef HARNESS_READY_H
#define HARNESS_READY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/err.h"

#define READY_PAUSE_NS 1000000 /* measured: CLIENT_NOTES.md */
#define READY_PAUSE_NS_MAX 2000000
#define READY_PAUSE_FRACTION 4 /* of the time between two events of a stream: they are read apart */

struct ready_set {
	int fd;
	bool pausing;
	int64_t pause_ns;
	int64_t streams; /* that are read from, as told */
	int64_t period_began_ns; /* reads are counted for a while, then it is decided whether to pause */
	int64_t reads, bytes; /* in this period */
};

enum status ready_open(struct ready_set *set, struct err *err);
void ready_close(struct ready_set *set);

/* Adds fd, or changes what it is watched for. */
bool ready_put(struct ready_set *set, int fd, uint32_t events, uint64_t tag);
void ready_remove(struct ready_set *set, int fd);

/* One stream more (1) or less (-1) is read from. */
void ready_note_stream(struct ready_set *set, int change);

/* How long to let reads gather when so many come in a second from so many streams. Pure. */
int64_t ready_pause_ns(double reads_per_s, int64_t streams);

/* A read of a stream has brought so many bytes. */
void ready_note_read(struct ready_set *set, size_t bytes);

/* Waits for timeout_ns at most, pause included. Returns how many of events are set; -1 with errno. */
int ready_wait(struct ready_set *set, int64_t timeout_ns, struct epoll_event *events, int n_events);

#endif
