/* What `verdict bench` says: lines for people, one document for programs. Pure. */
#ifndef HARNESS_BENCH_JSON_H
#define HARNESS_BENCH_JSON_H

#include "base/json.h"
#include "base/text.h"
#include "harness/result.h"

/* "run 2/5  256 tokens  1.934 s  132.4 tok/s  prompt 512" with what failed behind it. number counts from 1. */
void bench_run_line(const struct run_result *run, int number, int runs, int concurrency, struct text *out);

/* "overall  5 runs  …": all runs together, and their spread. */
void bench_overall_line(const struct run_result *runs, size_t n, int concurrency, struct text *out);

/* {"runs": […], "overall": {…}, "requests": […]} as the README documents it. Caller frees. */
struct json *bench_document(const struct run_result *runs, size_t n, int concurrency);

/* Requests that failed, and the first reason; NULL when none did. */
size_t bench_failed(const struct run_result *runs, size_t n, size_t *total, const char **first_error);

#endif
