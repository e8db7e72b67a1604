/* A test program may start itself again as a helper: "PROGRAM stub-server …" is the stub server, "PROGRAM guard" the launch guard,
 * "PROGRAM bench …" and "PROGRAM run …" are those commands of verdict.
 * First thing in main: `int code; if (support_role(argc, argv, &code)) return code;`. */
#ifndef TESTS_SUPPORT_ROLES_H
#define TESTS_SUPPORT_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

bool support_role(int argc, char **argv, int *code);

/* Path of the running program. */
const char *support_program(void);

/* Runs this program with arguments (NULL-terminated, without the program), appends what it printed to out and errors, and returns
 * its exit code, 128 + N after signal N. Fails the test when it takes longer than 60 s. */
struct text;
int support_run(const char *const *arguments, struct text *out, struct text *errors);

/* Starts this program in the same way and does not wait; its output goes to /dev/null. */
pid_t support_spawn(const char *const *arguments);

/* Waits until the process has ended, at most timeout_s seconds; false when it has not. For children and for any other pid. */
bool support_wait_gone(pid_t pid, double timeout_s);

/* A stub server in a child process that ends with this one. */
struct stub_process {
	pid_t pid;
	int port;
	char url[64]; /* http://127.0.0.1:PORT */
};

/* arguments: NULL-terminated, without the program and port. Fails the test when the server is not up within 10 s. */
void stub_start(struct stub_process *stub, const char *const *arguments);
void stub_stop(struct stub_process *stub);

#endif
