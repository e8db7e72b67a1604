/* The guard process: one loop over the harness's socket, the engine's log and its own signals. */
#include "harness/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/cpu_list.h"
#include "harness/logring.h"
#include "harness/proctree.h"

#define NS_PER_MS ((int64_t)1000000)
#define SPEC_BYTES_MAX ((size_t)8 << 20) /* guess: above what the kernel takes as arguments and environment */
#define LOG_READ_BYTES 65536
#define OLD_KERNEL_FDS_MAX 8192 /* above what the client allows itself */
#define KILL_ROUND_MS 20 /* between rounds of SIGKILL, since a process may fork while the others are being killed */
#define TICK_MS 50 /* how late we notice that the last descendant, not our child, is gone */
#define KILL_GIVE_UP_MS 5000 /* after the first SIGKILL: what lives then is stuck in the kernel */
#define ORPHAN_KILL_GIVE_UP_MS 1000

enum guard_phase { RUNNING, TERMINATING, KILLING, CLEAN };

struct guard {
	int control_fd, signal_fd, log_fd;
	struct logring log;
	struct proctree tree;
	pid_t engine;
	bool engine_exited, orphaned;
	enum guard_phase phase;
	int64_t kill_at_ns, give_up_at_ns;
	uint32_t orphan_term_ms;
};

/* ---- the launch as bytes ---- */

static void add_field(struct text *out, const char *field)
{
	text_append(out, field, strlen(field) + 1);
}

static void add_number(struct text *out, size_t number)
{
	char field[24];
	snprintf(field, sizeof(field), "%zu", number);
	add_field(out, field);
}

enum status guard_spec_write(int fd, const struct guard_spec *spec, struct err *err)
{
	struct text text = {0};
	add_number(&text, spec->orphan_term_ms);
	add_field(&text, spec->cpus ? spec->cpus : "");
	add_number(&text, spec->arguments.count);
	for (size_t i = 0; i < spec->arguments.count; i++)
		add_field(&text, spec->arguments.items[i]);
	add_number(&text, spec->environment.count);
	for (size_t i = 0; i < spec->environment.count; i++)
		add_field(&text, spec->environment.items[i]);
	enum status status = file_write_all(fd, text.data, text.len, err);
	text_release(&text);
	return status;
}

/* The next NUL-terminated field; NULL at the end. */
static const char *take_field(const struct text *text, size_t *at)
{
	if (*at >= text->len)
		return NULL;
	const char *field = text->data + *at;
	*at += strlen(field) + 1;
	return field;
}

static bool take_number(const struct text *text, size_t *at, unsigned long long *out)
{
	const char *field = take_field(text, at);
	return field && text_to_u64(field, out);
}

static bool take_vector(const struct text *text, size_t *at, struct string_vector *out)
{
	unsigned long long count;
	if (!take_number(text, at, &count))
		return false;
	for (unsigned long long i = 0; i < count; i++) {
		const char *field = take_field(text, at);
		if (!field)
			return false;
		string_vector_add(out, field);
	}
	return true;
}

enum status guard_spec_read(int fd, struct guard_spec *spec, struct err *err)
{
	*spec = (struct guard_spec){0};
	struct text text = {0};
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	enum status status = file_read(path, SPEC_BYTES_MAX, &text, err);
	size_t at = 0;
	unsigned long long term_ms = 0;
	bool numbered = !status && take_number(&text, &at, &term_ms) && term_ms <= UINT32_MAX;
	const char *cpus = numbered ? take_field(&text, &at) : NULL;
	spec->cpus = cpus ? mem_strdup(cpus) : NULL;
	if (!status &&
		(!cpus || !take_vector(&text, &at, &spec->arguments) || !take_vector(&text, &at, &spec->environment) ||
			spec->arguments.count == 0))
		status = err_set(err, STATUS_INPUT, "the launch handed to the guard is not complete");
	spec->orphan_term_ms = (uint32_t)term_ms;
	text_release(&text);
	return status;
}

void guard_spec_release(struct guard_spec *spec)
{
	string_vector_release(&spec->arguments);
	string_vector_release(&spec->environment);
	mem_free(spec->cpus);
	*spec = (struct guard_spec){0};
}

/* ---- starting ---- */

