/* The help text of a command. */
#include <unistd.h>

#include "base/file.h"
#include "base/options.h"
#include "engine/commands.h"

enum status command_print_help(const char *head, const struct option *table, size_t count, struct err *err)
{
	struct text help = {0};
	text_append_str(&help, head);
	options_help(table, count, &help);
	enum status status = file_write_all(STDOUT_FILENO, text_str(&help), help.len, err);
	text_release(&help);
	return status;
}
