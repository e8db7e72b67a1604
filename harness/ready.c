/* epoll, and a pause before it while much comes in small pieces. */
#include "harness/ready.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"

#define NS_PER_S 1e9
#define NS_PER_MS 1000000
#define PERIOD_NS ((int64_t)8 * NS_PER_MS)
#define DENSE_READS_PER_S 4000.0 /* so that a pause gathers four and more; below, wake-ups cost less than a tenth of a core */
#define SMALL_BYTES 4096 /* a read of more brings many events at once: the server is ahead of us, and waiting would stop it */

enum status ready_open(struct ready_set *set, struct err *err)
{
	*set = (struct ready_set){.fd = epoll_create1(EPOLL_CLOEXEC)};
	return set->fd >= 0 ? STATUS_OK : err_set_errno(err, STATUS_UNAVAILABLE, errno, "epoll");
}

void ready_close(struct ready_set *set)
{
	if (set->fd >= 0)
		close(set->fd);
	set->fd = -1;
}

bool ready_put(struct ready_set *set, int fd, uint32_t events, uint64_t tag)
{
	struct epoll_event event = {.events = events, .data.u64 = tag};
	return epoll_ctl(set->fd, EPOLL_CTL_MOD, fd, &event) == 0 || epoll_ctl(set->fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

void ready_remove(struct ready_set *set, int fd)
{
	epoll_ctl(set->fd, EPOLL_CTL_DEL, fd, NULL); /* one that was closed is gone already */
}

void ready_note_read(struct ready_set *set, size_t bytes)
{
	set->reads++;
	set->bytes += (int64_t)bytes;
}

void ready_note_stream(struct ready_set *set, int change)
{
	set->streams += change;
}

int64_t ready_pause_ns(double reads_per_s, int64_t streams)
{
	double fraction_ns = (double)streams / reads_per_s * NS_PER_S / READY_PAUSE_FRACTION;
	return fraction_ns >= READY_PAUSE_NS_MAX ? READY_PAUSE_NS_MAX
		: fraction_ns > READY_PAUSE_NS   ? (int64_t)fraction_ns
						 : READY_PAUSE_NS;
}

static void decide(struct ready_set *set, int64_t now_ns)
{
	int64_t elapsed_ns = now_ns - set->period_began_ns;
	if (elapsed_ns < PERIOD_NS)
		return;
	double reads_per_s = (double)set->reads / (double)elapsed_ns * NS_PER_S;
	set->pausing = reads_per_s >= DENSE_READS_PER_S && set->bytes <= set->reads * SMALL_BYTES;
	set->pause_ns = set->pausing ? ready_pause_ns(reads_per_s, set->streams) : 0;
	set->period_began_ns = now_ns;
	set->reads = set->bytes = 0;
}

int ready_wait(struct ready_set *set, int64_t timeout_ns, struct epoll_event *events, int n_events)
{
	decide(set, clock_monotonic_ns());
	if (set->pausing && timeout_ns > set->pause_ns) {
		clock_sleep_ns(set->pause_ns);
		timeout_ns -= set->pause_ns;
	}
	return epoll_wait(set->fd, events, n_events, (int)((timeout_ns + NS_PER_MS - 1) / NS_PER_MS));
}
