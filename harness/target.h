/* Engines that can be measured. One const struct target_ops per kind: how a setting becomes arguments, how readiness, identity and
 * effective settings are learnt, and how its log explains a failure. Everything here is pure: text in, text out. */
#ifndef HARNESS_TARGET_H
#define HARNESS_TARGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "harness/counters.h"
#include "harness/experiment.h"
#include "harness/result.h"

#define TARGET_ARGUMENTS_MAX 512 /* guess: engines have fewer than 200 switches */

/* A NULL-terminated vector of strings, as execve wants it. Zero-initialised it is empty; released by string_vector_release. */
struct string_vector {
	char **items;
	size_t count;
};
void string_vector_add(struct string_vector *vector, const char *item);
void string_vector_add_owned(struct string_vector *vector, char *item); /* item from base/mem; taken over */
void string_vector_release(struct string_vector *vector);
char *string_vector_json(const struct string_vector *vector); /* JSON array of the strings; caller frees with mem_free */

/* What differs from launch to launch. */
struct target_launch {
	const struct experiment *experiment;
	const struct arm *arm;
	const char *program; /* of the built-in engine, where the experiment names no command; NULL: "verdict-engine" */
	int port; /* 0: not chosen yet, "${PORT}" stays as it is written */
};

/* The argument vector that an arm is launched with: the experiment's command with ${MODEL} and ${PORT} replaced, what the kind of
 * engine needs for host and port, then one switch per setting in file order. Values: true gives the switch alone, false gives
 * "--no-x" for a switch "--x" (or nothing, where the engine's switches have no such form), null leaves it out, an array gives one
 * argument per element, an object its JSON text. A setting whose switch is "env:NAME" becomes an environment variable instead.
 * STATUS_INPUT: a knob without a switch, ${MODEL} without a model, more than TARGET_ARGUMENTS_MAX arguments. The caller releases
 * *out, also after an error. */
enum status target_command(const struct target_launch *launch, struct string_vector *out, struct err *err);

/* Names of the switches that target_command uses for the arm's settings. The caller releases *out. */
void target_switches(const struct experiment *experiment, const struct arm *arm, struct string_vector *out);

/* Variables that are set for an arm, as "NAME=value": what the kind of engine needs to tell its settings, unless
 * engine.env names it too, then engine.env, then settings with an "env:NAME" switch. */
enum status target_environment(const struct target_launch *launch, struct string_vector *out, struct err *err);

enum target_identity {
	TARGET_IDENTITY_NONCE, /* the health answer echoes VERDICT_NONCE */
	TARGET_IDENTITY_SOCKET, /* the listening socket belongs to a process of this launch */
	TARGET_IDENTITY_NONE /* attached: whoever answers is measured */
};

enum target_flush { TARGET_FLUSH_NONE, TARGET_FLUSH_POST };

/* What an adapter does not name is absent: NULL, or false. Every function slot is filled. */
struct target_ops {
	const char *name; /* "builtin", … as experiment files spell it */
	bool launches; /* false: a running server is used */
	const char *ready_path; /* defaults where the experiment is silent */
	const char *readback_path; /* NULL: no effective settings over HTTP */
	const char *readback_path_older; /* asked where readback_path is not known */
	const char *settings_metric; /* gauge in /metrics whose labels are settings in effect; /v1/models then adds max_model_len.
					They fill in what the read-back document does not tell. */
	const char *settings_variable; /* "NAME=value" in its environment, without which it has no read-back path */
	bool readback_optional; /* a server that does not tell its settings is measured all the same */
	const char *accept_length_key; /* in the read-back document: mean tokens of a verify step since the cache was emptied */
	const char *flush_path; /* empties the prefix cache */
	const char *version_path, *version_key; /* where the server tells its version; key like "info.version" */
	const char *help_word; /* makes the command list its switches; NULL: its switches are not checked */
	const struct counter_names *counters; /* in /metrics */
	const struct name_value *switches; /* knob and switch */
	size_t n_switches;
	const struct name_value *older_switches; /* knob, and what its switch was called before; only to be proposed */
	size_t n_older_switches;
	const struct name_value *aliases; /* value that is asked for, and what the engine makes of it and reports */
	size_t n_aliases;
	const char *patterns; /* what its log says before it dies: a text of harness/patterns */
	enum target_identity identity;
	bool continuous_usage; /* understands stream_options.continuous_usage_stats */
	bool whole_answers_only; /* only a whole answer tells its token counts, so none is streamed */
	bool booleans_as_words; /* "--x true", not "--x" and "--no-x" */
	bool false_is_silent; /* no switch "--x" has a "--no-x" */
	bool per_request_cache; /* understands cache_prompt: false, which keeps a request from reusing a prefix */
	bool tells_version; /* its program is the engine itself, and "--version" ends at once: no interpreter, no unknown command */

	/* Adds host and port arguments when the command does not mention ${PORT}. */
	void (*add_address)(struct string_vector *out, const char *port);
	/* The switch of a knob; false when this kind of engine has none of its own. name holds the answer. */
	bool (*switch_of)(const struct target_ops *ops, const char *knob, char name[64]);
	/* The settings that a read-back document tells; NULL when it tells none. Caller frees. */
	struct json *(*settings)(const struct json *told);
	/* The value that a knob has in those settings; NULL when they do not tell. Borrowed. */
	const struct json *(*effective)(const struct target_ops *ops, const struct json *config, const char *knob);
	/* What the end of a log says about a death while loading (running false) or later: sets *failure and fills reason, which
	 * begins with the class. False: the log does not explain it. */
	bool (*explain)(const struct target_ops *ops, const char *log, bool running, enum failure *failure, char reason[512]);
};

extern const struct target_ops target_builtin, target_llamacpp, target_llamacpp_python, target_vllm, target_sglang,
	target_command_line, target_attach;

/* NULL when there is no such adapter. */
const struct target_ops *target_by_name(const char *name);

/* The kind of an engine by its adapter and command: llama.cpp has two servers with switches of their own. NULL as above. */
const struct target_ops *target_of_engine(const struct engine_spec *engine);

/* Compares every setting of an arm of this engine with the settings in effect. True when nothing contradicts it: "auto" agrees with
 * everything, numbers compare as numbers, of an object that was asked for each member is compared that the engine tells in the same
 * form. A knob that is not told is not held against the engine, unless the adapter promises to tell it; one with a switch of the
 * experiment's own is looked for under the switch's name. Otherwise false and reason = "inactive: …". */
bool target_settings_active(const struct target_ops *ops, const struct engine_spec *engine, const struct arm *arm,
	const struct json *config, char reason[512]);

/* Text of a setting's value as an argument: strings as they are, everything else as compact JSON. Caller releases out. */
void target_value_text(const struct json *value, struct text *out);

#endif
