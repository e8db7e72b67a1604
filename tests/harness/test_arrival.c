/* Times that the kernel gives, the pause of a dense load, and what is found out about acknowledgements, on loopback sockets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "harness/acks.h"
#include "harness/arrival.h"
#include "harness/ready.h"

#define MS ((int64_t)1000000)
#define WAIT_MS 5000 /* for what comes at once */

struct pair {
	int server, client;
};

static struct pair connect_pair(bool no_delay)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int on = no_delay, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &len), 0);
	struct pair pair = {.client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
	arrival_ask(pair.client);
	assert_int_equal(connect(pair.client, (struct sockaddr *)&address, len), 0);
	pair.server = accept(listener, NULL, NULL);
	assert_int_equal(setsockopt(pair.server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	close(listener);
	return pair;
}

static void close_pair(const struct pair *pair)
{
	close(pair->server);
	close(pair->client);
}

static void send_piece(const struct pair *pair, size_t len)
{
	static const char bytes[4096];
	assert_int_equal(send(pair->server, bytes, len, MSG_NOSIGNAL), len);
}

static void await_bytes(const struct pair *pair)
{
	struct pollfd wait = {.fd = pair->client, .events = POLLIN};
	assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
}

static void pass_time(int64_t ns)
{
	for (int64_t end_ns = clock_monotonic_ns() + ns; clock_monotonic_ns() < end_ns;)
		;
}

static void a_late_read_tells_when_the_bytes_came(void **state)
{
	struct pair pair = connect_pair(true);
	struct arrival_clock clock = {0};
	char buffer[4096];
	int64_t before_ns = 0, sent_ns = 0, at_ns = 0, peeked_ns = 0;
	/* The first bytes may come before the kernel has begun to stamp. */
	for (int i = 0; i < 3; i++) {
		before_ns = clock_monotonic_ns();
		send_piece(&pair, 100);
		sent_ns = clock_monotonic_ns();
		await_bytes(&pair);
		pass_time(20 * MS);
		arrival_begin_round(&clock);
		peeked_ns = arrival_peek(pair.client, buffer, sizeof(buffer), &clock);
		assert_int_equal(arrival_read(pair.client, buffer, sizeof(buffer), &clock, &at_ns), 100);
	}
	if (peeked_ns == 0)
		skip(); /* a kernel that does not stamp */
	assert_int_equal(peeked_ns, at_ns);
	assert_true(at_ns >= before_ns - MS / 10 && at_ns <= sent_ns + 10 * MS);
	close_pair(&pair);
}

static void bytes_without_a_stamp_have_the_time_of_the_read(void **state)
{
	int fds[2];
	char buffer[16];
	int64_t at_ns = 0;
	struct arrival_clock clock = {0};
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	arrival_begin_round(&clock);
	assert_int_equal(arrival_read(fds[0], buffer, sizeof(buffer), &clock, &at_ns), -1);
	assert_int_equal(arrival_peek(fds[0], buffer, sizeof(buffer), &clock), 0);
	assert_int_equal(send(fds[1], "x", 1, 0), 1);
	int64_t before_ns = clock_monotonic_ns();
	assert_int_equal(arrival_read(fds[0], buffer, sizeof(buffer), &clock, &at_ns), 1);
	assert_true(at_ns >= before_ns && at_ns <= clock_monotonic_ns());
	close(fds[0]);
	close(fds[1]);
}

static void a_wall_clock_that_was_set_is_not_believed_in_that_round(void **state)
{
	struct arrival_clock clock = {0};
	arrival_begin_round(&clock);
	assert_true(clock.known && clock.steady);
	clock.ahead_ns -= 3600 * 1000 * MS; /* as if it had been set by an hour since */
	arrival_begin_round(&clock);
	assert_false(clock.steady);
	arrival_begin_round(&clock);
	assert_true(clock.steady);
}

static bool pauses_after(size_t bytes, int64_t gap_ns)
{
	struct ready_set set;
	struct epoll_event event;
	assert_int_equal(ready_open(&set, NULL), STATUS_OK);
	assert_int_equal(ready_wait(&set, 0, &event, 1), 0);
	for (int64_t end_ns = clock_monotonic_ns() + 10 * MS; clock_monotonic_ns() < end_ns;) {
		ready_note_read(&set, bytes);
		pass_time(gap_ns);
	}
	assert_int_equal(ready_wait(&set, 0, &event, 1), 0);
	bool pausing = set.pausing;
	ready_close(&set);
	return pausing;
}

static void only_many_small_reads_make_it_pause(void **state)
{
	assert_true(pauses_after(300, MS / 50));
	assert_false(pauses_after(300, MS));
	assert_false(pauses_after(30000, MS / 50));
}

static void streams_that_are_silent_for_long_are_gathered_for_longer(void **state)
{
	assert_int_equal(ready_pause_ns(25600, 256), 2 * MS); /* 10 ms between two events of a stream */
	assert_int_equal(ready_pause_ns(25600, 128), 5 * MS / 4);
	assert_int_equal(ready_pause_ns(25600, 64), MS); /* 2.5 ms: no longer than before */
	assert_int_equal(ready_pause_ns(4000, 1), MS);
	assert_int_equal(ready_pause_ns(4000, 0), MS);
	assert_int_equal(ready_pause_ns(4000, 4096), 2 * MS);
}

/* Sends pieces until it is known whether the server waits for acknowledgements. */
static enum acks_finding find_out(bool no_delay)
{
	struct pair pair = connect_pair(no_delay);
	struct arrival_clock clock = {0};
	struct acks acks;
	char buffer[4096];
	acks_init(&acks);
	for (unsigned i = 0; acks.finding == ACKS_UNKNOWN && i < 200; i++) {
		int64_t at_ns;
		send_piece(&pair, 300);
		await_bytes(&pair);
		arrival_begin_round(&clock);
		acks_before_read(&acks, pair.client, i, true);
		ssize_t got = arrival_read(pair.client, buffer, sizeof(buffer), &clock, &at_ns);
		acks_after_read(&acks, pair.client, (size_t)got, at_ns);
	}
	close_pair(&pair);
	return acks.finding;
}

static void a_server_without_nagles_algorithm_is_not_kept_waiting(void **state)
{
	enum acks_finding finding = ACKS_UNKNOWN;
	/* A process that is not run for a while looks like a server that waits: the safe mistake, and not made again and again. */
	for (int attempt = 0; attempt < 20 && finding != ACKS_NOT_AWAITED; attempt++)
		finding = find_out(true);
	assert_int_equal(finding, ACKS_NOT_AWAITED);
}

static void a_server_that_awaits_acknowledgements_gets_them_at_once(void **state)
{
	for (int attempt = 0; attempt < 3; attempt++)
		assert_int_equal(find_out(false), ACKS_AWAITED);
}

static void nothing_is_tried_in_a_load_that_is_not_dense(void **state)
{
	struct pair pair = connect_pair(true);
	struct acks acks;
	acks_init(&acks);
	for (unsigned i = 0; i < 50; i++) {
		acks_before_read(&acks, pair.client, i, false);
		acks_after_read(&acks, pair.client, 300, clock_monotonic_ns());
	}
	assert_int_equal(acks.finding, ACKS_UNKNOWN);
	assert_int_equal(acks.probe_fd, -1);
	close_pair(&pair);
}

static void the_probe_moves_on_when_its_stream_ends(void **state)
{
	struct pair pair = connect_pair(true);
	struct acks acks;
	acks_init(&acks);
	acks_before_read(&acks, pair.client, 0, true);
	assert_int_equal(acks.probe_fd, pair.client);
	acks_forget(&acks, pair.server);
	assert_int_equal(acks.probe_fd, pair.client);
	acks_forget(&acks, pair.client);
	assert_int_equal(acks.probe_fd, -1);
	close_pair(&pair);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_late_read_tells_when_the_bytes_came),
		cmocka_unit_test(bytes_without_a_stamp_have_the_time_of_the_read),
		cmocka_unit_test(a_wall_clock_that_was_set_is_not_believed_in_that_round),
		cmocka_unit_test(only_many_small_reads_make_it_pause),
		cmocka_unit_test(streams_that_are_silent_for_long_are_gathered_for_longer),
		cmocka_unit_test(a_server_without_nagles_algorithm_is_not_kept_waiting),
		cmocka_unit_test(a_server_that_awaits_acknowledgements_gets_them_at_once),
		cmocka_unit_test(nothing_is_tried_in_a_load_that_is_not_dense),
		cmocka_unit_test(the_probe_moves_on_when_its_stream_ends),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
