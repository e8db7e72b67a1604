/* Decides what the options left open, once, in one place, with the reason beside each value. */
#include "engine/setup.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "base/wait.h"
#include "engine/device.h"
#include "engine/rank.h"
#include "engine/region.h"

#define MODEL_LEN_DEFAULT_MAX 8192 /* guess: longer contexts cost KV memory that few requests use; --max-model-len raises it */
#define THREADS_DEFAULT_MAX 16 /* guess: small layers gain nothing from more, each barrier costs more */
#define LOGITS_ROWS_MIN 32 /* rows of logits one step can give when a request asks for those of its whole prompt */

static int64_t min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}
static int64_t max_i64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static void why(char out[SETUP_WHY_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
static void why(char out[SETUP_WHY_BYTES], const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(out, SETUP_WHY_BYTES, format, args);
	va_end(args);
}

static enum status copy_name(const char *what, const char *from, char *out, size_t out_bytes, struct err *err)
{
	if (strlen(from) >= out_bytes)
		return err_set_code(err, STATUS_INPUT, "bad_option", "%s is longer than %zu bytes", what, out_bytes - 1);
	memcpy(out, from, strlen(from) + 1);
	return STATUS_OK;
}

/* The GPU where the build has one that answers; its memory is looked at in the same breath. */
static enum status resolve_device(const struct engine_options *options, struct setup *out, struct err *err)
{
	bool asked = text_equal(options->device, "cuda"), automatic = text_equal(options->device, "auto");
	struct err reason = {0};
	if (asked && !device_has_cuda())
		return err_set_code(err, STATUS_UNAVAILABLE, "device_unavailable",
			"--device cuda: this program was built without CUDA; use --device cpu");
	if (asked && options->tp > 1)
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--tp %lld with --device cuda: one GPU is one rank; use --tp 1", options->tp);
	const char *device = "cpu";
	if (!asked && !automatic)
		why(out->whys.device, "as asked");
	else if (!device_has_cuda())
		why(out->whys.device, "auto: the only device of this build");
	else if (automatic && options->tp > 1)
		why(out->whys.device, "auto: several ranks run on CPUs");
	else if (device_gpu_memory(&out->gpu_total_bytes, &out->gpu_free_bytes, &reason) == STATUS_OK) {
		device = "cuda";
		device_gpu_others(out->gpu_others, sizeof out->gpu_others);
		why(out->whys.device, asked ? "as asked" : "auto: a GPU is there");
	} else if (asked)
		return err_set_code(
			err, STATUS_UNAVAILABLE, "device_unavailable", "--device cuda: %s; use --device cpu", reason.text);
	else
		why(out->whys.device, "auto: no usable GPU (%s)", reason.text);
	return copy_name("--device", device, out->rank.device, sizeof out->rank.device, err);
}

static void resolve_threads(const struct engine_options *options, struct setup *out)
{
	int cpus = file_machine_cpus();
	out->rank.world = (int32_t)options->tp;
	if (options->threads > 0) {
		out->rank.threads = (int32_t)options->threads;
		why(out->whys.threads, "as asked; this process may use %d CPUs", cpus);
	} else {
		out->rank.threads = (int32_t)min_i64(max_i64(cpus / options->tp, 1), THREADS_DEFAULT_MAX);
		why(out->whys.threads, "auto: %d CPUs for %lld rank(s), at most %d each", cpus, options->tp, THREADS_DEFAULT_MAX);
	}
	if (text_equal(out->rank.device, "cuda"))
		why(out->whys.threads, "not used: the GPU computes");
	out->rank.spins = wait_default_spins(out->rank.world * out->rank.threads);
}

static enum status resolve_length(
	const struct engine_options *options, const struct model_config *config, struct setup *out, struct err *err)
{
	const char *place = config->window > 0 ? ", the length of its sliding window" : "";

	if (options->max_model_len > config->context)
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--max-model-len %lld is above the model's context of %d tokens%s", options->max_model_len, config->context,
			place);
	if (options->max_model_len > 0) {
		out->rank.max_model_len = (int32_t)options->max_model_len;
		why(out->whys.max_model_len, "as asked; the model's context is %d%s", config->context, place);
	} else {
		out->rank.max_model_len = (int32_t)min_i64(config->context, MODEL_LEN_DEFAULT_MAX);
		why(out->whys.max_model_len, "default: the model's context of %d%s, at most %d", config->context, place,
			MODEL_LEN_DEFAULT_MAX);
	}
	return STATUS_OK;
}

/* Most rows that decode and verify steps have: one and the drafted ones for every sequence. */
static int64_t decode_rows(const struct engine_options *options)
{
	int64_t per_sequence = text_equal(options->speculation, "off") ? 1 : 1 + options->spec_draft_max;
	return options->max_num_seqs * per_sequence;
}

static enum status resolve_limits(
	const struct engine_options *options, const struct model_config *config, struct setup *out, struct err *err)
{
	int64_t rows = decode_rows(options);
	if (rows >= KN_ROWS_MAX)
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--max-num-seqs %lld sequences, each with its drafts, are %lld rows of one step, which has at most %d",
			options->max_num_seqs, (long long)rows, KN_ROWS_MAX - 1);
	/* A chunk longer than the longest prompt never occurs. */
	int64_t wanted = min_i64(options->chunk_tokens, out->rank.max_model_len), chunk = min_i64(wanted, KN_ROWS_MAX - rows);
	out->chunk_tokens = (int32_t)chunk;
	if (chunk < wanted)
		why(out->whys.chunk_tokens, "a step has at most %d rows, %lld of them for sequences", KN_ROWS_MAX, (long long)rows);
	else
		why(out->whys.chunk_tokens, chunk < options->chunk_tokens ? "no prompt is longer" : "as asked or default");
	struct step_limits *limits = &out->rank.limits;
	limits->rows_max = (int32_t)(chunk + rows);
	limits->slots_max = (int32_t)options->max_num_seqs;
	limits->blocks_per_slot_max = (int32_t)memplan_blocks(out->rank.max_model_len);
	limits->logits_max = (int32_t)min_i64(max_i64(rows, LOGITS_ROWS_MIN), limits->rows_max);
	why(out->whys.max_num_seqs, "as asked or default");
	out->rank.vocab = config->vocab;
	out->rank.hidden = config->hidden;
	out->rank.graph_max_bs = (int32_t)options->graph_max_bs;
	out->rank.deterministic = options->deterministic;
	int64_t plans = min_i64(options->graph_max_bs, limits->logits_max);
	if (plans == 0)
		why(out->whys.graph_max_bs, "0: every step is planned as it comes");
	else
		why(out->whys.graph_max_bs, "step plans for %s %lld rows%s",
			text_equal(out->rank.device, "cuda") ? "1, 2, 4, 8, 12, 16, by 8 to 64, then by 16, and" : "1 to",
			(long long)plans, plans < options->graph_max_bs ? ", the most that a step without prompt tokens has" : "");
	return STATUS_OK;
}

