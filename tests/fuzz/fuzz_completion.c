/* Fuzzes the reader of answers: whatever a server sends, the result is consistent in itself. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_completion_bytes(data, size);
	return 0;
}
