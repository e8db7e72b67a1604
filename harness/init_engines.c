/* Switches from `verdict-engine serve --help`, `vllm serve --help`, `python -m sglang.launch_server --help` and `llama-server
 * --help`; candidates are what their tuning guides name first. */
#include "harness/init_engines.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct init_knob builtin_knobs[] = {
	{"speculation", {"--speculation"}, INIT_VALUE, INIT_ALWAYS, "[\"off\", \"ngram\"]"},
	{"graph_max_bs", {"--graph-max-bs"}, INIT_VALUE, INIT_ALWAYS, "[0, 8]"},
	{"threads", {"--threads"}, INIT_VALUE, INIT_CPUS, NULL},
	{"allreduce", {"--allreduce"}, INIT_VALUE, INIT_RANKS, "[\"shm-flag\", \"shm-lamport\", \"shm-2shot\", \"ref-socket\"]"},
	{"chunk_tokens", {"--chunk-tokens"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"kv_type", {"--kv-type"}, INIT_VALUE, INIT_WHEN_GIVEN, "[\"f16\", \"f32\"]"},
	{"tp", {"--tp"}, INIT_VALUE, INIT_NEVER, NULL},
	{"mem_fraction", {"--mem-fraction"}, INIT_VALUE, INIT_NEVER, NULL},
	{"mem_budget", {"--mem-budget"}, INIT_VALUE, INIT_NEVER, NULL},
	{"max_model_len", {"--max-model-len"}, INIT_VALUE, INIT_NEVER, NULL},
	{"max_num_seqs", {"--max-num-seqs"}, INIT_VALUE, INIT_NEVER, NULL},
	{"queue_max", {"--queue-max"}, INIT_VALUE, INIT_NEVER, NULL},
	{"device", {"--device"}, INIT_VALUE, INIT_NEVER, NULL},
	{"isa", {"--isa"}, INIT_VALUE, INIT_NEVER, NULL},
	{"rank_timeout_ms", {"--rank-timeout-ms"}, INIT_VALUE, INIT_NEVER, NULL},
	{"prefix_cache", {"--prefix-cache"}, INIT_SWITCH, INIT_NEVER, NULL},
	{"deterministic", {"--deterministic"}, INIT_SWITCH, INIT_NEVER, NULL},
	{"run_ahead", {"--run-ahead"}, INIT_VALUE, INIT_NEVER, NULL},
	{"load_format", {"--load-format"}, INIT_VALUE, INIT_NEVER, NULL},
	{"allreduce_force", {"--allreduce-force"}, INIT_SWITCH, INIT_NEVER, NULL},
	{"spec_draft_max", {"--spec-draft-max"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"spec_ngram_min", {"--spec-ngram-min"}, INIT_VALUE, INIT_NEVER, NULL},
	{"spec_ngram_max", {"--spec-ngram-max"}, INIT_VALUE, INIT_NEVER, NULL},
};

static const struct init_knob vllm_knobs[] = {
	{"mem_fraction", {"--gpu-memory-utilization"}, INIT_VALUE, INIT_ALWAYS, "[0.85, 0.9, 0.94]"},
	{"max_num_seqs", {"--max-num-seqs"}, INIT_VALUE, INIT_HALF_DOUBLE, "[128, 512]"},
	{"max_num_batched_tokens", {"--max-num-batched-tokens"}, INIT_VALUE, INIT_HALF_DOUBLE, "[4096, 16384]"},
	{"speculation", {"--speculative-config"}, INIT_VALUE, INIT_ALWAYS,
		"[null, {\"method\": \"ngram\", \"num_speculative_tokens\": 4, \"prompt_lookup_max\": 4}]"},
	{"graph_max_bs", {"--max-cudagraph-capture-size"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"enforce_eager", {"--enforce-eager"}, INIT_SWITCH, INIT_WHEN_GIVEN, "[true, null]"},
	{"enable_prefix_caching", {"--enable-prefix-caching"}, INIT_SWITCH, INIT_NEVER, NULL},
	{"enable_chunked_prefill", {"--enable-chunked-prefill"}, INIT_SWITCH, INIT_WHEN_GIVEN, "[true, false]"},
	{"async_scheduling", {"--async-scheduling"}, INIT_SWITCH, INIT_WHEN_GIVEN, "[true, false]"},
	{"kv_cache_dtype", {"--kv-cache-dtype"}, INIT_VALUE, INIT_WHEN_GIVEN, "[\"auto\"]"},
	{"compilation_config", {"--compilation-config", "-O"}, INIT_VALUE, INIT_NEVER, NULL},
	{"max_model_len", {"--max-model-len"}, INIT_VALUE, INIT_NEVER, NULL},
	{"tensor_parallel_size", {"--tensor-parallel-size", "-tp"}, INIT_VALUE, INIT_NEVER, NULL},
};

static const struct init_knob sglang_knobs[] = {
	{"mem_fraction", {"--mem-fraction-static"}, INIT_VALUE, INIT_ALWAYS, "[0.8, 0.85, 0.9]"},
	{"graph_max_bs", {"--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"}, INIT_VALUE, INIT_HALF_DOUBLE, "[32, 128]"},
	{"chunked_prefill_size", {"--chunked-prefill-size"}, INIT_VALUE, INIT_HALF_DOUBLE, "[4096, 16384]"},
	{"max_running_requests", {"--max-running-requests"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"attention_backend", {"--attention-backend"}, INIT_VALUE, INIT_WHEN_GIVEN, "[null]"},
	/* Its own switches depend on one another, so that it can only be left out as a whole: see init.c. */
	{"speculation", {"--speculative-algorithm", "--speculative-algo"}, INIT_VALUE, INIT_NEVER, NULL},
	{"speculative_draft_model_path", {"--speculative-draft-model-path", "--speculative-draft-model"}, INIT_VALUE, INIT_NEVER,
		NULL},
	{"speculative_num_steps", {"--speculative-num-steps"}, INIT_VALUE, INIT_NEVER, NULL},
	{"speculative_eagle_topk", {"--speculative-eagle-topk"}, INIT_VALUE, INIT_NEVER, NULL},
	{"speculative_num_draft_tokens", {"--speculative-num-draft-tokens"}, INIT_VALUE, INIT_NEVER, NULL},
	{"tp", {"--tensor-parallel-size", "--tp-size", "--tp"}, INIT_VALUE, INIT_NEVER, NULL},
};

static const struct init_knob llamacpp_knobs[] = {
	{"threads", {"--threads", "-t"}, INIT_VALUE, INIT_CPUS, NULL},
	{"flash_attn", {"--flash-attn", "-fa"}, INIT_MAYBE_VALUE, INIT_ALWAYS, "[\"on\", \"off\"]"},
	{"batch_size", {"--batch-size", "-b"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"ubatch_size", {"--ubatch-size", "-ub"}, INIT_VALUE, INIT_HALF_DOUBLE, "[256, 1024]"},
	{"draft_max", {"--draft-max", "--draft", "--draft-n"}, INIT_VALUE, INIT_HALF_DOUBLE, NULL},
	{"draft_min", {"--draft-min", "--draft-n-min"}, INIT_VALUE, INIT_NEVER, NULL},
	{"threads_batch", {"--threads-batch", "-tb"}, INIT_VALUE, INIT_NEVER, NULL},
	{"n_gpu_layers", {"--n-gpu-layers", "--gpu-layers", "-ngl"}, INIT_VALUE, INIT_NEVER, NULL},
	{"parallel", {"--parallel", "-np"}, INIT_VALUE, INIT_NEVER, NULL},
	{"ctx_size", {"--ctx-size", "-c"}, INIT_VALUE, INIT_NEVER, NULL},
};

const struct init_engine init_engines[] = {
	{
		.adapter = "builtin",
		.programs = {"verdict-engine"},
		.serves = true,
		.models = {"--model"},
		.dropped = {"--host", "--port", "--api-key"},
		.knobs = builtin_knobs,
		.n_knobs = COUNT(builtin_knobs),
		.ready_timeout_s = 300,
	},
	{
		.adapter = "vllm",
		.programs = {"vllm"},
		.modules = {"vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"},
		.serves = true,
		.model_is_word = true,
		.models = {"--model"},
		.dropped = {"--host", "--port", "--api-key"},
		.alone = {"--trust-remote-code", "--disable-log-requests", "--disable-log-stats", "--enable-auto-tool-choice",
			"--enable-expert-parallel", "--no-enable-log-requests", "--enable-lora", "--no-enable-prefix-caching"},
		.knobs = vllm_knobs,
		.n_knobs = COUNT(vllm_knobs),
		/* /reset_prefix_cache, which keeps one run from warming the next, exists only with this. */
		.env = "{\"VLLM_SERVER_DEV_MODE\": \"1\"}",
		.ready_timeout_s = 1800,
	},
	{
		.adapter = "sglang",
		.programs = {"sglang"},
		.modules = {"sglang.launch_server"},
		.serves = true,
		.models = {"--model-path", "--model"},
		.dropped = {"--host", "--port", "--api-key"},
		.knobs = sglang_knobs,
		.n_knobs = COUNT(sglang_knobs),
		.ready_timeout_s = 1800,
	},
	{
		.adapter = "llamacpp",
		.programs = {"llama-server"},
		.models = {"--model", "-m"},
		.dropped = {"--host", "--port", "--api-key", "--api-key-file"},
		.knobs = llamacpp_knobs,
		.n_knobs = COUNT(llamacpp_knobs),
		.ready_timeout_s = 600,
	},
};
const size_t init_engines_count = COUNT(init_engines);
