/* Inside the tokenizer: what happens to text before it is cut, and how SentencePiece writes spaces and bytes. */
#ifndef ENGINE_TOKENIZER_NORMAL_H
#define ENGINE_TOKENIZER_NORMAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"
#include "engine/tokenizer_spec.h"

#define SPACE_MARK "\xe2\x96\x81" /* U+2581 */
#define SPACE_MARK_BYTES 3

/* True when text[0..len) begins with the character that stands for a space. */
bool tokenizer_is_space_mark(const char *text, size_t len);

/* The byte that an entry like "<0x0A>" stands for; -1 when it is none. */
int tokenizer_byte_of_entry(struct gguf_string entry);

/* True when tokenizer_normalise changes nothing, whatever the text. */
bool tokenizer_keeps_text(enum tokenizer_form form, bool nfc);

/* Appends text[0..len) normalised: in form C with nfc (bytes that are no UTF-8 stay), of form sentencepiece with the space that is
 * put before every stretch, and with U+2581 as spaces, which is what words look like here. Nothing for the empty text. */
void tokenizer_normalise(
	enum tokenizer_form form, const struct space_rule *spaces, bool nfc, const char *text, size_t len, struct text *out);

/* Bytes of text[0..len) up to the first that is no valid UTF-8. */
size_t tokenizer_valid_prefix(const char *text, size_t len);

#endif
