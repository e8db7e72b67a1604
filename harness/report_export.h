/* A record of an experiment (store_rows.h) in the shapes that other tools read. Pure. */
#ifndef HARNESS_REPORT_EXPORT_H
#define HARNESS_REPORT_EXPORT_H

#include "base/json.h"
#include "base/text.h"

/* One line for each measured run, with a header line (RFC 4180). Numbers that are not known are empty. */
void export_csv(const struct json *record, struct text *out);

/* One aggregate for each arm and workload in the shape of AIPerf's profile_export_aiperf_aggregate.json: metadata, and for every
 * metric mean, std, min, max, cv, se, ci_low, ci_high, t_critical, unit. A run there is a launch here: the mean of its runs.
 * Caller frees. */
struct json *export_aiperf(const struct json *record);

#endif
