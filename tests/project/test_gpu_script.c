/* tools/gpu-run.sh, with scripts in the place of the programs of a bundle: without a GPU it says so and measures nothing, and what
 * it started ends with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "tests/support/temp_folder.h"

#define DEADLINE_MS 60000

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
}

static pid_t start_experiments(const struct bundle *bundle)
{
	const char *const words[] = {"bash", bundle->run, "experiments", NULL};
	posix_spawn_file_actions_t actions;
	pid_t pid = 0;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, bundle->said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
	/* spawn does not write to its arguments; its type is older than const */
	assert_int_equal(posix_spawnp(&pid, "bash", &actions, NULL, (char *const *)(uintptr_t)words, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
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

static void without_a_gpu_it_says_so_and_measures_nothing(void **state)
{
	struct bundle bundle;
	struct text said = {0};
	int status = 0;
	open_bundle(&bundle,
		"#!/bin/sh\necho 'verdict-engine: --device cuda: there is none' >&2\necho '{\"error\":\"device_unavailable\"}' "
		">&2\nexit 3\n",
		"#!/bin/sh\necho measured\n");
	pid_t pid = start_experiments(&bundle);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 3);
	assert_int_equal(file_read(bundle.said, 4096, &said, NULL), STATUS_OK);
	assert_non_null(strstr(text_str(&said), "--device cuda: there is none"));
	assert_non_null(strstr(text_str(&said), "experiments: this machine has no GPU"));
	assert_null(strstr(text_str(&said), "measured"));
	text_release(&said);
	temp_folder_remove(&bundle.folder);
}

static void an_experiment_ends_with_the_script_that_runs_it(void **state)
{
	struct bundle bundle;
	open_bundle(&bundle, "#!/bin/sh\nexit 0\n", "#!/bin/sh\ncd \"${0%/*}\" || exit 1\necho $$ >news\nexec sleep 300\n");
	int news = open(bundle.news, O_RDWR | O_CLOEXEC); /* a writer that stays, so that reading waits for news */
	assert_true(news >= 0);
	pid_t script = start_experiments(&bundle), experiment = read_pid(news);
	assert_int_equal(kill(script, SIGTERM), 0);
	assert_int_equal(waitpid(script, NULL, 0), script);
	bool lives = kill(experiment, 0) == 0;
	if (lives)
		kill(experiment, SIGKILL);
	assert_false(lives);
	close(news);
	temp_folder_remove(&bundle.folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_gpu_it_says_so_and_measures_nothing),
		cmocka_unit_test(an_experiment_ends_with_the_script_that_runs_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
