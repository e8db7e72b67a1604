/* config.json of a Hugging Face folder: hyper-parameters of the families that this engine computes. Keys are known, known to change
 * nothing, or refused by name. Sources: the configuration and modeling files of transformers for llama, mistral, qwen2, qwen3. */
#ifndef ENGINE_HF_CONFIG_H
#define ENGINE_HF_CONFIG_H

#include "base/err.h"
#include "base/json.h"
#include "engine/model.h"

/* Fills everything of *out but name, ffn_block and attention_block from a parsed config.json. Errors begin with the place,
 * "config.json: key 'rope_scaling.factor'". What this engine does not compute is refused with code "unsupported_model". */
enum status hf_config_read(const struct json *config, struct model_config *out, struct err *err);

#endif
