/* Rank processes: joint start, commands, orderly ends, and every way a rank or the server can die. This program is its own child:
 * started with the "rank" subcommand it plays the part named by its first argument. */
#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/ranks.h"

#define SECOND_NS 1000000000LL
#ifdef __SANITIZE_THREAD__
#define END_LIMIT_NS (3 * SECOND_NS) /* the sanitizer sleeps for a second when a process ends */
#else
#define END_LIMIT_NS SECOND_NS
#endif
#define COUNT_MAX 256
#define COMMAND_CONNECT RANKS_COMMAND_FIRST_FREE /* makes the collective and reports */
#define COMMAND_FAIL (RANKS_COMMAND_FIRST_FREE + 1) /* the child reports an error and ends */
#define COMMAND_SIGNALS (RANKS_COMMAND_FIRST_FREE + 2)
#define COMMAND_HANG (RANKS_COMMAND_FIRST_FREE + 3)

/* The shared region of these tests; the collective's region follows. */
struct region {
	_Alignas(4096) uint32_t steps[COMM_RANKS_MAX]; /* commands that each rank has run */
	float sums[COMM_RANKS_MAX];
	int n_fds[COMM_RANKS_MAX];
	int world;
	int backend; /* index in comm_cpu_backends */
	int64_t timeout_ns;
};

static void *comm_region(struct region *region)
{
	return region + 1;
}

static size_t region_bytes(int world)
{
	size_t most = 0;
	for (size_t i = 0; i < comm_cpu_backends_count; i++) {
		size_t bytes = comm_cpu_backends[i]->shared_bytes(world, COUNT_MAX);
		most = bytes > most ? bytes : most;
	}
	return sizeof(struct region) + most;
}

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n - 1; /* its own */
}

/* ---- the child ---- */

static enum status make_comm(
	struct region *region, int rank, const int *sockets, const _Atomic uint32_t *abort_word, struct comm **out, struct err *err)
{
	const struct comm_options options = {
		.rank = rank,
		.world = region->world,
		.count_max = COUNT_MAX,
		.shared = comm_region(region),
		.sockets = sockets,
		.abort = abort_word,
		.timeout_ns = region->timeout_ns,
	};
	return comm_cpu_backends[region->backend]->create(&options, out, err);
}

static enum status run_step(struct region *region, struct comm *comm, int rank, struct err *err)
{
	float data[COUNT_MAX];
	for (int i = 0; i < COUNT_MAX; i++)
		data[i] = (float)(rank + 1 + i);
	enum status status = comm_cpu_backends[region->backend]->allreduce(comm, data, COUNT_MAX, err);
	region->sums[rank] = data[COUNT_MAX - 1];
	region->steps[rank]++;
	return status;
}

static int fail_on_command(struct rank_link *link)
{
	struct err err = {0};
	err_set(&err, STATUS_UNAVAILABLE, "the disk is on fire");
	rank_link_report(link, STATUS_UNAVAILABLE, &err);
	return status_exit_code(STATUS_UNAVAILABLE);
}

static void __attribute__((noreturn)) hang(void)
{
	for (;;)
		pause();
}

/* Runs one command; false ends the child with *code. */
static bool obey(struct rank_link *link, uint32_t command, struct comm **comm, int *code)
{
	struct region *region = rank_link_shared(link);
	int rank = rank_link_rank(link);
	struct err err = {0};
	enum status status = STATUS_OK;
	*code = 0;
	switch (command) {
	case RANKS_COMMAND_STOP:
		return false;
	case COMMAND_CONNECT:
		status = make_comm(region, rank, rank_link_sockets(link), rank_link_abort_word(link), comm, &err);
		rank_link_report(link, status, &err);
		return true;
	case COMMAND_FAIL:
		*code = fail_on_command(link);
		return false;
	case COMMAND_HANG:
		hang();
	case COMMAND_SIGNALS:
		raise(SIGINT);
		raise(SIGTERM);
		raise(SIGHUP);
		region->steps[rank]++;
		return true;
	default:
		status = run_step(region, *comm, rank, &err);
		if (status != STATUS_OK)
			rank_link_report(link, status, &err);
		*code = status_exit_code(status);
		return status == STATUS_OK;
	}
}

