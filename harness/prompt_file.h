/* Prompts and traces as files hold them: one JSON value a line (arrays: prompt_array.h). Pure: bytes in, prompts out.
 *
 * A line of prompts has one of three forms, and a file may mix them:
 *   {"prompt": "…"}                                        plain
 *   {"messages": [{"role": "user", "content": "…"}, …]}    chat, as OpenAI's API takes it
 *   {"conversations": [{"from": "human", "value": "…"}, …]}  ShareGPT; "from" human or user, gpt or assistant or model, system
 * each with "output_len" (tokens to ask for) and "id" beside it where wanted. A conversation is asked up to its first answer, as
 * the benchmarks of vLLM and SGLang do; answers after that, and other keys of ShareGPT files, are data that nobody sends. Any other
 * key would change what is asked, so it is refused.
 *
 * A line of a trace is {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [n, …]}, as Mooncake
 * publishes them: timestamps never fall, and requests with an id in common begin with the same blocks of tokens. hash_ids may be
 * absent. */
#ifndef HARNESS_PROMPT_FILE_H
#define HARNESS_PROMPT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

#define PROMPT_FILE_LINES_MAX 100000
#define PROMPT_TOKENS_MAX 1000000

/* Strings live in the arena of whoever made it. */
struct prompt {
	const char *text; /* the words of one user; NULL: messages */
	const char *messages; /* [{"role", "content"}] as compact JSON; NULL: text */
	int output_len; /* tokens to ask for; 0: as many as the workload says */
};
struct prompt_list {
	struct prompt *items;
	size_t count;
};

struct trace_request {
	double at_ms;
	int input_len, output_len;
	const int64_t *hash_ids; /* one for each begun block of tokens; NULL: nothing is shared */
	size_t n_hash_ids;
};
struct trace {
	struct trace_request *items;
	size_t count;
};

/* Appends the prompts of a file. STATUS_INPUT with "SOURCE:LINE:COL: reason". Empty lines are skipped. */
enum status prompt_file_parse(
	const char *bytes, size_t len, const char *source, struct arena *arena, struct prompt_list *out, struct err *err);

/* Appends the requests of a trace whose blocks have block_tokens tokens. Errors as above. */
enum status trace_file_parse(const char *bytes, size_t len, const char *source, int block_tokens, struct arena *arena,
	struct trace *out, struct err *err);

/* One prompt or request in the form that the files have; a plain prompt without a length is a string. Caller frees. */
struct json *prompt_json(const struct prompt *prompt);
struct json *trace_request_json(const struct trace_request *request);

/* The inverse, for records: appends the prompts or requests of an array. What is malformed is left out. */
void prompts_from_json(const struct json *array, struct arena *arena, struct prompt_list *out);
void trace_from_json(const struct json *array, int block_tokens, struct arena *arena, struct trace *out);

/* Reads one prompt of any of the forms. False, with a complaint, when it is none. */
#define PROMPT_COMPLAINT_BYTES 200
bool prompt_read(const struct json *value, struct arena *arena, struct prompt *out, char complaint[PROMPT_COMPLAINT_BYTES]);

void prompt_list_add(struct prompt_list *list, struct arena *arena, struct prompt prompt);

#endif