static void tell(const struct guard *guard, enum guard_event event, pid_t pid, int code, int detail)
{
	struct guard_message message = {.event = event, .pid = pid, .code = code, .detail = detail};
	/* A harness that is gone or does not read cannot hold us up. */
	(void)!send(guard->control_fd, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* In the child between fork and exec. Only what must differ from the guard is set. */
static void become_engine(const struct guard_spec *spec, const struct cpu_list *cpus, int log_write_fd, int failure_fd)
{
	setsid();
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* the last resort, should the guard itself be killed */
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_DFL);
	int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	dup2(null_fd, STDIN_FILENO);
	dup2(log_write_fd, STDOUT_FILENO);
	dup2(log_write_fd, STDERR_FILENO);
	int errnum = cpus ? cpu_list_apply(cpus) : 0;
	if (!errnum) {
		execvpe(spec->arguments.items[0], spec->arguments.items,
			spec->environment.count ? spec->environment.items : (char *[]){NULL});
		errnum = errno;
	}
	(void)!write(failure_fd, &errnum, sizeof(errnum));
	_exit(127);
}

/* Starts the engine. Returns 0, or the errno that kept it from starting. */
static int start_engine(struct guard *guard, const struct guard_spec *spec)
{
	int log[2] = {-1, -1}, failure[2] = {-1, -1}, errnum = 0;
	struct cpu_list cpus;
	ASSERT(spec->arguments.items);
	if (spec->cpus[0] && cpu_list_parse(spec->cpus, &cpus, NULL) != STATUS_OK)
		return EINVAL;
	if (pipe2(log, O_CLOEXEC) != 0 || pipe2(failure, O_CLOEXEC) != 0)
		return errno;
	/* Room for a burst while we are not scheduled; a refusal changes nothing. */
	(void)fcntl(log[1], F_SETPIPE_SZ, 1 << 20);
	guard->engine = fork();
	if (guard->engine < 0)
		return errno;
	if (guard->engine == 0)
		become_engine(spec, spec->cpus[0] ? &cpus : NULL, log[1], failure[1]);
	close(log[1]);
	close(failure[1]);
	/* The pipe closes by itself when exec succeeds, so this read is as short as the exec. */
	if (read(failure[0], &errnum, sizeof(errnum)) != (ssize_t)sizeof(errnum))
		errnum = 0;
	close(failure[0]);
	fcntl(log[0], F_SETFL, O_NONBLOCK);
	guard->log_fd = log[0];
	return errnum;
}

/* ---- ending ---- */

/* Signals every descendant. Pids cannot have been reused: our children stay zombies until we reap them, and others were read
 * from /proc an instant ago. */
static void signal_all(struct guard *guard, int signal_number)
{
	proctree_read(&guard->tree, getpid());
	for (size_t i = 0; i < guard->tree.count; i++)
		kill(guard->tree.pids[i], signal_number);
}

static void begin_stop(struct guard *guard, uint32_t term_ms)
{
	int64_t kill_at_ns = clock_monotonic_ns() + term_ms * NS_PER_MS;
	if (guard->phase == RUNNING) {
		guard->phase = TERMINATING;
		guard->kill_at_ns = kill_at_ns;
		signal_all(guard, SIGTERM);
	} else if (guard->phase == TERMINATING && kill_at_ns < guard->kill_at_ns) {
		guard->kill_at_ns = kill_at_ns;
	}
}

static void begin_kill(struct guard *guard)
{
	guard->phase = KILLING;
	guard->give_up_at_ns = clock_monotonic_ns() + (guard->orphaned ? ORPHAN_KILL_GIVE_UP_MS : KILL_GIVE_UP_MS) * NS_PER_MS;
}

/* Collects the children that ended. Returns whether any is left, ended in part or not at all. */
static bool reap(struct guard *guard)
{
	int wait_status;
	pid_t pid;
	while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
		if (pid != guard->engine)
			continue;
		guard->engine_exited = true;
		tell(guard, GUARD_EXITED, pid, WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1,
			WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : -1);
		/* Workers that outlive their server hold memory and ports: they go too. */
		begin_stop(guard, guard->orphan_term_ms);
	}
	return pid == 0;
}

/* A process whose first thread ended reads as a zombie while the others still hold its memory and ports, so that none is seen alive
 * does not suffice: there must be nothing left to wait for. */
static void step_stop(struct guard *guard)
{
	if (guard->phase == RUNNING || guard->phase == CLEAN)
		return;
	if (guard->phase == TERMINATING && clock_monotonic_ns() >= guard->kill_at_ns)
		begin_kill(guard);
	if (guard->phase == KILLING)
		signal_all(guard, SIGKILL);
	else
		proctree_read(&guard->tree, getpid());
	bool gave_up = guard->phase == KILLING && clock_monotonic_ns() >= guard->give_up_at_ns;
	if ((guard->tree.count == 0 && !reap(guard)) || gave_up)
		guard->phase = CLEAN;
}