static int child_main(int argc, char **argv)
{
	struct rank_link *link = NULL;
	struct err err = {0};
	struct comm *comm = NULL;
	uint32_t command = RANKS_COMMAND_STOP;
	int code = 0;
	if (rank_link_open(argc, argv, &link, &err) != STATUS_OK)
		return 50;
	struct region *region = rank_link_shared(link);
	int rank = rank_link_rank(link);
	const char *part = argc > RANKS_ARGV_FIRST ? argv[RANKS_ARGV_FIRST] : "";
	region->n_fds[rank] = count_fds();
	if (text_equal(part, "refuse") && rank == 2) {
		err_set_code(&err, STATUS_NO_MEMORY, "not_enough_memory", "3 bytes short");
		snprintf(err.details, sizeof(err.details), "\"need_bytes\":3");
		rank_link_report(link, STATUS_NO_MEMORY, &err);
		rank_link_close(link);
		return 3;
	}
	if (text_equal(part, "die") && rank == 1)
		raise(SIGKILL);
	if (text_equal(part, "silent") && rank == 1)
		hang();
	rank_link_report(link, STATUS_OK, NULL);
	do {
		code = status_exit_code(rank_link_wait(link, &command, &err));
	} while (code == 0 && obey(link, command, &comm, &code));
	if (comm != NULL)
		comm_cpu_backends[region->backend]->destroy(comm);
	rank_link_close(link);
	return code;
}

/* ---- rank 0 ---- */

struct server {
	struct ranks *ranks;
	struct region *region;
	struct comm *comm;
	int world;
};

static enum status start(struct server *server, int world, const char *part, int64_t timeout_ns, struct err *err)
{
	const char *const argv[] = {part, NULL};
	const struct ranks_options options = {
		.world = world, .shared_bytes = region_bytes(world), .argv = argv, .start_timeout_ns = timeout_ns};
	*server = (struct server){.world = world};
	enum status status = ranks_start(&options, &server->ranks, err);
	if (status == STATUS_OK)
		server->region = ranks_shared(server->ranks);
	return status;
}

/* The engine's order: start, joint outcome, collective, joint outcome. */
static enum status start_connected(struct server *server, int world, int backend, int64_t timeout_ns, struct err *err)
{
	enum status status = start(server, world, "serve", 30 * SECOND_NS, err);
	if (status == STATUS_OK)
		status = ranks_await_ready(server->ranks, err);
	if (status != STATUS_OK)
		return status;
	server->region->world = world;
	server->region->backend = backend;
	server->region->timeout_ns = timeout_ns;
	ranks_post(server->ranks, COMMAND_CONNECT);
	status = make_comm(server->region, 0, ranks_sockets(server->ranks), ranks_abort_word(server->ranks), &server->comm, err);
	return status == STATUS_OK ? ranks_await_ready(server->ranks, err) : status;
}

static enum status step(struct server *server, struct err *err)
{
	ranks_post(server->ranks, RANKS_COMMAND_STEP);
	enum status status = run_step(server->region, server->comm, 0, err);
	return status == STATUS_OK ? ranks_await_done(server->ranks, server->region->timeout_ns, err) : status;
}

static void stop(struct server *server)
{
	if (server->comm != NULL)
		comm_cpu_backends[server->region->backend]->destroy(server->comm);
	ranks_stop(server->ranks);
}

/* No process may be left of a group: waits until this process, which adopts orphans, has no children. */
static bool all_processes_end(int64_t timeout_ns)
{
	int64_t deadline_ns = clock_monotonic_ns() + timeout_ns;
	while (clock_monotonic_ns() < deadline_ns) {
		if (waitpid(-1, NULL, WNOHANG) < 0)
			return true;
		clock_sleep_ns(500000);
	}
	return false;
}

static void ranks_run_every_command_on_every_rank(void **state)
{
	static const int worlds[] = {1, 2, 3, 4, 9};
	for (size_t i = 0; i < sizeof(worlds) / sizeof(worlds[0]); i++) {
		struct server server;
		struct err err = {0};
		int world = worlds[i], steps = world == 2 ? 2000 : 30;
		if (start_connected(&server, world, (int)(i % comm_cpu_backends_count), 30 * SECOND_NS, &err) != STATUS_OK)
			fail_msg("%s", err.text);
		for (int n = 0; n < steps; n++) {
			if (step(&server, &err) != STATUS_OK)
				fail_msg("%s", err.text);
		}
		for (int rank = 0; rank < world; rank++) {
			assert_int_equal(server.region->steps[rank], steps);
			assert_true(server.region->sums[rank] == server.region->sums[0]);
		}
		assert_true(server.region->sums[0] == (float)(world * (COUNT_MAX - 1) + world * (world + 1) / 2));
		stop(&server);
		assert_true(waitpid(-1, NULL, WNOHANG) < 0);
	}
}

