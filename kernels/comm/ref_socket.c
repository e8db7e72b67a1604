/* ref-socket: the oracle. Every rank sends its input to rank 0 over a stream socket; rank 0 sums in rank order and sends the
 * result back. Slow, but there is no shared memory in it to get wrong. Twin of nccl.
 *
 * A message is a header {call, count} and count floats in native byte order; a header that does not fit means that ranks make
 * different calls, and is an error. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/common.h"

#define POLL_SLICE_NS 20000000LL /* the abort word is looked at this often; as base/wait */

struct header {
	uint32_t call, count;
};

struct socket_comm {
	struct comm base; /* first */
	uint32_t call; /* modulo 2^32 */
	size_t slot_floats; /* count_max */
	float *slots; /* rank 0: [world][slot_floats] inputs of all ranks; else NULL */
};

static size_t socket_shared_bytes(int world, size_t count_max)
{
	return 0;
}

static enum status socket_create(const struct comm_options *options, struct comm **out, struct err *err)
{
	struct socket_comm *socket = mem_calloc(1, sizeof(*socket));
	enum status status = comm_base_init(&socket->base, &comm_ref_socket, options, err);
	if (status != STATUS_OK) {
		mem_free(socket);
		return status;
	}
	socket->call = options->first_epoch;
	socket->slot_floats = options->count_max;
	if (options->rank == 0)
		socket->slots = mem_calloc((size_t)options->world * options->count_max, sizeof(float));
	*out = &socket->base;
	return STATUS_OK;
}

/* Waits until the socket of peer is ready for events, or has failed, which the next send or receive finds out. */
static enum status wait_ready(struct socket_comm *socket, int peer, short events, int64_t start_ns, struct err *err)
{
	const struct comm_options *options = &socket->base.options;
	struct pollfd ready = {.fd = options->sockets[peer], .events = events};
	int64_t begin_ns = clock_monotonic_ns(), now_ns = begin_ns;
	int n = 0;
	while (n <= 0) {
		int64_t left_ns = start_ns + options->timeout_ns - now_ns;
		if (left_ns <= 0 || (options->abort != NULL && atomic_load_explicit(options->abort, memory_order_acquire) != 0))
			return comm_wait_failed(&socket->base, peer, start_ns, err);
		int64_t slice_ns = left_ns < POLL_SLICE_NS ? left_ns : POLL_SLICE_NS;
		n = poll(&ready, 1, (int)((slice_ns + 999999) / 1000000));
		now_ns = clock_monotonic_ns();
	}
	socket->base.stats.wait_ns += (uint64_t)(now_ns - begin_ns);
	return STATUS_OK;
}

/* Drops the first n bytes from a list of buffers. */
static void advance(struct iovec *parts, size_t n_parts, size_t n)
{
	for (size_t i = 0; i < n_parts && n > 0; i++) {
		size_t step = n < parts[i].iov_len ? n : parts[i].iov_len;
		parts[i].iov_base = (char *)parts[i].iov_base + step;
		parts[i].iov_len -= step;
		n -= step;
	}
}

enum direction { SEND, RECEIVE };

/* Moves a whole message, header and floats. */
static enum status transfer(
	struct socket_comm *socket, int peer, enum direction direction, struct header *header, float *data, struct err *err)
{
	struct iovec parts[2] = {{header, sizeof(*header)}, {data, header->count * sizeof(float)}};
	struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
	int fd = socket->base.options.sockets[peer];
	int64_t start_ns = clock_monotonic_ns();
	while (parts[0].iov_len + parts[1].iov_len > 0) {
		ssize_t n = direction == SEND ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
					      : recvmsg(fd, &message, MSG_DONTWAIT);
		if (n > 0) {
			advance(parts, 2, (size_t)n);
		} else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
			if (wait_ready(socket, peer, direction == SEND ? POLLOUT : POLLIN, start_ns, err) != STATUS_OK)
				return STATUS_RANK_DIED;
		} else if (n == 0 || errno != EINTR) {
			return comm_wait_failed(&socket->base, peer, start_ns, err);
		}
	}
	return STATUS_OK;
}

static enum status send_to(struct socket_comm *socket, int peer, const float *data, size_t count, struct err *err)
{
	struct header header = {.call = socket->call, .count = (uint32_t)count};
	return transfer(socket, peer, SEND, &header, (float *)data, err); /* sendmsg does not write; iovec knows no const */
}

static enum status receive_from(struct socket_comm *socket, int peer, float *data, size_t count, struct err *err)
{
	struct header header = {.count = (uint32_t)count};
	enum status status = transfer(socket, peer, RECEIVE, &header, data, err);
	if (status == STATUS_OK && (header.call != socket->call || header.count != count)) {
		socket->base.failed = true;
		return err_set(err, STATUS_INTERNAL, "%s: rank %d is at call %u with %u floats, rank %d at call %u with %zu",
			socket->base.name, peer, header.call, header.count, socket->base.options.rank, socket->call, count);
	}
	return status;
}

static enum status gather_sum_broadcast(struct socket_comm *socket, float *data, size_t count, struct err *err)
{
	int world = socket->base.options.world;
	const float *parts[COMM_RANKS_MAX] = {socket->slots};
	memcpy(socket->slots, data, count * sizeof(float));
	for (int peer = 1; peer < world; peer++) {
		float *slot = socket->slots + (size_t)peer * socket->slot_floats;
		enum status status = receive_from(socket, peer, slot, count, err);
		if (status != STATUS_OK)
			return status;
		parts[peer] = slot;
	}
	comm_sum(data, parts, world, count);
	for (int peer = 1; peer < world; peer++) {
		enum status status = send_to(socket, peer, data, count, err);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

static enum status socket_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct socket_comm *socket = (struct socket_comm *)comm;
	enum status status = comm_call_begin(comm, count, err);
	if (status != STATUS_OK || count == 0)
		return status;
	socket->call++;
	if (comm->options.rank == 0) {
		status = gather_sum_broadcast(socket, data, count, err);
	} else {
		status = send_to(socket, 0, data, count, err);
		if (status == STATUS_OK)
			status = receive_from(socket, 0, data, count, err);
	}
	if (status == STATUS_OK)
		comm_call_end(comm, count);
	return status;
}

static void socket_destroy(struct comm *comm)
{
	struct socket_comm *socket = (struct socket_comm *)comm;
	if (socket != NULL)
		mem_free(socket->slots);
	mem_free(socket);
}

const struct comm_ops comm_ref_socket = {
	.name = "ref-socket",
	.twin = "nccl",
	.summary = "the oracle: gather at rank 0 over sockets, sum, broadcast",
	.shared_bytes = socket_shared_bytes,
	.needs_sockets = 1,
	.create = socket_create,
	.allreduce = socket_allreduce,
	.stats = comm_base_stats,
	.destroy = socket_destroy,
};
