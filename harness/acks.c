/* TCP_QUICKACK, and the counters of TCP_INFO. */
#include "harness/acks.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#define NS_PER_MS 1000000

/* Delayed acknowledgements go out after 40 ms (TCP_ATO_MIN of Linux) or with a second full segment. What comes this soon after an
 * unacknowledged piece was not waiting for it. */
#define SOON_NS ((int64_t)15 * NS_PER_MS)
#define READS_PER_REMINDER 8 /* the kernel falls back to acknowledging at once after a pause of the stream */
#define SMALL_BYTES 512 /* less than a segment on any network: Nagle's algorithm applies */

void acks_init(struct acks *acks)
{
	*acks = (struct acks){.probe_fd = -1};
}

static void delay_acks(int fd)
{
	int off = 0;
	setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
}

/* False: the kernel does not tell. */
static bool segments_sent(int fd, uint32_t *out)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) != 0 ||
		len < offsetof(struct tcp_info, tcpi_segs_out) + sizeof(*out))
		return false;
	*out = info.tcpi_segs_out;
	return true;
}

void acks_before_read(struct acks *acks, int fd, unsigned reads, bool dense)
{
	if (acks->finding == ACKS_UNKNOWN && acks->probe_fd < 0 && dense) {
		acks->probe_fd = fd;
		acks->seen = acks->pending = false;
	}
	if (acks->probe_fd == fd || (acks->finding == ACKS_NOT_AWAITED && reads % READS_PER_REMINDER == 0))
		delay_acks(fd);
}

void acks_after_read(struct acks *acks, int fd, size_t bytes, int64_t at_ns)
{
	if (acks->probe_fd != fd)
		return;
	bool small = bytes <= SMALL_BYTES;
	uint32_t sent_before = acks->sent;
	bool known = segments_sent(fd, &acks->sent);
	if (!known || (acks->pending && small)) {
		acks->finding = known && at_ns - acks->last_ns <= SOON_NS ? ACKS_NOT_AWAITED : ACKS_AWAITED;
		acks->probe_fd = -1;
		return;
	}
	acks->pending = acks->seen && small && acks->sent == sent_before;
	acks->seen = true;
	acks->last_ns = at_ns;
}

void acks_forget(struct acks *acks, int fd)
{
	if (acks->probe_fd == fd)
		acks->probe_fd = -1;
}
