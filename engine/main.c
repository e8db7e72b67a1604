/* verdict-engine: picks the subcommand, prints what went wrong, turns the status into the exit code. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/version.h"
#include "engine/commands.h"

struct command {
	const char *name;
	enum status (*run)(int argc, char **argv, struct err *err);
	const char *summary; /* NULL: not for people, left out of the help */
};

/* Who launched the server tells it apart from others by this. */
static enum status run_serve(int argc, char **argv, struct err *err)
{
	return cmd_serve(argc, argv, getenv("VERDICT_NONCE"), err);
}

static const struct command commands[] = {
	{"serve", run_serve, "the HTTP server"},
	{"once", cmd_once, "run one prompt and print tokens, a logits hash and rates"},
	{"perplexity", cmd_perplexity, "how well the model foresees a text"},
	{"tokenize", cmd_tokenize, "text on standard input to token ids"},
	{"inspect", cmd_inspect, "metadata and tensors of a file, or why it is refused"},
	{"bench", cmd_bench, "speed of every operation beside the limits of this machine"},
	{"rank", cmd_rank, NULL},
};

static const char help_head[] = "verdict-engine: an LLM inference server whose interesting choices are switches\n"
				"\n"
				"usage: verdict-engine COMMAND --model PATH [options]\n"
				"       verdict-engine COMMAND --help\n"
				"\n"
				"commands:\n";

static const char help_tail[] =
	"\n"
	"A first look:\n"
	"  verdict-engine once --model M.gguf --prompt \"The capital of France is\" --max-tokens 8\n"
	"  verdict-engine serve --model M.gguf --port 8000        then: curl localhost:8000/health\n"
	"  curl localhost:8000/config                             every setting in effect, and why\n"
	"\n"
	"Settings worth comparing: --allreduce, --graph-max-bs, --mem-fraction, --speculation.\n"
	"Logs go to standard error, data to standard output. A refused setting ends with one line of JSON on standard error.\n"
	"\n"
	"exit codes: 0 done; 1 done, and the answer is bad; 2 bad usage or input; 3 cannot run here (memory, port, library);\n"
	"            4 a rank died; 130 interrupted\n";

static void print_help(FILE *to)
{
	fputs(help_head, to);
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (commands[i].summary)
			fprintf(to, "  %-11s %s\n", commands[i].name, commands[i].summary);
	fputs(help_tail, to);
}

static const struct command *find_command(const char *name)
{
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (strcmp(name, commands[i].name) == 0)
			return &commands[i];
	return NULL;
}

/* The text for people first; then one line for programs, whose code is the status's name where the error has none of its own. */
static void print_error(const struct err *err)
{
	const char *name = status_name(err->status);
	fprintf(stderr, "verdict-engine: %s\n", err->text[0] ? err->text : name);
	fprintf(stderr, "{\"error\":\"%s\"%s%s}\n", err->code[0] ? err->code : name, err->details[0] ? "," : "", err->details);
}

int main(int argc, char **argv)
{
	if (argc < 2 || text_equal(argv[1], "--help") || text_equal(argv[1], "-h") || text_equal(argv[1], "help")) {
		print_help(argc < 2 ? stderr : stdout);
		return argc < 2 ? status_exit_code(STATUS_INPUT) : 0;
	}
	if (text_equal(argv[1], "--version")) {
		printf("verdict-engine %s (%s)\n", version_number(), version_build_hash());
		return 0;
	}
	struct err err = {0};
	const struct command *command = find_command(argv[1]);
	enum status status = command
		? command->run(argc - 1, argv + 1, &err)
		: err_set_code(&err, STATUS_INPUT, "bad_option", "unknown command '%s'; try verdict-engine --help", argv[1]);
	if (status == STATUS_OK && fflush(stdout) != 0)
		status = err_set_errno(&err, STATUS_UNAVAILABLE, errno, "standard output");
	if (status != STATUS_OK)
		print_error(&err);
	return status_exit_code(status);
}
