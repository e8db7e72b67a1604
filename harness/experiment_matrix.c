/* Expands a baseline and a matrix into arms: one factor at a time, grid or list, with inclusions and exclusions. Pure. */
#include "harness/experiment_internal.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#define GRID_POINTS_MAX 100000 /* enumerated before exclusions; guess: far above what anyone can launch */
#define FACTOR_VALUES_MAX 4096

struct factor {
	size_t knob; /* index into base */
	const struct json **values;
	size_t count;
};

struct matrix {
	struct experiment *experiment;
	struct reader *reader;
	struct knob_value base[EXPERIMENT_KNOBS_MAX]; /* the baseline's settings */
	size_t n_knobs;
	struct factor factors[EXPERIMENT_KNOBS_MAX];
	size_t n_factors;
	struct place exclude; /* array or absent */
	size_t n_exclude;
	bool *exclude_used; /* n_exclude of them */
	struct place constraints; /* array or absent */
	int n_forbidden; /* arms left out because they break one */
};

static void check_knob_name(struct matrix *matrix, const struct place *place, const char *knob)
{
	const struct experiment *experiment = matrix->experiment;
	bool fine = isalpha((unsigned char)knob[0]) || knob[0] == '_';
	for (const char *c = knob; *c; c++)
		fine = fine && (isalnum((unsigned char)*c) || strchr("_.-", *c));
	if (!fine || text_equal(knob, "aa_twin") || text_equal(knob, "name")) {
		place_fail(place, true, "'%s' cannot name a knob: use letters, digits, '_', '.' and '-', but not aa_twin or name",
			knob);
		return;
	}
	if (!experiment->n_engines)
		experiment_check_switch(place, &experiment->engine, knob);
	else if (!text_equal(knob, EXPERIMENT_ENGINE_KNOB))
		for (size_t i = 0; i < experiment->n_engines; i++)
			experiment_check_switch(place, &experiment->engines[i], knob);
}

const char *experiment_value_text(struct reader *reader, const struct json *value)
{
	if (json_kind_of(value) == JSON_KIND_STRING)
		return reader_print(reader, "%s", json_text(value));
	if (json_kind_of(value) == JSON_KIND_REAL) {
		char text[32];
		text_format_double(text, json_number(value, 0));
		return reader_print(reader, "%s", text);
	}
	return reader_json_text(reader, value);
}

static struct knob_value make_value(struct matrix *matrix, const char *knob, const struct json *value)
{
	return (struct knob_value){knob, value, experiment_value_text(matrix->reader, value)};
}

/* Index of the knob, or n_knobs. */
static size_t find_knob(const struct matrix *matrix, const char *knob)
{
	size_t i = 0;
	while (i < matrix->n_knobs && !text_equal(matrix->base[i].knob, knob))
		i++;
	return i;
}

static size_t add_knob(struct matrix *matrix, const struct place *place, const char *knob, const struct json *value)
{
	check_knob_name(matrix, place, knob);
	if (matrix->n_knobs == EXPERIMENT_KNOBS_MAX) {
		place_fail(place, true, "more than %d knobs", EXPERIMENT_KNOBS_MAX);
		return 0;
	}
	matrix->base[matrix->n_knobs] = make_value(matrix, reader_print(matrix->reader, "%s", knob), value);
	return matrix->n_knobs++;
}

static void read_baseline(struct matrix *matrix, const struct place *baseline)
{
	if (!place_section(baseline, SECTION_BASELINE))
		return;
	struct place params = place_get(baseline, "params");
	if (!place_is(&params, JSON_KIND_OBJECT))
		return;
	for (void *it = json_first(params.value); it && reader_ok(matrix->reader); it = json_next(params.value, it)) {
		struct place place = place_get(&params, json_iterator_key(it));
		experiment_check_engine_name(matrix->experiment, &place, json_iterator_key(it));
		add_knob(matrix, &place, json_iterator_key(it), place.value);
	}
}

/* Value number i of a range; whole numbers stay whole, others are rounded to 12 digits so that 0.9 + 4 × 0.01 is 0.94. */
static struct json *range_value(double from, double step, double times, size_t i, bool whole)
{
	double value = times > 0 ? from * pow(times, (double)i) : from + step * (double)i;
	if (whole)
		return json_new_integer((int64_t)llround(value));
	if (value != 0) {
		double scale = pow(10, 11 - floor(log10(fabs(value))));
		value = round(value * scale) / scale;
	}
	return json_new_number(value);
}

