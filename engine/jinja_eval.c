/* Evaluates expressions of templates. Recursion is as deep as the parser let expressions be. */
#include <string.h>

#include "engine/jinja_text.h"

/* Guesses: a prompt of a million tokens needs thousands of steps and some times its own size of memory. */
#define STEPS_MAX 20000000
#define STEP_UNITS 16 /* guess: going over so many bytes or names takes less than a step */
#define ARENA_BYTES_MAX ((size_t)256 << 20)

#define SLICE_STEP_MAX 1000000 /* guess */
#define RUN_DEPTH_MAX 400 /* guess: a level takes up to 2 KB of the stack; published macros call themselves some times */

enum status jinja_spend(struct rendering *r, size_t units)
{
	r->steps += 1 + units / STEP_UNITS;
	if (r->steps > STEPS_MAX || r->arena.used_bytes > ARENA_BYTES_MAX)
		return err_set(r->err, STATUS_INPUT, "it takes too many steps or too much memory");
	return STATUS_OK;
}

static enum status evaluate_arguments(struct rendering *r, const struct expression *e, struct arguments *out)
{
	out->count = e->n_arguments;
	for (size_t i = 0; i < e->n_arguments; i++) {
		out->names[i] = e->argument_names[i];
		if (jinja_evaluate(r, e->arguments[i], &out->values[i]) != STATUS_OK)
			return STATUS_INPUT;
	}
	return STATUS_OK;
}

struct value jinja_argument(const struct arguments *arguments, size_t index, const char *name)
{
	size_t position = 0;

	for (size_t i = 0; i < arguments->count; i++) {
		if (arguments->names[i] ? name && strcmp(arguments->names[i], name) == 0 : position++ == index)
			return arguments->values[i];
	}
	return (struct value){0};
}

/* The innermost of that name, even where its value is not defined. */
static enum status look_up(struct rendering *r, const char *name, struct value *out)
{
	size_t len = strlen(name), names = r->globals.dict->count;
	bool found = false;

	*out = (struct value){0};
	for (size_t i = r->n_scopes; i > r->first_scope && !found; i--) {
		found = value_find(r->scopes[i - 1], name, len, out);
		names += r->scopes[i - 1].dict->count;
	}
	if (!found)
		found = value_find(r->globals, name, len, out);
	if (!found && jinja_knows_function(name)) /* a function is something that is defined */
		*out = value_function(name);
	return jinja_spend(r, names);
}

static enum status member(struct rendering *r, struct value object, const char *name, size_t len, struct value *out)
{
	if (object.kind == VALUE_UNDEFINED)
		return err_set(
			r->err, STATUS_INPUT, "'%.*s' is asked of something that is not defined", (int)(len < 60 ? len : 60), name);
	*out = value_get(object, name, len); /* of other kinds: undefined */
	return jinja_spend(r, object.kind == VALUE_DICT ? object.dict->count : 0);
}

static int64_t count_of(struct value object)
{
	return object.kind == VALUE_LIST ? (int64_t)object.list->count : jinja_characters(object);
}

static enum status evaluate_index(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value object = {0}, index = {0};

	if (jinja_evaluate(r, e->a, &object) != STATUS_OK || jinja_evaluate(r, e->b, &index) != STATUS_OK)
		return STATUS_INPUT;
	if (index.kind == VALUE_STRING)
		return member(r, object, index.bytes, index.len, out);
	if (index.kind != VALUE_INT || (object.kind != VALUE_LIST && object.kind != VALUE_STRING))
		return err_set(r->err, STATUS_INPUT, "an index is no number, or not into a list or a string");
	int64_t count = count_of(object), at = index.number < 0 ? index.number + count : index.number;

	*out = (struct value){0};
	if (at >= 0 && at < count)
		*out = object.kind == VALUE_LIST ? object.list->items[at] : jinja_pick(&r->arena, object, at, at + 1, 1);
	return jinja_spend(r, object.len);
}

/* A bound of a slice as Python clips it. */
static enum status slice_bound(struct rendering *r, const struct expression *e, int64_t count, int64_t missing, int64_t *out)
{
	struct value value = {0};

