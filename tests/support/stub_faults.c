/* Floods, escapes and odd answers to signals. */
#include "tests/support/stub_faults.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

extern char **environ;

static void kill_self(int signal_number)
{
	raise(SIGKILL);
}

static void flood(long long bytes)
{
	char line[1024];
	memset(line, '.', sizeof(line));
	line[sizeof(line) - 1] = '\n';
	for (long long written = 0; written < bytes; written += (long long)sizeof(line))
		if (file_write_all(STDOUT_FILENO, line, sizeof(line), NULL) != STATUS_OK)
			return;
}

static void *wait_for_ever(void *unused)
{
	for (;;)
		pause();
	return unused;
}

/* Double fork, own session, deaf to SIGTERM: what must not survive the launch all the same. Returns when it has got away. */
static void release_escapee(const char *path, bool headless)
{
	int away[2];
	char byte = 0;
	if (pipe2(away, O_CLOEXEC) != 0)
		return;
	pid_t child = fork();
	if (child > 0) {
		waitpid(child, NULL, 0);
		close(away[1]);
		(void)!read(away[0], &byte, 1);
		close(away[0]);
		return;
	}
	setsid();
	if (fork() > 0)
		_exit(0);
	signal(SIGTERM, SIG_IGN);
	char pid[32];
	int len = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	file_write_atomic(path, pid, (size_t)len, NULL);
	(void)!write(away[1], &byte, 1);
	pthread_t thread;
	if (headless && pthread_create(&thread, NULL, wait_for_ever, NULL) == 0)
		pthread_exit(NULL);
	wait_for_ever(NULL);
}

static void write_environment(const char *path)
{
	struct text text = {0};
	for (char **entry = environ; *entry; entry++)
		text_printf(&text, "%s\n", *entry);
	file_write_atomic(path, text_str(&text), text.len, NULL);
	text_release(&text);
}

static void leak(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd >= 0 && posix_fallocate(fd, 0, (off_t)STUB_LEAK_BYTES) == 0)
		close(fd);
}

bool stub_faults_apply(const struct stub_faults *faults)
{
	if (faults->ignore_term)
		signal(SIGTERM, SIG_IGN);
	if (faults->kill_self_on_term)
		signal(SIGTERM, kill_self);
	if (faults->environment_file)
		write_environment(faults->environment_file);
	if (faults->leak_file)
		leak(faults->leak_file);
	if (faults->flood_bytes > 0)
		flood(faults->flood_bytes);
	if (faults->escapee_file)
		release_escapee(faults->escapee_file, faults->headless);
	if (faults->exit_code >= 0)
		fprintf(stderr, "stub-server: ends as ordered\n");
	return faults->exit_code < 0;
}
