/* Documents made from documents. See greedy.h. */
#include "harness/greedy.h"

static struct json *settings_of(const struct arm *arm)
{
	struct json *settings = json_new_object();
	for (size_t i = 0; i < arm->n_settings; i++)
		json_set(settings, arm->settings[i].knob, json_clone(arm->settings[i].value));
	return settings;
}

/* A member that is an object, made where it is missing. */
static struct json *section(struct json *document, const char *key)
{
	if (!json_get(document, key))
		json_set(document, key, json_new_object());
	return json_get(document, key);
}

static void set_name(struct json *document, const char *name, const char *what, int number)
{
	struct text text = {0};
	text_printf(&text, "%s, %s", name, what);
	if (number)
		text_printf(&text, " %d", number);
	json_set(document, "name", json_new_string(text_str(&text)));
	text_release(&text);
}

struct json *greedy_next(const struct experiment *stage, int winner, const char *name, int number)
{
	const struct arm *arm = &stage->arms[winner];
	struct json *document = json_clone(stage->document), *matrix = section(document, "matrix");
	struct json *factors = json_get(matrix, "factors");
	json_set(section(document, "baseline"), "params", settings_of(arm));
	for (size_t i = 0; i < arm->n_changed; i++)
		json_remove(factors, arm->changed[i].knob);
	json_remove(matrix, "include"); /* combinations named for the first baseline */
	set_name(document, name, "stage", number);
	if (json_count(factors))
		return document;
	json_free(document);
	return NULL;
}

struct json *greedy_final(const struct json *first, const struct experiment *stage, int winner, const char *name)
{
	struct json *document = json_clone(first), *matrix = json_new_object(), *arms = json_new_array();
	struct json *protocol = section(document, "protocol"), *params = json_new_object();
	struct json *reached = settings_of(&stage->arms[winner]);
	/* The first baseline holds every knob, those that came with a factor included. */
	const struct json *written = json_get(section(document, "baseline"), "params"),
			  *factors = json_get(json_get(first, "matrix"), "factors");
	for (void *it = json_first(reached); it; it = json_next(reached, it)) {
		const struct json *value = json_get(written, json_iterator_key(it)),
				  *factor = json_get(factors, json_iterator_key(it));
		const struct json *start = value                   ? value
			: json_kind_of(factor) == JSON_KIND_OBJECT ? json_get(factor, "from")
								   : json_at(factor, 0);
		json_set(params, json_iterator_key(it), start ? json_clone(start) : json_new_null());
	}
	json_set(json_get(document, "baseline"), "params", params);
	json_set(reached, "name", json_new_string("final"));
	json_append(arms, reached);
	json_set(matrix, "mode", json_new_string("list"));
	json_set(matrix, "arms", arms);
	const struct json *twin = json_get(json_get(first, "matrix"), "aa_twin");
	if (twin)
		json_set(matrix, "aa_twin", json_clone(twin));
	json_set(document, "matrix", matrix);
	json_remove(protocol, "looks");
	json_remove(protocol, "budget_launches"); /* the search left room for this */
	json_remove(protocol, "budget_s");
	json_set(protocol, "blocks", json_new_integer(stage->rules.confirm_winner_blocks));
	json_set(protocol, "max_blocks", json_new_integer(stage->rules.confirm_winner_blocks));
	json_set(section(document, "verdict"), "confirm_winner_blocks", json_new_integer(0));
	set_name(document, name, "final", 0);
	return document;
}
