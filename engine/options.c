/* The engine's switches: table, defaults, and every check that needs neither model nor machine. */
#include "engine/options.h"

#include <limits.h>
#include <string.h>

#include "base/text.h"
#include "kernels/comm/comm.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Above these a value is a typing mistake, not a wish (guesses). */
#define SEQUENCES_MAX 4096
#define MODEL_LEN_MAX (1 << 24)
#define ROWS_MAX 65536
#define DRAFT_MAX 64
#define QUEUE_MAX 1000000
#define TIMEOUT_MS_MAX 3600000

void engine_options_init(struct engine_options *options)
{
	*options = (struct engine_options){
		.load_format = "auto",
		.device = "auto",
		.allreduce = "auto",
		.kv_type = "f16",
		.isa = "auto",
		.mem_fraction = "auto",
		.speculation = "off",
		.run_ahead = "auto",
		.prefix_cache = true,
		.tp = 1,
		.max_num_seqs = 16,
		.chunk_tokens = 512,
		.graph_max_bs = 32,
		.queue_max = 256,
		.spec_draft_max = 6,
		.spec_ngram_min = 2,
		.spec_ngram_max = 4,
		.rank_timeout_ms = 30000,
	};
}

static void append_model_options(struct engine_options *o, struct option *table, size_t *count)
{
	const struct option list[] = {
		{"model", OPTION_STRING, &o->model_path, 0, 0, "PATH",
			"GGUF file, or Hugging Face folder with config.json and safetensors (required); shape:NAME is a model of a "
			"public shape with random weights."},
		{"load-format", OPTION_STRING, &o->load_format, 0, 0, "auto|dummy",
			"dummy: --model names a shape (llama-8b-bf16, llama-8b-fp8, …) or a JSON file with one; its weights are "
			"random numbers, for measuring speed (default auto: shape:NAME alone means that)."},
		{"tokenizer-pre", OPTION_STRING, &o->tokenizer_pre, 0, 0, "NAME",
			"Pre-tokenizer instead of the one the file names: smollm, gpt-2, llama-bpe, qwen2."},
		{"max-model-len", OPTION_I64, &o->max_model_len, 0, MODEL_LEN_MAX, "N",
			"Longest prompt plus answer in tokens; 0 takes the model's context, at most 8192 (default 0)."},
		{"max-num-seqs", OPTION_I64, &o->max_num_seqs, 1, SEQUENCES_MAX, "N",
			"Sequences running at the same time (default 16)."},
		{"chunk-tokens", OPTION_I64, &o->chunk_tokens, 1, ROWS_MAX, "N",
			"Prompt tokens computed in one step (default 512)."},
		{"queue-max", OPTION_I64, &o->queue_max, 1, QUEUE_MAX, "N",
			"Requests that may wait; more are refused (default 256)."},
		{"prefix-cache", OPTION_FLAG, &o->prefix_cache, 0, 0, NULL,
			"Reuse keys and values of equal prompt beginnings (default on; --no-prefix-cache)."},
	};
	memcpy(table + *count, list, sizeof list);
	*count += COUNT(list);
}

static void append_machine_options(struct engine_options *o, struct option *table, size_t *count)
{
	const struct option list[] = {
		{"device", OPTION_STRING, &o->device, 0, 0, "auto|cpu|cuda", "Where to compute (default auto)."},
		{"isa", OPTION_STRING, &o->isa, 0, 0, "auto|scalar|avx2|avx512",
			"CPU kernels to use (default auto: the best this CPU has)."},
		{"tp", OPTION_I64, &o->tp, 1, COMM_RANKS_MAX, "N", "Ranks (processes) that share each layer (default 1)."},
		{"threads", OPTION_I64, &o->threads, 0, 1024, "N", "Threads of each rank; 0 shares the CPUs evenly (default 0)."},
		{"rank-timeout-ms", OPTION_I64, &o->rank_timeout_ms, 100, TIMEOUT_MS_MAX, "N",
			"Longest wait of one rank for another before the server ends (default 30000)."},
		{"mem-budget", OPTION_STRING, &o->mem_budget_text, 0, 0, "BYTES",
			"Memory that fractions are fractions of, as 2GiB or 500MB (default: the GPU's, or physical memory or the "
			"cgroup limit); less than a GPU has makes it stand for a smaller one."},
		{"kv-type", OPTION_STRING, &o->kv_type, 0, 0, "f16|f32", "Stored form of keys and values (default f16)."},
	};
	memcpy(table + *count, list, sizeof list);
	*count += COUNT(list);
}

