/* A test program may start itself again as a helper: "PROGRAM stub-server …" is the stub server, "PROGRAM guard …" the launch guard.
 * First thing in main: `int code; if (support_role(argc, argv, &code)) return code;`. */
#ifndef TESTS_SUPPORT_ROLES_H
#define TESTS_SUPPORT_ROLES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

bool support_role(int argc, char **argv, int *code);

/* Path of the running program. */
const char *support_program(void);

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
