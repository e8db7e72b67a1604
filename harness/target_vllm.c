/* vLLM's server. Switch names from `vllm serve --help`. Over HTTP it tells a part of its settings: those of the KV cache as labels
 * of a metric, and the longest sequence in its list of models; other settings are taken from the argument vector as given.
 * /reset_prefix_cache exists only with VLLM_SERVER_DEV_MODE=1 and may answer 200 without having done it; it is called, and the
 * share of cached prompt tokens is what decides. */
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
};

static const struct counter_names counters = {
	.prompt = "vllm:prompt_tokens_total",
	.generated = "vllm:generation_tokens_total",
	.looked_up = "vllm:prefix_cache_queries_total",
	.cached = "vllm:prefix_cache_hits_total",
	.drafted = "vllm:spec_decode_num_draft_tokens_total",
	.accepted = "vllm:spec_decode_num_accepted_tokens_total",
	.rounds = "vllm:spec_decode_num_drafts_total",
};

const struct target_ops target_vllm = {
	.name = "vllm",
	.launches = true,
	.ready_path = "/health",
	.settings_metric = "vllm:cache_config_info",
	.readback_optional = true,
	.flush_path = "/reset_prefix_cache",
	.version_path = "/version",
	.version_key = "version",
	.help_word = "--help=all",
	.counters = &counters,
	TARGET_SWITCHES(switches),
	.patterns = target_patterns_vllm,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.effective = target_effective_by_switch,
	.explain = target_explain_from_patterns,
};
