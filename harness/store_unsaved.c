/* Launches that could not be saved, because another program held the database for too long or the disk was full, wait in files
 * beside it and are saved when it is opened next. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "harness/store_internal.h"

#define UNSAVED_BYTES_MAX ((size_t)1 << 28) /* guess: a launch of a hundred thousand requests has some dozen MB */

/* DB.unsaved/EXPERIMENT-BLOCK-ARM-ATTEMPT.json */
static void file_name(const struct store *store, int64_t experiment_id, const struct json *launch, struct text *out)
{
	text_printf(out, "%s.unsaved/%lld-%lld-%lld-%lld.json", store->path, (long long)experiment_id,
		(long long)json_int(json_get(launch, "block"), 0), (long long)json_int(json_get(launch, "arm"), 0),
		(long long)json_int(json_get(launch, "attempt"), 0));
}

enum status store_keep_unsaved(struct store *store, int64_t experiment_id, const struct json *launch, struct err *err)
{
	struct json *document = json_new_object();
	struct text text = {0}, path = {0}, folder = {0};
	text_printf(&folder, "%s.unsaved", store->path);
	mkdir(text_str(&folder), 0777); /* that it may exist already is fine; anything else shows when the file is written */
	file_name(store, experiment_id, launch, &path);
	json_set(document, "experiment_id", json_new_integer(experiment_id));
	json_set(document, "launch", json_clone(launch));
	json_write(document, JSON_STYLE_COMPACT, &text);
	enum status status = file_write_atomic(text_str(&path), text_str(&text), text.len, err);
	if (!status)
		log_warn("store", "the launch is kept in %s and will be saved when the database is opened next", text_str(&path));
	json_free(document);
	text_release(&text);
	text_release(&path);
	text_release(&folder);
	return status;
}

/* Saves one file's launch. A launch that is there already, because the program died between saving and removing, counts as saved.
 */
static enum status save_file(struct store *store, const char *path, struct err *err)
{
	struct text text = {0};
	struct json *document = NULL;
	enum status status = file_read(path, UNSAVED_BYTES_MAX, &text, err);
	if (!status)
		status = json_parse(text_str(&text), text.len, path, &document, err);
	if (!status)
		status = sql_begin(store->sql, err);
	if (!status) {
		int64_t experiment_id = json_int(json_get(document, "experiment_id"), 0);
		status = sql_end(store->sql, store_insert_launch(store, experiment_id, json_get(document, "launch"), err), err);
		if (status == STATUS_INPUT && err && strstr(err->text, "UNIQUE")) {
			err_clear(err);
			status = STATUS_OK;
		}
	}
	json_free(document);
	text_release(&text);
	return status;
}

void store_save_unsaved(struct store *store)
{
	struct text folder_path = {0};
	text_printf(&folder_path, "%s.unsaved", store->path);
	DIR *folder = opendir(text_str(&folder_path));
	for (struct dirent *entry; folder && (entry = readdir(folder));) {
		size_t len = strlen(entry->d_name);
		if (len < 6 || !text_equal(entry->d_name + len - 5, ".json"))
			continue;
		struct text path = {0};
		struct err err = {0};
		text_printf(&path, "%s/%s", text_str(&folder_path), entry->d_name);
		if (save_file(store, text_str(&path), &err) == STATUS_OK)
			unlink(text_str(&path));
		else
			log_warn("store", "%s is left where it is: %s", text_str(&path), err.text);
		text_release(&path);
	}
	if (folder) {
		closedir(folder);
		rmdir(text_str(&folder_path)); /* succeeds when it is empty */
	}
	text_release(&folder_path);
}
