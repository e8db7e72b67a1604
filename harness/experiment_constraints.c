/* Reads "matrix.constraints", relations between knobs that every arm must keep, and "matrix.monotone_oom". */
#include "harness/experiment_internal.h"

#include <math.h>
#include <string.h>

static const struct json *value_of(const struct arm *arm, const char *knob)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (text_equal(arm->settings[i].knob, knob))
			return arm->settings[i].value;
	return NULL;
}

/* A number, the value of a knob, or the product of a list of either; NaN where one of them has no number, such as null or "auto".
 */
static double operand(const struct arm *arm, const struct json *side)
{
	if (json_is_number(side))
		return json_number(side, NAN);
	if (json_text(side))
		return json_number(value_of(arm, json_text(side)), NAN);
	double product = 1;
	for (size_t i = 0; i < json_count(side); i++)
		product *= operand(arm, json_is_number(json_at(side, i)) || json_text(json_at(side, i)) ? json_at(side, i) : NULL);
	return product;
}

enum relation { RELATION_AT_MOST, RELATION_AT_LEAST, RELATION_EQUAL, RELATION_NOT_EQUAL, RELATION_DIVIDES };
static const char *const relation_names[] = {"at_most", "at_least", "equal", "not_equal", "divides", NULL};

static bool holds(enum relation relation, double left, double right)
{
	switch (relation) {
	case RELATION_AT_MOST:
		return left <= right;
	case RELATION_AT_LEAST:
		return left >= right;
	case RELATION_EQUAL:
		return left == right;
	case RELATION_NOT_EQUAL:
		return left != right;
	default:
		return left != 0 && fmod(right, left) == 0;
	}
}

bool experiment_keeps_constraint(const struct arm *arm, const struct json *constraint)
{
	const struct json *when = json_get(constraint, "when"), *require = json_get(constraint, "require");
	if (when && !experiment_arm_matches(arm, when))
		return true;
	if (require)
		return experiment_arm_matches(arm, require);
	double left = operand(arm, json_get(constraint, "left")), right = operand(arm, json_get(constraint, "right"));
	int relation = 0;
	while (relation_names[relation] && !text_equal(relation_names[relation], json_text(json_get(constraint, "is"))))
		relation++;
	/* A knob that is left to the engine breaks no relation that we could know of. */
	return isnan(left) || isnan(right) || holds((enum relation)relation, left, right);
}

static void check_operand(const struct experiment *experiment, const struct place *place)
{
	if (json_is_number(place->value))
		return;
	if (json_kind_of(place->value) == JSON_KIND_ARRAY && json_count(place->value)) {
		for (size_t i = 0; i < json_count(place->value); i++) {
			struct place item = place_at(place, i);
			if (json_kind_of(item.value) == JSON_KIND_ARRAY)
				place_fail(&item, false, "must be a knob or a number");
			else
				check_operand(experiment, &item);
		}
	} else if (!json_text(place->value)) {
		place_fail(place, false, "must be a knob, a number, or a list of them to be multiplied");
	} else if (!value_of(&experiment->arms[0], json_text(place->value))) {
		place_fail(place, false, "'%s' is no knob of this experiment", json_text(place->value));
	}
}

static void check_constraint(const struct experiment *experiment, const struct place *place)
{
	if (!place_section(place, SECTION_CONSTRAINT)) {
		place_fail(place, false, "must be an object");
		return;
	}
	struct place when = place_get(place, "when"), require = place_get(place, "require"), left = place_get(place, "left"),
		     right = place_get(place, "right");
	bool relates = left.value && right.value && json_get(place->value, "is");
	bool any = left.value || right.value || json_get(place->value, "is");
	if (require.value ? any || !when.value : !relates) {
		place_fail(place, false, "must have left, is and right, or when and require");
		return;
	}
	if (when.value)
		experiment_check_assignment(experiment, &when, NULL);
	if (require.value)
		experiment_check_assignment(experiment, &require, NULL);
	if (relates) {
		place_choice(place, "is", relation_names, 0);
		check_operand(experiment, &left);
		check_operand(experiment, &right);
	}
	if (reader_ok(place->reader) && !experiment_keeps_constraint(&experiment->arms[0], place->value))
		place_fail(place, false, "the baseline breaks this constraint");
}

void experiment_read_constraints(const struct experiment *experiment, const struct place *constraints)
{
	if (!place_is(constraints, JSON_KIND_ARRAY))
		return;
	for (size_t i = 0; i < json_count(constraints->value) && reader_ok(constraints->reader); i++) {
		struct place item = place_at(constraints, i);
		check_constraint(experiment, &item);
	}
}

void experiment_read_monotone(struct experiment *experiment, const struct place *matrix)
{
	struct place place = place_get(matrix, "monotone_oom");
	if (!place_is(&place, JSON_KIND_OBJECT))
		return;
	for (void *it = json_first(place.value); it && reader_ok(place.reader); it = json_next(place.value, it)) {
		struct place item = place_get(&place, json_iterator_key(it));
		const char *direction = json_text(item.value);
		if (!value_of(&experiment->arms[0], json_iterator_key(it)))
			place_fail(&item, true, "'%s' is no knob of this experiment", json_iterator_key(it));
		else if (!text_equal(direction, "up") && !text_equal(direction, "down"))
			place_fail(&item, false, "must be \"up\" (larger values ask more memory) or \"down\"");
		else
			experiment->monotone[experiment->n_monotone++] = (struct monotone_knob){
				reader_print(place.reader, "%s", json_iterator_key(it)), text_equal(direction, "up")};
	}
}
