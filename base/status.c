/* Names and exit codes of statuses. */
#include "base/status.h"

#include <stddef.h>

static const struct {
	const char *name;
	int exit_code;
} statuses[] = {
	[STATUS_OK] = {"ok", 0},
	[STATUS_ANSWER_BAD] = {"answer_bad", 1},
	[STATUS_INPUT] = {"bad_input", 2},
	[STATUS_NOT_FOUND] = {"not_found", 2},
	[STATUS_UNAVAILABLE] = {"unavailable", 3},
	[STATUS_NO_MEMORY] = {"no_memory", 3},
	[STATUS_TIMEOUT] = {"timeout", 3},
	[STATUS_RANK_DIED] = {"rank_died", 4},
	[STATUS_INTERRUPTED] = {"interrupted", 130},
	[STATUS_INTERNAL] = {"internal", 3},
};

static size_t clamp(enum status status)
{
	size_t index = (size_t)status;
	return index < sizeof statuses / sizeof statuses[0] ? index : (size_t)STATUS_INTERNAL;
}

const char *status_name(enum status status)
{
	return statuses[clamp(status)].name;
}

int status_exit_code(enum status status)
{
	return statuses[clamp(status)].exit_code;
}
