/* verdict: chooses a command, prints its error, turns its status into the documented exit code. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "base/version.h"
#include "harness/commands.h"
#include "harness/guard.h"

static const struct command {
	const char *name, *arguments, *summary;
	enum status (*run)(int argc, char **argv, struct err *err);
} commands[] = {
	{"run", "FILE", "measure an experiment and give verdicts", cmd_run},
	{"more", "ID", "add blocks to a finished experiment", cmd_more},
	{"init", "-- …", "write a first experiment file for a server command line", cmd_init},
	{"check", "FILE", "is this experiment file fine?", cmd_check},
	{"plan", "FILE", "what would run, with which commands, for how long", cmd_plan},
	{"history", "", "verdicts so far, newest first", cmd_history},
	{"show", "ID", "everything about one experiment or verdict", cmd_show},
	{"trend", "", "what changed from one measurement to the next", cmd_trend},
	{"compare", "ID ID", "the same settings in two experiments", cmd_compare},
	{"bench", "URL", "the classic benchmark of a running server", cmd_bench},
	{"import", "PATH", "add recorded experiments to a database", cmd_import},
	{"export", "ID", "print the record of an experiment", cmd_export},
};

static void print_help(FILE *out)
{
	fputs("usage: verdict COMMAND [arguments]\n"
	      "\n"
	      "Answers one question with evidence: which setting makes this model faster on this machine, and by how much?\n"
	      "\n",
		out);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		fprintf(out, "  verdict %-8s %-6s  %s\n", commands[i].name, commands[i].arguments, commands[i].summary);
	fputs("\n"
	      "  verdict COMMAND --help   what it does, its options and an example of their use\n"
	      "  verdict --version        version and commit\n"
	      "\n"
	      "Start here:\n"
	      "  verdict plan experiments/quickstart.json    nothing is launched\n"
	      "  verdict run experiments/quickstart.json     a few minutes; results go to results.db\n"
	      "  verdict history                             what is known so far\n"
	      "\n"
	      "Exit codes: 0 completed, however many settings failed; 1 completed, and the answer is bad (the baseline failed); 2 "
	      "bad usage or\n"
	      "input; 3 cannot run or measure here; 4 a rank died; 130 interrupted.\n",
		out);
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (text_equal(commands[i].name, name))
			return &commands[i];
	return NULL;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : NULL;
	if (text_equal(name, GUARD_COMMAND))
		return guard_run();
	if (!name || (argc == 2 && (text_equal(name, "--help") || text_equal(name, "-h") || text_equal(name, "help")))) {
		print_help(name ? stdout : stderr);
		return name ? 0 : status_exit_code(STATUS_INPUT);
	}
	if (text_equal(name, "--version") && argc == 2) {
		printf("verdict %s (%s)\n", version_number(), version_build_hash());
		return 0;
	}
	const struct command *command = find_command(name);
	struct err err = {0};
	enum status status = STATUS_INPUT;
	if (command)
		status = command->run(argc, argv, &err);
	else
		err_set(&err, status,
			name[0] == '-' && argc > 2 ? "%s takes no argument (see verdict --help)"
						   : "there is no command '%s' (see verdict --help)",
			name);
	if (status && err.text[0])
		fprintf(stderr, "%s\n", err.text);
	return status_exit_code(status);
}