/* {"from", "to", "step"} or {"from", "to", "times"}: the last value is the last one not above "to". */
static void read_range(struct matrix *matrix, const struct place *place, struct factor *factor)
{
	const double huge = 1e15; /* whole numbers are exact well beyond it */
	place_section(place, SECTION_RANGE);
	double from = place_number(place, "from", -huge, huge, NAN), to = place_number(place, "to", -huge, huge, NAN);
	double step = place_number(place, "step", 0, huge, 0), times = place_number(place, "times", 0, huge, 0);
	if (isnan(from) || isnan(to) || (step > 0) == (times > 0) || to < from || (times > 0 && (times <= 1 || from <= 0))) {
		place_fail(place, false, "a range needs from <= to and either step > 0 or times > 1 (with from > 0)");
		return;
	}
	double count = times > 0 ? floor(log(to / from) / log(times) + 1e-9) + 1 : floor((to - from) / step + 1e-9) + 1;
	if (count > FACTOR_VALUES_MAX) {
		place_fail(place, false, "the range has %.10g values, more than %d", count, FACTOR_VALUES_MAX);
		return;
	}
	bool whole = from == floor(from) && (times > 0 ? times == floor(times) : step == floor(step));
	factor->count = (size_t)count;
	factor->values = arena_calloc(matrix->reader->arena, factor->count, sizeof(void *));
	for (size_t i = 0; i < factor->count; i++) {
		struct json *value = range_value(from, step, times, i, whole);
		json_append(matrix->experiment->range_values, value);
		factor->values[i] = value;
	}
}

static void read_factor(struct matrix *matrix, const struct place *place, const char *knob)
{
	struct factor *factor = &matrix->factors[matrix->n_factors];
	*factor = (struct factor){0};
	if (json_kind_of(place->value) == JSON_KIND_OBJECT) {
		read_range(matrix, place, factor);
	} else if (place_is(place, JSON_KIND_ARRAY)) {
		factor->count = json_count(place->value);
		factor->values = arena_calloc(matrix->reader->arena, factor->count + 1, sizeof(void *));
		for (size_t i = 0; i < factor->count; i++) {
			struct place value = place_at(place, i);
			experiment_check_engine_name(matrix->experiment, &value, knob);
			factor->values[i] = value.value;
		}
	}
	if (reader_ok(matrix->reader) && (!factor->values || !factor->count || factor->count > FACTOR_VALUES_MAX))
		place_fail(place, false, "must list from 1 to %d values", FACTOR_VALUES_MAX);
	if (!reader_ok(matrix->reader) || !factor->values)
		return;
	factor->knob = find_knob(matrix, knob);
	if (factor->knob == matrix->n_knobs)
		factor->knob = add_knob(matrix, place, knob, factor->values[0]);
	if (reader_ok(matrix->reader))
		matrix->n_factors++;
}

static void read_factors(struct matrix *matrix, const struct place *factors)
{
	if (!place_is(factors, JSON_KIND_OBJECT))
		return;
	for (void *it = json_first(factors->value); it && reader_ok(matrix->reader); it = json_next(factors->value, it)) {
		struct place place = place_get(factors, json_iterator_key(it));
		read_factor(matrix, &place, json_iterator_key(it));
	}
}

static const struct knob_value *arm_setting(const struct arm *arm, const char *knob)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (text_equal(arm->settings[i].knob, knob))
			return &arm->settings[i];
	return NULL;
}

bool experiment_arm_matches(const struct arm *arm, const struct json *assignment)
{
	for (void *it = json_first(assignment); it; it = json_next(assignment, it)) {
		const struct knob_value *setting = arm_setting(arm, json_iterator_key(it));
		if (!setting || !json_same(setting->value, json_iterator_value(it)))
			return false;
	}
	return true;
}

void experiment_check_assignment(const struct experiment *experiment, const struct place *assignment, const char *skip)
{
	if (!place_is(assignment, JSON_KIND_OBJECT))
		return;
	for (void *it = json_first(assignment->value); it; it = json_next(assignment->value, it)) {
		const char *knob = json_iterator_key(it);
		if (text_equal(knob, skip) || arm_setting(&experiment->arms[0], knob))
			continue;
		struct place place = place_get(assignment, knob);
		place_fail(&place, true, "'%s' is no knob of this experiment; give it a value in baseline.params", knob);
	}
}

