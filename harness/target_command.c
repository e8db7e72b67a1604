/* Any other server that speaks the OpenAI protocol: a command line with ${PORT} in it. Nothing is known about its switches, so the
 * experiment names each; whatever it says about memory in common words is understood, and a read-back document in the built-in
 * engine's form is. */
#include "harness/target_common.h"

static void add_address(struct string_vector *out, const char *port)
{
	/* A command that mentions no port serves on a fixed one, or reads PORT from the environment, which every launch sets. */
}

static bool switch_of(const char *knob, char name[64])
{
	return false;
}

static bool explain(const char *log, bool running, enum failure *failure, char reason[512])
{
	return target_explain_from_patterns(log, target_patterns_command, running, failure, reason);
}

const struct target_ops target_command_line = {
	.name = "command",
	.launches = true,
	.ready_path = "/health",
	.readback_path = NULL,
	.flush_path = NULL,
	.readback_path_older = NULL,
	.version_path = NULL,
	.version_key = NULL,
	.help_word = NULL,
	.counters = NULL,
	.identity = TARGET_IDENTITY_SOCKET,
	.continuous_usage = false,
	.counts_in_streams = true,
	.booleans_as_words = false,
	.per_request_cache = false,
	.tells_version = false,
	.add_address = add_address,
	.switch_of = switch_of,
	.effective = target_effective_settings,
	.explain = explain,
};
