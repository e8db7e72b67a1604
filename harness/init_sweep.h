/* Parameter files of `vllm bench sweep` as the candidates of an experiment. */
#ifndef HARNESS_INIT_SWEEP_H
#define HARNESS_INIT_SWEEP_H

#include "base/err.h"
#include "base/json.h"

/* Replaces the matrix of a document that init_document made by mode "list" with one arm for each entry of sweep: an array of
 * objects, or an object of named ones. Keys are switches without "--", '_' and '-' alike; "_benchmark_name" names the arm. Values
 * mean what they mean there: true the switch alone, false "--no-…", objects their JSON text. A knob that the command line does not
 * set is null in the baseline, which leaves it out. source is named in complaints, STATUS_INPUT; then document is to be thrown
 * away. Pure. */
enum status init_apply_sweep(struct json *document, const struct json *sweep, const char *source, struct err *err);

#endif
