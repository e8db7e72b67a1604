/* Starting the guard and listening to it. */
#include "harness/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "harness/guard.h"
#include "harness/proctree.h"

#define NS_PER_MS ((int64_t)1000000)
#define START_MS_MAX 20000 /* guess: forking and exec of two programs on a machine that swaps */
#define ORPHAN_TERM_MS 500 /* with the second that killing may take, all is over within 2 s */
#define STOP_EXTRA_MS 8000 /* above term_s: the guard gives up killing after 5 s */
#define DESTROY_MS_MAX 3000
#define SWEEP_MS_MAX 5000 /* after the first SIGKILL: what lives then is stuck in the kernel */
#define SWEEP_ROUND_MS 10
#define ENVIRONMENT_BYTES_MAX ((size_t)8 << 20) /* guess: above what the kernel takes */
#define MARK_NAME "VERDICT_NONCE=" /* differs from launch to launch and is inherited */
#define FD_ABOVE 16 /* out of the way of the guard's own numbers */

struct launch {
	pid_t guard;
	char *mark; /* the variable by which processes of this launch are known; NULL: none */
	int control_fd;
	struct logring log;
	struct launch_state state;
};

/* In the child between fork and exec: only calls that are safe there. */
static void become_guard(const char *program, int control_fd, int spec_fd, int log_fd)
{
	/* Moved away first: one of them may have a number that another is to get. */
	int control = fcntl(control_fd, F_DUPFD_CLOEXEC, FD_ABOVE);
	int spec = fcntl(spec_fd, F_DUPFD_CLOEXEC, FD_ABOVE);
	int log = fcntl(log_fd, F_DUPFD_CLOEXEC, FD_ABOVE);
	dup2(control, GUARD_CONTROL_FD);
	dup2(spec, GUARD_SPEC_FD);
	dup2(log, GUARD_LOG_FD);
	int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		dup2(null_fd, fd);
	char *argv[] = {(char *)"verdict", (char *)GUARD_COMMAND, NULL};
	execv(program ? program : "/proc/self/exe", argv);
	_exit(127);
}

static enum status write_spec(const struct launch_request *request, int *fd, struct err *err)
{
	*fd = memfd_create("verdict-launch", MFD_CLOEXEC);
	if (*fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "creating a memory file for the launch");
	struct guard_spec spec = {*request->arguments, *request->environment, (char *)request->cpus, ORPHAN_TERM_MS};
	return guard_spec_write(*fd, &spec, err);
}

static void take(struct launch *launch, const struct guard_message *message)
{
	struct launch_state *state = &launch->state;
	switch (message->event) {
	case GUARD_STARTED:
		state->pid = message->pid;
		break;
	case GUARD_EXEC_FAILED:
		state->exec_errno = message->detail;
		break;
	case GUARD_EXITED:
		state->exited = true;
		state->exit_code = message->code;
		state->exit_signal = message->detail;
		break;
	case GUARD_CLEAN:
		state->clean = true;
		state->survivors = message->code;
		break;
	}
}

const struct launch_state *launch_update(struct launch *launch)
{
	struct guard_message message;
	while (launch->control_fd >= 0) {
		ssize_t got = recv(launch->control_fd, &message, sizeof(message), MSG_DONTWAIT);
		if (got == (ssize_t)sizeof(message)) {
			take(launch, &message);
		} else if (got < 0 && errno == ECONNRESET) {
			continue; /* told once when the guard ended without reading our last word; what it had said is still there
				   */
		} else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
			break;
		} else {
			/* The guard has ended. Without its last word, what it left behind is unknown. */
			launch->state.guard_lost = !launch->state.clean;
			close(launch->control_fd);
			launch->control_fd = -1;
		}
	}
	return &launch->state;
}

/* ---- without the guard ---- */

static bool has_mark(const struct launch *launch, pid_t pid)
{
	char path[64];
	struct text environment = {0};
	snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
	bool found = false;
	if (launch->mark && file_read(path, ENVIRONMENT_BYTES_MAX, &environment, NULL) == STATUS_OK)
		for (size_t at = 0; at < environment.len && !found; at += strlen(environment.data + at) + 1)
			found = text_equal(environment.data + at, launch->mark);
	text_release(&environment);
	return found;
}

/* Kills what the launch has left once more. Returns how many processes that were. */
static int sweep_once(const struct launch *launch, struct proctree *tree)
{
	int found = 0;
	proctree_read(tree, getpid());
	for (size_t i = 0; i < tree->count; i++) {
		pid_t pid = tree->pids[i];
		if (pid == launch->guard || (getsid(pid) != launch->state.pid && !has_mark(launch, pid)))
			continue;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, WNOHANG);
		found++;
	}
	return found;
}

/* Does what a guard that is gone, or does not answer, can no longer do. The engine dies with its guard; its descendants come to us,
 * the next subreaper, and are known by their session or by a variable they inherited. One that left the session and its environment
 * stays, and shows as a port or memory that is not given back. */
