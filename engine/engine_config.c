/* GET /config: what is in effect, what was asked for, and why they differ. */
#include <stdio.h>

#include "base/text.h"
#include "engine/engine_state.h"

/* Takes ownership of value. */
static void add_setting(struct json *settings, const char *name, struct json *value, const char *requested, const char *why)
{
	struct json *setting = json_new_object();
	json_set(setting, "value", value);
	json_set(setting, "requested", json_new_string(requested));
	json_set(setting, "why", json_new_string(why));
	json_set(settings, name, setting);
}

/* A switch whose 0 means "decide at start" when automatic_zero is set. */
static void add_number(
	struct json *settings, const char *name, long long value, long long requested, bool automatic_zero, const char *why)
{
	char text[32];
	snprintf(text, sizeof text, "%lld", requested);
	add_setting(settings, name, json_new_integer(value), automatic_zero && requested == 0 ? "auto" : text, why);
}

static void add_knobs(const struct engine *engine, struct json *settings)
{
	const struct engine_options *asked = &engine->options;
	const struct setup *setup = &engine->setup;
	const struct memplan *plan = &setup->memplan;
	add_setting(settings, "allreduce", json_new_string(rank_allreduce_name(engine->rank)), asked->allreduce,
		rank_allreduce_why(engine->rank));
	add_number(settings, "graph_max_bs", setup->rank.graph_max_bs, asked->graph_max_bs, false, setup->whys.graph_max_bs);
	bool always = text_equal(setup->rank.device, "cpu");
	add_setting(settings, "deterministic", json_new_bool(asked->deterministic || always),
		asked->deterministic ? "true" : "false",
		always ? "a CPU always computes so"
			: asked->deterministic
			? "as asked: one kernel for every number of rows"
			: "off: a row's last bits depend on the kernel that its step's number of rows takes");
	add_setting(
		settings, "run_ahead", json_new_string(setup->run_ahead ? "on" : "off"), asked->run_ahead, setup->whys.run_ahead);
	add_setting(settings, "mem_fraction", json_new_number(plan->fraction), asked->mem_fraction, plan->fraction_why);
	add_setting(settings, "mem_budget", json_new_integer((int64_t)plan->request.total_bytes),
		asked->mem_budget > 0 && asked->mem_budget_text ? asked->mem_budget_text : "auto", plan->request.total_source);
	add_setting(settings, "speculation", json_new_string(engine->drafter_ops ? engine->drafter_ops->name : "off"),
		asked->speculation, engine->drafter_ops ? "as asked; every draft is verified by the model" : "off: the plain path");
}

static void add_shape(const struct engine *engine, struct json *settings)
{
	const struct engine_options *asked = &engine->options;
	const struct setup *setup = &engine->setup;
	const struct setup_whys *whys = &setup->whys;
	add_setting(settings, "device", json_new_string(setup->rank.device), asked->device, whys->device);
	add_number(settings, "tp", setup->rank.world, asked->tp, false, "as asked or default");
	add_number(settings, "threads", setup->rank.threads, asked->threads, true, whys->threads);
	bool best = text_equal(asked->isa, "auto"), on_gpu = text_equal(setup->rank.device, "cuda");
	add_setting(settings, "isa", json_new_string(best ? forward_describe(rank_forward(engine->rank)) : asked->isa), asked->isa,
		on_gpu         ? "not used: the GPU computes"
			: best ? "auto: the best that this CPU has"
			       : "as asked");
	add_setting(settings, "kv_type", json_new_string(setup->rank.kv_type == KN_KV_F32 ? "f32" : "f16"), asked->kv_type,
		whys->kv_type);
	add_number(settings, "max_model_len", setup->rank.max_model_len, asked->max_model_len, true, whys->max_model_len);
	add_number(settings, "max_num_seqs", setup->rank.limits.slots_max, asked->max_num_seqs, false, whys->max_num_seqs);
	add_number(settings, "chunk_tokens", setup->chunk_tokens, asked->chunk_tokens, false, whys->chunk_tokens);
}

