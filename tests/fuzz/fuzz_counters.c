/* Fuzzes the reader of /metrics: whatever the bytes, every counter is unknown or not negative. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_counters_bytes(data, size);
	return 0;
}
