/* Reads arguments of filters and methods by their parameters, and has those that are both. */
#include "engine/jinja_apply.h"

#include <string.h>

#include "engine/jinja_text.h"

const struct jinja_entry *jinja_find(const struct jinja_entry *entries, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(name, entries[i].name) == 0)
			return &entries[i];
	return NULL;
}

/* The parameter that an argument is for; JINJA_PARAMETERS_MAX: there is none. */
static size_t parameter_of(const struct jinja_entry *entry, const char *name, size_t position)
{
	size_t at = name ? 0 : position;

	while (name && at < JINJA_PARAMETERS_MAX && entry->parameters[at] && strcmp(name, entry->parameters[at]) != 0)
		at++;
	return at < JINJA_PARAMETERS_MAX && entry->parameters[at] ? at : JINJA_PARAMETERS_MAX;
}

static enum status bind(struct rendering *r, const struct jinja_entry *entry, const char *what, struct jinja_use *use)
{
	size_t position = 0;

	for (size_t i = 0; !entry->takes_any && i < use->written->count; i++) {
		const char *name = use->written->names[i];
		size_t at = parameter_of(entry, name, position);

		position += name == NULL;
		if (at == JINJA_PARAMETERS_MAX)
			return err_set(r->err, STATUS_INPUT, "%s '%.40s' has an argument that is not supported", what, entry->name);
		use->arguments[at] = use->written->values[i];
	}
	return STATUS_OK;
}

enum status jinja_apply(struct rendering *r, const struct jinja_entry *entry, const char *what, const char *name,
	struct value value, const struct arguments *arguments, struct value *out)
{
	struct jinja_use use = {.value = value, .written = arguments};

	if (!entry || !(entry->kinds & JINJA_OF(value.kind)))
		return err_set(r->err, STATUS_INPUT, "%s '%.40s' is not supported here", what, name);
	if (bind(r, entry, what, &use) != STATUS_OK || jinja_spend(r, jinja_cost(value, use.arguments[0])) != STATUS_OK)
		return STATUS_INPUT;
	return entry->run(r, &use, out);
}

/* ---- both filters and methods ---- */

enum status jinja_use_upper(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_UPPER);
	return STATUS_OK;
}

enum status jinja_use_lower(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_LOWER);
	return STATUS_OK;
}

enum status jinja_use_capitalize(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_change_case(&r->arena, use->value, CASE_CAPITALIZE);
	return STATUS_OK;
}

enum status jinja_use_strip(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = jinja_strip(use->value, use->arguments[0], true, true);
	return STATUS_OK;
}

enum status jinja_use_replace(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	struct value from = use->arguments[0], to = use->arguments[1], count = use->arguments[2];

	if (from.kind != VALUE_STRING || to.kind != VALUE_STRING)
		return err_set(r->err, STATUS_INPUT, "replace needs two strings");
	if (count.kind != VALUE_UNDEFINED && count.kind != VALUE_NONE && count.kind != VALUE_INT)
		return err_set(r->err, STATUS_INPUT, "replace needs a number as count");
	return jinja_replace(r, use->value, from, to, count.kind == VALUE_INT ? count.number : -1, out);
}

enum status jinja_use_keys(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	const struct value_dict *dict = use->value.dict;

	*out = value_list(&r->arena);
	for (size_t i = 0; i < dict->count; i++)
		value_append(&r->arena, *out, dict->keys[i]);
	return STATUS_OK;
}

enum status jinja_use_items(struct rendering *r, const struct jinja_use *use, struct value *out)
{
	*out = use->value.kind == VALUE_DICT ? jinja_items(r, use->value) : value_list(&r->arena);
	return STATUS_OK;
}
