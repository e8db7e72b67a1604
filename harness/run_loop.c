/* The loop over blocks. */
#include "harness/run_loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "harness/looks.h"
#include "harness/plan.h"
#include "harness/prune.h"
#include "harness/race.h"
#include "harness/sampler.h"
#include "harness/saturation.h"

#define CLIENT_BUSY_FRAC 0.5 /* guess: above it, queueing delays reach the size of what a read takes */

/* ---- pure decisions ---- */

static const struct launch_cell *find_cell(const struct launch_cells *cells, int block, int arm)
{
	for (size_t i = 0; i < cells->count; i++)
		if (cells->items[i].block == block && cells->items[i].arm == arm)
			return &cells->items[i];
	return NULL;
}

bool run_loop_wants_retry(const struct protocol *protocol, const struct launch_cell *cell)
{
	int retries = 0;
	if (cell->failure == FAILURE_NONE)
		retries = cell->voided ? RUN_LOOP_VOID_RETRIES : 0;
	else if (cell->failure == FAILURE_CLIENT_ERROR)
		retries = protocol->retry_client_error;
	else if (cell->failure == FAILURE_CRASH)
		retries = protocol->retry_crash;
	else if (cell->failure == FAILURE_OOM_LOAD)
		retries = protocol->retry_oom_load;
	return cell->attempt < retries;
}

/* Started again with the same settings it would end in the same way. */
static bool is_lasting(enum failure failure)
{
	return failure == FAILURE_OOM_LOAD || failure == FAILURE_INACTIVE || failure == FAILURE_LAUNCH_ERROR;
}

enum status run_loop_dropped(const struct experiment *experiment, const struct launch_cells *cells, int block,
	const double *launch_sd, bool *dropped, struct err *err)
{
	memset(dropped, 0, (size_t)experiment->n_arms * sizeof(dropped[0]));
	if (block >= 1) {
		struct verdict_input input = {.experiment = experiment,
			.cells = cells->items,
			.n_cells = cells->count,
			.n_looks = experiment->protocol.level_looks,
			.launch_sd = launch_sd};
		enum status status = verdict_screen(&input, dropped, err);
		if (status)
			return status;
	}
	for (size_t i = 0; i < cells->count; i++) {
		const struct launch_cell *cell = &cells->items[i];
		bool lasting = cell->pruned || (cell->block < block && is_lasting(cell->failure));
		if (lasting && experiment->arms[cell->arm].kind == ARM_CANDIDATE)
			dropped[cell->arm] = true;
	}
	return STATUS_OK;
}

int run_loop_done(const struct experiment *experiment, const struct launch_cells *cells)
{
	int done = 0;
	for (size_t i = 0; i < cells->count; i++)
		done += cells->items[i].block < experiment->protocol.blocks && !cells->items[i].pruned &&
			!run_loop_wants_retry(&experiment->protocol, &cells->items[i]);
	return done;
}

/* ---- verdicts ---- */

/* What one run knows while it goes. */
struct state {
	struct launch_cells cells;
	struct verdict_row *rows; /* as of the last look */
	size_t n_rows;
	int *stopped; /* by arm: see looks_judge */
	struct race_place *places; /* by arm: see race_run; all zero unless this is a race */
	bool has_confirmation;
	struct store_confirmation confirmation;
	double launch_sd[EXPERIMENT_WORKLOADS_MAX]; /* see struct verdict_input */
	int64_t begin_ns;
	double spent_before_s; /* by earlier processes, for launches that are saved and the pauses behind them */
};

static enum status known_twins(void *ctx, int workload, int blocks, double *effects, size_t max, size_t *count, struct err *err)
{
	const struct run_loop *loop = ctx;
	return store_aa_effects(loop->store, loop->experiment_id, loop->machine_hash, loop->experiment->workloads[workload].hash,
		blocks, effects, max, count, err);
}

/* How much launches of one setting differ here, where earlier experiments have shown it. */
static enum status learn_launch_sd(struct run_loop *loop, struct state *state, struct err *err)
{
	enum status status = STATUS_OK;
	for (int i = 0; i < loop->experiment->n_workloads && !status; i++)
		status = store_launch_sd(
			loop->store, loop->experiment_id, loop->machine_hash, loop->experiment, i, &state->launch_sd[i], err);
	return status;
}

