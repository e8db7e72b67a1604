/* harness/prompt_file: the forms of prompts and traces, and where complaints point. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/text.h"
#include "harness/prompt_file.h"
#include "tests/support/fuzz_init.h"
#include "tests/support/replay_checks.h"

/* Text with ' for ". */
static char *quoted(const char *text)
{
	char *copy = mem_strdup(text);
	for (char *c = copy; *c; c++)
		if (*c == '\'')
			*c = '"';
	return copy;
}

static enum status read_prompts(const char *text, struct arena *arena, struct prompt_list *out, struct err *err)
{
	char *bytes = quoted(text);
	*out = (struct prompt_list){0};
	enum status status = prompt_file_parse(bytes, strlen(bytes), "p.jsonl", arena, out, err);
	mem_free(bytes);
	return status;
}

static enum status read_trace(const char *text, struct arena *arena, struct trace *out, struct err *err)
{
	char *bytes = quoted(text);
	*out = (struct trace){0};
	enum status status = trace_file_parse(bytes, strlen(bytes), "t.jsonl", 512, arena, out, err);
	mem_free(bytes);
	return status;
}

static void a_file_may_mix_plain_chat_and_conversations(void **state)
{
	struct arena arena = {0};
	struct prompt_list prompts;
	struct err err = {0};
	assert_int_equal(
		read_prompts("{'prompt':'Say hi.'}\r\n"
			     "\n"
			     "{'id':7,'prompt':'Count.','output_len':12}\n"
			     "{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':'Why?'}]}\n"
			     "{'messages':[{'role':'user','content':'One message is plain.'}]}\n"
			     "{'id':'x_0','conversations':[{'from':'human','value':'Hello'},{'from':'gpt','value':'Hi!'},"
			     "{'from':'human','value':'never sent'}],'lang':'en'}\n"
			     "{'conversations':[{'from':'system','value':'S'},{'from':'user','value':'Q','markdown':null}]}",
			&arena, &prompts, &err),
		STATUS_OK);
	assert_int_equal(prompts.count, 6);
	assert_string_equal(prompts.items[0].text, "Say hi.");
	assert_int_equal(prompts.items[0].output_len, 0);
	assert_int_equal(prompts.items[1].output_len, 12);
	assert_null(prompts.items[2].text);
	assert_string_equal(prompts.items[2].messages,
		"[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"Why?\"}]");
	assert_string_equal(prompts.items[3].text, "One message is plain.");
	assert_string_equal(prompts.items[4].text, "Hello");
	assert_string_equal(
		prompts.items[5].messages, "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"Q\"}]");
	arena_release(&arena);
}

static const struct {
	const char *text, *complaint;
} refused[] = {
	{"{'prompt':'a'}\n{'prompt':'b'", "p.jsonl:2:"},
	{"{'prompt':'a'} x", "p.jsonl:1:16: "},
	{"\n\n['a']", "p.jsonl:3:1: expected an object with \"prompt\", \"messages\" or \"conversations\""},
	{"{'prompt':''}", "p.jsonl:1:1: prompt must be a text that is not empty"},
	{"{'prompt':7}", "p.jsonl:1:1: prompt must be a text"},
	{"{'prompt':'a\\u0000b'}", "p.jsonl:1:1: prompt must not contain a NUL character"},
	{"{'prompt':'a','system':'b'}", "p.jsonl:1:1: unknown key 'system'"},
	{"{'prompt':'a','output_len':0}", "p.jsonl:1:1: output_len must be an integer from 1 to 1000000"},
	{"{'prompt':'a','output_len':2.5}", "output_len must be an integer"},
	{"{'messages':[]}", "messages must list from 1 to 1000 messages"},
	{"{'messages':'x'}", "messages must list from 1 to 1000 messages"},
	{"{'messages':[{'role':'tool','content':'x'}]}", "message 1: role must be system, user or assistant"},
	{"{'messages':[{'role':'user','content':[{'type':'text'}]}]}", "content must be a text that is not empty"},
	{"{'messages':[{'role':'user','content':'x','name':'n'}]}", "unknown key 'name'"},
	{"{'messages':[{'role':'user','content':'x'},{'role':'assistant','content':'y'}]}", "the last message must be a user's"},
	{"{'messages':[{'role':'user','content':'x'}],'tools':[]}", "unknown key 'tools'"},
	{"{'messages':[7]}", "message 1: role must be"},
	{"{'conversations':[]}", "conversations must list from 1 to 1000 turns"},
	{"{'conversations':[{'from':'gpt','value':'x'}]}", "the conversation begins with an answer"},
	{"{'conversations':[{'from':'system','value':'x'}]}", "nobody asks anything"},
	{"{'conversations':[{'from':'alien','value':'x'}]}", "turn 1: from must be human, gpt or system"},
	{"{'conversations':[{'value':'x'}]}", "turn 1: from must be human, gpt or system"},
	{"{'conversations':[{'from':'human','value':null}]}", "value must be a text"},
};

static void bad_prompts_are_refused_with_file_and_line(void **state)
{
	for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
		struct arena arena = {0};
		struct prompt_list prompts;
		struct err err = {0};
		enum status status = read_prompts(refused[i].text, &arena, &prompts, &err);
		if (status != STATUS_INPUT || !strstr(err.text, refused[i].complaint) || strncmp(err.text, "p.jsonl:", 8) != 0)
			fail_msg("%s\n  expected: %s\n  got:      %s", refused[i].text, refused[i].complaint, err.text);
		arena_release(&arena);
	}
}

