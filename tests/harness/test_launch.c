/* Launches: what starts, what is logged, and above all that nothing is left, however the end comes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "harness/environment.h"
#include "harness/launch.h"
#include "harness/proctree.h"
#include "harness/runner.h"
#include "tests/support/roles.h"

extern char **environ;

#define S ((int64_t)1000000000)

/* Starts a stub under a guard, with these extra arguments. */
static struct launch *launch_stub(const char *const *extra, int *port)
{
	struct string_vector arguments = {0}, environment = {0}, overrides = {0};
	struct json *record = NULL;
	char port_text[16];
	assert_int_equal(runner_local.free_port(port, NULL), STATUS_OK);
	snprintf(port_text, sizeof(port_text), "%d", *port);
	string_vector_add(&arguments, support_program());
	string_vector_add(&arguments, "stub-server");
	string_vector_add(&arguments, "--port");
	string_vector_add(&arguments, port_text);
	for (int i = 0; extra && extra[i]; i++)
		string_vector_add(&arguments, extra[i]);
	environment_build(environ, &overrides, *port, "n-1", &environment, &record);
	struct launch_request request = {.arguments = &arguments, .environment = &environment};
	struct launch *launch = NULL;
	struct err err = {0};
	if (runner_local.start(&request, &launch, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	json_free(record);
	string_vector_release(&arguments);
	string_vector_release(&environment);
	return launch;
}

static void wait_for_port(const struct launch *launch, int port)
{
	int64_t until_ns = clock_monotonic_ns() + 20 * S;
	while (!runner_local.owns_port(launch, port)) {
		if (clock_monotonic_ns() > until_ns)
			fail_msg("nobody of the launch listens on %d", port);
		clock_sleep_ns(S / 200);
	}
}

static const struct launch_state *wait_for_clean(struct launch *launch)
{
	int64_t until_ns = clock_monotonic_ns() + 20 * S;
	while (!launch_update(launch)->clean) {
		if (clock_monotonic_ns() > until_ns)
			fail_msg("the guard did not finish");
		clock_sleep_ns(S / 200);
	}
	return launch_update(launch);
}

static char *temporary_file(char path[32])
{
	snprintf(path, 32, "/tmp/verdict-launch-XXXXXX");
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	return path;
}

/* A pid that a process writes to path; waits for it. */
static pid_t read_pid(const char *path)
{
	int64_t until_ns = clock_monotonic_ns() + 20 * S;
	struct text text = {0};
	while (!strchr(text_str(&text), '\n')) {
		if (clock_monotonic_ns() > until_ns)
			fail_msg("%s stays empty", path);
		clock_sleep_ns(S / 200);
		text_clear(&text);
		file_read(path, 256, &text, NULL);
	}
	pid_t pid = (pid_t)strtol(text_str(&text), NULL, 10);
	text_release(&text);
	assert_true(pid > 1);
	return pid;
}

static void a_launch_is_stopped_in_order_and_its_exit_is_no_crash(void **state)
{
	int port;
	struct launch *launch = launch_stub(NULL, &port);
	wait_for_port(launch, port);
	assert_false(runner_local.port_is_free(port));
	assert_true(runner_local.peak_memory_bytes(launch) > 100000);
	const struct launch_state *end = launch_stop(launch, 5);
	assert_true(end->clean && end->exited && end->stop_requested);
	assert_int_equal(end->survivors, 0);
	assert_int_equal(end->exit_signal, SIGTERM);
	assert_true(runner_local.port_is_free(port));
	launch_destroy(launch);
}

static void a_descendant_that_left_the_session_and_ignores_term_is_ended_too(void **state)
{
	char path[32];
	const char *extra[] = {"--escapee", temporary_file(path), "--ignore-term", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	pid_t escapee = read_pid(path), engine = launch_update(launch)->pid;
	wait_for_port(launch, port);
	int64_t begin_ns = clock_monotonic_ns();
	const struct launch_state *end = launch_stop(launch, 0.2);
	assert_true(clock_monotonic_ns() - begin_ns >= S / 5);
	assert_true(end->clean);
	assert_int_equal(end->exit_signal, SIGKILL);
	assert_true(support_wait_gone(escapee, 0.5));
	assert_true(support_wait_gone(engine, 0.5));
	launch_destroy(launch);
	unlink(path);
}

static void exit_by_sigkill_after_our_stop_is_not_a_crash(void **state)
{
	const char *extra[] = {"--kill-self-on-term", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	wait_for_port(launch, port);
	const struct launch_state *end = launch_stop(launch, 5);
	assert_int_equal(end->exit_signal, SIGKILL);
	assert_true(end->stop_requested);
	launch_destroy(launch);
}

static void an_engine_that_ends_by_itself_is_noticed_and_its_workers_go_with_it(void **state)
{
	char path[32];
	const char *extra[] = {"--escapee", temporary_file(path), "--exit-code", "7", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	pid_t escapee = read_pid(path);
	const struct launch_state *end = wait_for_clean(launch);
	assert_true(end->exited);
	assert_int_equal(end->exit_code, 7);
	assert_int_equal(end->exit_signal, -1);
	assert_false(end->stop_requested);
	assert_true(support_wait_gone(escapee, 0.5));
	end = launch_stop(launch, 5);
	assert_false(end->stop_requested);
	launch_destroy(launch);
	unlink(path);
}

static void a_signal_that_we_did_not_send_is_told(void **state)
{
	int port;
	struct launch *launch = launch_stub(NULL, &port);
	kill(launch_update(launch)->pid, SIGSEGV);
	const struct launch_state *end = wait_for_clean(launch);
	assert_int_equal(end->exit_signal, SIGSEGV);
	assert_false(end->stop_requested);
	launch_destroy(launch);
}

static void a_process_whose_first_thread_ended_is_no_zombie(void **state)
{
	char path[32];
	const char *extra[] = {"--escapee", temporary_file(path), "--headless", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	pid_t escapee = read_pid(path);
	wait_for_port(launch, port);
	const struct launch_state *end = launch_stop(launch, 0.2);
	assert_true(end->clean);
	assert_int_equal(end->exit_signal, SIGTERM);
	assert_true(support_wait_gone(escapee, 0.5));
	launch_destroy(launch);
	unlink(path);
}

static void other_instances_of_the_engine_survive(void **state)
{
	struct stub_process other;
	stub_start(&other, NULL);
	int port;
	struct launch *launch = launch_stub(NULL, &port);
	wait_for_port(launch, port);
	assert_true(port != other.port);
	launch_stop(launch, 1);
	launch_destroy(launch);
	assert_int_equal(kill(other.pid, 0), 0);
	assert_true(port_is_listened_on(other.port));
	stub_stop(&other);
}

static void a_program_that_does_not_exist_says_why(void **state)
{
	struct string_vector arguments = {0}, environment = {0};
	string_vector_add(&arguments, "/no/such/engine");
	string_vector_add(&environment, "A=b");
	struct launch_request request = {.arguments = &arguments, .environment = &environment};
	struct launch *launch = NULL;
	assert_int_equal(launch_start(&request, &launch, NULL), STATUS_OK);
	assert_int_equal(launch_update(launch)->exec_errno, ENOENT);
	assert_int_equal(launch_update(launch)->pid, 0);
	assert_true(launch_stop(launch, 1)->clean);
	launch_destroy(launch);
	request.guard_program = "/no/such/guard";
	struct err err = {0};
	assert_int_equal(launch_start(&request, &launch, &err), STATUS_UNAVAILABLE);
	assert_non_null(strstr(err.text, "guard"));
	assert_null(launch);
	string_vector_release(&arguments);
	string_vector_release(&environment);
}

static void a_flood_of_log_neither_blocks_the_engine_nor_is_kept_whole(void **state)
{
	const char *extra[] = {"--flood-bytes", "100000000", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	wait_for_port(launch, port); /* it listens only when all is printed */
	launch_stop(launch, 5);
	const struct logring *log = launch_log(launch);
	assert_true(logring_total_bytes(log) >= 100000000);
	struct text whole = {0}, tail = {0};
	logring_read(log, &whole);
	assert_true(whole.len < LOGRING_HEAD_BYTES + LOGRING_TAIL_BYTES + 200);
	assert_non_null(strstr(text_str(&whole), "bytes of log were not kept"));
	logring_read_tail(log, 8192, &tail);
	assert_true(tail.len <= 8192);
	assert_non_null(strstr(text_str(&tail), "stub-server: port"));
	text_release(&whole);
	text_release(&tail);
	launch_destroy(launch);
}

/* Child program: launches a stub that is hard to end, says who it is by files, and waits to be killed. */
static _Noreturn void hold(const char *escapee_file, const char *engine_file)
{
	const char *extra[] = {"--escapee", escapee_file, "--ignore-term", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	wait_for_port(launch, port);
	char pids[64];
	int len = snprintf(pids, sizeof(pids), "%d\n%d\n", (int)launch_update(launch)->pid, (int)launch_guard_pid(launch));
	file_write_atomic(engine_file, pids, (size_t)len, NULL);
	for (;;)
		pause();
}

static void when_the_harness_is_killed_everything_is_gone_within_two_seconds(void **state)
{
	char escapee_path[32], engine_path[32];
	const char *arguments[] = {"hold", temporary_file(escapee_path), temporary_file(engine_path), NULL};
	pid_t harness = support_spawn(arguments);
	pid_t engine = read_pid(engine_path), escapee = read_pid(escapee_path);
	struct text text = {0};
	assert_int_equal(file_read(engine_path, 256, &text, NULL), STATUS_OK);
	pid_t guard = (pid_t)strtol(strchr(text_str(&text), '\n') + 1, NULL, 10);
	text_release(&text);
	assert_int_equal(kill(engine, 0) | kill(escapee, 0) | kill(guard, 0), 0);
	int64_t begin_ns = clock_monotonic_ns();
	kill(harness, SIGKILL);
	assert_int_equal(waitpid(harness, NULL, 0), harness);
	assert_true(support_wait_gone(engine, 2));
	assert_true(support_wait_gone(escapee, 2));
	assert_true(support_wait_gone(guard, 2));
	assert_true(clock_monotonic_ns() - begin_ns < 2 * S);
	unlink(escapee_path);
	unlink(engine_path);
}

static void when_the_guard_is_killed_the_engine_dies_and_the_loss_is_told(void **state)
{
	int port;
	struct launch *launch = launch_stub(NULL, &port);
	wait_for_port(launch, port);
	pid_t engine = launch_update(launch)->pid;
	kill(launch_guard_pid(launch), SIGKILL);
	assert_true(support_wait_gone(engine, 5));
	assert_true(launch_stop(launch, 1)->guard_lost);
	launch_destroy(launch);
}

/* Without the guard, which was its subreaper, a process that left the engine's session still has the launch's variable. Another
 * one before it, whose name ends alike, is not mistaken for it. */
static void what_a_killed_guard_leaves_is_found_and_ended(void **state)
{
	char escapee_path[32];
	setenv("OF_ANOTHER_VERDICT_NONCE", "n-1", 1);
	const char *extra[] = {"--escapee", temporary_file(escapee_path), "--ignore-term", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	unsetenv("OF_ANOTHER_VERDICT_NONCE");
	wait_for_port(launch, port);
	pid_t escapee = read_pid(escapee_path), bystander = fork();
	if (bystander == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	assert_int_equal(kill(escapee, 0), 0);
	kill(launch_guard_pid(launch), SIGKILL);
	const struct launch_state *end = launch_stop(launch, 1);
	assert_true(end->guard_lost && end->clean);
	assert_int_equal(end->survivors, 0);
	assert_true(support_wait_gone(escapee, 1));
	assert_int_equal(kill(bystander, 0), 0); /* a child of ours that is none of the launch's */
	kill(bystander, SIGKILL);
	assert_int_equal(waitpid(bystander, NULL, 0), bystander);
	launch_destroy(launch);
	unlink(escapee_path);
}

/* A worker may have been started with another environment; then its session tells whose it is. */
static void what_a_killed_guard_leaves_without_its_environment_is_known_by_its_session(void **state)
{
	char path[32], script[128];
	struct string_vector arguments = {0}, environment = {0};
	struct launch *launch = NULL;
	snprintf(script, sizeof(script), "env -i /bin/sh -c 'echo $$ >%s; exec sleep 600' & wait", temporary_file(path));
	string_vector_add(&arguments, "/bin/sh");
	string_vector_add(&arguments, "-c");
	string_vector_add(&arguments, script);
	string_vector_add(&environment, "PATH=/usr/bin:/bin");
	struct launch_request request = {.arguments = &arguments, .environment = &environment};
	assert_int_equal(runner_local.start(&request, &launch, NULL), STATUS_OK);
	pid_t worker = read_pid(path);
	kill(launch_guard_pid(launch), SIGKILL);
	const struct launch_state *end = launch_stop(launch, 1);
	assert_true(end->guard_lost && end->clean);
	assert_true(support_wait_gone(worker, 1));
	launch_destroy(launch);
	string_vector_release(&arguments);
	string_vector_release(&environment);
	unlink(path);
}

/* A guard that is stopped answers nobody. */
static void a_guard_that_does_not_answer_is_replaced(void **state)
{
	const char *extra[] = {"--ignore-term", NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	wait_for_port(launch, port);
	pid_t engine = launch_update(launch)->pid;
	kill(launch_guard_pid(launch), SIGSTOP);
	const struct launch_state *end = launch_stop(launch, 0.1);
	assert_true(end->guard_lost && end->clean);
	assert_true(support_wait_gone(engine, 1));
	launch_destroy(launch);
}

static void the_environment_is_defined_and_recorded(void **state)
{
	char *inherited[] = {(char *)"PORT=9999", (char *)"CUDA_VISIBLE_DEVICES=3", (char *)"HOME=/root",
		(char *)"VERDICT_NONCE=old", (char *)"VERDICT_X=1", (char *)"OMP_NUM_THREADS=2", (char *)"VLLM_API_KEY=secret",
		NULL};
	struct string_vector overrides = {0}, out = {0};
	string_vector_add(&overrides, "CUDA_VISIBLE_DEVICES=0,1");
	struct json *record = NULL;
	environment_build(inherited, &overrides, 4242, "abc", &out, &record);
	static const char *const expected[] = {"HOME=/root", "OMP_NUM_THREADS=2", "VLLM_API_KEY=secret", "CUDA_VISIBLE_DEVICES=0,1",
		"PORT=4242", "VERDICT_NONCE=abc"};
	assert_int_equal(out.count, 6);
	for (size_t i = 0; i < 6; i++)
		assert_string_equal(out.items[i], expected[i]);
	struct text text = {0};
	json_write(record, JSON_STYLE_COMPACT, &text);
	assert_non_null(strstr(text_str(&text), "\"CUDA_VISIBLE_DEVICES\":\"0,1\""));
	assert_non_null(strstr(text_str(&text), "\"OMP_NUM_THREADS\":\"2\""));
	assert_null(strstr(text_str(&text), "secret"));
	assert_null(strstr(text_str(&text), "9999"));
	text_release(&text);
	json_free(record);
	string_vector_release(&overrides);
	string_vector_release(&out);
}

static void environments_are_the_same_when_all_but_port_and_nonce_is(void **state)
{
	char *inherited[] = {(char *)"HOME=/root", (char *)"VLLM_API_KEY=secret", (char *)"PORT=1", NULL};
	char *changed[] = {(char *)"HOME=/root", (char *)"VLLM_API_KEY=other", NULL};
	struct string_vector overrides = {0}, out[3] = {{0}};
	struct json *records[3];
	environment_build(inherited, &overrides, 4242, "abc", &out[0], &records[0]);
	environment_build(inherited, &overrides, 4243, "def", &out[1], &records[1]);
	environment_build(changed, &overrides, 4242, "abc", &out[2], &records[2]);
	assert_true(json_same(json_get(records[0], "hash"), json_get(records[1], "hash")));
	assert_false(json_same(json_get(records[0], "hash"), json_get(records[2], "hash")));
	for (int i = 0; i < 3; i++) {
		json_free(records[i]);
		string_vector_release(&out[i]);
	}
}

static void the_engine_sees_its_own_port_and_nonce(void **state)
{
	char path[32];
	setenv("PORT", "9999", 1);
	const char *extra[] = {"--environment-file", temporary_file(path), NULL};
	int port;
	struct launch *launch = launch_stub(extra, &port);
	wait_for_port(launch, port);
	struct text text = {0};
	char line[32];
	assert_int_equal(file_read(path, 1 << 20, &text, NULL), STATUS_OK);
	snprintf(line, sizeof(line), "PORT=%d\n", port);
	assert_non_null(strstr(text_str(&text), line));
	assert_non_null(strstr(text_str(&text), "VERDICT_NONCE=n-1\n"));
	assert_null(strstr(text_str(&text), "9999"));
	text_release(&text);
	launch_destroy(launch);
	unsetenv("PORT");
	unlink(path);
}

static void no_descriptor_of_ours_reaches_the_engine(void **state)
{
	int leak = fcntl(STDOUT_FILENO, F_DUPFD, 40); /* as a library would: not closed on exec; above the guard's own */
	int port;
	struct launch *launch = launch_stub(NULL, &port);
	wait_for_port(launch, port);
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd", (int)launch_update(launch)->pid);
	int count = 0;
	for (int fd = 0; fd < 64; fd++) {
		char entry[96], target[256];
		snprintf(entry, sizeof(entry), "%s/%d", path, fd);
		ssize_t len = readlink(entry, target, sizeof(target) - 1);
		count += len > 0;
	}
	assert_int_equal(count, 4); /* null, log, log, its listener */
	close(leak);
	launch_destroy(launch);
}

int main(int argc, char **argv)
{
	int code;
	if (support_role(argc, argv, &code))
		return code;
	if (argc == 4 && strcmp(argv[1], "hold") == 0)
		hold(argv[2], argv[3]);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_launch_is_stopped_in_order_and_its_exit_is_no_crash),
		cmocka_unit_test(a_descendant_that_left_the_session_and_ignores_term_is_ended_too),
		cmocka_unit_test(exit_by_sigkill_after_our_stop_is_not_a_crash),
		cmocka_unit_test(an_engine_that_ends_by_itself_is_noticed_and_its_workers_go_with_it),
		cmocka_unit_test(a_signal_that_we_did_not_send_is_told),
		cmocka_unit_test(a_process_whose_first_thread_ended_is_no_zombie),
		cmocka_unit_test(other_instances_of_the_engine_survive),
		cmocka_unit_test(a_program_that_does_not_exist_says_why),
		cmocka_unit_test(a_flood_of_log_neither_blocks_the_engine_nor_is_kept_whole),
		cmocka_unit_test(when_the_harness_is_killed_everything_is_gone_within_two_seconds),
		cmocka_unit_test(when_the_guard_is_killed_the_engine_dies_and_the_loss_is_told),
		cmocka_unit_test(what_a_killed_guard_leaves_is_found_and_ended),
		cmocka_unit_test(what_a_killed_guard_leaves_without_its_environment_is_known_by_its_session),
		cmocka_unit_test(a_guard_that_does_not_answer_is_replaced),
		cmocka_unit_test(the_environment_is_defined_and_recorded),
		cmocka_unit_test(environments_are_the_same_when_all_but_port_and_nonce_is),
		cmocka_unit_test(the_engine_sees_its_own_port_and_nonce),
		cmocka_unit_test(no_descriptor_of_ours_reaches_the_engine),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
