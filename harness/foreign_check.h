/* What an entry of another benchmark's results must be like to be kept: every documented member by its rule, and figures that
 * follow from each other do so. Members that are not documented are left alone. Pure. */
#ifndef HARNESS_FOREIGN_CHECK_H
#define HARNESS_FOREIGN_CHECK_H

#include "base/err.h"
#include "base/json.h"

enum foreign_format { FOREIGN_LLAMA_BENCH, FOREIGN_VLLM, FOREIGN_SGLANG, FOREIGN_INFERENCEX };

/* STATUS_INPUT: "MEMBER: reason". */
enum status foreign_check(const struct json *entry, enum foreign_format format, struct err *err);

/* llama-bench's SQL puts everything in quotes: makes those members numbers that are documented to be some. Those that are none
 * stay texts, for foreign_check to refuse. */
void foreign_read_numbers(struct json *llama_bench_row);

#endif