static void ranks_work_with_every_collective(void **state)
{
	for (int backend = 0; backend < (int)comm_cpu_backends_count; backend++) {
		struct server server;
		struct err err = {0};
		if (start_connected(&server, 3, backend, 30 * SECOND_NS, &err) != STATUS_OK || step(&server, &err) != STATUS_OK)
			fail_msg("%s: %s", comm_cpu_backends[backend]->name, err.text);
		assert_true(server.region->sums[2] == 3 * (COUNT_MAX - 1) + 6);
		stop(&server);
	}
}

static void ranks_region_is_zeroed_and_page_aligned(void **state)
{
	struct server server;
	struct err err = {0};
	assert_int_equal(start(&server, 1, "serve", SECOND_NS, &err), STATUS_OK);
	assert_int_equal((uintptr_t)ranks_shared(server.ranks) % 4096, 0);
	for (size_t i = 0; i < region_bytes(1); i++)
		assert_int_equal(((unsigned char *)ranks_shared(server.ranks))[i], 0);
	assert_int_equal(ranks_pid(server.ranks, 0), getpid());
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_OK);
	stop(&server);
}

static void ranks_of_an_impossible_world_are_refused(void **state)
{
	static const int worlds[] = {-1, 0, COMM_RANKS_MAX + 1};
	for (size_t i = 0; i < 3; i++) {
		struct server server;
		struct err err = {0};
		assert_int_equal(start(&server, worlds[i], "serve", SECOND_NS, &err), STATUS_INPUT);
		assert_non_null(strstr(err.text, "1 to 64 ranks"));
	}
}

static void ranks_inherit_only_their_descriptors_and_leave_nothing_in_dev_shm(void **state)
{
	struct server server;
	struct err err = {0};
	int leaky[8];
	for (int i = 0; i < 8; i++)
		leaky[i] = open("/dev/null", O_RDONLY); /* not close-on-exec */
	assert_int_equal(start(&server, 3, "serve", 30 * SECOND_NS, &err), STATUS_OK);
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_OK);
	for (int rank = 1; rank < 3; rank++)
		assert_int_equal(server.region->n_fds[rank], 6);
	/* What the ranks share is mapped here, and has no name there. (Of names in the folder, some may be other programs'.) */
	struct text maps = {0};
	assert_int_equal(file_read("/proc/self/maps", 1 << 24, &maps, &err), STATUS_OK);
	assert_non_null(strstr(text_str(&maps), "memfd:verdict-ranks"));
	assert_null(strstr(text_str(&maps), "/dev/shm/"));
	text_release(&maps);
	stop(&server);
	for (int i = 0; i < 8; i++)
		close(leaky[i]);
}

static void ranks_start_fails_with_the_status_and_text_that_a_rank_reported(void **state)
{
	struct server server;
	struct err err = {0};
	assert_int_equal(start(&server, 4, "refuse", 30 * SECOND_NS, &err), STATUS_OK);
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	assert_string_equal(err.text, "rank 2: 3 bytes short");
	assert_string_equal(err.details, "\"need_bytes\":3");
	stop(&server);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0);
}

static void ranks_start_fails_naming_a_rank_that_says_nothing_in_time(void **state)
{
	struct server server;
	struct err err = {0};
	assert_int_equal(start(&server, 3, "silent", SECOND_NS / 2, &err), STATUS_OK);
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_TIMEOUT);
	assert_non_null(strstr(err.text, "rank 1 (pid "));
	stop(&server);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0);
}

static void ranks_ignore_signals_meant_for_the_whole_group(void **state)
{
	struct server server;
	struct err err = {0};
	assert_int_equal(start(&server, 2, "serve", 30 * SECOND_NS, &err), STATUS_OK);
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_OK);
	ranks_post(server.ranks, COMMAND_SIGNALS);
	assert_int_equal(ranks_await_done(server.ranks, 30 * SECOND_NS, &err), STATUS_OK);
	assert_int_equal(server.region->steps[1], 1);
	stop(&server);
}

static void ranks_stop_kills_a_rank_that_hangs(void **state)
{
	struct server server;
	struct err err = {0};
	assert_int_equal(start(&server, 3, "serve", 30 * SECOND_NS, &err), STATUS_OK);
	assert_int_equal(ranks_await_ready(server.ranks, &err), STATUS_OK);
	ranks_post(server.ranks, COMMAND_HANG);
	int64_t start_ns = clock_monotonic_ns();
	stop(&server);
	assert_true(clock_monotonic_ns() - start_ns < 5 * SECOND_NS);
	assert_true(waitpid(-1, NULL, WNOHANG) < 0);
}

