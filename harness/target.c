/* From an arm to an argument vector and an environment, and what all kinds of engine share. */
#include "harness/target.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "harness/target_common.h"

void string_vector_add_owned(struct string_vector *vector, char *item)
{
	/* Room is kept for the final NULL that execve needs. */
	vector->items = mem_realloc(vector->items, vector->count + 2, sizeof(vector->items[0]));
	vector->items[vector->count++] = item;
	vector->items[vector->count] = NULL;
}

void string_vector_add(struct string_vector *vector, const char *item)
{
	string_vector_add_owned(vector, mem_strdup(item));
}

void string_vector_release(struct string_vector *vector)
{
	for (size_t i = 0; i < vector->count; i++)
		mem_free(vector->items[i]);
	mem_free(vector->items);
	memset(vector, 0, sizeof(*vector));
}

char *string_vector_json(const struct string_vector *vector)
{
	struct json *array = json_new_array();
	for (size_t i = 0; i < vector->count; i++)
		json_append(array, json_new_string(vector->items[i]));
	struct text text = {0};
	json_write(array, JSON_STYLE_COMPACT, &text);
	json_free(array);
	return text_take(&text);
}

const struct target_ops *target_by_name(const char *name)
{
	static const struct target_ops *const kinds[] = {
		&target_builtin,
		&target_llamacpp,
		&target_vllm,
		&target_sglang,
		&target_command_line,
		&target_attach,
	};
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (text_equal(kinds[i]->name, name))
			return kinds[i];
	return NULL;
}

const struct target_ops *target_of_engine(const struct engine_spec *engine)
{
	const struct target_ops *target = target_by_name(engine->adapter);
	for (size_t i = 0; i < engine->command.count && target == &target_llamacpp; i++)
		if (text_starts_with(engine->command.items[i], "llama_cpp.server")) /* python -m llama_cpp.server */
			target = &target_llamacpp_python;
	return target;
}

/* The choice among engines is made by launching one of them, not by a switch. */
static bool chooses_engine(const struct arm *arm, const struct knob_value *setting)
{
	return arm->engine && text_equal(setting->knob, EXPERIMENT_ENGINE_KNOB);
}

void target_value_text(const struct json *value, struct text *out)
{
	const char *string = json_text(value);
	if (string)
		text_append(out, string, json_text_len(value));
	else
		json_write(value, JSON_STYLE_COMPACT, out);
}

/* Appends word with ${MODEL} and ${PORT} replaced. */
static enum status expand(const struct target_launch *launch, const char *word, struct text *out, struct err *err)
{
	while (*word) {
		if (text_starts_with(word, "${MODEL}")) {
			const char *model = arm_engine(launch->experiment, launch->arm)->model;
			if (!model)
				return err_set(err, STATUS_INPUT,
					"engine.command uses ${MODEL}, but no model is named (engine.model or --model)");
			text_append_str(out, model);
			word += strlen("${MODEL}");
		} else if (launch->port > 0 && text_starts_with(word, "${PORT}")) {
			text_printf(out, "%d", launch->port);
			word += strlen("${PORT}");
		} else {
			text_append_char(out, *word++);
		}
	}
	return STATUS_OK;
}

static enum status add_expanded(
	const struct target_launch *launch, const char *prefix, const char *word, struct string_vector *out, struct err *err)
{
	struct text text = {0};
	text_append_str(&text, prefix);
	enum status status = expand(launch, word, &text, err);
	string_vector_add_owned(out, text_take(&text));
	return status;
}

static bool switch_of_setting(const struct target_ops *ops, const struct engine_spec *engine, const char *knob, char name[64])
{
	for (size_t i = 0; i < engine->n_flags; i++) {
		if (!text_equal(engine->flags[i].name, knob))
			continue;
		snprintf(name, 64, "%s", engine->flags[i].value);
		return true;
	}
	return ops->switch_of(ops, knob, name);
}

static void add_switch(struct string_vector *out, const struct target_ops *ops, const char *name, const struct json *value)
{
	struct text text = {0};
	switch (json_kind_of(value)) {
	case JSON_KIND_NULL:
		break;
	case JSON_KIND_BOOL:
		if (ops->booleans_as_words) {
			string_vector_add(out, name);
			string_vector_add(out, json_bool(value, false) ? "true" : "false");
		} else if (json_bool(value, false))
			string_vector_add(out, name);
		else if (!ops->false_is_silent && text_starts_with(name, "--")) {
			text_printf(&text, "--no-%s", name + 2);
			string_vector_add_owned(out, text_take(&text));
		}
		break;
	case JSON_KIND_ARRAY:
		string_vector_add(out, name);
		for (size_t i = 0; i < json_count(value); i++) {
			target_value_text(json_at(value, i), &text);
			string_vector_add_owned(out, text_take(&text));
		}
		break;
	default:
		string_vector_add(out, name);
		target_value_text(value, &text);
		string_vector_add_owned(out, text_take(&text));
	}
	text_release(&text);
}

