/* Fuzzes parameter files of sweeps: whatever the JSON, an experiment or a complaint. */
#include "tests/support/fuzz_init.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_init_sweep_bytes(data, size);
	return 0;
}
