/* Tokenizers: opening, decoding, and what others ask about a vocabulary. Encoding is in tokenizer_encode.c. */
#include "engine/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/tokenizer_state.h"

void token_list_append(struct token_list *list, int32_t id)
{
	if (list->count == list->capacity) {
		list->capacity = list->capacity * 2 + 64;
		list->ids = mem_realloc(list->ids, list->capacity, sizeof(*list->ids));
	}
	list->ids[list->count++] = id;
}

void token_list_release(struct token_list *list)
{
	mem_free(list->ids);
	*list = (struct token_list){0};
}

/* Opening. ---------------------------------------------------------------------------------------------------------- */

static enum status check_bytes(const struct tokenizer_spec *spec, const struct vocab *vocab, struct err *err)
{
	for (int byte = 0; byte < 256 && spec->needs_all_bytes; byte++)
		if (vocab->byte_ids[byte] < 0)
			return err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
				"the vocabulary has no token for byte %d and would make it an unknown one, which is not supported",
				byte);
	return STATUS_OK;
}

enum status tokenizer_make(const struct tokenizer_spec *spec, struct tokenizer **out, struct err *err)
{
	struct tokenizer *tokenizer = mem_calloc(1, sizeof(*tokenizer));
	enum status status = STATUS_OK;

	if (spec->form == FORM_BYTES)
		status = regex_compile(spec->rule.pattern, spec->rule.is_foreign, &tokenizer->splitter, err);
	if (!status)
		status = vocab_load(spec, &tokenizer->vocab, err);
	if (!status)
		status = check_bytes(spec, &tokenizer->vocab, err);
	tokenizer->rule = spec->rule;
	tokenizer->rule.pattern = NULL; /* compiled, and not ours */
	tokenizer->spaces = spec->spaces;
	tokenizer->bos = spec->bos;
	tokenizer->eos = spec->n_ends > 0 ? spec->ends[0] : -1;
	tokenizer->adds_bos = spec->adds_bos;
	*out = NULL;
	if (status)
		tokenizer_close(tokenizer);
	else
		*out = tokenizer;
	return status;
}

enum status tokenizer_open(const struct source *source, const char *pre, struct tokenizer **out, struct err *err)
{
	struct tokenizer_spec spec = {0};
	enum status status = source->ops->read_tokenizer(source, pre, &spec, err);

	*out = NULL;
	if (!status)
		status = tokenizer_make(&spec, out, err);
	tokenizer_spec_release(&spec);
	return status;
}

void tokenizer_close(struct tokenizer *tokenizer)
{
	if (!tokenizer)
		return;
	vocab_release(&tokenizer->vocab);
	regex_free(tokenizer->splitter);
	mem_free(tokenizer);
}

/* Decoding. --------------------------------------------------------------------------------------------------------- */

bool tokenizer_decode_one(const struct tokenizer *tokenizer, int32_t id, bool with_special, struct text *out)
{
	const struct token *token;

	if (id < 0 || id >= tokenizer->vocab.size)
		return false;
	token = &tokenizer->vocab.tokens[id];
	if (!with_special && token_kind_is_control(token->kind))
		return true;
	/* One that is found in normalised text is found with the space before it, which comes back with it. */
	if ((token->flags & TOKEN_NORMALIZED) && tokenizer->spaces.prefix == SPACE_PREFIX_EVERY)
		text_append_char(out, ' ');
	text_append(out, token->bytes, token->len);
	return true;
}

bool tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool with_special, struct text *out)
{
	size_t begin = out->len;

	for (size_t i = 0; i < count; i++)
		if (!tokenizer_decode_one(tokenizer, ids[i], with_special, out))
			return false;
	if (tokenizer->spaces.is_stripped && out->len > begin && out->data[begin] == ' ') {
		memmove(out->data + begin, out->data + begin + 1, out->len - begin - 1);
		text_truncate(out, out->len - 1);
	}
	return true;
}

void text_stream_push(struct text_stream *stream, const struct tokenizer *tokenizer, int32_t id, struct text *out)
{
	struct text *pending = &stream->pending;
	size_t ready;

	(void)tokenizer_decode_one(tokenizer, id, false, pending); /* an id out of range has no text */
	ready = utf8_complete_prefix(text_str(pending), pending->len);
	if (ready == 0)
		return;
	utf8_append_lossy(out, pending->data, ready);
	memmove(pending->data, pending->data + ready, pending->len - ready);
	text_truncate(pending, pending->len - ready);
}

void text_stream_finish(struct text_stream *stream, struct text *out)
{
	utf8_append_lossy(out, text_str(&stream->pending), stream->pending.len);
	text_clear(&stream->pending);
}

void text_stream_release(struct text_stream *stream)
{
	text_release(&stream->pending);
}

bool tokenizer_write(const struct tokenizer *tokenizer, int32_t id, struct text *out)
{
	if (id < 0 || id >= tokenizer->vocab.size)
		return false;
	text_append(out, tokenizer->vocab.tokens[id].bytes, tokenizer->vocab.tokens[id].len);
	return true;
}

/* Facts. ------------------------------------------------------------------------------------------------------------ */

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer)
{
	return tokenizer->vocab.size;
}

int32_t tokenizer_bos(const struct tokenizer *tokenizer)
{
	return tokenizer->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tokenizer)
{
	return tokenizer->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *tokenizer)
{
	return tokenizer->adds_bos;
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && id < tokenizer->vocab.size && tokenizer->vocab.tokens[id].is_end;
}

bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id)
{
	return id >= 0 && id < tokenizer->vocab.size && token_kind_is_control(tokenizer->vocab.tokens[id].kind);
}

int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *piece)
{
	size_t matched;
	int32_t id = tokenizer_match(tokenizer, piece, strlen(piece), &matched);

	return matched == strlen(piece) ? id : -1;
}

int32_t tokenizer_match(const struct tokenizer *tokenizer, const char *text, size_t len, size_t *matched)
{
	const struct special *special = special_match(&tokenizer->vocab.specials, text, len, SPECIAL_CONTROL);

	*matched = special ? special->len : 0;
	return special ? special->id : -1;
}

const char *tokenizer_pre_name(const struct tokenizer *tokenizer)
{
	return tokenizer->rule.name;
}
