/* Content hashes of what is measured: the engine's program and the model. They are part of the keys under which results are kept,
 * so a rebuilt engine or another model of the same name starts a new series. */
#ifndef HARNESS_ARTIFACT_H
#define HARNESS_ARTIFACT_H

#include "base/err.h"
#include "base/hash.h"
#include "base/text.h"

/* Path of a program as execvp would find it, PATH given as search_path (NULL: none). False when there is no such program. */
bool artifact_find_program(const char *name, const char *search_path, struct text *out);

/* SHA-256 of a file; of a folder, that of the names and hashes of the model files in it (*.json, *.safetensors, *.jinja; at most
 * 1024), as `sha256sum` lists them but with one space. A name that is neither (a model known to its engine by name), or a folder
 * without such files, is hashed by its name: its content is not known to us. cache_path: a file that remembers hashes of files
 * whose path, size and modification time have not changed; it is read and rewritten, may be missing, and is never trusted beyond
 * that. NULL: no cache. */
enum status artifact_hash(const char *path, const char *cache_path, char out[SHA256_HEX_BYTES], struct err *err);

#endif
