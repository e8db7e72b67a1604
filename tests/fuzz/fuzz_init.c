/* Fuzzes command lines: whatever the words, an experiment or a complaint. */
#include "tests/support/fuzz_init.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_init_bytes(data, size);
	return 0;
}
