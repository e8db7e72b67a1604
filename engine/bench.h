/* Speed of each operation of a model's step on the CPU backend, over all layers so that weights come from memory as they do
 * in a step, beside the measured limits of the machine. */
#ifndef ENGINE_BENCH_H
#define ENGINE_BENCH_H

#include "base/err.h"
#include "kernels/cpu/cost.h"
#include "kernels/cpu/limits.h"

/* Parts of a step. Each is one operation per layer, but for embedding and head, which are one per step. */
enum bench_part {
	BENCH_EMBED,
	BENCH_QKV,
	BENCH_ATTENTION,
	BENCH_OUTPUT,
	BENCH_GATE_UP,
	BENCH_DOWN,
	BENCH_HEAD, /* logits of the last row only */
	BENCH_STEP, /* all of the above, in order */
	BENCH_PARTS
};

const char *bench_part_name(enum bench_part part);

struct bench_row {
	enum bench_part part;
	int rows; /* 1: decode; more: prefill of one sequence */
	int calls; /* of the operation in a step */
	double seconds; /* all calls together, best of many samples */
	struct cpu_cost cost; /* of all calls */
	double share; /* least time that the limits allow / seconds */
	const char *bound; /* the limit that sets the least time: "read" or "multiply" */
};

struct bench_options {
	const char *model_path;
	const char *isa; /* as in kn_options */
	int threads;
	int context; /* tokens before the one of the decode step */
	int64_t sample_ns; /* time spent on each row */
};

struct bench_report {
	char device[64];
	struct cpu_limits limits;
	size_t n_rows;
	struct bench_row rows[2 * BENCH_PARTS]; /* prefill, then decode */
};

#define BENCH_SAMPLE_NS 300000000 /* enough samples that some meet an undisturbed machine */

/* Takes about ten seconds for a small model with BENCH_SAMPLE_NS. */
enum status bench_measure(const struct bench_options *options, struct bench_report *out, struct err *err);

#endif
