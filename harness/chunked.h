/* The chunked transfer coding of HTTP/1.1, taken off a byte stream as it arrives. Pure and incremental: any cut of the same bytes
 * gives the same body. Source: RFC 9112, section 7.1. Chunk extensions and trailers are skipped. */
#ifndef HARNESS_CHUNKED_H
#define HARNESS_CHUNKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define CHUNKED_LINE_BYTES_MAX 4096 /* of a size line or a trailer: guess, servers send some ten bytes */

enum chunked_state { CHUNKED_SIZE, CHUNKED_EXTENSION, CHUNKED_DATA, CHUNKED_DATA_END, CHUNKED_TRAILER, CHUNKED_DONE };

/* Zero-initialised it is ready for a new body. */
struct chunked {
	enum chunked_state state;
	uint64_t left; /* bytes of the chunk that have not come yet; while its size is read, the size so far */
	int digits; /* of the size */
	size_t line; /* bytes of this line */
};

/* Takes bytes off *bytes and *len and finds the next run of body bytes in them: *data and *data_len, which point into them. False:
 * nothing more is in them, or the body is over (state CHUNKED_DONE), or it is malformed: then err is set. */
bool chunked_next(struct chunked *chunked, const char **bytes, size_t *len, const char **data, size_t *data_len, struct err *err);

#endif