static bool mentions_port(const struct engine_spec *engine)
{
	for (size_t i = 0; i < engine->command.count; i++)
		if (strstr(engine->command.items[i], "${PORT}"))
			return true;
	for (size_t i = 0; i < engine->n_env; i++)
		if (strstr(engine->env[i].value, "${PORT}"))
			return true;
	return false;
}

static enum status add_command(
	const struct target_launch *launch, const struct target_ops *ops, struct string_vector *out, struct err *err)
{
	const struct engine_spec *engine = arm_engine(launch->experiment, launch->arm);
	enum status status = STATUS_OK;
	if (engine->command.count == 0) {
		if (ops != &target_builtin)
			return err_set(err, STATUS_INPUT, "engine.command is needed for adapter '%s'", ops->name);
		string_vector_add(out, launch->program ? launch->program : "verdict-engine");
		string_vector_add(out, "serve");
		string_vector_add(out, "--model");
		status = add_expanded(launch, "", "${MODEL}", out, err);
	}
	if (engine->command.count > TARGET_ARGUMENTS_MAX)
		return err_set(err, STATUS_INPUT, "engine.command has %zu words, at most %d are taken", engine->command.count,
			TARGET_ARGUMENTS_MAX);
	for (size_t i = 0; i < engine->command.count && !status; i++)
		status = add_expanded(launch, "", engine->command.items[i], out, err);
	if (!status && !mentions_port(engine)) {
		char port[16] = "${PORT}";
		if (launch->port > 0)
			snprintf(port, sizeof(port), "%d", launch->port);
		ops->add_address(out, port);
	}
	return status;
}

enum status target_command(const struct target_launch *launch, struct string_vector *out, struct err *err)
{
	const struct engine_spec *engine = arm_engine(launch->experiment, launch->arm);
	const struct target_ops *ops = target_of_engine(engine);
	if (!ops)
		return err_set(err, STATUS_INPUT, "unknown adapter '%s'", engine->adapter);
	if (!ops->launches)
		return STATUS_OK;
	enum status status = add_command(launch, ops, out, err);
	for (size_t i = 0; i < launch->arm->n_settings && !status; i++) {
		const struct knob_value *setting = &launch->arm->settings[i];
		char name[64];
		if (chooses_engine(launch->arm, setting))
			continue;
		if (!switch_of_setting(ops, engine, setting->knob, name))
			status = err_set(err, STATUS_INPUT, "knob '%s' has no switch: name one in engine.flags", setting->knob);
		else if (!text_starts_with(name, TARGET_VARIABLE))
			add_switch(out, ops, name, setting->value);
	}
	if (!status && out->count > TARGET_ARGUMENTS_MAX)
		status = err_set(err, STATUS_INPUT, "arm '%s' needs %zu arguments, at most %d are taken", launch->arm->name,
			out->count, TARGET_ARGUMENTS_MAX);
	return status;
}

void target_switches(const struct experiment *experiment, const struct arm *arm, struct string_vector *out)
{
	const struct engine_spec *engine = arm_engine(experiment, arm);
	for (size_t i = 0; i < arm->n_settings; i++) {
		const struct knob_value *setting = &arm->settings[i];
		char name[64];
		if (!chooses_engine(arm, setting) && json_kind_of(setting->value) != JSON_KIND_NULL &&
			switch_of_setting(target_of_engine(engine), engine, setting->knob, name) &&
			!text_starts_with(name, TARGET_VARIABLE))
			string_vector_add(out, name);
	}
}

/* Whether the experiment itself gives the variable of "NAME=value" a value. */
static bool sets_variable(const struct engine_spec *engine, const char *variable)
{
	size_t len = strcspn(variable, "=");
	for (size_t i = 0; i < engine->n_env; i++)
		if (strlen(engine->env[i].name) == len && strncmp(engine->env[i].name, variable, len) == 0)
			return true;
	return false;
}

enum status target_environment(const struct target_launch *launch, struct string_vector *out, struct err *err)
{
	const struct engine_spec *engine = arm_engine(launch->experiment, launch->arm);
	const struct target_ops *ops = target_of_engine(engine);
	if (!ops)
		return err_set(err, STATUS_INPUT, "unknown adapter '%s'", engine->adapter);
	enum status status = STATUS_OK;
	struct text prefix = {0};
	if (ops->settings_variable && !sets_variable(engine, ops->settings_variable))
		string_vector_add(out, ops->settings_variable);
	for (size_t i = 0; i < engine->n_env && !status; i++) {
		text_clear(&prefix);
		text_printf(&prefix, "%s=", engine->env[i].name);
		status = add_expanded(launch, text_str(&prefix), engine->env[i].value, out, err);
	}
	for (size_t i = 0; i < launch->arm->n_settings && !status; i++) {
		const struct knob_value *setting = &launch->arm->settings[i];
		char name[64];
		if (!switch_of_setting(ops, engine, setting->knob, name) || !text_starts_with(name, TARGET_VARIABLE))
			continue;
		if (json_kind_of(setting->value) == JSON_KIND_NULL)
			continue;
		text_clear(&prefix);
		text_printf(&prefix, "%s=", name + strlen(TARGET_VARIABLE));
		target_value_text(setting->value, &prefix);
		string_vector_add(out, text_str(&prefix));
	}
	text_release(&prefix);
	return status;
}