static bool is_excluded(struct matrix *matrix, const struct arm *arm)
{
	for (size_t i = 0; i < json_count(matrix->constraints.value); i++)
		if (!experiment_keeps_constraint(arm, json_at(matrix->constraints.value, i))) {
			matrix->n_forbidden++;
			return true;
		}
	for (size_t i = 0; i < matrix->n_exclude; i++)
		if (experiment_arm_matches(arm, json_at(matrix->exclude.value, i))) {
			matrix->exclude_used[i] = true;
			return true;
		}
	return false;
}

/* "knob=value" of every changed knob, joined with '+', white space replaced so that the name is one word. */
static const char *changes_name(struct reader *reader, const struct arm *arm)
{
	struct text name = {0};
	for (size_t i = 0; i < arm->n_changed; i++)
		text_printf(&name, "%s%s=%s", i ? "+" : "", arm->changed[i].knob, arm->changed[i].text);
	for (size_t i = 0; i < name.len; i++)
		if (isspace((unsigned char)name.data[i]))
			name.data[i] = '_';
	const char *copy = reader_print(reader, "%s", text_str(&name));
	text_release(&name);
	return copy;
}

static bool same_settings(const struct arm *a, const struct arm *b)
{
	for (size_t i = 0; i < a->n_settings; i++)
		if (!json_same(a->settings[i].value, b->settings[i].value))
			return false;
	return true;
}

static struct arm make_arm(struct matrix *matrix, const struct knob_value *settings)
{
	struct arena *arena = matrix->reader->arena;
	struct arm arm = {.kind = ARM_CANDIDATE, .n_settings = matrix->n_knobs};
	arm.settings = arena_calloc(arena, matrix->n_knobs + 1, sizeof *arm.settings);
	arm.changed = arena_calloc(arena, matrix->n_knobs + 1, sizeof *arm.changed);
	for (size_t i = 0; i < matrix->n_knobs; i++) {
		arm.settings[i] = settings[i];
		if (!json_same(settings[i].value, matrix->base[i].value))
			arm.changed[arm.n_changed++] = settings[i];
	}
	return arm;
}

static void add_notice(struct matrix *matrix, const char *notice)
{
	string_list_add(matrix->reader->arena, &matrix->experiment->notices, notice);
}

/* Adds a candidate unless it is excluded, equals the baseline or repeats another one. name NULL: made from the changes. */
static void add_candidate(struct matrix *matrix, const struct place *place, struct arm arm, const char *name, bool may_be_excluded)
{
	struct experiment *experiment = matrix->experiment;
	if (!reader_ok(matrix->reader) || (may_be_excluded && is_excluded(matrix, &arm)))
		return;
	arm.name = name ? name : changes_name(matrix->reader, &arm);
	if (!arm.n_changed) {
		add_notice(matrix, reader_print(matrix->reader, "%s repeats the baseline and is left out", place->path));
		return;
	}
	for (int i = 0; i < experiment->n_arms; i++) {
		const struct arm *other = &experiment->arms[i];
		if (other->kind == ARM_CANDIDATE && same_settings(other, &arm)) {
			add_notice(matrix, reader_print(matrix->reader, "%s repeats %s and is left out", place->path, other->name));
			return;
		}
		if (text_equal(other->name, arm.name)) {
			place_fail(place, false, "two arms are named '%s'", arm.name);
			return;
		}
	}
	if (experiment->n_arms == EXPERIMENT_ARMS_MAX)
		place_fail(place, false, "more than %d arms; list fewer values or exclude some", EXPERIMENT_ARMS_MAX);
	else
		experiment->arms[experiment->n_arms++] = arm;
}

static void expand_ofat(struct matrix *matrix, const struct place *factors)
{
	struct knob_value settings[EXPERIMENT_KNOBS_MAX];
	for (size_t f = 0; f < matrix->n_factors; f++) {
		const struct factor *factor = &matrix->factors[f];
		struct place place = place_get(factors, matrix->base[factor->knob].knob);
		for (size_t v = 0; v < factor->count && reader_ok(matrix->reader); v++) {
			/* Listing the baseline's own value among the levels is good style, so it earns no notice. */
			if (json_same(factor->values[v], matrix->base[factor->knob].value))
				continue;
			memcpy(settings, matrix->base, sizeof settings);
			settings[factor->knob] = make_value(matrix, settings[factor->knob].knob, factor->values[v]);
			struct place value = {
				matrix->reader, factor->values[v], reader_print(matrix->reader, "%s[%zu]", place.path, v)};
			add_candidate(matrix, &value, make_arm(matrix, settings), NULL, true);
		}
	}
}

