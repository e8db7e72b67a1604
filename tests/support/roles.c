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
#include "harness/guard.h"
#include "tests/support/stub_server.h"

#define ARGUMENTS_MAX 32

bool support_role(int argc, char **argv, int *code)
{
	if (argc < 2)
		return false;
	if (strcmp(argv[1], "stub-server") == 0)
		*code = stub_server_run(argc - 1, argv + 1);
	else if (strcmp(argv[1], GUARD_COMMAND) == 0)
		*code = guard_run();
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
