/* Reads the command line word by word: what a launch sets itself is left out, what is a knob becomes a setting, the rest stays. */
#include "harness/init.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "harness/init_engines.h"
#include "harness/target.h"

#define NAMES_MAX(array) (sizeof(array) / sizeof((array)[0]))

struct reading {
	const struct init_request *request;
	const struct init_engine *engine;
	size_t at; /* next word */
	const char *model; /* as given; NULL: none was found */
	struct json *command, *env, *params, *factors;
	struct text *notes;
};

static bool is_among(const char *const *names, size_t max, const char *word)
{
	for (size_t i = 0; i < max && names[i]; i++)
		if (text_equal(names[i], word))
			return true;
	return false;
}

static const char *base_name(const char *word)
{
	const char *slash = strrchr(word, '/');
	return slash ? slash + 1 : word;
}

/* --- which engine --------------------------------------------------------------------------------------------------- */

/* The engine whose program or module is the word at index; *last is the last word that names it. */
static const struct init_engine *engine_at(const struct init_request *request, size_t index, size_t *last)
{
	const char *word = request->words[index], *before = index ? request->words[index - 1] : "";
	for (size_t i = 0; i < init_engines_count; i++) {
		const struct init_engine *engine = &init_engines[i];
		bool program = is_among(engine->programs, NAMES_MAX(engine->programs), base_name(word));
		bool module = text_equal(before, "-m") && is_among(engine->modules, NAMES_MAX(engine->modules), word);
		if (!program && !module)
			continue;
		bool serve = engine->serves && index + 1 < request->n_words && text_equal(request->words[index + 1], "serve");
		*last = serve ? index + 1 : index;
		return engine;
	}
	return NULL;
}

static bool is_assignment(const char *word)
{
	const char *equals = strchr(word, '=');
	for (const char *c = word; equals && c < equals; c++)
		if (!isalnum((unsigned char)*c) && *c != '_')
			return false;
	return equals && equals > word && !isdigit((unsigned char)word[0]);
}

/* NAME=value words, also behind `env`, become variables of the experiment. */
static void read_assignments(struct reading *reading)
{
	const struct init_request *request = reading->request;
	size_t at = request->n_words && text_equal(base_name(request->words[0]), "env") ? 1 : 0;
	size_t first = at;
	while (at < request->n_words && is_assignment(request->words[at])) {
		const char *equals = strchr(request->words[at], '=');
		char *name = mem_strndup(request->words[at], (size_t)(equals - request->words[at]));
		json_set(reading->env, name, json_new_string(equals + 1));
		mem_free(name);
		at++;
	}
	reading->at = at > first ? at : 0;
}

/* Moves past the words that launch an engine and keeps them; reading->engine stays NULL where no word does. */
static void find_engine(struct reading *reading)
{
	const struct init_request *request = reading->request;
	size_t last = 0;
	for (size_t i = reading->at; i < request->n_words && !reading->engine; i++)
		reading->engine = engine_at(request, i, &last);
	for (; reading->engine && reading->at <= last; reading->at++)
		json_append(reading->command, json_new_string(request->words[reading->at]));
}

/* --- switches ------------------------------------------------------------------------------------------------------- */

/* A switch as its engine's table spells it: without "=value", with '-' for '_' (vLLM takes both). Caller frees. */
static char *switch_name(const char *word)
{
	char *name = mem_strndup(word, strcspn(word, "="));
	for (char *c = name; text_starts_with(name, "--") && *c; c++)
		if (*c == '_')
			*c = '-';
	return name;
}

static bool is_switch(const char *word)
{
	return word[0] == '-' && word[1] && !isdigit((unsigned char)word[1]) && word[1] != '.';
}

/* The value of the switch at reading->at, which is left behind. NULL: there is none. */
static const char *take_value(struct reading *reading)
{
	const char *word = reading->request->words[reading->at++], *equals = strchr(word, '=');
	if (equals)
		return equals + 1;
	return reading->at < reading->request->n_words ? reading->request->words[reading->at++] : NULL;
}

static const struct init_knob *find_knob(const struct init_engine *engine, const char *name, bool *off)
{
	for (size_t i = 0; i < engine->n_knobs; i++) {
		const struct init_knob *knob = &engine->knobs[i];
		*off = knob->kind == INIT_SWITCH && text_starts_with(name, "--no-") && text_equal(name + 5, knob->names[0] + 2);
		if (*off || is_among(knob->names, NAMES_MAX(knob->names), name))
			return knob;
	}
	return NULL;
}