static void sweep(struct launch *launch)
{
	struct proctree tree = {0};
	int64_t until_ns = clock_monotonic_ns() + SWEEP_MS_MAX * NS_PER_MS;
	if (launch->guard > 0)
		kill(launch->guard, SIGKILL); /* our own child, not yet reaped: the pid is its */
	while ((launch->state.survivors = sweep_once(launch, &tree)) > 0 && clock_monotonic_ns() < until_ns)
		clock_sleep_ns(SWEEP_ROUND_MS * NS_PER_MS);
	if (launch->state.pid > 0)
		waitpid(launch->state.pid, NULL, WNOHANG);
	launch->state.clean = launch->state.survivors == 0;
	proctree_release(&tree);
}

/* ---- with it ---- */

static bool is_settled(const struct launch_state *state)
{
	return state->pid || state->exec_errno || state->clean || state->guard_lost;
}

static bool is_over(const struct launch_state *state)
{
	return state->clean || state->guard_lost;
}

static bool wait_for(struct launch *launch, bool (*condition)(const struct launch_state *state), int64_t timeout_ms)
{
	int64_t until_ns = clock_monotonic_ns() + timeout_ms * NS_PER_MS;
	while (!condition(launch_update(launch))) {
		int64_t left_ms = (until_ns - clock_monotonic_ns()) / NS_PER_MS;
		if (left_ms <= 0)
			return false;
		struct pollfd wait = {.fd = launch->control_fd, .events = POLLIN};
		poll(&wait, 1, (int)left_ms + 1);
	}
	return true;
}

enum status launch_start(const struct launch_request *request, struct launch **out, struct err *err)
{
	int sockets[2] = {-1, -1}, spec_fd = -1;
	struct launch *launch = mem_calloc(1, sizeof(*launch));
	launch->control_fd = launch->log.fd = -1;
	launch->state = (struct launch_state){.exit_code = -1, .exit_signal = -1};
	for (size_t i = 0; i < request->environment->count; i++)
		if (text_starts_with(request->environment->items[i], MARK_NAME))
			launch->mark = mem_strdup(request->environment->items[i]);
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* should the guard be lost, its engine's processes come to us; see sweep */
	enum status status = logring_create(&launch->log, err);
	if (!status)
		status = write_spec(request, &spec_fd, err);
	if (!status && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "creating a socket pair");
	if (!status) {
		launch->control_fd = sockets[0];
		launch->guard = fork();
		if (launch->guard < 0)
			status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "starting a process");
		if (launch->guard == 0)
			become_guard(request->guard_program, sockets[1], spec_fd, launch->log.fd);
	}
	if (sockets[1] >= 0)
		close(sockets[1]);
	if (spec_fd >= 0)
		close(spec_fd);
	if (!status && !wait_for(launch, is_settled, START_MS_MAX))
		status = err_set(
			err, STATUS_UNAVAILABLE, "the guard process did not start the engine within %d s", START_MS_MAX / 1000);
	if (!status && launch->state.guard_lost && !launch->state.pid && !launch->state.exec_errno)
		status = err_set(err, STATUS_UNAVAILABLE, "the guard process could not be started");
	if (status) {
		launch_destroy(launch);
		launch = NULL;
	}
	*out = launch;
	return status;
}

int launch_fd(const struct launch *launch)
{
	return launch->control_fd;
}

const struct logring *launch_log(const struct launch *launch)
{
	return &launch->log;
}

pid_t launch_guard_pid(const struct launch *launch)
{
	return launch->guard;
}

const struct launch_state *launch_stop(struct launch *launch, double term_s)
{
	if (is_over(launch_update(launch))) {
		if (!launch->state.clean)
			sweep(launch);
		return &launch->state;
	}
	uint32_t term_ms = (uint32_t)(term_s * 1e3);
	if (!launch->state.exited)
		launch->state.stop_requested = true;
	(void)!send(launch->control_fd, &term_ms, sizeof(term_ms), MSG_NOSIGNAL);
	if (!wait_for(launch, is_over, (int64_t)term_ms + STOP_EXTRA_MS))
		launch->state.guard_lost = true; /* a guard that does not come back is as good as none */
	if (launch->state.guard_lost && !launch->state.clean)
		sweep(launch);
	return &launch->state;
}

static void reap_guard(struct launch *launch)
{
	int64_t until_ns = clock_monotonic_ns() + DESTROY_MS_MAX * NS_PER_MS;
	while (launch->guard > 0 && waitpid(launch->guard, NULL, WNOHANG) == 0) {
		if (clock_monotonic_ns() > until_ns)
			kill(launch->guard, SIGKILL); /* our own child, not yet reaped: the pid is its */
		clock_sleep_ns(NS_PER_MS);
	}
}

void launch_destroy(struct launch *launch)
{
	if (!launch)
		return;
	if (launch->state.guard_lost && !launch->state.clean)
		sweep(launch);
	if (launch->control_fd >= 0)
		close(launch->control_fd); /* to the guard this is our death: it cleans up and ends */
	reap_guard(launch);
	logring_close(&launch->log);
	mem_free(launch->mark);
	mem_free(launch);
}