static void a_published_trace_is_read(void **state)
{
	struct arena arena = {0};
	struct trace trace;
	struct err err = {0};
	assert_int_equal(
		read_trace("{'timestamp':0,'input_length':513,'output_length':52,'hash_ids':[46,47]}\n"
			   "{'timestamp':27482.5,'input_length':512,'output_length':1,'hash_ids':[46],'type':'text','turn':1}\n"
			   "{'timestamp':27482.5,'input_length':9,'output_length':3}\n",
			&arena, &trace, &err),
		STATUS_OK);
	assert_int_equal(trace.count, 3);
	assert_int_equal(trace.items[0].n_hash_ids, 2);
	assert_int_equal(trace.items[0].hash_ids[1], 47);
	assert_true(trace.items[1].at_ms == 27482.5 && trace.items[1].output_len == 1);
	assert_null(trace.items[2].hash_ids);
	arena_release(&arena);
}

static const struct {
	const char *text, *complaint;
} refused_traces[] = {
	{"[]", "t.jsonl:1:1: expected an object with \"timestamp\""},
	{"{'timestamp':-1,'input_length':1,'output_length':1}", "timestamp must be a number of milliseconds"},
	{"{'timestamp':'0','input_length':1,'output_length':1}", "timestamp must be a number of milliseconds"},
	{"{'timestamp':5,'input_length':1,'output_length':1}\n{'timestamp':4,'input_length':1,'output_length':1}",
		"t.jsonl:2:1: timestamp 4 is before that of the line above (5)"},
	{"{'timestamp':5,'output_length':1}", "input_length must be an integer from 1 to 1000000"},
	{"{'timestamp':5,'input_length':1}", "output_length must be an integer from 1 to 1000000"},
	{"{'timestamp':5,'input_length':1,'output_length':1,'hash_id':[1]}", "unknown key 'hash_id'"},
	{"{'timestamp':5,'input_length':513,'output_length':1,'hash_ids':[1]}",
		"1 hash_ids for 513 tokens, but blocks of 512 tokens make 2"},
	{"{'timestamp':5,'input_length':3,'output_length':1,'hash_ids':['a']}", "hash_ids must be integers"},
	{"{'timestamp':5,'input_length':3,'output_length':1,'hash_ids':1}", "hash_ids must be a list"},
};

static void bad_traces_are_refused_with_file_and_line(void **state)
{
	for (size_t i = 0; i < sizeof refused_traces / sizeof refused_traces[0]; i++) {
		struct arena arena = {0};
		struct trace trace;
		struct err err = {0};
		enum status status = read_trace(refused_traces[i].text, &arena, &trace, &err);
		if (status != STATUS_INPUT || !strstr(err.text, refused_traces[i].complaint))
			fail_msg("%s\n  expected: %s\n  got:      %s", refused_traces[i].text, refused_traces[i].complaint,
				err.text);
		arena_release(&arena);
	}
}

static void a_file_of_too_many_lines_is_refused(void **state)
{
	struct text text = {0};
	struct arena arena = {0};
	struct prompt_list prompts = {0};
	struct err err = {0};
	for (int i = 0; i <= PROMPT_FILE_LINES_MAX; i++)
		text_append_str(&text, "{\"prompt\":\"x\"}\n");
	assert_int_equal(prompt_file_parse(text.data, text.len, "p.jsonl", &arena, &prompts, &err), STATUS_INPUT);
	assert_string_equal(err.text, "p.jsonl:100001:1: more than 100000 lines");
	text_release(&text);
	arena_release(&arena);
}

static void records_give_back_what_files_gave(void **state)
{
	struct arena arena = {0};
	struct prompt_list prompts, again = {0};
	struct trace trace, trace_again = {0};
	assert_int_equal(read_prompts("{'prompt':'a'}\n{'prompt':'b','output_len':3}\n{'messages':[{'role':'system','content':'s'},"
				      "{'role':'user','content':'u'}],'output_len':4}",
				 &arena, &prompts, NULL),
		STATUS_OK);
	assert_int_equal(read_trace("{'timestamp':1,'input_length':600,'output_length':5,'hash_ids':[1,2]}", &arena, &trace, NULL),
		STATUS_OK);
	struct json *array = json_new_array(), *requests = json_new_array();
	for (size_t i = 0; i < prompts.count; i++)
		json_append(array, prompt_json(&prompts.items[i]));
	json_append(requests, trace_request_json(&trace.items[0]));
	assert_string_equal(json_text(json_at(array, 0)), "a");
	prompts_from_json(array, &arena, &again);
	trace_from_json(requests, 512, &arena, &trace_again);
	assert_int_equal(again.count, 3);
	for (size_t i = 0; i < 3; i++) {
		assert_true(text_equal(again.items[i].text, prompts.items[i].text));
		assert_true(text_equal(again.items[i].messages, prompts.items[i].messages));
		assert_int_equal(again.items[i].output_len, prompts.items[i].output_len);
	}
	assert_int_equal(trace_again.count, 1);
	assert_int_equal(trace_again.items[0].n_hash_ids, 2);
	json_free(array);
	json_free(requests);
	arena_release(&arena);
}

static void the_fuzzers_corpus_is_read_safely(void **state)
{
	assert_true(check_corpus("tests/fuzz/corpus/prompt_file", check_prompt_file_bytes) >= 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_may_mix_plain_chat_and_conversations),
		cmocka_unit_test(bad_prompts_are_refused_with_file_and_line),
		cmocka_unit_test(a_published_trace_is_read),
		cmocka_unit_test(bad_traces_are_refused_with_file_and_line),
		cmocka_unit_test(a_file_of_too_many_lines_is_refused),
		cmocka_unit_test(the_fuzzers_corpus_is_read_safely),
		cmocka_unit_test(records_give_back_what_files_gave),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