static void append_knobs(struct engine_options *o, struct option *table, size_t *count)
{
	const struct option list[] = {
		{"allreduce", OPTION_STRING, &o->allreduce, 0, 0, "auto|NAME",
			"How ranks add their partial results: shm-flag, shm-lamport, shm-2shot, ref-socket (default auto: measured "
			"at start)."},
		{"allreduce-force", OPTION_FLAG, &o->allreduce_force, 0, 0, NULL,
			"Use the named allreduce even where it is known to be slow or unsuited."},
		{"graph-max-bs", OPTION_I64, &o->graph_max_bs, 0, ROWS_MAX, "N",
			"Largest batch whose step is prepared ahead; larger ones are planned at each step, 0 plans them all so "
			"(default 32)."},
		{"deterministic", OPTION_FLAG, &o->deterministic, 0, 0, NULL,
			"Same bits for a request alone and in any batch, with and without plans and speculation, at a cost in "
			"speed on "
			"GPUs; CPUs always compute so (default off)."},
		{"run-ahead", OPTION_STRING, &o->run_ahead, 0, 0, "auto|off",
			"Begin the next step before the tokens of the one under way are known to the host; auto: on GPUs, without "
			"speculation (default auto)."},
		{"mem-fraction", OPTION_STRING, &o->mem_fraction, 0, 0, "auto|F",
			"Share of the memory budget to use, in (0, 1]; what weights, workspace and plans leave becomes KV cache "
			"(default auto)."},
		{"speculation", OPTION_STRING, &o->speculation, 0, 0, "off|ngram",
			"Guess tokens ahead from repeated text and verify them in one step; the output stays the same, on GPUs but "
			"for last bits that only --deterministic keeps (default off)."},
		{"spec-draft-max", OPTION_I64, &o->spec_draft_max, 1, DRAFT_MAX, "N", "Most guessed tokens per step (default 6)."},
		{"spec-ngram-min", OPTION_I64, &o->spec_ngram_min, 1, DRAFT_MAX, "N",
			"Shortest repeated n-gram to trust (default 2)."},
		{"spec-ngram-max", OPTION_I64, &o->spec_ngram_max, 1, DRAFT_MAX, "N", "Longest n-gram to look for (default 4)."},
	};
	memcpy(table + *count, list, sizeof list);
	*count += COUNT(list);
}

size_t engine_options_table(struct engine_options *options, struct option *table, size_t count)
{
	size_t begin = count;
	append_model_options(options, table, &count);
	append_machine_options(options, table, &count);
	append_knobs(options, table, &count);
	ASSERT(count - begin <= ENGINE_OPTIONS_COUNT_MAX);
	return count;
}

/* ---- checks ---- */

static enum status check_choice(const char *name, const char *value, const char *const *allowed, size_t n_allowed, struct err *err)
{
	struct text list = {0};
	for (size_t i = 0; i < n_allowed; i++) {
		if (text_equal(value, allowed[i])) {
			text_release(&list);
			return STATUS_OK;
		}
		text_printf(&list, "%s%s", i ? ", " : "", allowed[i]);
	}
	err_set_code(err, STATUS_INPUT, "bad_option", "--%s is '%s', expected one of: %s", name, value, text_str(&list));
	text_release(&list);
	return err ? err->status : STATUS_INPUT;
}