/* ---- events ---- */

static void take_signals(struct guard *guard)
{
	struct signalfd_siginfo info;
	while (read(guard->signal_fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		if (info.ssi_signo != SIGCHLD)
			begin_stop(guard, guard->orphan_term_ms);
	reap(guard);
}

static void take_control(struct guard *guard)
{
	uint32_t term_ms;
	ssize_t got = recv(guard->control_fd, &term_ms, sizeof(term_ms), MSG_DONTWAIT);
	if (got == (ssize_t)sizeof(term_ms)) {
		begin_stop(guard, term_ms);
	} else if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
		guard->orphaned = true;
		begin_stop(guard, guard->orphan_term_ms);
	}
}

/* A harness that died while we were starting wants no engine. */
static bool harness_is_gone(const struct guard *guard)
{
	struct pollfd control = {.fd = guard->control_fd, .events = POLLIN};
	return poll(&control, 1, 0) > 0 && (control.revents & POLLHUP);
}

static void drain_log(struct guard *guard)
{
	char buffer[LOG_READ_BYTES];
	ssize_t got = read(guard->log_fd, buffer, sizeof(buffer));
	if (got > 0) {
		logring_append(&guard->log, buffer, (size_t)got);
	} else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
		close(guard->log_fd);
		guard->log_fd = -1;
	}
}

static int wait_ms(const struct guard *guard)
{
	if (guard->phase == RUNNING)
		return -1;
	return guard->phase == KILLING ? KILL_ROUND_MS : TICK_MS;
}

static void watch(struct guard *guard)
{
	while (guard->phase != CLEAN) {
		struct pollfd fds[] = {
			{.fd = guard->signal_fd, .events = POLLIN},
			{.fd = guard->orphaned ? -1 : guard->control_fd, .events = POLLIN},
			{.fd = guard->log_fd, .events = POLLIN},
		};
		if (poll(fds, 3, wait_ms(guard)) < 0 && errno != EINTR)
			begin_stop(guard, guard->orphan_term_ms);
		if (fds[0].revents)
			take_signals(guard);
		if (fds[1].revents)
			take_control(guard);
		if (fds[2].revents)
			drain_log(guard);
		step_stop(guard);
	}
	for (uint64_t before = UINT64_MAX; guard->log_fd >= 0 && before != logring_total_bytes(&guard->log);) {
		before = logring_total_bytes(&guard->log);
		drain_log(guard);
	}
	reap(guard);
}

static enum status set_up(struct guard *guard, struct guard_spec *spec, struct err *err)
{
	/* Nothing but our three descriptors may reach the engine. The loop is for kernels before 5.9. */
	if (close_range(GUARD_LOG_FD + 1, ~0U, 0) != 0)
		for (int fd = GUARD_LOG_FD + 1; fd < OLD_KERNEL_FDS_MAX; fd++)
			close(fd);
	for (int fd = GUARD_CONTROL_FD; fd <= GUARD_LOG_FD; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	setsid(); /* a Ctrl-C in the terminal is for the harness */
	if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "becoming a subreaper");
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_SETMASK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	guard->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (guard->signal_fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "reading signals");
	enum status status = logring_attach(GUARD_LOG_FD, &guard->log, err);
	if (!status)
		status = guard_spec_read(GUARD_SPEC_FD, spec, err);
	guard->orphan_term_ms = spec->orphan_term_ms;
	return status;
}

int guard_run(void)
{
	struct guard guard = {.control_fd = GUARD_CONTROL_FD, .signal_fd = -1, .log_fd = -1};
	struct guard_spec spec = {0};
	struct err err = {0};
	enum status status = set_up(&guard, &spec, &err);
	int errnum = EINVAL;
	if (status == STATUS_OK && !harness_is_gone(&guard))
		errnum = start_engine(&guard, &spec);
	guard_spec_release(&spec);
	if (errnum) {
		tell(&guard, GUARD_EXEC_FAILED, 0, 0, errnum);
	} else {
		tell(&guard, GUARD_STARTED, guard.engine, 0, 0);
		watch(&guard);
	}
	tell(&guard, GUARD_CLEAN, 0, (int)guard.tree.count, 0);
	proctree_release(&guard.tree);
	return status_exit_code(status);
}
