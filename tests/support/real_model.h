/* The real model that `make model` fetches, for tests that need its vocabulary or weights. */
#ifndef TESTS_SUPPORT_REAL_MODEL_H
#define TESTS_SUPPORT_REAL_MODEL_H

#include <stdbool.h>

/* Path from VERDICT_MODEL, else models/SmolLM2-135M-Instruct.Q4_1.gguf. Fails the running test, saying how to get the file,
 * when it is not there. */
const char *real_model_path(void);

/* For tests that run where it may not be. */
bool real_model_exists(void);

#endif
