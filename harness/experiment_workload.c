/* Reads workloads: what is asked of the server, how often, and by which arms. */
#include "harness/experiment_internal.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/utf8.h"

#define PROMPT_FILE_BYTES_MAX ((size_t)16 << 20)
#define PROMPTS_MAX 10000
#define CONCURRENCY_MAX 4096
#define TOKENS_MAX 1000000
#define QUICK_OUTPUT_TOKENS 24 /* what --quick calls a short output */

/* Asked when a file names no prompts: ordinary chat work whose answers repeat parts of the question, as real work does. */
static const char *const default_prompts[] = {
	"Rewrite this sentence in the past tense: The engineer opens the valve, reads the gauge, writes the number in the log and "
	"closes the valve.",
	"Summarise in two sentences: A cache keeps copies of data that is expensive to fetch. When the data changes, the copies "
	"must be thrown "
	"away or refreshed. Choosing when to do so is the hard part of every cache.",
	"Fix the bug and repeat the whole function: int max(int a, int b) { if (a > b) return b; else return a; }",
	"List the days of the week and say in one short sentence each what a baker might do on that day.",
};

static void read_prompt_line(struct workload *workload, struct reader *reader, const char *line, size_t len, int number)
{
	struct json *document = NULL;
	struct err inner = {0};
	if (json_parse(line, len, workload->path, &document, &inner) != STATUS_OK) {
		err_set(reader->err, STATUS_INPUT, "%s:%d:1: not a JSON value", workload->path, number);
		return;
	}
	const struct json *prompt = json_get(document, "prompt");
	bool fine = json_kind_of(document) == JSON_KIND_OBJECT && json_count(document) == 1 && json_text(prompt) &&
		json_text_len(prompt);
	if (!fine || strlen(json_text(prompt)) != json_text_len(prompt))
		err_set(reader->err, STATUS_INPUT, "%s:%d:1: expected {\"prompt\": \"…\"} with a text that is not empty",
			workload->path, number);
	else if (workload->prompts.count == PROMPTS_MAX)
		err_set(reader->err, STATUS_INPUT, "%s:%d:1: more than %d prompts", workload->path, number, PROMPTS_MAX);
	else
		string_list_add(
			reader->arena, &workload->prompts, arena_strndup(reader->arena, json_text(prompt), json_text_len(prompt)));
	json_free(document);
}

static const char *beside_source(struct reader *reader, const char *path)
{
	const char *slash = strrchr(reader->source, '/');
	if (path[0] == '/' || !slash)
		return path;
	return reader_print(reader, "%.*s%s", (int)(slash + 1 - reader->source), reader->source, path);
}

/* The prompts that an experiment was run with, as its record tells them: the file may have changed or gone since. */
static void take_recorded_prompts(struct workload *workload, struct reader *reader, const struct json *recorded)
{
	const struct json *prompts = json_get(json_get(recorded, "document"), "prompts");
	for (size_t i = 0; i < json_count(prompts); i++)
		if (json_text(json_at(prompts, i)))
			string_list_add(reader->arena, &workload->prompts,
				arena_strndup(reader->arena, json_text(json_at(prompts, i)), json_text_len(json_at(prompts, i))));
}

static void read_prompt_file(struct workload *workload, const struct place *path)
{
	struct reader *reader = path->reader;
	struct text text = {0};
	struct err inner = {0};
	workload->path = beside_source(reader, workload->path);
	if (file_read(workload->path, PROMPT_FILE_BYTES_MAX, &text, &inner) != STATUS_OK) {
		place_fail(path, false, "%s", inner.text);
		text_release(&text);
		return;
	}
	const char *line = text_str(&text), *end = line + text.len;
	for (int number = 1; line < end && reader_ok(reader); number++) {
		const char *stop = memchr(line, '\n', (size_t)(end - line));
		size_t len = (size_t)((stop ? stop : end) - line);
		if (len && line[len - 1] == '\r')
			len--;
		if (len)
			read_prompt_line(workload, reader, line, len, number);
		line = stop ? stop + 1 : end;
	}
	if (!workload->prompts.count)
		place_fail(path, false, "%s holds no prompts", workload->path);
	text_release(&text);
}

