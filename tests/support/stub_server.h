/* A small OpenAI-like server that misbehaves on command, for tests of the harness. Runs as a process of its own: a test program
 * starts itself again with "stub-server" as its first word (see support_roles.h). */
#ifndef TESTS_SUPPORT_STUB_SERVER_H
#define TESTS_SUPPORT_STUB_SERVER_H

/* Serves until killed; arguments as printed by --help. Returns the exit code. */
int stub_server_run(int argc, char **argv);

#endif
