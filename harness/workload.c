/* Prompts and bodies. */
#include "harness/workload.h"

#include <string.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"

static const char *const words[] = {
	"time",
	"people",
	"water",
	"house",
	"world",
	"school",
	"family",
	"story",
	"music",
	"night",
	"light",
	"paper",
	"city",
	"table",
	"river",
	"number",
	"letter",
	"mother",
	"father",
	"friend",
	"money",
	"power",
	"group",
	"party",
	"point",
	"place",
	"right",
	"small",
	"large",
	"great",
	"young",
	"early",
	"later",
	"under",
	"after",
	"before",
	"about",
	"other",
	"first",
	"second",
	"three",
	"four",
	"five",
	"open",
	"close",
	"high",
	"low",
	"long",
	"short",
	"white",
	"black",
	"green",
	"red",
	"blue",
	"good",
	"new",
	"old",
	"hand",
	"head",
	"face",
	"door",
	"book",
	"road",
	"food",
};
#define N_WORDS (sizeof(words) / sizeof(words[0]))

static const char *const fingerprint_prompts[] = {
	"The capital of France is",
	"Water boils at a temperature of",
	"1, 2, 3, 4, 5, 6,",
	"Once upon a time, in a small village by the sea,",
	"The opposite of hot is",
	"In 1969 the first people landed on",
	"def add(a, b):\n    return",
	"The seven days of the week are",
};
#define N_FINGERPRINT_PROMPTS ((int)(sizeof(fingerprint_prompts) / sizeof(fingerprint_prompts[0])))

static struct json *new_body(const struct request_style *style)
{
	struct json *body = json_new_object();
	if (style->model)
		json_set(body, "model", json_new_string(style->model));
	json_set(body, "max_tokens", json_new_integer(style->max_tokens));
	json_set(body, "temperature", json_new_number(style->temperature));
	if (style->temperature > 0)
		json_set(body, "seed", json_new_integer((int64_t)(style->seed >> 33))); /* 31 bits: what every server takes */
	if (style->ignore_eos)
		json_set(body, "ignore_eos", json_new_bool(true));
	if (style->no_prompt_cache)
		json_set(body, "cache_prompt", json_new_bool(false));
	json_set(body, "stream", json_new_bool(!style->whole_answer));
	if (style->whole_answer)
		return body;
	struct json *stream_options = json_new_object();
	json_set(stream_options, "include_usage", json_new_bool(true));
	if (style->continuous_usage)
		json_set(stream_options, "continuous_usage_stats", json_new_bool(true));
	json_set(body, "stream_options", stream_options);
	return body;
}

static void add_body(struct request_bodies *bodies, const struct request_style *style, struct json *body)
{
	if (bodies->count == bodies->capacity) {
		bodies->capacity = bodies->capacity ? 2 * bodies->capacity : 16;
		bodies->texts = mem_realloc(bodies->texts, bodies->capacity, sizeof(bodies->texts[0]));
		bodies->items = mem_realloc(bodies->items, bodies->capacity, sizeof(bodies->items[0]));
	}
	struct text text = {0};
	json_write(body, JSON_STYLE_COMPACT, &text);
	json_free(body);
	bodies->items[bodies->count] = (struct client_body){text.data, text.len, style->max_tokens};
	bodies->texts[bodies->count++] = text; /* its bytes stay where they are when the array moves */
}

void request_bodies_add_text(struct request_bodies *bodies, const struct request_style *style, const char *prompt)
{
	struct json *body = new_body(style);
	if (style->chat) {
		struct json *messages = json_new_array(), *message = json_new_object();
		json_set(message, "role", json_new_string("user"));
		json_set(message, "content", json_new_string(prompt));
		json_append(messages, message);
		json_set(body, "messages", messages);
	} else {
		json_set(body, "prompt", json_new_string(prompt));
	}
	add_body(bodies, style, body);
}

void request_bodies_add_messages(
	struct request_bodies *bodies, const struct request_style *style, const char *messages, const char *prefix)
{
	struct json *body = new_body(style), *list = NULL;
	ASSERT(json_parse(messages, strlen(messages), "messages", &list, NULL) == STATUS_OK); /* written by prompt_file */
	struct json *first = json_at(list, 0);
	struct text text = {0};
	text_printf(&text, "%s%s", prefix, json_text(json_get(first, "content")));
	json_set(first, "content", json_new_string(text_str(&text)));
	text_release(&text);
	json_set(body, "messages", list);
	add_body(bodies, style, body);
}

