/* What the benchmarks of whole steps take behind their words: [--rows N] [--json FILE]. */
#ifndef TESTS_SUPPORT_BENCH_OPTIONS_H
#define TESTS_SUPPORT_BENCH_OPTIONS_H

#include <stdbool.h>

struct bench_options {
	long long rows; /* of every step; 0: not given */
	const char *json_path; /* NULL: not given; lives as long as argv */
};

/* Takes them off the end; *argc is then the number of words. False: one is something else, or N is not among 1 to rows_max. */
bool bench_options_take(int *argc, char **argv, long long rows_max, struct bench_options *out);

#endif
