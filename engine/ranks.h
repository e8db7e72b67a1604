/* Rank processes of one server: rank 0 is the caller, the others are children running the same binary. */
#ifndef ENGINE_RANKS_H
#define ENGINE_RANKS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "kernels/comm/comm.h"

struct ranks; /* rank 0's end */

/* Shared region layout is the engine's business; ranks only maps it. The region is an anonymous memory file inherited by
 * descriptor, so nothing is ever left under /dev/shm. */
struct ranks_options {
	int world;
	size_t shared_bytes;         /* zeroed region that every rank maps */
	const char *const *argv;     /* arguments after the program name for children, NULL-terminated; "rank" subcommand flags are added */
	int64_t start_timeout_ns;
};

/* Starts world - 1 children. When any child ends before ranks_stop, the process prints "rank N (pid P) ended: …" as its last
 * lines and leaves with exit code 4 within a second, killing every other child. */
enum status ranks_start(const struct ranks_options *options, struct ranks **out, struct err *err);
void ranks_stop(struct ranks *ranks); /* orderly: children are told, awaited, then killed */

void *ranks_shared(const struct ranks *ranks);
pid_t ranks_pid(const struct ranks *ranks, int rank); /* rank 0: own pid */
const int *ranks_sockets(const struct ranks *ranks);  /* [world] for ref-socket, -1 at own rank */
const _Atomic uint32_t *ranks_abort_word(const struct ranks *ranks);

/* Broadcast of one command number to all ranks through shared memory; the step itself is already in the region. */
void ranks_post(struct ranks *ranks, uint32_t command);
enum { RANKS_COMMAND_STOP = 0, RANKS_COMMAND_STEP = 1, RANKS_COMMAND_FIRST_FREE = 16 };

/* Joint start: each rank reports ready or an error text; returns the first error, naming its rank. */
enum status ranks_await_ready(struct ranks *ranks, struct err *err);

/* Child side: attaches to the parent's region from the inherited descriptors named in argv. */
struct rank_link;
enum status rank_link_open(int argc, char **argv, struct rank_link **out, struct err *err);
int rank_link_rank(const struct rank_link *link);
int rank_link_world(const struct rank_link *link);
void *rank_link_shared(const struct rank_link *link);
const int *rank_link_sockets(const struct rank_link *link);
const _Atomic uint32_t *rank_link_abort_word(const struct rank_link *link);
void rank_link_report(struct rank_link *link, enum status status, const struct err *err); /* ready, or why not */
enum status rank_link_wait(struct rank_link *link, uint32_t *command, struct err *err);   /* next command; STATUS_RANK_DIED when the parent is gone */
void rank_link_close(struct rank_link *link);

#endif