void request_bodies_add_ids(struct request_bodies *bodies, const struct request_style *style, const int32_t *ids, size_t count)
{
	struct json *body = new_body(style), *prompt = json_new_array();
	for (size_t i = 0; i < count; i++)
		json_append(prompt, json_new_integer(ids[i]));
	json_set(body, "prompt", prompt);
	add_body(bodies, style, body);
}

void request_bodies_release(struct request_bodies *bodies)
{
	for (size_t i = 0; i < bodies->count; i++)
		text_release(&bodies->texts[i]);
	mem_free(bodies->texts);
	mem_free(bodies->items);
	*bodies = (struct request_bodies){0};
}

void workload_words(uint64_t seed, size_t count, struct text *out)
{
	for (size_t i = 0; i < count; i++) {
		text_append_char(out, ' ');
		text_append_str(out, words[random_below(seed, 0, i, N_WORDS)]);
	}
}

/* Streams of random numbers of one request. */
enum { STREAM_IDS, STREAM_INPUT_LEN, STREAM_OUTPUT_LEN, STREAM_GROUP /* and above: one for each round */ };

/* One run while its bodies are built. */
struct building {
	const struct workload *workload;
	uint64_t run_seed;
	int vocabulary;
	size_t *order; /* of groups in this round: see group_of */
	struct request_style style; /* of the request at hand */
	struct request_bodies *out;
};

/* Uniform within the jitter of a length, at least 1. */
static int jittered(int length, double jitter, uint64_t seed, uint64_t stream)
{
	int reach = (int)(length * jitter);
	int drawn = length - reach + (int)random_below(seed, stream, 0, 2 * (uint64_t)reach + 1);
	return drawn > 0 ? drawn : 1;
}

static void fill_ids(int32_t *ids, size_t n, uint64_t seed, int vocabulary)
{
	int first = vocabulary / 8, usable = vocabulary - 2 * first;
	for (size_t i = 0; i < n; i++)
		ids[i] = first + (int32_t)random_below(seed, STREAM_IDS, i, (uint64_t)(usable > 0 ? usable : 1));
}

/* The groups come in rounds, each a new order of all of them, so that every group has its share of any run. */
static size_t group_of(struct building *building, size_t request)
{
	size_t n = (size_t)building->workload->groups, round = request / n;
	size_t *order = building->order;
	for (size_t i = 0; i < n && request % n == 0; i++) {
		size_t other = (size_t)random_below(building->run_seed, STREAM_GROUP + round, i, i + 1);
		order[i] = order[other];
		order[other] = i;
	}
	return order[request % n];
}

static void add_ids(struct building *building, size_t request)
{
	const struct workload *workload = building->workload;
	uint64_t seed = building->style.seed;
	bool grouped = workload->dataset == DATASET_SHARED_PREFIX;
	size_t n_prefix = grouped ? (size_t)workload->prefix_len : 0;
	size_t n = n_prefix + (size_t)jittered(workload->input_len, workload->jitter, seed, STREAM_INPUT_LEN);
	int32_t *ids = mem_calloc(n, sizeof(*ids));
	if (grouped) {
		size_t group = group_of(building, request);
		fill_ids(ids, n_prefix, hash64(&group, sizeof(group), ~building->run_seed), building->vocabulary);
	}
	fill_ids(ids + n_prefix, n - n_prefix, seed, building->vocabulary);
	building->style.max_tokens = jittered(workload->output_len, workload->jitter, seed, STREAM_OUTPUT_LEN);
	request_bodies_add_ids(building->out, &building->style, ids, n);
	mem_free(ids);
}

/* A block whose id two requests have in common holds the same tokens in both. */
static void add_traced(struct building *building, size_t request)
{
	const struct trace *trace = &building->workload->trace;
	const struct trace_request *traced = &trace->items[request % trace->count];
	size_t n = (size_t)traced->input_len, block = (size_t)building->workload->block_tokens;
	int32_t *ids = mem_calloc(n, sizeof(*ids));
	if (!traced->hash_ids)
		fill_ids(ids, n, building->style.seed, building->vocabulary);
	for (size_t i = 0; traced->hash_ids && i < traced->n_hash_ids && i * block < n; i++) {
		int64_t id = traced->hash_ids[i];
		size_t len = n - i * block < block ? n - i * block : block;
		fill_ids(ids + i * block, len, hash64(&id, sizeof(id), building->run_seed), building->vocabulary);
	}
	building->style.max_tokens = traced->output_len;
	request_bodies_add_ids(building->out, &building->style, ids, n);
	mem_free(ids);
}

