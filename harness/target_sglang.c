/* SGLang's server. Switch names from `python -m sglang.launch_server --help` (0.5.23); /server_info reports the resolved arguments
 * under the names of those switches with '_' for '-', and the state of each scheduler. */
#include "harness/target_common.h"

static const struct name_value switches[] = {
	{"graph_max_bs", "--cuda-graph-max-bs-decode"},
	{"mem_fraction", "--mem-fraction-static"},
	{"speculation", "--speculative-algorithm"},
	{"speculative_num_steps", "--speculative-num-steps"},
	{"speculative_eagle_topk", "--speculative-eagle-topk"},
	{"speculative_num_draft_tokens", "--speculative-num-draft-tokens"},
	{"max_running_requests", "--max-running-requests"},
	{"chunked_prefill_size", "--chunked-prefill-size"},
	{"attention_backend", "--attention-backend"},
	{"tp", "--tensor-parallel-size"},
	{"disable_custom_all_reduce", "--disable-custom-all-reduce"},
	{"disable_cuda_graph", "--disable-cuda-graph"},
	{"disable_radix_cache", "--disable-radix-cache"},
	{"schedule_policy", "--schedule-policy"},
	{"kv_cache_dtype", "--kv-cache-dtype"},
	{"quantization", "--quantization"},
	{"page_size", "--page-size"},
};

static const struct name_value older_switches[] = {{"graph_max_bs", "--cuda-graph-max-bs"}};

/* Source: sglang/srt/arg_groups/speculative_hook.py. */
static const struct name_value aliases[] = {
	{"NEXTN", "EAGLE"},
	{"NEXTN", "FROZEN_KV_MTP"},
	{"EAGLE", "FROZEN_KV_MTP"},
};

/* A switch that is resolved as one of the phase "decode" in cuda_graph_config; older versions keep it as it was given. */
static const struct json *graph_max_bs(const struct json *config)
{
	const struct json *resolved = json_get(json_get(json_get(config, "cuda_graph_config"), "decode"), "max_bs");
	const struct json *given = json_get(config, "cuda_graph_max_bs_decode");
	return resolved ? resolved : given ? given : json_get(config, "cuda_graph_max_bs");
}

/* "tensor-parallel-size" is resolved as tp_size; every other key is its switch. */
static const struct json *effective(const struct target_ops *ops, const struct json *config, const char *knob)
{
	return text_equal(knob, "tp")              ? json_get(config, "tp_size")
		: text_equal(knob, "graph_max_bs") ? graph_max_bs(config)
						   : target_effective_by_switch(ops, config, knob);
}

/* Without the states of the schedulers, which repeat the resolved arguments. */
static struct json *settings(const struct json *told)
{
	struct json *out = json_new_object();
	for (void *at = json_first(told); at; at = json_next(told, at))
		if (!text_equal(json_iterator_key(at), "internal_states"))
			json_set(out, json_iterator_key(at), json_clone(json_iterator_value(at)));
	return out;
}

/* Served with --enable-metrics only. What was accepted is not counted there, but how often was verified is, in newer versions;
 * /server_info has an average, which starts anew when the cache is emptied, as it is before each cold run. */
static const struct counter_names counters = {
	.prompt = "sglang:prompt_tokens_total",
	.generated = "sglang:generation_tokens_total",
	.looked_up = "sglang:prompt_tokens_total",
	.cached = "sglang:cached_tokens_total",
	.rounds = "sglang:spec_verify_calls_total",
};

const struct target_ops target_sglang = {
	.name = "sglang",
	.launches = true,
	.ready_path = "/health",
	.readback_path = "/server_info",
	.accept_length_key = "internal_states.0.avg_spec_accept_length",
	.flush_path = "/flush_cache",
	.readback_path_older = "/get_server_info",
	.version_path = "/server_info",
	.version_key = "version",
	.help_word = "--help",
	.counters = &counters,
	TARGET_TABLE(switches, switches),
	TARGET_TABLE(older_switches, older_switches),
	TARGET_TABLE(aliases, aliases),
	.false_is_silent = true, /* all but a dozen of 530 */
	.patterns = target_patterns_sglang,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.settings = settings,
	.effective = effective,
	.explain = target_explain_from_patterns,
};
