/* Slots that several kinds of engine fill in the same way. For target*.c only. */
#ifndef HARNESS_TARGET_COMMON_H
#define HARNESS_TARGET_COMMON_H

#include "harness/target.h"

#define TARGET_VARIABLE "env:" /* begins a switch that is an environment variable */

/* A table of ops and its length: TARGET_TABLE(switches, table). */
#define TARGET_TABLE(name, table) .name = (table), .n_##name = sizeof(table) / sizeof((table)[0])

/* add_address: --host 127.0.0.1 --port PORT; or nothing, for a command that serves on a fixed port or reads PORT from the
 * environment, which every launch sets. */
void target_add_host_and_port(struct string_vector *out, const char *port);
void target_add_no_address(struct string_vector *out, const char *port);

/* switch_of: from ops->switches, which may be empty; or "--" and the knob with '-' for '_'. */
bool target_switch_from_table(const struct target_ops *ops, const char *knob, char name[64]);
bool target_switch_from_spelling(const struct target_ops *ops, const char *knob, char name[64]);

/* settings: the document itself. */
struct json *target_settings_as_told(const struct json *told);

/* effective: from {"settings": {"graph_max_bs": {"value": 8, "requested": "8", "why": "…"}, …}, …}, the built-in engine's /config;
 * or from an object that has the switches' names with '_' for '-'; or for engines that tell nothing. */
const struct json *target_effective_settings(const struct target_ops *ops, const struct json *config, const char *knob);
const struct json *target_effective_by_switch(const struct target_ops *ops, const struct json *config, const char *knob);
/* What is told under the name of a switch, "--x-y" as "x_y", or of a variable, "env:X" as member X of "env"; NULL: nothing. */
const struct json *target_effective_of_switch(const struct json *config, const char *name);
const struct json *target_effective_nowhere(const struct target_ops *ops, const struct json *config, const char *knob);

/* explain: the first line of ops->patterns whose text the log holds (case ignored) gives the class; the reason quotes the log's
 * line. "oom" is oom_load or oom_run, "refused" a launch_error whenever it comes, "fatal" a launch_error or a crash. Without
 * patterns nothing is explained. */
bool target_explain_from_patterns(
	const struct target_ops *ops, const char *log, bool running, enum failure *failure, char reason[512]);

/* Texts of harness/patterns. */
extern const char target_patterns_llamacpp[], target_patterns_vllm[], target_patterns_sglang[], target_patterns_command[];

#endif
