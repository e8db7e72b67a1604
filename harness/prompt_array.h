/* Prompts from one large JSON array, such as ShareGPT as it is published: 90,000 conversations in 670 MB. Bytes are fed as they are
 * read, about 80 MB a second (2-core EPYC, 2026-11-30); one entry at a time is in memory, and of the prompts only a sample. Pure:
 * bytes in, prompts out.
 *
 * An entry has one of the forms of prompt_file.h. Of a conversation the first two turns count, as in the readers of vLLM
 * (benchmarks, ShareGPTDataset) and SGLang (bench_serving): a question and its answer. The question is asked alone. As there,
 * conversations of fewer turns are passed over, and those whose question or answer is too short or too long: question and answer of
 * at least 4 tokens, a question of at most 1024, both together of at most 2048. A token is taken for 4 bytes, as no tokenizer is at
 * hand; where somebody else than a person asks first, the conversation is passed over too. An entry that is malformed is an error.
 */
#ifndef HARNESS_PROMPT_ARRAY_H
#define HARNESS_PROMPT_ARRAY_H

#include <stdbool.h>

#include "base/text.h"
#include "harness/prompt_file.h"

#define PROMPT_ARRAY_BYTES_MAX ((size_t)8 << 30) /* of a file: guess, ten times the largest that is published */
#define PROMPT_ENTRY_BYTES_MAX ((size_t)16 << 20) /* guess: a thousand times a long conversation */
#define PROMPT_SAMPLE_DEFAULT 1000 /* as many as vLLM's benchmark asks by default */

/* {0}, with the first part set by the caller. */
struct prompt_array {
	const char *source;
	struct arena *arena;
	uint64_t seed;
	size_t sample; /* prompts to keep at most, each as likely as any other */

	/* For the caller to read. */
	size_t entries, usable;
	struct prompt_list prompts;

	/* Of prompt_array.c. */
	int where, depth;
	size_t entry_line, line, column;
	bool in_text, after_backslash;
	struct text entry;
};

/* STATUS_INPUT: "SOURCE:LINE:COL: entry N: reason", entries counted from 1. */
enum status prompt_array_feed(struct prompt_array *array, const char *bytes, size_t len, struct err *err);

/* Says that there are no more bytes. */
enum status prompt_array_finish(struct prompt_array *array, struct err *err);
void prompt_array_release(struct prompt_array *array);

#endif