/* Numbers and JSON objects as such, everything else as text: "auto", "0.90", "{\"method\": \"ngram\"}", "1GiB". */
static struct json *typed(const char *value)
{
	struct json *parsed = NULL;
	if (json_parse(value, strlen(value), "value", &parsed, NULL) == STATUS_OK &&
		(json_is_number(parsed) || json_kind_of(parsed) == JSON_KIND_OBJECT))
		return parsed;
	json_free(parsed);
	return json_new_string(value);
}

static enum status read_knob(struct reading *reading, const struct init_knob *knob, bool off, struct err *err)
{
	const char *word = reading->request->words[reading->at];
	const char *next = reading->at + 1 < reading->request->n_words ? reading->request->words[reading->at + 1] : NULL;
	bool alone =
		knob->kind == INIT_SWITCH || (knob->kind == INIT_MAYBE_VALUE && !strchr(word, '=') && (!next || is_switch(next)));
	const char *value = NULL;
	if (alone)
		reading->at++;
	else if (!(value = take_value(reading)))
		return err_set(err, STATUS_INPUT, "%s needs a value", word);
	json_set(reading->params, knob->knob, alone ? json_new_bool(!off) : typed(value));
	return STATUS_OK;
}

static void keep_word(struct reading *reading)
{
	json_append(reading->command, json_new_string(reading->request->words[reading->at++]));
}

static enum status read_model(struct reading *reading, const char *value, const char *word, struct err *err)
{
	if (!value)
		return err_set(err, STATUS_INPUT, "%s needs a value", word ? word : "the model");
	reading->model = value;
	json_append(reading->command, json_new_string("${MODEL}"));
	return STATUS_OK;
}

static enum status read_switch(struct reading *reading, const char *name, struct err *err)
{
	const struct init_engine *engine = reading->engine;
	const char *word = reading->request->words[reading->at];
	bool off = false;
	const struct init_knob *knob = find_knob(engine, name, &off);
	if (knob)
		return read_knob(reading, knob, off, err);
	if (is_among(engine->models, NAMES_MAX(engine->models), name)) {
		json_append(reading->command, json_new_string(name));
		return read_model(reading, take_value(reading), name, err);
	}
	if (is_among(engine->dropped, NAMES_MAX(engine->dropped), name)) {
		text_printf(reading->notes,
			"note: %s is left out: every launch gets a port of its own on this machine, and no key\n", name);
		return take_value(reading) ? STATUS_OK : err_set(err, STATUS_INPUT, "%s needs a value", word);
	}
	/* Unknown: it and what looks like its value stay as they are. */
	bool alone = strchr(word, '=') || is_among(engine->alone, NAMES_MAX(engine->alone), name);
	keep_word(reading);
	if (!alone && reading->at < reading->request->n_words && !is_switch(reading->request->words[reading->at]))
		keep_word(reading);
	return STATUS_OK;
}

static enum status read_words(struct reading *reading, struct err *err)
{
	enum status status = STATUS_OK;
	while (reading->at < reading->request->n_words && !status) {
		const char *word = reading->request->words[reading->at];
		if (is_switch(word)) {
			char *name = switch_name(word);
			status = read_switch(reading, name, err);
			mem_free(name);
		} else if (reading->engine->model_is_word && !reading->model) {
			reading->at++;
			status = read_model(reading, word, "the model", err);
		} else {
			keep_word(reading);
		}
	}
	return status;
}

/* --- candidates ----------------------------------------------------------------------------------------------------- */

static struct json *parse_list(const char *text)
{
	struct json *list = NULL;
	if (!text || json_parse(text, strlen(text), "candidates", &list, NULL) != STATUS_OK)
		list = json_new_array();
	return list;
}

static struct json *half_and_double(const struct json *value, const char *otherwise)
{
	int64_t number = json_int(value, 0);
	if (json_kind_of(value) == JSON_KIND_NULL)
		return parse_list(otherwise);
	struct json *list = json_new_array();
	if (number >= 2)
		json_append(list, json_new_integer(number / 2));
	if (number >= 1 && number < INT32_MAX)
		json_append(list, json_new_integer(number * 2));
	return list;
}

