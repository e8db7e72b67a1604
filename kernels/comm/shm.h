/* A group of ranks in shared memory: one control line per rank, the meeting at the first call, signalling and waiting.
 * The shm-* backends build on it. Private to kernels/comm.
 *
 * Epochs. Each rank counts what it signals, modulo 2^32. While a rank waits for epoch e, a peer's flag is at most one ahead (it
 * signals e + 2 only after it has seen this rank's e + 1) and at most two behind (shm-lamport goes on when it has the data, which
 * come just before the flag), so comparing by signed difference is sound. */
#ifndef KERNELS_COMM_SHM_H
#define KERNELS_COMM_SHM_H

#include "base/wait_word.h"
#include "kernels/comm/common.h"

/* Two cache lines: adjacent-line prefetchers fetch lines in pairs, and one rank's signal must not disturb another's. */
#define SHM_ALIGN 128

/* Written by the rank that owns it, read by all. */
struct shm_line {
	_Alignas(SHM_ALIGN) struct wait_word flag; /* last epoch signalled */
	struct wait_word attached; /* 0 until the rank has joined, then a digest of what it was made with */
};

struct shm_group {
	struct comm base;
	struct shm_line *lines; /* [world], in shared memory */
	void *payload; /* after the lines, aligned to SHM_ALIGN; the backend's layout */
	uint32_t epoch; /* last one this rank signalled */
	bool met; /* every peer has been seen attached, with the same digest */
};

/* Bytes of the lines; the payload follows. */
size_t shm_lines_bytes(int world);

/* Elements from one rank's slot to the next: count_max rounded up so that slots share no line. Fixed by count_max, not by the
 * size of a call: ranks never disagree about where a slot lies. */
size_t shm_slot_floats(size_t count_max);

/* Checks options and places lines and payload. Nothing is published yet: the backend first prepares its slots. */
enum status shm_group_init(
	struct shm_group *group, const struct comm_ops *ops, const struct comm_options *options, struct err *err);

/* Publishes this rank's end; after it peers may read its slots. */
void shm_group_attach(struct shm_group *group);

/* Begins a call: comm_call_begin, and at the first one waits until every rank has attached. */
enum status shm_call_begin(struct shm_group *group, size_t count, struct err *err);

/* Copies count floats into a slot, to a place aligned to 64 bytes unless count is 0, that peers will read after the next signal. */
void shm_publish(float *slot, const float *data, size_t count);

/* Starts the next epoch: everything this rank wrote before is visible to a peer that has seen it. */
void shm_signal(struct shm_group *group);

/* Waits until peer has signalled this rank's current epoch. */
enum status shm_wait_peer(struct shm_group *group, int peer, struct err *err);
enum status shm_wait_all(struct shm_group *group, struct err *err);

#endif
