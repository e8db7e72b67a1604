/* tools/gpu-run.sh, with scripts in the place of the programs of a bundle: without a GPU it says so and measures nothing, what it
 * started or wrote for its own use ends with it, and what it writes is JSON also when a program failed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

#define DEADLINE_MS 60000
#define END_MS 20000 /* of a program that would last 300 s, on a busy machine */

extern char **environ;

struct bundle {
	struct temp_folder folder;
	char run[128], said[128], news[128];
};

static void write_program(const struct bundle *bundle, const char *name, const char *text)
{
	char path[128];
	temp_folder_write_text(&bundle->folder, name, text);
	snprintf(path, sizeof path, "%s/%s", bundle->folder.path, name);
	assert_int_equal(chmod(path, 0755), 0);
}

/* news: a pipe with a name, into which the stand-in for verdict writes its process id. */
static void open_bundle(struct bundle *bundle, const char *engine, const char *verdict)
{
	temp_folder_make(&bundle->folder);
	snprintf(bundle->run, sizeof bundle->run, "%s/gpu-run.sh", bundle->folder.path);
	snprintf(bundle->said, sizeof bundle->said, "%s/said", bundle->folder.path);
	snprintf(bundle->news, sizeof bundle->news, "%s/news", bundle->folder.path);
	temp_folder_copy(&bundle->folder, "tools", "gpu-run.sh");
	write_program(bundle, "verdict-engine", engine);
	write_program(bundle, "verdict", verdict);
	temp_folder_write_text(&bundle->folder, "e.json", "{}");
	assert_int_equal(mkfifo(bundle->news, 0600), 0);
	assert_int_equal(setenv("ONLY", "e.json", 1), 0);
	assert_int_equal(setenv("TMPDIR", bundle->folder.path, 1), 0);
}

/* In a process group of its own, as a terminal starts what Ctrl-C ends. */
static pid_t start(const struct bundle *bundle, const char *what)
{
	const char *const words[] = {"bash", bundle->run, what, NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t interrupts;
	pid_t pid = 0;
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF);
	sigemptyset(&interrupts);
	sigaddset(&interrupts, SIGINT); /* shells leave it ignored to what they run in the background */
	posix_spawnattr_setsigdefault(&attributes, &interrupts);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, bundle->said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	/* spawn does not write to its arguments; its type is older than const */
	assert_int_equal(posix_spawnp(&pid, "bash", &actions, &attributes, (char *const *)(uintptr_t)words, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	return pid;
}

/* The number that comes through the pipe; fails the test when none does in time. */
static pid_t read_pid(int fd)
{
	char digits[32] = "";
	size_t len = 0;
	long long number = 0;
	while (!strchr(digits, '\n') && len < sizeof digits - 1) {
		struct pollfd wanted = {.fd = fd, .events = POLLIN};
		assert_int_equal(poll(&wanted, 1, DEADLINE_MS), 1);
		ssize_t got = read(fd, digits + len, sizeof digits - 1 - len);
		assert_true(got > 0);
		len += (size_t)got;
	}
	digits[strcspn(digits, "\n")] = '\0';
	assert_true(text_to_i64(digits, &number) && number > 1);
	return (pid_t)number;
}

static void expect_exit(pid_t pid, int code)
{
	int status = 0;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), code);
}

/* What the script wrote as JSON; the caller frees it. */
static struct json *read_report(const struct bundle *bundle, const char *name)
{
	char path[192];
	struct text report = {0};
	struct json *json = NULL;
	snprintf(path, sizeof path, "%s/%s", bundle->folder.path, name);
	assert_int_equal(file_read(path, 1 << 20, &report, NULL), STATUS_OK);
	assert_int_equal(json_parse(text_str(&report), report.len, name, &json, NULL), STATUS_OK);
	text_release(&report);
	return json;
}

static void without_a_gpu_it_says_so_and_measures_nothing(void **state)
{
	struct bundle bundle;
	struct text said = {0};
	open_bundle(&bundle,
		"#!/bin/sh\necho 'verdict-engine: --device cuda: there is none' >&2\necho '{\"error\":\"device_unavailable\"}' "
		">&2\nexit 3\n",
		"#!/bin/sh\necho measured\n");
	expect_exit(start(&bundle, "experiments"), 3);
	assert_int_equal(file_read(bundle.said, 4096, &said, NULL), STATUS_OK);
	assert_non_null(strstr(text_str(&said), "--device cuda: there is none"));
	assert_non_null(strstr(text_str(&said), "experiments: this machine has no GPU"));
	assert_null(strstr(text_str(&said), "measured"));
	text_release(&said);
	temp_folder_remove(&bundle.folder);
}

/* Writes its process id into the pipe and stays. */
#define LASTING "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho $$ >news\nexec sleep 300\n"

/* Ends the script once LASTING runs, and expects that to end too. */
static void end_script_and_program(const struct bundle *bundle, const char *what)
{
	int news = open(bundle->news, O_RDWR | O_CLOEXEC); /* a writer that stays, so that reading waits for news */
	assert_true(news >= 0);
	pid_t script = start(bundle, what), program = read_pid(news);
	struct pollfd end = {.fd = (int)syscall(SYS_pidfd_open, program, 0), .events = POLLIN};
	assert_true(end.fd >= 0);
	assert_int_equal(kill(script, SIGTERM), 0);
	assert_int_equal(waitpid(script, NULL, 0), script);
	bool ended = poll(&end, 1, END_MS) == 1;
	if (!ended)
		kill(program, SIGKILL);
	assert_true(ended);
	close(end.fd);
	close(news);
}