bool engine_options_bytes(const char *text, long long *out)
{
	static const struct {
		const char *suffix;
		unsigned long long factor;
	} units[] = {
		{"KiB", 1ull << 10},
		{"MiB", 1ull << 20},
		{"GiB", 1ull << 30},
		{"TiB", 1ull << 40},
		{"KB", 1000ull},
		{"MB", 1000000ull},
		{"GB", 1000000000ull},
		{"TB", 1000000000000ull},
		{"K", 1ull << 10},
		{"M", 1ull << 20},
		{"G", 1ull << 30},
		{"T", 1ull << 40},
		{"B", 1},
		{"", 1},
	};
	size_t len = strlen(text);
	for (size_t i = 0; i < COUNT(units); i++) {
		size_t suffix_len = strlen(units[i].suffix);
		char digits[24];
		if (len <= suffix_len || len - suffix_len >= sizeof digits || strcmp(text + len - suffix_len, units[i].suffix) != 0)
			continue;
		memcpy(digits, text, len - suffix_len);
		digits[len - suffix_len] = '\0';
		unsigned long long number;
		if (!text_to_u64(digits, &number) || number > (unsigned long long)LLONG_MAX / units[i].factor)
			return false;
		*out = (long long)(number * units[i].factor);
		return true;
	}
	return false;
}

static enum status check_memory(struct engine_options *options, struct err *err)
{
	double fraction;
	if (!text_equal(options->mem_fraction, "auto") &&
		!(text_to_double(options->mem_fraction, &fraction) && fraction > 0 && fraction <= 1))
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--mem-fraction is '%s', expected auto or a number above 0 and at most 1 (a share of the memory budget)",
			options->mem_fraction);
	options->mem_budget = 0;
	if (options->mem_budget_text &&
		!(engine_options_bytes(options->mem_budget_text, &options->mem_budget) && options->mem_budget > 0))
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--mem-budget is '%s', expected bytes such as 2147483648, 2GiB or 500MB", options->mem_budget_text);
	return STATUS_OK;
}

static enum status check_allreduce(const struct engine_options *options, struct err *err)
{
	if (text_equal(options->allreduce, "auto")) {
		if (options->allreduce_force)
			return err_set_code(err, STATUS_INPUT, "bad_option",
				"--allreduce-force needs a backend named by --allreduce; 'auto' leaves nothing to force");
		return STATUS_OK;
	}
	const struct comm_ops *ops;
	const char *device = text_equal(options->device, "cuda") ? "cuda" : "cpu";
	struct err found = {0};
	if (comm_find(options->allreduce, device, &ops, &found) != STATUS_OK)
		return err_set_code(err, STATUS_INPUT, "allreduce_refused", "--allreduce: %s", found.text);
	return STATUS_OK;
}

enum status engine_options_check(struct engine_options *options, struct err *err)
{
	static const char *const devices[] = {"auto", "cpu", "cuda"};
	static const char *const isas[] = {"auto", "scalar", "avx2", "avx512"};
	static const char *const kv_types[] = {"f16", "f32"};
	static const char *const speculations[] = {"off", "ngram"};
	static const char *const run_aheads[] = {"auto", "off"};
	static const char *const load_formats[] = {"auto", "dummy"};
	struct err local = {0};
	err = err ? err : &local;
	if (!options->model_path)
		return err_set_code(err, STATUS_INPUT, "bad_option", "--model PATH is required");
	if (check_choice("load-format", options->load_format, load_formats, COUNT(load_formats), err) != STATUS_OK ||
		check_choice("run-ahead", options->run_ahead, run_aheads, COUNT(run_aheads), err) != STATUS_OK ||
		check_choice("device", options->device, devices, COUNT(devices), err) != STATUS_OK ||
		check_choice("isa", options->isa, isas, COUNT(isas), err) != STATUS_OK ||
		check_choice("kv-type", options->kv_type, kv_types, COUNT(kv_types), err) != STATUS_OK ||
		check_choice("speculation", options->speculation, speculations, COUNT(speculations), err) != STATUS_OK ||
		check_memory(options, err) != STATUS_OK || check_allreduce(options, err) != STATUS_OK)
		return err->status;
	if (options->spec_ngram_min > options->spec_ngram_max)
		return err_set_code(err, STATUS_INPUT, "bad_option", "--spec-ngram-min %lld is above --spec-ngram-max %lld",
			options->spec_ngram_min, options->spec_ngram_max);
	return STATUS_OK;
}
