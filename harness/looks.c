/* Looks in order, each over the launches that were there when it was taken. */
#include "harness/looks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

#define KNOWN_TWINS_MAX 256

/* The cells of blocks [from, to), block numbers counted from from. Caller frees the array; fingerprints stay with the caller. */
static struct launch_cell *select_cells(const struct looks *looks, int from, int to, size_t *count)
{
	struct launch_cell *selected = mem_calloc(looks->n_cells + 1, sizeof *selected);
	*count = 0;
	for (size_t i = 0; i < looks->n_cells; i++) {
		const struct launch_cell *cell = &looks->cells[i];
		if (cell->block < from || cell->block >= to)
			continue;
		selected[*count] = *cell;
		selected[(*count)++].block -= from;
	}
	return selected;
}

/* Which launches are judged: those of blocks [from, to). confirming: see struct verdict_input. */
struct span {
	int from, to, confirming;
};

static enum status judge_workload(
	const struct looks *looks, int workload, struct span span, struct verdict_row *rows, size_t *n_rows, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	double twins[KNOWN_TWINS_MAX];
	char reason[VERDICT_REASON_BYTES];
	bool baseline_failed;
	size_t n_twins = 0, n_cells;
	enum status status = STATUS_OK;
	if (looks->known_twins)
		status = looks->known_twins(looks->ctx, workload, span.to - span.from, twins, KNOWN_TWINS_MAX, &n_twins, err);
	struct launch_cell *cells = select_cells(looks, span.from, span.to, &n_cells);
	const struct verdict_input input = {.experiment = experiment,
		.cells = cells,
		.n_cells = n_cells,
		.n_looks = span.confirming ? 1 : experiment->protocol.level_looks,
		.aa_effects = twins,
		.n_aa_effects = n_twins,
		.confirming = span.confirming,
		.launch_sd = looks->launch_sd};
	*n_rows = 0;
	if (!status)
		status = verdict_compute(&input, workload, rows, n_rows, &baseline_failed, reason, err);
	mem_free(cells);
	return status;
}

static enum status judge_all(const struct looks *looks, int blocks, struct verdict_row *rows, size_t *n_rows, struct err *err)
{
	enum status status = STATUS_OK;
	*n_rows = 0;
	for (int workload = 0; workload < looks->experiment->n_workloads && !status; workload++) {
		size_t n = 0;
		status = judge_workload(looks, workload, (struct span){.to = blocks}, rows + *n_rows, &n, err);
		*n_rows += n;
	}
	return status;
}

/* Arms decided in every row they have stop here. */
static void stop_decided(
	const struct experiment *experiment, const struct verdict_row *rows, size_t n_rows, int blocks, int *stopped)
{
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		bool decided = experiment->arms[arm].kind == ARM_CANDIDATE, any = false;
		for (size_t i = 0; i < n_rows; i++)
			if (rows[i].arm == arm) {
				/* In a race it is not enough to help: another one may help more. */
				bool races = experiment->search == SEARCH_RACE && rows[i].verdict == VERDICT_HELPED;
				decided = decided && rows[i].decided && !races;
				any = true;
			}
		if (decided && any && !stopped[arm])
			stopped[arm] = blocks;
	}
}

enum status looks_judge(
	const struct looks *looks, int blocks, struct verdict_row *rows, size_t *n_rows, int *stopped, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	const struct protocol *protocol = &experiment->protocol;
	size_t n_fresh = 0;
	struct verdict_row *fresh = mem_calloc((size_t)experiment->n_arms * (size_t)experiment->n_workloads, sizeof *fresh);
	enum status status = STATUS_OK;
	*n_rows = 0;
	memset(stopped, 0, (size_t)experiment->n_arms * sizeof *stopped);
	for (int i = 0; i <= protocol->n_looks && !status; i++) {
		int look = i < protocol->n_looks && protocol->looks[i] < blocks ? protocol->looks[i] : blocks;
		if (look <= protocol->extended_from && look < blocks)
			continue;
		status = judge_all(looks, look, fresh, &n_fresh, err);
		/* Which arms have rows depends on the workloads alone, so rows of all looks are in the same places. */
		for (size_t row = 0; row < n_fresh && !status; row++)
			if (!stopped[fresh[row].arm])
				rows[row] = fresh[row];
		*n_rows = n_fresh;
		if (!status)
			stop_decided(experiment, fresh, n_fresh, look, stopped);
		if (look == blocks)
			break;
	}
	mem_free(fresh);
	return status;
}

int looks_winner(const struct experiment *experiment, const struct verdict_row *rows, size_t n_rows)
{
	double best_gain = 0;
	int best = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		bool helped = false, spoilt = experiment->arms[arm].kind != ARM_CANDIDATE;
		double gain = 0;
		for (size_t i = 0; i < n_rows; i++) {
			const struct verdict_row *row = &rows[i];
			if (row->arm != arm)
				continue;
			helped = helped || row->verdict == VERDICT_HELPED;
			spoilt = spoilt || row->verdict == VERDICT_HURT || row->verdict == VERDICT_FAILED;
			if (isfinite(row->log_effect))
				gain += experiment->rules.higher_is_better ? row->log_effect : -row->log_effect;
		}
		if (helped && !spoilt && gain > best_gain) {
			best = arm;
			best_gain = gain;
		}
	}
	return best;
}

/* The search's word for the winner stays visible only as "not confirmed"; its estimate does not. */
static void say_confirmed(struct verdict_row *row, int blocks)
{
	char reason[VERDICT_REASON_BYTES];
	row->method = "confirmation";
	row->decided = true;
	if (row->verdict == VERDICT_HELPED) {
		snprintf(row->reason, sizeof row->reason, "confirmed with fresh launches in %d blocks", blocks);
	} else if (row->verdict == VERDICT_NEUTRAL || row->verdict == VERDICT_HURT) {
		snprintf(reason, sizeof reason, "%s", row->reason);
		snprintf(row->reason, sizeof row->reason, "not confirmed%s%.480s", reason[0] ? ": " : "", reason);
	}
}

enum status looks_confirm(
	const struct looks *looks, int winner, int from_block, int blocks, struct verdict_row *rows, size_t n_rows, struct err *err)
{
	const struct experiment *experiment = looks->experiment;
	struct verdict_row *fresh = mem_calloc((size_t)experiment->n_arms, sizeof *fresh);
	enum status status = STATUS_OK;
	for (size_t i = 0; i < n_rows && !status; i++) {
		size_t n_fresh = 0;
		if (rows[i].arm != winner)
			continue;
		const struct span span = {from_block, from_block + blocks, winner};
		status = judge_workload(looks, rows[i].workload, span, fresh, &n_fresh, err);
		for (size_t k = 0; k < n_fresh && !status; k++)
			if (fresh[k].arm == winner) {
				rows[i] = fresh[k];
				say_confirmed(&rows[i], blocks);
			}
	}
	mem_free(fresh);
	return status;
}

void looks_mark_unconfirmed(const struct experiment *experiment, int winner, struct verdict_row *rows, size_t n_rows)
{
	for (size_t i = 0; i < n_rows; i++)
		if (rows[i].arm == winner && rows[i].verdict == VERDICT_HELPED)
			snprintf(rows[i].reason, sizeof rows[i].reason, "to be confirmed with fresh launches in %d blocks",
				experiment->rules.confirm_winner_blocks);
}
