/* Fuzzes files of prompts and traces: whatever the bytes, prompts that can be sent and recorded, or a complaint. */
#include "tests/support/fuzz_init.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_prompt_file_bytes(data, size);
	return 0;
}
