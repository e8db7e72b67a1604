/* `verdict history` and `verdict show`: what is already known. */
#include <string.h>
#include <unistd.h>

#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/effective.h"
#include "harness/report.h"
#include "harness/store.h"

extern char **environ;

static const char history_help[] = "usage: verdict history [options]\n"
				   "\n"
				   "Lists verdicts, newest first. The last column is the id that `verdict show` takes.\n";

static const char show_help[] = "usage: verdict show ID [options]\n"
				"\n"
				"Prints everything that is known about an experiment, or about one verdict and the launches behind "
				"it: facts about machine, engine and\n"
				"model, the table, exact commands, every launch with its runs, and the end of the log of those "
				"that failed. With --json also every\n"
				"request with its tokens and times.\n";

static enum status print_history(struct store *store, const struct history_filters *filters, bool as_json, struct err *err)
{
	struct json *rows = NULL;
	struct text text = {0};
	enum status status = store_history(store, filters, &rows, err);
	if (!status && as_json) {
		status = report_print_json(rows, err);
	} else if (!status) {
		report_history(rows, report_style_for(STDOUT_FILENO, environ), &text);
		status = report_print(&text, err);
	}
	text_release(&text);
	json_free(rows);
	return status;
}

static enum status check_verdict(const char *word, struct err *err)
{
	for (int i = VERDICT_HELPED; i <= VERDICT_VOID && word; i++)
		if (text_equal(word, verdict_name((enum verdict)i)))
			return STATUS_OK;
	return word ? err_set(err, STATUS_INPUT, "there is no verdict '%s'; there are helped, hurt, neutral, failed and void", word)
		    : STATUS_OK;
}

enum status cmd_history(int argc, char **argv, struct err *err)
{
	struct history_filters filters = {0};
	const char *db = "results.db";
	bool as_json = false, help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database (default results.db)."},
		{"experiment", OPTION_STRING, &filters.experiment, 1, 0, "NAME", "Only this experiment."},
		{"knob", OPTION_STRING, &filters.knob, 1, 0, "KNOB", "Only this knob, such as speculation; aa_twin for the twins."},
		{"value", OPTION_STRING, &filters.value, 0, 0, "VALUE", "Only this value of the knob."},
		{"model", OPTION_STRING, &filters.model, 1, 0, "TEXT", "Only models whose name contains this."},
		{"machine", OPTION_STRING, &filters.machine, 1, 0, "TEXT", "Only machines whose name contains this."},
		{"verdict", OPTION_STRING, &filters.verdict, 1, 0, "WORD", "Only helped, hurt, neutral, failed or void."},
		{"limit", OPTION_I64, &filters.limit, 0, 1e9, "N", "At most so many rows; 0: all (default)."},
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL, "Print the rows as JSON."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	const char *words[1];
	struct store *store = NULL;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 1, &n_words, err);
	if (!status && help)
		return cmd_print_help(history_help, options, n_options, "", err);
	if (!status && n_words)
		status = err_set(err, STATUS_INPUT, "history takes options only, got '%s' (see verdict history --help)", words[0]);
	if (!status)
		status = check_verdict(filters.verdict, err);
	if (!status)
		status = cmd_require_database(db, err);
	if (!status)
		status = store_open_to_read(db, &store, err);
	if (!status)
		status = print_history(store, &filters, as_json, err);
	store_close(store);
	return status;
}

static enum status print_shown(struct store *store, int64_t id, bool as_json, struct err *err)
{
	struct json *shown = NULL;
	struct text text = {0};
	enum status status = store_show(store, id, &shown, err);
	if (!status && as_json) {
		json_set(shown, "effective_differences", effective_unasked(shown));
		status = report_print_json(shown, err);
	} else if (!status) {
		report_details(shown, report_style_for(STDOUT_FILENO, environ), &text);
		status = report_print(&text, err);
	}
	text_release(&text);
	json_free(shown);
	return status;
}

enum status cmd_show(int argc, char **argv, struct err *err)
{
	const char *db = "results.db";
	bool as_json = false, help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database (default results.db)."},
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL, "Print the whole record as JSON."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	const char *words[2];
	long long id = 0;
	struct store *store = NULL;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && help)
		return cmd_print_help(show_help, options, n_options, "", err);
	if (!status && (n_words != 1 || !text_to_i64(words[0], &id)))
		status = err_set(err, STATUS_INPUT, "show takes one number, as the id column of verdict history gives them");
	if (!status)
		status = cmd_require_database(db, err);
	if (!status)
		status = store_open_to_read(db, &store, err);
	if (!status)
		status = print_shown(store, id, as_json, err);
	store_close(store);
	return status;
}
