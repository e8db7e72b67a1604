/* Tokenizers by byte-pair encoding, on bytes or as SentencePiece does it: text to token ids and back. Immutable after open; safe
 * from any thread. */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "engine/source.h"

struct tokenizer;

struct token_list { /* {0} is empty; released by token_list_release */
	int32_t *ids;
	size_t count, capacity;
};
void token_list_append(struct token_list *list, int32_t id);
void token_list_release(struct token_list *list);

#define TOKENIZER_TEXT_BYTES_MAX ((size_t)256 << 20) /* longest text of one call; guess, far above any context */

/* pre: NULL to take tokenizer.ggml.pre from the file, else that name is used. Known: smollm, gpt-2 (gpt2), llama-bpe (llama3,
 * llama-v3), qwen2. An unknown name is refused, listing them. A file without the key, or with "default" in it, is read as gpt-2
 * after a warning in the log: such files were written before the key existed, by converters that knew GPT-2's rule only. A
 * SentencePiece vocabulary has one way to split, "sentencepiece", and takes no other name. Nothing of source is used after the
 * call. */
enum status tokenizer_open(const struct source *source, const char *pre, struct tokenizer **out, struct err *err);
/* From what files say, which is not used after the call. */
enum status tokenizer_make(const struct tokenizer_spec *spec, struct tokenizer **out, struct err *err);
void tokenizer_close(struct tokenizer *tokenizer);

/* Appends the ids of text[0..len) to out. parse_special: control tokens written in the text ("<|im_end|>") become control
 * tokens, the longest at each place; off, they are ordinary text. Tokens of the user-defined kind are found in any text.
 * No BOS is added here.
 * Bytes that are not UTF-8 are encoded as they are: by a byte-level vocabulary each such byte is a piece by itself, and the valid
 * stretches between them are split as texts of their own. With pre qwen2 valid stretches are normalised to NFC first, as that
 * tokenizer does. Bytes that the vocabulary has no token for (SmolLM2 has none for 21, such as 0x04) leave no token, as with
 * Hugging Face. A SentencePiece vocabulary gets its space before the text, or before every stretch between special tokens, where
 * its files say so. Fails with STATUS_INPUT on a text longer than TOKENIZER_TEXT_BYTES_MAX. Time grows as len log len. */
enum status tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t len, bool parse_special,
	struct token_list *out, struct err *err);

/* As tokenizer_encode with parse_special of a text with marks in it, which break up what must not become a control token: they
 * are taken out after control tokens were looked for. mark[0..mark_len), mark_len > 0, is valid UTF-8 that no token has. */
enum status tokenizer_encode_marked(const struct tokenizer *tokenizer, const char *text, size_t len, const char *mark,
	size_t mark_len, struct token_list *out, struct err *err);

/* Appends the raw bytes of one token (control tokens: nothing unless with_special). False when id is out of range. */
bool tokenizer_decode_one(const struct tokenizer *tokenizer, int32_t id, bool with_special, struct text *out);

/* Appends the bytes of a whole text, without the space that a SentencePiece vocabulary put before it. What continues a text is
 * decoded token by token instead: it keeps the space before its first word. False when an id is out of range. */
bool tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool with_special, struct text *out);

int32_t tokenizer_vocab_size(const struct tokenizer *tokenizer);
int32_t tokenizer_bos(const struct tokenizer *tokenizer); /* -1 when there is none */
int32_t tokenizer_eos(const struct tokenizer *tokenizer); /* the first that the files name; -1 when there is none */
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);
bool tokenizer_is_end(const struct tokenizer *tokenizer, int32_t id); /* any end-of-generation id */
bool tokenizer_is_control(const struct tokenizer *tokenizer, int32_t id);
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *piece); /* control or user token such as "<|im_end|>"; -1 */
/* The longest control or user token that text[0..len) begins with, and its length; -1 when none. */
int32_t tokenizer_match(const struct tokenizer *tokenizer, const char *text, size_t len, size_t *matched);
const char *tokenizer_pre_name(const struct tokenizer *tokenizer);

/* Appends a control or user token as it is written in a text that is to be encoded. False when id is out of range. */
bool tokenizer_write(const struct tokenizer *tokenizer, int32_t id, struct text *out);

/* Streaming decode that only gives whole code points. `struct text_stream s = {0};` */
struct text_stream {
	struct text pending;
};
/* Appends to out what became certain with this token; at the end call text_stream_finish for the (lossy) rest. */
void text_stream_push(struct text_stream *stream, const struct tokenizer *tokenizer, int32_t id, struct text *out);
void text_stream_finish(struct text_stream *stream, struct text *out);
void text_stream_release(struct text_stream *stream);

#endif
