/* Socket timestamps of the kernel (Documentation/networking/timestamping.rst), turned into times of the monotonic clock. */
#include "harness/arrival.h"

#include <errno.h>
#include <linux/net_tstamp.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"

#define NS_PER_S 1000000000LL
#define ATTEMPTS 3
/* Between the two readings around the wall clock's; three take 0.1 µs unless something comes between. */
#define APART_NS_MAX 20000
/* Slewing moves the clocks apart by 0.5 µs in a millisecond at most; more than this is a clock that was set. */
#define STEP_NS 1000000

void arrival_ask(int fd)
{
	int flags = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags)); /* refused: times are taken at the read */
}

void arrival_begin_round(struct arrival_clock *clock)
{
	int64_t before_ns = 0, after_ns = 0, wall_ns = 0;
	int attempt = 0;
	do {
		before_ns = clock_monotonic_ns();
		wall_ns = clock_realtime_ns();
		after_ns = clock_monotonic_ns();
	} while (after_ns - before_ns > APART_NS_MAX && ++attempt < ATTEMPTS);
	int64_t ahead_ns = wall_ns - before_ns - (after_ns - before_ns) / 2;
	int64_t moved_ns = ahead_ns - clock->ahead_ns;
	clock->steady = attempt < ATTEMPTS && (!clock->known || (moved_ns > -STEP_NS && moved_ns < STEP_NS));
	if (attempt < ATTEMPTS) {
		clock->ahead_ns = ahead_ns;
		clock->known = true;
	}
}

/* One message, taken or looked at; *stamp_ns is 0 when the kernel gave none. */
static ssize_t receive(int fd, char *buffer, size_t size, int flags, int64_t *stamp_ns)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(3 * sizeof(struct timespec))];
	struct iovec bytes = {.iov_base = buffer, .iov_len = size};
	struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
	ssize_t got = recvmsg(fd, &message, flags | MSG_DONTWAIT);
	*stamp_ns = 0;
	if (got <= 0)
		return got;
	for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
		if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPING)
			continue;
		struct timespec stamp; /* the first of three is the software's */
		memcpy(&stamp, CMSG_DATA(part), sizeof(stamp));
		*stamp_ns = (int64_t)stamp.tv_sec * NS_PER_S + stamp.tv_nsec;
	}
	return got;
}

ssize_t arrival_read(int fd, char *buffer, size_t size, const struct arrival_clock *clock, int64_t *at_ns)
{
	int64_t stamp_ns;
	ssize_t got = receive(fd, buffer, size, 0, &stamp_ns);
	int errnum = errno;
	*at_ns = stamp_ns && clock->steady ? stamp_ns - clock->ahead_ns : clock_monotonic_ns();
	errno = errnum;
	return got;
}

int64_t arrival_peek(int fd, char *buffer, size_t size, const struct arrival_clock *clock)
{
	int64_t stamp_ns;
	receive(fd, buffer, size, MSG_PEEK, &stamp_ns);
	return stamp_ns && clock->steady ? stamp_ns - clock->ahead_ns : 0;
}
