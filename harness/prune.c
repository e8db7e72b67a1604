/* Orders settings by the memory they ask. See prune.h. */
#include "harness/prune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const struct monotone_knob *find_monotone(const struct experiment *experiment, const char *knob)
{
	for (int i = 0; i < experiment->n_monotone; i++)
		if (text_equal(experiment->monotone[i].knob, knob))
			return &experiment->monotone[i];
	return NULL;
}

/* The arm asks at least as much as a setting of these values, which failed. */
static bool asks_as_much(const struct experiment *experiment, const struct arm *arm, const struct json *settings)
{
	if (json_count(settings) != arm->n_settings)
		return false; /* made with other knobs, so nothing is known */
	for (size_t i = 0; i < arm->n_settings; i++) {
		const struct knob_value *own = &arm->settings[i];
		const struct json *failed = json_get(settings, own->knob);
		const struct monotone_knob *monotone = find_monotone(experiment, own->knob);
		if (!failed)
			return false;
		if (json_same(own->value, failed))
			continue;
		double more = json_number(own->value, NAN) - json_number(failed, NAN);
		if (!monotone || !(monotone->up ? more > 0 : more < 0))
			return false;
	}
	return true;
}

static struct json *settings_of(const struct arm *arm)
{
	struct json *settings = json_new_object();
	for (size_t i = 0; i < arm->n_settings; i++)
		json_set(settings, arm->settings[i].knob, json_clone(arm->settings[i].value));
	return settings;
}

static bool has_cell(const struct launch_cells *cells, int arm)
{
	for (size_t i = 0; i < cells->count; i++)
		if (cells->items[i].arm == arm)
			return true;
	return false;
}

static void add_cell(struct launch_cells *cells, int arm, int block, enum failure failure, const char *cause)
{
	cells->items = mem_realloc(cells->items, cells->count + 1, sizeof *cells->items);
	struct launch_cell *cell = &cells->items[cells->count++];
	*cell = (struct launch_cell){.arm = arm, .block = block, .failure = failure, .pruned = true};
	for (int i = 0; i < EXPERIMENT_WORKLOADS_MAX; i++) {
		cell->log_metric[i] = NAN;
		for (int limit = 0; limit < EXPERIMENT_LIMITS_MAX; limit++)
			cell->log_limit[limit][i] = NAN;
	}
	snprintf(cell->reason, sizeof cell->reason, "%s: not launched: %.400s", failure_name(failure), cause);
}

/* Prunes what asks as much as one failed setting. */
static void prune_from(const struct experiment *experiment, const struct json *settings, int block, enum failure failure,
	const char *cause, struct launch_cells *cells)
{
	for (int arm = 0; arm < experiment->n_arms; arm++)
		if (experiment->arms[arm].kind == ARM_CANDIDATE && !has_cell(cells, arm) &&
			asks_as_much(experiment, &experiment->arms[arm], settings))
			add_cell(cells, arm, block, failure, cause);
}

void prune_add(const struct experiment *experiment, const struct json *remembered, struct launch_cells *cells)
{
	char cause[400];
	if (!experiment->n_monotone)
		return;
	for (size_t i = 0; i < json_count(remembered); i++) {
		const struct json *row = json_at(remembered, i);
		snprintf(cause, sizeof cause, "it, or less, ran out of memory in experiment %lld",
			(long long)json_int(json_get(row, "experiment_id"), 0));
		prune_from(experiment, json_get(row, "settings"), 0, FAILURE_OOM_LOAD, cause, cells);
	}
	size_t measured = cells->count;
	for (size_t i = 0; i < measured; i++) {
		const struct launch_cell failed = cells->items[i]; /* a copy: the array grows */
		if (failed.pruned || (failed.failure != FAILURE_OOM_LOAD && failed.failure != FAILURE_OOM_RUN))
			continue;
		struct json *settings = settings_of(&experiment->arms[failed.arm]);
		snprintf(cause, sizeof cause, "%.300s asks less, and ran out of memory", experiment->arms[failed.arm].name);
		prune_from(experiment, settings, failed.block, failed.failure, cause, cells);
		json_free(settings);
	}
}
