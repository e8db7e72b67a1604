/* A backend under test and what tests of its operations do with it: memory filled in one call, inputs, how far results are apart.
 */
#ifndef TESTS_SUPPORT_SIDE_H
#define TESTS_SUPPORT_SIDE_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kn.h"

struct side {
	const struct kn_ops *kn;
	struct kn_backend *backend;
};

/* Fails the running test with the error's text when status is one. */
void side_ok(enum status status, const struct err *err);

/* Makes the backend, which lives to the process's end. */
void side_open(struct side *side, const struct kn_options *options);

/* For programs with the usage PROGRAM [few | pattern of test names]: of how many cases one is to be run, 1 or with "few" 5. A
 * pattern becomes the filter of tests. */
int side_every(int argc, char **argv);

/* Memory of the backend with a copy of values; NULL: zeros. The caller releases it, or leaves it to the process's end. */
void *side_put(const struct side *side, const void *values, size_t bytes);

/* Normal deviates, the same for the same stream. Caller frees with mem_free. */
float *side_normals(uint64_t stream, size_t count);

/* ||a - b|| / ||b||; infinite when a has a number that is not finite. */
double side_distance(const float *a, const float *b, size_t count);

#endif
