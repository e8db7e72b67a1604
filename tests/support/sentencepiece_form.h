/* The vocabulary of tests/golden/sentencepiece/ in the forms that files have. */
#ifndef TESTS_SUPPORT_SENTENCEPIECE_FORM_H
#define TESTS_SUPPORT_SENTENCEPIECE_FORM_H

#include "base/json.h"
#include "engine/tokenizer.h"

#define SENTENCEPIECE_GOLDEN "tests/golden/sentencepiece/"

/* A file there, parsed; caller frees. Ends the process when it cannot be read, as do the others. */
struct json *sentencepiece_json(const char *name);

/* Closed by tokenizer_close. */
struct tokenizer *sentencepiece_open_form(const char *form);
struct tokenizer *sentencepiece_open_gguf(const char *path);

#endif
