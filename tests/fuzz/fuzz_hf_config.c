/* Fuzzes fuzz_hf_config of tests/support/fuzz_bodies.h. */
#include "tests/support/fuzz_bodies.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_hf_config(data, size);
	return 0;
}
