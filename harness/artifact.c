/* Hashing files, and remembering the hashes of large ones. */
#include "harness/artifact.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#define FOLDER_FILES_MAX 1024 /* guess: models have up to hundreds of shards */
#define CACHE_BYTES_MAX ((size_t)1 << 20)
#define CACHE_ENTRIES_MAX 256
#define CACHED_BYTES_MIN ((int64_t)1 << 20) /* smaller files are hashed faster than the cache is read */

static bool is_program(const char *path)
{
	struct stat info;
	return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

bool artifact_find_program(const char *name, const char *search_path, struct text *out)
{
	text_clear(out);
	if (strchr(name, '/')) {
		text_append_str(out, name);
		return is_program(name);
	}
	for (const char *folder = search_path; folder;) {
		const char *end = strchr(folder, ':');
		text_clear(out);
		text_append(out, folder, end ? (size_t)(end - folder) : strlen(folder));
		text_printf(out, "%s%s", out->len ? "/" : "", name); /* an empty entry is the current folder */
		if (is_program(text_str(out)))
			return true;
		folder = end ? end + 1 : NULL;
	}
	return false;
}

static void hash_text(const char *text, char out[SHA256_HEX_BYTES])
{
	struct sha256 sha;
	uint8_t digest[SHA256_BYTES];
	sha256_init(&sha);
	sha256_update(&sha, text, strlen(text));
	sha256_finish(&sha, digest);
	sha256_hex(digest, out);
}

/* {"PATH": {"size": N, "mtime_ns": N, "sha256": "…"}, …}; an empty object when there is none that can be read. */
static struct json *read_cache(const char *cache_path)
{
	struct text text = {0};
	struct json *cache = NULL;
	if (file_read(cache_path, CACHE_BYTES_MAX, &text, NULL) == STATUS_OK)
		json_parse(text_str(&text), text.len, cache_path, &cache, NULL);
	text_release(&text);
	if (json_kind_of(cache) == JSON_KIND_OBJECT && json_count(cache) < CACHE_ENTRIES_MAX)
		return cache;
	json_free(cache);
	return json_new_object();
}

static int64_t modified_ns(const struct stat *info)
{
	return (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
}

static bool find_cached(const struct json *cache, const char *path, const struct stat *info, char out[SHA256_HEX_BYTES])
{
	const struct json *entry = json_get(cache, path);
	const char *hash = json_text(json_get(entry, "sha256"));
	if (!hash || strlen(hash) != SHA256_HEX_BYTES - 1 || json_int(json_get(entry, "size"), -1) != info->st_size ||
		json_int(json_get(entry, "mtime_ns"), -1) != modified_ns(info))
		return false;
	memcpy(out, hash, SHA256_HEX_BYTES);
	return true;
}

static void remember(struct json *cache, const char *cache_path, const char *path, const struct stat *info, const char *hash)
{
	struct json *entry = json_new_object();
	json_set(entry, "size", json_new_integer(info->st_size));
	json_set(entry, "mtime_ns", json_new_integer(modified_ns(info)));
	json_set(entry, "sha256", json_new_string(hash));
	json_set(cache, path, entry);
	struct text text = {0};
	json_write(cache, JSON_STYLE_PRETTY, &text);
	file_write_atomic(cache_path, text_str(&text), text.len, NULL); /* without it, the next run takes longer */
	text_release(&text);
}

static bool is_model_file(const char *name)
{
	static const char *const endings[] = {".json", ".safetensors", ".jinja"};
	size_t len = strlen(name);
	for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
		if (len > strlen(endings[i]) && strcmp(name + len - strlen(endings[i]), endings[i]) == 0)
			return true;
	return false;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Names of a model's files in a folder, sorted; the caller frees them. Other files, and those beyond the limit, are left out. */
static size_t list_folder(const char *path, char *names[FOLDER_FILES_MAX])
{
	size_t count = 0;
	DIR *folder = opendir(path);
	for (struct dirent *entry; folder && count < FOLDER_FILES_MAX && (entry = readdir(folder));)
		if (is_model_file(entry->d_name))
			names[count++] = mem_strdup(entry->d_name);
	if (folder)
		closedir(folder);
	qsort(names, count, sizeof *names, compare_names);
	return count;
}

static enum status hash_file(
	const char *path, const char *cache_path, const struct stat *info, char out[SHA256_HEX_BYTES], struct err *err)
{
	if (!cache_path || info->st_size < CACHED_BYTES_MIN)
		return sha256_file(path, out, err);
	struct json *cache = read_cache(cache_path);
	enum status status = STATUS_OK;
	if (!find_cached(cache, path, info, out)) {
		status = sha256_file(path, out, err);
		if (!status)
			remember(cache, cache_path, path, info, out);
	}
	json_free(cache);
	return status;
}

/* A model in several files: the hash of their names and hashes. */
static enum status hash_folder(const char *path, const char *cache_path, char out[SHA256_HEX_BYTES], struct err *err)
{
	char **names = mem_calloc(FOLDER_FILES_MAX, sizeof *names), hash[SHA256_HEX_BYTES];
	size_t count = list_folder(path, names);
	struct text list = {0}, file = {0};
	enum status status = STATUS_OK;
	for (size_t i = 0; i < count && !status; i++) {
		struct stat info;
		text_clear(&file);
		text_printf(&file, "%s/%s", path, names[i]);
		if (stat(text_str(&file), &info) != 0 || !S_ISREG(info.st_mode))
			continue;
		status = hash_file(text_str(&file), cache_path, &info, hash, err);
		text_printf(&list, "%s %s\n", hash, names[i]);
	}
	for (size_t i = 0; i < count; i++)
		mem_free(names[i]);
	mem_free(names);
	hash_text(list.len ? text_str(&list) : path, out);
	text_release(&list);
	text_release(&file);
	return status;
}

enum status artifact_hash(const char *path, const char *cache_path, char out[SHA256_HEX_BYTES], struct err *err)
{
	struct stat info;
	bool exists = stat(path, &info) == 0;
	if (exists && S_ISDIR(info.st_mode))
		return hash_folder(path, cache_path, out, err);
	if (exists && S_ISREG(info.st_mode))
		return hash_file(path, cache_path, &info, out, err);
	hash_text(path, out);
	return STATUS_OK;
}
