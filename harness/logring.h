/* The log of one launch, capped: its first bytes and its last ones, in a memory file shared by the guard (writer) and the harness
 * (reader). However much an engine prints, it is never blocked by us and no disk fills; the log can be read while it grows, and is
 * still there when the guard is gone. */
#ifndef HARNESS_LOGRING_H
#define HARNESS_LOGRING_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

#define LOGRING_HEAD_BYTES ((size_t)256 << 10) /* guess: the start-up banner of every engine we know fits */
#define LOGRING_TAIL_BYTES ((size_t)256 << 10)

struct logring {
	struct logring_shared *shared;
	int fd; /* of the memory file; -1 in the writer */
};

/* Creates the memory file. Release with logring_close. */
enum status logring_create(struct logring *out, struct err *err);

/* Maps the memory file behind fd, as the writer. */
enum status logring_attach(int fd, struct logring *out, struct err *err);

/* Writer only. */
void logring_append(struct logring *ring, const char *bytes, size_t len);

uint64_t logring_total_bytes(const struct logring *ring);

/* Reader: appends the whole kept log, with a line that says how much is missing where something is. */
void logring_read(const struct logring *ring, struct text *out);

/* Reader: appends the last bytes_max bytes, from the start of a line where one begins there. NULs become spaces, invalid UTF-8
 * U+FFFD. */
void logring_read_tail(const struct logring *ring, size_t bytes_max, struct text *out);

void logring_close(struct logring *ring);

#endif
