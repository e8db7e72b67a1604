/* What differs between two engines as they say they run, beyond what was meant to differ. */
#ifndef HARNESS_EFFECTIVE_H
#define HARNESS_EFFECTIVE_H

#include "base/json.h"
#include "harness/target.h"

/* Settings in effect that differ between two read-back documents although no knob in changed ([{"knob": …}]) asked for it, as
 * [{"setting", "baseline", "value"}]. What is new with every start (addresses, process numbers, random seeds) does not count, and
 * neither does a setting that only one side tells. NULL documents differ in nothing. Caller frees. Pure. */
struct json *effective_differences(
	const struct target_ops *target, const struct json *baseline, const struct json *other, const struct json *changed);

/* The same of every launch of a record (see store_show) against the baseline of its block: [{"setting", "baseline", "value",
 * "block", "arm", "name"}]. Caller frees. Pure. */
struct json *effective_unasked(const struct json *shown);

#endif