/* Every combination, the last factor changing fastest. */
static void expand_grid(struct matrix *matrix, const struct place *factors)
{
	double points = 1;
	for (size_t f = 0; f < matrix->n_factors; f++)
		points *= (double)matrix->factors[f].count;
	if (points > GRID_POINTS_MAX) {
		place_fail(
			factors, false, "the grid has %.0f points, more than the %d that are enumerated", points, GRID_POINTS_MAX);
		return;
	}
	struct knob_value settings[EXPERIMENT_KNOBS_MAX];
	for (size_t point = 0; point < (size_t)points && reader_ok(matrix->reader); point++) {
		memcpy(settings, matrix->base, sizeof settings);
		size_t rest = point;
		for (size_t f = matrix->n_factors; f-- > 0;) {
			const struct factor *factor = &matrix->factors[f];
			settings[factor->knob] =
				make_value(matrix, settings[factor->knob].knob, factor->values[rest % factor->count]);
			rest /= factor->count;
		}
		struct arm arm = make_arm(matrix, settings);
		if (arm.n_changed) /* the grid holds the baseline's own point by design */
			add_candidate(matrix, factors, arm, NULL, true);
	}
}

/* "arms" of mode list, or "include": the baseline with the given knobs changed. */
static void expand_list(struct matrix *matrix, const struct place *list, bool may_be_excluded)
{
	if (!place_is(list, JSON_KIND_ARRAY))
		return;
	for (size_t i = 0; i < json_count(list->value) && reader_ok(matrix->reader); i++) {
		struct place item = place_at(list, i);
		struct knob_value settings[EXPERIMENT_KNOBS_MAX];
		memcpy(settings, matrix->base, sizeof settings);
		if (!place_is(&item, JSON_KIND_OBJECT))
			return;
		experiment_check_assignment(matrix->experiment, &item, "name");
		if (!reader_ok(matrix->reader))
			return;
		for (void *it = json_first(item.value); it; it = json_next(item.value, it)) {
			size_t knob = find_knob(matrix, json_iterator_key(it));
			struct place value = place_get(&item, json_iterator_key(it));
			experiment_check_engine_name(matrix->experiment, &value, json_iterator_key(it));
			if (knob < matrix->n_knobs)
				settings[knob] = make_value(matrix, settings[knob].knob, json_iterator_value(it));
		}
		add_candidate(matrix, &item, make_arm(matrix, settings), place_name(&item, NULL), may_be_excluded);
	}
}

static void read_exclusions(struct matrix *matrix, const struct place *place)
{
	matrix->exclude = place_get(place, "exclude");
	if (!place_is(&matrix->exclude, JSON_KIND_ARRAY))
		return;
	matrix->n_exclude = json_count(matrix->exclude.value);
	matrix->exclude_used = arena_calloc(matrix->reader->arena, matrix->n_exclude + 1, sizeof *matrix->exclude_used);
	for (size_t i = 0; i < matrix->n_exclude; i++) {
		struct place item = place_at(&matrix->exclude, i);
		experiment_check_assignment(matrix->experiment, &item, NULL);
		if (json_kind_of(item.value) == JSON_KIND_OBJECT && !json_count(item.value))
			place_fail(&item, false, "an empty assignment would exclude every arm");
	}
}

static void report_unused_exclusions(struct matrix *matrix)
{
	for (size_t i = 0; i < matrix->n_exclude; i++)
		if (!matrix->exclude_used[i])
			add_notice(matrix, reader_print(matrix->reader, "matrix.exclude[%zu] matches no arm", i));
}

static void hash_configuration(const struct experiment *experiment, struct arm *arm)
{
	const struct engine_spec *engine = arm_engine(experiment, arm);
	struct json *config = json_new_object(), *command = json_new_array(), *env = json_new_object(),
		    *settings = json_new_object();
	for (size_t i = 0; i < engine->command.count; i++)
		json_append(command, json_new_string(engine->command.items[i]));
	for (size_t i = 0; i < engine->n_env; i++)
		json_set(env, engine->env[i].name, json_new_string(engine->env[i].value));
	for (size_t i = 0; i < arm->n_settings; i++)
		json_set(settings, arm->settings[i].knob, json_clone(arm->settings[i].value));
	json_set(config, "adapter", json_new_string(engine->adapter));
	json_set(config, "url", json_new_string(engine->url));
	json_set(config, "command", command);
	json_set(config, "env", env);
	json_set(config, "settings", settings);
	experiment_hash_json(config, arm->config_hash);
	json_free(config);
}

