/* harness/prompt_array: one large array of prompts, read as it comes; and data sets that are no regular files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "harness/experiment.h"
#include "harness/prompt_array.h"
#include "tests/support/experiment_text.h"
#include "tests/support/temp_folder.h"

#define QUESTION "Who wrote the first compiler, and for which machine?"
#define ANSWER "Grace Hopper wrote A-0 for the UNIVAC I in 1952."
#define TURN(from, value) "{'from':'" from "','value':'" value "'}"
#define CONVERSATION(turns) "{'id':'x_0','conversations':[" turns "]}"
#define GOOD CONVERSATION(TURN("human", QUESTION) "," TURN("gpt", ANSWER))

/* Reads text, with ' for ", in pieces of step bytes. */
static enum status read_array(const char *text, size_t step, struct prompt_array *array, struct err *err)
{
	struct text bytes = {0};
	enum status status = STATUS_OK;
	for (; *text; text++)
		text_append_char(&bytes, *text == '\'' ? '"' : *text);
	for (size_t at = 0; at < bytes.len && !status; at += step)
		status = prompt_array_feed(array, bytes.data + at, bytes.len - at < step ? bytes.len - at : step, err);
	if (!status)
		status = prompt_array_finish(array, err);
	prompt_array_release(array);
	text_release(&bytes);
	return status;
}

static struct prompt_array array_of(struct arena *arena, size_t sample)
{
	return (struct prompt_array){.source = "s.json", .arena = arena, .seed = 1, .sample = sample};
}

static void the_first_question_of_each_conversation_is_taken(void **state)
{
	static const char text[] =
		" \n[\n " GOOD ",\n"
		"{'id':'y','conversations':[" TURN("user", QUESTION " [1] {2}") "," TURN("model", ANSWER) "," TURN("human",
			"More") "]}\n,"
				"{'prompt':'Plain, with \\\\ and \\u0041','output_len':5},"
				"{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':'Why?'}]} ]\n";
	for (size_t step = 1; step < sizeof text + 1; step += 7) {
		struct arena arena = {0};
		struct err err = {0};
		struct prompt_array array = array_of(&arena, 100);
		if (read_array(text, step, &array, &err))
			fail_msg("in steps of %zu: %s", step, err.text);
		assert_true(array.entries == 4 && array.usable == 4 && array.prompts.count == 4);
		assert_string_equal(array.prompts.items[0].text, QUESTION);
		assert_string_equal(array.prompts.items[1].text, QUESTION " [1] {2}");
		assert_string_equal(array.prompts.items[2].text, "Plain, with \\ and A");
		assert_int_equal(array.prompts.items[2].output_len, 5);
		assert_null(array.prompts.items[3].text);
		arena_release(&arena);
	}
}

/* A text of so many bytes. */
static const char *long_text(size_t bytes)
{
	static char texts[4][16384];
	static int next;
	char *text = texts[next++ % 4];
	memset(text, 'a', bytes);
	text[bytes] = '\0';
	return text;
}

