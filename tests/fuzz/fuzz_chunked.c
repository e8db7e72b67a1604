/* Fuzzes the taking apart of chunked bodies: every cut of the same bytes gives the same body. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_chunked_bytes(data, size);
	return 0;
}
