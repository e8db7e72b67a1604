/* Descendants of a process, as /proc tells: who they are, how much memory they have had, which ports they listen on. */
#ifndef HARNESS_PROCTREE_H
#define HARNESS_PROCTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Zero-initialised it is empty; reused by every call; release with proctree_release. */
struct proctree {
	pid_t *pids;
	size_t count;
	/* Scratch: every process of the machine. */
	struct proctree_entry *entries;
	size_t capacity, pids_capacity;
};

/* Fills tree with the living descendants of root, root itself left out, zombies too, unless only their first thread ended: they
 * hold nothing. A process that is forked while /proc is read may be missed; callers that must not miss any read again until nothing
 * changes. */
void proctree_read(struct proctree *tree, pid_t root);
void proctree_release(struct proctree *tree);

/* Sum of the largest resident sets that the processes have had (VmHWM): pages shared by several count in each. 0 when unknown. */
uint64_t proctree_peak_bytes(const struct proctree *tree);

/* CPU time that a process has used, with (children true) or without that of the children it has reaped, in clock ticks of the
 * kernel; 0 when it is gone. */
int64_t process_cpu_ticks(pid_t pid, bool children);

/* Whether one of the processes holds a TCP socket that listens on port. */
bool proctree_listens(const struct proctree *tree, int port);

/* Whether any process of this machine (that we can see) listens on port. */
bool port_is_listened_on(int port);

#endif
