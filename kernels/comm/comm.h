/* Collectives between the ranks of one group: sum of fp32 vectors in rank order, one backend per protocol.
 *
 * Every backend gives, bit for bit and on every rank, the fp32 sum (((x0 + x1) + x2) + …) + 0.0f, and a NaN result is
 * always the quiet NaN 0x7fc00000. So -0.0 counts as +0.0 (which frees its bit pattern to mean "not here yet" in
 * shm-lamport), and no bit depends on the compiler, the backend or the count.
 *
 * Calls are collective: all ranks, same order, same count. After a failed call the collective stays failed. */
#ifndef KERNELS_COMM_COMM_H
#define KERNELS_COMM_COMM_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define COMM_RANKS_MAX 64
#define COMM_COUNT_MAX ((size_t)1 << 30) /* guess: 4 GiB in one call is a bug */

struct comm; /* one rank's end; used from one thread */

struct comm_options {
	int rank, world;
	size_t count_max; /* most floats in one call */
	void *shared; /* region of comm_ops.shared_bytes(world, count_max) bytes, aligned to 128, zeroed once, mapped by every rank;
			 NULL if that is 0 */
	const int *sockets; /* ref-socket: [world] connected stream sockets: rank 0 to every peer, the others to rank 0, else -1;
			       borrowed; NULL for the others */
	const _Atomic uint32_t *abort; /* non-zero ends every wait with STATUS_RANK_DIED; may be NULL */
	int64_t timeout_ns; /* longest wait for a peer: then STATUS_RANK_DIED naming it */
	uint32_t spins; /* see base/wait.h */
	uint32_t first_epoch; /* where the counter of calls starts, equal on all ranks: 0, but for tests of its wrap at 2^32 */
};

struct comm_stats { /* since create */
	uint64_t calls, bytes; /* bytes: payload of one rank, count * 4 summed over calls */
	uint64_t wait_ns, total_ns;
};

struct comm_ops {
	const char *name; /* "shm-flag", … */
	const char *twin; /* the other device's backend with this protocol: "p2p-flag" */
	const char *summary; /* one line for --help and --allreduce-explain */
	size_t (*shared_bytes)(int world, size_t count_max);
	int needs_sockets;
	/* Never waits for the others: the first call does, and refuses a group whose ends were made with different options. */
	enum status (*create)(const struct comm_options *options, struct comm **out, struct err *err);
	/* Sums data[0..count) over ranks in place; count 0 returns at once. Allocates nothing. */
	enum status (*allreduce)(struct comm *comm, float *data, size_t count, struct err *err);
	void (*stats)(const struct comm *comm, struct comm_stats *out);
	void (*destroy)(struct comm *comm); /* NULL is allowed */
};

/* All CPU backends, oracle first: ref-socket, shm-flag, shm-lamport, shm-2shot. */
extern const struct comm_ops *const comm_cpu_backends[];
extern const size_t comm_cpu_backends_count;

/* The backend called name on device "cpu" or "cuda". A name of the other device is refused, naming its twin; an unknown one
 * lists what exists. "auto" is no backend: see comm/auto.h. */
enum status comm_find(const char *name, const char *device, const struct comm_ops **out, struct err *err);

#endif
