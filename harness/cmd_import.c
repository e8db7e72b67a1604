/* `verdict import` and `verdict export`: records of experiments as files, to keep or to carry to another database. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/cmd_common.h"
#include "harness/commands.h"
#include "harness/foreign.h"
#include "harness/record_check.h"
#include "harness/report.h"
#include "harness/report_export.h"
#include "harness/store.h"

#define RECORD_BYTES_MAX ((size_t)1 << 30)
#define RECORDS_MAX 100000

static const char import_help[] =
	"usage: verdict import PATH… [options]\n"
	"\n"
	"Adds recorded experiments to a results database. PATH is a record that `verdict export` wrote, or a folder of them "
	"(*.json). What the\n"
	"database has already is left as it is, so importing twice adds nothing, and no row is ever deleted.\n"
	"\n"
	"Results of other benchmarks are kept in the table \"measurement\", and never judged: llama-bench (JSON, JSONL, SQL), "
	"vLLM's "
	"bench serve\n"
	"(JSON), SGLang's bench_serving (JSONL), InferenceX rows (JSON).\n"
	"\n"
	"An import is all or nothing: what is not sound is refused with file, place, field and reason, and then nothing of any "
	"PATH "
	"is added.\n";

static const char export_help[] =
	"usage: verdict export ID [options]\n"
	"\n"
	"Prints an experiment. Formats: record, everything (facts, settings, every launch, run and request, verdicts), which "
	"import reads; json,\n"
	"its verdict rows; csv, a line for each run; aiperf, an aggregate for each arm and workload in the shape of AIPerf's. The "
	"table\n"
	"\"llama_bench\" of the database itself is what llama.cpp's compare-llama-bench.py reads.\n";

struct importing {
	struct store *store;
	size_t added, known; /* experiments */
	size_t measurements, known_measurements;
};

/* "FILE:LINE:COL: place in the record: reason" */
static enum status check_record(const struct json *record, const struct text *text, const char *file, struct err *err)
{
	char place[RECORD_PATH_BYTES];
	int line = 1, column = 1;
	enum status status = record_check(record, place, err);
	if (!status)
		return STATUS_OK;
	json_locate(text_str(text), text->len, place, false, &line, &column);
	return err_add(err, "%s:%d:%d", file, line, column);
}

static enum status import_record(struct importing *importing, const struct text *text, const char *path, struct err *err)
{
	struct json *record = NULL;
	bool added = false;
	enum status status = json_parse(text_str(text), text->len, path, &record, err);
	if (!status)
		status = check_record(record, text, path, err);
	if (!status && store_import(importing->store, record, &added, err))
		status = err_add(err, "%s", path);
	importing->added += !status && added;
	importing->known += !status && !added;
	json_free(record);
	return status;
}

