/* A folder under /tmp with files that a test writes, gone after it. */
#ifndef TESTS_SUPPORT_TEMP_FOLDER_H
#define TESTS_SUPPORT_TEMP_FOLDER_H

#include <stddef.h>

struct temp_folder {
	char path[64];
};

/* Fail the running test when they cannot. */
void temp_folder_make(struct temp_folder *out);
void temp_folder_write(const struct temp_folder *folder, const char *name, const void *bytes, size_t len);
void temp_folder_write_text(const struct temp_folder *folder, const char *name, const char *text);
void temp_folder_copy(const struct temp_folder *folder, const char *from, const char *name); /* the file from/name */

/* Removes the folder and the files in it. */
void temp_folder_remove(const struct temp_folder *folder);

#endif
