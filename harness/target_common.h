/* Slots that several kinds of engine fill in the same way. For target*.c only. */
#ifndef HARNESS_TARGET_COMMON_H
#define HARNESS_TARGET_COMMON_H

#include "harness/target.h"

/* add_address: --host 127.0.0.1 --port PORT. */
void target_add_host_and_port(struct string_vector *out, const char *port);

/* switch_of: from a table of knob and switch; or "--" and the knob with '-' for '_'. */
bool target_switch_from_table(const struct name_value *table, size_t count, const char *knob, char name[64]);
bool target_switch_from_spelling(const char *knob, char name[64]);

/* effective: from {"settings": {"graph_max_bs": {"value": 8, "requested": "8", "why": "…"}, …}, …}, the built-in engine's /config.
 */
const struct json *target_effective_settings(const struct json *config, const char *knob);

/* effective: for engines that tell nothing. */
const struct json *target_effective_nowhere(const struct json *config, const char *knob);

/* explain: the first pattern found (case ignored) means memory ran out; the reason quotes its line. */
bool target_explain_from_patterns(
	const char *log, const char *const *patterns, size_t count, bool running, enum failure *failure, char reason[512]);

/* explain: the engine refused a switch, which it says in a line that holds phrase. That is a launch error, whenever it comes. */
bool target_explain_refused_switch(const char *log, const char *phrase, enum failure *failure, char reason[512]);

#endif
