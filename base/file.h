/* Files: whole reads with limits, read-only maps, atomic writes, small /proc and /sys readers. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"

/* Read-only private mapping of a whole file. Empty files give data NULL, size 0. */
struct file_map {
	const uint8_t *data;
	size_t size;
};

enum status file_map_open(const char *path, struct file_map *out, struct err *err);
void file_map_close(struct file_map *map);

/* Appends the whole file to out; more than bytes_max is STATUS_INPUT. path "-" reads standard input. */
enum status file_read(const char *path, size_t bytes_max, struct text *out, struct err *err);

/* Hands a regular file to take, chunk by chunk, until its end or until take fails. Anything else (a folder, a FIFO, a device) is
 * STATUS_INPUT, and so are more than bytes_max; nothing is waited for. */
enum status file_stream(const char *path, size_t bytes_max,
	enum status (*take)(void *ctx, const char *bytes, size_t len, struct err *err), void *ctx, struct err *err);

/* Writes through a temporary file and rename, so readers see the old or the new content, never a part. */
enum status file_write_atomic(const char *path, const void *bytes, size_t len, struct err *err);

bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* Writes all bytes to a descriptor, resuming short writes and EINTR. */
enum status file_write_all(int fd, const void *bytes, size_t len, struct err *err);

/* Physical memory in bytes, or the cgroup limit where one is lower (cgroup v2, then v1). Does not drift with use. */
uint64_t file_machine_memory_bytes(void);

/* CPUs this process may run on (affinity mask and cgroup quota, rounded up), at least 1. */
int file_machine_cpus(void);

#endif
