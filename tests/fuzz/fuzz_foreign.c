/* Fuzzes the reader of other benchmarks' results: whatever the bytes, rows or a complaint, never both. */
#include "tests/support/replay_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_foreign_bytes(data, size);
	return 0;
}
