/* What the API needs of an engine, as a table of functions: the real one is api_backend_engine; tests bring a scripted one. */
#ifndef ENGINE_API_BACKEND_H
#define ENGINE_API_BACKEND_H

#include "engine/chat.h"
#include "engine/engine.h"

struct api_backend_ops {
	const char *name;
	bool (*is_ready)(const void *self);
	const char *(*model_name)(const void *self);
	int (*max_model_len)(const void *self);
	int32_t (*vocab_size)(const void *self);
	int32_t (*prompt_bos)(const void *self); /* token put before a text prompt, -1: none */
	enum status (*encode)(
		const void *self, const char *text, size_t len, bool parse_special, struct token_list *out, struct err *err);
	/* Raw bytes of one token; control tokens give nothing unless with_special. False: no such token. */
	bool (*token_bytes)(const void *self, int32_t id, bool with_special, struct text *out);
	enum status (*render_chat)(const void *self, const struct chat *chat, struct token_list *out, struct err *err);
	/* As the functions of engine.h. */
	enum status (*submit)(void *self, const int32_t *prompt, size_t count, const struct sampling *sampling,
		const struct engine_listener *listener, uint64_t *id, struct err *err);
	void (*cancel)(void *self, uint64_t id);
	void (*flush_cache)(void *self);
	struct json *(*config)(const void *self);
	void (*metrics)(const void *self, struct text *out);
};

struct api_backend {
	const struct api_backend_ops *ops; /* NULL: none yet, or none any more */
	void *self;
};

extern const struct api_backend_ops api_backend_engine; /* self is a struct engine */

#endif