/* What vLLM's and SGLang's readers pass over. */
static void conversations_that_others_would_not_take_are_passed_over(void **state)
{
	const struct {
		const char *first, *second; /* of two turns; NULL: there are fewer */
		const char *from, *to;
		bool taken;
	} cases[] = {
		{QUESTION, ANSWER, "human", "gpt", true},
		{QUESTION, NULL, "human", "gpt", false},
		{NULL, NULL, "human", "gpt", false},
		{QUESTION, ANSWER, "gpt", "human", false},
		{QUESTION, ANSWER, "human", "human", false},
		{QUESTION, ANSWER, "system", "human", false},
		{"", ANSWER, "human", "gpt", false},
		{QUESTION, "", "human", "gpt", false},
		{"Hello, you", ANSWER, "human", "gpt", false}, /* three tokens */
		{"Hello, you all", ANSWER, "human", "gpt", true}, /* four */
		{QUESTION, "It was me.", "human", "gpt", false},
		{long_text(4096), ANSWER, "human", "gpt", true}, /* 1024 tokens */
		{long_text(4097), ANSWER, "human", "gpt", false},
		{long_text(4096), long_text(4096), "human", "gpt", true}, /* 2048 together */
		{long_text(4096), long_text(4097), "human", "gpt", false},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct arena arena = {0};
		struct err err = {0};
		struct prompt_array array = array_of(&arena, 100);
		struct text text = {0};
		text_append_str(&text, "[{'conversations':[");
		if (cases[i].first)
			text_printf(&text, "{'from':'%s','value':'%s'}", cases[i].from, cases[i].first);
		if (cases[i].second)
			text_printf(&text, ",{'from':'%s','value':'%s'}", cases[i].to, cases[i].second);
		text_append_str(&text, "]}]");
		if (read_array(text_str(&text), 1000, &array, &err))
			fail_msg("case %zu: %s", i, err.text);
		if (array.entries != 1 || (array.usable == 1) != cases[i].taken)
			fail_msg("case %zu: %zu taken", i, array.usable);
		text_release(&text);
		arena_release(&arena);
	}
}

static void bad_entries_are_refused_by_number(void **state)
{
	static const struct {
		const char *text, *complaint;
	} cases[] = {
		{"[" GOOD ",\n" GOOD ",\n{'conversations':7}]", "s.json:3:1: entry 3: conversations must be a list"},
		{"[" GOOD ",\n[]]", "s.json:2:1: entry 2: expected an object with"},
		{"[" GOOD ",\n7 ]", "s.json:2:1: entry 2: expected an object with"},
		{"[" GOOD ", 'text']", "s.json:1:1: entry 2: expected an object with"},
		{"[{'conversations':[7, 8]}]", "s.json:1:1: entry 1: a turn must be an object"},
		{"[{'conversations':[{'value':'x'}, {'from':'gpt','value':'x'}]}]",
			"s.json:1:1: entry 1: a turn must be an object"},
		{"[{'conversations':[" TURN("human", QUESTION) ",{'from':'gpt','value':null}]}]", "entry 1: value must be a text"},
		{"[{'conversations':[" TURN("human", "a\\u0000b") "," TURN("gpt", ANSWER) "]}]",
			"entry 1: value must not contain a NUL"},
		{"[{'prompt':''}]", "entry 1: prompt must be a text that is not empty"},
		{"[{'prompt':'a','temperature':1}]", "entry 1: unknown key 'temperature'"},
		{"[" GOOD ",\n{'prompt':'a' 'b'}]", "s.json:2:1: entry 2: "},
		{"[" GOOD ",\n{'prompt':nonsense}]", "s.json:2:1: entry 2: "},
		{"[" GOOD, "s.json:1:"},
		{"[", "the array does not end"},
		{"", "the array does not end"},
		{"[" GOOD ",]", "expected an entry"},
		{"[,]", "expected an entry"},
		{"[" GOOD "}", "unexpected '}'"},
		{"[" GOOD "] x", "expected the end of the file"},
		{"[" GOOD "]\n[" GOOD "]", "s.json:2:1: expected the end of the file"},
		{"{}", "expected ["},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct arena arena = {0};
		struct err err = {0};
		struct prompt_array array = array_of(&arena, 100);
		enum status status = read_array(cases[i].text, 13, &array, &err);
		if (status != STATUS_INPUT || !strstr(err.text, cases[i].complaint) || !text_starts_with(err.text, "s.json:"))
			fail_msg("%s\n  expected: %s\n  got:      %s", cases[i].text, cases[i].complaint, err.text);
		arena_release(&arena);
	}
}

