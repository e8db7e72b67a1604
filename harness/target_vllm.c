/* vLLM's server. Switch names from `vllm serve --help=all` (0.33.0). With VLLM_SERVER_DEV_MODE=1 it tells its whole configuration
 * after every adjustment that it has made; without, or in older versions, a part: the settings of the KV cache as labels of a
 * metric, and the longest sequence in its list of models. /reset_prefix_cache exists only in that mode too, and may answer 200
 * without having done it; it is called, and the share of cached prompt tokens is what decides. */
#include <stdio.h>
#include <string.h>

#include "harness/target_common.h"

static const struct name_value switches[] = {
	{"mem_fraction", "--gpu-memory-utilization"},
	{"gpu_memory_utilization", "--gpu-memory-utilization"},
	{"max_num_seqs", "--max-num-seqs"},
	{"max_num_batched_tokens", "--max-num-batched-tokens"},
	{"speculation", "--speculative-config"},
	{"speculative_config", "--speculative-config"},
	{"compilation_config", "--compilation-config"},
	{"graph_max_bs", "--max-cudagraph-capture-size"},
	{"max_model_len", "--max-model-len"},
	{"block_size", "--block-size"},
	{"enable_prefix_caching", "--enable-prefix-caching"},
	{"tensor_parallel_size", "--tensor-parallel-size"},
	{"pipeline_parallel_size", "--pipeline-parallel-size"},
	{"data_parallel_size", "--data-parallel-size"},
	{"disable_custom_all_reduce", "--disable-custom-all-reduce"},
	{"enforce_eager", "--enforce-eager"},
	{"enable_chunked_prefill", "--enable-chunked-prefill"},
	{"async_scheduling", "--async-scheduling"},
	{"kv_cache_dtype", "--kv-cache-dtype"},
	{"quantization", "--quantization"},
	{"dtype", "--dtype"},
	{"attention_backend", "--attention-backend"},
	{"scheduling_policy", "--scheduling-policy"},
};

/* Sections of the configuration whose members win a name that several have. Source: vllm/config/vllm.py. */
static const char *const sections_first[] = {
	"cache_config", "scheduler_config", "parallel_config", "model_config", "compilation_config", "load_config"};

/* Sections that one switch sets as a whole, as JSON: they stay objects. */
static const char *const sections_whole[] = {"speculative_config", "compilation_config", "additional_config"};

/* Switches that are stored under another name. */
static const struct name_value stored_as[] = {
	{"--kv-cache-dtype", "cache_dtype"},
	{"--attention-backend", "attention_config.backend"},
	{"--scheduling-policy", "policy"},
};

static bool is_one_of(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (text_equal(name, names[i]))
			return true;
	return false;
}

#define IS_ONE_OF(name, names) is_one_of(name, names, sizeof(names) / sizeof((names)[0]))

/* Bookkeeping, secrets, and what is new with every start. */
static bool is_setting(const char *name)
{
	static const char *const others[] = {
		"hf_token", "instance_id", "compilation_time", "encoder_compilation_time", "user_specified_block_size"};
	size_t len = strlen(name);
	return name[0] != '_' && !(len >= 5 && text_equal(name + len - 5, "_port")) && !IS_ONE_OF(name, others);
}

static bool is_plain(const struct json *value)
{
	return json_kind_of(value) != JSON_KIND_OBJECT && json_kind_of(value) != JSON_KIND_ARRAY;
}

/* One value under its name, without the prefix of a type; a name that is taken gets its section's in front. */
static void add_setting(struct json *out, const char *section, const char *name, const struct json *value)
{
	const char *word = json_text(value);
	struct text full = {0};
	if (json_get(out, name))
		text_printf(&full, "%s.", section);
	text_append_str(&full, name);
	if (!json_get(out, text_str(&full)))
		json_set(out, text_str(&full),
			word && text_starts_with(word, "torch.") ? json_new_string(word + strlen("torch.")) : json_clone(value));
	text_release(&full);
}

static void add_section(struct json *out, const char *section, const struct json *members)
{
	struct json *whole = IS_ONE_OF(section, sections_whole) ? json_new_object() : NULL;
	for (void *at = json_first(members); at; at = json_next(members, at)) {
		const char *name = json_iterator_key(at);
		const struct json *value = json_iterator_value(at);
		if (!is_setting(name) || !is_plain(value))
			continue;
		if (whole)
			json_set(whole, name, json_clone(value));
		if (!text_equal(section, "speculative_config")) /* its members are those of another model */
			add_setting(out, section, name, value);
	}
	if (whole)
		json_set(out, section, whole);
}

/* From {"vllm_config": {"cache_config": {…}, …}, "vllm_env": {…}} to one object of plain values, with the variables in "env". */
static struct json *settings(const struct json *told)
{
	const struct json *config = json_get(told, "vllm_config"), *env = json_get(told, "vllm_env");
	if (json_kind_of(config) != JSON_KIND_OBJECT)
		return config ? NULL : json_clone(told); /* older versions tell a text; another path tells settings as they are */
	struct json *out = json_new_object();
	for (size_t i = 0; i < sizeof(sections_first) / sizeof(sections_first[0]); i++)
		add_section(out, sections_first[i], json_get(config, sections_first[i]));
	for (void *at = json_first(config); at; at = json_next(config, at)) {
		const char *name = json_iterator_key(at);
		const struct json *value = json_iterator_value(at);
		if (json_kind_of(value) == JSON_KIND_OBJECT && !IS_ONE_OF(name, sections_first))
			add_section(out, name, value);
		else if (is_plain(value) && is_setting(name))
			add_setting(out, "vllm", name, value);
	}
	if (json_kind_of(env) == JSON_KIND_OBJECT)
		json_set(out, "env", json_clone(env));
	return out;
}

static const struct json *effective(const struct target_ops *ops, const struct json *config, const char *knob)
{
	char name[64];
	if (!ops->switch_of(ops, knob, name))
		return NULL;
	for (size_t i = 0; i < sizeof(stored_as) / sizeof(stored_as[0]); i++)
		if (text_equal(stored_as[i].name, name) && json_get(config, stored_as[i].value))
			return json_get(config, stored_as[i].value);
	return target_effective_of_switch(config, name);
}

static const struct counter_names counters = {
	.prompt = "vllm:prompt_tokens_total",
	.generated = "vllm:generation_tokens_total",
	.looked_up = "vllm:prefix_cache_queries_total",
	.cached = "vllm:prefix_cache_hits_total",
	.drafted = "vllm:spec_decode_num_draft_tokens_total",
	.accepted = "vllm:spec_decode_num_accepted_tokens_total",
	.rounds = "vllm:spec_decode_num_drafts_total",
	.looked_up_before = "vllm:gpu_prefix_cache_queries_total", /* up to 0.9 */
	.cached_before = "vllm:gpu_prefix_cache_hits_total",
};

const struct target_ops target_vllm = {
	.name = "vllm",
	.launches = true,
	.ready_path = "/health",
	.readback_path = "/server_info?config_format=json",
	.settings_metric = "vllm:cache_config_info",
	.settings_variable = "VLLM_SERVER_DEV_MODE=1",
	.readback_optional = true,
	.flush_path = "/reset_prefix_cache",
	.version_path = "/version",
	.version_key = "version",
	.help_word = "--help=all",
	.counters = &counters,
	TARGET_TABLE(switches, switches),
	.patterns = target_patterns_vllm,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.settings = settings,
	.effective = effective,
	.explain = target_explain_from_patterns,
};
