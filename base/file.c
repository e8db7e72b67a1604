/* Files, and what the machine says about itself in /proc and /sys. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

/* A name that cannot be that of a file is the caller's mistake; all else is the machine's. */
static enum status status_of_open(int errnum)
{
	switch (errnum) {
	case ENOENT:
		return STATUS_NOT_FOUND;
	case EISDIR:
	case ELOOP:
	case ENAMETOOLONG:
	case ENOTDIR:
		return STATUS_INPUT;
	default:
		return STATUS_UNAVAILABLE;
	}
}

/* *fd is -1 after a failure. */
static enum status open_regular(const char *path, int *fd, struct stat *info, struct err *err)
{
	enum status status = STATUS_OK;
	/* Without waiting: opening a FIFO that nobody writes to would never return. */
	*fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0)
		return err_set_errno(err, status_of_open(errno), errno, "cannot open '%s'", path);
	if (fstat(*fd, info) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot read the size of '%s'", path);
	else if (!S_ISREG(info->st_mode))
		status = err_set(err, STATUS_INPUT, "'%s' is not a regular file", path);
	if (status) {
		close(*fd);
		*fd = -1;
	}
	return status;
}

enum status file_stream(const char *path, size_t bytes_max,
	enum status (*take)(void *ctx, const char *bytes, size_t len, struct err *err), void *ctx, struct err *err)
{
	struct stat info;
	char chunk[65536];
	size_t total = 0;
	int fd;
	enum status status = open_regular(path, &fd, &info, err);
	while (!status) {
		ssize_t got = read(fd, chunk, sizeof chunk);
		if (got < 0 && errno == EINTR)
			continue;
		if (got == 0)
			break;
		total += got > 0 ? (size_t)got : 0;
		if (got < 0)
			status = err_set_errno(err, status_of_open(errno), errno, "cannot read '%s'", path);
		else if (total > bytes_max)
			status = err_set(err, STATUS_INPUT, "'%s' is larger than the limit of %zu bytes", path, bytes_max);
		else
			status = take(ctx, chunk, (size_t)got, err);
	}
	if (fd >= 0)
		close(fd);
	return status;
}

enum status file_map_open(const char *path, struct file_map *out, struct err *err)
{
	struct stat info;
	int fd;
	*out = (struct file_map){0};
	enum status status = open_regular(path, &fd, &info, err);
	if (status)
		return status;
	if (info.st_size == 0)
		goto out;
	void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED) {
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot map '%s'", path);
		goto out;
	}
	*out = (struct file_map){.data = data, .size = (size_t)info.st_size};
out:
	close(fd);
	return status;
}

void file_map_close(struct file_map *map)
{
	if (map->data)
		munmap((void *)map->data, map->size);
	*map = (struct file_map){0};
}

enum status file_read(const char *path, size_t bytes_max, struct text *out, struct err *err)
{
	enum status status = STATUS_OK;
	bool is_stdin = strcmp(path, "-") == 0;
	int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return err_set_errno(err, status_of_open(errno), errno, "cannot open '%s'", path);
	char chunk[16384];
	size_t total = 0;
	for (;;) {
		ssize_t got = read(fd, chunk, sizeof chunk);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			status = err_set_errno(err, status_of_open(errno), errno, "cannot read '%s'", path);
			break;
		}
		if (got == 0)
			break;
		total += (size_t)got;
		if (total > bytes_max) {
			status = err_set(err, STATUS_INPUT, "'%s' is larger than the limit of %zu bytes", path, bytes_max);
			break;
		}
		text_append(out, chunk, (size_t)got);
	}
	if (!is_stdin)
		close(fd);
	return status;
}

enum status file_write_all(int fd, const void *bytes, size_t len, struct err *err)
{
	const char *at = bytes;
	while (len) {
		ssize_t put = write(fd, at, len);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot write");
		at += put;
		len -= (size_t)put;
	}
	return STATUS_OK;
}