static void an_experiment_ends_with_the_script_that_runs_it(void **state)
{
	struct bundle bundle;
	open_bundle(&bundle, "#!/bin/sh\nexit 0\n", LASTING);
	end_script_and_program(&bundle, "experiments");
	temp_folder_remove(&bundle.folder);
}

static void a_test_run_that_is_stopped_leaves_no_program_and_no_folder(void **state)
{
	struct bundle bundle;
	char pattern[128];
	glob_t found;
	open_bundle(&bundle, "#!/bin/sh\nexit 0\n", "#!/bin/sh\nexit 0\n");
	write_program(&bundle, "test_lasting", LASTING);
	end_script_and_program(&bundle, "test");
	snprintf(pattern, sizeof pattern, "%s/tmp.*", bundle.folder.path);
	assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
	temp_folder_remove(&bundle.folder);
}

/* Instead of a model, python3 makes nothing; the program that is to be measured ends in the middle of its report. Last of the
 * tests, since it changes where this process finds programs. */
static void a_program_that_fails_in_its_report_is_left_out_of_ours(void **state)
{
	struct bundle bundle;
	struct text said = {0};
	char search[4096];
	open_bundle(&bundle, "#!/bin/sh\n[ \"$1\" != serve ]\n", "#!/bin/sh\nexit 0\n");
	write_program(&bundle, "python3", "#!/bin/sh\nexit 0\n");
	write_program(&bundle, "llama-bench", "#!/bin/sh\necho '[ {'\necho 'out of memory' >&2\nexit 1\n");
	snprintf(search, sizeof search, "%s:/usr/local/bin:/usr/bin:/bin", bundle.folder.path);
	assert_int_equal(setenv("PATH", search, 1), 0);
	assert_int_equal(setenv("LLAMA_BENCH", "llama-bench", 1), 0);
	assert_int_equal(setenv("KINDS", "q8_0", 1), 0);
	expect_exit(start(&bundle, "llama"), 1);
	assert_int_equal(file_read(bundle.said, 4096, &said, NULL), STATUS_OK);
	assert_non_null(strstr(text_str(&said), "llama-8b-q8_0: llama.cpp failed: out of memory"));
	struct json *json = read_report(&bundle, "gpu-llama.json");
	assert_null(json_get(json, "llama-q8_0"));
	json_free(json);
	text_release(&said);
	temp_folder_remove(&bundle.folder);
}

/* A script that runs a program of this build. */
static void write_stand_in(const struct bundle *bundle, const char *name)
{
	char path[4096];
	struct text script = {0};
	program_path(name, path, sizeof path);
	text_printf(&script, "#!/bin/sh\nexec '%s' \"$@\"\n", path);
	write_program(bundle, name, text_str(&script));
	text_release(&script);
}

/* A port that was free a moment ago. */
static void choose_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof address;
	char digits[16];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	close(fd);
	snprintf(digits, sizeof digits, "%d", ntohs(address.sin_port));
	assert_int_equal(setenv("PORT", digits, 1), 0);
}

static void expect_prefill_row(const struct json *row, int64_t tokens, const char *sent, int64_t runs)
{
	const struct json *bench = json_get(row, "bench");
	assert_int_equal(json_int(json_get(row, "prompt_tokens"), 0), tokens);
	assert_string_equal(json_text(json_get(row, "sent")), sent);
	assert_true(json_number(json_get(row, "prefill_tok_per_s"), 0) > 0);
	assert_int_equal(json_count(json_get(bench, "runs")), runs);
	for (int64_t i = 0; i < runs; i++) {
		const struct json *run = json_at(json_get(bench, "runs"), (size_t)i);
		assert_int_equal(json_int(json_get(run, "prompt_tokens"), 0), tokens);
		assert_true(json_number(json_get(run, "cached_frac"), 1) == 0);
	}
}

static void prompts_of_exact_lengths_are_measured_first_and_again(void **state)
{
	struct bundle bundle;
	open_bundle(&bundle, "", "");
	write_stand_in(&bundle, "verdict-engine");
	write_stand_in(&bundle, "verdict");
	choose_port();
	assert_int_equal(setenv("DEVICE", "cpu", 1), 0);
	assert_int_equal(setenv("SHAPE", "tiny", 1), 0);
	assert_int_equal(setenv("LENGTHS", "256 333", 1), 0);
	expect_exit(start(&bundle, "prefill"), 0);
	struct json *json = read_report(&bundle, "gpu-prefill.json");
	const struct json *rows = json_get(json, "rows");
	assert_int_equal(json_count(rows), 4);
	for (size_t i = 0; i < 4; i++)
		expect_prefill_row(json_at(rows, i), i < 2 ? 256 : 333, i % 2 ? "again" : "first", i % 2 ? 5 : 1);
	json_free(json);
	temp_folder_remove(&bundle.folder);
	static const char *const names[] = {"PORT", "DEVICE", "SHAPE", "LENGTHS"};
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
		assert_int_equal(unsetenv(names[i]), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_gpu_it_says_so_and_measures_nothing),
		cmocka_unit_test(an_experiment_ends_with_the_script_that_runs_it),
		cmocka_unit_test(a_test_run_that_is_stopped_leaves_no_program_and_no_folder),
		cmocka_unit_test(prompts_of_exact_lengths_are_measured_first_and_again),
		cmocka_unit_test(a_program_that_fails_in_its_report_is_left_out_of_ours),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