static struct looks looks_of(struct run_loop *loop, const struct state *state)
{
	return (struct looks){.experiment = loop->experiment,
		.cells = state->cells.items,
		.n_cells = state->cells.count,
		.known_twins = known_twins,
		.ctx = loop,
		.launch_sd = state->launch_sd};
}

static enum status judge(struct run_loop *loop, struct state *state, int blocks, struct err *err)
{
	struct looks looks = looks_of(loop, state);
	enum status status = looks_judge(&looks, blocks, state->rows, &state->n_rows, state->stopped, err);
	if (!status && loop->experiment->search == SEARCH_RACE)
		status = race_run(&looks, blocks, state->places, err);
	if (!status)
		race_explain(loop->experiment, state->places, state->rows, state->n_rows);
	return status;
}

static enum status save_verdicts(struct run_loop *loop, const struct state *state, bool final, struct err *err)
{
	return store_save_verdicts(loop->store, loop->experiment_id, loop->experiment, state->rows, state->n_rows, final, err);
}

/* Every candidate was decided at this look or an earlier one. */
static bool is_over(const struct experiment *experiment, const struct state *state)
{
	if (experiment->search == SEARCH_RACE)
		return race_over(experiment, state->places, state->stopped, state->rows, state->n_rows);
	for (int arm = 0; arm < experiment->n_arms; arm++)
		if (experiment->arms[arm].kind == ARM_CANDIDATE && !state->stopped[arm])
			return false;
	return true;
}

/* ---- launching ---- */

static enum status reload(struct run_loop *loop, struct launch_cells *cells, struct err *err)
{
	launch_cells_release(cells);
	enum status status = store_load_cells(loop->store, loop->experiment_id, loop->experiment, cells, err);
	if (!status)
		prune_add(loop->experiment, loop->oom_memory, cells);
	return status;
}

static void forward_progress(void *ctx, const struct measure_progress *step)
{
	progress_step(ctx, step);
}

/* A busy client reads late, and what it reads late looks like a slow engine. */
static void warn_of_busy_client(struct run_loop *loop, const struct launch_result *launch)
{
	double share = 0;
	for (size_t i = 0; i < launch->n_runs; i++)
		if (!launch->runs[i].warmup && launch->runs[i].conditions.seconds >= CONDITIONS_SECONDS_MIN)
			share = fmax(share, launch->runs[i].conditions.client_cpu_frac);
	if (share > CLIENT_BUSY_FRAC)
		progress_note(loop->progress, "the client took %.0f %% of a core: times may be read late", share * 100);
}

/* Latencies of a queue that grows say how long the run was; those who asked for this rate should know. */
static void warn_of_saturation(struct run_loop *loop, const struct launch_result *launch)
{
	for (size_t i = 0; i < launch->n_runs; i++)
		if (!launch->runs[i].warmup && saturation_of(&launch->runs[i])) {
			progress_note(loop->progress,
				"%s: requests piled up: the server does not keep up with this rate, and its latencies grow with "
				"the run",
				loop->experiment->workloads[launch->runs[i].workload].name);
			return;
		}
}

/* One attempt, measured and saved. */
static enum status attempt(
	struct run_loop *loop, const struct plan_launch *plan, int number, struct launch_cells *cells, struct err *err)
{
	struct launch_result launch = {0};
	struct measure measure = *loop->measure;
	measure.on_progress = forward_progress;
	measure.ctx = loop->progress;
	progress_begin(loop->progress, plan->block, plan->arm);
	enum status status = measure_launch(&measure, plan->arm, &launch, err);
	launch.block = plan->block;
	launch.order = plan->order;
	launch.attempt = number;
	if (!status)
		status = store_save_launch(loop->store, loop->experiment_id, loop->experiment, &launch, err);
	if (!status)
		status = reload(loop, cells, err);
	if (!status) {
		const struct launch_cell *cell = find_cell(cells, plan->block, plan->arm);
		progress_end(loop->progress, &launch, cell && !run_loop_wants_retry(&loop->experiment->protocol, cell));
	}
	if (!status && launch.machine_dirty)
		status = err_set(err, STATUS_UNAVAILABLE, "the machine did not come back after %s (block %d): %s",
			loop->experiment->arms[plan->arm].name, plan->block + 1, launch.dirty_reason);
	if (!status)
		warn_of_busy_client(loop, &launch);
	if (!status)
		warn_of_saturation(loop, &launch);
	launch_result_release(&launch);
	return status;
}