static void an_entry_without_an_end_is_not_kept_for_ever(void **state)
{
	struct arena arena = {0};
	struct err err = {0};
	struct prompt_array array = array_of(&arena, 1);
	struct text chunk = {0};
	enum status status = prompt_array_feed(&array, "[\"", 2, &err);
	text_append_str(&chunk, long_text(16000));
	for (size_t fed = 0; fed < 2 * PROMPT_ENTRY_BYTES_MAX && !status; fed += chunk.len)
		status = prompt_array_feed(&array, chunk.data, chunk.len, &err);
	assert_int_equal(status, STATUS_INPUT);
	assert_non_null(strstr(err.text, "s.json:1:1: entry 1: is longer than 16777216 bytes"));
	prompt_array_release(&array);
	text_release(&chunk);
	arena_release(&arena);
}

/* Feeds numbered prompts and marks those that were kept. */
static void draw(uint64_t seed, int entries, size_t sample, int *kept)
{
	struct arena arena = {0};
	struct prompt_array array = {.source = "s", .arena = &arena, .seed = seed, .sample = sample};
	struct text text = {0};
	for (int i = 0; i < entries; i++) {
		text_clear(&text);
		text_printf(&text, "%s{\"prompt\": \"%d\"}%s", i ? "," : "[", i, i + 1 < entries ? "" : "]");
		assert_int_equal(prompt_array_feed(&array, text_str(&text), text.len, NULL), STATUS_OK);
	}
	assert_int_equal(prompt_array_finish(&array, NULL), STATUS_OK);
	assert_int_equal(array.prompts.count, sample);
	for (size_t i = 0; i < array.prompts.count; i++) {
		long long number;
		assert_true(text_to_i64(array.prompts.items[i].text, &number));
		kept[number]++;
	}
	prompt_array_release(&array);
	text_release(&text);
	arena_release(&arena);
}

static void a_sample_follows_the_seed_and_prefers_nothing(void **state)
{
	enum { ENTRIES = 60, SAMPLE = 12, SEEDS = 500 };
	int first[ENTRIES] = {0}, again[ENTRIES] = {0}, other[ENTRIES] = {0}, counts[ENTRIES] = {0};
	draw(1, ENTRIES, SAMPLE, first);
	draw(1, ENTRIES, SAMPLE, again);
	draw(2, ENTRIES, SAMPLE, other);
	assert_memory_equal(first, again, sizeof first);
	assert_memory_not_equal(first, other, sizeof first);
	for (uint64_t seed = 0; seed < SEEDS; seed++)
		draw(seed, ENTRIES, SAMPLE, counts);
	for (int i = 0; i < ENTRIES; i++)
		assert_in_range(counts[i], 60, 140); /* 100 each, sd 9 */
}

/* --- through an experiment ------------------------------------------------------------------------------------------ */

static enum status load(const char *dataset, struct experiment **out, struct err *err)
{
	struct text text = {0};
	text_printf(&text, "{'name':'a','matrix':{'factors':{'graph_max_bs':[8,0]}},'workloads':[{'concurrency':1,'dataset':%s}]}",
		dataset);
	for (size_t i = 0; i < text.len; i++)
		text.data[i] = text.data[i] == '\'' ? '"' : text.data[i];
	enum status status = experiment_parse(text_str(&text), text.len, "a.json", NULL, out, err);
	text_release(&text);
	return status;
}

static void an_experiment_takes_a_sample_and_says_of_what(void **state)
{
	struct temp_folder folder;
	struct experiment *experiment = NULL;
	struct text text = {0};
	struct err err = {0};
	char dataset[160];
	temp_folder_make(&folder);
	for (int i = 0; i < 3000; i++) /* more than one chunk, and cut anywhere */
		text_printf(&text,
			"%s{\"id\": \"%d\", \"conversations\": [{\"from\": \"human\", \"value\": \"Question %d of this data "
			"set?\"}%s]}",
			i ? ",\n" : "[", i, i, i % 3 ? ", {\"from\": \"gpt\", \"value\": \"An answer that is long enough.\"}" : "");
	text_append_str(&text, "]\n");
	temp_folder_write(&folder, "share.json", text_str(&text), text.len);
	snprintf(dataset, sizeof dataset, "{'path':'%s/share.json','sample':50,'seed':7}", folder.path);
	if (load(dataset, &experiment, &err))
		fail_msg("%s", err.text);
	assert_int_equal(experiment->workloads[0].dataset, DATASET_JSONL);
	assert_int_equal(experiment->workloads[0].prompts.count, 50);
	assert_int_equal(experiment->notices.count, 1);
	assert_non_null(
		strstr(experiment->notices.items[0], "share.json: 50 prompts, of 2000 that could be taken, of 3000 entries"));
	experiment_release(experiment);
	snprintf(dataset, sizeof dataset, "{'path':'%s/share.json'}", folder.path);
	assert_int_equal(load(dataset, &experiment, &err), STATUS_OK);
	assert_int_equal(experiment->workloads[0].prompts.count, PROMPT_SAMPLE_DEFAULT);
	experiment_release(experiment);
	text_release(&text);
	temp_folder_remove(&folder);
}

