/* Fuzzes the check of imported records: whatever the bytes, sound, or refused with a reason and a place that is there. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_record_bytes(data, size);
	return 0;
}