static void read_dataset(struct workload *workload, const struct json *recorded, const struct place *dataset)
{
	static const char *const kinds[] = {"random_ids", "jsonl", "text", NULL};
	place_section(dataset, SECTION_DATASET);
	struct place path = place_get(dataset, "path"), prompts = place_get(dataset, "prompts"),
		     input = place_get(dataset, "input_len");
	int guessed = path.value ? DATASET_JSONL : input.value ? DATASET_RANDOM_IDS : DATASET_TEXT;
	workload->dataset = (enum dataset_kind)place_choice(dataset, "kind", kinds, guessed);
	workload->path = place_text(dataset, "path", NULL);
	workload->input_len = (int)place_integer(dataset, "input_len", 1, TOKENS_MAX, 256);
	workload->seed = (uint64_t)place_integer(dataset, "seed", 0, INT64_MAX, 1);
	place_integer(dataset, "jitter", 0, 0, 0); /* lengths are always exact; the key is there so that a file can say so */
	place_strings(dataset, "prompts", false, &workload->prompts);
	if (prompts.value && workload->dataset != DATASET_TEXT)
		place_fail(&prompts, true, "prompts belong to a dataset of kind text");
	if (path.value && workload->dataset != DATASET_JSONL)
		place_fail(&path, true, "a path belongs to a dataset of kind jsonl");
	if (input.value && workload->dataset != DATASET_RANDOM_IDS)
		place_fail(&input, true, "input_len belongs to a dataset of kind random_ids; texts have the length they have");
	if (workload->dataset != DATASET_RANDOM_IDS)
		workload->input_len = 0;
	if (workload->dataset == DATASET_JSONL && !workload->path)
		place_fail(dataset, false, "a dataset of kind jsonl needs a path");
	if (text_equal(workload->path, "-"))
		place_fail(&path, false, "prompts cannot come from standard input");
	if (workload->dataset == DATASET_JSONL && recorded)
		take_recorded_prompts(workload, dataset->reader, recorded);
	else if (workload->dataset == DATASET_JSONL && workload->path && reader_ok(dataset->reader))
		read_prompt_file(workload, &path);
	if (workload->dataset == DATASET_TEXT && !workload->prompts.count && prompts.value)
		place_fail(&prompts, false, "must list at least one prompt");
	if (workload->dataset == DATASET_TEXT && !workload->prompts.count)
		for (size_t i = 0; i < sizeof default_prompts / sizeof default_prompts[0]; i++)
			string_list_add(dataset->reader->arena, &workload->prompts, default_prompts[i]);
}

static void read_sampling(struct workload *workload, const struct place *place, const struct place *dataset)
{
	struct place sampling = place_get(place, "sampling");
	place_section(&sampling, SECTION_SAMPLING);
	workload->temperature = place_number(&sampling, "temperature", 0, 10, 0);
	workload->ignore_eos = place_bool(&sampling, "ignore_eos", workload->dataset == DATASET_RANDOM_IDS);
	struct place max_tokens = place_get(&sampling, "max_tokens"), output_len = place_get(dataset, "output_len");
	if (max_tokens.value && output_len.value)
		place_fail(&max_tokens, true, "say either sampling.max_tokens or dataset.output_len");
	long long fallback = place_integer(&sampling, "max_tokens", 1, TOKENS_MAX, 64);
	workload->output_len = (int)place_integer(dataset, "output_len", 1, TOKENS_MAX, fallback);
}

