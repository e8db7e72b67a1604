/* Options, counters and errors shared by the CPU collectives. */
#include "kernels/comm/common.h"

#include "base/clock.h"

enum status comm_base_init(struct comm *base, const struct comm_ops *ops, const struct comm_options *options, struct err *err)
{
	if (options->world < 1 || options->world > COMM_RANKS_MAX)
		return err_set(
			err, STATUS_INPUT, "%s: a group has 1 to %d ranks, not %d", ops->name, COMM_RANKS_MAX, options->world);
	if (options->rank < 0 || options->rank >= options->world)
		return err_set(err, STATUS_INTERNAL, "%s: rank %d of %d does not exist", ops->name, options->rank, options->world);
	if (options->count_max < 1 || options->count_max > COMM_COUNT_MAX)
		return err_set(err, STATUS_INPUT, "%s: count_max %zu is not within 1 to %zu", ops->name, options->count_max,
			COMM_COUNT_MAX);
	if (options->timeout_ns <= 0)
		return err_set(err, STATUS_INTERNAL, "%s: a collective needs a time-out", ops->name);
	if (ops->shared_bytes(options->world, options->count_max) > 0 && options->shared == NULL)
		return err_set(err, STATUS_INTERNAL, "%s: no shared region given", ops->name);
	if (ops->needs_sockets && options->world > 1 && options->sockets == NULL)
		return err_set(err, STATUS_INTERNAL, "%s: no sockets given", ops->name);
	base->name = ops->name;
	base->options = *options;
	return STATUS_OK;
}

enum status comm_call_begin(struct comm *base, size_t count, struct err *err)
{
	if (base->failed)
		return err_set(err, STATUS_RANK_DIED, "%s: an earlier call of this group failed", base->name);
	if (count > base->options.count_max)
		return err_set(err, STATUS_INTERNAL, "%s: %zu floats in one call, the group was made for at most %zu", base->name,
			count, base->options.count_max);
	base->call_start_ns = clock_monotonic_ns();
	return STATUS_OK;
}

void comm_call_end(struct comm *base, size_t count)
{
	base->stats.calls++;
	base->stats.bytes += (uint64_t)count * sizeof(float);
	base->stats.total_ns += (uint64_t)(clock_monotonic_ns() - base->call_start_ns);
}

enum status comm_wait_failed(struct comm *base, int peer, int64_t wait_start_ns, struct err *err)
{
	const struct comm_options *options = &base->options;
	unsigned long long call = base->stats.calls + 1;
	base->failed = true;
	if (options->abort != NULL && atomic_load_explicit(options->abort, memory_order_acquire) != 0)
		return err_set_code(err, STATUS_RANK_DIED, "rank_died",
			"rank %d gave up waiting for rank %d in %s call %llu: the group is ending", options->rank, peer, base->name,
			call);
	double waited_s = (double)(clock_monotonic_ns() - wait_start_ns) / 1e9;
	return err_set_code(err, STATUS_RANK_DIED, "rank_died",
		"rank %d waited %.1f s for rank %d in %s call %llu: it has ended or stalled", options->rank, waited_s, peer,
		base->name, call);
}

void comm_base_stats(const struct comm *base, struct comm_stats *out)
{
	*out = base->stats;
}
