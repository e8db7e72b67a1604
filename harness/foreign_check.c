/* The rules of the formats that are read, after the programs that write them: llama-bench (tools/llama-bench), vLLM's bench serve,
 * SGLang's bench_serving, InferenceX's aggregate rows. See foreign_check.h. */
#include "harness/foreign_check.h"

#include <math.h>
#include <string.h>

#include "base/text.h"
#include "harness/fields.h"

#define RATE_MAX 1e12 /* tokens or requests a second: far above any machine */
#define COUNT_MAX 1e15
#define TIME_NS_MAX 9.2e18
#define DAY_MS 8.64e7 /* no latency is longer than a day */
#define DAY_S 8.64e4
#define TOLERANCE 0.05 /* of figures that were rounded before they were written */
#define LLAMA_FACTOR_MAX 2.0 /* between a mean of rates and a rate of means */
#define NEEDED FIELD_NEEDED
#define NAME(name) FIELD_OF(name, FIELD_NAME, FIELD_OR_EMPTY)
#define COUNT(name) FIELD_WITHIN(name, FIELD_INTEGER, 0, 0, COUNT_MAX)
#define RATE(name) FIELD_WITHIN(name, FIELD_NUMBER, 0, 0, RATE_MAX)

static const char *const no_limit[] = {"inf", "Infinity", "trace", NULL};

