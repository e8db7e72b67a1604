/* Reads what the prompts of a workload are, or how they are made, and how long answers may be. */
#include "harness/experiment_internal.h"

#include <string.h>

#include "base/file.h"
#include "harness/prompt_array.h"

#define PROMPT_FILE_BYTES_MAX ((size_t)64 << 20)
#define GROUPS_MAX 100000
#define BLOCK_TOKENS_MOONCAKE 512 /* of the traces that Mooncake published */

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

static const char *const dataset_names[] = {"random_ids", "jsonl", "text", "shared_prefix", "trace", NULL};

const char *dataset_name(enum dataset_kind kind)
{
	return dataset_names[kind];
}

static bool is_made_of_ids(const struct workload *workload)
{
	return workload->dataset != DATASET_JSONL && workload->dataset != DATASET_TEXT;
}

static const char *beside_source(struct reader *reader, const char *path)
{
	const char *slash = strrchr(reader->source, '/');
	if (path[0] == '/' || !slash)
		return path;
	return reader_print(reader, "%.*s%s", (int)(slash + 1 - reader->source), reader->source, path);
}

/* A file while it comes in: lines are kept until all are there, the entries of an array are read as they come. */
struct file_reader {
	bool begun, is_array, bad_entry;
	struct text lines;
	struct prompt_array array;
};

/* The first character that is no white space tells what the file is. */
static void look_at_beginning(struct file_reader *file, const char *bytes, size_t len)
{
	for (size_t i = 0; i < len && !file->begun; i++) {
		file->begun = !memchr(" \t\r\n", bytes[i], 4);
		file->is_array = file->begun && file->array.sample && bytes[i] == '[';
	}
}

static enum status take_chunk(void *ctx, const char *bytes, size_t len, struct err *err)
{
	struct file_reader *file = ctx;
	look_at_beginning(file, bytes, len);
	if (file->is_array) {
		enum status status = prompt_array_feed(&file->array, bytes, len, err);
		file->bad_entry = status != STATUS_OK;
		return status;
	}
	if (file->lines.len + len > PROMPT_FILE_BYTES_MAX)
		return err_set(err, STATUS_INPUT, "a file of lines must not be larger than %zu bytes", PROMPT_FILE_BYTES_MAX);
	text_append(&file->lines, bytes, len);
	return STATUS_OK;
}

static void take_array(struct workload *workload, struct file_reader *file, struct err *err)
{
	if (prompt_array_finish(&file->array, err) != STATUS_OK)
		return;
	workload->prompts = file->array.prompts;
	workload->file_entries = file->array.entries;
	workload->file_usable = file->array.usable;
}

/* Reads the file of prompts or the trace. sample: prompts to keep of one that is an array. */
static void read_file(struct workload *workload, const struct place *path, size_t sample)
{
	struct reader *reader = path->reader;
	struct err inner = {0};
	workload->path = beside_source(reader, workload->path);
	struct file_reader file = {.array = {.source = workload->path, .arena = reader->arena, .seed = workload->seed}};
	if (workload->dataset == DATASET_JSONL)
		file.array.sample = sample;
	enum status status = file_stream(workload->path, PROMPT_ARRAY_BYTES_MAX, take_chunk, &file, &inner);
	if (status && file.bad_entry)
		err_set(reader->err, status, "%s", inner.text);
	else if (status)
		place_fail(path, false, "%s", inner.text);
	else if (file.is_array)
		take_array(workload, &file, reader->err);
	else if (workload->dataset == DATASET_JSONL)
		prompt_file_parse(
			text_str(&file.lines), file.lines.len, workload->path, reader->arena, &workload->prompts, reader->err);
	else
		trace_file_parse(text_str(&file.lines), file.lines.len, workload->path, workload->block_tokens, reader->arena,
			&workload->trace, reader->err);
	if (reader_ok(reader) && !workload->prompts.count && !workload->trace.count)
		place_fail(path, false, "%s holds no %s", workload->path,
			file.is_array && file.array.entries          ? "prompt that could be taken (see harness/prompt_array.h)"
				: workload->dataset == DATASET_JSONL ? "prompts"
								     : "requests");
	prompt_array_release(&file.array);
	text_release(&file.lines);
}

