/* Groups of ranks for tests: region, sockets, threads or processes, deadlines. */
#include "tests/support/comm_group.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

#define DEADLINE_NS 60000000000LL
#define POLL_NS 200000

/* Shared by all ranks, followed by the collective's region. */
struct board {
	_Alignas(4096) int code[COMM_RANKS_MAX];
	char text[COMM_RANKS_MAX][COMM_GROUP_TEXT_BYTES];
};

struct setting {
	struct comm_group *group;
	struct board *board;
	size_t bytes;
	int sockets[COMM_RANKS_MAX][COMM_RANKS_MAX]; /* [rank][peer] */
};

struct seat {
	const struct setting *setting;
	int rank;
};

static size_t page_up(size_t bytes)
{
	return (bytes + 4095) / 4096 * 4096;
}

static bool prepare(struct setting *setting, struct comm_group *group)
{
	size_t region = group->region_bytes;
	if (group->ops != NULL && group->ops->shared_bytes(group->world, group->count_max) > region)
		region = group->ops->shared_bytes(group->world, group->count_max);
	setting->group = group;
	setting->bytes = page_up(sizeof(struct board)) + page_up(region + 1);
	setting->board = mmap(NULL, setting->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (setting->board == MAP_FAILED)
		return false;
	memset(setting->sockets, -1, sizeof(setting->sockets));
	for (int rank = 0; rank < COMM_RANKS_MAX; rank++)
		setting->board->code[rank] = -1;
	for (int peer = 1; peer < group->world; peer++) {
		int pair[2];
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
			return false;
		setting->sockets[0][peer] = pair[0];
		setting->sockets[peer][0] = pair[1];
	}
	return true;
}

static void sit(const struct seat *seat)
{
	const struct setting *setting = seat->setting;
	const struct comm_group *group = setting->group;
	struct comm_group_member member = {
		.options =
			{
				.rank = seat->rank,
				.world = group->world,
				.count_max = group->count_max,
				.shared = (char *)setting->board + page_up(sizeof(struct board)),
				.sockets = setting->sockets[seat->rank],
				.timeout_ns = group->timeout_ns > 0 ? group->timeout_ns : 20000000000LL,
				.spins = group->spins,
				.first_epoch = group->first_epoch,
			},
		.ops = group->ops,
		.ctx = group->ctx,
		.text = setting->board->text[seat->rank],
	};
	setting->board->code[seat->rank] = group->body(&member);
}

static void *sit_thread(void *seat)
{
	sit(seat);
	return NULL;
}

static void run_threads(const struct setting *setting)
{
	pthread_t threads[COMM_RANKS_MAX];
	struct seat seats[COMM_RANKS_MAX];
	bool started[COMM_RANKS_MAX] = {false};
	for (int rank = 0; rank < setting->group->world; rank++) {
		seats[rank] = (struct seat){.setting = setting, .rank = rank};
		started[rank] = pthread_create(&threads[rank], NULL, sit_thread, &seats[rank]) == 0;
	}
	/* Every wait inside has a time-out, so joining ends; a thread cannot be killed. */
	for (int rank = 0; rank < setting->group->world; rank++) {
		if (started[rank])
			pthread_join(threads[rank], NULL);
	}
}

static void run_processes(const struct setting *setting)
{
	int world = setting->group->world;
	pid_t pids[COMM_RANKS_MAX];
	fflush(NULL);
	for (int rank = 0; rank < world; rank++) {
		pids[rank] = fork();
		if (pids[rank] == 0) {
			struct seat seat = {.setting = setting, .rank = rank};
			sit(&seat);
			_exit(0);
		}
	}
	int64_t deadline_ns = clock_monotonic_ns() + DEADLINE_NS;
	for (int rank = 0; rank < world; rank++) {
		if (pids[rank] < 0)
			continue;
		while (waitpid(pids[rank], NULL, WNOHANG) == 0) {
			if (clock_monotonic_ns() > deadline_ns)
				kill(pids[rank], SIGKILL);
			clock_sleep_ns(POLL_NS);
		}
	}
}

bool comm_group_run(struct comm_group *group)
{
	struct setting setting;
	bool good = prepare(&setting, group);
	if (good && group->kind == COMM_GROUP_THREADS)
		run_threads(&setting);
	else if (good)
		run_processes(&setting);
	for (int rank = 0; rank < group->world; rank++) {
		group->code[rank] = good ? setting.board->code[rank] : -1;
		if (good)
			memcpy(group->text[rank], setting.board->text[rank], COMM_GROUP_TEXT_BYTES);
	}
	for (int rank = 0; rank < group->world; rank++)
		good = good && group->code[rank] == 0;
	for (int peer = 1; peer < group->world; peer++) {
		close(setting.sockets[0][peer]);
		close(setting.sockets[peer][0]);
	}
	munmap(setting.board, setting.bytes);
	return good;
}

const char *comm_group_complaint(const struct comm_group *group)
{
	static char complaint[COMM_GROUP_TEXT_BYTES + 64];
	for (int rank = 0; rank < group->world; rank++) {
		if (group->code[rank] != 0) {
			snprintf(complaint, sizeof(complaint), "rank %d returned %d: %s", rank, group->code[rank],
				group->text[rank]);
			return complaint;
		}
	}
	return "none";
}