/* Says which settings were pruned because of an arm; NULL: because of any. */
static void announce_pruned(struct run_loop *loop, const struct launch_cells *cells, const char *cause)
{
	for (size_t i = 0; i < cells->count; i++) {
		const struct launch_cell *cell = &cells->items[i];
		if (cell->pruned && (!cause || strstr(cell->reason, cause)))
			progress_note(loop->progress, "%s: %s", loop->experiment->arms[cell->arm].name, cell->reason);
	}
}

static void explain_drop(struct run_loop *loop, const struct launch_cells *cells, const struct launch_cell *cell)
{
	const struct protocol *protocol = &loop->experiment->protocol;
	if (is_lasting(cell->failure) && loop->experiment->arms[cell->arm].kind == ARM_CANDIDATE &&
		cell->block + 1 < protocol->max_blocks)
		progress_note(loop->progress, "%s is not launched again: %s", loop->experiment->arms[cell->arm].name, cell->reason);
	if (cell->failure == FAILURE_OOM_LOAD || cell->failure == FAILURE_OOM_RUN)
		announce_pruned(loop, cells, loop->experiment->arms[cell->arm].name);
}

/* Launches an arm of a block until its result stands. */
static enum status launch_arm(struct run_loop *loop, const struct plan_launch *plan, struct launch_cells *cells, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	const struct launch_cell *cell = find_cell(cells, plan->block, plan->arm);
	enum status status = STATUS_OK;
	bool is_new = false;
	while (!status && (!cell || run_loop_wants_retry(&experiment->protocol, cell))) {
		if (interrupt_check(loop->measure->interrupt))
			return err_set(err, STATUS_INTERRUPTED, "interrupted");
		status = attempt(loop, plan, cell ? cell->attempt + 1 : 0, cells, err);
		cell = find_cell(cells, plan->block, plan->arm);
		is_new = true;
		if (!status && interrupt_sleep(loop->measure->interrupt, experiment->protocol.cooldown_s))
			status = err_set(err, STATUS_INTERRUPTED, "interrupted");
	}
	if (!status && is_new)
		explain_drop(loop, cells, cell);
	if (!status && experiment->arms[plan->arm].kind == ARM_BASELINE && cell->failure != FAILURE_NONE)
		status = err_set(err, STATUS_ANSWER_BAD, "the baseline failed: %s", cell->reason);
	return status;
}

/* One block of the arms that are not dropped. */
static enum status launch_block(struct run_loop *loop, int block, const bool *dropped, struct launch_cells *cells, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	struct plan_launch *plan = mem_calloc((size_t)experiment->n_arms, sizeof(*plan));
	int n = plan_block(experiment, block, dropped, plan);
	enum status status = STATUS_OK;
	for (int i = 0; i < n && !status; i++)
		status = launch_arm(loop, &plan[i], cells, err);
	mem_free(plan);
	return status;
}

static enum status run_block(struct run_loop *loop, int block, struct state *state, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	bool *dropped = mem_calloc((size_t)experiment->n_arms, sizeof(*dropped));
	enum status status = run_loop_dropped(experiment, &state->cells, block, state->launch_sd, dropped, err);
	struct looks looks = looks_of(loop, state);
	if (!status && experiment->search == SEARCH_RACE)
		status = race_run(&looks, block, state->places, err);
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		if (block > 0 && state->places[arm].lost_after == block)
			progress_note(loop->progress, "%s leaves the race after block %d: slower than %s",
				experiment->arms[arm].name, block, experiment->arms[state->places[arm].leader].name);
		dropped[arm] = dropped[arm] || state->stopped[arm] || state->places[arm].lost_after;
		loop->progress->total -= dropped[arm];
	}
	if (!status)
		status = launch_block(loop, block, dropped, &state->cells, err);
	mem_free(dropped);
	return status;
}

/* Launches of the block just done, and of all so far with their repetitions. */
static void count_launches(const struct launch_cells *cells, int blocks, int *last, int *all)
{
	*last = *all = 0;
	for (size_t i = 0; i < cells->count; i++) {
		const struct launch_cell *cell = &cells->items[i];
		*last += cell->block == blocks - 1 && !cell->pruned;
		*all += cell->pruned ? 0 : cell->attempt + 1;
	}
}

