/* What the commands of verdict share. */
#ifndef HARNESS_CMD_COMMON_H
#define HARNESS_CMD_COMMON_H

#include "base/options.h"
#include "harness/experiment.h"

/* Options of every command that reads an experiment file. */
struct experiment_options {
	struct option_list set;
	const char *only, *model;
	bool quick;
};
#define EXPERIMENT_OPTIONS_COUNT 4

/* Appends the four options to a table with room for them. */
void experiment_options_append(struct experiment_options *options, struct option *table, size_t *count);
struct experiment_overrides experiment_options_overrides(const struct experiment_options *options);

/* Prints text before, one line per option, text after. */
enum status cmd_print_help(const char *before, const struct option *options, size_t count, const char *after, struct err *err);

/* Path of the built-in engine, which lies beside this program. */
void cmd_builtin_engine(struct text *out);

/* Fails with STATUS_NOT_FOUND unless the database exists: asking a question must not create one. */
enum status cmd_require_database(const char *db, struct err *err);

#endif
