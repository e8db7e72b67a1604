/* The server of the Python package llama-cpp-python, `python -m llama_cpp.server`: llama.cpp behind another HTTP front. Its
 * switches are spelled with '_', and those for yes and no want the word. It has no health path, tells token counts in whole answers
 * only, takes no token ids as a prompt, serves one request at a time, and reports no settings (version 0.3.36). */
#include "harness/target_common.h"

static const struct name_value switches[] = {
	{"ctx_size", "--n_ctx"},
	{"batch_size", "--n_batch"},
	{"ubatch_size", "--n_ubatch"},
	{"threads", "--n_threads"},
	{"threads_batch", "--n_threads_batch"},
	{"flash_attn", "--flash_attn"},
	{"n_gpu_layers", "--n_gpu_layers"},
	{"draft_model", "--draft_model"},
	{"draft_max", "--draft_model_num_pred_tokens"},
	{"type_k", "--type_k"},
	{"type_v", "--type_v"},
	{"logits_all", "--logits_all"},
	{"use_mmap", "--use_mmap"},
	{"max_model_len", "--n_ctx"},
};

const struct target_ops target_llamacpp_python = {
	.name = "llamacpp",
	.launches = true,
	.ready_path = "/v1/models",
	.version_path = "/openapi.json",
	.version_key = "info.version",
	.help_word = "--help",
	TARGET_TABLE(switches, switches),
	.patterns = target_patterns_llamacpp,
	.identity = TARGET_IDENTITY_SOCKET,
	.whole_answers_only = true,
	.booleans_as_words = true,
	.add_address = target_add_host_and_port,
	.switch_of = target_switch_from_table,
	.settings = target_settings_as_told,
	.effective = target_effective_nowhere,
	.explain = target_explain_from_patterns,
};