static void assert_refused(const char *dataset, const char *complaint)
{
	struct experiment *experiment = NULL;
	struct err err = {0};
	assert_int_equal(load(dataset, &experiment, &err), STATUS_INPUT);
	if (!strstr(err.text, complaint))
		fail_msg("%s: %s", dataset, err.text);
}

static void data_sets_that_cannot_be_used_are_refused_at_once(void **state)
{
	static const char *const kinds[] = {"jsonl", "trace"};
	struct temp_folder folder;
	char dataset[200], fifo[128];
	temp_folder_make(&folder);
	snprintf(fifo, sizeof fifo, "%s/fifo", folder.path);
	assert_int_equal(mkfifo(fifo, 0600), 0); /* nobody writes to it: to open it would take for ever */
	temp_folder_write_text(&folder, "short.json", "[{\"conversations\": []}]");
	temp_folder_write_text(&folder, "empty.json", " [ ] ");
	temp_folder_write_text(&folder, "lines.jsonl", "{\"prompt\": \"a\"}\n");
	temp_folder_write_text(&folder, "bad.json", "[{\"prompt\": \"a\"},\n{\"prompt\": 1}]");
	for (size_t i = 0; i < 2; i++) {
		snprintf(dataset, sizeof dataset, "{'kind':'%s','path':'%s'}", kinds[i], fifo);
		assert_refused(dataset, "is not a regular file");
		snprintf(dataset, sizeof dataset, "{'kind':'%s','path':'%s'}", kinds[i], folder.path);
		assert_refused(dataset, "is not a regular file");
		snprintf(dataset, sizeof dataset, "{'kind':'%s','path':'/dev/zero'}", kinds[i]);
		assert_refused(dataset, "is not a regular file");
	}
	snprintf(dataset, sizeof dataset, "{'path':'%s/short.json'}", folder.path);
	assert_refused(dataset, "holds no prompt that could be taken");
	snprintf(dataset, sizeof dataset, "{'path':'%s/empty.json'}", folder.path);
	assert_refused(dataset, "holds no prompts");
	snprintf(dataset, sizeof dataset, "{'path':'%s/lines.jsonl','sample':5}", folder.path);
	assert_refused(dataset, "a sample is taken of a file that is one array");
	snprintf(dataset, sizeof dataset, "{'path':'%s/bad.json'}", folder.path);
	assert_refused(dataset, "bad.json:2:1: entry 2: prompt must be a text");
	assert_refused("{'kind':'text','sample':5}", "a sample belongs to a dataset of kind jsonl");
	temp_folder_remove(&folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_question_of_each_conversation_is_taken),
		cmocka_unit_test(conversations_that_others_would_not_take_are_passed_over),
		cmocka_unit_test(bad_entries_are_refused_by_number),
		cmocka_unit_test(an_entry_without_an_end_is_not_kept_for_ever),
		cmocka_unit_test(a_sample_follows_the_seed_and_prefers_nothing),
		cmocka_unit_test(an_experiment_takes_a_sample_and_says_of_what),
		cmocka_unit_test(data_sets_that_cannot_be_used_are_refused_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