static const struct field llama_bench_fields[] = {
	NAME("build_commit"),
	COUNT("build_number"),
	NAME("cpu_info"),
	NAME("gpu_info"),
	NAME("backends"),
	NAME("model_filename"),
	NAME("model_type"),
	COUNT("model_size"),
	COUNT("model_n_params"),
	COUNT("n_batch"),
	COUNT("n_ubatch"),
	COUNT("n_threads"),
	NAME("cpu_mask"),
	FIELD_OF("cpu_strict", FIELD_BOOL, 0),
	COUNT("poll"),
	NAME("type_k"),
	NAME("type_v"),
	FIELD_WITHIN("n_gpu_layers", FIELD_INTEGER, 0, -1, 1e6), /* -1: all */
	COUNT("n_cpu_moe"),
	NAME("split_mode"),
	COUNT("main_gpu"),
	FIELD_OF("no_kv_offload", FIELD_BOOL, 0),
	NAME("devices"),
	NAME("tensor_split"),
	NAME("tensor_buft_overrides"),
	NAME("load_mode"),
	FIELD_OF("use_mmap", FIELD_BOOL, 0),
	FIELD_OF("embeddings", FIELD_BOOL, 0),
	FIELD_WITHIN("n_prompt", FIELD_INTEGER, NEEDED, 0, COUNT_MAX),
	FIELD_WITHIN("n_gen", FIELD_INTEGER, NEEDED, 0, COUNT_MAX),
	COUNT("n_depth"),
	NAME("test_time"),
	FIELD_WITHIN("avg_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_WITHIN("stddev_ns", FIELD_INTEGER, 0, 0, TIME_NS_MAX),
	FIELD_WITHIN("avg_ts", FIELD_NUMBER, NEEDED, 0, RATE_MAX),
	RATE("stddev_ts"),
	FIELD_OF("samples_ns", FIELD_LIST, 0),
	FIELD_OF("samples_ts", FIELD_LIST, 0),
	{0},
};

/* Shared by the benchmarks of vLLM and SGLang; latencies are checked by their endings. */
#define SERVING_FIELDS \
	NAME("backend"), {"request_rate", FIELD_NUMBER, FIELD_OR_TEXT, 0, RATE_MAX, no_limit}, \
		FIELD_WITHIN("max_concurrency", FIELD_INTEGER, 0, 1, COUNT_MAX), \
		FIELD_WITHIN("duration", FIELD_NUMBER, 0, 0, 1e9), COUNT("completed"), COUNT("total_input_tokens"), \
		FIELD_WITHIN("total_output_tokens", FIELD_INTEGER, NEEDED, 0, COUNT_MAX), RATE("request_throughput"), \
		FIELD_WITHIN("output_throughput", FIELD_NUMBER, NEEDED, 0, RATE_MAX), RATE("max_output_tokens_per_s"), \
		COUNT("max_concurrent_requests")

static const struct field vllm_fields[] = {
	SERVING_FIELDS,
	NAME("date"),
	NAME("endpoint_type"),
	NAME("label"),
	NAME("model_id"),
	NAME("tokenizer_id"),
	COUNT("num_prompts"),
	RATE("burstiness"),
	COUNT("failed"),
	RATE("request_goodput"),
	RATE("total_token_throughput"),
	FIELD_WITHIN("spec_decode_acceptance_rate", FIELD_NUMBER, 0, 0, 100),
	FIELD_WITHIN("spec_decode_acceptance_length", FIELD_NUMBER, 0, 0, 1e6),
	COUNT("spec_decode_num_drafts"),
	COUNT("spec_decode_draft_tokens"),
	COUNT("spec_decode_accepted_tokens"),
	{0},
};

static const struct field sglang_fields[] = {
	SERVING_FIELDS,
	NAME("tag"),
	NAME("dataset_name"),
	COUNT("sharegpt_output_len"),
	COUNT("random_input_len"),
	COUNT("random_output_len"),
	FIELD_WITHIN("random_range_ratio", FIELD_NUMBER, 0, 0, 1),
	COUNT("total_input_text_tokens"),
	COUNT("total_input_vision_tokens"),
	COUNT("total_output_tokens_retokenized"),
	RATE("input_throughput"),
	RATE("total_throughput"),
	RATE("concurrency"),
	FIELD_WITHIN("accept_length", FIELD_NUMBER, 0, 0, 1e6),
	{0},
};

static const struct field inferencex_fields[] = {
	FIELD_OF("hw", FIELD_NAME, NEEDED),
	FIELD_WITHIN("conc", FIELD_INTEGER, NEEDED, 1, COUNT_MAX),
	NAME("image"),
	NAME("model"),
	NAME("infmax_model_prefix"),
	NAME("framework"),
	NAME("precision"),
	COUNT("isl"),
	COUNT("osl"),
	FIELD_OF("is_multinode", FIELD_BOOL, 0),
	COUNT("num_prefill_gpu"),
	COUNT("num_decode_gpu"),
	FIELD_WITHIN("tput_per_gpu", FIELD_NUMBER, NEEDED, 0, RATE_MAX),
	RATE("output_tput_per_gpu"),
	RATE("input_tput_per_gpu"),
	{0},
};

/* --- times of day --------------------------------------------------------------------------------------------------- */

/* pattern: '0' stands for a digit, everything else for itself. */
static enum status check_pattern(const struct json *entry, const char *name, const char *pattern, struct err *err)
{
	const char *text = json_text(json_get(entry, name));
	size_t i = 0;
	if (!text)
		return STATUS_OK;
	while (pattern[i] && (pattern[i] == '0' ? text[i] >= '0' && text[i] <= '9' : text[i] == pattern[i]))
		i++;
	return pattern[i] || text[i] ? err_set(err, STATUS_INPUT, "%s: must be like %s, is '%.40s'", name, pattern, text)
				     : STATUS_OK;
}

/* --- figures that follow from each other ---------------------------------------------------------------------------- */

static double number_of(const struct json *entry, const char *name)
{
	return json_number(json_get(entry, name), NAN);
}

/* A unit that is taken for another shows here: figures are off by a thousand then. */
static enum status check_close(const char *name, double is, double expected, double factor_max, const char *from, struct err *err)
{
	if (isnan(is) || !(expected > 0) || !isfinite(expected) || (is <= expected * factor_max && is >= expected / factor_max))
		return STATUS_OK;
	return err_set(err, STATUS_INPUT, "%s: is %g, but %s gives %g: is the unit right?", name, is, from, expected);
}

static enum status check_samples(const struct json *entry, const char *name, struct err *err)
{
	const struct json *samples = json_get(entry, name);
	for (size_t i = 0; i < json_count(samples); i++)
		if (!(json_number(json_at(samples, i), -1) >= 0))
			return err_set(err, STATUS_INPUT, "%s[%zu]: must be a number of at least 0", name, i);
	return STATUS_OK;
}

static enum status check_llama_bench(const struct json *entry, struct err *err)
{
	double tokens = number_of(entry, "n_prompt") + number_of(entry, "n_gen"), seconds = number_of(entry, "avg_ns") / 1e9;
	enum status status = check_samples(entry, "samples_ns", err);
	if (!status)
		status = check_samples(entry, "samples_ts", err);
	if (!status)
		status = check_pattern(entry, "test_time", "0000-00-00T00:00:00Z", err);
	if (!status && !(tokens > 0))
		status = err_set(err, STATUS_INPUT, "n_gen: is 0, and so is n_prompt: nothing was measured");
	if (!status && seconds > 0)
		status = check_close("avg_ts", number_of(entry, "avg_ts"), tokens / seconds, LLAMA_FACTOR_MAX,
			"n_prompt + n_gen over avg_ns", err);
	return status;
}

static bool ends_with(const char *text, const char *ending)
{
	size_t len = strlen(text), ending_len = strlen(ending);
	return len >= ending_len && text_equal(text + len - ending_len, ending);
}

/* Every member that ends in _ms is a latency, and none is longer than the run. */
static enum status check_serving(const struct json *entry, struct err *err)
{
	double duration = number_of(entry, "duration"), limit_ms = duration > 0 ? fmin(DAY_MS, duration * 1e3) : DAY_MS;
	enum status status = STATUS_OK;
	for (void *it = json_first(entry); it && !status; it = json_next(entry, it)) {
		const struct field latency[] = {
			FIELD_WITHIN(json_iterator_key(it), FIELD_NUMBER, 0, 0, limit_ms * (1 + TOLERANCE)), {0}};
		if (ends_with(json_iterator_key(it), "_ms"))
			status = fields_check(entry, latency, false, err);
	}
	if (!status)
		status = check_pattern(entry, "date", "00000000-000000", err);
	if (!status)
		status = check_close("output_throughput", number_of(entry, "output_throughput"),
			number_of(entry, "total_output_tokens") / duration, 1 + TOLERANCE, "total_output_tokens over duration",
			err);
	if (!status)
		status = check_close("request_throughput", number_of(entry, "request_throughput"),
			number_of(entry, "completed") / duration, 1 + TOLERANCE, "completed over duration", err);
	return status;
}

/* Latencies are seconds here, and each time per token has the tokens per second that follow from it beside it. */
static enum status check_inferencex(const struct json *entry, struct err *err)
{
	static const char *const figures[] = {"ttft", "tpot", "itl", "e2el"},
				 *const kinds[] = {"mean", "median", "std", "p90", "p99", "p99.9"};
	enum status status = STATUS_OK;
	for (size_t i = 0; i < 4 * (sizeof kinds / sizeof kinds[0]) && !status; i++) {
		struct text name = {0}, speed = {0};
		text_printf(&name, "%s_%s", kinds[i / 4], figures[i % 4]);
		text_printf(&speed, "%s_intvty", kinds[i / 4]);
		const struct field latency[] = {FIELD_WITHIN(text_str(&name), FIELD_NUMBER, 0, 0, DAY_S), {0}},
				   rate[] = {RATE(text_str(&speed)), {0}};
		status = fields_check(entry, latency, false, err);
		if (!status)
			status = fields_check(entry, rate, false, err);
		bool is_median = text_equal(text_str(&name), "median_tpot");
		if (!status && is_median && number_of(entry, text_str(&speed)) > 0 && number_of(entry, text_str(&name)) > 0)
			status = check_close(text_str(&name), number_of(entry, text_str(&name)),
				1 / number_of(entry, text_str(&speed)), 1 + TOLERANCE, "median_intvty", err);
		text_release(&name);
		text_release(&speed);
	}
	return status;
}

enum status foreign_check(const struct json *entry, enum foreign_format format, struct err *err)
{
	static const struct {
		const struct field *fields;
		enum status (*check)(const struct json *entry, struct err *err);
	} rules[] = {
		[FOREIGN_LLAMA_BENCH] = {llama_bench_fields, check_llama_bench},
		[FOREIGN_VLLM] = {vllm_fields, check_serving},
		[FOREIGN_SGLANG] = {sglang_fields, check_serving},
		[FOREIGN_INFERENCEX] = {inferencex_fields, check_inferencex},
	};
	enum status status = fields_check(entry, rules[format].fields, false, err);
	return status ? status : rules[format].check(entry, err);
}

void foreign_read_numbers(struct json *row)
{
	for (const struct field *field = llama_bench_fields; field->name; field++) {
		const char *text = json_text(json_get(row, field->name));
		bool is_number = field->kind == FIELD_INTEGER || field->kind == FIELD_NUMBER || field->kind == FIELD_BOOL;
		long long whole;
		double real;
		if (!text || !is_number)
			continue;
		if (text_to_i64(text, &whole))
			json_set(row, field->name, json_new_integer(whole));
		else if (text_to_double(text, &real))
			json_set(row, field->name, json_new_number(real));
	}
}
