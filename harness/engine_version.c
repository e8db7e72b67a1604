/* Asking a program for its version. See engine_version.h. */
#include "harness/engine_version.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define OUTPUT_BYTES_MAX 4096 /* read at most: a version is the first line */
#define LINE_BYTES_MAX 160 /* kept: it becomes part of every row */
#define NS_PER_MS ((int64_t)1000000)

extern char **environ;

/* In a process group of its own, so that whatever it starts can be ended with it. Returns 0 when it could not be started. */
static pid_t start(const char *program, int output_fd)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	pid_t pid = 0;
	char *arguments[] = {(char *)program, (char *)"--version", NULL};
	posix_spawn_file_actions_init(&files);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, output_fd, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&files, output_fd, STDERR_FILENO); /* llama.cpp says it there */
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
	if (posix_spawn(&pid, program, &files, &attributes, arguments, environ) != 0)
		pid = 0;
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&files);
	return pid;
}

/* Reads to the end of the output; false when it has not come by until_ns. */
static bool read_all(int fd, int64_t until_ns, struct text *out)
{
	for (;;) {
		int64_t left_ms = (until_ns - clock_monotonic_ns()) / NS_PER_MS;
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		char bytes[512];
		if (left_ms <= 0)
			return false;
		if (poll(&wait, 1, (int)left_ms) <= 0)
			continue;
		ssize_t got = read(fd, bytes, sizeof(bytes));
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return got == 0;
		if (out->len + (size_t)got <= OUTPUT_BYTES_MAX)
			text_append(out, bytes, (size_t)got);
	}
}

/* True when the program ended by itself and well; one that has closed its output may still run. Its group is ended before it is
 * reaped: until then the number cannot belong to anybody else. */
static bool end(pid_t pid, bool finished, int64_t until_ns)
{
	siginfo_t info = {0};
	while (finished && waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0) {
		finished = clock_monotonic_ns() < until_ns;
		clock_sleep_ns(NS_PER_MS);
	}
	kill(-pid, SIGKILL);
	int wait_status = 0;
	while (waitpid(pid, &wait_status, 0) < 0 && errno == EINTR)
		continue;
	return finished && WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

/* The first line that is not empty, printable, without "NAME " in front where NAME is the program's own. */
static void take_line(const char *program, const struct text *output, struct text *out)
{
	const char *slash = strrchr(program, '/');
	const char *name = slash ? slash + 1 : program, *line = text_str(output) + strspn(text_str(output), "\r\n ");
	size_t len = strcspn(line, "\r\n"), name_len = strlen(name);
	if (len > name_len && strncmp(line, name, name_len) == 0 && line[name_len] == ' ') {
		line += name_len + 1;
		len -= name_len + 1;
	}
	for (size_t i = 0; i < len && i < LINE_BYTES_MAX; i++)
		text_append_char(out, line[i] >= ' ' && line[i] <= '~' ? line[i] : '?');
}

bool engine_version_ask(const char *program, int timeout_ms, struct text *out)
{
	int ends[2];
	text_clear(out);
	if (pipe2(ends, O_CLOEXEC) != 0)
		return false;
	struct text output = {0};
	int64_t until_ns = clock_monotonic_ns() + timeout_ms * NS_PER_MS;
	pid_t pid = start(program, ends[1]);
	close(ends[1]);
	if (pid > 0 && end(pid, read_all(ends[0], until_ns, &output), until_ns))
		take_line(program, &output, out);
	close(ends[0]);
	text_release(&output);
	return out->len > 0;
}
