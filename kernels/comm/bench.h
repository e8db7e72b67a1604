/* Times the CPU collectives against the oracle and the machine's own floor. Ranks are threads of this process: the backends do
 * not know the difference. */
#ifndef KERNELS_COMM_BENCH_H
#define KERNELS_COMM_BENCH_H

#include "kernels/comm/comm.h"

struct comm_bench_row {
	const struct comm_ops *ops;
	size_t count; /* floats */
	double us; /* per call: median over rounds of the slowest rank's mean */
	double us_worst; /* slowest round */
};

/* What the hardware cannot do without. */
struct comm_bench_floor {
	double round_trip_us; /* one cache line from a core to another and back */
	double copy_us; /* copying copy_count floats that another core has just written */
	size_t copy_count;
};

/* Fills rows[backend * n_counts + i], backends in the order of comm_cpu_backends, for counts[0..n_counts). rounds >= 1, each a few
 * milliseconds per row; backends take turns within a round. */
enum status comm_bench(int world, const size_t *counts, size_t n_counts, int rounds, struct comm_bench_row *rows, struct err *err);

/* Measured between two threads, medians. */
enum status comm_bench_measure_floor(size_t copy_count, struct comm_bench_floor *out, struct err *err);

#endif
