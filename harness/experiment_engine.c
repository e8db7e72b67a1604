/* Reads "engine" and "engines": which servers are launched, and which of them an arm is launched with. Pure. */
#include <string.h>

#include "harness/experiment_internal.h"
#include "harness/target.h"

/* The settings of verdict-engine, the only kind of engine whose complete list is known. */
static const char *const builtin_knobs[] = {"allreduce", "graph_max_bs", "mem_fraction", "speculation", "tp", "threads", "device",
	"isa", "max_model_len", "max_num_seqs", "chunk_tokens", "queue_max", "prefix_cache", "mem_budget", "kv_type",
	"rank_timeout_ms", "allreduce_force", "spec_draft_max", "spec_ngram_min", "spec_ngram_max", "run_ahead", "deterministic",
	"load_format", NULL};

static void read_environment(struct engine_spec *engine, const struct place *place)
{
	place_pairs(place, "env", &engine->env, &engine->n_env);
	for (size_t i = 0; i < engine->n_env; i++)
		if (strchr(engine->env[i].name, '='))
			place_fail(place, false, "env: a variable's name cannot hold '=': '%s'", engine->env[i].name);
}

/* The program to launch, or the address of one that runs. */
static void read_program(struct engine_spec *engine, const struct place *place)
{
	const struct target_ops *target = target_by_name(engine->adapter);
	struct place command = place_get(place, "command"), url = place_get(place, "url");
	place_strings(place, "command", true, &engine->command);
	if (command.value && (!engine->command.count || !engine->command.items[0][0]))
		place_fail(&command, false, "must begin with a program");
	if (command.value && !target->launches)
		place_fail(&command, true, "adapter %s launches nothing; it takes a url", engine->adapter);
	if (!command.value && text_equal(engine->adapter, "command"))
		place_fail(place, false, "adapter command needs a command");
	engine->url = place_text(place, "url", NULL);
	if (!engine->url && !target->launches)
		place_fail(place, false, "adapter %s needs a url", engine->adapter);
	if (engine->url && target->launches)
		place_fail(&url, true, "a url belongs to adapter attach; launched servers get a free port");
	if (engine->url && !text_starts_with(engine->url, "http://") && !text_starts_with(engine->url, "https://"))
		place_fail(&url, false, "must begin with http:// or https://");
}

static void read_engine(struct engine_spec *engine, const struct place *place)
{
	static const char *const adapters[] = {"builtin", "llamacpp", "vllm", "sglang", "command", "attach", NULL};
	static const char *const probes[] = {"one_token", NULL};
	engine->adapter = adapters[place_choice(place, "adapter", adapters, 0)];
	read_program(engine, place);
	place_pairs(place, "flags", &engine->flags, &engine->n_flags);
	read_environment(engine, place);
	engine->model = place_text(place, "model", engine->model);
	engine->readback_path = place_text(place, "readback", NULL);
	struct place ready = place_get(place, "ready"), stop = place_get(place, "stop");
	place_section(&ready, SECTION_READY);
	place_section(&stop, SECTION_STOP);
	engine->ready_path = place_text(&ready, "path", NULL);
	place_choice(&ready, "probe", probes, 0); /* the only one there is; the key lets a file say so */
	engine->ready_timeout_s = place_number(&ready, "timeout_s", 0.1, 86400, 300);
	engine->term_s = place_number(&stop, "term_s", 0, 3600, 15);
	engine->memory_within_mib = place_number(&stop, "memory_within_mib", 1, 1e9, 512);
	engine->memory_wait_s = place_number(&stop, "memory_wait_s", 0, 3600, 90);
}

/* Settings of one engine alone, given to it in every arm that it serves. */
static void read_params(struct engine_spec *engine, const struct place *place)
{
	struct place params = place_get(place, "params");
	if (!place_is(&params, JSON_KIND_OBJECT))
		return;
	if (json_count(params.value) > EXPERIMENT_KNOBS_MAX)
		place_fail(&params, false, "more than %d settings", EXPERIMENT_KNOBS_MAX);
	engine->params = arena_calloc(place->reader->arena, json_count(params.value) + 1, sizeof *engine->params);
	for (void *it = json_first(params.value); it && reader_ok(place->reader); it = json_next(params.value, it)) {
		struct place item = place_get(&params, json_iterator_key(it));
		experiment_check_switch(&item, engine, json_iterator_key(it));
		const char *knob = reader_print(place->reader, "%s", json_iterator_key(it));
		engine->params[engine->n_params++] =
			(struct knob_value){knob, item.value, experiment_value_text(place->reader, item.value)};
	}
}