static void add_baseline(struct matrix *matrix, const struct place *baseline, bool twin)
{
	struct experiment *experiment = matrix->experiment;
	experiment->arms[0] = make_arm(matrix, matrix->base);
	experiment->arms[0].kind = ARM_BASELINE;
	experiment->arms[0].name = place_name(baseline, "baseline");
	experiment->n_arms = 1;
	if (!twin)
		return;
	experiment->arms[1] = experiment->arms[0];
	experiment->arms[1].kind = ARM_AA_TWIN;
	experiment->arms[1].name = "A/A twin";
	experiment->n_arms = 2;
}

void experiment_read_arms(struct experiment *experiment, const struct place *root)
{
	static const char *const modes[] = {"ofat", "grid", "list", "race", "greedy", NULL};
	static const enum search searches[] = {SEARCH_NONE, SEARCH_NONE, SEARCH_NONE, SEARCH_RACE, SEARCH_GREEDY};
	struct matrix *state = arena_calloc(root->reader->arena, 1, sizeof *state);
	*state = (struct matrix){.experiment = experiment, .reader = root->reader};
	struct place baseline = place_get(root, "baseline"), matrix = place_get(root, "matrix");
	read_baseline(state, &baseline);
	place_section(&matrix, SECTION_MATRIX);
	int mode = place_choice(&matrix, "mode", modes, 0);
	struct place factors = place_get(&matrix, "factors"), arms = place_get(&matrix, "arms"),
		     include = place_get(&matrix, "include");
	experiment->search = searches[mode];
	if (mode == 2 && factors.value)
		place_fail(&factors, true, "mode list takes arms, not factors");
	if (mode != 2 && mode != 3 && arms.value)
		place_fail(&arms, true, "arms belongs to the modes list and race; use factors or include");
	if (mode == 3 && arms.value && factors.value)
		place_fail(&arms, true, "a race is between arms or the combinations of factors, not both");
	read_factors(state, &factors);
	if (!reader_ok(root->reader))
		return;
	add_baseline(state, &baseline, place_bool(&matrix, "aa_twin", true));
	read_exclusions(state, &matrix);
	state->constraints = place_get(&matrix, "constraints");
	experiment_read_constraints(experiment, &state->constraints);
	experiment_read_monotone(experiment, &matrix);
	if (!reader_ok(root->reader))
		return;
	if (mode == 0 || mode == 4)
		expand_ofat(state, &factors);
	else if (mode == 1 || (mode == 3 && !arms.value))
		expand_grid(state, &factors);
	else
		expand_list(state, &arms, true);
	expand_list(state, &include, false);
	if (reader_ok(root->reader) && experiment->arms[experiment->n_arms - 1].kind != ARM_CANDIDATE)
		place_fail(&matrix, false, "no candidate differs from the baseline");
	if (!reader_ok(root->reader))
		return;
	report_unused_exclusions(state);
	if (state->n_forbidden)
		add_notice(state,
			reader_print(root->reader, "matrix.constraints leave out %d setting%s", state->n_forbidden,
				state->n_forbidden == 1 ? "" : "s"));
	experiment_assign_engines(experiment, root);
	for (int i = 0; i < experiment->n_arms; i++)
		hash_configuration(experiment, &experiment->arms[i]);
}

void experiment_keep_only(struct experiment *experiment, struct reader *reader, const char *only)
{
	struct text names = {0};
	int kept = 0;
	for (int i = 0; i < experiment->n_arms; i++) {
		struct arm *arm = &experiment->arms[i];
		bool keep =
			arm->kind != ARM_CANDIDATE || text_equal(arm->name, only) || text_equal(changes_name(reader, arm), only);
		if (arm->kind == ARM_CANDIDATE)
			text_printf(&names, "%s%s", names.len ? ", " : "", arm->name);
		if (keep)
			experiment->arms[kept++] = *arm;
	}
	experiment->n_arms = kept;
	if (experiment->arms[kept - 1].kind != ARM_CANDIDATE)
		err_set(reader->err, STATUS_INPUT, "--only %s: no such arm; there are %s", only, text_str(&names));
	text_release(&names);
}
