/* The rules that turn launch cells into verdicts: failures first, then output, screening, the test, limits, equivalence. */
#include "harness/verdict.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/compare.h"

#define VERDICT_BLOCKS_MIN 3 /* a helped or hurt from fewer launches would not be repeated */
#define NEEDED_BLOCKS_SAID_MAX 100 /* beyond it a quieter machine is the better advice */
#define SCREEN_BLOCKS 2
#define SCREEN_LOSS_PCT 15.0
#define SCREEN_SDS 6.0

/* One arm while it is being judged. */
struct judged {
	bool applies;
	int cells, failed, voided, pruned, good; /* launches of this arm, and one for those that were needless */
	int undefined; /* launches that went well but give the primary metric no logarithm */
	const struct launch_cell *first_failure;
	int prompts, prompts_matching; /* of the fingerprints, over all launches; 0 when none were taken */
	int screened_after; /* blocks that showed that it is hopeless; 0: none did */
	struct comparison comparison;
	int zeros; /* of the good ones */
	double log_mean; /* of the primary metric over good launches; -INFINITY when all are zero */
};

struct judging {
	const struct verdict_input *input;
	const struct experiment *experiment;
	int workload;
	int n_blocks;
	struct judged *arms; /* [n_arms] */
	struct comparison *limits[EXPERIMENT_LIMITS_MAX]; /* [n_arms] each */
	double *limit_p[EXPERIMENT_LIMITS_MAX]; /* [n_arms] adjusted */
	double *p_adjusted; /* [n_arms] */
	double level, min_effect_pct;
	double log_half; /* what stands for zero of the primary metric */
	struct arena arena;
};

static double to_percent(double log_difference)
{
	return 100 * expm1(log_difference);
}

static bool is_good(const struct launch_cell *cell)
{
	return cell->failure == FAILURE_NONE && !cell->voided;
}

/* --- facts about each arm ------------------------------------------------------------------------------------------- */

/* ln of the primary metric under the judged workload: NaN where zero is no value of it. */
static double primary_value(const struct judging *judging, const struct launch_cell *cell)
{
	double y = cell->log_metric[judging->workload];
	return isinf(y) && isnan(judging->log_half) ? NAN : y;
}

static void count_cells(struct judging *judging)
{
	for (size_t i = 0; i < judging->input->n_cells; i++) {
		const struct launch_cell *cell = &judging->input->cells[i];
		struct judged *arm = &judging->arms[cell->arm];
		double y = primary_value(judging, cell);
		if (cell->block >= judging->n_blocks)
			judging->n_blocks = cell->block + 1;
		arm->cells++;
		arm->voided += cell->voided;
		arm->pruned += cell->pruned;
		if (!cell->voided && cell->failure != FAILURE_NONE) {
			arm->failed++;
			if (!arm->first_failure || cell->block < arm->first_failure->block)
				arm->first_failure = cell;
		}
		if (is_good(cell) && !isnan(y)) {
			arm->log_mean += isinf(y) ? judging->log_half : y;
			arm->zeros += isinf(y) != 0;
			arm->good++;
		}
		arm->undefined += is_good(cell) && isnan(y);
	}
	for (int i = 0; i < judging->experiment->n_arms; i++) {
		struct judged *arm = &judging->arms[i];
		arm->log_mean = !arm->good ? NAN : arm->zeros == arm->good ? -INFINITY : arm->log_mean / arm->good;
	}
}

/* The baseline's greedy texts to compare with: those of the same block where there are some. */
static const char *reference_fingerprint(const struct judging *judging, int block)
{
	const char *any = NULL;
	for (size_t i = 0; i < judging->input->n_cells; i++) {
		const struct launch_cell *cell = &judging->input->cells[i];
		if (cell->arm != 0 || !is_good(cell) || !cell->fingerprint)
			continue;
		if (cell->block == block)
			return cell->fingerprint;
		any = any ? any : cell->fingerprint;
	}
	return any;
}

static void compare_texts(const char *reference, const char *other, struct judged *arm)
{
	struct json *expected = NULL, *got = NULL;
	if (json_parse(reference, strlen(reference), "fingerprint", &expected, NULL) == STATUS_OK &&
		json_parse(other, strlen(other), "fingerprint", &got, NULL) == STATUS_OK) {
		for (size_t i = 0; i < json_count(expected); i++) {
			arm->prompts++;
			arm->prompts_matching += json_same(json_at(expected, i), json_at(got, i));
		}
	}
	json_free(expected);
	json_free(got);
}

