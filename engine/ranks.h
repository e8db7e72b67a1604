/* Rank processes of one server: rank 0 is the caller, the others are children running the same binary.
 *
 * Life of a group: ranks_start; commands and reports until all are loaded (ranks_await_ready); steps; ranks_stop. A child that
 * ends unasked ends the server at once: exit code 4 and, as its last line, "rank N (pid P) ended: …". Only one that has
 * reported an error before the first ranks_await_ready is over may end: that function returns its error.
 *
 * Nothing outlives rank 0, however it ends: children are killed by the kernel when it dies, the region is an anonymous memory
 * file inherited by descriptor, and nothing is ever made under /dev/shm. Children ignore SIGINT, SIGTERM and SIGHUP, which a
 * terminal or a service manager sends to the whole group: rank 0 decides, and tells them. */
#ifndef ENGINE_RANKS_H
#define ENGINE_RANKS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "kernels/comm/comm.h"

struct ranks; /* rank 0's end; used from one thread, but for ranks_fail */

/* A child is run as PROGRAM rank LINK ARGV…. Of the words after PROGRAM, which main gives to the subcommand, its own begin here. */
#define RANKS_ARGV_FIRST 2

struct ranks_options {
	int world;
	size_t shared_bytes; /* zeroed region that every rank maps, page aligned; its layout is the caller's business */
	const char *const *argv; /* arguments of the children, NULL-terminated */
	int64_t start_timeout_ns; /* for each ranks_await_ready */
};

/* Starts world - 1 children; with world 1 there is only the region. */
enum status ranks_start(const struct ranks_options *options, struct ranks **out, struct err *err);

/* Orderly: children are told, awaited for a second, then killed; all are reaped. NULL is allowed. */
void ranks_stop(struct ranks *ranks);

void *ranks_shared(const struct ranks *ranks);
pid_t ranks_pid(const struct ranks *ranks, int rank); /* rank 0: own pid */
const int *ranks_sockets(const struct ranks *ranks); /* as struct comm_options wants them */

/* Non-zero once the group is ending: given to every wait. */
const _Atomic uint32_t *ranks_abort_word(const struct ranks *ranks);

/* Gives one command number to all ranks; what belongs to it already lies in the region. A child takes the next command when it
 * calls rank_link_wait again, so this first waits (a second at most: see ranks_await_done) until all have finished the command
 * before. */
void ranks_post(struct ranks *ranks, uint32_t command);
enum { RANKS_COMMAND_STOP = 0, RANKS_COMMAND_STEP = 1, RANKS_COMMAND_FIRST_FREE = 16 };

/* Waits until every child has finished the last command: what it wrote to the region is then visible here. */
enum status ranks_await_done(struct ranks *ranks, int64_t timeout_ns, struct err *err);

/* Joint outcome: each child reports ready or an error (rank_link_report); returns the first error, naming its rank, with the
 * status and code reported. Call once per report that children make. */
enum status ranks_await_ready(struct ranks *ranks, struct err *err);

/* Ends the server because a rank is lost, as when a step returned STATUS_RANK_DIED: kills the children, prints err's
 * text, or the death of a child if there is one, as the last line, and leaves with exit code 4. Any thread. */
void ranks_fail(struct ranks *ranks, const struct err *err) __attribute__((noreturn));

/* Child side: attaches to the parent by what ranks_start put into argv and the descriptors. argv[0] is "rank". Call first in
 * that subcommand: sets the log prefix "rank N", signals, and death with the parent. */
struct rank_link;
enum status rank_link_open(int argc, char **argv, struct rank_link **out, struct err *err);
int rank_link_rank(const struct rank_link *link);
void *rank_link_shared(const struct rank_link *link);
const int *rank_link_sockets(const struct rank_link *link);
const _Atomic uint32_t *rank_link_abort_word(const struct rank_link *link);

/* Ready (STATUS_OK; err may be NULL), or why not. May also say why the child is about to end in the middle of its work. */
void rank_link_report(struct rank_link *link, enum status status, const struct err *err);

/* Reports the last command as finished and waits for the next one; STATUS_RANK_DIED when the parent is gone. */
enum status rank_link_wait(struct rank_link *link, uint32_t *command, struct err *err);
void rank_link_close(struct rank_link *link);

#endif
