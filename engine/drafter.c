/* The list of drafters. */
#include "engine/drafter.h"

#include <string.h>

enum status drafter_find(const char *name, const struct drafter_ops **out, struct err *err)
{
	*out = NULL;
	if (strcmp(name, "off") == 0)
		return STATUS_OK;
	if (strcmp(name, drafter_ngram_ops.name) == 0) {
		*out = &drafter_ngram_ops;
		return STATUS_OK;
	}
	return err_set_code(err, STATUS_INPUT, "bad_option", "--speculation '%s' does not exist here; there are: off, ngram", name);
}
