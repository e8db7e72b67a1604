/* `verdict more ID --blocks N`: more launches for an experiment that is finished, from what the store knows of it alone. */
#include <string.h>

#include "base/text.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/session.h"

#define BLOCKS_MAX 100

static const char help_text[] =
	"usage: verdict more ID --blocks N [options]\n"
	"\n"
	"Adds N blocks to a finished experiment and judges it again over all its launches. An inconclusive verdict says how many\n"
	"blocks it needs. The experiment is the stored one, whatever its file says now, and keeps its number; machine, engine and\n"
	"model must be those that it was measured with. Every setting is launched but those that failed or were hopeless. The\n"
	"added look counts: the level of the verdicts is corrected for it.\n";

static const char help_end[] = "\n"
			       "Example: verdict more 12 --blocks 4\n"
			       "\n"
			       "Exit codes: those of verdict run; 3 also where machine, engine or model are not the same.\n";

struct more_command {
	long long blocks;
	bool resume, help;
	struct session session;
	struct json *head; /* of the stored record */
};

static const char *head_text(const struct more_command *command, const char *part, const char *key)
{
	const char *text = json_text(json_get(json_get(command->head, part), key));
	return text ? text : "";
}

/* Makes the experiment from its stored document. only: NULL, or the candidate that --only had left. */
static enum status rebuild(struct more_command *command, const char *only, struct err *err)
{
	const struct json *row = json_get(command->head, "experiment");
	const struct experiment_overrides overrides = {.quick = json_int(json_get(row, "quick"), 0) == 1,
		.only = only,
		.recorded_workloads = json_get(command->head, "workloads")};
	struct text source = {0}, document = {0};
	text_printf(&source, "experiment %lld", (long long)command->session.experiment_id);
	json_write(json_get(row, "document"), JSON_STYLE_PRETTY, &document);
	experiment_release(command->session.experiment);
	command->session.experiment = NULL;
	enum status status = experiment_parse(
		text_str(&document), document.len, text_str(&source), &overrides, &command->session.experiment, err);
	text_release(&source);
	text_release(&document);
	return status;
}

static bool is_same_experiment(const struct more_command *command)
{
	return text_equal(command->session.experiment->hash, head_text(command, "experiment", "hash"));
}

/* The hash covers file, loads with their prompts, protocol and --only: when it comes out as stored, nothing was lost. */
static enum status load(struct more_command *command, struct err *err)
{
	const struct json *arms = json_get(command->head, "arms"), *last = json_at(arms, json_count(arms) - 1);
	enum status status = rebuild(command, NULL, err);
	if (!status && !is_same_experiment(command) && json_text(json_get(last, "name")))
		status = rebuild(command, json_text(json_get(last, "name")), err);
	if (!status && !is_same_experiment(command))
		status = err_set(err, STATUS_UNAVAILABLE,
			"experiment %lld cannot be made again from what is stored: this program reads its file differently",
			(long long)command->session.experiment_id);
	return status;
}

/* Launches under other conditions would be compared with those that are there. */
static enum status check_same(struct more_command *command, struct err *err)
{
	const struct session *session = &command->session;
	const struct {
		const char *part, *hash, *name, *what;
	} facts[] = {
		{"machine", session->machine.hash, "name", "the machine"},
		{"build", session->build.hash, "program", "the engine"},
		{"model", session->model_hash, "name", "the model"},
	};
	for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++)
		if (!text_equal(facts[i].hash, head_text(command, facts[i].part, "hash")))
			return err_set(err, STATUS_UNAVAILABLE,
				"%s is not the one that experiment %lld was measured with (%s, hash %.12s, now %.12s): run it anew",
				facts[i].what, (long long)session->experiment_id, head_text(command, facts[i].part, facts[i].name),
				head_text(command, facts[i].part, "hash"), facts[i].hash[0] ? facts[i].hash : "none");
	return STATUS_OK;
}

