/* A server that already runs: it is measured as it is. It cannot be given settings, so an experiment on it has no candidates that
 * differ by a knob; nothing is started, stopped or flushed. */
#include "harness/target_common.h"

const struct target_ops target_attach = {
	.name = "attach",
	.ready_path = "/health",
	.identity = TARGET_IDENTITY_NONE,
	.add_address = target_add_no_address,
	.switch_of = target_switch_from_table,
	.settings = target_settings_as_told,
	.effective = target_effective_nowhere,
	.explain = target_explain_from_patterns,
};
