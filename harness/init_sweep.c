/* From swept keys to knobs. See init_sweep.h. */
#include "harness/init_sweep.h"

#include <stdio.h>
#include <string.h>

#include "harness/experiment.h"
#include "harness/target.h"

struct sweep {
	struct json *params, *flags, *arms;
	const struct target_ops *target;
	const char *source;
};

/* The switch that a key stands for. False when it is too long to be one. */
static bool switch_of_key(const char *key, char name[64])
{
	int len = snprintf(name, 64, "--%s", key);
	for (char *c = name; *c; c++)
		*c = *c == '_' ? '-' : *c;
	return len < 64;
}

/* The knob that has the switch: one that the command line set already, or one of the key's own name. */
static void find_knob(struct sweep *sweep, const char *key, const char *name, char knob[64])
{
	char other[64];
	for (void *it = json_first(sweep->params); it; it = json_next(sweep->params, it)) {
		const char *flag = json_text(json_get(sweep->flags, json_iterator_key(it)));
		bool known = flag || sweep->target->switch_of(sweep->target, json_iterator_key(it), other);
		if (known && text_equal(flag ? flag : other, name)) {
			snprintf(knob, 64, "%s", json_iterator_key(it));
			return;
		}
	}
	snprintf(knob, 64, "%s", key);
	for (char *c = knob; *c; c++)
		*c = *c == '-' ? '_' : *c;
	if (!sweep->target->switch_of(sweep->target, knob, other) || !text_equal(other, name))
		json_set(sweep->flags, knob, json_new_string(name));
	json_set(sweep->params, knob, json_new_null());
}

static enum status add_arm(struct sweep *sweep, const char *arm_name, const struct json *entry, size_t number, struct err *err)
{
	if (json_kind_of(entry) != JSON_KIND_OBJECT)
		return err_set(err, STATUS_INPUT, "%s: entry %zu: must be an object of switches, is %s", sweep->source, number,
			json_kind_name(json_kind_of(entry)));
	struct json *arm = json_new_object();
	if (arm_name)
		json_set(arm, "name", json_new_string(arm_name));
	for (void *it = json_first(entry); it; it = json_next(entry, it)) {
		char name[64], knob[64];
		if (text_equal(json_iterator_key(it), "_benchmark_name")) {
			json_set(arm, "name", json_clone(json_iterator_value(it)));
			continue;
		}
		if (!json_iterator_key(it)[0] || !switch_of_key(json_iterator_key(it), name)) {
			json_free(arm);
			return err_set(err, STATUS_INPUT, "%s: entry %zu: '%.80s' cannot be a switch", sweep->source, number,
				json_iterator_key(it));
		}
		find_knob(sweep, json_iterator_key(it), name, knob);
		json_set(arm, knob, json_clone(json_iterator_value(it)));
	}
	json_append(sweep->arms, arm);
	return STATUS_OK;
}

enum status init_apply_sweep(struct json *document, const struct json *entries, const char *source, struct err *err)
{
	struct json *engine = json_get(document, "engine"), *baseline = json_get(document, "baseline");
	enum json_kind kind = json_kind_of(entries);
	size_t number = 0;
	if ((kind != JSON_KIND_ARRAY && kind != JSON_KIND_OBJECT) || json_count(entries) == 0)
		return err_set(
			err, STATUS_INPUT, "%s: must be a list of objects, or an object of named ones, and not empty", source);
	if (!baseline)
		json_set(document, "baseline", baseline = json_new_object());
	if (!json_get(baseline, "params"))
		json_set(baseline, "params", json_new_object());
	if (!json_get(engine, "flags"))
		json_set(engine, "flags", json_new_object());
	struct sweep sweep = {.params = json_get(baseline, "params"),
		.flags = json_get(engine, "flags"),
		.arms = json_new_array(),
		.target = target_by_name(json_text(json_get(engine, "adapter"))),
		.source = source};
	enum status status = STATUS_OK;
	for (size_t i = 0; kind == JSON_KIND_ARRAY && i < json_count(entries) && !status; i++)
		status = add_arm(&sweep, NULL, json_at(entries, i), ++number, err);
	for (void *it = kind == JSON_KIND_OBJECT ? json_first(entries) : NULL; it && !status; it = json_next(entries, it))
		status = add_arm(&sweep, json_iterator_key(it), json_iterator_value(it), ++number, err);
	struct json *matrix = json_new_object();
	json_set(matrix, "mode", json_new_string("list"));
	json_set(matrix, "arms", sweep.arms);
	json_set(document, "matrix", matrix);
	if (json_count(sweep.flags) == 0)
		json_remove(engine, "flags");
	return status;
}
