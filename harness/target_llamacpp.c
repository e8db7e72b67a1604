/* llama.cpp's llama-server. Switch names from its --help. Of the settings in effect /props tells the number of slots; its context
 * is that of one slot or of all, by version, and one user found its speculative field wrong, so other settings are taken from the
 * argument vector as given. */
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

static const struct json *effective(const struct target_ops *ops, const struct json *config, const char *knob)
{
	return text_equal(knob, "parallel") ? json_get(config, "total_slots") : NULL;
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
	.readback_path = "/props",
	.readback_optional = true,
	.version_path = "/props",
	.version_key = "build_info",
	.help_word = "--help",
	.counters = &counters,
	TARGET_TABLE(switches, switches),
	.patterns = target_patterns_llamacpp,
	.identity = TARGET_IDENTITY_SOCKET,
	.per_request_cache = true,
	.tells_version = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.settings = target_settings_as_told,
	.effective = effective,
	.explain = target_explain_from_patterns,
};
