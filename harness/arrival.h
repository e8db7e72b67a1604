/* When bytes came to a socket. The kernel stamps what it receives and tells the stamp with the bytes, so a time does not depend on
 * when the reader was run: it is that of the last bytes of a read, some microseconds after they were sent on this machine. Where
 * the kernel gives no stamp, the time right after the read stands for it.
 *
 * Stamps are of the wall clock, times of the monotonic clock. The difference of the two is taken anew in each round of reads, and a
 * round in which the wall clock was set is timed by its reads. */
#ifndef HARNESS_ARRIVAL_H
#define HARNESS_ARRIVAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Zero-initialised it is ready for a first round. */
struct arrival_clock {
	int64_t ahead_ns; /* wall clock less monotonic clock */
	bool known, steady; /* steady: ahead_ns holds for stamps of the last round as well */
};

/* Asks the kernel to stamp what this socket receives. Before connecting, or the first bytes may come without a stamp. */
void arrival_ask(int fd);

/* Begins a round of reads: one reading of the clocks for all of them. */
void arrival_begin_round(struct arrival_clock *clock);

/* recv() without waiting, and when the last of the bytes came; *at_ns is set even when there were none. */
ssize_t arrival_read(int fd, char *buffer, size_t size, const struct arrival_clock *clock, int64_t *at_ns);

/* When the last of the bytes came that a read of this size would bring, without taking them; the buffer is overwritten. 0: none
 * wait, or there is no stamp. */
int64_t arrival_peek(int fd, char *buffer, size_t size, const struct arrival_clock *clock);

#endif
