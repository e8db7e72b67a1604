/* Runs a program of the same build as the running test and collects what it prints. */
#ifndef TESTS_SUPPORT_PROGRAM_H
#define TESTS_SUPPORT_PROGRAM_H

#include "base/json.h"
#include "base/text.h"

#define PROGRAM_WORDS_MAX 64

/* {0} is empty; released by program_result_release. */
struct program_result {
	int exit_code; /* -1: ended by a signal */
	struct text out, err;
};

/* Where NAME ("verdict-engine") lies: beside the test's own build folder. A name that begins with a slash stays. */
void program_path(const char *name, char *out, size_t out_bytes);

/* Runs NAME ("verdict-engine") beside the test's own build folder, or the program with that path, with words, NULL-terminated, and
 * no input. Fails the test when it cannot be run or takes longer than 120 s (it is killed then). */
void program_run(const char *name, const char *const *words, struct program_result *out);
void program_result_release(struct program_result *result);

/* Standard output as one JSON document; fails the test when it is none or the program failed. Caller frees. */
struct json *program_json(const struct program_result *result);

/* Last line of standard error, without its line end; valid until the result is released. */
const char *program_last_line(struct program_result *result);

#endif