static void add_limits(const struct engine *engine, struct json *settings)
{
	const struct engine_options *asked = &engine->options;
	const char *why = "as asked or default", *idle = "not used: speculation is off";
	const char *drafting = engine->drafter_ops ? why : idle;
	add_setting(settings, "prefix_cache", json_new_bool(asked->prefix_cache), asked->prefix_cache ? "true" : "false", why);
	add_number(settings, "queue_max", asked->queue_max, asked->queue_max, false, why);
	add_number(settings, "rank_timeout_ms", asked->rank_timeout_ms, asked->rank_timeout_ms, false, why);
	add_number(settings, "spec_draft_max", asked->spec_draft_max, asked->spec_draft_max, false, drafting);
	add_number(settings, "spec_ngram_min", asked->spec_ngram_min, asked->spec_ngram_min, false, drafting);
	add_number(settings, "spec_ngram_max", asked->spec_ngram_max, asked->spec_ngram_max, false, drafting);
	add_setting(settings, "tokenizer_pre", json_new_string(tokenizer_pre_name(engine->tokenizer)),
		asked->tokenizer_pre ? asked->tokenizer_pre : "auto", asked->tokenizer_pre ? "as asked" : "named by the file");
}

static struct json *model_json(const struct engine *engine)
{
	const struct model_config *config = &engine->config;
	const struct {
		const char *key;
		int64_t value;
	} numbers[] = {
		{"layers", config->n_layers},
		{"hidden", config->hidden},
		{"ffn", config->ffn},
		{"heads", config->n_heads},
		{"kv_heads", config->n_kv_heads},
		{"head_dim", config->head_dim},
		{"vocab", config->vocab},
		{"context", config->context},
		{"file_bytes", (int64_t)engine->source.bytes},
	};
	struct json *model = json_new_object();
	json_set(model, "name", json_new_string(engine_model_name(engine)));
	json_set(model, "path", json_new_string(engine->options.model_path));
	json_set(model, "arch", json_new_string(config->arch));
	for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
		json_set(model, numbers[i].key, json_new_integer(numbers[i].value));
	return model;
}

/* Bytes of every plan by its row count: {"1": 2097152, …}. */
static struct json *plan_rows_json(const struct forward *forward)
{
	struct json *rows = json_new_object();
	for (int i = 0; i < forward_plans_count(forward); i++) {
		char key[16];
		uint64_t bytes;
		snprintf(key, sizeof key, "%d", forward_plan_at(forward, i, &bytes));
		json_set(rows, key, json_new_integer((int64_t)bytes));
	}
	return rows;
}

/* The plan, and what rank 0 really holds beside it. */
static struct json *memory_json(const struct engine *engine)
{
	struct forward_memory held;
	forward_memory(rank_forward(engine->rank), &held);
	struct json *memory = memplan_json(&engine->setup.memplan), *rank = json_new_object();
	json_set(rank, "weights_bytes", json_new_integer((int64_t)held.weights));
	json_set(rank, "workspace_bytes", json_new_integer((int64_t)held.workspace));
	json_set(rank, "plans_bytes", json_new_integer((int64_t)held.plans));
	json_set(rank, "plans", json_new_integer(forward_plans_count(rank_forward(engine->rank))));
	json_set(rank, "plan_rows", plan_rows_json(rank_forward(engine->rank)));
	json_set(rank, "kv_bytes", json_new_integer((int64_t)held.kv));
	json_set(memory, "rank_0", rank);
	return memory;
}

struct json *engine_config_json(const struct engine *engine)
{
	struct json *config = json_new_object(), *settings = json_new_object(), *pids = json_new_array();
	add_knobs(engine, settings);
	add_shape(engine, settings);
	add_limits(engine, settings);
	for (int rank = 0; rank < engine->setup.rank.world; rank++)
		json_append(pids, json_new_integer(ranks_pid(engine->ranks, rank)));
	json_set(config, "model", model_json(engine));
	json_set(config, "settings", settings);
	json_set(config, "rank_pids", pids);
	json_set(config, "isa", json_new_string(forward_describe(rank_forward(engine->rank))));
	json_set(config, "memory", memory_json(engine));
	return config;
}
