/* Fuzzes the event splitter: every cut of the same bytes gives the same events. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_sse_bytes(data, size);
	return 0;
}