/* A record tells the prompts that an experiment was run with: their file may have changed or gone since. */
static void read_contents(struct workload *workload, const struct json *recorded, const struct place *path, size_t sample)
{
	struct arena *arena = path->reader->arena;
	const struct json *document = json_get(recorded, "document");
	if (!recorded && workload->path && reader_ok(path->reader)) {
		read_file(workload, path, sample);
	} else if (recorded) {
		prompts_from_json(json_get(document, "prompts"), arena, &workload->prompts);
		trace_from_json(json_get(document, "trace"), workload->block_tokens, arena, &workload->trace);
	}
}

/* Keys that say something about one kind of data set only. */
static void check_keys_belong(const struct workload *workload, const struct place *dataset)
{
	static const struct {
		const char *key;
		unsigned kinds; /* bits by enum dataset_kind */
		const char *reason;
	} owners[] = {
		{"prompts", 1U << DATASET_TEXT, "prompts belong to a dataset of kind text"},
		{"path", 1U << DATASET_JSONL | 1U << DATASET_TRACE, "a path belongs to a dataset of kind jsonl or trace"},
		{"input_len", 1U << DATASET_RANDOM_IDS,
			"input_len belongs to a dataset of kind random_ids; texts have the length they have"},
		{"jitter", 1U << DATASET_RANDOM_IDS | 1U << DATASET_SHARED_PREFIX,
			"jitter belongs to a dataset of kind random_ids or shared_prefix"},
		{"groups", 1U << DATASET_SHARED_PREFIX, "groups belong to a dataset of kind shared_prefix"},
		{"prefix_len", 1U << DATASET_SHARED_PREFIX, "prefix_len belongs to a dataset of kind shared_prefix"},
		{"suffix_len", 1U << DATASET_SHARED_PREFIX, "suffix_len belongs to a dataset of kind shared_prefix"},
		{"sample", 1U << DATASET_JSONL, "a sample belongs to a dataset of kind jsonl"},
		{"block_tokens", 1U << DATASET_TRACE, "block_tokens belong to a dataset of kind trace"},
		{"output_len", ~(1U << DATASET_TRACE), "a trace says itself how long each answer is"},
	};
	for (size_t i = 0; i < sizeof owners / sizeof owners[0]; i++) {
		struct place place = place_get(dataset, owners[i].key);
		bool neutral = text_equal(owners[i].key, "jitter") && json_number(place.value, 1) == 0;
		if (place.value && !neutral && !(owners[i].kinds & 1U << workload->dataset))
			place_fail(&place, true, "%s", owners[i].reason);
	}
}

static enum dataset_kind guess_kind(const struct place *dataset)
{
	if (json_get(dataset->value, "path"))
		return json_get(dataset->value, "block_tokens") ? DATASET_TRACE : DATASET_JSONL;
	if (json_get(dataset->value, "groups") || json_get(dataset->value, "prefix_len"))
		return DATASET_SHARED_PREFIX;
	return json_get(dataset->value, "input_len") ? DATASET_RANDOM_IDS : DATASET_TEXT;
}

static void read_lengths(struct workload *workload, const struct place *dataset)
{
	workload->seed = (uint64_t)place_integer(dataset, "seed", 0, INT64_MAX, 1);
	workload->jitter = place_number(dataset, "jitter", 0, 1, 0);
	workload->block_tokens = (int)place_integer(dataset, "block_tokens", 1, PROMPT_TOKENS_MAX, BLOCK_TOKENS_MOONCAKE);
	if (workload->dataset == DATASET_SHARED_PREFIX) {
		workload->groups = (int)place_integer(dataset, "groups", 1, GROUPS_MAX, 4);
		workload->prefix_len = (int)place_integer(dataset, "prefix_len", 1, PROMPT_TOKENS_MAX, 256);
		workload->input_len = (int)place_integer(dataset, "suffix_len", 1, PROMPT_TOKENS_MAX, 64);
	} else if (workload->dataset == DATASET_RANDOM_IDS) {
		workload->input_len = (int)place_integer(dataset, "input_len", 1, PROMPT_TOKENS_MAX, 256);
	}
	check_keys_belong(workload, dataset);
}

