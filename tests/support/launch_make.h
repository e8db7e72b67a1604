/* Made-up launches, as measuring would leave them, for tests of the store and of reports. */
#ifndef TESTS_SUPPORT_LAUNCH_MAKE_H
#define TESTS_SUPPORT_LAUNCH_MAKE_H

#include "harness/experiment.h"
#include "harness/result.h"

/* A launch with one warm-up run and two measured runs of every workload that the arm runs, of two requests with four tokens each.
 * tps: tok/s that output_tps gives. Release with launch_result_release. */
void launch_make(struct launch_result *launch, const struct experiment *experiment, int arm, int block, double tps);

/* A launch that ended before its first run. */
void launch_make_failed(struct launch_result *launch, int arm, int block, enum failure failure, const char *reason);

#endif
