/* The real server program as a child process on a tiny model: started, asked, stopped, its log and exit code seen. */
#ifndef TESTS_SUPPORT_SERVER_PROCESS_H
#define TESTS_SUPPORT_SERVER_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/text.h"

#define SERVER_ARGUMENTS_MAX 24

struct server_process {
	pid_t pid;
	int port;
	char log_path[64];
};

/* Path of a program of this build, such as "verdict-engine": beside the folder of the running test program. */
void server_program(const char *name, char path[512]);

/* Starts `verdict-engine serve --model MODEL --port 0 --threads 1 ARGUMENTS…` (NULL-terminated) with VERDICT_NONCE set to
 * nonce unless NULL. With ready, waits until /health answers 200 and fails the test when that does not come. */
void server_start(struct server_process *server, const char *model, const char *nonce, const char *const *arguments, bool ready);

/* Waits for the end, at most some seconds; the exit code, or 128 + signal; -1 when it does not end. */
int server_wait(struct server_process *server);

/* Sends the signal and waits as server_wait does. Removes the log. */
int server_stop(struct server_process *server, int signal_number);

/* What the server has logged so far, appended to out. */
void server_log(const struct server_process *server, struct text *out);

#endif