static void compare_fingerprints(struct judging *judging)
{
	for (size_t i = 0; i < judging->input->n_cells; i++) {
		const struct launch_cell *cell = &judging->input->cells[i];
		const char *reference = cell->arm ? reference_fingerprint(judging, cell->block) : NULL;
		if (reference && is_good(cell) && cell->fingerprint)
			compare_texts(reference, cell->fingerprint, &judging->arms[cell->arm]);
	}
}

static double match_fraction(const struct judged *arm)
{
	return arm->prompts ? (double)arm->prompts_matching / arm->prompts : 1;
}

/* An engine whose own baseline does not repeat its text cannot be asked for more of a candidate than of the twin. */
static double required_match(const struct judging *judging)
{
	double required = judging->experiment->guards.fingerprint_min_match_frac;
	for (int i = 0; i < judging->experiment->n_arms; i++)
		if (judging->experiment->arms[i].kind == ARM_AA_TWIN)
			required = fmin(required, match_fraction(&judging->arms[i]));
	return required;
}

static bool has_wrong_output(const struct judging *judging, int arm)
{
	return match_fraction(&judging->arms[arm]) < required_match(judging);
}

static bool has_failed(const struct judging *judging, int arm)
{
	return judging->arms[arm].failed > 0 || has_wrong_output(judging, arm);
}

/* --- comparing ------------------------------------------------------------------------------------------------------ */

/* values: the metric of a cell under the judged workload. */
static double cell_value(const struct judging *judging, const struct launch_cell *cell, int limit)
{
	return limit < 0 ? primary_value(judging, cell) : cell->log_limit[limit][judging->workload];
}

static double log_half_of(const struct judging *judging, int limit)
{
	const struct verdict_rules *rules = &judging->experiment->rules;
	const char *metric = limit < 0 ? rules->metric : rules->limits[limit].metric;
	return verdict_log_half(judging->input->cells, judging->input->n_cells, metric, judging->workload);
}

/* Compares every arm that did not fail over blocks below block_end, on the primary metric (limit -1) or a limit's. */
static enum status compare_metric(struct judging *judging, int limit, int block_end, struct comparison *out, struct err *err)
{
	const struct verdict_input *input = judging->input;
	struct stats_cell *cells = arena_calloc(&judging->arena, input->n_cells + 1, sizeof *cells);
	size_t count = 0;
	for (size_t i = 0; i < input->n_cells; i++) {
		const struct launch_cell *cell = &input->cells[i];
		double y = cell_value(judging, cell, limit);
		bool counts = judging->arms[cell->arm].applies && !has_failed(judging, cell->arm);
		if (counts && is_good(cell) && !isnan(y) && cell->block < block_end)
			cells[count++] = (struct stats_cell){cell->arm, cell->block, y};
	}
	return compare_arms(cells, count, judging->experiment->n_arms, judging->n_blocks, log_half_of(judging, limit), out, err);
}

/* Marks arms that lost more than chance allows over the first blocks. known_sd: of one launch; NaN: that of these blocks. */
static enum status screen_blocks(struct judging *judging, int blocks, double known_sd, struct err *err)
{
	const struct experiment *experiment = judging->experiment;
	struct comparison *early = arena_calloc(&judging->arena, (size_t)experiment->n_arms, sizeof *early);
	enum status status = compare_metric(judging, -1, blocks, early, err);
	for (int i = 0; i < experiment->n_arms && !status; i++) {
		double loss = experiment->rules.higher_is_better ? -early[i].effect : early[i].effect;
		double sd = isnan(known_sd) ? early[i].sd : known_sd;
		bool hopeless = loss > fmax(-log1p(-SCREEN_LOSS_PCT / 100), SCREEN_SDS * sd);
		bool counts = experiment->arms[i].kind == ARM_CANDIDATE && early[i].blocks == blocks;
		if (counts && hopeless && !judging->arms[i].screened_after)
			judging->arms[i].screened_after = blocks;
	}
	return status;
}

static enum status find_screened(struct judging *judging, struct err *err)
{
	const double *launch_sd = judging->input->launch_sd;
	enum status status = STATUS_OK;
	if (!judging->experiment->protocol.screening)
		return STATUS_OK;
	if (launch_sd && isfinite(launch_sd[judging->workload]))
		status = screen_blocks(judging, 1, launch_sd[judging->workload], err);
	if (!status && judging->n_blocks >= SCREEN_BLOCKS)
		status = screen_blocks(judging, SCREEN_BLOCKS, NAN, err);
	return status;
}

