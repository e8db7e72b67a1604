/* Asking programs for their version: ones that answer, and ones that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "harness/engine_version.h"

static char folder[] = "/tmp/verdict-version-XXXXXX";
static char program[64];

static int make_folder(void **state)
{
	(void)state;
	if (!mkdtemp(folder))
		return -1;
	snprintf(program, sizeof(program), "%s/an-engine", folder);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(program);
	return rmdir(folder);
}

/* Asks a program that runs the given lines of shell; what it says must be `expected`, "" for no answer. */
static void expect_version(const char *script, int timeout_ms, const char *expected)
{
	struct text text = {0}, version = {0};
	text_printf(&text, "#!/bin/sh\n%s\n", script);
	assert_int_equal(file_write_atomic(program, text_str(&text), text.len, NULL), STATUS_OK);
	assert_int_equal(chmod(program, 0700), 0);
	assert_int_equal(engine_version_ask(program, timeout_ms, &version), *expected != '\0');
	assert_string_equal(text_str(&version), expected);
	text_release(&version);
	text_release(&text);
}

static void a_version_is_the_first_line_without_the_name_of_the_program(void **state)
{
	(void)state;
	expect_version("echo 'an-engine 1.2.3 (abcdef)'; echo more", 10000, "1.2.3 (abcdef)");
	expect_version("echo 'an-engineer 1'", 10000, "an-engineer 1");
	expect_version("echo 'version: 6730 (abc)' >&2; echo 'built with cc' >&2", 10000, "version: 6730 (abc)");
	expect_version("printf '\\n\\n2.0'", 10000, "2.0");
	expect_version("test \"$#$1\" = 1--version && echo asked", 10000, "asked");
}

static void nothing_unprintable_and_no_endless_line_is_kept(void **state)
{
	(void)state;
	expect_version("printf 'a\\033[31mb\\377\\n'", 10000, "a?[31mb?");
	struct text version = {0};
	expect_version("i=0; while [ $i -lt 500 ]; do printf 'xxxxxxxxxxxxxxxxxxxx'; i=$((i+1)); done; exit 3", 10000, "");
	assert_false(engine_version_ask("/nonexistent/an-engine", 1000, &version));
	assert_string_equal(text_str(&version), "");
	text_release(&version);
}

static void a_program_that_fails_or_says_nothing_has_no_version(void **state)
{
	(void)state;
	expect_version("echo 'unknown option --version'; exit 2", 10000, "");
	expect_version("exit 0", 10000, "");
	expect_version("echo 1.0; kill -KILL $$", 10000, "");
}

static void a_program_that_serves_instead_is_ended_in_time(void **state)
{
	(void)state;
	int64_t begin_ns = clock_monotonic_ns();
	expect_version("echo listening; sleep 60", 200, "");
	expect_version("exec >/dev/null 2>&1; sleep 60", 200, ""); /* the end of its output is not its end */
	expect_version("trap '' TERM; sleep 60 & wait", 200, "");
	assert_true(clock_monotonic_ns() - begin_ns < 20 * (int64_t)1000000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_version_is_the_first_line_without_the_name_of_the_program),
		cmocka_unit_test(nothing_unprintable_and_no_endless_line_is_kept),
		cmocka_unit_test(a_program_that_fails_or_says_nothing_has_no_version),
		cmocka_unit_test(a_program_that_serves_instead_is_ended_in_time),
	};
	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