static enum status import_file(struct importing *importing, const char *path, struct err *err)
{
	struct text text = {0};
	struct json *rows = NULL;
	size_t added = 0, known = 0;
	enum status status = file_read(path, RECORD_BYTES_MAX, &text, err);
	if (!status)
		status = foreign_read(text_str(&text), text.len, path, &rows, err);
	if (!status && rows)
		status = store_import_measurements(importing->store, rows, path, &added, &known, err);
	else if (!status)
		status = import_record(importing, &text, path, err);
	importing->measurements += added;
	importing->known_measurements += known;
	json_free(rows);
	text_release(&text);
	return status;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The *.json files of a folder, in the order of their names. */
static enum status list_folder(const char *path, char ***names, size_t *count, struct err *err)
{
	DIR *folder = opendir(path);
	if (!folder)
		return err_set(err, STATUS_NOT_FOUND, "cannot open folder '%s'", path);
	for (struct dirent *entry = readdir(folder); entry && *count < RECORDS_MAX; entry = readdir(folder)) {
		size_t len = strlen(entry->d_name);
		if (entry->d_name[0] == '.' || len < 6 || !text_equal(entry->d_name + len - 5, ".json"))
			continue;
		struct text text = {0};
		text_printf(&text, "%s/%s", path, entry->d_name);
		*names = mem_realloc(*names, *count + 1, sizeof **names);
		(*names)[(*count)++] = text_take(&text);
	}
	closedir(folder);
	if (*count)
		qsort(*names, *count, sizeof **names, compare_names);
	return STATUS_OK;
}

static enum status import_path(struct importing *importing, const char *path, struct err *err)
{
	struct stat stat_buffer;
	if (stat(path, &stat_buffer) != 0)
		return err_set(err, STATUS_NOT_FOUND, "there is no file or folder '%s'", path);
	if (!S_ISDIR(stat_buffer.st_mode))
		return import_file(importing, path, err);
	char **names = NULL;
	size_t count = 0;
	enum status status = list_folder(path, &names, &count, err);
	for (size_t i = 0; i < count; i++) {
		if (!status)
			status = import_file(importing, names[i], err);
		mem_free(names[i]);
	}
	mem_free(names);
	return status;
}

/* One file that is refused keeps all of them out. */
static enum status import_all(struct importing *importing, const char *const *paths, size_t n_paths, struct err *err)
{
	enum status status = store_begin_import(importing->store, err);
	if (status)
		return status;
	for (size_t i = 0; i < n_paths && !status; i++)
		status = import_path(importing, paths[i], err);
	return store_end_import(importing->store, status, err);
}

static enum status print_counts(const struct importing *importing, const char *db, bool as_json, struct err *err)
{
	struct text text = {0};
	if (as_json)
		text_printf(&text, "{\"added\": %zu, \"known\": %zu, \"measurements_added\": %zu, \"measurements_known\": %zu}\n",
			importing->added, importing->known, importing->measurements, importing->known_measurements);
	else
		text_printf(&text, "%s: %zu experiment%s added, %zu known already\n", db, importing->added,
			importing->added == 1 ? "" : "s", importing->known);
	if (!as_json && importing->measurements + importing->known_measurements > 0)
		text_printf(&text, "%s: %zu measurement%s of other benchmarks added, %zu known already\n", db,
			importing->measurements, importing->measurements == 1 ? "" : "s", importing->known_measurements);
	enum status status = report_print(&text, err);
	text_release(&text);
	return status;
}

enum status cmd_import(int argc, char **argv, struct err *err)
{
	const char *db = "results.db", *words[OPTION_LIST_MAX];
	bool as_json = false, help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database, made where it is missing (default results.db)."},
		{"json", OPTION_FLAG, &as_json, 0, 0, NULL, "Print the counts as JSON."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	struct importing importing = {0};
	enum status status = options_parse(options, n_options, argc, argv, 2, words, OPTION_LIST_MAX, &n_words, err);
	if (!status && help)
		return cmd_print_help(import_help, options, n_options, "", err);
	if (!status && !n_words)
		status = err_set(err, STATUS_INPUT, "import needs a file or folder (see verdict import --help)");
	bool made = access(db, F_OK) != 0;
	if (!status)
		status = store_open(db, &importing.store, err);
	if (!status)
		status = import_all(&importing, words, n_words, err);
	if (!status)
		status = print_counts(&importing, db, as_json, err);
	if (status && made)
		store_close_unless_used(importing.store);
	else
		store_close(importing.store);
	return status;
}

static bool is_format(const char *name)
{
	return text_equal(name, "record") || text_equal(name, "json") || text_equal(name, "csv") || text_equal(name, "aiperf");
}

static enum status print_exported(struct store *store, long long id, const char *format, struct err *err)
{
	struct json *record = NULL, *shaped = NULL;
	struct text text = {0};
	enum status status = store_export(store, id, &record, err);
	if (!status && text_equal(format, "json")) {
		const struct history_filters filters = {.experiment_id = id};
		status = store_history(store, &filters, &shaped, err);
	} else if (!status && text_equal(format, "aiperf")) {
		shaped = export_aiperf(record);
	} else if (!status && text_equal(format, "csv")) {
		export_csv(record, &text);
	}
	if (!status)
		status = text.len ? report_print(&text, err) : report_print_json(shaped ? shaped : record, err);
	text_release(&text);
	json_free(shaped);
	json_free(record);
	return status;
}

enum status cmd_export(int argc, char **argv, struct err *err)
{
	const char *db = "results.db", *format = "record", *words[2];
	bool help = false;
	const struct option options[] = {
		{"db", OPTION_STRING, &db, 1, 0, "FILE", "Results database (default results.db)."},
		{"format", OPTION_STRING, &format, 1, 0, "NAME", "record (default), json, csv or aiperf."},
		{"help", OPTION_FLAG, &help, 0, 0, NULL, "Print this text."},
	};
	size_t n_options = sizeof options / sizeof options[0], n_words = 0;
	long long id = 0;
	struct store *store = NULL;
	enum status status = options_parse(options, n_options, argc, argv, 2, words, 2, &n_words, err);
	if (!status && help)
		return cmd_print_help(export_help, options, n_options, "", err);
	if (!status && (n_words != 1 || !text_to_i64(words[0], &id)))
		status = err_set(err, STATUS_INPUT, "export takes the number of one experiment (see verdict history)");
	if (!status && !is_format(format))
		status = err_set(err, STATUS_INPUT, "there is no format '%s'; there are record, json, csv and aiperf", format);
	if (!status)
		status = cmd_require_database(db, err);
	if (!status)
		status = store_open_to_read(db, &store, err);
	if (!status)
		status = print_exported(store, id, format, err);
	store_close(store);
	return status;
}