/* Holm over the candidates of this workload: the failed and the screened stay counted. The twin is no hypothesis of anybody's. */
static void adjust(struct judging *judging, struct comparison *const *comparisons, double *adjusted)
{
	int n_arms = judging->experiment->n_arms;
	double *p = arena_calloc(&judging->arena, (size_t)n_arms, sizeof *p);
	size_t family = 0;
	for (int i = 0; i < n_arms; i++) {
		bool candidate = judging->experiment->arms[i].kind == ARM_CANDIDATE && judging->arms[i].applies &&
			(!judging->input->confirming || judging->input->confirming == i);
		family += candidate;
		p[i] = candidate && !has_failed(judging, i) ? comparisons[i]->p : NAN;
	}
	stats_holm(p, (size_t)n_arms, family, adjusted);
	for (int i = 0; i < n_arms; i++)
		if (judging->experiment->arms[i].kind == ARM_AA_TWIN)
			adjusted[i] = comparisons[i]->p;
}

static void adjust_all(struct judging *judging)
{
	int n_arms = judging->experiment->n_arms;
	struct comparison **list = arena_calloc(&judging->arena, (size_t)n_arms, sizeof(void *));
	for (int i = 0; i < n_arms; i++)
		list[i] = &judging->arms[i].comparison;
	adjust(judging, list, judging->p_adjusted);
	for (int limit = 0; limit < judging->experiment->rules.n_limits; limit++) {
		for (int i = 0; i < n_arms; i++)
			list[i] = &judging->limits[limit][i];
		adjust(judging, list, judging->limit_p[limit]);
	}
}

static enum status compare_all(struct judging *judging, struct err *err)
{
	size_t n_arms = (size_t)judging->experiment->n_arms;
	struct comparison *primary = arena_calloc(&judging->arena, n_arms, sizeof *primary);
	enum status status = find_screened(judging, err);
	if (!status)
		status = compare_metric(judging, -1, judging->n_blocks, primary, err);
	for (size_t i = 0; i < n_arms && !status; i++)
		judging->arms[i].comparison = primary[i];
	judging->p_adjusted = arena_calloc(&judging->arena, n_arms, sizeof(double));
	for (int limit = 0; limit < judging->experiment->rules.n_limits && !status; limit++) {
		judging->limits[limit] = arena_calloc(&judging->arena, n_arms, sizeof(struct comparison));
		judging->limit_p[limit] = arena_calloc(&judging->arena, n_arms, sizeof(double));
		status = compare_metric(judging, limit, judging->n_blocks, judging->limits[limit], err);
	}
	if (!status)
		adjust_all(judging);
	return status;
}

/* --- deciding ------------------------------------------------------------------------------------------------------- */

