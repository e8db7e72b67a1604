/* Whether a server kept up with an open loop. When it does not, requests pile up and every latency says how long the run was, not
 * how fast the server is. Pure. */
#ifndef HARNESS_SATURATION_H
#define HARNESS_SATURATION_H

#include <stdbool.h>

#include "harness/result.h"

#define SATURATION_REQUESTS_MIN 20 /* guess: fewer say nothing about a slope */
#define SATURATION_TTFT_MS_MIN 1000.0 /* guess: below it nobody waits; GuideLLM takes 2.5 s */

/* True when both the requests in flight and the time to the first token rose over the run, each with a slope that is positive at
 * the 5 % level, and the last quarter of the requests waited at least twice as long as the first and longer than
 * SATURATION_TTFT_MS_MIN, at the median. False in closed loops, where the client waits for the server. After GuideLLM's
 * over-saturation detector. */
bool saturation_of(const struct run_result *run);

#endif
