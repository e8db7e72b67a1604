/* How the stub server misbehaves as a process. */
#ifndef TESTS_SUPPORT_STUB_FAULTS_H
#define TESTS_SUPPORT_STUB_FAULTS_H

#include <stdbool.h>
#include <stddef.h>

#define STUB_LEAK_BYTES ((size_t)48 << 20)

struct stub_faults {
	long long exit_code; /* -1: goes on */
	long long flood_bytes; /* of log, printed at once */
	bool ignore_term, kill_self_on_term;
	const char *escapee_file; /* a descendant that tries to get away writes its pid there */
	bool headless; /* its first thread ends while another goes on: /proc calls it a zombie */
	const char *environment_file;
	const char *leak_file; /* in /dev/shm: filled with STUB_LEAK_BYTES and left behind */
};

/* False: the process shall end with exit_code. */
bool stub_faults_apply(const struct stub_faults *faults);

#endif
