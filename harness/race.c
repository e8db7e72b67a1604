/* Compares every arm with the leader of the moment. See race.h. */
#include "harness/race.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "harness/compare.h"

/* Good cells of blocks before blocks, of arms that are in the race or serve as a measure, with leader and arm 0 exchanged. */
static size_t collect(
	const struct looks *looks, int workload, int blocks, const struct race_place *places, int leader, struct stats_cell *out)
{
	size_t count = 0;
	for (size_t i = 0; i < looks->n_cells; i++) {
		const struct launch_cell *cell = &looks->cells[i];
		bool good = cell->failure == FAILURE_NONE && !cell->voided && !isnan(cell->log_metric[workload]);
		if (!good || cell->block >= blocks || places[cell->arm].lost_after)
			continue;
		int arm = cell->arm == leader ? 0 : cell->arm == 0 ? leader : cell->arm;
		out[count++] = (struct stats_cell){arm, cell->block, cell->log_metric[workload]};
	}
	return count;
}

/* Gain of each arm over arm 0 of the cells as the metric counts it. */
static double gain_of(const struct experiment *experiment, const struct comparison *comparison)
{
	return experiment->rules.higher_is_better ? comparison->effect : -comparison->effect;
}

static int find_leader(const struct experiment *experiment, const struct comparison *comparisons)
{
	int leader = 0;
	double best = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		bool candidate = experiment->arms[arm].kind == ARM_CANDIDATE && comparisons[arm].blocks >= RACE_FIRST_LOOK;
		double gain = gain_of(experiment, &comparisons[arm]);
		if (candidate && gain > best) {
			leader = arm;
			best = gain;
		}
	}
	return leader;
}

struct heat {
	struct stats_cell *cells;
	struct comparison *comparisons; /* [n_arms] */
	double *p; /* [n_arms] adjusted; NaN unless worse than the leader */
	bool *behind; /* [n_arms] under every workload so far */
	int *leader; /* [n_arms] */
};

static enum status run_workload(const struct looks *looks, int workload, int blocks, const struct race_place *places, double level,
	struct heat *heat, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	int n_arms = experiment->n_arms;
	size_t n = collect(looks, workload, blocks, places, 0, heat->cells), family = 0;
	double log_half = verdict_log_half(looks->cells, looks->n_cells, experiment->rules.metric, workload);
	enum status status = compare_arms(heat->cells, n, n_arms, blocks, log_half, heat->comparisons, err);
	if (status)
		return status;
	int leader = find_leader(experiment, heat->comparisons);
	n = collect(looks, workload, blocks, places, leader, heat->cells);
	status = compare_arms(heat->cells, n, n_arms, blocks, log_half, heat->comparisons, err);
	for (int arm = 0; arm < n_arms && !status; arm++) {
		/* Under the exchanged numbers the leader is 0, and the baseline has the leader's place. */
		const struct comparison *comparison = &heat->comparisons[arm == leader ? 0 : arm];
		bool races = experiment->arms[arm].kind == ARM_CANDIDATE && arm != leader && !places[arm].lost_after &&
			experiment->workloads[workload].applies[arm];
		family += races;
		heat->p[arm] = races && gain_of(experiment, comparison) < 0 ? comparison->p : NAN;
	}
	if (status)
		return status;
	stats_holm(heat->p, (size_t)n_arms, family, heat->p);
	for (int arm = 0; arm < n_arms; arm++) {
		if (!experiment->workloads[workload].applies[arm])
			continue;
		heat->behind[arm] = heat->behind[arm] && heat->p[arm] < level;
		heat->leader[arm] = leader;
	}
	return STATUS_OK;
}

static enum status run_heat(
	const struct looks *looks, int blocks, double level, struct race_place *places, struct heat *heat, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	enum status status = STATUS_OK;
	for (int arm = 0; arm < experiment->n_arms; arm++)
		heat->behind[arm] = experiment->arms[arm].kind == ARM_CANDIDATE && !places[arm].lost_after;
	for (int workload = 0; workload < experiment->n_workloads && !status; workload++)
		status = run_workload(looks, workload, blocks, places, level, heat, err);
	for (int arm = 0; arm < experiment->n_arms && !status; arm++)
		if (heat->behind[arm])
			places[arm] = (struct race_place){blocks, heat->leader[arm]};
	return status;
}

enum status race_run(const struct looks *looks, int blocks, struct race_place *places, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	size_t n_arms = (size_t)experiment->n_arms;
	int looks_max = experiment->protocol.max_blocks - RACE_FIRST_LOOK + 1;
	looks_max = looks_max < 1 ? 1 : looks_max > EXPERIMENT_LOOKS_MAX ? EXPERIMENT_LOOKS_MAX : looks_max;
	double level = stats_pocock_level(experiment->rules.alpha, looks_max);
	struct heat heat = {
		mem_calloc(looks->n_cells + 1, sizeof *heat.cells),
		mem_calloc(n_arms, sizeof *heat.comparisons),
		mem_calloc(n_arms, sizeof *heat.p),
		mem_calloc(n_arms, sizeof *heat.behind),
		mem_calloc(n_arms, sizeof *heat.leader),
	};
	enum status status = STATUS_OK;
	memset(places, 0, n_arms * sizeof *places);
	/* No more looks than the level allows for: a race of more blocks goes on with those that are left. */
	for (int at = RACE_FIRST_LOOK; at <= blocks && at < RACE_FIRST_LOOK + looks_max && !status; at++)
		status = run_heat(looks, at, level, places, &heat, err);
	mem_free(heat.cells);
	mem_free(heat.comparisons);
	mem_free(heat.p);
	mem_free(heat.behind);
	mem_free(heat.leader);
	return status;
}

void race_explain(const struct experiment *experiment, const struct race_place *places, struct verdict_row *rows, size_t n_rows)
{
	for (size_t i = 0; i < n_rows; i++) {
		const struct race_place *place = &places[rows[i].arm];
		if (!place->lost_after || rows[i].decided)
			continue;
		snprintf(rows[i].reason, sizeof rows[i].reason, "inconclusive: left the race after %d blocks, slower than %.300s",
			place->lost_after, experiment->arms[place->leader].name);
		rows[i].decided = true;
	}
}

static bool is_decided(const struct verdict_row *rows, size_t n_rows, int arm)
{
	bool decided = true;
	for (size_t i = 0; i < n_rows; i++)
		decided = decided && (rows[i].arm != arm || rows[i].decided);
	return decided;
}

bool race_over(const struct experiment *experiment, const struct race_place *places, const int *stopped,
	const struct verdict_row *rows, size_t n_rows)
{
	int racing = 0, last = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++)
		if (experiment->arms[arm].kind == ARM_CANDIDATE && !places[arm].lost_after && !stopped[arm]) {
			racing++;
			last = arm;
		}
	return racing == 0 || (racing == 1 && is_decided(rows, n_rows, last));
}
