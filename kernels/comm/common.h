/* What all CPU collectives share: checked options, counters, the rank-order sum and the errors of a wait. Private to kernels/comm.
 */
#ifndef KERNELS_COMM_COMMON_H
#define KERNELS_COMM_COMMON_H

#include <stdbool.h>

#include "kernels/comm/comm.h"

/* First member of every backend's own struct. */
struct comm {
	const char *name;
	struct comm_options options;
	struct comm_stats stats;
	int64_t call_start_ns;
	bool failed; /* a call failed: ranks may disagree about the state, so no further call is tried */
};

/* Checks options and starts base. */
enum status comm_base_init(struct comm *base, const struct comm_ops *ops, const struct comm_options *options, struct err *err);

/* First and last act of an allreduce; begin refuses counts above the limit and calls after a failure. */
enum status comm_call_begin(struct comm *base, size_t count, struct err *err);
void comm_call_end(struct comm *base, size_t count);

/* Records that the wait for peer, begun at wait_start_ns, ended without it. Always returns STATUS_RANK_DIED. */
enum status comm_wait_failed(struct comm *base, int peer, int64_t wait_start_ns, struct err *err);

/* Slot stats of comm_ops. */
void comm_base_stats(const struct comm *base, struct comm_stats *out);

/* out[i] = (((parts[0][i] + parts[1][i]) + …) + 0.0f, NaN as 0x7fc00000. n_parts >= 1; out may be one of the parts, and
 * overlaps none otherwise. */
void comm_sum(float *out, const float *const *parts, int n_parts, size_t count);

#endif
