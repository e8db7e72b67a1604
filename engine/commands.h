/* Subcommands of verdict-engine. Each gets its own words: argv[0] is the subcommand's name, argv[1..argc) what follows it.
 * Data goes to standard output, logs to standard error. main prints the error and turns the status into the exit code.
 * "--help" prints the command's help and returns STATUS_OK. */
#ifndef ENGINE_COMMANDS_H
#define ENGINE_COMMANDS_H

#include <stddef.h>

#include "base/err.h"

struct option;

enum status cmd_serve(int argc, char **argv, const char *nonce, struct err *err); /* nonce: NULL for none; outlives the call */
enum status cmd_once(int argc, char **argv, struct err *err);
enum status cmd_tokenize(int argc, char **argv, struct err *err);
enum status cmd_inspect(int argc, char **argv, struct err *err);
enum status cmd_perplexity(int argc, char **argv, struct err *err);
enum status cmd_bench(int argc, char **argv, struct err *err);
enum status cmd_rank(int argc, char **argv, struct err *err); /* child processes only: started by the server, not by people */

/* head and a line per option, to standard output. */
enum status command_print_help(const char *head, const struct option *table, size_t count, struct err *err);

#endif
