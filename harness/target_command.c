/* Any other server that speaks the OpenAI protocol: a command line with ${PORT} in it. Nothing is known about its switches, so the
 * experiment names each; whatever it says about memory in common words is understood, and a read-back document in the built-in
 * engine's form is. */
#include "harness/target_common.h"

const struct target_ops target_command_line = {
	.name = "command",
	.launches = true,
	.ready_path = "/health",
	.patterns = target_patterns_command,
	.identity = TARGET_IDENTITY_SOCKET,
	.add_address = target_add_no_address,
	.switch_of = target_switch_from_table,
	.settings = target_settings_as_told,
	.effective = target_effective_settings,
	.explain = target_explain_from_patterns,
};
