/* A script of allreduce calls that every rank of a group plays, checking each result against a sum computed here. */
#ifndef TESTS_SUPPORT_COMM_SCRIPT_H
#define TESTS_SUPPORT_COMM_SCRIPT_H

#include "tests/support/comm_group.h"

enum comm_values { COMM_VALUES_ORDINARY, COMM_VALUES_SPECIAL };

/* What a rank does in a run: calls of the listed sizes, over and over. */
struct comm_script {
	size_t sizes[16];
	size_t n_sizes;
	int calls;
	enum comm_values values;
	int64_t timeout_ns; /* of a wait for a peer; 0: 20 s */
	bool skewed; /* random delays before calls */
};

/* Body of a comm_group whose ctx is a struct comm_script. */
int comm_script_play(const struct comm_group_member *member);

/* Writes a complaint and returns code. */
int comm_complain(const struct comm_group_member *member, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Runs the script; NULL when all went well, else what the first complaining rank said. */
const char *comm_script_run(const struct comm_script *script, const struct comm_ops *ops, enum comm_group_kind kind, int world,
	size_t count_max, uint32_t first_epoch);

#endif
