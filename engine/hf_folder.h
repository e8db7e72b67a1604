/* JSON files of a Hugging Face folder. */
#ifndef ENGINE_HF_FOLDER_H
#define ENGINE_HF_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/json.h"

/* Parses folder/name, at most bytes_max bytes. Absent and not required: *out is NULL. Caller frees *out. */
enum status hf_folder_json(
	const char *folder, const char *name, size_t bytes_max, bool required, struct json **out, struct err *err);

#endif
