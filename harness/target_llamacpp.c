/* llama.cpp's llama-server. Switch names from its --help; it reports no complete settings over HTTP (/props tells a part, and one
 * user found its speculative field wrong), so a requested setting is taken from the argument vector as given. */
#include "harness/target_common.h"

static bool switch_of(const char *knob, char name[64])
{
	static const struct name_value table[] = {
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
	return target_switch_from_table(table, sizeof(table) / sizeof(table[0]), knob, name);
}

static bool explain(const char *log, bool running, enum failure *failure, char reason[512])
{
	return target_explain_from_patterns(log, target_patterns_llamacpp, running, failure, reason);
}

/* Served with --metrics only. */
static const struct counter_names counters = {
	.prompt = "llamacpp:prompt_tokens_total",
	.generated = "llamacpp:tokens_predicted_total",
};

const struct target_ops target_llamacpp = {
	.name = "llamacpp",
	.launches = true,
	.ready_path = "/health",
	.readback_path = NULL,
	.flush_path = NULL,
	.readback_path_older = NULL,
	.version_path = "/props",
	.version_key = "build_info",
	.help_word = "--help",
	.counters = &counters,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = false,
	.counts_in_streams = true,
	.booleans_as_words = false,
	.per_request_cache = true,
	.tells_version = true,
	.add_address = target_add_host_and_port,
	.switch_of = switch_of,
	.effective = target_effective_nowhere,
	.explain = explain,
};
