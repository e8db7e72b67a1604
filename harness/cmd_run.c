/* `verdict run FILE`: an experiment from its file to verdicts in the store. */
#include <string.h>

#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/session.h"

struct run_command {
	struct experiment_options experiment_options;
	bool resume, help;
	struct session session;
};

static const char help_text[] = "usage: verdict run FILE [options]\n"
				"\n"
				"Launches a server under each setting of an experiment file, in blocks of random order, measures "
				"it, and compares every candidate\n"
				"with the baseline. Each launch is saved as soon as it ends: after a crash or kill, the same "
				"command with --resume goes on where it\n"
				"stopped. A candidate that fails is a result and does not end the run. Progress goes to standard "
				"error, the result to standard output.\n";

static const char help_end[] = "\n"
			       "Exit codes: 0 completed, however many candidates failed; 1 the baseline failed; 2 bad usage or "
			       "file; 3 cannot measure here; 130\n"
			       "interrupted (go on with --resume).\n";

#define N_OPTIONS (EXPERIMENT_OPTIONS_COUNT + 4)
static size_t fill_options(struct run_command *command, struct option options[N_OPTIONS])
{
	const struct option own[] = {
		{"db", OPTION_STRING, &command->session.db, 0, 0, "FILE", "Results database (default results.db)."},
		{"resume", OPTION_FLAG, &command->resume, 0, 0, NULL,
			"Go on with the newest run of this experiment; starts one when there is none."},
		{"json", OPTION_FLAG, &command->session.json, 0, 0, NULL, "End with one JSON document on standard output."},
		{"help", OPTION_FLAG, &command->help, 0, 0, NULL, "Print this text."},
	};
	size_t count = 0;
	experiment_options_append(&command->experiment_options, options, &count);
	memcpy(options + count, own, sizeof(own));
	return count + sizeof(own) / sizeof(own[0]);
}

static enum status run(struct run_command *command, const char *file, struct err *err)
{
	struct session *session = &command->session;
	const struct experiment_overrides overrides = experiment_options_overrides(&command->experiment_options);
	bool resumed = false;
	enum status status = experiment_load(file, &overrides, &session->experiment, err);
	if (!status)
		status = session_find(session, err);
	if (!status)
		status = session_open(session, err);
	if (!status)
		status = store_begin_experiment(session->store, session->experiment, &session->machine, &session->build,
			session_model_name(session), session->model_hash, command->resume, &session->experiment_id, &resumed, err);
	return status ? status : session_measure(session, resumed, err);
}

enum status cmd_run(int argc, char **argv, struct err *err)
{
	struct run_command command = {.session = SESSION_INIT};
	struct option options[N_OPTIONS];
	const char *words[2];
	size_t n_words = 0;
	size_t n_options = fill_options(&command, options);
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && command.help)
		return cmd_print_help(help_text, options, n_options, help_end, err);
	if (!status && n_words != 1)
		status = err_set(err, STATUS_INPUT, "run takes one experiment file, got %zu (see verdict run --help)", n_words);
	if (status)
		return status;
	status = run(&command, words[0], err);
	session_close(&command.session);
	return status;
}
