/* --allreduce auto: every CPU backend is timed by all ranks together, and rank 0's choice is made on every rank.
 *
 * Use: the shared region holds comm_auto_shared_bytes() zeroed bytes, aligned as any comm's; once every rank is loaded, each calls
 * comm_auto_create() (collective) with options.shared pointing at them. It measures over temporary collectives, gives
 * the pages they used back, and makes the chosen collective in the same bytes. The caller then owns choice.comm and ends it with
 * choice.ops->destroy. A fixed name needs none of this: comm_find() and ops->create(). */
#ifndef KERNELS_COMM_AUTO_H
#define KERNELS_COMM_AUTO_H

#include "kernels/comm/comm.h"

#define COMM_AUTO_WHY_BYTES 256
#define COMM_AUTO_BACKENDS_MAX 8

struct comm_auto_sizes {
	size_t decode_count; /* floats of the smallest usual call: one row */
	size_t prefill_count; /* floats of a large one: a full chunk; <= options.count_max */
};

struct comm_auto_row {
	const struct comm_ops *ops;
	double decode_us, prefill_us; /* rank 0's mean time per call in its best round */
};

struct comm_auto_choice {
	const struct comm_ops *ops; /* NULL with world 1 */
	struct comm *comm; /* NULL with world 1 */
	char why[COMM_AUTO_WHY_BYTES];
	struct comm_auto_row rows[COMM_AUTO_BACKENDS_MAX]; /* in the order of comm_cpu_backends; rank 0's times on every rank */
	size_t n_rows;
};

/* Bytes of the region; also enough for any single backend. 0 with world 1. */
size_t comm_auto_shared_bytes(int world, size_t count_max);

/* Takes 0.25 s at most where ranks have cores of their own. With world 1 nothing is measured: ops and comm are NULL. */
enum status comm_auto_create(
	const struct comm_options *options, const struct comm_auto_sizes *sizes, struct comm_auto_choice *out, struct err *err);

/* The rule: the fastest at the decode size; of those within 10 % of it, the fastest at the prefill size. Index into rows. */
size_t comm_auto_pick(const struct comm_auto_row *rows, size_t n_rows);

#endif
