/* Child processes of rank 0, owned by one thread.
 *
 * That thread starts them itself, because the kernel's "kill me when my parent dies" is tied to the thread that made the child, and
 * the thread that called ranks_start may end before the server does. */
#include "engine/ranks_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define STOP_GRACE_NS 1000000000LL /* a child that was told to stop has a step to finish at most */
#define KILL_GRACE_NS 300000000LL /* a killed process is gone within milliseconds */
#define BLAME_GRACE_NS 100000000LL /* a peer's death may be noticed by a collective before it is noticed here */
#define END_BYTES 64
#define ARGV_MAX 128 /* guess: more than every switch of the engine */

extern char **environ;

static bool is_readable(int fd, int64_t timeout_ns)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
	int64_t deadline_ns = clock_monotonic_ns() + timeout_ns, left_ns = timeout_ns;
	int n = 0;
	do {
		n = poll(&poll_fd, 1, (int)((left_ns + 999999) / 1000000));
		left_ns = deadline_ns - clock_monotonic_ns();
	} while (n < 0 && errno == EINTR && left_ns > 0);
	return n > 0;
}

/* Looks at the next report, which stays where it is, and notes a refusal. */
static bool peek_report(struct ranks *ranks, int rank, struct ranks_report *out)
{
	ssize_t n = recv(ranks->children[rank].control, out, sizeof(*out), MSG_DONTWAIT | MSG_PEEK);
	if (n != (ssize_t)sizeof(*out))
		return false;
	if (out->status != STATUS_OK)
		atomic_store(&ranks->children[rank].refused, true);
	return true;
}

bool ranks_child_report(struct ranks *ranks, int rank, struct ranks_report *out)
{
	/* Noted first and taken then, so that the watching thread, which may look in between, finds the one or the other. */
	if (!peek_report(ranks, rank, out))
		return false;
	if (recv(ranks->children[rank].control, out, sizeof(*out), MSG_DONTWAIT) != (ssize_t)sizeof(*out))
		return false;
	if (out->status < STATUS_OK || out->status > STATUS_INTERNAL)
		out->status = STATUS_INTERNAL;
	out->err.code[sizeof(out->err.code) - 1] = '\0';
	out->err.text[sizeof(out->err.text) - 1] = '\0';
	out->err.details[sizeof(out->err.details) - 1] = '\0';
	return true;
}

/* ---- starting ---- */

/* Descriptors of a child before they are put in their places; all above the places, so that no move overwrites another. */
struct child_fds {
	int region, control, socket;
};

/* A pair of which the child's end lies high. */
static int make_pair(int type, int *ours, int *theirs)
{
	int pair[2];
	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) != 0)
		return errno;
	*ours = pair[0];
	*theirs = fcntl(pair[1], F_DUPFD_CLOEXEC, RANKS_FD_END);
	int errnum = *theirs < 0 ? errno : 0;
	close(pair[1]);
	return errnum;
}

static int prepare_fds(struct ranks *ranks, int rank, struct child_fds *fds)
{
	int errnum = make_pair(SOCK_SEQPACKET, &ranks->children[rank].control, &fds->control);
	if (errnum == 0)
		errnum = make_pair(SOCK_STREAM, &ranks->sockets[rank], &fds->socket);
	if (errnum == 0) {
		fds->region = fcntl(ranks->region_fd, F_DUPFD_CLOEXEC, RANKS_FD_END);
		errnum = fds->region < 0 ? errno : 0;
	}
	return errnum;
}

static void close_fds(const struct child_fds *fds)
{
	const int all[] = {fds->region, fds->control, fds->socket};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i] >= 0)
			close(all[i]);
	}
}

/* The child gets nothing of this process but standard error and the three descriptors; its standard output is standard error,
 * since only rank 0 answers. */
static int place_fds(posix_spawn_file_actions_t *actions, const struct child_fds *fds)
{
	int errnum = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (errnum == 0)
		errnum = posix_spawn_file_actions_adddup2(actions, STDERR_FILENO, STDOUT_FILENO);
	if (errnum == 0)
		errnum = posix_spawn_file_actions_adddup2(actions, fds->region, RANKS_FD_REGION);
	if (errnum == 0)
		errnum = posix_spawn_file_actions_adddup2(actions, fds->control, RANKS_FD_CONTROL);
	if (errnum == 0)
		errnum = posix_spawn_file_actions_adddup2(actions, fds->socket, RANKS_FD_SOCKET);
	if (errnum == 0)
		errnum = posix_spawn_file_actions_addclosefrom_np(actions, RANKS_FD_END);
	return errnum;
}

