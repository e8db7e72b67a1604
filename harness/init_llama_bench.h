/* Command lines of llama.cpp's llama-bench as experiments. */
#ifndef HARNESS_INIT_LLAMA_BENCH_H
#define HARNESS_INIT_LLAMA_BENCH_H

#include <stdbool.h>

#include "harness/init.h"

/* Whether the command line is one of llama-bench. */
bool init_is_llama_bench(const struct init_request *request);

/* The same grid over llama-server, which lies beside llama-bench: lists and ranges ("1,2,4", "1-8", "10-50+10", "128-1024*2")
 * become factors of mode grid, -p, -n, -pg and -d workloads of random token ids at one request at a time, -r the measured runs of a
 * launch. A prompt's speed shows in a workload that asks for one token. STATUS_INPUT: a switch that has no counterpart, a value
 * that is none, nothing to compare. Caller frees *out. Pure. */
enum status init_llama_bench(const struct init_request *request, struct json **out, struct text *notes, struct err *err);

#endif
