/* Reading /proc. */
#include "harness/proctree.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#define SOCKETS_MAX 64 /* that listen on one port: IPv4, IPv6 and SO_REUSEPORT siblings */

struct proctree_entry {
	pid_t pid, parent;
	bool wanted;
};

/* A process whose first thread ended reads as a zombie, and lives as long as another of its threads does: field 20 counts them.
 * fields begins with the state, field 3. */
static bool is_alive(const char *fields)
{
	if (fields[0] != 'Z')
		return fields[0] != 'X';
	for (int field = 3; fields && field < 20; field++) {
		fields = strchr(fields, ' ');
		fields = fields ? fields + 1 : NULL;
	}
	return fields && strtol(fields, NULL, 10) > 1;
}

/* Parent and life out of /proc/PID/stat; the name before them may hold anything, so they are found behind the last ')'. */
static bool read_stat(pid_t pid, pid_t *parent, bool *alive)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	struct text text = {0};
	bool ok = file_read(path, 4096, &text, NULL) == STATUS_OK;
	const char *after = ok ? strrchr(text_str(&text), ')') : NULL;
	ok = after && strlen(after) > 4;
	if (ok) {
		*alive = is_alive(after + 2);
		*parent = (pid_t)strtol(after + 4, NULL, 10);
	}
	text_release(&text);
	return ok;
}

static size_t read_all(struct proctree *tree)
{
	DIR *proc = opendir("/proc");
	size_t count = 0;
	for (struct dirent *entry; proc && (entry = readdir(proc));) {
		if (!isdigit((unsigned char)entry->d_name[0]))
			continue;
		struct proctree_entry process = {.pid = (pid_t)strtol(entry->d_name, NULL, 10)};
		bool alive;
		if (!read_stat(process.pid, &process.parent, &alive) || !alive)
			continue;
		if (count == tree->capacity) {
			tree->capacity = tree->capacity ? 2 * tree->capacity : 256;
			tree->entries = mem_realloc(tree->entries, tree->capacity, sizeof(tree->entries[0]));
		}
		tree->entries[count++] = process;
	}
	if (proc)
		closedir(proc);
	return count;
}

static void add_pid(struct proctree *tree, pid_t pid)
{
	if (tree->count == tree->pids_capacity) {
		tree->pids_capacity = tree->pids_capacity ? 2 * tree->pids_capacity : 16;
		tree->pids = mem_realloc(tree->pids, tree->pids_capacity, sizeof(tree->pids[0]));
	}
	tree->pids[tree->count++] = pid;
}

void proctree_read(struct proctree *tree, pid_t root)
{
	size_t n = read_all(tree);
	tree->count = 0;
	/* Children of wanted processes are wanted; repeated until a pass finds no more, since a child may come before its parent.
	 */
	for (bool found = true; found;) {
		found = false;
		for (size_t i = 0; i < n; i++) {
			struct proctree_entry *entry = &tree->entries[i];
			bool is_child = entry->parent == root;
			for (size_t p = 0; p < tree->count && !is_child; p++)
				is_child = tree->pids[p] == entry->parent;
			if (entry->wanted || !is_child || entry->pid == root)
				continue;
			entry->wanted = found = true;
			add_pid(tree, entry->pid);
		}
	}
}

void proctree_release(struct proctree *tree)
{
	mem_free(tree->pids);
	mem_free(tree->entries);
	*tree = (struct proctree){0};
}

uint64_t proctree_peak_bytes(const struct proctree *tree)
{
	uint64_t total = 0;
	for (size_t i = 0; i < tree->count; i++) {
		char path[64];
		snprintf(path, sizeof(path), "/proc/%d/status", (int)tree->pids[i]);
		struct text text = {0};
		if (file_read(path, 65536, &text, NULL) == STATUS_OK) {
			const char *peak = strstr(text_str(&text), "VmHWM:");
			total += peak ? strtoull(peak + 6, NULL, 10) * 1024 : 0;
		}
		text_release(&text);
	}
	return total;
}

int64_t process_cpu_ticks(pid_t pid, bool children)
{
	char path[64];
	struct text text = {0};
	long long ticks[4] = {0}; /* utime stime cutime cstime: fields 14 to 17, of which ')' ends the second */
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	char *at = file_read(path, 4096, &text, NULL) == STATUS_OK ? strrchr(text.data, ')') : NULL;
	for (int field = 3; at && field <= 14; field++)
		at = strchr(at + 1, ' ');
	for (int i = 0; at && i < 4; i++)
		ticks[i] = strtoll(at, &at, 10);
	text_release(&text);
	return ticks[0] + ticks[1] + (children ? ticks[2] + ticks[3] : 0);
}

/* Inodes of the sockets that listen on port, from one of the kernel's tables:
 * "  sl  local_address rem_address   st tx:rx tr:when retrnsmt uid timeout inode", addresses as HEX:PORT, state 0A = LISTEN. */
static void read_table(const char *path, int port, unsigned long long *inodes, size_t *count)
{
	FILE *file = fopen(path, "re");
	char line[512];
	while (file && *count < SOCKETS_MAX && fgets(line, sizeof(line), file)) {
		const char *local = strchr(line, ':'); /* behind the slot number */
		local = local ? strchr(local + 1, ':') : NULL;
		if (!local || strtol(local + 1, NULL, 16) != port)
			continue;
		/* Fields from the local address on, split at spaces: local, remote, state, queues, timer, retransmits, uid,
		 * timeout, inode. */
		const char *at = local;
		bool listens = false;
		for (int field = 1; at && field <= 8; field++) {
			at = strchr(at, ' ');
			while (at && *at == ' ')
				at++;
			if (field == 2)
				listens = at && strncmp(at, "0A", 2) == 0;
		}
		if (at && listens)
			inodes[(*count)++] = strtoull(at, NULL, 10);
	}
	if (file)
		fclose(file);
}

static size_t listening_inodes(int port, unsigned long long inodes[SOCKETS_MAX])
{
	size_t count = 0;
	read_table("/proc/net/tcp", port, inodes, &count);
	read_table("/proc/net/tcp6", port, inodes, &count);
	return count;
}

static bool holds_socket(pid_t pid, const unsigned long long *inodes, size_t count)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	DIR *fds = opendir(path);
	bool found = false;
	for (struct dirent *entry; fds && !found && (entry = readdir(fds));) {
		char target[64];
		ssize_t len = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);
		if (len <= 8)
			continue;
		target[len] = '\0';
		if (strncmp(target, "socket:[", 8) != 0)
			continue;
		unsigned long long inode = strtoull(target + 8, NULL, 10);
		for (size_t i = 0; i < count; i++)
			found = found || inodes[i] == inode;
	}
	if (fds)
		closedir(fds);
	return found;
}

bool proctree_listens(const struct proctree *tree, int port)
{
	unsigned long long inodes[SOCKETS_MAX];
	size_t count = listening_inodes(port, inodes);
	for (size_t i = 0; i < tree->count && count > 0; i++)
		if (holds_socket(tree->pids[i], inodes, count))
			return true;
	return false;
}

bool port_is_listened_on(int port)
{
	unsigned long long inodes[SOCKETS_MAX];
	return listening_inodes(port, inodes) > 0;
}
