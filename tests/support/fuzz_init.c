/* What must hold of any command line and any file of prompts; used by fuzzers and by the tests that replay their corpora. */
#include "tests/support/fuzz_init.h"

#include <string.h>

#include "harness/experiment.h"
#include "harness/init.h"
#include "harness/init_llama_bench.h"
#include "harness/init_sweep.h"
#include "harness/prompt_array.h"

#define WORDS_MAX 64

/* One word a line, as a shell would have split it: no NUL in any. */
static size_t split_words(char *text, const char *words[WORDS_MAX])
{
	size_t n = 0;
	for (char *line = text; line && n < WORDS_MAX;) {
		char *end = strchr(line, '\n');
		if (end)
			*end = '\0';
		words[n++] = line;
		line = end ? end + 1 : NULL;
	}
	return n;
}

/* A document that was made must be an experiment, or be refused as one in words. */
static void check_document(const struct json *document)
{
	struct text text = {0};
	struct experiment *experiment = NULL;
	struct err err = {0};
	json_write(document, JSON_STYLE_PRETTY, &text);
	enum status status = experiment_parse(text_str(&text), text.len, "made.json", NULL, &experiment, &err);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
	if (status == STATUS_OK)
		experiment_release(experiment);
	text_release(&text);
}

void check_init_bytes(const uint8_t *data, size_t size)
{
	char *text = mem_strndup((const char *)data, size);
	const char *words[WORDS_MAX];
	struct init_request request = {.words = words, .n_words = split_words(text, words), .cpus = 4};
	struct json *document = NULL;
	struct text notes = {0};
	struct err err = {0};
	enum status status = init_is_llama_bench(&request) ? init_llama_bench(&request, &document, &notes, &err)
							   : init_document(&request, &document, &notes, &err);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
	if (status == STATUS_OK)
		check_document(document);
	json_free(document);
	text_release(&notes);
	mem_free(text);
}

void check_init_sweep_bytes(const uint8_t *data, size_t size)
{
	static const char *const words[] = {"vllm", "serve", "m", "--max-num-seqs", "8"};
	struct init_request request = {.words = words, .n_words = 5, .cpus = 4};
	struct json *document = NULL, *sweep = NULL;
	struct text notes = {0};
	struct err err = {0};
	if (json_parse((const char *)data, size, "sweep", &sweep, NULL) != STATUS_OK)
		return;
	ASSERT(init_document(&request, &document, &notes, &err) == STATUS_OK);
	enum status status = init_apply_sweep(document, sweep, "sweep", &err);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
	if (status == STATUS_OK)
		check_document(document);
	json_free(document);
	json_free(sweep);
	text_release(&notes);
}

/* What was read is written and read again as the same. */
static void check_prompts(const struct prompt_list *prompts)
{
	struct arena arena = {0};
	struct prompt_list again = {0};
	struct json *array = json_new_array();
	for (size_t i = 0; i < prompts->count; i++) {
		ASSERT((prompts->items[i].text == NULL) != (prompts->items[i].messages == NULL));
		json_append(array, prompt_json(&prompts->items[i]));
	}
	prompts_from_json(array, &arena, &again);
	ASSERT(again.count == prompts->count);
	for (size_t i = 0; i < again.count; i++)
		ASSERT(text_equal(again.items[i].text, prompts->items[i].text) &&
			text_equal(again.items[i].messages, prompts->items[i].messages) &&
			again.items[i].output_len == prompts->items[i].output_len);
	json_free(array);
	arena_release(&arena);
}

static void check_trace(const struct trace *trace, int block_tokens)
{
	for (size_t i = 0; i < trace->count; i++) {
		const struct trace_request *request = &trace->items[i];
		ASSERT(request->input_len > 0 && request->output_len > 0 && request->at_ms >= 0);
		ASSERT(i == 0 || request->at_ms >= trace->items[i - 1].at_ms);
		ASSERT(!request->hash_ids || (request->n_hash_ids - 1) * (size_t)block_tokens < (size_t)request->input_len);
	}
}

/* Feeds an array in pieces of step bytes. Returns whether it was taken. */
static bool feed_array(const uint8_t *data, size_t size, size_t step, struct prompt_array *array, struct err *err)
{
	enum status status = STATUS_OK;
	for (size_t at = 0; at < size && !status; at += step)
		status = prompt_array_feed(array, (const char *)data + at, size - at < step ? size - at : step, err);
	if (!status)
		status = prompt_array_finish(array, err);
	prompt_array_release(array);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err->text[0]));
	return status == STATUS_OK;
}

/* The same prompts, or the same complaint, however the bytes are cut. */
static void check_array(const uint8_t *data, size_t size)
{
	struct arena arena = {0};
	struct err whole_err = {0}, cut_err = {0};
	struct prompt_array whole = {.source = "a", .arena = &arena, .seed = 1, .sample = 3}, cut = whole;
	bool taken = feed_array(data, size, size + 1, &whole, &whole_err);
	ASSERT(feed_array(data, size, 1, &cut, &cut_err) == taken && text_equal(whole_err.text, cut_err.text));
	ASSERT(whole.prompts.count == cut.prompts.count && whole.prompts.count <= 3 && whole.usable <= whole.entries);
	check_prompts(&whole.prompts);
	arena_release(&arena);
}

void check_prompt_file_bytes(const uint8_t *data, size_t size)
{
	struct arena arena = {0};
	struct prompt_list prompts = {0};
	struct trace trace = {0};
	struct err err = {0};
	enum status status = prompt_file_parse((const char *)data, size, "p", &arena, &prompts, &err);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
	check_prompts(&prompts);
	check_array(data, size);
	err_clear(&err);
	status = trace_file_parse((const char *)data, size, "t", 8, &arena, &trace, &err);
	ASSERT(status == STATUS_OK || (status == STATUS_INPUT && err.text[0]));
	check_trace(&trace, 8);
	arena_release(&arena);
}
