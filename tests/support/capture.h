/* Runs a subcommand in this process with its standard input and output in files. */
#ifndef TESTS_SUPPORT_CAPTURE_H
#define TESTS_SUPPORT_CAPTURE_H

#include <stddef.h>

#include "base/err.h"
#include "base/text.h"

/* argv is NULL-terminated, argv[0] the subcommand's name. input[0..len) is what it reads. Appends what it wrote to out. */
enum status capture_command(enum status (*command)(int argc, char **argv, struct err *err), const char *const *argv,
	const char *input, size_t len, struct text *out, struct err *err);

#endif
