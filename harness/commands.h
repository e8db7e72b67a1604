/* The commands of verdict. main parses nothing but the command's name; each command reads its own options (argv[0] is the program,
 * argv[1] the command), prints data to standard output and progress to standard error, and returns a status that main turns into
 * the documented exit code. Only main prints errors. */
#ifndef HARNESS_COMMANDS_H
#define HARNESS_COMMANDS_H

#include "base/err.h"

enum status cmd_run(int argc, char **argv, struct err *err);
enum status cmd_more(int argc, char **argv, struct err *err);
enum status cmd_bench(int argc, char **argv, struct err *err);
enum status cmd_init(int argc, char **argv, struct err *err);
enum status cmd_check(int argc, char **argv, struct err *err);
enum status cmd_plan(int argc, char **argv, struct err *err);
enum status cmd_history(int argc, char **argv, struct err *err);
enum status cmd_show(int argc, char **argv, struct err *err);
enum status cmd_trend(int argc, char **argv, struct err *err);
enum status cmd_compare(int argc, char **argv, struct err *err);
enum status cmd_import(int argc, char **argv, struct err *err);
enum status cmd_export(int argc, char **argv, struct err *err);

/* The guard of one launch: not for people. See harness/guard.h. main must call it before anything else when argv[1] is
 * GUARD_COMMAND, and exit with its result. */
int guard_run(void);

#endif
