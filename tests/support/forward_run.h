/* Runs token sequences through forward passes of one or several ranks (threads here) and keeps the logits of every row. */
#ifndef TESTS_SUPPORT_FORWARD_RUN_H
#define TESTS_SUPPORT_FORWARD_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/forward.h"

struct forward_run {
	const char *path; /* model file */
	const struct kn_ops *kn; /* NULL: kn_cpu_ops */
	int world, threads;
	int chunk; /* prompt tokens in one step */
	int graph_max_bs;
	bool deterministic;
	enum kn_kv_type kv_type;
	const char *isa; /* NULL: auto */
	const char *allreduce; /* NULL: shm-flag */
	int n_sequences; /* computed together: each step has a chunk of every sequence */
	const int32_t *tokens[4];
	int n_tokens[4];
	bool last_only; /* logits of the last row of each sequence's chunk alone */
};

/* world 1, 1 thread, chunk 16, no plans, F32 keys and values, no sequence. */
struct forward_run forward_run_default(const char *path);

/* Fails the running test when anything fails. logits[s] is [n_tokens[s]][vocab], filled for the rows that were asked. */
void forward_run(const struct forward_run *run, float *const *logits);

/* Configuration of the file. */
struct model_config forward_run_config(const char *path);

#endif
