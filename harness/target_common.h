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

/* Texts of harness/patterns. */
extern const char target_patterns_llamacpp[], target_patterns_vllm[], target_patterns_sglang[], target_patterns_command[];

/* explain: the first line of patterns whose text the log holds (case ignored) gives the class; the reason quotes the log's line.
 * "oom" is oom_load or oom_run, "refused" a launch_error whenever it comes, "fatal" a launch_error or a crash. */
bool target_explain_from_patterns(const char *log, const char *patterns, bool running, enum failure *failure, char reason[512]);

#endif
