/* Helper processes of tests. */
#include "tests/support/roles.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "harness/commands.h"
#include "harness/guard.h"
#include "tests/support/stub_server.h"

#define ARGUMENTS_MAX 32

static int run_command(enum status (*command)(int argc, char **argv, struct err *err), int argc, char **argv)
{
	struct err err = {0};
	enum status status = command(argc, argv, &err);
	if (status)
		fprintf(stderr, "verdict: %s\n", err.text);
	return status_exit_code(status);
}

bool support_role(int argc, char **argv, int *code)
{
	if (argc < 2)
		return false;
	if (strcmp(argv[1], "stub-server") == 0)
		*code = stub_server_run(argc - 1, argv + 1);
	else if (strcmp(argv[1], "--version") == 0)
		*code = printf("stub-engine 1.0\n") < 0; /* asked of the engine; running the tests again would never end */
	else if (strcmp(argv[1], GUARD_COMMAND) == 0)
		*code = guard_run();
	else if (strcmp(argv[1], "bench") == 0)
		*code = run_command(cmd_bench, argc, argv);
	else if (strcmp(argv[1], "run") == 0)
		*code = run_command(cmd_run, argc, argv);
	else if (strcmp(argv[1], "more") == 0)
		*code = run_command(cmd_more, argc, argv);
	else
		return false;
	return true;
}

const char *support_program(void)
{
	static char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
	assert_true(len > 0);
	path[len] = '\0';
	return path;
}

static void exec_self(const char *const *arguments)
{
	char *argv[ARGUMENTS_MAX + 2] = {(char *)support_program()};
	for (int i = 0; arguments[i] && i < ARGUMENTS_MAX; i++)
		argv[i + 1] = (char *)arguments[i];
	execv(argv[0], argv);
	_exit(127);
}

/* Reads both pipes until they close or the deadline passes. */
static bool read_both(int fds[2], struct text *texts[2], int64_t deadline_ns)
{
	while (fds[0] >= 0 || fds[1] >= 0) {
		struct pollfd wait[2] = {{.fd = fds[0], .events = POLLIN}, {.fd = fds[1], .events = POLLIN}};
		int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / 1000000;
		if (left_ms <= 0 || poll(wait, 2, (int)left_ms) <= 0)
			return false;
		for (int i = 0; i < 2; i++) {
			char buffer[8192];
			ssize_t got = wait[i].revents ? read(fds[i], buffer, sizeof(buffer)) : -1;
			if (got > 0)
				text_append(texts[i], buffer, (size_t)got);
			if (wait[i].revents && got <= 0) {
				close(fds[i]);
				fds[i] = -1;
			}
		}
	}
	return true;
}

int support_run(const char *const *arguments, struct text *out, struct text *errors)
{
	int out_pipe[2], error_pipe[2], wait_status = 0;
	assert_int_equal(pipe2(out_pipe, O_CLOEXEC) | pipe2(error_pipe, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(out_pipe[1], STDOUT_FILENO);
		dup2(error_pipe[1], STDERR_FILENO);
		exec_self(arguments);
	}
	close(out_pipe[1]);
	close(error_pipe[1]);
	int fds[2] = {out_pipe[0], error_pipe[0]};
	struct text *texts[2] = {out, errors};
	if (!read_both(fds, texts, clock_monotonic_ns() + (int64_t)60000000000)) {
		kill(pid, SIGKILL);
		fail_msg("'%s' did not end within 60 s: %s", arguments[0], text_str(errors));
	}
	assert_int_equal(waitpid(pid, &wait_status, 0), pid);
	return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
}

pid_t support_spawn(const char *const *arguments)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		dup2(null_fd, STDOUT_FILENO);
		dup2(null_fd, STDERR_FILENO);
		exec_self(arguments);
	}
	return pid;
}

static bool is_gone(pid_t pid)
{
	if (waitpid(pid, NULL, WNOHANG) == pid)
		return true;
	if (kill(pid, 0) != 0)
		return true;
	/* Somebody else's zombie is gone for every purpose, unless only its first thread ended. */
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	struct text text = {0};
	bool gone = file_read(path, 65536, &text, NULL) != STATUS_OK ||
		(strstr(text_str(&text), "State:\tZ") && !strstr(text_str(&text), "Threads:\t2"));
	text_release(&text);
	return gone;
}

bool support_wait_gone(pid_t pid, double timeout_s)
{
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(timeout_s * 1e9);
	while (!is_gone(pid)) {
		if (clock_monotonic_ns() > until_ns)
			return false;
		clock_sleep_ns(5000000);
	}
	return true;
}

static void run_child(int log_fd, const char *const *arguments)
{
	char *argv[ARGUMENTS_MAX + 4] = {(char *)support_program(), (char *)"stub-server"};
	for (int i = 0; arguments && arguments[i] && i < ARGUMENTS_MAX; i++)
		argv[i + 2] = (char *)arguments[i];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log_fd, STDERR_FILENO);
	execv(argv[0], argv);
	_exit(127);
}

/* Reads the line in which the stub says its port. */
static int read_port(int fd, int64_t deadline_ns)
{
	char line[256];
	size_t len = 0;
	while (len + 1 < sizeof(line) && !memchr(line, '\n', len)) {
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / 1000000;
		if (left_ms <= 0 || poll(&wait, 1, (int)left_ms) <= 0)
			return -1;
		ssize_t got = read(fd, line + len, sizeof(line) - 1 - len);
		if (got <= 0)
			return -1;
		len += (size_t)got;
	}
	line[len] = '\0';
	const char *port = strstr(line, "port ");
	return port ? (int)strtol(port + 5, NULL, 10) : -1;
}

void stub_start(struct stub_process *stub, const char *const *arguments)
{
	int log[2];
	assert_int_equal(pipe2(log, O_CLOEXEC), 0);
	stub->pid = fork();
	assert_true(stub->pid >= 0);
	if (stub->pid == 0)
		run_child(log[1], arguments);
	close(log[1]);
	stub->port = read_port(log[0], clock_monotonic_ns() + (int64_t)10000000000);
	close(log[0]);
	if (stub->port <= 0)
		fail_msg("the stub server did not start");
	snprintf(stub->url, sizeof(stub->url), "http://127.0.0.1:%d", stub->port);
}

void stub_stop(struct stub_process *stub)
{
	kill(stub->pid, SIGKILL);
	waitpid(stub->pid, NULL, 0);
	*stub = (struct stub_process){0};
}