static struct json *numbers_of_cpus(int cpus)
{
	struct json *list = json_new_array();
	for (int n = cpus; n >= 1 && n >= cpus / 2; n = n > 1 ? n / 2 : 0)
		json_append(list, json_new_integer(n));
	return list;
}

/* Ranks on CPUs; those of GPUs add up by other means. */
static bool has_ranks(const struct reading *reading)
{
	return json_int(json_get(reading->params, "tp"), 1) > 1 &&
		!text_equal(json_text(json_get(reading->params, "device")), "cuda");
}

static struct json *candidates_of(const struct reading *reading, const struct init_knob *knob)
{
	const struct json *value = json_get(reading->params, knob->knob);
	if (knob->rule == INIT_HALF_DOUBLE)
		return half_and_double(value, knob->candidates);
	if (knob->rule == INIT_CPUS)
		return numbers_of_cpus(reading->request->cpus);
	bool wanted = knob->rule == INIT_ALWAYS || (knob->rule == INIT_WHEN_GIVEN && value) ||
		(knob->rule == INIT_RANKS && has_ranks(reading));
	/* An old llama-server's -fa takes no value: then leaving it out is the only other setting. */
	if (wanted && knob->kind == INIT_MAYBE_VALUE && json_kind_of(value) == JSON_KIND_BOOL)
		return parse_list("[null]");
	return parse_list(wanted ? knob->candidates : NULL);
}

/* Knobs with candidates get a value in the baseline even where the command line is silent: null, which leaves the switch out. */
static void add_factor(struct reading *reading, const struct init_knob *knob)
{
	struct json *listed = candidates_of(reading, knob), *kept = json_new_array();
	const struct json *value = json_get(reading->params, knob->knob);
	for (size_t i = 0; i < json_count(listed); i++) {
		const struct json *candidate = json_at(listed, i);
		bool is_baseline = value ? json_same(candidate, value) : json_kind_of(candidate) == JSON_KIND_NULL;
		if (!is_baseline)
			json_append(kept, json_clone(candidate));
	}
	json_free(listed);
	if (!json_count(kept)) {
		json_free(kept);
		return;
	}
	if (!value) {
		/* The built-in engine's default is known, and better said than implied. */
		bool known = text_equal(reading->engine->adapter, "builtin") && text_equal(knob->knob, "speculation");
		json_set(reading->params, knob->knob, known ? json_new_string("off") : json_new_null());
		if (known) {
			json_free(kept);
			kept = parse_list("[\"ngram\"]");
		}
	}
	json_set(reading->factors, knob->knob, kept);
}

/* Speculation that takes several switches is compared with none of them. */
static struct json *without_speculation(const struct reading *reading)
{
	struct json *arm = json_new_object(), *include = json_new_array();
	json_set(arm, "name", json_new_string("no-speculation"));
	for (void *it = json_first(reading->params); it; it = json_next(reading->params, it))
		if (text_starts_with(json_iterator_key(it), "specul"))
			json_set(arm, json_iterator_key(it), json_new_null());
	json_append(include, arm);
	return include;
}

/* --- the document --------------------------------------------------------------------------------------------------- */

static struct json *object_from(const char *text)
{
	struct json *object = NULL;
	return json_parse(text, strlen(text), "template", &object, NULL) == STATUS_OK ? object : json_new_object();
}

/* Switches that the adapter does not know under the knob's name. */
static struct json *flags_of(const struct reading *reading)
{
	const struct target_ops *target = target_by_name(reading->engine->adapter);
	struct json *flags = json_new_object();
	for (size_t i = 0; i < reading->engine->n_knobs; i++) {
		const struct init_knob *knob = &reading->engine->knobs[i];
		char name[64];
		bool known = target && target->switch_of(target, knob->knob, name) && text_equal(name, knob->names[0]);
		if (json_get(reading->params, knob->knob) && !known)
			json_set(flags, knob->knob, json_new_string(knob->names[0]));
	}
	return flags;
}

/* A command of `verdict-engine serve --model M` and knobs alone is what the adapter makes by itself, with the program beside ours.
 */
static bool needs_command(const struct reading *reading)
{
	return !text_equal(reading->engine->adapter, "builtin") || strchr(json_text(json_at(reading->command, 0)), '/') ||
		json_count(reading->command) != 4 || !reading->model;
}