	if (e && jinja_evaluate(r, e, &value) != STATUS_OK)
		return STATUS_INPUT;
	if (value.kind != VALUE_UNDEFINED && value.kind != VALUE_NONE && value.kind != VALUE_INT)
		return err_set(r->err, STATUS_INPUT, "a bound of a slice is no number");
	int64_t bound = value.kind == VALUE_INT ? value.number : missing;
	bound = value.kind == VALUE_INT && bound < 0 ? bound + count : bound;
	*out = bound < -1 ? -1 : bound > count ? count : bound;
	return STATUS_OK;
}

static enum status evaluate_slice(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value object = {0}, step = value_int(1);
	int64_t begin = 0, end = 0;

	if (jinja_evaluate(r, e->a, &object) != STATUS_OK || (e->d && jinja_evaluate(r, e->d, &step) != STATUS_OK))
		return STATUS_INPUT;
	if ((object.kind != VALUE_LIST && object.kind != VALUE_STRING) || step.kind != VALUE_INT || step.number == 0 ||
		step.number > SLICE_STEP_MAX || step.number < -SLICE_STEP_MAX)
		return err_set(r->err, STATUS_INPUT, "only slices of lists and strings are supported, in steps of 1 to %d",
			SLICE_STEP_MAX);
	bool backwards = step.number < 0;
	int64_t count = count_of(object);

	if (slice_bound(r, e->b, count, backwards ? count - 1 : 0, &begin) != STATUS_OK ||
		slice_bound(r, e->c, count, backwards ? -1 : count, &end) != STATUS_OK)
		return STATUS_INPUT;
	if (begin < 0 && !backwards)
		begin = 0;
	if (end < 0 && !backwards)
		end = 0;
	if (backwards && begin >= count)
		begin = count - 1;
	if (object.kind == VALUE_STRING) {
		*out = jinja_pick(&r->arena, object, begin, end, step.number);
		return jinja_spend(r, object.len);
	}
	*out = value_list(&r->arena);
	for (int64_t i = begin; backwards ? i > end : i < end; i += step.number)
		value_append(&r->arena, *out, object.list->items[i]);
	return STATUS_OK;
}

static enum status evaluate_call(struct rendering *r, const struct expression *e, struct value *out)
{
	struct arguments arguments = {.count = 0};
	struct value object = {0};

	if (evaluate_arguments(r, e, &arguments) != STATUS_OK)
		return STATUS_INPUT;
	if (e->a->kind == EXPRESSION_NAME) {
		if (look_up(r, e->a->name, &object) != STATUS_OK)
			return STATUS_INPUT;
		if (object.kind == VALUE_MACRO)
			return jinja_macro(r, object.macro, &arguments, out);
		if (object.kind == VALUE_FUNCTION)
			return jinja_function(r, object.bytes, &arguments, out);
		return object.kind == VALUE_UNDEFINED
			? err_set(r->err, STATUS_INPUT, "'%.40s' is undefined", e->a->name)
			: err_set(r->err, STATUS_INPUT, "'%s' object is not callable", value_type_name(object));
	}
	if (e->a->kind != EXPRESSION_MEMBER)
		return err_set(r->err, STATUS_INPUT, "something that is no function is called");
	if (jinja_evaluate(r, e->a->a, &object) != STATUS_OK)
		return STATUS_INPUT;
	return jinja_method(r, object, e->a->name, &arguments, out);
}

static enum status evaluate_applied(struct rendering *r, const struct expression *e, struct value *out)
{
	struct arguments arguments = {.count = 0};
	struct value value = {0};
	bool truth = false;

	if (jinja_evaluate(r, e->a, &value) != STATUS_OK || evaluate_arguments(r, e, &arguments) != STATUS_OK)
		return STATUS_INPUT;
	if (e->kind == EXPRESSION_FILTER)
		return jinja_filter(r, e->name, value, &arguments, out);
	enum status status = jinja_test(r, e->name, value, &arguments, &truth);
	*out = value_bool(truth);
	return status;
}

