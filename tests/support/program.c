/* posix_spawn, two pipes, a deadline. */
#include "tests/support/program.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define DEADLINE_NS 120000000000LL

extern char **environ;

/* The test is BUILD/tests/AREA/test_NAME; programs are BUILD/NAME. */
void program_path(const char *name, char *out, size_t out_bytes)
{
	char self[3072];
	if (name[0] == '/') {
		snprintf(out, out_bytes, "%s", name);
		return;
	}
	ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
	assert_true(len > 0);
	self[len] = '\0';
	for (int up = 0; up < 3; up++) {
		char *slash = strrchr(self, '/');
		assert_non_null(slash);
		*slash = '\0';
	}
	snprintf(out, out_bytes, "%s/%s", self, name);
}

static pid_t start(const char *name, const char *const *words, int out_fd, int err_fd)
{
	char path[4096];
	const char *argv[PROGRAM_WORDS_MAX + 2] = {path};
	size_t n = 0;
	pid_t pid;
	posix_spawn_file_actions_t actions;
	program_path(name, path, sizeof path);
	for (; words[n]; n++) {
		assert_true(n < PROGRAM_WORDS_MAX);
		argv[n + 1] = words[n];
	}
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, out_fd, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&actions, err_fd, STDERR_FILENO);
	/* spawn does not write to its arguments; its type is older than const */
	int failed = posix_spawn(&pid, path, &actions, NULL, (char *const *)(uintptr_t)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (failed)
		fail_msg("cannot run %s: %s", path, strerror(failed));
	return pid;
}

/* Appends what fd has; false at its end. */
static bool take(int fd, struct text *out)
{
	char buffer[16384];
	ssize_t got = read(fd, buffer, sizeof buffer);
	if (got > 0)
		text_append(out, buffer, (size_t)got);
	return got > 0;
}

void program_run(const char *name, const char *const *words, struct program_result *out)
{
	int out_pipe[2], err_pipe[2], status = 0;
	*out = (struct program_result){0};
	assert_int_equal(pipe2(out_pipe, O_CLOEXEC), 0);
	assert_int_equal(pipe2(err_pipe, O_CLOEXEC), 0);
	pid_t pid = start(name, words, out_pipe[1], err_pipe[1]);
	close(out_pipe[1]);
	close(err_pipe[1]);
	int64_t deadline_ns = clock_monotonic_ns() + DEADLINE_NS;
	bool late = false;
	struct pollfd fds[2] = {{.fd = out_pipe[0], .events = POLLIN}, {.fd = err_pipe[0], .events = POLLIN}};
	while (fds[0].fd >= 0 || fds[1].fd >= 0) {
		int64_t left_ns = deadline_ns - clock_monotonic_ns();
		late = left_ns <= 0 || poll(fds, 2, (int)(left_ns / 1000000) + 1) == 0;
		if (late) {
			kill(pid, SIGKILL);
			break;
		}
		if (fds[0].revents && !take(out_pipe[0], &out->out))
			fds[0].fd = -1;
		if (fds[1].revents && !take(err_pipe[0], &out->err))
			fds[1].fd = -1;
	}
	close(out_pipe[0]);
	close(err_pipe[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (late)
		fail_msg("%s took longer than 120 s: %s", name, text_str(&out->err));
	out->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void program_result_release(struct program_result *result)
{
	text_release(&result->out);
	text_release(&result->err);
}

struct json *program_json(const struct program_result *result)
{
	struct json *root = NULL;
	struct err err = {0};
	if (result->exit_code != 0)
		fail_msg("exit code %d: %s", result->exit_code, text_str(&result->err));
	if (json_parse(text_str(&result->out), result->out.len, "standard output", &root, &err) != STATUS_OK)
		fail_msg("%s in: %s", err.text, text_str(&result->out));
	return root;
}

const char *program_last_line(struct program_result *result)
{
	while (result->err.len > 0 && result->err.data[result->err.len - 1] == '\n')
		text_truncate(&result->err, result->err.len - 1);
	const char *last = strrchr(text_str(&result->err), '\n');
	return last ? last + 1 : text_str(&result->err);
}