static void read_applies(struct experiment *experiment, struct workload *workload, const struct place *place)
{
	bool *applies = arena_calloc(place->reader->arena, (size_t)experiment->n_arms, sizeof *applies);
	workload->applies = applies;
	struct place list = place_get(place, "applies_to");
	bool all = !place_is(&list, JSON_KIND_ARRAY);
	for (size_t i = 0; i < json_count(list.value) && reader_ok(place->reader); i++) {
		struct place item = place_at(&list, i);
		experiment_check_assignment(experiment, &item, "baseline");
		if (!place_is(&item, JSON_KIND_OBJECT) || !json_count(item.value))
			place_fail(&item, false, "must be an object of settings, such as {\"speculation\": \"ngram\"}");
		if (json_get(item.value, "baseline"))
			continue; /* the baseline runs every workload anyway; the key lets a file say so */
		for (int arm = 0; arm < experiment->n_arms; arm++)
			applies[arm] = applies[arm] || experiment_arm_matches(&experiment->arms[arm], item.value);
	}
	for (int arm = 0; arm < experiment->n_arms; arm++)
		applies[arm] = applies[arm] || all || experiment->arms[arm].kind != ARM_CANDIDATE;
}

static void add_workload(
	struct experiment *experiment, const struct place *place, struct workload workload, int concurrency, bool listed)
{
	static const char *const kind_names[] = {"random", "jsonl", "chat"};
	struct reader *reader = place->reader;
	workload.concurrency = concurrency;
	workload.requests = (int)place_integer(place, "requests", 1, TOKENS_MAX, 4LL * concurrency);
	if (!workload.name)
		workload.name = reader_print(reader, "%s-c%d", kind_names[workload.dataset], concurrency);
	else if (listed)
		workload.name = reader_print(reader, "%s-c%d", workload.name, concurrency);
	for (int i = 0; i < experiment->n_workloads; i++)
		if (text_equal(experiment->workloads[i].name, workload.name))
			place_fail(place, false, "two workloads are named '%s'", workload.name);
	if (workload.requests < concurrency)
		place_fail(place, false, "requests (%d) must be at least the concurrency (%d)", workload.requests, concurrency);
	if (experiment->n_workloads == EXPERIMENT_WORKLOADS_MAX)
		place_fail(place, false, "more than %d workloads", EXPERIMENT_WORKLOADS_MAX);
	else if (reader_ok(reader))
		experiment->workloads[experiment->n_workloads++] = workload;
}

/* "concurrency" is a number, or a list that makes one workload for each of its numbers. */
static void add_workloads(struct experiment *experiment, const struct place *place, const struct workload *workload)
{
	struct place concurrency = place_get(place, "concurrency");
	if (json_kind_of(concurrency.value) != JSON_KIND_ARRAY) {
		add_workload(experiment, place, *workload, (int)place_integer(place, "concurrency", 1, CONCURRENCY_MAX, 1), false);
		return;
	}
	if (!json_count(concurrency.value))
		place_fail(&concurrency, false, "must not be an empty list");
	for (size_t i = 0; i < json_count(concurrency.value) && reader_ok(place->reader); i++) {
		struct place item = place_at(&concurrency, i);
		int64_t value = json_int(item.value, 0);
		if (value < 1 || value > CONCURRENCY_MAX)
			place_fail(&item, false, "must be an integer from 1 to %d", CONCURRENCY_MAX);
		else
			add_workload(experiment, place, *workload, (int)value, true);
	}
}