static void decide(struct verdict_row *row, enum verdict verdict, bool decided, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

static void decide(struct verdict_row *row, enum verdict verdict, bool decided, const char *format, ...)
{
	va_list args;
	row->verdict = verdict;
	row->decided = decided;
	va_start(args, format);
	vsnprintf(row->reason, sizeof row->reason, format, args);
	va_end(args);
}

static const char *failure_reason(const struct judged *arm)
{
	const struct launch_cell *cell = arm->first_failure;
	return cell->reason[0] ? cell->reason : failure_name(cell->failure);
}

static void decide_failed(const struct judging *judging, struct verdict_row *row)
{
	const struct judged *arm = &judging->arms[row->arm];
	int launches = arm->cells - arm->voided;
	if (!arm->failed) {
		decide(row, VERDICT_FAILED, true, "wrong_output: %d of %d greedy texts differ from the baseline's",
			arm->prompts - arm->prompts_matching, arm->prompts);
	} else {
		const char *reason = failure_reason(arm);
		if (arm->failed < launches)
			decide(row, VERDICT_FAILED, true, "%.440s (%d of %d launches)", reason, arm->failed, launches);
		else
			decide(row, VERDICT_FAILED, true, "%.500s", reason);
	}
}

/* Percent by which a limit's metric got worse. */
static double limit_regress_pct(const struct judging *judging, int limit, int arm)
{
	double effect = judging->limits[limit][arm].effect;
	return judging->experiment->rules.limits[limit].higher_is_better ? -to_percent(effect) : to_percent(effect);
}

enum limit_state { LIMIT_KEPT, LIMIT_DOUBTFUL, LIMIT_BROKEN };

/* A limit is broken with the same evidence that a win needs; a mere point estimate beyond it only forbids the win. */
static enum limit_state check_limits(const struct judging *judging, int arm, int *which)
{
	enum limit_state worst = LIMIT_KEPT;
	for (int i = 0; i < judging->experiment->rules.n_limits; i++) {
		double regress = limit_regress_pct(judging, i, arm);
		enum limit_state state = LIMIT_KEPT;
		if (!(regress < judging->experiment->rules.limits[i].max_regress_pct))
			state = judging->limit_p[i][arm] < judging->level ? LIMIT_BROKEN : LIMIT_DOUBTFUL;
		if (state > worst) {
			worst = state;
			*which = i;
		}
	}
	return worst;
}

static bool is_equivalent(const struct judging *judging, const struct verdict_row *row)
{
	const struct comparison *comparison = &judging->arms[row->arm].comparison;
	/* Two one-sided tests at the level: the interval of coverage 1 - 2 level lies inside ± the minimum effect. */
	double half = stats_student_quantile(1 - judging->level, comparison->df) * comparison->std_error;
	return judging->experiment->rules.equivalence && to_percent(comparison->effect - half) > -row->min_effect_pct &&
		to_percent(comparison->effect + half) < row->min_effect_pct;
}

static void decide_inconclusive(const struct judging *judging, struct verdict_row *row)
{
	const struct comparison *comparison = &judging->arms[row->arm].comparison;
	row->needed_blocks = stats_needed_blocks(
		comparison->sd, log1p(row->min_effect_pct / 100), judging->level, comparison->df, comparison->blocks);
	if (isnan(row->needed_blocks))
		decide(row, VERDICT_NEUTRAL, false, "inconclusive: too few launches to judge");
	else if (row->needed_blocks > NEEDED_BLOCKS_SAID_MAX)
		decide(row, VERDICT_NEUTRAL, false, "inconclusive: too noisy, more than %d more blocks needed",
			NEEDED_BLOCKS_SAID_MAX);
	else
		decide(row, VERDICT_NEUTRAL, false, "inconclusive: about %.0f more block%s needed", row->needed_blocks,
			row->needed_blocks == 1 ? "" : "s");
}

static void decide_significant(const struct judging *judging, struct verdict_row *row, double gain_pct)
{
	int limit = 0;
	enum limit_state state = check_limits(judging, row->arm, &limit);
	if (gain_pct <= -row->min_effect_pct)
		decide(row, VERDICT_HURT, true, "%s", row->metric == 0 ? "0 in every launch" : "");
	else if (gain_pct >= row->min_effect_pct && state == LIMIT_KEPT)
		decide(row, VERDICT_HELPED, true, "%s", row->baseline_metric == 0 ? "the baseline gave 0 in every launch" : "");
	else if (gain_pct >= row->min_effect_pct)
		decide(row, VERDICT_NEUTRAL, false, "inconclusive: %s may break its limit",
			judging->experiment->rules.limits[limit].metric);
	else
		decide(row, VERDICT_NEUTRAL, true, "below_min_effect: real, but smaller than %g %%", row->min_effect_pct);
}

static void decide_measured(const struct judging *judging, struct verdict_row *row)
{
	const struct judged *arm = &judging->arms[row->arm];
	double change_pct = to_percent(row->log_effect);
	double gain_pct = judging->experiment->rules.higher_is_better ? change_pct : -change_pct;
	bool candidate = judging->experiment->arms[row->arm].kind == ARM_CANDIDATE, enough = row->blocks >= VERDICT_BLOCKS_MIN;
	int limit = 0;
	if (arm->screened_after && !enough)
		decide(row, VERDICT_HURT, true, "screened: hopeless after %d block%s", arm->screened_after,
			arm->screened_after == 1 ? "" : "s");
	else if (enough && candidate && check_limits(judging, row->arm, &limit) == LIMIT_BROKEN)
		decide(row, VERDICT_HURT, true, "%s got %.1f %% worse, limit %g %%",
			judging->experiment->rules.limits[limit].metric, limit_regress_pct(judging, limit, row->arm),
			judging->experiment->rules.limits[limit].max_regress_pct);
	else if (enough && row->p_adjusted < judging->level && fabs(change_pct) >= row->min_effect_pct)
		decide_significant(judging, row, gain_pct);
	else if (enough && arm->comparison.zero && judging->arms[0].comparison.zero)
		decide(row, VERDICT_NEUTRAL, true, "equivalent: 0 on both sides");
	else if (enough && is_equivalent(judging, row))
		decide(row, VERDICT_NEUTRAL, true, "equivalent within %g %%", row->min_effect_pct);
	else if (enough && row->p_adjusted < judging->level)
		decide_significant(judging, row, gain_pct);
	else
		decide_inconclusive(judging, row);
}

static void fill_numbers(const struct judging *judging, struct verdict_row *row)
{
	const struct judged *arm = &judging->arms[row->arm];
	const struct comparison *comparison = &arm->comparison;
	double half = stats_student_quantile(1 - judging->level / 2, comparison->df) * comparison->std_error;
	row->metric = exp(arm->log_mean);
	row->log_effect = comparison->effect;
	bool from_zero = judging->arms[0].comparison.zero, lost_all = comparison->zero && !from_zero;
	if (!from_zero || comparison->zero) {
		row->effect_pct = lost_all ? -100 : to_percent(comparison->effect);
		row->ci_low_pct = lost_all ? -100 : to_percent(comparison->effect - half);
		row->ci_high_pct = to_percent(comparison->effect + half);
	}
	row->p = comparison->p;
	row->p_adjusted = judging->p_adjusted[row->arm];
	row->blocks = comparison->blocks;
	row->std_error_pct = 100 * comparison->std_error;
	row->df = comparison->df;
	row->method = comparison->paired ? "paired" : "pooled";
}

/* What keeps the baseline from being compared with, as the end of a sentence about it. */
static const char *baseline_lack(const struct judging *judging)
{
	const struct judged *baseline = &judging->arms[0];
	if (baseline->failed)
		return "failed";
	if (baseline->undefined)
		return "gave no value above 0 of this metric";
	return baseline->voided ? "was disturbed in every launch" : "was not measured";
}

static void judge_arm(const struct judging *judging, int index, bool baseline_failed, struct verdict_row *row)
{
	const struct judged *arm = &judging->arms[index];
	*row = (struct verdict_row){.arm = index,
		.workload = judging->workload,
		.metric = NAN,
		.log_effect = NAN,
		.effect_pct = NAN,
		.ci_low_pct = NAN,
		.ci_high_pct = NAN,
		.p = NAN,
		.p_adjusted = NAN,
		.needed_blocks = NAN,
		.std_error_pct = NAN,
		.df = NAN,
		.method = "",
		.launches = arm->good,
		.level = judging->level,
		.min_effect_pct = judging->min_effect_pct,
		.baseline_metric = exp(judging->arms[0].log_mean)};
	if (has_failed(judging, index)) {
		row->launches = arm->cells - arm->voided - arm->pruned;
		decide_failed(judging, row);
	} else if (baseline_failed) {
		row->metric = exp(arm->log_mean);
		decide(row, VERDICT_NEUTRAL, true, "inconclusive: the baseline %s", baseline_lack(judging));
	} else if (arm->cells && arm->voided == arm->cells) {
		decide(row, VERDICT_VOID, false, "void: the machine was disturbed in every launch");
	} else if (!arm->good && arm->undefined) {
		decide(row, VERDICT_NEUTRAL, true, "inconclusive: no launch gave a value above 0 of %s",
			judging->experiment->rules.metric);
	} else if (!arm->good) {
		decide(row, VERDICT_NEUTRAL, false, "inconclusive: not measured");
	} else {
		fill_numbers(judging, row);
		decide_measured(judging, row);
	}
}

/* --- entry points --------------------------------------------------------------------------------------------------- */

static enum status begin(struct judging *judging, const struct verdict_input *input, int workload, struct err *err)
{
	const struct experiment *experiment = input->experiment;
	if (workload < 0 || workload >= experiment->n_workloads)
		return err_set(err, STATUS_INTERNAL, "workload %d of %d", workload, experiment->n_workloads);
	for (size_t i = 0; i < input->n_cells; i++)
		if (input->cells[i].arm < 0 || input->cells[i].arm >= experiment->n_arms || input->cells[i].block < 0)
			return err_set(err, STATUS_INTERNAL, "launch cell %zu names arm %d, block %d", i, input->cells[i].arm,
				input->cells[i].block);
	*judging = (struct judging){.input = input, .experiment = experiment, .workload = workload, .n_blocks = 1};
	judging->arms = arena_calloc(&judging->arena, (size_t)experiment->n_arms, sizeof *judging->arms);
	for (int i = 0; i < experiment->n_arms; i++)
		judging->arms[i].applies = experiment->workloads[workload].applies[i];
	judging->level = input->n_looks > 1 ? stats_pocock_level(experiment->rules.alpha, input->n_looks) : experiment->rules.alpha;
	judging->min_effect_pct = verdict_min_effect(experiment->rules.min_effect_pct, input->aa_effects, input->n_aa_effects);
	judging->log_half = log_half_of(judging, -1);
	count_cells(judging);
	compare_fingerprints(judging);
	return STATUS_OK;
}

static bool baseline_state(const struct judging *judging, char reason[VERDICT_REASON_BYTES])
{
	const struct judged *baseline = &judging->arms[0];
	reason[0] = '\0';
	if (baseline->failed) {
		snprintf(reason, VERDICT_REASON_BYTES, "%.440s (%d of %d launches)", failure_reason(baseline), baseline->failed,
			baseline->cells - baseline->voided);
	} else if (!baseline->good && baseline->undefined) {
		snprintf(reason, VERDICT_REASON_BYTES, "no launch gave a value above 0 of %s", judging->experiment->rules.metric);
	} else if (!baseline->good) {
		snprintf(reason, VERDICT_REASON_BYTES, "%s",
			baseline->voided ? "void: the machine was disturbed in every launch" : "not measured");
	}
	return reason[0] != '\0';
}

enum status verdict_compute(const struct verdict_input *input, int workload, struct verdict_row *rows, size_t *n_rows,
	bool *baseline_failed, char baseline_reason[VERDICT_REASON_BYTES], struct err *err)
{
	struct judging judging = {0};
	enum status status = begin(&judging, input, workload, err);
	*n_rows = 0;
	if (!status)
		status = compare_all(&judging, err);
	if (!status) {
		*baseline_failed = baseline_state(&judging, baseline_reason);
		for (int i = 1; i < input->experiment->n_arms; i++)
			if (judging.arms[i].applies)
				judge_arm(&judging, i, *baseline_failed, &rows[(*n_rows)++]);
	}
	arena_release(&judging.arena);
	return status;
}

/* True when every arm has its launch in each of the first so many blocks. One that failed in an earlier block, or was found
 * hopeless there, may be absent from a later one. */
static bool blocks_are_complete(const struct verdict_input *input, int blocks, const bool *hopeless)
{
	int arms = input->experiment->n_arms, complete = 0;
	int *seen = mem_calloc((size_t)arms, sizeof *seen);
	for (size_t i = 0; i < input->n_cells; i++) {
		const struct launch_cell *cell = &input->cells[i];
		bool early = cell->block < blocks && cell->arm >= 0 && cell->arm < arms;
		if (early)
			seen[cell->arm] += cell->failure != FAILURE_NONE || hopeless[cell->arm] ? blocks : 1;
	}
	for (int i = 0; i < arms; i++)
		complete += seen[i] >= blocks;
	mem_free(seen);
	return complete == arms;
}

/* Marks the candidates that the first so many blocks show to be hopeless under every workload they run. */
static enum status mark_hopeless(const struct verdict_input *input, int blocks, bool *dropped, struct err *err)
{
	const struct experiment *experiment = input->experiment;
	bool *hopeless = mem_calloc((size_t)experiment->n_arms, sizeof *hopeless);
	enum status status = STATUS_OK;
	for (int i = 0; i < experiment->n_arms; i++)
		hopeless[i] = experiment->arms[i].kind == ARM_CANDIDATE;
	for (int workload = 0; workload < experiment->n_workloads && !status; workload++) {
		struct judging judging = {0};
		status = begin(&judging, input, workload, err);
		if (!status)
			status = find_screened(&judging, err);
		for (int i = 0; i < experiment->n_arms && !status; i++) {
			int after = judging.arms[i].screened_after;
			hopeless[i] = hopeless[i] && (!judging.arms[i].applies || (after && after <= blocks));
		}
		arena_release(&judging.arena);
	}
	for (int i = 0; i < experiment->n_arms && !status; i++)
		dropped[i] = dropped[i] || hopeless[i];
	mem_free(hopeless);
	return status;
}

enum status verdict_screen(const struct verdict_input *input, bool *dropped, struct err *err)
{
	enum status status = STATUS_OK;
	memset(dropped, 0, (size_t)input->experiment->n_arms * sizeof *dropped);
	for (int blocks = 1; blocks <= SCREEN_BLOCKS && input->experiment->protocol.screening && !status; blocks++)
		if (blocks_are_complete(input, blocks, dropped))
			status = mark_hopeless(input, blocks, dropped, err);
	return status;
}