void experiment_read_engines(struct experiment *experiment, const struct place *root)
{
	struct place engine = place_get(root, "engine"), engines = place_get(root, "engines");
	place_section(&engine, SECTION_ENGINE);
	if (!engines.value) {
		read_engine(&experiment->engine, &engine);
		return;
	}
	const char *model = place_text(&engine, "model", NULL);
	if (json_count(engine.value) > (model ? 1 : 0))
		place_fail(&engine, false, "beside \"engines\" only a model for all of them belongs here");
	if (!place_is(&engines, JSON_KIND_OBJECT))
		return;
	if (json_count(engines.value) < 1 || json_count(engines.value) > EXPERIMENT_ENGINES_MAX)
		place_fail(&engines, false, "must name from 1 to %d engines", EXPERIMENT_ENGINES_MAX);
	for (void *it = json_first(engines.value); it && reader_ok(root->reader); it = json_next(engines.value, it)) {
		struct place place = place_get(&engines, json_iterator_key(it));
		struct engine_spec *one = &experiment->engines[experiment->n_engines++];
		if (!place_section(&place, SECTION_ENGINES))
			place_fail(&place, false, "must be object");
		one->name = reader_print(root->reader, "%s", json_iterator_key(it));
		one->model = model;
		read_engine(one, &place);
		if (reader_ok(root->reader))
			read_params(one, &place);
	}
}

void experiment_check_switch(const struct place *place, const struct engine_spec *engine, const char *knob)
{
	for (size_t i = 0; i < engine->n_flags; i++)
		if (text_equal(engine->flags[i].name, knob))
			return;
	const struct target_ops *target = target_of_engine(engine);
	char flag[64];
	if (!target->launches) {
		place_fail(place, true, "adapter %s cannot change a running server's settings; it takes no knobs", engine->adapter);
	} else if (!target->switch_of(target, knob, flag)) {
		place_fail(place, true, "adapter %s needs the flag of knob '%s' in engine.flags", engine->adapter, knob);
	} else if (text_equal(engine->adapter, "builtin")) {
		struct text known = {0};
		bool found = false;
		for (const char *const *name = builtin_knobs; *name; name++) {
			found = found || text_equal(*name, knob);
			text_printf(&known, "%s%s", known.len ? ", " : "", *name);
		}
		if (!found)
			place_fail(place, true, "unknown knob '%s'; the builtin engine has %s", knob, text_str(&known));
		text_release(&known);
	}
}

static const struct engine_spec *find_engine(const struct experiment *experiment, const char *name)
{
	for (size_t i = 0; i < experiment->n_engines; i++)
		if (text_equal(experiment->engines[i].name, name))
			return &experiment->engines[i];
	return NULL;
}

void experiment_check_engine_name(const struct experiment *experiment, const struct place *value, const char *knob)
{
	const char *name = json_text(value->value);
	if (!experiment->n_engines || !text_equal(knob, EXPERIMENT_ENGINE_KNOB) || find_engine(experiment, name))
		return;
	struct text known = {0};
	for (size_t i = 0; i < experiment->n_engines; i++)
		text_printf(&known, "%s%s", known.len ? ", " : "", experiment->engines[i].name);
	place_fail(value, false, "must be a name under \"engines\": %s", text_str(&known));
	text_release(&known);
}

static const struct knob_value *find_setting(const struct arm *arm, const char *knob)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (text_equal(arm->settings[i].knob, knob))
			return &arm->settings[i];
	return NULL;
}

/* Appends what is set for this engine alone. */
static void add_params(struct arm *arm, const struct engine_spec *engine, const struct place *engines)
{
	struct arena *arena = engines->reader->arena;
	struct knob_value *settings = arena_calloc(arena, arm->n_settings + engine->n_params + 1, sizeof *settings);
	memcpy(settings, arm->settings, arm->n_settings * sizeof *settings);
	for (size_t i = 0; i < engine->n_params; i++) {
		if (find_setting(arm, engine->params[i].knob))
			place_fail(engines, true, "%s.params.%s is a knob of the whole experiment already", engine->name,
				engine->params[i].knob);
		settings[arm->n_settings + i] = engine->params[i];
	}
	arm->settings = settings;
	arm->n_settings += engine->n_params;
	arm->engine = engine;
}

void experiment_assign_engines(struct experiment *experiment, const struct place *root)
{
	struct place engines = place_get(root, "engines");
	if (!experiment->n_engines)
		return;
	if (!find_setting(&experiment->arms[0], EXPERIMENT_ENGINE_KNOB)) {
		place_fail(&engines, true, "no knob \"" EXPERIMENT_ENGINE_KNOB "\" chooses among them: add it to matrix.factors");
		return;
	}
	for (int i = 0; i < experiment->n_arms; i++) {
		struct arm *arm = &experiment->arms[i];
		const char *name = json_text(find_setting(arm, EXPERIMENT_ENGINE_KNOB)->value);
		add_params(arm, find_engine(experiment, name), &engines);
	}
	experiment->engine = *experiment->arms[0].engine;
}

const struct engine_spec *arm_engine(const struct experiment *experiment, const struct arm *arm)
{
	return arm->engine ? arm->engine : &experiment->engine;
}
