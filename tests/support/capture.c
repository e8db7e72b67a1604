/* Runs a subcommand in this process with its standard input and output in files. */
#include "tests/support/capture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

#define OUTPUT_BYTES_MAX ((size_t)64 << 20)
#define ARGS_MAX 32

/* An unlinked file that holds bytes, read from its start. */
static int temporary_file(const char *bytes, size_t len)
{
	char path[] = "/tmp/verdict-test-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(file_write_all(fd, bytes, len, NULL), STATUS_OK);
	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	return fd;
}

static void read_all(int fd, struct text *out)
{
	char chunk[4096];
	ssize_t got;

	assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
	while ((got = read(fd, chunk, sizeof(chunk))) > 0 && out->len < OUTPUT_BYTES_MAX)
		text_append(out, chunk, (size_t)got);
	assert_int_equal(got, 0);
}

enum status capture_command(enum status (*command)(int argc, char **argv, struct err *err), const char *const *argv,
	const char *input, size_t len, struct text *out, struct err *err)
{
	char *args[ARGS_MAX + 1] = {NULL};
	int argc = 0;
	int in = temporary_file(input, len), to = temporary_file("", 0);
	int old_in = dup(STDIN_FILENO), old_out = dup(STDOUT_FILENO);
	enum status status;

	for (; argv[argc]; argc++) {
		assert_true(argc < ARGS_MAX);
		args[argc] = (char *)(uintptr_t)argv[argc];
	}
	fflush(stdout);
	assert_true(dup2(in, STDIN_FILENO) >= 0 && dup2(to, STDOUT_FILENO) >= 0);
	status = command(argc, args, err);
	fflush(stdout);
	if (old_in >= 0)
		dup2(old_in, STDIN_FILENO);
	dup2(old_out, STDOUT_FILENO);
	read_all(to, out);
	close(in);
	close(to);
	close(old_in);
	close(old_out);
	return status;
}