static void read_prompts(struct workload *workload, const struct json *recorded, const struct place *dataset)
{
	struct reader *reader = dataset->reader;
	struct place path = place_get(dataset, "path"), prompts = place_get(dataset, "prompts");
	bool has_file = workload->dataset == DATASET_JSONL || workload->dataset == DATASET_TRACE;
	struct string_list texts = {0};
	workload->path = place_text(dataset, "path", NULL);
	if (has_file && !workload->path)
		place_fail(dataset, false, "a dataset of kind %s needs a path", dataset_name(workload->dataset));
	if (text_equal(workload->path, "-"))
		place_fail(&path, false, "prompts cannot come from standard input");
	long long sample = place_integer(dataset, "sample", 1, PROMPT_FILE_LINES_MAX, PROMPT_SAMPLE_DEFAULT);
	if (has_file)
		read_contents(workload, recorded, &path, (size_t)sample);
	struct place asked = place_get(dataset, "sample");
	if (asked.value && has_file && !recorded && reader_ok(reader) && !workload->file_entries)
		place_fail(&asked, true, "a sample is taken of a file that is one array; of lines all are used");
	if (workload->dataset != DATASET_TEXT)
		return;
	place_strings(dataset, "prompts", false, &texts);
	if (prompts.value && !texts.count)
		place_fail(&prompts, false, "must list at least one prompt");
	if (!prompts.value)
		for (size_t i = 0; i < sizeof default_prompts / sizeof default_prompts[0]; i++)
			string_list_add(reader->arena, &texts, default_prompts[i]);
	for (size_t i = 0; i < texts.count; i++)
		prompt_list_add(&workload->prompts, reader->arena, (struct prompt){.text = texts.items[i]});
}

static void read_sampling(struct workload *workload, const struct place *place, const struct place *dataset)
{
	struct place sampling = place_get(place, "sampling");
	place_section(&sampling, SECTION_SAMPLING);
	workload->temperature = place_number(&sampling, "temperature", 0, 10, 0);
	workload->ignore_eos = place_bool(&sampling, "ignore_eos", is_made_of_ids(workload));
	struct place max_tokens = place_get(&sampling, "max_tokens"), output_len = place_get(dataset, "output_len");
	if (max_tokens.value && output_len.value)
		place_fail(&max_tokens, true, "say either sampling.max_tokens or dataset.output_len");
	if (max_tokens.value && workload->dataset == DATASET_TRACE)
		place_fail(&max_tokens, true, "a trace says itself how long each answer is");
	long long fallback = place_integer(&sampling, "max_tokens", 1, PROMPT_TOKENS_MAX, 64);
	workload->output_len = (int)place_integer(dataset, "output_len", 1, PROMPT_TOKENS_MAX, fallback);
	if (workload->dataset == DATASET_TRACE)
		workload->output_len = 1;
	for (size_t i = 0; i < workload->trace.count; i++)
		if (workload->trace.items[i].output_len > workload->output_len)
			workload->output_len = workload->trace.items[i].output_len;
}

/* A chat of several messages needs the template that only the chat endpoint applies. */
static void check_fits_endpoint(const struct workload *workload, bool chat, const struct place *place)
{
	if (is_made_of_ids(workload) && chat)
		place_fail(place, false, "random token ids can only be sent to /v1/completions");
	for (size_t i = 0; i < workload->prompts.count && !chat; i++)
		if (workload->prompts.items[i].messages)
			place_fail(place, false,
				"prompt %zu of the dataset has several messages, which only /v1/chat/completions takes", i + 1);
}

void experiment_read_dataset(struct workload *workload, const struct json *recorded, const struct place *place)
{
	static const char *const endpoints[] = {"/v1/completions", "/v1/chat/completions", NULL};
	struct place dataset = place_get(place, "dataset");
	place_section(&dataset, SECTION_DATASET);
	workload->dataset = (enum dataset_kind)place_choice(&dataset, "kind", dataset_names, (int)guess_kind(&dataset));
	read_lengths(workload, &dataset);
	read_prompts(workload, recorded, &dataset);
	read_sampling(workload, place, &dataset);
	int endpoint = place_choice(place, "endpoint", endpoints, is_made_of_ids(workload) ? 0 : 1);
	workload->endpoint = endpoints[endpoint];
	check_fits_endpoint(workload, endpoint == 1, place);
}