static void resolve_run_ahead(const struct engine_options *options, struct setup *out)
{
	bool apart = text_equal(out->rank.device, "cuda"), drafts = !text_equal(options->speculation, "off");
	out->run_ahead = apart && !drafts && !text_equal(options->run_ahead, "off");
	if (text_equal(options->run_ahead, "off"))
		why(out->whys.run_ahead, "as asked");
	else if (!apart)
		why(out->whys.run_ahead, "auto: host and device are one");
	else
		why(out->whys.run_ahead,
			drafts ? "auto: drafts are made from the tokens of the step before"
			       : "auto: the host plans a step while the GPU computes the one before");
}

static enum status resolve_names(const struct engine_options *options, struct setup *out, struct err *err)
{
	out->rank.kv_type = text_equal(options->kv_type, "f32") ? KN_KV_F32 : KN_KV_F16;
	why(out->whys.kv_type, "as asked or default");
	out->rank.rank_timeout_ns = options->rank_timeout_ms * 1000000;
	if (out->rank.world == 1)
		why(out->whys.allreduce, "one rank has nothing to sum");
	else
		why(out->whys.allreduce, text_equal(options->allreduce, "auto") ? "auto: measured at start" : "as asked");
	enum status status = copy_name("--model", options->model_path, out->rank.model_path, sizeof out->rank.model_path, err);
	if (status == STATUS_OK)
		status = copy_name("--isa", options->isa, out->rank.isa, sizeof out->rank.isa, err);
	if (status == STATUS_OK)
		status = copy_name("--allreduce", options->allreduce, out->rank.allreduce, sizeof out->rank.allreduce, err);
	return status;
}

