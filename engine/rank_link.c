/* A rank process's end of its tie to rank 0: inherited descriptors, shared memory, commands, reports. */
#include "engine/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/text.h"
#include "base/wait.h"
#include "engine/ranks_wire.h"

#define PARENT_CHECK_NS 1000000000LL /* the kernel kills us with our parent; this is for the case that it could not */

struct rank_link {
	int rank, world;
	pid_t parent;
	size_t bytes;
	struct ranks_head *head;
	uint32_t taken; /* commands taken so far */
	uint32_t spins;
	int sockets[COMM_RANKS_MAX];
};

/* Splits "1:2:8192:77:4242" into numbers. */
static bool parse_link(const char *word, unsigned long long numbers[RANKS_LINK_FIELDS])
{
	char copy[RANKS_LINK_BYTES];
	size_t len = strnlen(word, sizeof(copy));
	if (len == sizeof(copy))
		return false;
	memcpy(copy, word, len + 1);
	char *rest = copy;
	for (int i = 0; i < RANKS_LINK_FIELDS; i++) {
		char *field = strsep(&rest, ":");
		if (field == NULL || !text_to_u64(field, &numbers[i]))
			return false;
	}
	return rest == NULL;
}

/* Dies with the parent, and not by a signal meant for the whole group. */
static enum status tie_to_parent(pid_t parent, struct err *err)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		signal(ignored[i], SIG_IGN);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot ask to end with the parent");
	/* It may have died before the line above. */
	if (getppid() != parent)
		return err_set(err, STATUS_RANK_DIED, "rank 0 (pid %d) has ended", (int)parent);
	return STATUS_OK;
}

static enum status map_region(struct rank_link *link, uint64_t cookie, struct err *err)
{
	struct stat stat;
	if (fstat(RANKS_FD_REGION, &stat) != 0 || (size_t)stat.st_size != link->bytes || link->bytes < RANKS_HEAD_BYTES)
		return err_set(err, STATUS_INPUT, "descriptor %d is not the shared region", RANKS_FD_REGION);
	void *memory = mmap(NULL, link->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, RANKS_FD_REGION, 0);
	if (memory == MAP_FAILED)
		return err_set_errno(err, STATUS_UNAVAILABLE, errno, "cannot map the shared region");
	link->head = memory;
	if (link->head->cookie != cookie)
		return err_set(err, STATUS_INPUT, "the shared region is another server's");
	return STATUS_OK;
}

static enum status check_sockets(struct err *err)
{
	for (int fd = RANKS_FD_REGION; fd < RANKS_FD_END; fd++) {
		struct stat stat;
		if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
			(fd != RANKS_FD_REGION && (fstat(fd, &stat) != 0 || !S_ISSOCK(stat.st_mode))))
			return err_set(err, STATUS_INPUT, "descriptor %d was not inherited", fd);
	}
	return STATUS_OK;
}

static enum status attach(struct rank_link *link, const unsigned long long numbers[RANKS_LINK_FIELDS], struct err *err)
{
	if (numbers[1] < 2 || numbers[1] > COMM_RANKS_MAX || numbers[0] < 1 || numbers[0] >= numbers[1])
		return err_set(err, STATUS_INPUT, "rank %llu of %llu does not exist", numbers[0], numbers[1]);
	link->rank = (int)numbers[0];
	link->world = (int)numbers[1];
	link->bytes = (size_t)numbers[2];
	link->parent = (pid_t)numbers[4];
	link->spins = RANKS_SPINS_FACTOR * wait_default_spins(link->world);
	for (int peer = 0; peer < COMM_RANKS_MAX; peer++)
		link->sockets[peer] = peer == 0 ? RANKS_FD_SOCKET : -1;
	char prefix[16];
	snprintf(prefix, sizeof(prefix), "rank %d", link->rank);
	log_set_prefix(prefix);
	enum status status = tie_to_parent(link->parent, err);
	if (status == STATUS_OK)
		status = check_sockets(err);
	if (status == STATUS_OK)
		status = map_region(link, numbers[3], err);
	return status;
}

enum status rank_link_open(int argc, char **argv, struct rank_link **out, struct err *err)
{
	unsigned long long numbers[RANKS_LINK_FIELDS];
	if (argc < RANKS_ARGV_FIRST || !text_equal(argv[0], RANKS_SUBCOMMAND) || !parse_link(argv[1], numbers))
		return err_set(err, STATUS_INPUT, "'%s' is started by the server itself, not by hand", RANKS_SUBCOMMAND);
	struct rank_link *link = mem_calloc(1, sizeof(*link));
	enum status status = attach(link, numbers, err);
	if (status != STATUS_OK) {
		rank_link_close(link);
		return status;
	}
	*out = link;
	return STATUS_OK;
}

int rank_link_rank(const struct rank_link *link)
{
	return link->rank;
}

void *rank_link_shared(const struct rank_link *link)
{
	return (char *)link->head + RANKS_HEAD_BYTES;
}

const int *rank_link_sockets(const struct rank_link *link)
{
	return link->sockets;
}

const _Atomic uint32_t *rank_link_abort_word(const struct rank_link *link)
{
	return &link->head->abort;
}

void rank_link_report(struct rank_link *link, enum status status, const struct err *err)
{
	struct ranks_report report = {.status = (int32_t)status};
	if (err != NULL)
		report.err = *err;
	/* If this fails, rank 0 sees the end of this process instead. */
	if (send(RANKS_FD_CONTROL, &report, sizeof(report), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(report))
		log_warn("ranks", "cannot report to rank 0: %s", strerror(errno));
}

enum status rank_link_wait(struct rank_link *link, uint32_t *command, struct err *err)
{
	struct ranks_head *head = link->head;
	wait_word_set(&head->child[link->rank].finished, link->taken);
	uint32_t spins = link->spins;
	for (;;) {
		int64_t deadline_ns = clock_monotonic_ns() + PARENT_CHECK_NS;
		if (wait_word_while_equal(&head->posted, link->taken, spins, &head->abort, deadline_ns)) {
			link->taken++;
			*command = head->command;
			return STATUS_OK;
		}
		if (atomic_load_explicit(&head->abort, memory_order_acquire) != 0)
			return err_set_code(err, STATUS_RANK_DIED, "rank_died", "the group is ending");
		if (getppid() != link->parent)
			return err_set_code(err, STATUS_RANK_DIED, "rank_died", "rank 0 (pid %d) has ended", (int)link->parent);
		spins = 0;
	}
}

void rank_link_close(struct rank_link *link)
{
	if (link == NULL)
		return;
	if (link->head != NULL)
		munmap(link->head, link->bytes);
	for (int fd = RANKS_FD_REGION; link->head != NULL && fd < RANKS_FD_END; fd++)
		close(fd);
	mem_free(link);
}
