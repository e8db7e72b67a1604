/* Whole runs in a folder of their own. */
#include "tests/support/run_bed.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/store.h"
#include "tests/support/roles.h"

const char *const run_bed_telling_stub[] = {"--tells-acceptance", NULL};

void run_bed_open(struct run_bed *space, const struct stub_experiment *options)
{
	struct text text = {0};
	snprintf(space->folder, sizeof(space->folder), "/tmp/verdict-run-XXXXXX");
	assert_non_null(mkdtemp(space->folder));
	snprintf(space->file, sizeof(space->file), "%s/e.json", space->folder);
	snprintf(space->db, sizeof(space->db), "%s/r.db", space->folder);
	stub_experiment_text(options, &text);
	assert_int_equal(file_write_atomic(space->file, text.data, text.len, NULL), STATUS_OK);
	text_release(&text);
}

void run_bed_close(struct run_bed *space)
{
	DIR *folder = opendir(space->folder);
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		char path[400];
		snprintf(path, sizeof(path), "%s/%s", space->folder, entry->d_name);
		unlink(path);
	}
	closedir(folder);
	assert_int_equal(rmdir(space->folder), 0);
}

/* `run` with --json and one more argument; returns the exit code, the document in *out when there is one. */
int run_bed_run(const struct run_bed *space, const char *extra, struct json **out, struct text *errors)
{
	const char *arguments[] = {"run", space->file, "--db", space->db, "--json", extra, NULL};
	struct text text = {0};
	int code = support_run(arguments, &text, errors);
	*out = NULL;
	json_parse(text_str(&text), text.len, "output", out, NULL);
	text_release(&text);
	return code;
}

void run_bed_run_well(const struct run_bed *space, const char *extra, struct json **out, struct text *errors)
{
	int code = run_bed_run(space, extra, out, errors);
	if (code != 0)
		fail_msg("exit code %d: %s", code, text_str(errors));
}

const struct json *run_bed_row(const struct json *document, const char *knob, const char *value)
{
	const struct json *rows = json_get(document, "verdicts");
	for (size_t i = 0; i < json_count(rows); i++) {
		const struct json *row = json_at(rows, i);
		if (!text_equal(json_text(json_get(row, "knob")), knob))
			continue;
		struct text text = {0};
		const struct json *got = json_get(row, "value");
		if (json_text(got))
			text_append_str(&text, json_text(got));
		else
			json_write(got, JSON_STYLE_COMPACT, &text);
		bool same = !value || text_equal(text_str(&text), value);
		text_release(&text);
		if (same)
			return row;
	}
	return NULL;
}

void run_bed_expect(const struct json *document, const char *knob, const char *value, const char *verdict, const char *reason)
{
	const struct json *row = run_bed_row(document, knob, value);
	if (!row)
		fail_msg("no row for %s=%s", knob, value ? value : "*");
	if (!text_equal(json_text(json_get(row, "verdict")), verdict)) {
		struct text text = {0};
		json_write(row, JSON_STYLE_COMPACT, &text);
		print_message("%s\n", text_str(&text));
		text_release(&text);
		fail_msg("%s=%s should be %s", knob, value ? value : "*", verdict);
	}
	if (reason)
		assert_string_equal(json_text(json_get(row, "reason")), reason);
}

/* Loads what the store holds of the only experiment. */
struct json *run_bed_show(const struct run_bed *space)
{
	struct store *store = NULL;
	struct json *document = NULL;
	assert_int_equal(store_open(space->db, &store, NULL), STATUS_OK);
	if (store_show(store, 1, &document, NULL) != STATUS_OK) {
		store_close(store);
		return NULL;
	}
	struct json *rows = NULL;
	assert_int_equal(store_history(store, NULL, &rows, NULL), STATUS_OK);
	for (size_t i = 0; i < json_count(rows); i++)
		assert_int_equal(json_int(json_get(json_at(rows, i), "experiment_id"), 0), 1);
	json_free(rows);
	store_close(store);
	return document;
}

/* Every launch of the experiment as "block.arm.attempt " in the order of saving. */
void run_bed_list_launches(const struct run_bed *space, struct text *out)
{
	struct json *document = run_bed_show(space);
	const struct json *launches = json_get(document, "launches");
	for (size_t i = 0; i < json_count(launches); i++) {
		const struct json *launch = json_at(launches, i);
		text_printf(out, "%d.%d.%d ", (int)json_int(json_get(launch, "block"), -1),
			(int)json_int(json_get(launch, "arm"), -1), (int)json_int(json_get(launch, "attempt"), -1));
	}
	json_free(document);
}

int run_bed_count_of(const struct text *launches, const char *needle)
{
	int count = 0;
	for (const char *at = text_str(launches); (at = strstr(at, needle)); at += strlen(needle))
		count++;
	return count;
}

/* Processes whose command line holds both words. */
int run_bed_count_stubs(const char *folder)
{
	int count = 0;
	DIR *proc = opendir("/proc");
	for (struct dirent *entry; (entry = readdir(proc));) {
		char path[300];
		struct text text = {0};
		snprintf(path, sizeof(path), "/proc/%s/cmdline", entry->d_name);
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && file_read(path, 65536, &text, NULL) == STATUS_OK)
			count += text.len && memmem(text.data, text.len, "stub-server", 11) &&
				memmem(text.data, text.len, folder, strlen(folder));
		text_release(&text);
	}
	closedir(proc);
	return count;
}