enum status file_write_atomic(const char *path, const void *bytes, size_t len, struct err *err)
{
	enum status status = STATUS_OK;
	struct text temporary = {0};
	text_printf(&temporary, "%s.tmp.%ld", path, (long)getpid());
	int fd = open(text_str(&temporary), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (fd < 0) {
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot create '%s'", text_str(&temporary));
		goto out;
	}
	status = file_write_all(fd, bytes, len, err);
	if (!status && fsync(fd) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot write '%s'", text_str(&temporary));
	if (close(fd) != 0 && !status)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot close '%s'", text_str(&temporary));
	if (!status && rename(text_str(&temporary), path) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot rename to '%s'", path);
	if (status) {
		unlink(text_str(&temporary));
		err_add(err, "'%s'", path);
	}
out:
	text_release(&temporary);
	return status;
}

bool file_exists(const char *path)
{
	return access(path, F_OK) == 0;
}

bool file_is_folder(const char *path)
{
	struct stat status;

	return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* First number in a one-line file such as a cgroup limit; false for "max" or an absent file. */
static bool read_number(const char *path, unsigned long long *out)
{
	struct text content = {0};
	bool ok = file_read(path, 256, &content, NULL) == STATUS_OK;
	if (ok) {
		size_t end = strcspn(text_str(&content), " \n");
		if (content.data)
			text_truncate(&content, end);
		ok = text_to_u64(text_str(&content), out);
	}
	text_release(&content);
	return ok;
}

/* Path of this process's cgroup v2 folder, "/sys/fs/cgroup" when it cannot be told. */
static void cgroup_folder(struct text *out)
{
	struct text content = {0};
	text_append_str(out, "/sys/fs/cgroup");
	if (file_read("/proc/self/cgroup", 65536, &content, NULL) == STATUS_OK) {
		const char *line = strstr(text_str(&content), "0::");
		if (line) {
			line += strlen("0::");
			size_t len = strcspn(line, "\n");
			if (len > 1)
				text_append(out, line, len);
		}
	}
	text_release(&content);
}

/* Smallest number in file `name` of the cgroup folder and all its parents: limits apply from above too. */
static bool smallest_in_cgroups(const char *name, unsigned long long *out)
{
	struct text folder = {0};
	bool found = false;
	cgroup_folder(&folder);
	while (folder.len >= strlen("/sys/fs/cgroup")) {
		size_t keep = folder.len;
		unsigned long long value;
		text_printf(&folder, "/%s", name);
		if (read_number(text_str(&folder), &value) && (!found || value < *out)) {
			*out = value;
			found = true;
		}
		text_truncate(&folder, keep);
		char *slash = strrchr(folder.data, '/');
		text_truncate(&folder, (size_t)(slash - folder.data));
	}
	text_release(&folder);
	return found;
}

uint64_t file_machine_memory_bytes(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	unsigned long long limit;
	if (smallest_in_cgroups("memory.max", &limit) && limit < bytes)
		bytes = limit;
	if (read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit) && limit < bytes)
		bytes = limit;
	return bytes;
}

int file_machine_cpus(void)
{
	cpu_set_t set;
	int cpus = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
	struct text content = {0}, path = {0};
	cgroup_folder(&path);
	text_append_str(&path, "/cpu.max");
	if (file_read(text_str(&path), 256, &content, NULL) == STATUS_OK && content.len) {
		/* "QUOTA PERIOD" in microseconds, or "max PERIOD" */
		char *space = strchr(content.data, ' ');
		unsigned long long quota, period;
		if (space) {
			*space = '\0';
			space[1 + strcspn(space + 1, "\n")] = '\0';
			if (text_to_u64(content.data, &quota) && text_to_u64(space + 1, &period) && period > 0) {
				unsigned long long whole = (quota + period - 1) / period;
				if (whole >= 1 && whole < (unsigned long long)cpus)
					cpus = (int)whole;
			}
		}
	}
	text_release(&content);
	text_release(&path);
	return cpus > 0 ? cpus : 1;
}
