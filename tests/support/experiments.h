/* Experiment files for tests of measuring, with the stub server as engine. */
#ifndef TESTS_SUPPORT_EXPERIMENTS_H
#define TESTS_SUPPORT_EXPERIMENTS_H

#include "base/text.h"

/* What differs between tests; NULL or 0 leaves the default. */
struct stub_experiment {
	const char *adapter; /* "builtin" */
	const char *const *stub; /* further arguments of the stub, NULL-terminated */
	const char *baseline; /* JSON object of parameters; {"speculation": "off"} */
	const char *matrix; /* JSON object; factors speculation off and ngram, no twin */
	const char *workloads; /* JSON array; one of 4 requests of 12 tokens at concurrency 2 */
	const char *protocol, *guards; /* JSON objects; one block-sized protocol with short limits */
	const char *verdict; /* JSON object; the default rules */
	double ready_timeout_s; /* 20 */
	const char *engine_extra; /* further members of "engine", beginning with ", " */
};

/* Appends the JSON text of an experiment named "stub". */
void stub_experiment_text(const struct stub_experiment *options, struct text *out);

#endif