/* What fractions are fractions of, and what of it is free. */
static void resolve_total(const struct engine_options *options, const struct setup *setup, struct memplan_request *request)
{
	bool on_gpu = text_equal(setup->rank.device, "cuda");
	request->apart = on_gpu;
	request->available_bytes = setup->gpu_free_bytes;
	request->others = setup->gpu_others;
	if (options->mem_budget > 0) {
		request->total_bytes = (uint64_t)options->mem_budget;
		request->total_source = "--mem-budget";
	} else if (on_gpu) {
		request->total_bytes = setup->gpu_total_bytes;
		request->total_source = "GPU memory";
	} else {
		request->total_bytes = file_machine_memory_bytes();
		request->total_source = "physical memory or its cgroup limit";
	}
}

static enum status resolve_memory(const struct engine_options *options, const struct source *source,
	const struct model_config *config, struct setup *out, struct err *err)
{
	bool on_host = !text_equal(out->rank.device, "cuda"); /* else the region lies outside the memory that is planned */
	struct memplan_request request = {
		.automatic = text_equal(options->mem_fraction, "auto"),
		.max_model_len = out->rank.max_model_len,
		.max_num_seqs = options->max_num_seqs,
		.collectives_bytes = on_host ? region_comm_bytes(&out->rank) : 0,
		.logits_bytes = on_host ? region_bytes(&out->rank) - region_comm_bytes(&out->rank) : 0,
	};
	resolve_total(options, out, &request);
	if (!request.automatic && !text_to_double(options->mem_fraction, &request.fraction))
		return err_set_code(err, STATUS_INPUT, "bad_option", "--mem-fraction '%s' is no number", options->mem_fraction);
	for (int rank = 0; rank < out->rank.world; rank++) {
		struct forward_options forward_options;
		struct forward_memory memory;
		rank_forward_options(&out->rank, rank, &forward_options);
		enum status status = forward_memory_needed(source, config, &forward_options, &memory, err);
		if (status != STATUS_OK)
			return status;
		request.weights_bytes += memory.weights;
		request.workspace_bytes += memory.workspace;
		request.plans_bytes += memory.plans;
		request.block_bytes += memory.kv;
	}
	enum status status = memplan_compute(&request, &out->memplan, err);
	out->rank.n_blocks = out->memplan.n_blocks;
	return status;
}

enum status setup_resolve(const struct engine_options *options, const struct source *source, const struct model_config *config,
	struct setup *out, struct err *err)
{
	*out = (struct setup){0};
	enum status status = resolve_device(options, out, err);
	if (status != STATUS_OK)
		return status;
	resolve_threads(options, out);
	status = resolve_length(options, config, out, err);
	if (status != STATUS_OK)
		return status;
	status = resolve_limits(options, config, out, err);
	if (status != STATUS_OK)
		return status;
	resolve_run_ahead(options, out);
	status = resolve_names(options, out, err);
	if (status == STATUS_OK)
		status = resolve_memory(options, source, config, out, err);
	return status;
}
