/* Runs one function on every rank of a temporary group, as threads or as processes, and collects what each returned. */
#ifndef TESTS_SUPPORT_COMM_GROUP_H
#define TESTS_SUPPORT_COMM_GROUP_H

#include <stdbool.h>

#include "kernels/comm/comm.h"

#define COMM_GROUP_TEXT_BYTES ERR_TEXT_BYTES_MAX

enum comm_group_kind { COMM_GROUP_THREADS, COMM_GROUP_PROCESSES };

/* One rank at work. */
struct comm_group_member {
	struct comm_options options; /* complete: create with it */
	const struct comm_ops *ops;
	const void *ctx;
	char *text; /* COMM_GROUP_TEXT_BYTES: what went wrong */
};

struct comm_group {
	const struct comm_ops *ops; /* its needs set up region and sockets; NULL gives sockets and region_bytes */
	enum comm_group_kind kind;
	int world;
	size_t count_max, region_bytes;
	uint32_t first_epoch, spins;
	int64_t timeout_ns; /* of a wait for a peer; 0: 20 s */
	int (*body)(const struct comm_group_member *member); /* 0 is success */
	const void *ctx;
	int code[COMM_RANKS_MAX]; /* out: what body returned; -1 when it did not return */
	char text[COMM_RANKS_MAX][COMM_GROUP_TEXT_BYTES];
};

/* Runs body on every rank; all have returned, or were killed 60 s after the start, when it returns. True when all gave 0. */
bool comm_group_run(struct comm_group *group);

/* First complaint of a group that failed, with its rank. */
const char *comm_group_complaint(const struct comm_group *group);

#endif
