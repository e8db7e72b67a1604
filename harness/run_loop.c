/* The loop over blocks. */
#include "harness/run_loop.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "harness/plan.h"
#include "harness/sampler.h"

#define AA_EFFECTS_MAX 256
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

enum status run_loop_dropped(
	const struct experiment *experiment, const struct launch_cells *cells, int block, bool *dropped, struct err *err)
{
	memset(dropped, 0, (size_t)experiment->n_arms * sizeof(dropped[0]));
	if (block >= 2) {
		struct verdict_input input = {.experiment = experiment,
			.cells = cells->items,
			.n_cells = cells->count,
			.n_looks = experiment->protocol.level_looks};
		enum status status = verdict_screen(&input, dropped, err);
		if (status)
			return status;
	}
	for (size_t i = 0; i < cells->count; i++) {
		const struct launch_cell *cell = &cells->items[i];
		if (cell->block < block && is_lasting(cell->failure) && experiment->arms[cell->arm].kind == ARM_CANDIDATE)
			dropped[cell->arm] = true;
	}
	return STATUS_OK;
}

int run_loop_done(const struct experiment *experiment, const struct launch_cells *cells)
{
	int done = 0;
	for (size_t i = 0; i < cells->count; i++)
		done += cells->items[i].block < experiment->protocol.blocks &&
			!run_loop_wants_retry(&experiment->protocol, &cells->items[i]);
	return done;
}

/* ---- verdicts ---- */

static enum status save_verdicts(
	struct run_loop *loop, const struct launch_cells *cells, int blocks, bool final, bool *decided, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	struct verdict_row *rows = mem_calloc((size_t)experiment->n_arms * (size_t)experiment->n_workloads, sizeof(*rows));
	size_t n_rows = 0;
	enum status status = STATUS_OK;
	for (int workload = 0; workload < experiment->n_workloads && !status; workload++) {
		double aa_effects[AA_EFFECTS_MAX];
		size_t n_aa = 0, n = 0;
		bool baseline_failed;
		char baseline_reason[VERDICT_REASON_BYTES];
		status = store_aa_effects(loop->store, loop->experiment_id, loop->machine_hash,
			experiment->workloads[workload].hash, blocks, aa_effects, AA_EFFECTS_MAX, &n_aa, err);
		struct verdict_input input = {
			experiment, cells->items, cells->count, experiment->protocol.level_looks, aa_effects, n_aa};
		if (!status)
			status = verdict_compute(&input, workload, rows + n_rows, &n, &baseline_failed, baseline_reason, err);
		n_rows += n;
	}
	if (!status)
		*decided = verdict_all_decided(experiment, rows, n_rows);
	if (!status)
		status = store_save_verdicts(loop->store, loop->experiment_id, experiment, rows, n_rows, final, err);
	mem_free(rows);
	return status;
}

/* ---- launching ---- */

static enum status reload(struct run_loop *loop, struct launch_cells *cells, struct err *err)
{
	launch_cells_release(cells);
	return store_load_cells(loop->store, loop->experiment_id, loop->experiment, cells, err);
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
	launch_result_release(&launch);
	return status;
}

static void explain_drop(struct run_loop *loop, const struct launch_cell *cell)
{
	const struct protocol *protocol = &loop->experiment->protocol;
	if (is_lasting(cell->failure) && loop->experiment->arms[cell->arm].kind == ARM_CANDIDATE &&
		cell->block + 1 < protocol->max_blocks)
		progress_note(loop->progress, "%s is not launched again: %s", loop->experiment->arms[cell->arm].name, cell->reason);
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
		explain_drop(loop, cell);
	if (!status && experiment->arms[plan->arm].kind == ARM_BASELINE && cell->failure != FAILURE_NONE)
		status = err_set(err, STATUS_ANSWER_BAD, "the baseline failed: %s", cell->reason);
	return status;
}

static enum status run_block(struct run_loop *loop, int block, struct launch_cells *cells, struct err *err)
{
	const struct experiment *experiment = loop->experiment;
	struct plan_launch *plan = mem_calloc((size_t)experiment->n_arms, sizeof(*plan));
	bool *dropped = mem_calloc((size_t)experiment->n_arms, sizeof(*dropped));
	enum status status = run_loop_dropped(experiment, cells, block, dropped, err);
	int n = status ? 0 : plan_block(experiment, block, dropped, plan);
	for (int arm = 0; arm < experiment->n_arms; arm++)
		loop->progress->total -= dropped[arm];
	for (int i = 0; i < n && !status; i++)
		status = launch_arm(loop, &plan[i], cells, err);
	mem_free(plan);
	mem_free(dropped);
	return status;
}

static bool is_spent(const struct run_loop *loop, int64_t begin_ns)
{
	double budget_s = loop->experiment->protocol.budget_s;
	return budget_s > 0 && (double)(clock_monotonic_ns() - begin_ns) / 1e9 > budget_s;
}

/* Index of the look that is to be taken after so many blocks; -1: none. It is behind us when the run went on after it. */
static int look_after(const struct protocol *protocol, const struct launch_cells *cells, int blocks)
{
	for (size_t i = 0; i < cells->count; i++)
		if (cells->items[i].block >= blocks)
			return -1;
	for (int i = 0; i < protocol->n_looks; i++)
		if (protocol->looks[i] == blocks && blocks > protocol->extended_from)
			return i;
	return -1;
}

static enum status run_blocks(struct run_loop *loop, struct launch_cells *cells, struct err *err)
{
	const struct protocol *protocol = &loop->experiment->protocol;
	int64_t begin_ns = clock_monotonic_ns();
	for (int block = 0; block < protocol->max_blocks; block++) {
		enum status status = run_block(loop, block, cells, err);
		bool is_last = block + 1 == protocol->max_blocks, decided = false;
		int look = look_after(protocol, cells, block + 1);
		if (status && status != STATUS_ANSWER_BAD)
			return status;
		if (!status && !is_last && is_spent(loop, begin_ns)) {
			progress_note(
				loop->progress, "the time budget of %g s is spent after block %d", protocol->budget_s, block + 1);
			is_last = true;
		}
		bool is_end = is_last || status == STATUS_ANSWER_BAD;
		if (look < 0 && !is_end)
			continue;
		enum status saved = save_verdicts(loop, cells, block + 1, is_end, &decided, status ? NULL : err);
		if (saved)
			return status ? status : saved;
		if (!is_end && decided) {
			progress_note(loop->progress, "every candidate is decided after block %d", block + 1);
			return save_verdicts(loop, cells, block + 1, true, &decided, err);
		}
		if (is_end)
			return status;
		progress_note(loop->progress, "not every candidate is decided after block %d: going on to block %d", block + 1,
			protocol->looks[look + 1]);
		loop->progress->total += (protocol->looks[look + 1] - protocol->looks[look]) * loop->experiment->n_arms;
	}
	return STATUS_OK;
}

enum status run_loop_run(struct run_loop *loop, struct err *err)
{
	struct launch_cells cells = {0};
	enum status status = reload(loop, &cells, err);
	if (!status)
		status = run_blocks(loop, &cells, err);
	launch_cells_release(&cells);
	return status;
}
