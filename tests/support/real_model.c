/* The real model that `make model` fetches, for tests that need its vocabulary or weights. */
#include "tests/support/real_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "base/file.h"

static const char *path_of_model(void)
{
	const char *path = getenv("VERDICT_MODEL");
	return path && path[0] ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

const char *real_model_path(void)
{
	const char *path = path_of_model();
	if (!file_exists(path))
		fail_msg("the model '%s' is missing: run `make model`", path);
	return path;
}

bool real_model_exists(void)
{
	return file_exists(path_of_model());
}