/* Seconds that the experiment took so far. What lies between two processes does not count, nor what a killed one did in vain. */
static double spent_s(const struct state *state)
{
	return state->spent_before_s + (double)(clock_monotonic_ns() - state->begin_ns) / 1e9;
}

static enum status learn_spent(struct run_loop *loop, struct state *state, struct err *err)
{
	int last, all;
	enum status status = store_spent_seconds(loop->store, loop->experiment_id, &state->spent_before_s, err);
	count_launches(&state->cells, 0, &last, &all);
	state->spent_before_s += all * loop->experiment->protocol.cooldown_s;
	return status;
}

/* Whether a budget forbids a block like the last one, room kept for the winner's confirmation. Says so. Blocks that were added to a
 * finished experiment were asked for by their number, and are in no budget. */
static bool is_spent(const struct run_loop *loop, const struct state *state, int blocks)
{
	const struct protocol *protocol = &loop->experiment->protocol;
	int last, all, reserved = 3 * loop->experiment->rules.confirm_winner_blocks; /* baseline, twin, winner */
	if (protocol->extended_from)
		return false;
	count_launches(&state->cells, blocks, &last, &all);
	if (protocol->budget_launches && all + last + reserved > protocol->budget_launches) {
		progress_note(loop->progress, "the budget of %d launches allows no block after block %d", protocol->budget_launches,
			blocks);
		return true;
	}
	if (protocol->budget_s > 0 && spent_s(state) > protocol->budget_s) {
		progress_note(loop->progress, "the time budget of %g s is spent after block %d", protocol->budget_s, blocks);
		return true;
	}
	return false;
}

/* Index of the look that comes after so many blocks; -1: none. */
static int look_after(const struct protocol *protocol, int blocks)
{
	for (int i = 0; i < protocol->n_looks; i++)
		if (protocol->looks[i] == blocks && blocks > protocol->extended_from)
			return i;
	return -1;
}

/* The run went on after that block, in this process or an earlier one: what it decided stands. */
static bool is_behind(const struct launch_cells *cells, int blocks, int end)
{
	for (size_t i = 0; i < cells->count; i++)
		if (cells->items[i].block >= blocks && cells->items[i].block < end)
			return true;
	return false;
}

static void announce_next(struct run_loop *loop, const struct state *state, int look)
{
	const struct experiment *experiment = loop->experiment;
	const int *looks = experiment->protocol.looks;
	int live = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++)
		live += experiment->arms[arm].kind == ARM_CANDIDATE && !state->stopped[arm] && !state->places[arm].lost_after;
	progress_note(loop->progress, "%d candidate%s undecided after block %d: going on to block %d", live,
		live == 1 ? " is" : "s are", looks[look], looks[look + 1]);
	loop->progress->total += (looks[look + 1] - looks[look]) * experiment->n_arms;
}

/* Runs blocks to the end of the search; *blocks says how many there are. Verdicts are judged and in state, and saved at every look.
 */
static enum status search(struct run_loop *loop, struct state *state, int *blocks, struct err *err)
{
	const struct protocol *protocol = &loop->experiment->protocol;
	int end = state->has_confirmation ? state->confirmation.from_block : protocol->max_blocks;
	for (*blocks = 1; *blocks <= end; ++*blocks) {
		enum status status = run_block(loop, *blocks - 1, state, err);
		bool is_last = *blocks == end;
		int look = look_after(protocol, *blocks);
		if (status && status != STATUS_ANSWER_BAD)
			return status;
		if (!status && !is_last && !is_behind(&state->cells, *blocks, end))
			is_last = is_spent(loop, state, *blocks);
		bool is_end = is_last || status == STATUS_ANSWER_BAD;
		if (look < 0 && !is_end)
			continue;
		enum status judged = judge(loop, state, *blocks, status ? NULL : err);
		if (judged || is_end)
			return status ? status : judged;
		if (is_behind(&state->cells, *blocks, end))
			continue;
		status = save_verdicts(loop, state, false, err);
		if (status)
			return status;
		if (is_over(loop->experiment, state)) {
			progress_note(loop->progress, "every candidate is decided after block %d", *blocks);
			return STATUS_OK;
		}
		announce_next(loop, state, look);
	}
	return STATUS_OK;
}

/* ---- confirmation ---- */

