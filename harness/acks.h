/* Whether each read is acknowledged to the server at once. The kernel does so by itself after every read, which costs more than the
 * read (CLIENT_NOTES.md), and most servers do not care: they set TCP_NODELAY. One that does not (Nagle's algorithm) holds back a
 * small piece until the one before it is acknowledged; to acknowledge later would then be measured as slowness of the server.
 *
 * So it is found out, on one stream of a load and only in a load that is dense: a piece that the server sends while the small
 * piece before it is known to be unacknowledged is proof that it does not wait. Until then, and where the proof fails, every read
 * is acknowledged. The attempt costs a server that does wait one delay of at most 40 ms on one event. */
#ifndef HARNESS_ACKS_H
#define HARNESS_ACKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum acks_finding { ACKS_UNKNOWN, ACKS_NOT_AWAITED, ACKS_AWAITED };

/* Of one load. acks_init or all zero but probe_fd = -1. */
struct acks {
	enum acks_finding finding;
	int probe_fd; /* the stream on which it is found out; -1: none */
	uint32_t sent; /* segments that went out on it, acknowledgements among them, up to the end of the last read */
	bool seen; /* it has been read since it was chosen */
	bool pending; /* the last piece was small and not acknowledged when it was read, nor since */
	int64_t last_ns; /* when that piece came */
};

void acks_init(struct acks *acks);

/* Around each read of a stream. reads: how many it has had. dense: whether the saving is worth finding out. */
void acks_before_read(struct acks *acks, int fd, unsigned reads, bool dense);
void acks_after_read(struct acks *acks, int fd, size_t bytes, int64_t at_ns);

/* The stream ends. */
void acks_forget(struct acks *acks, int fd);

#endif
