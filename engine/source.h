/* Where a model comes from: a GGUF file, a Hugging Face folder, or numbers made up. The rest of the engine sees one interface:
 * hyper-parameters, tensors by their part in the model, tokenizer, chat template. */
#ifndef ENGINE_SOURCE_H
#define ENGINE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/gguf.h"
#include "engine/model.h"
#include "engine/tokenizer_spec.h"

#define SOURCE_NAME_BYTES 128 /* longest tensor name of a part, and its NUL */

struct source_ops;
struct source_names;

/* {0} is closed. Caller's storage; immutable and usable from any thread while open. */
struct source {
	const struct source_ops *ops;
	void *self; /* what the implementation keeps; owned */
	uint64_t bytes; /* of all files of weights; 0 where there are none */
};

struct source_ops {
	const char *name; /* "gguf", "safetensors", … */

	/* Hyper-parameters: everything of struct model_config but ffn_block and attention_block, each within the bounds below. What
	 * would change the result and is not known is refused by name, never ignored. */
	enum status (*read_config)(const struct source *source, struct model_config *out, struct err *err);

	const struct source_names *names; /* of parts, in this kind of files */

	/* The stored tensor of a part; false when there is none. Its shape and type are as stored, and checked by nobody yet, but
	 * its data lie within the file. */
	bool (*find)(const struct source *source, int layer, enum model_part part, struct model_tensor *out);

	/* Refuses (code "unsupported_model") a source with tensors that are no part of a model of this configuration. */
	enum status (*refuse_unknown)(const struct source *source, const struct model_config *config, struct err *err);

	/* What the files say about the tokenizer; pre as in tokenizer_open. The caller releases *out, also after a failure. */
	enum status (*read_tokenizer)(const struct source *source, const char *pre, struct tokenizer_spec *out, struct err *err);

	/* The chat template, borrowed; data is NULL when the model has none. Fails when what should be one is no text. */
	enum status (*chat_template)(const struct source *source, struct gguf_string *out, struct err *err);

	void (*close)(struct source *source);
};

/* Opens a GGUF file, or a folder with config.json and safetensors. Close with source_close. */
enum status source_open(const char *path, struct source *out, struct err *err);

/* As source_open on the bytes of a GGUF file that the caller keeps alive until source_close; name stands for the path in errors. */
enum status source_open_bytes(const uint8_t *bytes, size_t size, const char *name, struct source *out, struct err *err);

/* Accepts a struct that was zeroed or failed to open. */
void source_close(struct source *source);

/* The open GGUF file of a source; NULL when it is none. */
const struct gguf *source_gguf(const struct source *source);

/* The two kinds. */
enum status source_gguf_open(const char *path, struct source *out, struct err *err);
enum status source_hf_open(const char *folder, struct source *out, struct err *err);

/* The name of a part, for messages and look-ups. layer is looked at for parts of layers only. */
void source_name_of(const struct source *source, int layer, enum model_part part, char out[SOURCE_NAME_BYTES]);

/* --- for implementations ----------------------------------------------------------------------------------------------- */

/* How files name parts: "<layer_prefix><number>.<part>" in layers, else the part alone. */
struct source_names {
	const char *layer_prefix;
	const char *parts[MODEL_PARTS];
};
void source_name_part(const struct source_names *names, int layer, enum model_part part, char out[SOURCE_NAME_BYTES]);

/* Refuses a tensor whose shape is not [rows, cols] (rows 0: a vector of cols), or whose type no kernel computes with. */
enum status source_check_tensor(const char *name, const struct model_tensor *tensor, int64_t rows, int64_t cols, struct err *err);

/* True when name is that of a part of this model. */
bool source_name_is_known(const struct source_names *names, const struct model_config *config, const char *name, size_t len);

/* Guesses, all well above any dense model: larger values are damaged or hostile files. */
#define SOURCE_LAYERS_MAX 1024
#define SOURCE_HIDDEN_MAX 65536
#define SOURCE_FFN_MAX (1 << 20)
#define SOURCE_HEADS_MAX 1024
#define SOURCE_VOCAB_MAX (1 << 21)
#define SOURCE_CONTEXT_MAX (1 << 24)

/* Checks what must hold of heads that are each within the bounds above: even groups, an even head size. */
enum status source_check_heads(const struct model_config *config, struct err *err);

#endif
