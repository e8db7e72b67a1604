/* SGLang's server. Switch names from `python -m sglang.launch_server --help`; /server_info reports the resolved arguments under the
 * names of those switches with '_' for '-'. */
#include "harness/target_common.h"

static const struct name_value switches[] = {
	{"graph_max_bs", "--cuda-graph-max-bs"},
	{"mem_fraction", "--mem-fraction-static"},
	{"speculation", "--speculative-algorithm"},
	{"speculative_num_steps", "--speculative-num-steps"},
	{"speculative_eagle_topk", "--speculative-eagle-topk"},
	{"speculative_num_draft_tokens", "--speculative-num-draft-tokens"},
	{"max_running_requests", "--max-running-requests"},
	{"chunked_prefill_size", "--chunked-prefill-size"},
	{"attention_backend", "--attention-backend"},
	{"tp", "--tensor-parallel-size"},
};

/* "tensor-parallel-size" is resolved as tp_size; every other key is its switch. */
static const struct json *effective(const struct target_ops *ops, const struct json *config, const char *knob)
{
	return text_equal(knob, "tp") ? json_get(config, "tp_size") : target_effective_by_switch(ops, config, knob);
}

/* Served with --enable-metrics only. Acceptance is not counted there; /server_info has an average, which starts anew when the cache
 * is emptied, as it is before each cold run. */
static const struct counter_names counters = {
	.prompt = "sglang:prompt_tokens_total",
	.generated = "sglang:generation_tokens_total",
	.looked_up = "sglang:prompt_tokens_total",
	.cached = "sglang:cached_tokens_total",
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
	TARGET_SWITCHES(switches),
	.patterns = target_patterns_sglang,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.effective = effective,
	.explain = target_explain_from_patterns,
};
