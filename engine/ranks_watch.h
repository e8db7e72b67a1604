/* The thread of rank 0 that owns the child processes: starts them, watches them, ends them. Private to the ranks modules. */
#ifndef ENGINE_RANKS_WATCH_H
#define ENGINE_RANKS_WATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "engine/ranks.h"
#include "engine/ranks_wire.h"

enum ranks_phase {
	RANKS_STARTING, /* a child that reports an error may end: ranks_await_ready returns it */
	RANKS_RUNNING, /* a child that ends ends the server */
	RANKS_STOPPING, /* children are meant to end */
};

struct ranks_child {
	pid_t pid; /* 0 while there is no child */
	int pidfd, control;
	_Atomic bool refused; /* has reported an error */
};

/* Filled by ranks_start; children and sockets by the watching thread before started is set, then constant until it is joined. */
struct ranks {
	int world;
	size_t bytes; /* of the memory file */
	int64_t start_timeout_ns;
	uint32_t spins;
	struct ranks_head *head;
	int region_fd, wake_fd;
	struct ranks_child children[COMM_RANKS_MAX]; /* by rank; [0] stays empty */
	int sockets[COMM_RANKS_MAX];
	_Atomic int phase; /* enum ranks_phase; written by the caller's thread */
	_Atomic bool ending; /* some thread is ending the server */
	bool watching; /* the thread exists */
	pthread_t watcher;
	const char *const *argv; /* borrowed until started */
	struct wait_word started;
	struct err start_err; /* of the start, valid once started is set */
};

/* Starts the thread, which starts the children. On failure no child is left. */
enum status ranks_watch_start(struct ranks *ranks, struct err *err);

/* Makes the thread look at the phase again. */
void ranks_watch_wake(struct ranks *ranks);

/* Tells the thread to end the children, and joins it. */
void ranks_watch_stop(struct ranks *ranks);

/* Next report of the child, or false when there is none now. */
bool ranks_child_report(struct ranks *ranks, int rank, struct ranks_report *out);

#endif