static void rank_subcommand_is_refused_when_typed_by_hand(void **state)
{
	char *bad[][2] = {
		{"rank", NULL},
		{"serve", "1:2:8192:1:1"},
		{"rank", "1:2:3:4"},
		{"rank", "1:2:3:4:5:6"},
		{"rank", "a:b:c:d:e"},
		{"rank", "2:2:8192:1:1"},
		{"rank", "0:2:8192:1:1"},
		{"rank", "1:65:8192:1:1"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct rank_link *link = NULL;
		struct err err = {0};
		int argc = bad[i][1] == NULL ? 1 : 2;
		assert_int_equal(rank_link_open(argc, bad[i], &link, &err), STATUS_INPUT);
		assert_null(link);
	}
}

/* ---- deaths: rank 0 is a process of its own ---- */

struct board { /* shared between this program and that process */
	_Atomic uint32_t steps;
	pid_t pids[COMM_RANKS_MAX];
};

enum play {
	PLAY_STEPS,
	PLAY_FAIL, /* after three steps the children give up */
	PLAY_DIE_AWAITED, /* rank 1 dies while it starts, and rank 0 waits for it */
	PLAY_DIE_UNSEEN, /* or is busy with something else */
};

/* A server that steps until something happens to it. */
static int serve(struct board *board, int world, int backend, enum play play, int64_t timeout_ns)
{
	struct server server;
	struct err err = {0};
	if (play == PLAY_DIE_AWAITED || play == PLAY_DIE_UNSEEN) {
		if (start(&server, world, "die", timeout_ns, &err) != STATUS_OK)
			return 60;
		if (play == PLAY_DIE_UNSEEN)
			hang();
		ranks_await_ready(server.ranks, &err);
		return 61;
	}
	if (start_connected(&server, world, backend, timeout_ns, &err) != STATUS_OK)
		return 60;
	for (int rank = 0; rank < world; rank++)
		board->pids[rank] = ranks_pid(server.ranks, rank);
	for (;;) {
		if (play == PLAY_FAIL && atomic_load(&board->steps) == 3)
			ranks_post(server.ranks, COMMAND_FAIL);
		if (step(&server, &err) != STATUS_OK)
			ranks_fail(server.ranks, &err);
		atomic_fetch_add(&board->steps, 1);
	}
}

struct death {
	struct board *board;
	pid_t pid;
	int log; /* readable end of the server's standard error */
	char lines[8192];
	int exit_code; /* 128 + signal when killed */
	int64_t took_ns;
};

static void launch(struct death *death, int world, int backend, enum play play, int64_t timeout_ns)
{
	int ends[2];
	*death = (struct death){0};
	death->board = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
	fflush(NULL);
	death->pid = fork();
	if (death->pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		_exit(serve(death->board, world, backend, play, timeout_ns));
	}
	close(ends[1]);
	death->log = ends[0];
	int64_t deadline_ns = clock_monotonic_ns() + 30 * SECOND_NS;
	while (play == PLAY_STEPS && atomic_load(&death->board->steps) < 5 && clock_monotonic_ns() < deadline_ns)
		clock_sleep_ns(500000);
	assert_true(play != PLAY_STEPS || atomic_load(&death->board->steps) >= 5); /* so the process numbers are there */
}

/* Waits for the server's end and for everybody else's; reads what it said. */
static void await_end(struct death *death)
{
	int status = 0;
	int64_t start_ns = clock_monotonic_ns();
	pid_t ended = 0;
	while (ended == 0 && clock_monotonic_ns() - start_ns < 10 * SECOND_NS) {
		ended = waitpid(death->pid, &status, WNOHANG);
		if (ended == 0)
			clock_sleep_ns(500000);
	}
	death->took_ns = clock_monotonic_ns() - start_ns;
	bool in_time = ended == death->pid;
	if (!in_time)
		kill(death->pid, SIGKILL);
	death->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	bool no_orphan = all_processes_end(2 * SECOND_NS);
	ssize_t n = read(death->log, death->lines, sizeof(death->lines) - 1);
	death->lines[n > 0 ? n : 0] = '\0';
	close(death->log);
	munmap(death->board, sizeof(struct board));
	assert_true(in_time);
	assert_true(no_orphan);
}

static const char *last_line(const struct death *death)
{
	const char *end = death->lines + strlen(death->lines);
	if (end > death->lines && end[-1] == '\n')
		end--;
	while (end > death->lines && end[-1] != '\n')
		end--;
	return end;
}

static void a_killed_rank_ends_the_server_within_a_second_naming_it(void **state)
{
	for (int round = 0; round < 12; round++) {
		struct death death;
		char expected[64];
		int world = 2 + round % 3, victim = 1 + round % (world - 1);
		launch(&death, world, round % (int)comm_cpu_backends_count, PLAY_STEPS, 20 * SECOND_NS);
		snprintf(expected, sizeof(expected), "rank %d (pid %d) ended: killed by signal 9 (SIGKILL)", victim,
			(int)death.board->pids[victim]);
		kill(death.board->pids[victim], SIGKILL);
		await_end(&death);
		assert_int_equal(death.exit_code, 4);
		assert_true(death.took_ns < END_LIMIT_NS);
		if (strstr(last_line(&death), expected) == NULL)
			fail_msg("expected '%s', last line is '%s'", expected, last_line(&death));
	}
}

static void a_rank_killed_while_it_starts_ends_the_server_naming_it(void **state)
{
	static const enum play plays[] = {PLAY_DIE_AWAITED, PLAY_DIE_UNSEEN};
	for (size_t i = 0; i < 2; i++) {
		struct death death;
		launch(&death, 3, 0, plays[i], 20 * SECOND_NS);
		await_end(&death);
		assert_int_equal(death.exit_code, 4);
		assert_non_null(strstr(last_line(&death), "rank 1 (pid "));
		assert_non_null(strstr(last_line(&death), "ended: killed by signal 9 (SIGKILL)"));
	}
}

static void a_killed_server_leaves_no_rank_behind(void **state)
{
	for (int round = 0; round < 4; round++) {
		struct death death;
		launch(&death, 3, round, PLAY_STEPS, 20 * SECOND_NS);
		kill(death.pid, SIGKILL);
		await_end(&death);
		assert_int_equal(death.exit_code, 128 + SIGKILL);
	}
}

static void a_stopped_rank_ends_the_server_after_the_time_out_naming_it(void **state)
{
	for (int backend = 0; backend < (int)comm_cpu_backends_count; backend++) {
		struct death death;
		launch(&death, 2, backend, PLAY_STEPS, SECOND_NS);
		kill(death.board->pids[1], SIGSTOP);
		await_end(&death);
		assert_int_equal(death.exit_code, 4);
		assert_true(death.took_ns < SECOND_NS + END_LIMIT_NS);
		if (strstr(last_line(&death), "rank 0 waited 1.0 s for rank 1") == NULL)
			fail_msg("last line is '%s'", last_line(&death));
	}
}

static void a_rank_that_gives_up_is_quoted_in_the_last_line(void **state)
{
	struct death death;
	launch(&death, 2, 1, PLAY_FAIL, 20 * SECOND_NS);
	await_end(&death);
	assert_int_equal(death.exit_code, 4);
	if (strstr(last_line(&death), "ended: exit code 3: the disk is on fire") == NULL)
		fail_msg("last line is '%s'", last_line(&death));
}

int main(int argc, char **argv)
{
	if (argc > 1 && text_equal(argv[1], "rank"))
		return child_main(argc - 1, argv + 1);
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* orphans come to us, so we see them */
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_run_every_command_on_every_rank),
		cmocka_unit_test(ranks_work_with_every_collective),
		cmocka_unit_test(ranks_region_is_zeroed_and_page_aligned),
		cmocka_unit_test(ranks_of_an_impossible_world_are_refused),
		cmocka_unit_test(ranks_inherit_only_their_descriptors_and_leave_nothing_in_dev_shm),
		cmocka_unit_test(ranks_start_fails_with_the_status_and_text_that_a_rank_reported),
		cmocka_unit_test(ranks_start_fails_naming_a_rank_that_says_nothing_in_time),
		cmocka_unit_test(ranks_ignore_signals_meant_for_the_whole_group),
		cmocka_unit_test(ranks_stop_kills_a_rank_that_hangs),
		cmocka_unit_test(rank_subcommand_is_refused_when_typed_by_hand),
		cmocka_unit_test(a_killed_rank_ends_the_server_within_a_second_naming_it),
		cmocka_unit_test(a_rank_killed_while_it_starts_ends_the_server_naming_it),
		cmocka_unit_test(a_killed_server_leaves_no_rank_behind),
		cmocka_unit_test(a_stopped_rank_ends_the_server_after_the_time_out_naming_it),
		cmocka_unit_test(a_rank_that_gives_up_is_quoted_in_the_last_line),
	};
	return cmocka_run_group_tests_name("ranks", tests, NULL, NULL);
}
