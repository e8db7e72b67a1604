/* A server that already runs: it is measured as it is. It cannot be given settings, so an experiment on it has no candidates that
 * differ by a knob; nothing is started, stopped or flushed. */
#include "harness/target_common.h"

static void add_address(struct string_vector *out, const char *port)
{
}

static bool switch_of(const char *knob, char name[64])
{
	return false;
}

static bool explain(const char *log, bool running, enum failure *failure, char reason[512])
{
	return false;
}

const struct target_ops target_attach = {
	.name = "attach",
	.launches = false,
	.ready_path = "/health",
	.readback_path = NULL,
	.flush_path = NULL,
	.readback_path_older = NULL,
	.version_path = NULL,
	.version_key = NULL,
	.help_word = NULL,
	.counters = NULL,
	.identity = TARGET_IDENTITY_NONE,
	.continuous_usage = false,
	.counts_in_streams = true,
	.booleans_as_words = false,
	.per_request_cache = false,
	.tells_version = false,
	.add_address = add_address,
	.switch_of = switch_of,
	.effective = target_effective_nowhere,
	.explain = explain,
};