static void read_workload(struct experiment *experiment, const struct place *place)
{
	static const char *const endpoints[] = {"/v1/completions", "/v1/chat/completions", NULL};
	static const char *const caches[] = {"cold", "warm", NULL};
	struct workload workload = {0};
	place_section(place, SECTION_WORKLOAD);
	workload.name = place_name(place, NULL);
	struct place dataset = place_get(place, "dataset");
	/* Workloads of one object, for each number of its concurrency, share their prompts: those of the first are as good as any.
	 */
	read_dataset(&workload, json_at(place->reader->recorded_workloads, (size_t)experiment->n_workloads), &dataset);
	read_sampling(&workload, place, &dataset);
	int endpoint = place_choice(place, "endpoint", endpoints, workload.dataset == DATASET_RANDOM_IDS ? 0 : 1);
	workload.endpoint = endpoints[endpoint];
	workload.cache = (enum cache_policy)place_choice(place, "cache", caches, CACHE_COLD);
	if (workload.dataset == DATASET_RANDOM_IDS && endpoint == 1)
		place_fail(place, false, "random token ids can only be sent to /v1/completions");
	read_applies(experiment, &workload, place);
	if (reader_ok(place->reader))
		add_workloads(experiment, place, &workload);
}

static bool is_speculative(const struct arm *arm)
{
	for (size_t i = 0; i < arm->n_settings; i++)
		if (text_equal(arm->settings[i].knob, "speculation") && !text_equal(arm->settings[i].text, "off"))
			return true;
	return false;
}

static void check_arms_have_work(struct experiment *experiment, const struct place *place)
{
	struct reader *reader = place->reader;
	for (int arm = 0; arm < experiment->n_arms && reader_ok(reader); arm++) {
		bool works = false, random_only = true;
		for (int i = 0; i < experiment->n_workloads; i++) {
			const struct workload *workload = &experiment->workloads[i];
			works = works || workload->applies[arm];
			random_only = random_only && (!workload->applies[arm] || workload->dataset == DATASET_RANDOM_IDS);
		}
		const char *name = experiment->arms[arm].name;
		if (!works)
			place_fail(place, false, "no workload applies to %s", name);
		else if (random_only && is_speculative(&experiment->arms[arm]) && experiment->arms[arm].kind == ARM_CANDIDATE)
			string_list_add(reader->arena, &experiment->notices,
				reader_print(reader,
					"%s is measured on random tokens only, which misstates speculation; add a text workload",
					name));
	}
}

void experiment_read_workloads(struct experiment *experiment, const struct place *root)
{
	struct place list = place_get(root, "workloads");
	if (!list.value) {
		struct json *empty = json_new_object();
		struct place alone = {root->reader, empty, "workloads"};
		read_workload(experiment, &alone);
		json_free(empty);
	} else if (place_is(&list, JSON_KIND_ARRAY)) {
		if (!json_count(list.value))
			place_fail(&list, false, "must not be an empty list");
		for (size_t i = 0; i < json_count(list.value) && reader_ok(root->reader); i++) {
			struct place item = place_at(&list, i);
			if (place_is(&item, JSON_KIND_OBJECT))
				read_workload(experiment, &item);
		}
	}
	if (reader_ok(root->reader))
		check_arms_have_work(experiment, &list);
}

void experiment_make_quick(struct experiment *experiment)
{
	struct protocol *protocol = &experiment->protocol;
	protocol->quick = true;
	protocol->blocks = protocol->max_blocks = 3;
	protocol->looks[0] = 3;
	protocol->n_looks = 1;
	protocol->runs_per_launch = 1;
	protocol->screening = false;
	/* A greedy search that confirms nothing would have no end. */
	experiment->rules.confirm_winner_blocks = experiment->search == SEARCH_GREEDY ? 3 : 0;
	for (int i = 0; i < experiment->n_workloads; i++) {
		struct workload *workload = &experiment->workloads[i];
		int requests_max = 2 * workload->concurrency;
		workload->output_len = workload->output_len < QUICK_OUTPUT_TOKENS ? workload->output_len : QUICK_OUTPUT_TOKENS;
		workload->requests = workload->requests < requests_max ? workload->requests : requests_max;
	}
}

struct json *workload_json(const struct workload *workload)
{
	struct json *document = json_new_object(), *prompts = json_new_array();
	for (size_t i = 0; i < workload->prompts.count; i++)
		json_append(prompts, json_new_string(workload->prompts.items[i]));
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
