/* Outcome of every function that can fail. Each value maps to one documented exit code of the programs. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

enum status {
	STATUS_OK = 0,
	STATUS_ANSWER_BAD, /* completed, and the answer is bad: baseline failed, regression confirmed (exit 1) */
	STATUS_INPUT, /* usage, file or request is wrong: the message names the place (exit 2) */
	STATUS_NOT_FOUND, /* a named thing does not exist (exit 2) */
	STATUS_UNAVAILABLE, /* cannot run or measure here: library, port, memory, dirty machine, I/O (exit 3) */
	STATUS_NO_MEMORY, /* a stated memory budget does not suffice (exit 3) */
	STATUS_TIMEOUT, /* a stated deadline passed (exit 3) */
	STATUS_RANK_DIED, /* a peer rank ended or stalled (exit 4) */
	STATUS_INTERRUPTED, /* SIGINT or SIGTERM (exit 130) */
	STATUS_INTERNAL /* our own bug, reported instead of crashing (exit 3) */
};

/* Name of a status for logs and JSON, e.g. "not_found". Never NULL. */
const char *status_name(enum status status);

/* Process exit code of a status, as documented in README.md. */
int status_exit_code(enum status status);

#ifdef __cplusplus
}
#endif
#endif
