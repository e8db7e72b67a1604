/* Makes and removes folders of tests. */
#include "tests/support/temp_folder.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

#define COPY_BYTES_MAX ((size_t)16 << 20)

void temp_folder_make(struct temp_folder *out)
{
	snprintf(out->path, sizeof out->path, "/tmp/verdict-folder-XXXXXX");
	assert_non_null(mkdtemp(out->path));
}

void temp_folder_write(const struct temp_folder *folder, const char *name, const void *bytes, size_t len)
{
	char path[512];
	snprintf(path, sizeof path, "%s/%s", folder->path, name);
	assert_int_equal(file_write_atomic(path, bytes, len, NULL), STATUS_OK);
}

void temp_folder_write_text(const struct temp_folder *folder, const char *name, const char *text)
{
	temp_folder_write(folder, name, text, strlen(text));
}

void temp_folder_copy(const struct temp_folder *folder, const char *from, const char *name)
{
	struct text content = {0};
	char path[512];
	snprintf(path, sizeof path, "%s/%s", from, name);
	assert_int_equal(file_read(path, COPY_BYTES_MAX, &content, NULL), STATUS_OK);
	temp_folder_write(folder, name, text_str(&content), content.len);
	text_release(&content);
}

void temp_folder_remove(const struct temp_folder *folder)
{
	char path[512];
	DIR *list = opendir(folder->path);
	for (struct dirent *entry; list && (entry = readdir(list));) {
		snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
		if (entry->d_name[0] != '.')
			unlink(path);
	}
	if (list)
		closedir(list);
	rmdir(folder->path);
}