static struct json *engine_section(const struct reading *reading)
{
	struct json *engine = json_new_object(), *ready = json_new_object(), *flags = flags_of(reading);
	struct json *env = reading->engine->env ? object_from(reading->engine->env) : json_new_object();
	for (void *it = json_first(reading->env); it; it = json_next(reading->env, it))
		json_set(env, json_iterator_key(it), json_clone(json_iterator_value(it)));
	json_set(engine, "adapter", json_new_string(reading->engine->adapter));
	if (needs_command(reading))
		json_set(engine, "command", json_clone(reading->command));
	if (reading->model)
		json_set(engine, "model", json_new_string(reading->model));
	if (json_count(flags))
		json_set(engine, "flags", json_clone(flags));
	if (json_count(env))
		json_set(engine, "env", json_clone(env));
	json_set(ready, "timeout_s", json_new_number(reading->engine->ready_timeout_s));
	json_set(engine, "ready", ready);
	json_free(flags);
	json_free(env);
	return engine;
}

/* "vllm-Llama-3.1-8B-Instruct" */
static struct json *make_name(const struct reading *reading)
{
	struct text name = {0};
	text_printf(&name, "%s%s%s", reading->engine->adapter, reading->model ? "-" : "",
		reading->model ? base_name(reading->model) : "");
	struct json *value = json_new_string(text_str(&name));
	text_release(&name);
	return value;
}

static struct json *make_document(const struct reading *reading)
{
	struct json *document = json_new_object(), *baseline = json_new_object(), *matrix = json_new_object();
	json_set(document, "schema", json_new_string("experiment/1"));
	json_set(document, "name", reading->request->name ? json_new_string(reading->request->name) : make_name(reading));
	json_set(document, "engine", engine_section(reading));
	json_set(baseline, "params", json_clone(reading->params));
	json_set(document, "baseline", baseline);
	json_set(matrix, "mode", json_new_string("ofat"));
	json_set(matrix, "factors", json_clone(reading->factors));
	if (text_equal(reading->engine->adapter, "sglang") && json_get(reading->params, "speculation"))
		json_set(matrix, "include", without_speculation(reading));
	json_set(document, "matrix", matrix);
	/* One stream shows latency, eight show batching. Texts, because random tokens misstate speculation. */
	struct json *workloads = json_new_array();
	json_append(workloads,
		object_from(
			"{\"name\": \"chat\", \"concurrency\": [1, 8], \"requests\": 32, \"endpoint\": \"/v1/chat/completions\", "
			"\"sampling\": {\"temperature\": 0, \"max_tokens\": 128}}"));
	json_set(document, "workloads", workloads);
	json_set(document, "protocol", object_from("{\"looks\": [3, 5, 8], \"runs_per_launch\": 2}"));
	json_set(document, "verdict",
		object_from("{\"primary\": {\"metric\": \"output_tps\", \"min_effect_pct\": 2}, \"constraints\": [{\"metric\": "
			    "\"ttft_ms_p90\", \"max_regress_pct\": 10}]}"));
	return document;
}

static enum status read_command(struct reading *reading, struct json **out, struct err *err)
{
	const struct init_request *request = reading->request;
	read_assignments(reading);
	find_engine(reading);
	if (!reading->engine)
		return err_set(err, STATUS_INPUT,
			"no engine is recognised in '%s%s'; give the words unquoted, as in: verdict init -- vllm serve MODEL (also "
			"python -m sglang.launch_server, llama-server, verdict-engine serve)",
			request->n_words ? request->words[0] : "", request->n_words > 1 ? " …" : "");
	enum status status = read_words(reading, err);
	for (size_t i = 0; !status && i < reading->engine->n_knobs; i++)
		add_factor(reading, &reading->engine->knobs[i]);
	if (!status)
		*out = make_document(reading);
	return status;
}

enum status init_document(const struct init_request *request, struct json **out, struct text *notes, struct err *err)
{
	struct reading reading = {.request = request,
		.command = json_new_array(),
		.env = json_new_object(),
		.params = json_new_object(),
		.factors = json_new_object(),
		.notes = notes};
	*out = NULL;
	enum status status = read_command(&reading, out, err);
	json_free(reading.command);
	json_free(reading.env);
	json_free(reading.params);
	json_free(reading.factors);
	return status;
}