/* Default signal actions and an empty mask, whatever this process has set for itself. */
static int reset_signals(posix_spawnattr_t *attributes)
{
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	int errnum = posix_spawnattr_setsigdefault(attributes, &all);
	if (errnum == 0)
		errnum = posix_spawnattr_setsigmask(attributes, &none);
	if (errnum == 0)
		errnum = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	return errnum;
}

static int fill_argv(const struct ranks *ranks, char *link, char *argv[ARGV_MAX])
{
	size_t n = 0;
	argv[n++] = program_invocation_name;
	argv[n++] = (char *)RANKS_SUBCOMMAND; /* exec does not write to its arguments; its type is older than const */
	argv[n++] = link;
	for (const char *const *argument = ranks->argv; argument != NULL && *argument != NULL; argument++) {
		if (n + 1 >= ARGV_MAX)
			return E2BIG;
		argv[n++] = (char *)*argument;
	}
	argv[n] = NULL;
	return 0;
}

static int spawn(struct ranks *ranks, int rank, const struct child_fds *fds)
{
	char link[RANKS_LINK_BYTES];
	char *argv[ARGV_MAX];
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	snprintf(link, sizeof(link), RANKS_LINK_FORMAT, rank, ranks->world, ranks->bytes, (unsigned long long)ranks->head->cookie,
		(int)getpid());
	int errnum = fill_argv(ranks, link, argv);
	if (errnum != 0)
		return errnum;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	errnum = place_fds(&actions, fds);
	if (errnum == 0)
		errnum = reset_signals(&attributes);
	if (errnum == 0)
		errnum = posix_spawn(&ranks->children[rank].pid, "/proc/self/exe", &actions, &attributes, argv, environ);
	if (errnum != 0)
		ranks->children[rank].pid = 0;
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return errnum;
}

static enum status start_child(struct ranks *ranks, int rank, struct err *err)
{
	struct child_fds fds = {-1, -1, -1};
	int errnum = prepare_fds(ranks, rank, &fds);
	if (errnum == 0)
		errnum = spawn(ranks, rank, &fds);
	close_fds(&fds);
	if (errnum != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "rank %d cannot be started", rank);
	ranks->children[rank].pidfd = pidfd_open(ranks->children[rank].pid, 0);
	if (ranks->children[rank].pidfd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "rank %d cannot be watched", rank);
	return STATUS_OK;
}

/* ---- ending ---- */

/* Once, last: sends SIGKILL to the children and takes their remains; waits grace_ns before that for those who end by themselves. */
static void end_children(struct ranks *ranks, int64_t grace_ns)
{
	int64_t deadline_ns = clock_monotonic_ns() + grace_ns;
	for (int rank = 1; rank < ranks->world && grace_ns > 0; rank++) {
		int64_t left_ns = deadline_ns - clock_monotonic_ns();
		if (ranks->children[rank].pidfd >= 0)
			is_readable(ranks->children[rank].pidfd, left_ns > 0 ? left_ns : 0);
	}
	for (int rank = 1; rank < ranks->world; rank++) {
		if (ranks->children[rank].pid > 0)
			kill(ranks->children[rank].pid, SIGKILL); /* not reaped yet, so the number is still theirs */
	}
	for (int rank = 1; rank < ranks->world; rank++) {
		const struct ranks_child *child = &ranks->children[rank];
		if (child->pid > 0 && (child->pidfd < 0 || is_readable(child->pidfd, KILL_GRACE_NS)))
			waitpid(child->pid, NULL, 0);
	}
}