static enum status count_blocks(struct more_command *command, int *blocks, struct err *err)
{
	struct launch_cells cells = {0};
	enum status status =
		store_load_cells(command->session.store, command->session.experiment_id, command->session.experiment, &cells, err);
	*blocks = 0;
	for (size_t i = 0; i < cells.count; i++)
		if (cells.items[i].block >= *blocks)
			*blocks = cells.items[i].block + 1;
	launch_cells_release(&cells);
	if (!status && !*blocks)
		status = err_set(err, STATUS_INPUT, "experiment %lld has no launches", (long long)command->session.experiment_id);
	return status;
}

/* The extension is tried on the experiment first, so that one which cannot be judged is not noted. */
static enum status extend(struct more_command *command, struct err *err)
{
	struct session *session = &command->session;
	struct store_extension known[EXPERIMENT_EXTENSIONS_MAX];
	size_t count = 0;
	int blocks = 0;
	enum status status = count_blocks(command, &blocks, err);
	if (!status)
		status = store_extensions(session->store, session->experiment_id, known, EXPERIMENT_EXTENSIONS_MAX, &count, err);
	if (!status && count == EXPERIMENT_EXTENSIONS_MAX)
		status = err_set(err, STATUS_INPUT, "experiment %lld was extended %zu times already: start it anew",
			(long long)session->experiment_id, count);
	if (!status && json_count(json_get(command->head, "confirmation")))
		status = err_set(err, STATUS_INPUT,
			"experiment %lld ended with the confirmation of its winner, which more blocks would undo: start it anew",
			(long long)session->experiment_id);
	if (status)
		return status;
	const struct store_extension wanted = {blocks, blocks + (int)command->blocks};
	struct protocol before = session->experiment->protocol;
	for (size_t i = 0; i < count && !status; i++)
		status = experiment_extend(session->experiment, known[i].from_blocks, known[i].to_blocks, err);
	if (!status)
		status = experiment_extend(session->experiment, wanted.from_blocks, wanted.to_blocks, err);
	session->experiment->protocol = before;
	return status ? status : store_extend(session->store, session->experiment_id, wanted, err);
}

static enum status more(struct more_command *command, long long id, struct err *err)
{
	struct session *session = &command->session;
	enum status status = cmd_require_database(session->db, err);
	if (!status)
		status = store_open(session->db, &session->store, err);
	if (!status)
		status = store_head(session->store, id, &command->head, err);
	if (status)
		return status;
	session->experiment_id = json_int(json_get(command->head, "experiment_id"), 0);
	status = load(command, err);
	if (!status)
		status = session_find(session, err);
	if (!status)
		status = check_same(command, err);
	if (!status)
		status = session_open(session, err);
	if (!status && !command->resume)
		status = extend(command, err);
	return status ? status : session_measure(session, true, err);
}

static enum status check_words(
	const struct more_command *command, const char *const *words, size_t n_words, long long *id, struct err *err)
{
	if (n_words != 1 || !text_to_i64(words[0], id))
		return err_set(err, STATUS_INPUT, "more takes the number of one experiment (see verdict more --help)");
	if (!command->blocks && !command->resume)
		return err_set(err, STATUS_INPUT, "more needs --blocks N, or --resume to go on with an interrupted extension");
	if (command->blocks && command->resume)
		return err_set(err, STATUS_INPUT, "--resume goes on with blocks that were added before; it takes no --blocks");
	return STATUS_OK;
}

enum status cmd_more(int argc, char **argv, struct err *err)
{
	struct more_command command = {.session = SESSION_INIT};
	const struct option options[] = {
		{"blocks", OPTION_I64, &command.blocks, 1, BLOCKS_MAX, "N", "Blocks to add."},
		{"resume", OPTION_FLAG, &command.resume, 0, 0, NULL, "Go on with blocks that were added before and not finished."},
		{"db", OPTION_STRING, &command.session.db, 1, 0, "FILE", "Results database (default results.db)."},
		{"json", OPTION_FLAG, &command.session.json, 0, 0, NULL, "End with one JSON document on standard output."},
		{"help", OPTION_FLAG, &command.help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	const char *words[2];
	long long id = 0;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && command.help)
		return cmd_print_help(help_text, options, n_options, help_end, err);
	if (!status)
		status = check_words(&command, words, n_words, &id, err);
	if (!status)
		status = more(&command, id, err);
	json_free(command.head);
	session_close(&command.session);
	return status;
}
