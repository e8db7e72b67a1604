/* The folders of tests/golden/families/ and what transformers makes of them. */
#ifndef TESTS_SUPPORT_GOLDEN_FAMILY_H
#define TESTS_SUPPORT_GOLDEN_FAMILY_H

#include <stddef.h>

#include "base/json.h"
#include "tests/support/forward_run.h"

#define GOLDEN_FAMILIES 7
extern const char *const golden_families[GOLDEN_FAMILIES]; /* without "fp8" */

#define GOLDEN_PATH_BYTES 96
const char *golden_family_path(const char *family, char out[GOLDEN_PATH_BYTES]);

/* golden.json of a family; caller frees. Fails the running test when it cannot be read. */
struct json *golden_family_open(const char *family);

/* Largest distances over all cases of a family. */
struct golden_distances {
	double fp32; /* ||ours - theirs|| / ||theirs|| at one position, theirs in fp32 */
	double bf16; /* the same, theirs in bf16 */
	double theirs; /* between their own two */
};

/* Runs settings (path and sequences are filled in here) over the golden cases. Fails the running test when the greedy continuation
 * differs where its margin is above near_tie. path NULL: the folder itself. */
struct golden_distances golden_family_distances(
	const char *family, const char *path, const struct forward_run *settings, double near_tie);

#endif