/* Notes the winner before its first launch, so that a resumed run confirms the same one in the same blocks. */
static enum status begin_confirmation(struct run_loop *loop, struct state *state, int winner, int blocks, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	state->confirmation = (struct store_confirmation){winner, blocks, experiment->rules.confirm_winner_blocks};
	enum status status = store_confirm(loop->store, loop->experiment_id, state->confirmation, err);
	state->has_confirmation = !status;
	return status;
}

static enum status confirm(struct run_loop *loop, struct state *state, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	const struct store_confirmation *confirmation = &state->confirmation;
	bool *dropped = mem_calloc((size_t)experiment->n_arms, sizeof(*dropped));
	int arms = 0;
	for (int arm = 0; arm < experiment->n_arms; arm++) {
		dropped[arm] = experiment->arms[arm].kind == ARM_CANDIDATE && arm != confirmation->arm;
		arms += !dropped[arm];
	}
	int last = confirmation->from_block + confirmation->blocks - 1;
	enum status status = STATUS_OK;
	if (!is_behind(&state->cells, last, last + 1)) {
		looks_mark_unconfirmed(experiment, confirmation->arm, state->rows, state->n_rows);
		status = save_verdicts(loop, state, false, err);
		progress_note(loop->progress, "%s helped most: confirming it in %d fresh blocks",
			experiment->arms[confirmation->arm].name, confirmation->blocks);
	}
	loop->progress->total += arms * confirmation->blocks;
	for (int i = 0; i < confirmation->blocks && !status; i++)
		status = launch_block(loop, confirmation->from_block + i, dropped, &state->cells, err);
	struct looks looks = looks_of(loop, state);
	if (!status || status == STATUS_ANSWER_BAD) {
		enum status judged = looks_confirm(&looks, confirmation->arm, confirmation->from_block, confirmation->blocks,
			state->rows, state->n_rows, status ? NULL : err);
		status = status ? status : judged;
	}
	mem_free(dropped);
	return status;
}

/* ---- all of it ---- */

static enum status run_all(struct run_loop *loop, struct state *state, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	int blocks = 0;
	enum status status = search(loop, state, &blocks, err);
	loop->winner = status ? 0 : looks_winner(experiment, state->rows, state->n_rows);
	/* A greedy search is confirmed as a whole, when it has ended. */
	bool confirms = experiment->rules.confirm_winner_blocks && experiment->search != SEARCH_GREEDY;
	int winner = confirms && !state->has_confirmation ? loop->winner : 0;
	if (winner)
		status = begin_confirmation(loop, state, winner, blocks, err);
	if (!status && state->has_confirmation)
		status = confirm(loop, state, err);
	if (status && status != STATUS_ANSWER_BAD)
		return status;
	enum status saved = save_verdicts(loop, state, true, status ? NULL : err);
	return status ? status : saved;
}

enum status run_loop_run(struct run_loop *loop, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	struct state state = {.begin_ns = clock_monotonic_ns()};
	state.rows = mem_calloc((size_t)experiment->n_arms * (size_t)experiment->n_workloads, sizeof(*state.rows));
	state.stopped = mem_calloc((size_t)experiment->n_arms, sizeof(*state.stopped));
	state.places = mem_calloc((size_t)experiment->n_arms, sizeof(*state.places));
	struct json *oom_memory = NULL;
	enum status status = store_claim(loop->store, loop->experiment_id, err);
	if (!status)
		status = store_oom_memory(loop->store, loop->experiment_id, &oom_memory, err);
	loop->oom_memory = oom_memory;
	if (!status)
		status = reload(loop, &state.cells, err);
	if (!status)
		announce_pruned(loop, &state.cells, NULL);
	if (!status)
		status = store_confirmation(loop->store, loop->experiment_id, &state.confirmation, &state.has_confirmation, err);
	if (!status)
		status = learn_launch_sd(loop, &state, err);
	if (!status)
		status = learn_spent(loop, &state, err);
	if (!status)
		status = run_all(loop, &state, err);
	int last_block;
	count_launches(&state.cells, 0, &last_block, &loop->launches);
	loop->spent_s = spent_s(&state);
	launch_cells_release(&state.cells);
	mem_free(state.rows);
	mem_free(state.stopped);
	mem_free(state.places);
	json_free(oom_memory);
	loop->oom_memory = NULL;
	return status;
}
