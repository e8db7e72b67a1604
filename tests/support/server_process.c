/* The real server program as a child process. */
#include "tests/support/server_process.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "tests/support/http_client.h"

#define WAIT_NS ((int64_t)60 * 1000000000) /* far above what any test needs, sanitizers and a busy machine included */

void server_program(const char *name, char path[512])
{
	char self[400];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

	assert_true(len > 0);
	self[len] = '\0';
	for (int i = 0; i < 3; i++) /* BUILD/tests/AREA/test_NAME */
		*strrchr(self, '/') = '\0';
	snprintf(path, 512, "%s/%s", self, name);
}

/* In the child: never returns. */
static void run_program(const struct server_process *server, const char *model, const char *nonce, const char *const *arguments)
{
	const char *words[SERVER_ARGUMENTS_MAX + 9] = {NULL, "serve", "--model", model, "--port", "0", "--threads", "1"};
	char path[512];
	int count = 8;
	int log_fd = open(server->log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	server_program("verdict-engine", path);
	words[0] = path;
	for (int i = 0; arguments[i] && i < SERVER_ARGUMENTS_MAX; i++)
		words[count++] = arguments[i];
	if (nonce)
		setenv("VERDICT_NONCE", nonce, 1);
	else
		unsetenv("VERDICT_NONCE");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(log_fd, STDOUT_FILENO);
	dup2(log_fd, STDERR_FILENO);
	execv(path, (char **)words);
	_exit(126);
}

void server_log(const struct server_process *server, struct text *out)
{
	file_read(server->log_path, 1 << 20, out, NULL);
}

static bool is_ready(struct server_process *server)
{
	static const char mark[] = "listening on http://127.0.0.1:";
	struct http_client_reply reply;
	struct text log = {0};

	if (!server->port) {
		server_log(server, &log);
		const char *at = strstr(text_str(&log), mark);
		server->port = at ? (int)strtol(at + strlen(mark), NULL, 10) : 0;
		text_release(&log);
	}
	bool ready = server->port && http_client_once(server->port, "/health", NULL, &reply) && reply.status == 200;
	if (server->port)
		http_client_reply_release(&reply);
	return ready;
}

void server_start(struct server_process *server, const char *model, const char *nonce, const char *const *arguments, bool ready)
{
	int64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;

	*server = (struct server_process){0};
	snprintf(server->log_path, sizeof(server->log_path), "/tmp/test-server-XXXXXX");
	int fd = mkstemp(server->log_path);
	assert_true(fd >= 0);
	close(fd);
	server->pid = fork();
	assert_true(server->pid >= 0);
	if (server->pid == 0)
		run_program(server, model, nonce, arguments);
	while (ready && !is_ready(server)) {
		if (clock_monotonic_ns() > deadline_ns || waitpid(server->pid, NULL, WNOHANG) != 0) {
			struct text log = {0};
			server_log(server, &log);
			fail_msg("the server did not start: %s", text_str(&log));
		}
		clock_sleep_ns(2000000); /* polls another process; nothing here could wake it */
	}
}

int server_wait(struct server_process *server)
{
	int64_t deadline_ns = clock_monotonic_ns() + WAIT_NS;
	int status = 0;

	while (waitpid(server->pid, &status, WNOHANG) == 0) {
		if (clock_monotonic_ns() > deadline_ns) {
			kill(server->pid, SIGKILL);
			waitpid(server->pid, &status, 0);
			return -1;
		}
		clock_sleep_ns(2000000);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int server_stop(struct server_process *server, int signal_number)
{
	kill(server->pid, signal_number);
	int code = server_wait(server);
	unlink(server->log_path);
	return code;
}
