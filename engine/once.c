/* Collects what a single request gives, and when. */
#include "engine/once.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/request.h"

/* Filled on the step thread, read when the request has ended. */
struct collector {
	const struct tokenizer *tokenizer;
	struct once_result *result;
	struct text_stream stream;
	int64_t first_ns, last_ns; /* of token callbacks */
	size_t first_count; /* tokens of the first one */
};

static void collect_tokens(void *ctx, const struct engine_token *tokens, size_t count)
{
	struct collector *collector = ctx;
	int64_t now_ns = clock_monotonic_ns();
	if (collector->first_count == 0) {
		collector->first_ns = now_ns;
		collector->first_count = count;
	}
	collector->last_ns = now_ns;
	for (size_t i = 0; i < count; i++) {
		token_list_append(&collector->result->ids, tokens[i].id);
		text_stream_push(&collector->stream, collector->tokenizer, tokens[i].id, &collector->result->text);
	}
}

static void collect_logits(void *ctx, int position, const float *logits, int vocab)
{
	struct once_result *result = ((struct collector *)ctx)->result;
	result->vocab = vocab;
	mem_free(result->logits);
	result->logits = mem_calloc((size_t)vocab, sizeof *result->logits);
	memcpy(result->logits, logits, (size_t)vocab * sizeof *logits);
}

static bool better(const struct once_logit *a, const struct once_logit *b)
{
	return a->value > b->value || (a->value == b->value && a->id < b->id);
}

static void find_top(struct once_result *result)
{
	for (int32_t id = 0; id < result->vocab; id++) {
		struct once_logit entry = {.id = id, .value = result->logits[id]};
		int at = result->n_top;
		while (at > 0 && better(&entry, &result->top[at - 1]))
			at--;
		if (at == ONCE_TOP_LOGITS)
			continue;
		int moved = result->n_top < ONCE_TOP_LOGITS ? result->n_top++ : ONCE_TOP_LOGITS - 1;
		memmove(&result->top[at + 1], &result->top[at], (size_t)(moved - at) * sizeof entry);
		result->top[at] = entry;
	}
}

static void hash_logits(struct once_result *result)
{
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	sha256_update(&sha, result->logits, (size_t)result->vocab * sizeof *result->logits);
	sha256_finish(&sha, digest);
	sha256_hex(digest, result->logits_hash);
}

static enum status run_request(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling,
	struct once_result *out, struct err *err)
{
	struct collector collector = {.tokenizer = engine_tokenizer(engine), .result = out};
	struct engine_listener listener = {.on_tokens = collect_tokens, .on_logits = collect_logits, .ctx = &collector};
	int64_t begin_ns = clock_monotonic_ns();
	enum status status = request_run(engine, prompt, prompt_count, sampling, &listener, &out->engine, err);
	text_stream_finish(&collector.stream, &out->text);
	text_stream_release(&collector.stream);
	if (status != STATUS_OK)
		return status;
	if (collector.first_count > 0)
		out->prefill_tok_per_s = (double)prompt_count * 1e9 / (double)(collector.first_ns - begin_ns);
	if (collector.last_ns > collector.first_ns)
		out->decode_tok_per_s =
			(double)(out->ids.count - collector.first_count) * 1e9 / (double)(collector.last_ns - collector.first_ns);
	if (out->logits) {
		hash_logits(out);
		find_top(out);
	}
	return STATUS_OK;
}

enum status once_run(struct engine *engine, const int32_t *prompt, size_t prompt_count, const struct sampling *sampling, int warmup,
	struct once_result *out, struct err *err)
{
	struct sampling with_logits = *sampling;
	with_logits.logits = ENGINE_LOGITS_LAST;
	*out = (struct once_result){0};
	enum status status = STATUS_OK;
	for (int i = 0; i <= warmup && status == STATUS_OK; i++) {
		once_result_release(out);
		/* A cached prefix would make the prompt's rate meaningless. */
		engine_flush_cache(engine);
		struct engine_device_times before, after;
		engine_device_times(engine, &before);
		status = run_request(engine, prompt, prompt_count, &with_logits, out, err);
		engine_device_times(engine, &after);
		out->device = (struct engine_device_times){
			.steps = after.steps - before.steps,
			.busy_ns = after.busy_ns - before.busy_ns,
			.gap_ns = after.gap_ns - before.gap_ns,
		};
	}
	if (status != STATUS_OK)
		once_result_release(out);
	return status;
}

static struct json *ids_json(const int32_t *ids, size_t count)
{
	struct json *array = json_new_array();
	for (size_t i = 0; i < count; i++)
		json_append(array, json_new_integer(ids[i]));
	return array;
}

/* How busy the request kept a device of its own; null where there is none. */
static struct json *device_json(const struct engine_device_times *device)
{
	if (device->steps == 0)
		return json_new_null();
	struct json *object = json_new_object();
	json_set(object, "steps", json_new_integer((int64_t)device->steps));
	json_set(object, "busy_s", json_new_number((double)device->busy_ns / 1e9));
	json_set(object, "gap_s", json_new_number((double)device->gap_ns / 1e9));
	json_set(object, "gap_share", json_new_number((double)device->gap_ns / (double)(device->busy_ns + device->gap_ns)));
	return object;
}

struct json *once_json(const struct once_result *result, const int32_t *prompt, size_t prompt_count, bool all_logits)
{
	struct json *object = json_new_object(), *top = json_new_array();
	for (int i = 0; i < result->n_top; i++) {
		struct json *pair = json_new_array();
		json_append(pair, json_new_integer(result->top[i].id));
		json_append(pair, json_new_number((double)result->top[i].value));
		json_append(top, pair);
	}
	bool decoded = result->decode_tok_per_s > 0;
	json_set(object, "prompt_ids", ids_json(prompt, prompt_count));
	json_set(object, "ids", ids_json(result->ids.ids, result->ids.count));
	json_set(object, "text", json_new_string_len(text_str(&result->text), result->text.len));
	json_set(object, "finish_reason", json_new_string(request_finish_name(result->engine.finish)));
	json_set(object, "logits_hash", json_new_string(result->logits_hash));
	json_set(object, "top_logits", top);
	json_set(object, "prefill_tok_per_s", json_new_number(result->prefill_tok_per_s));
	json_set(object, "decode_tok_per_s", decoded ? json_new_number(result->decode_tok_per_s) : json_new_null());
	json_set(object, "device", device_json(&result->device));
	json_set(object, "drafted", json_new_integer(result->engine.drafted));
	json_set(object, "accepted", json_new_integer(result->engine.accepted));
	json_set(object, "verify_steps", json_new_integer(result->engine.verify_steps));
	if (all_logits) {
		struct json *logits = json_new_array();
		for (int i = 0; i < result->vocab; i++)
			json_append(logits, json_new_number((double)result->logits[i]));
		json_set(object, "logits", logits);
	}
	return object;
}

void once_result_release(struct once_result *result)
{
	token_list_release(&result->ids);
	text_release(&result->text);
	mem_free(result->logits);
	*result = (struct once_result){0};
}
