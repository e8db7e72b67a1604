/* Fuzzes fuzz_sentencepiece of tests/support/fuzz_bodies.h. */
#include "tests/support/fuzz_bodies.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_sentencepiece(data, size);
	return 0;
}