/* number counts the prompts of the launch, warm-up included; each pass over the list after the first is told apart. */
static void add_prompt(struct building *building, size_t number)
{
	const struct workload *workload = building->workload;
	const struct prompt *prompt = &workload->prompts.items[number % workload->prompts.count];
	size_t pass = number / workload->prompts.count;
	struct text prefix = {0};
	if (pass > 0 && workload->cache == CACHE_COLD)
		text_printf(&prefix, "%zu. ", pass + 1);
	if (prompt->output_len)
		building->style.max_tokens = prompt->output_len;
	if (prompt->messages) {
		request_bodies_add_messages(building->out, &building->style, prompt->messages, text_str(&prefix));
	} else {
		text_append_str(&prefix, prompt->text);
		request_bodies_add_text(building->out, &building->style, text_str(&prefix));
	}
	text_release(&prefix);
}

static uint64_t seed_of_run(const struct workload *workload, int run)
{
	if (workload->cache == CACHE_WARM)
		run = 0; /* the same prompts again are what a warm cache is about */
	return hash64(&run, sizeof(run), hash64(workload->hash, strlen(workload->hash), workload->seed));
}

void workload_build_run(const struct workload *workload, int run, int requests, int runs_per_launch,
	const struct request_style *style, int vocabulary, struct request_bodies *out)
{
	struct building building = {.workload = workload,
		.run_seed = seed_of_run(workload, run),
		.vocabulary = vocabulary,
		.order = mem_calloc((size_t)workload->groups + 1, sizeof(size_t)),
		.style = *style,
		.out = out};
	struct request_style *own = &building.style;
	if (workload->cache == CACHE_WARM)
		run = 0;
	own->chat = strcmp(workload->endpoint, "/v1/chat/completions") == 0;
	own->temperature = workload->temperature;
	own->ignore_eos = workload->ignore_eos;
	/* Measured runs take the first prompts; warm-up takes those that are left, or starts another pass. */
	size_t first = run < WORKLOAD_WARMUP_RUN
		? (size_t)run * (size_t)workload->requests
		: (size_t)runs_per_launch * (size_t)workload->requests + (size_t)(run - WORKLOAD_WARMUP_RUN) * (size_t)requests;
	for (int i = 0; i < requests; i++) {
		own->seed = hash64(&i, sizeof(i), building.run_seed);
		own->max_tokens = workload->output_len;
		if (workload->dataset == DATASET_TRACE)
			add_traced(&building, (size_t)i);
		else if (workload->dataset == DATASET_RANDOM_IDS || workload->dataset == DATASET_SHARED_PREFIX)
			add_ids(&building, (size_t)i);
		else
			add_prompt(&building, first + (size_t)i);
	}
	mem_free(building.order);
}

int64_t *workload_due_times(const struct workload *workload, int run)
{
	size_t n = (size_t)workload->requests;
	if (workload->schedule.kind == SCHEDULE_CLOSED)
		return NULL;
	int64_t *due_ns = mem_calloc(n, sizeof(*due_ns));
	if (workload->schedule.kind != SCHEDULE_TRACE) {
		schedule_fill(&workload->schedule, hash64("due", 3, seed_of_run(workload, run)), n, due_ns);
		return due_ns;
	}
	const struct trace_request *traced = workload->trace.items;
	for (size_t i = 0; i < n; i++)
		due_ns[i] = (int64_t)((traced[i].at_ms - traced[0].at_ms) * 1e6 / workload->schedule.speed);
	return due_ns;
}

int workload_fingerprint_tokens(const struct workload *workloads, int n_workloads)
{
	int tokens = WORKLOAD_FINGERPRINT_TOKENS;
	for (int i = 0; i < n_workloads; i++)
		tokens = workloads[i].output_len > tokens ? workloads[i].output_len : tokens;
	return tokens < WORKLOAD_FINGERPRINT_LONG_TOKENS_MAX ? tokens : WORKLOAD_FINGERPRINT_LONG_TOKENS_MAX;
}

void workload_build_fingerprint(int prompts, int long_tokens, const struct request_style *style, struct request_bodies *out)
{
	struct request_style own = *style;
	own.temperature = 0;
	own.ignore_eos = false;
	for (int i = 0; i < prompts; i++) {
		struct text text = {0};
		own.max_tokens = i == 0 ? long_tokens : WORKLOAD_FINGERPRINT_TOKENS;
		if (i >= N_FINGERPRINT_PROMPTS)
			text_printf(&text, "%d. ", i / N_FINGERPRINT_PROMPTS + 1);
		text_append_str(&text, fingerprint_prompts[i % N_FINGERPRINT_PROMPTS]);
		request_bodies_add_text(out, &own, text_str(&text));
		text_release(&text);
	}
}

void workload_build_probe(const struct request_style *style, struct request_bodies *out)
{
	struct request_style own = *style;
	own.max_tokens = 1;
	own.temperature = 0;
	request_bodies_add_text(out, &own, "Hello");
}