/* "8", 8 and 8.0 are one value; so are true, "true" and "1", and false and "0". */
static bool same_value(const struct json *requested, const struct json *effective)
{
	if (json_same(requested, effective))
		return true;
	struct text left = {0}, right = {0};
	target_value_text(requested, &left);
	target_value_text(effective, &right);
	double a, b;
	bool same = text_equal(text_str(&left), text_str(&right));
	if (!same && json_kind_of(effective) == JSON_KIND_BOOL)
		same = text_equal(text_str(&left), json_bool(effective, false) ? "1" : "0");
	if (!same && text_to_double(text_str(&left), &a) && text_to_double(text_str(&right), &b))
		same = fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b)); /* far below any step of a setting, above rounding in print */
	text_release(&left);
	text_release(&right);
	return same;
}

/* Whether text is word, or ends with it behind '_', '-' or '.', whatever the case. */
static bool ends_with_word(const char *text, const char *word)
{
	size_t len = strlen(text), word_len = strlen(word);
	return word_len > 0 && len >= word_len && strcasecmp(text + len - word_len, word) == 0 &&
		(len == word_len || strchr("_-.", text[len - word_len - 1]));
}

/* Engines tell a choice in full or in short ("mtp" for "deepseek_mtp"), or as a number that stands for its name. */
static bool same_member(const struct json *requested, const struct json *effective)
{
	const char *asked = json_text(requested), *told = json_text(effective);
	if (asked && told)
		return ends_with_word(asked, told) || ends_with_word(told, asked);
	bool comparable = json_kind_of(effective) != JSON_KIND_OBJECT && json_kind_of(effective) != JSON_KIND_ARRAY &&
		(!asked || text_to_double(asked, &(double){0}));
	return !effective || !comparable || same_value(requested, effective);
}

/* Of an object, the members that were asked for; those that the engine filled in or does not tell are its own affair. */
static bool same_setting(const struct target_ops *ops, const struct json *requested, const struct json *effective)
{
	bool same = same_value(requested, effective);
	if (!same && json_kind_of(requested) == JSON_KIND_OBJECT && json_kind_of(effective) == JSON_KIND_OBJECT) {
		same = true;
		for (void *at = json_first(requested); at && same; at = json_next(requested, at))
			same = same_member(json_iterator_value(at), json_get(effective, json_iterator_key(at)));
	}
	for (size_t i = 0; i < ops->n_aliases && !same; i++)
		same = text_equal(json_text(requested), ops->aliases[i].name) &&
			text_equal(json_text(effective), ops->aliases[i].value);
	return same;
}

/* The value that the engine tells of a knob; NULL: none. */
static const struct json *value_told(
	const struct target_ops *ops, const struct engine_spec *engine, const struct json *config, const char *knob)
{
	for (size_t i = 0; i < engine->n_flags; i++)
		if (text_equal(engine->flags[i].name, knob)) {
			const struct json *value = target_effective_of_switch(config, engine->flags[i].value);
			return value ? value : ops->effective(ops, config, knob);
		}
	return ops->effective(ops, config, knob);
}

bool target_settings_active(const struct target_ops *ops, const struct engine_spec *engine, const struct arm *arm,
	const struct json *config, char reason[512])
{
	for (size_t i = 0; i < arm->n_settings; i++) {
		const struct knob_value *setting = &arm->settings[i];
		if (json_kind_of(setting->value) == JSON_KIND_NULL || text_equal(json_text(setting->value), "auto") ||
			chooses_engine(arm, setting))
			continue;
		const struct json *effective = value_told(ops, engine, config, setting->knob);
		if (!effective && ops->identity != TARGET_IDENTITY_NONCE)
			continue;
		if (!effective) {
			snprintf(reason, 512, "inactive: the engine does not report %s", setting->knob);
			return false;
		}
		if (same_setting(ops, setting->value, effective))
			continue;
		struct text text = {0};
		target_value_text(effective, &text);
		snprintf(reason, 512, "inactive: %s=%s was asked, %s is in effect", setting->knob, setting->text, text_str(&text));
		text_release(&text);
		return false;
	}
	return true;
}
