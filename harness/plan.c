/* Random order of launches inside each block, and what the whole plan costs in time. */
#include "harness/plan.h"

#include <math.h>

#include "base/random.h"

/* Fisher-Yates keyed by (seed, block): the same on every machine and after every resume. */
static void shuffle(int *arms, int count, uint64_t seed, uint64_t block)
{
	for (int i = count - 1; i > 0; i--) {
		int other = (int)random_below(seed, block, (uint64_t)i, (uint64_t)i + 1);
		int swap = arms[i];
		arms[i] = arms[other];
		arms[other] = swap;
	}
}

static void reverse(int *arms, int count)
{
	for (int i = 0; i < count / 2; i++) {
		int swap = arms[i];
		arms[i] = arms[count - 1 - i];
		arms[count - 1 - i] = swap;
	}
}

static int count_candidates(const struct experiment *experiment)
{
	int candidates = 0;
	for (int i = 0; i < experiment->n_arms; i++)
		candidates += experiment->arms[i].kind == ARM_CANDIDATE;
	return candidates;
}

int plan_block(const struct experiment *experiment, int block, const bool *dropped, struct plan_launch *out)
{
	int arms[EXPERIMENT_ARMS_MAX];
	bool mirrored = count_candidates(experiment) == 1 && block % 2 == 1;
	for (int i = 0; i < experiment->n_arms; i++)
		arms[i] = i;
	shuffle(arms, experiment->n_arms, experiment->protocol.order_seed, (uint64_t)(mirrored ? block - 1 : block));
	if (mirrored)
		reverse(arms, experiment->n_arms);
	int launches = 0;
	for (int order = 0; order < experiment->n_arms; order++)
		if (!dropped || !dropped[arms[order]])
			out[launches++] = (struct plan_launch){arms[order], block, order};
	return launches;
}

int plan_launches(const struct experiment *experiment, bool all_looks)
{
	return experiment->n_arms * (all_looks ? experiment->protocol.max_blocks : experiment->protocol.blocks);
}

double plan_launch_seconds(const struct experiment *experiment, int arm, double start_s, double tokens_per_s)
{
	double seconds = start_s;
	for (int i = 0; i < experiment->n_workloads; i++) {
		const struct workload *workload = &experiment->workloads[i];
		if (!workload->applies[arm])
			continue;
		double rounds = (double)workload->requests / workload_slots(workload),
		       answer_s = workload->output_len / tokens_per_s;
		/* The last request of an open loop comes when it comes. */
		double run_s = workload->schedule.kind == SCHEDULE_CLOSED
			? rounds * answer_s
			: fmax(rounds * answer_s, workload_arrival_seconds(workload) + answer_s);
		seconds += run_s * experiment->protocol.runs_per_launch + experiment->protocol.warmup_requests * answer_s;
	}
	return seconds;
}

double plan_seconds(const struct experiment *experiment, double start_s, double tokens_per_s)
{
	double seconds = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++)
		seconds += plan_launch_seconds(experiment, arm, start_s, tokens_per_s) + experiment->protocol.cooldown_s;
	return seconds * experiment->protocol.blocks;
}
