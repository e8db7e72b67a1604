/* Engines on this machine. */
#include "harness/runner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "harness/proctree.h"

static enum status free_port(int *port, struct err *err)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	enum status status = STATUS_OK;
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) != 0 ||
		getsockname(fd, (struct sockaddr *)&address, &len) != 0)
		status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "finding a free port");
	if (fd >= 0)
		close(fd);
	*port = ntohs(address.sin_port);
	return status;
}

static bool port_is_free(int port)
{
	return !port_is_listened_on(port);
}

static bool owns_port(const struct launch *launch, int port)
{
	struct proctree tree = {0};
	proctree_read(&tree, launch_guard_pid(launch));
	bool owns = proctree_listens(&tree, port);
	proctree_release(&tree);
	return owns;
}

static uint64_t peak_memory_bytes(const struct launch *launch)
{
	struct proctree tree = {0};
	proctree_read(&tree, launch_guard_pid(launch));
	uint64_t bytes = proctree_peak_bytes(&tree);
	proctree_release(&tree);
	return bytes;
}

const struct runner_ops runner_local = {
	.name = "local",
	.host = "127.0.0.1",
	.free_port = free_port,
	.port_is_free = port_is_free,
	.start = launch_start,
	.owns_port = owns_port,
	.peak_memory_bytes = peak_memory_bytes,
};
