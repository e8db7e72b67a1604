/* What makes two loads the same load, and the content hashes of an experiment's parts. */
#include "base/hash.h"
#include "harness/experiment_internal.h"

static void set_number(struct json *document, const char *key, double value)
{
	json_set(document, key, json_new_number(value));
}

/* Only what is not the default is written, so that a load keeps its hash when a new kind of load comes. */
static void set_arrivals(struct json *document, const struct schedule *schedule)
{
	static const char *const kinds[] = {"closed", "inf", "constant", "gamma", "trace"};
	if (schedule->kind == SCHEDULE_CLOSED)
		return;
	struct json *object = json_new_object();
	json_set(object, "kind", json_new_string(kinds[schedule->kind]));
	if (schedule->kind == SCHEDULE_CONSTANT || schedule->kind == SCHEDULE_GAMMA) {
		set_number(object, "rate", schedule->rate);
		set_number(object, "rate_end", schedule->rate_end);
	}
	if (schedule->kind == SCHEDULE_GAMMA)
		set_number(object, "burstiness", schedule->burstiness);
	if (schedule->kind == SCHEDULE_TRACE)
		set_number(object, "speed", schedule->speed);
	json_set(document, "arrivals", object);
}

static void set_goodput(struct json *document, const struct goodput_limits *goodput)
{
	if (!goodput_is_stated(goodput))
		return;
	struct json *object = json_new_object();
	if (goodput->ttft_ms > 0)
		set_number(object, "ttft_ms", goodput->ttft_ms);
	if (goodput->tpot_ms > 0)
		set_number(object, "tpot_ms", goodput->tpot_ms);
	if (goodput->e2e_ms > 0)
		set_number(object, "e2e_ms", goodput->e2e_ms);
	json_set(document, "goodput", object);
}

static void set_generator(struct json *document, const struct workload *workload)
{
	if (workload->jitter > 0)
		set_number(document, "jitter", workload->jitter);
	if (workload->dataset == DATASET_SHARED_PREFIX) {
		json_set(document, "groups", json_new_integer(workload->groups));
		json_set(document, "prefix_len", json_new_integer(workload->prefix_len));
	}
	if (workload->dataset != DATASET_TRACE)
		return;
	struct json *trace = json_new_array();
	for (size_t i = 0; i < workload->trace.count && i < (size_t)workload->requests; i++)
		json_append(trace, trace_request_json(&workload->trace.items[i]));
	json_set(document, "trace", trace);
	json_set(document, "block_tokens", json_new_integer(workload->block_tokens));
}

struct json *workload_json(const struct workload *workload)
{
	struct json *document = json_new_object(), *prompts = json_new_array();
	for (size_t i = 0; i < workload->prompts.count; i++)
		json_append(prompts, prompt_json(&workload->prompts.items[i]));
	json_set(document, "endpoint", json_new_string(workload->endpoint));
	json_set(document, "concurrency", json_new_integer(workload->concurrency));
	json_set(document, "requests", json_new_integer(workload->requests));
	json_set(document, "prompts", prompts);
	json_set(document, "input_len", json_new_integer(workload->input_len));
	json_set(document, "output_len", json_new_integer(workload->output_len));
	json_set(document, "seed", json_new_integer((int64_t)workload->seed));
	json_set(document, "temperature", json_new_number(workload->temperature));
	json_set(document, "ignore_eos", json_new_bool(workload->ignore_eos));
	json_set(document, "cache", json_new_string(workload->cache == CACHE_COLD ? "cold" : "warm"));
	set_generator(document, workload);
	set_arrivals(document, &workload->schedule);
	set_goodput(document, &workload->goodput);
	return document;
}

void experiment_hash_workloads(struct experiment *experiment)
{
	for (int i = 0; i < experiment->n_workloads; i++) {
		struct json *document = workload_json(&experiment->workloads[i]);
		experiment_hash_json(document, experiment->workloads[i].hash);
		json_free(document);
	}
}

void experiment_hash_json(const struct json *document, char out[65])
{
	struct text text = {0};
	json_write(document, JSON_STYLE_CANONICAL, &text);
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	sha256_update(&sha, text_str(&text), text.len);
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
	text_release(&text);
}
