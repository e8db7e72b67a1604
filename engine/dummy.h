/* A model whose weights are made up: a map of what would be a GGUF file of a given shape, for measuring speed without a download.
 * The weights are seeded random numbers; each type has one pool of them, which the map shows again and again, so that a model
 * of any size takes 64 MiB of memory and no time. The same name gives the same bytes in every process. The tokenizer has the 256
 * bytes, each a token, then " t256" and so on; nothing ends a text.
 *
 * One thing no real GGUF file has: matrices of type F8_E4M3, each with "<name>_scale" beside it, an F32 vector with one scale for
 * each row. Readers of files refuse that type. */
#ifndef ENGINE_DUMMY_H
#define ENGINE_DUMMY_H

#include <stdbool.h>

#include "base/err.h"
#include "base/file.h"

#define DUMMY_PREFIX "shape:"

/* True for a model path that begins with DUMMY_PREFIX. */
bool dummy_is_named_by(const char *path);

/* path: DUMMY_PREFIX and what shape_find takes. Close with file_map_close. */
enum status dummy_map_open(const char *path, struct file_map *out, struct err *err);

#endif
