/* `verdict run FILE`: an experiment from its file to verdicts in the store. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/greedy.h"
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
		{"db", OPTION_STRING, &command->session.db, 1, 0, "FILE", "Results database (default results.db)."},
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

static enum status measure(struct run_command *command, struct err *err)
{
	struct session *session = &command->session;
	bool resumed = false;
	const struct store_subject subject = {&session->machine, &session->build, session_model_name(session), session->model_hash};
	enum status status = store_begin_experiment(
		session->store, session->experiment, &subject, command->resume, &session->experiment_id, &resumed, err);
	return status ? status : session_measure(session, resumed, err);
}

/* ---- greedy search ---- */

struct greedy_run {
	const char *file;
	struct json *first; /* document of the first stage */
	struct json *final; /* what would confirm the search as it stands; NULL: nothing was adopted */
	int budget_launches; /* 0: no limit */
	double budget_s;
	int launches, stages; /* of all stages so far */
	double spent_s; /* likewise, in earlier processes too */
};

static void tell(const char *format, const char *name, int number)
{
	struct text text = {0};
	text_printf(&text, format, name, number);
	file_write_all(STDERR_FILENO, text_str(&text), text.len, NULL);
	text_release(&text);
}

/* Replaces the session's experiment by a document made from it; budgets are what is left of the file's. */
static enum status take_document(
	struct run_command *command, const struct greedy_run *greedy, const struct json *document, struct err *err)
{
	const struct experiment_overrides overrides = {.quick = command->experiment_options.quick};
	struct experiment *experiment = NULL;
	struct text text = {0};
	json_write(document, JSON_STYLE_PRETTY, &text);
	enum status status = experiment_parse(text_str(&text), text.len, greedy->file, &overrides, &experiment, err);
	text_release(&text);
	if (status)
		return status;
	experiment_release(command->session.experiment);
	command->session.experiment = experiment;
	if (greedy->budget_launches)
		experiment->protocol.budget_launches =
			greedy->budget_launches > greedy->launches ? greedy->budget_launches - greedy->launches : 1;
	if (greedy->budget_s > 0)
		experiment->protocol.budget_s = fmax(0.001, greedy->budget_s - greedy->spent_s);
	return STATUS_OK;
}

/* Whether another stage of at least one block may begin, room kept for the confirmation. */
static bool may_go_on(const struct greedy_run *greedy, const struct experiment *experiment)
{
	int reserved = 3 * experiment->rules.confirm_winner_blocks;
	bool launches = !greedy->budget_launches || greedy->launches + experiment->n_arms + reserved <= greedy->budget_launches;
	bool time = greedy->budget_s <= 0 || greedy->spent_s < greedy->budget_s;
	return launches && time;
}

/* One stage, and the document of the next in *next; NULL: the search has ended. */
static enum status run_stage(struct run_command *command, struct greedy_run *greedy, struct json **next, struct err *err)
{
	struct session *session = &command->session;
	const char *name = json_text(json_get(greedy->first, "name"));
	*next = NULL;
	enum status status = measure(command, err);
	greedy->launches += session->launches;
	greedy->spent_s += session->spent_s;
	greedy->stages++;
	if (status)
		return status;
	if (!session->winner) {
		tell("%s: nothing helps in stage %d\n", name, greedy->stages);
		return STATUS_OK;
	}
	tell("adopted: %s (stage %d)\n", session->experiment->arms[session->winner].name, greedy->stages);
	json_free(greedy->final);
	greedy->final = greedy_final(greedy->first, session->experiment, session->winner, name);
	if (may_go_on(greedy, session->experiment))
		*next = greedy_next(session->experiment, session->winner, name, greedy->stages + 1);
	else
		tell("%s: the budget allows no stage after stage %d\n", name, greedy->stages);
	return STATUS_OK;
}

static enum status run_greedy(struct run_command *command, const char *file, struct err *err)
{
	struct session *session = &command->session;
	struct greedy_run greedy = {.file = file,
		.first = json_clone(session->experiment->document),
		.budget_launches = session->experiment->protocol.budget_launches,
		.budget_s = session->experiment->protocol.budget_s};
	struct json *next = NULL;
	session->quiet = true;
	enum status status = run_stage(command, &greedy, &next, err);
	while (!status && next) {
		status = take_document(command, &greedy, next, err);
		json_free(next);
		next = NULL;
		if (!status)
			status = run_stage(command, &greedy, &next, err);
	}
	json_free(next);
	if (!status && greedy.final) {
		greedy.budget_launches = 0; /* the document has none either */
		greedy.budget_s = 0;
		status = take_document(command, &greedy, greedy.final, err);
		if (!status)
			tell("confirming what was reached against the first baseline (%s, after %d stages)\n",
				session->experiment->name, greedy.stages);
		if (!status)
			status = measure(command, err);
	}
	json_free(greedy.first);
	json_free(greedy.final);
	if (status && status != STATUS_ANSWER_BAD)
		return status;
	enum status printed = session_print(session, status ? NULL : err);
	return status ? status : printed;
}

static enum status run(struct run_command *command, const char *file, struct err *err)
{
	struct session *session = &command->session;
	const struct experiment_overrides overrides = experiment_options_overrides(&command->experiment_options);
	enum status status = experiment_load(file, &overrides, &session->experiment, err);
	bool greedy = !status && session->experiment->search == SEARCH_GREEDY;
	if (greedy && overrides.only)
		status = err_set(err, STATUS_INPUT, "--only leaves a greedy search nothing to search");
	if (!status)
		status = session_find(session, err);
	if (!status)
		status = session_open(session, err);
	if (status)
		return status;
	return greedy ? run_greedy(command, file, err) : measure(command, err);
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
