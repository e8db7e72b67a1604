/* What an engine's program says about its version: `PROGRAM --version`, run without a shell and with a time limit. */
#ifndef HARNESS_ENGINE_VERSION_H
#define HARNESS_ENGINE_VERSION_H

#include <stdbool.h>

#include "base/text.h"

/* First line that `program --version` prints, standard output before standard error, without the program's own name in front:
 * "0.1.0 (1a2b3c4d)". Bytes that are not printable ASCII become "?". False, and *out empty, when the program cannot be run, ends
 * with an error, says nothing, or has not ended after timeout_ms: it is killed then. */
bool engine_version_ask(const char *program, int timeout_ms, struct text *out);

#endif