/* How the child of rank ended: "killed by signal 9 (SIGKILL)". False when it runs. Does not reap it. */
static bool describe_end(const struct ranks *ranks, int rank, char *out, size_t out_bytes)
{
	siginfo_t info = {0};
	if (waitid(P_PIDFD, (id_t)ranks->children[rank].pidfd, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
		return false;
	if (info.si_code == CLD_EXITED)
		snprintf(out, out_bytes, "exit code %d", info.si_status);
	else
		snprintf(out, out_bytes, "killed by signal %d (SIG%s)", info.si_status, sigabbrev_np(info.si_status));
	return true;
}

/* The dead child to blame, or 0. One killed by a signal comes first: the others may have ended because of it. */
static int find_dead(const struct ranks *ranks, char *end, size_t end_bytes)
{
	int found = 0;
	for (int rank = 1; rank < ranks->world; rank++) {
		char text[END_BYTES];
		if (ranks->children[rank].pid <= 0 || !describe_end(ranks, rank, text, sizeof(text)))
			continue;
		bool by_signal = strncmp(text, "killed", strlen("killed")) == 0;
		if (found == 0 || by_signal) {
			found = rank;
			snprintf(end, end_bytes, "%s", text);
		}
		if (by_signal)
			break;
	}
	return found;
}

/* Kills what is left, writes the last line and leaves. reason: used when no child is dead. The children go first, so that they have
 * nothing to say after the last line. */
static void __attribute__((noreturn)) end_server(struct ranks *ranks, const char *reason)
{
	char end[END_BYTES], line[ERR_TEXT_BYTES_MAX + 128];
	if (atomic_exchange(&ranks->ending, true)) {
		for (;;)
			pause(); /* another thread is at it */
	}
	int dead = find_dead(ranks, end, sizeof(end));
	if (dead > 0) {
		struct ranks_report report = {0};
		while (ranks_child_report(ranks, dead, &report) && report.status == STATUS_OK)
			continue;
		snprintf(line, sizeof(line), "rank %d (pid %d) ended: %s%s%s", dead, (int)ranks->children[dead].pid, end,
			report.status != STATUS_OK ? ": " : "", report.status != STATUS_OK ? report.err.text : "");
	} else {
		snprintf(line, sizeof(line), "%s", reason);
	}
	end_children(ranks, 0);
	log_error("ranks", "%s", line);
	_exit(status_exit_code(STATUS_RANK_DIED));
}

void ranks_fail(struct ranks *ranks, const struct err *err)
{
	char end[END_BYTES];
	int64_t deadline_ns = clock_monotonic_ns() + BLAME_GRACE_NS;
	while (find_dead(ranks, end, sizeof(end)) == 0 && clock_monotonic_ns() < deadline_ns)
		clock_sleep_ns(BLAME_GRACE_NS / 100);
	end_server(ranks, err->text);
}

/* ---- watching ---- */

/* Whether a child that has ended did so in good order: while starting, having said why. */
static bool has_refused(struct ranks *ranks, int rank)
{
	struct ranks_report report;
	peek_report(ranks, rank, &report);
	return atomic_load(&ranks->phase) == RANKS_STARTING && atomic_load(&ranks->children[rank].refused);
}

static void look_at_children(struct ranks *ranks, const struct pollfd *polls, bool *noticed)
{
	for (int rank = 1; rank < ranks->world; rank++) {
		if (polls[rank].revents == 0)
			continue;
		if (!has_refused(ranks, rank))
			end_server(ranks, "a rank ended");
		noticed[rank] = true; /* poll no more */
	}
}

static void watch_until_stop(struct ranks *ranks)
{
	struct pollfd polls[COMM_RANKS_MAX];
	bool noticed[COMM_RANKS_MAX] = {false};
	while (atomic_load(&ranks->phase) != RANKS_STOPPING) {
		bool running = atomic_load(&ranks->phase) == RANKS_RUNNING;
		polls[0] = (struct pollfd){.fd = ranks->wake_fd, .events = POLLIN};
		for (int rank = 1; rank < ranks->world; rank++) {
			int fd = noticed[rank] && !running ? -1 : ranks->children[rank].pidfd;
			polls[rank] = (struct pollfd){.fd = fd, .events = POLLIN};
		}
		if (poll(polls, (nfds_t)ranks->world, -1) < 0)
			continue;
		eventfd_t ignored;
		if (polls[0].revents != 0)
			eventfd_read(ranks->wake_fd, &ignored);
		if (atomic_load(&ranks->phase) != RANKS_STOPPING)
			look_at_children(ranks, polls, noticed);
	}
}

static void *watch(void *argument)
{
	struct ranks *ranks = argument;
	enum status status = STATUS_OK;
	for (int rank = 1; rank < ranks->world && status == STATUS_OK; rank++)
		status = start_child(ranks, rank, &ranks->start_err);
	if (status != STATUS_OK)
		end_children(ranks, 0);
	wait_word_set(&ranks->started, 1);
	if (status != STATUS_OK)
		return NULL;
	watch_until_stop(ranks);
	end_children(ranks, STOP_GRACE_NS);
	return NULL;
}

enum status ranks_watch_start(struct ranks *ranks, struct err *err)
{
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are other threads' business */
	int errnum = pthread_create(&ranks->watcher, NULL, watch, ranks);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (errnum != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errnum, "cannot start the thread that watches ranks");
	ranks->watching = true;
	/* Bounded: starting a process either works or fails at once. */
	wait_word_while_equal(&ranks->started, 0, 0, NULL, INT64_MAX);
	if (ranks->start_err.status != STATUS_OK)
		return err_set_code(err, ranks->start_err.status, "rank_start", "%s", ranks->start_err.text);
	return STATUS_OK;
}

void ranks_watch_wake(struct ranks *ranks)
{
	eventfd_write(ranks->wake_fd, 1);
}

void ranks_watch_stop(struct ranks *ranks)
{
	if (!ranks->watching)
		return;
	atomic_store(&ranks->phase, RANKS_STOPPING);
	ranks_watch_wake(ranks);
	pthread_join(ranks->watcher, NULL);
	ranks->watching = false;
}
