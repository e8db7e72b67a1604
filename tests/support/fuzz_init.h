/* What must hold for any command line, parameter file, or file of prompts; used by the fuzzers and by the tests that replay their
 * corpora. */
#ifndef TESTS_SUPPORT_FUZZ_INIT_H
#define TESTS_SUPPORT_FUZZ_INIT_H

#include <stddef.h>
#include <stdint.h>

/* Words of a command line, one a line: an experiment or a complaint. */
void check_init_bytes(const uint8_t *data, size_t size);

/* A parameter file of `vllm bench sweep`: an experiment or a complaint. */
void check_init_sweep_bytes(const uint8_t *data, size_t size);

/* Prompts survive being recorded; traces are in order. */
void check_prompt_file_bytes(const uint8_t *data, size_t size);

#endif
