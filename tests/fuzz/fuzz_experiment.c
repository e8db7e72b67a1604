/* libFuzzer entry: experiment files, with and without --quick and --set. The corpus also replays in
 * tests/harness/test_experiment_files.c. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "harness/experiment.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const set[] = {"protocol.blocks=4", "matrix.factors.graph_max_bs[0]=7"};
	struct experiment_overrides overrides = {.quick = size % 2, .set = set, .n_set = size % 3};
	/* Which files a prompt path could open is not the parser's business. */
	if (memmem(data, size, "path", 4) || memmem(data, size, "\\u", 2))
		return 0;
	struct experiment *experiment = NULL;
	struct err err = {0};
	if (experiment_parse((const char *)data, size, "fuzz.json", &overrides, &experiment, &err) == STATUS_OK)
		experiment_release(experiment);
	else
		ASSERT(err.status == STATUS_INPUT && err.text[0]);
	return 0;
}
