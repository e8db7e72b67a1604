/* What rank 0 and its children agree on: inherited descriptors, the head of the shared memory, reports. Private to the ranks
 * modules. */
#ifndef ENGINE_RANKS_WIRE_H
#define ENGINE_RANKS_WIRE_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/err.h"
#include "base/wait_word.h"
#include "kernels/comm/comm.h"

/* Descriptors of a child beside the standard three; all others are closed when it starts. */
enum { RANKS_FD_REGION = 3, RANKS_FD_CONTROL, RANKS_FD_SOCKET, RANKS_FD_END };

#define RANKS_SUBCOMMAND "rank"
#define RANKS_LINK_FORMAT "%d:%d:%zu:%llu:%d" /* rank, world, bytes of the memory file, cookie, parent pid */
#define RANKS_LINK_FIELDS 5
#define RANKS_LINK_BYTES 128

/* Between two steps rank 0 samples and answers for longer than ranks usually wait for each other within one. */
#define RANKS_SPINS_FACTOR 8

#define RANKS_LINE_BYTES 128 /* a pair of cache lines, which adjacent-line prefetchers fetch together */

/* Before the caller's region in the memory file. */
struct ranks_head {
	uint64_t cookie; /* proves that the inherited file is the one meant */
	_Alignas(RANKS_LINE_BYTES) _Atomic uint32_t abort;
	_Alignas(RANKS_LINE_BYTES) struct wait_word posted; /* number of commands so far; written by rank 0 */
	_Atomic uint32_t command; /* the last of them; written before posted */
	struct {
		_Alignas(RANKS_LINE_BYTES) struct wait_word finished; /* number of commands that this rank has finished */
	} child[COMM_RANKS_MAX];
};

#define RANKS_PAGE_BYTES 4096
#define RANKS_HEAD_BYTES ((sizeof(struct ranks_head) + RANKS_PAGE_BYTES - 1) / RANKS_PAGE_BYTES * RANKS_PAGE_BYTES)

/* One packet on a child's control socket. */
struct ranks_report {
	int32_t status;
	struct err err;
};

#endif
