/* Rank 0's end of a group of rank processes: shared memory, commands, joint outcomes. */
#include "engine/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/wait.h"
#include "engine/ranks_watch.h"
#include "engine/ranks_wire.h"

#define POST_WAIT_NS 1000000000LL /* for a child to come back from its last command, which rank 0 has finished already */

/* An anonymous memory file whose size nobody can change, so that no access can fault. */
static enum status make_region(struct ranks *ranks, struct err *err)
{
	ranks->region_fd = memfd_create("verdict-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (ranks->region_fd < 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot make shared memory");
	if (ftruncate(ranks->region_fd, (off_t)ranks->bytes) != 0)
		return err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot make %zu bytes of shared memory", ranks->bytes);
	if (fcntl(ranks->region_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot fix the size of shared memory");
	void *memory = mmap(NULL, ranks->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ranks->region_fd, 0);
	if (memory == MAP_FAILED)
		return err_set_errno(err, STATUS_NO_MEMORY, errno, "cannot map %zu bytes of shared memory", ranks->bytes);
	ranks->head = memory;
	ranks->head->cookie = random_entropy();
	return STATUS_OK;
}

static struct ranks *new_ranks(const struct ranks_options *options)
{
	struct ranks *ranks = mem_calloc(1, sizeof(*ranks));
	ranks->world = options->world;
	ranks->argv = options->argv;
	ranks->spins = RANKS_SPINS_FACTOR * wait_default_spins(options->world);
	ranks->start_timeout_ns = options->start_timeout_ns;
	ranks->bytes = RANKS_HEAD_BYTES + (options->shared_bytes + RANKS_PAGE_BYTES - 1) / RANKS_PAGE_BYTES * RANKS_PAGE_BYTES;
	ranks->region_fd = -1;
	ranks->wake_fd = -1;
	for (int rank = 0; rank < COMM_RANKS_MAX; rank++) {
		ranks->children[rank] = (struct ranks_child){.pidfd = -1, .control = -1};
		ranks->sockets[rank] = -1;
	}
	return ranks;
}

enum status ranks_start(const struct ranks_options *options, struct ranks **out, struct err *err)
{
	if (options->world < 1 || options->world > COMM_RANKS_MAX)
		return err_set(err, STATUS_INPUT, "a server has 1 to %d ranks, not %d", COMM_RANKS_MAX, options->world);
	struct ranks *ranks = new_ranks(options);
	enum status status = make_region(ranks, err);
	if (status == STATUS_OK && ranks->world > 1) {
		ranks->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		if (ranks->wake_fd < 0)
			status = err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot watch ranks");
		else
			status = ranks_watch_start(ranks, err);
	}
	if (status != STATUS_OK) {
		ranks_stop(ranks);
		return status;
	}
	*out = ranks;
	return STATUS_OK;
}

static void close_if_open(int fd)
{
	if (fd >= 0)
		close(fd);
}

/* Does not wait for the command before, unlike ranks_post: a child that hangs in it is killed a second later. */
static void tell_to_stop(struct ranks *ranks)
{
	atomic_store_explicit(&ranks->head->command, RANKS_COMMAND_STOP, memory_order_relaxed);
	wait_word_set(&ranks->head->posted, wait_word_get(&ranks->head->posted) + 1);
}

void ranks_stop(struct ranks *ranks)
{
	if (ranks == NULL)
		return;
	if (ranks->watching) {
		atomic_store(&ranks->phase, RANKS_STOPPING); /* before any child can obey */
		tell_to_stop(ranks);
		ranks_watch_stop(ranks);
	}
	for (int rank = 0; rank < COMM_RANKS_MAX; rank++) {
		close_if_open(ranks->children[rank].pidfd);
		close_if_open(ranks->children[rank].control);
		close_if_open(ranks->sockets[rank]);
	}
	close_if_open(ranks->region_fd);
	close_if_open(ranks->wake_fd);
	if (ranks->head != NULL)
		munmap(ranks->head, ranks->bytes);
	mem_free(ranks);
}

void *ranks_shared(const struct ranks *ranks)
{
	return (char *)ranks->head + RANKS_HEAD_BYTES;
}

pid_t ranks_pid(const struct ranks *ranks, int rank)
{
	ASSERT(rank >= 0 && rank < ranks->world);
	return rank == 0 ? getpid() : ranks->children[rank].pid;
}

const int *ranks_sockets(const struct ranks *ranks)
{
	return ranks->sockets;
}

const _Atomic uint32_t *ranks_abort_word(const struct ranks *ranks)
{
	return &ranks->head->abort;
}

enum status ranks_await_done(struct ranks *ranks, int64_t timeout_ns, struct err *err)
{
	struct ranks_head *head = ranks->head;
	uint32_t posted = wait_word_get(&head->posted);
	int64_t deadline_ns = clock_monotonic_ns() + timeout_ns;
	for (int rank = 1; rank < ranks->world; rank++) {
		struct wait_word *finished = &head->child[rank].finished;
		for (uint32_t seen = wait_word_get(finished); seen != posted; seen = wait_word_get(finished)) {
			if (!wait_word_while_equal(finished, seen, ranks->spins, &head->abort, deadline_ns))
				return err_set_code(err, STATUS_RANK_DIED, "rank_died",
					"rank 0 waited %.1f s for rank %d to finish its work", (double)timeout_ns / 1e9, rank);
		}
	}
	return STATUS_OK;
}

void ranks_post(struct ranks *ranks, uint32_t command)
{
	/* A child that does not come back makes the next collective time out and name it, so that is not reported here. */
	ranks_await_done(ranks, POST_WAIT_NS, NULL);
	atomic_store_explicit(&ranks->head->command, command, memory_order_relaxed);
	wait_word_set(&ranks->head->posted, wait_word_get(&ranks->head->posted) + 1);
}

/* What a child says at its readable control socket. One that has ended without a word ends the server. */
static enum status take_outcome(struct ranks *ranks, int rank, struct err *err)
{
	struct ranks_report report;
	struct err lost = {0};
	if (!ranks_child_report(ranks, rank, &report)) {
		err_set(&lost, STATUS_RANK_DIED, "rank %d (pid %d) closed its tie to rank 0", rank, (int)ranks->children[rank].pid);
		ranks_fail(ranks, &lost);
	}
	if (report.status == STATUS_OK)
		return STATUS_OK;
	if (err != NULL)
		memcpy(err->details, report.err.details, sizeof(err->details));
	return err_set_code(err, (enum status)report.status, report.err.code, "rank %d: %s", rank, report.err.text);
}

/* One poll over the children that have not said anything yet. */
static enum status await_some(struct ranks *ranks, bool *pending, int64_t deadline_ns, int *n_pending, struct err *err)
{
	struct pollfd polls[COMM_RANKS_MAX];
	int first = 0;
	for (int rank = ranks->world - 1; rank >= 1; rank--) {
		polls[rank] = (struct pollfd){.fd = pending[rank] ? ranks->children[rank].control : -1, .events = POLLIN};
		first = pending[rank] ? rank : first;
	}
	int64_t left_ns = deadline_ns - clock_monotonic_ns();
	if (left_ns <= 0)
		return err_set_code(err, STATUS_TIMEOUT, "rank_start", "rank %d (pid %d) was not ready within %.1f s", first,
			(int)ranks->children[first].pid, (double)ranks->start_timeout_ns / 1e9);
	if (poll(polls + 1, (nfds_t)ranks->world - 1, (int)((left_ns + 999999) / 1000000)) <= 0)
		return STATUS_OK;
	for (int rank = 1; rank < ranks->world; rank++) {
		if (!pending[rank] || polls[rank].revents == 0)
			continue;
		enum status status = take_outcome(ranks, rank, err);
		if (status != STATUS_OK)
			return status;
		pending[rank] = false;
		--*n_pending;
	}
	return STATUS_OK;
}

enum status ranks_await_ready(struct ranks *ranks, struct err *err)
{
	bool pending[COMM_RANKS_MAX];
	int n_pending = ranks->world - 1;
	int64_t deadline_ns = clock_monotonic_ns() + ranks->start_timeout_ns;
	memset(pending, true, sizeof(pending));
	while (n_pending > 0) {
		enum status status = await_some(ranks, pending, deadline_ns, &n_pending, err);
		if (status != STATUS_OK)
			return status;
	}
	if (ranks->watching) {
		atomic_store(&ranks->phase, RANKS_RUNNING);
		ranks_watch_wake(ranks);
	}
	return STATUS_OK;
}
