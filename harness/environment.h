/* The environment that an engine is started with: what we inherited, less what would leak into it, plus what the experiment sets.
 * Pure. */
#ifndef HARNESS_ENVIRONMENT_H
#define HARNESS_ENVIRONMENT_H

#include "base/json.h"
#include "harness/target.h"

/* inherited: NULL-terminated, as environ. PORT is replaced by this launch's port, VERDICT_NONCE by its nonce, every other VERDICT_
 * variable is dropped, and overrides ("NAME=value") win over all of it. *record tells what happened, for the store: "set"
 * (overrides with values), "inherited" (values of variables that engines are known to read), "inherited_names" (the other names;
 * values may be secrets), and "hash", a SHA-256 over all names and values but the port and the nonce: two launches whose hashes
 * agree had the same environment. Caller frees *record. */
void environment_build(char *const *inherited, const struct string_vector *overrides, int port, const char *nonce,
	struct string_vector *out, struct json **record);

#endif