/* and, or: the second only where the first does not decide; the value is that of the one that did. */
static enum status evaluate_binary(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value a = {0}, b = {0};

	if (jinja_evaluate(r, e->a, &a) != STATUS_OK)
		return STATUS_INPUT;
	bool is_and = strcmp(e->name, "and") == 0;
	if (is_and || strcmp(e->name, "or") == 0) {
		*out = a;
		return value_is_true(a) == is_and ? jinja_evaluate(r, e->b, out) : STATUS_OK;
	}
	if (jinja_evaluate(r, e->b, &b) != STATUS_OK)
		return STATUS_INPUT;
	return jinja_binary(r, e->name, a, b, out);
}

static enum status evaluate_choice(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value condition = {0};

	if (jinja_evaluate(r, e->b, &condition) != STATUS_OK)
		return STATUS_INPUT;
	*out = (struct value){0};
	if (value_is_true(condition))
		return jinja_evaluate(r, e->a, out);
	return e->c ? jinja_evaluate(r, e->c, out) : STATUS_OK;
}

static enum status evaluate_made(struct rendering *r, const struct expression *e, struct value *out)
{
	struct arguments items = {.count = 0};

	if (evaluate_arguments(r, e, &items) != STATUS_OK)
		return STATUS_INPUT;
	*out = e->kind == EXPRESSION_LIST ? value_list(&r->arena) : value_dict(&r->arena);
	for (size_t i = 0; i < items.count; i++) {
		if (e->kind == EXPRESSION_LIST)
			value_append(&r->arena, *out, items.values[i]);
		else
			value_set(&r->arena, *out, items.names[i], strlen(items.names[i]), items.values[i]);
	}
	return STATUS_OK;
}

static enum status evaluate_unary(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value value = {0};

	if (jinja_evaluate(r, e->a, &value) != STATUS_OK)
		return STATUS_INPUT;
	if (e->kind == EXPRESSION_NOT) {
		*out = value_bool(!value_is_true(value));
		return STATUS_OK;
	}
	if (value.kind == VALUE_FLOAT) {
		*out = (struct value){.kind = VALUE_FLOAT, .real = -value.real};
		return STATUS_OK;
	}
	if (value.kind != VALUE_INT || value.number == INT64_MIN)
		return err_set(r->err, STATUS_INPUT, "minus before something that is no number");
	*out = value_int(-value.number);
	return STATUS_OK;
}

static enum status evaluate(struct rendering *r, const struct expression *e, struct value *out)
{
	struct value object = {0};

	switch (e->kind) {
	case EXPRESSION_LITERAL:
		*out = e->literal;
		return STATUS_OK;
	case EXPRESSION_NAME:
		return look_up(r, e->name, out);
	case EXPRESSION_MEMBER:
		if (jinja_evaluate(r, e->a, &object) != STATUS_OK)
			return STATUS_INPUT;
		return member(r, object, e->name, strlen(e->name), out);
	case EXPRESSION_INDEX:
		return evaluate_index(r, e, out);
	case EXPRESSION_SLICE:
		return evaluate_slice(r, e, out);
	case EXPRESSION_CALL:
		return evaluate_call(r, e, out);
	case EXPRESSION_FILTER:
	case EXPRESSION_TEST:
		return evaluate_applied(r, e, out);
	case EXPRESSION_NOT:
	case EXPRESSION_MINUS:
		return evaluate_unary(r, e, out);
	case EXPRESSION_BINARY:
		return evaluate_binary(r, e, out);
	case EXPRESSION_CHOICE:
		return evaluate_choice(r, e, out);
	case EXPRESSION_LIST:
	case EXPRESSION_DICT:
		return evaluate_made(r, e, out);
	}
	return STATUS_INTERNAL;
}

enum status jinja_enter(struct rendering *r)
{
	return ++r->depth > RUN_DEPTH_MAX
		? err_set(r->err, STATUS_INPUT, "macros and expressions call one another deeper than %d levels", RUN_DEPTH_MAX)
		: STATUS_OK;
}

enum status jinja_evaluate(struct rendering *r, const struct expression *e, struct value *out)
{
	enum status status = jinja_enter(r);

	if (status == STATUS_OK)
		status = jinja_spend(r, 0);
	if (status == STATUS_OK)
		status = evaluate(r, e, out);
	r->depth--;
	return status;
}
