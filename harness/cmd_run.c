/* `verdict run FILE`: an experiment from its file to verdicts in the store. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/artifact.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/plan.h"
#include "harness/report.h"
#include "harness/run_loop.h"
#include "harness/target.h"

extern char **environ;

struct run_command {
	const char *file, *db;
	struct experiment_options experiment_options;
	bool resume, json, help;
	/* Everything that is open. */
	struct experiment *experiment;
	struct store *store;
	struct client *client;
	struct interrupt interrupt;
	struct machine_facts machine;
	struct build_facts build;
	struct text engine_program; /* the built-in engine */
	struct text engine_found; /* the program that arms are launched with */
	char model_hash[65];
	int64_t experiment_id;
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
		{"db", OPTION_STRING, &command->db, 0, 0, "FILE", "Results database (default results.db)."},
		{"resume", OPTION_FLAG, &command->resume, 0, 0, NULL,
			"Go on with the newest run of this experiment; starts one when there is none."},
		{"json", OPTION_FLAG, &command->json, 0, 0, NULL, "End with one JSON document on standard output."},
		{"help", OPTION_FLAG, &command->help, 0, 0, NULL, "Print this text."},
	};
	size_t count = 0;
	experiment_options_append(&command->experiment_options, options, &count);
	memcpy(options + count, own, sizeof(own));
	return count + sizeof(own) / sizeof(own[0]);
}

/* ---- what is measured ---- */

static const char *search_path(void)
{
	for (char **entry = environ; *entry; entry++)
		if (text_starts_with(*entry, "PATH="))
			return *entry + strlen("PATH=");
	return NULL;
}

/* A missing program is found out before anything is stored: with it no arm could be launched. */
static enum status find_engine(struct run_command *command, struct err *err)
{
	const struct experiment *experiment = command->experiment;
	const struct engine_spec *engine = &experiment->engine;
	cmd_builtin_engine(&command->engine_program);
	if (!target_by_name(engine->adapter)->launches) {
		/* Whoever answers there is known by its address only. */
		command->build = (struct build_facts){.program = engine->url, .version = ""};
		return artifact_hash(engine->url, NULL, command->build.hash, err);
	}
	const char *name = engine->command.count ? engine->command.items[0] : text_str(&command->engine_program);
	if (!artifact_find_program(name, search_path(), &command->engine_found))
		return err_set(err, STATUS_UNAVAILABLE, "engine program '%s' does not exist or cannot be run", name);
	command->build = (struct build_facts){.program = text_str(&command->engine_found), .version = ""};
	return artifact_hash(command->build.program, NULL, command->build.hash, err);
}

static enum status find_model(struct run_command *command, struct err *err)
{
	const struct engine_spec *engine = &command->experiment->engine;
	if (!engine->model)
		return STATUS_OK;
	if (text_equal(engine->adapter, "builtin") && !file_exists(engine->model))
		return err_set(
			err, STATUS_UNAVAILABLE, "model '%s' does not exist (make model fetches the small one)", engine->model);
	struct text cache = {0};
	text_printf(&cache, "%s-hashes.json", command->db);
	enum status status = artifact_hash(engine->model, text_str(&cache), command->model_hash, err);
	text_release(&cache);
	return status;
}

static const char *model_name(const struct run_command *command)
{
	const char *model = command->experiment->engine.model;
	const char *slash = model ? strrchr(model, '/') : NULL;
	return slash ? slash + 1 : model ? model : "";
}

/* ---- results ---- */

static enum status print_result(struct run_command *command, struct err *err)
{
	struct json *shown = NULL;
	enum status status = store_show(command->store, command->experiment_id, &shown, err);
	if (status)
		return status;
	if (command->json) {
		struct json *document = report_run_json(shown);
		status = report_print_json(document, err);
		json_free(document);
	} else {
		struct text text = {0};
		text_append_char(&text, '\n');
		report_experiment(shown, command->db, report_style_for(STDOUT_FILENO, environ), &text);
		status = report_print(&text, err);
		text_release(&text);
	}
	json_free(shown);
	return status;
}

/* ---- running ---- */

static enum status announce(struct run_command *command, struct progress *progress, bool resumed, struct err *err)
{
	const struct experiment *experiment = command->experiment;
	struct launch_cells cells = {0};
	enum status status = store_load_cells(command->store, command->experiment_id, experiment, &cells, err);
	int done = status ? 0 : run_loop_done(experiment, &cells), total = plan_launches(experiment, false);
	launch_cells_release(&cells);
	if (status)
		return status;
	progress_open(progress, STDERR_FILENO, experiment, done, total);
	double seconds = plan_seconds(experiment, PLAN_START_S_GUESS, PLAN_TOKENS_PER_S_GUESS) * (total > done ? total - done : 0) /
		(total > 0 ? total : 1);
	struct text text = {0};
	progress_headline(experiment, resumed ? done : 0, total, seconds, &text);
	file_write_all(STDERR_FILENO, text_str(&text), text.len, NULL);
	text_release(&text);
	for (size_t i = 0; i < experiment->notices.count; i++)
		progress_note(progress, "%s", experiment->notices.items[i]);
	return STATUS_OK;
}

static enum status run(struct run_command *command, struct err *err)
{
	struct progress progress = {.fd = -1};
	bool resumed = false;
	command->machine.facts = probe_linux.facts();
	probe_machine_hash(command->machine.facts, command->machine.hash);
	enum status status = store_begin_experiment(command->store, command->experiment, &command->machine, &command->build,
		model_name(command), command->model_hash, command->resume, &command->experiment_id, &resumed, err);
	if (!status)
		status = announce(command, &progress, resumed, err);
	if (status)
		return status;
	struct measure measure = {
		.experiment = command->experiment,
		.runner = &runner_local,
		.probe = &probe_linux,
		.client = command->client,
		.interrupt = &command->interrupt,
		.engine_program = text_str(&command->engine_program),
		.environment = environ,
	};
	struct run_loop loop = {
		.experiment = command->experiment,
		.store = command->store,
		.experiment_id = command->experiment_id,
		.machine_hash = command->machine.hash,
		.measure = &measure,
		.progress = &progress,
	};
	status = run_loop_run(&loop, err);
	progress_close(&progress);
	/* A failed baseline is an answer too; what ended in between leaves rows for --resume to complete. */
	if (status == STATUS_OK || status == STATUS_ANSWER_BAD) {
		enum status printed = print_result(command, status ? NULL : err);
		status = status ? status : printed;
	}
	return status;
}

static enum status load(struct run_command *command, struct err *err)
{
	const struct experiment_overrides overrides = experiment_options_overrides(&command->experiment_options);
	enum status status = experiment_load(command->file, &overrides, &command->experiment, err);
	if (!status)
		status = find_engine(command, err);
	if (!status)
		status = find_model(command, err);
	return status;
}

enum status cmd_run(int argc, char **argv, struct err *err)
{
	struct run_command command = {.db = "results.db", .interrupt = {.fd = -1}};
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
	command.file = words[0];
	status = load(&command, err);
	if (!status)
		status = interrupt_open(&command.interrupt, err);
	if (!status)
		status = client_create(&command.client, err);
	if (!status)
		status = store_open(command.db, &command.store, err);
	if (!status)
		status = run(&command, err);
	store_close(command.store);
	client_destroy(command.client);
	interrupt_close(&command.interrupt);
	experiment_release(command.experiment);
	json_free(command.machine.facts);
	text_release(&command.engine_program);
	text_release(&command.engine_found);
	return status;
}
