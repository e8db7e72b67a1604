/* tools/random_gguf.py and tools/random_model.py: the engine loads and runs what they make, the same arguments give the same bytes,
 * and what they cannot do they say in one line. Skipped where Python has no numpy or gguf; PYTHON names another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

#define WORDS_MAX 12
#define FILE_BYTES_MAX ((size_t)1 << 20) /* twice what the tiny shape takes */

static void run_python(const char *const *words, struct program_result *out)
{
	const char *all[WORDS_MAX + 4] = {"-c", "exec \"${PYTHON:-python3}\" \"$@\"", "python"};
	for (size_t i = 0; words[i]; i++) {
		assert_true(i < WORDS_MAX);
		all[i + 3] = words[i];
	}
	program_run("/bin/bash", all, out);
}

static bool python_has(const char *imports)
{
	struct program_result result;
	run_python((const char *const[]){"-c", imports, NULL}, &result);
	bool has = result.exit_code == 0;
	program_result_release(&result);
	return has;
}

static void skip_without(const char *modules)
{
	print_message("skipped: Python has no %s; PYTHON=…/bin/python names one that has\n", modules);
	skip();
}

static void make(const char *const *words)
{
	struct program_result result;
	run_python(words, &result);
	if (result.exit_code != 0)
		fail_msg("%s: exit code %d: %s", words[0], result.exit_code, text_str(&result.err));
	program_result_release(&result);
}

/* Greedy text of the model, as many tokens as were asked for. */
static void expect_it_runs(const char *model)
{
	struct program_result result;
	const char *const words[] = {
		"once", "--model", model, "--prompt", "Hello", "--max-tokens", "4", "--ignore-eos", "--json", NULL};
	program_run("verdict-engine", words, &result);
	struct json *json = program_json(&result);
	assert_int_equal(json_count(json_get(json, "ids")), 4);
	json_free(json);
	program_result_release(&result);
}

static void expect_equal_files(const char *first, const char *second)
{
	struct text a = {0}, b = {0};
	assert_int_equal(file_read(first, FILE_BYTES_MAX, &a, NULL), STATUS_OK);
	assert_int_equal(file_read(second, FILE_BYTES_MAX, &b, NULL), STATUS_OK);
	assert_int_equal(a.len, b.len);
	assert_memory_equal(text_str(&a), text_str(&b), a.len);
	text_release(&a);
	text_release(&b);
}

static void files_of_every_type_that_fits_load_and_are_the_same_twice(void **state)
{
	static const char *const types[] = {"bf16", "q8_0"};
	struct temp_folder folder;
	char first[96], second[96];
	if (!python_has("import numpy, gguf"))
		skip_without("numpy and gguf");
	temp_folder_make(&folder);
	snprintf(first, sizeof first, "%s/a.gguf", folder.path);
	snprintf(second, sizeof second, "%s/b.gguf", folder.path);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		make((const char *const[]){"tools/random_gguf.py", "tiny", types[i], first, NULL});
		make((const char *const[]){"tools/random_gguf.py", "tiny", types[i], second, NULL});
		expect_equal_files(first, second);
		expect_it_runs(first);
	}
	temp_folder_remove(&folder);
}

static void folders_of_every_type_load(void **state)
{
	static const char *const types[] = {"bf16", "fp16", "fp32", "fp8-row", "fp8-block"};
	struct temp_folder folder;
	if (!python_has("import numpy"))
		skip_without("numpy");
	temp_folder_make(&folder);
	for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
		make((const char *const[]){"tools/random_model.py", "tiny", types[i], folder.path, NULL});
		expect_it_runs(folder.path);
	}
	temp_folder_remove(&folder);
}

static void what_cannot_be_made_is_said_in_one_line(void **state)
{
	static const struct {
		const char *words[8], *last_line;
		int exit_code;
	} cases[] = {
		{{"tools/random_gguf.py", "tiny", "q4_k_m", "/dev/null"},
			"random_gguf.py: error: the widths of tiny are no multiples of the 256 weights of a block", 2},
		{{"tools/random_gguf.py", "tiny", "bf16", "/dev/null", "--seed", "-1"},
			"random_gguf.py: error: argument --seed: -1 is below 0", 2},
		{{"tools/random_gguf.py", "tiny", "bf16", "/dev/null/a.gguf"},
			"random_gguf.py: cannot write /dev/null/a.gguf: Not a directory", 1},
		{{"tools/random_gguf.py", "tiny", "bf16", "/dev/full"},
			"random_gguf.py: cannot write /dev/full: No space left on device", 1},
		{{"tools/random_model.py", "tiny", "bf16", "/dev/null/a"},
			"random_model.py: cannot write /dev/null/a: Not a directory", 1},
		{{"tools/random_model.py", "tiny", "bf16", "/dev/null", "--jobs", "0"},
			"random_model.py: error: argument --jobs: 0 is below 1", 2},
	};
	if (!python_has("import numpy, gguf"))
		skip_without("numpy and gguf");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct program_result result;
		run_python(cases[i].words, &result);
		assert_int_equal(result.exit_code, cases[i].exit_code);
		assert_string_equal(program_last_line(&result), cases[i].last_line);
		program_result_release(&result);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_of_every_type_that_fits_load_and_are_the_same_twice),
		cmocka_unit_test(folders_of_every_type_load),
		cmocka_unit_test(what_cannot_be_made_is_said_in_one_line),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
