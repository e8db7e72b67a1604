/* llama.cpp's llama-server. Switch names from its --help; it reports no complete settings over HTTP (/props tells a part, and one
 * user found its speculative field wrong), so a requested setting is taken from the argument vector as given. */
#include "harness/target_common.h"

static const struct name_value switches[] = {
	{"parallel", "--parallel"},
	{"ctx_size", "--ctx-size"},
	{"batch_size", "--batch-size"},
	{"ubatch_size", "--ubatch-size"},
	{"threads", "--threads"},
	{"threads_batch", "--threads-batch"},
	{"flash_attn", "--flash-attn"},
	{"n_gpu_layers", "--n-gpu-layers"},
	{"draft_model", "--model-draft"},
	{"draft_max", "--draft-max"},
	{"draft_min", "--draft-min"},
};

/* Served with --metrics only. */
static const struct counter_names counters = {
	.prompt = "llamacpp:prompt_tokens_total",
	.generated = "llamacpp:tokens_predicted_total",
};

const struct target_ops target_llamacpp = {
	.name = "llamacpp",
	.launches = true,
	.ready_path = "/health",
	.version_path = "/props",
	.version_key = "build_info",
	.help_word = "--help",
	.counters = &counters,
	TARGET_SWITCHES(switches),
	.patterns = target_patterns_llamacpp,
	.identity = TARGET_IDENTITY_SOCKET,
	.per_request_cache = true,
	.tells_version = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.effective = target_effective_nowhere,
	.explain = target_explain_from_patterns,
};
