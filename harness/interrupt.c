/* A signalfd and waits on it. */
#include "harness/interrupt.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"

static void fill(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGTERM);
}

enum status interrupt_open(struct interrupt *out, struct err *err)
{
	sigset_t set;
	fill(&set);
	*out = (struct interrupt){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)};
	if (out->fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "reading signals");
	sigprocmask(SIG_BLOCK, &set, NULL);
	return STATUS_OK;
}

void interrupt_close(struct interrupt *interrupt)
{
	if (interrupt->fd < 0)
		return;
	sigset_t set;
	fill(&set);
	interrupt_check(interrupt); /* one that came late must not act now that its work is over */
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	close(interrupt->fd);
	interrupt->fd = -1;
}

bool interrupt_check(struct interrupt *interrupt)
{
	struct signalfd_siginfo info;
	while (interrupt->fd >= 0 && read(interrupt->fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		interrupt->pending = true;
	return interrupt->pending;
}

bool interrupt_sleep(struct interrupt *interrupt, double seconds)
{
	int64_t until_ns = clock_monotonic_ns() + (int64_t)(seconds * 1e9);
	while (!interrupt_check(interrupt)) {
		int64_t left_ms = (until_ns - clock_monotonic_ns() + 999999) / 1000000;
		if (left_ms <= 0)
			break;
		struct pollfd wait = {.fd = interrupt->fd, .events = POLLIN};
		poll(&wait, 1, left_ms < 1000 ? (int)left_ms : 1000);
	}
	return interrupt->pending;
}
