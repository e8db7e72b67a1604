/* Pre-tokenizer rules. The patterns are those of the models' published tokenizer.json files, with their classes spelled out so
 * that they mean the same with any PCRE2 whose tables are of Unicode 14 to 16 as in Hugging Face tokenizers 0.23 (Oniguruma,
 * Unicode 16): its \s is White_Space, which PCRE2's is not quite (U+180E), and letters and numbers newer than the library's tables
 * are listed by range. Found by asking both for every code point; tests/golden/tokenizer/make.py repeats that comparison. */
#include "engine/tokenizer_pre.h"

#include <string.h>

#include "base/text.h"

#define NAME_PRINT_BYTES 64 /* guess: longer than any name in use */

/* White_Space of Unicode. */
#define SPACE \
	"\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}-\\x{2029}\\x{202f}\\x{205f}" \
	"\\x{3000}"

/* \p{L}, and the letters that Unicode 15 and 16 added to version 14. */
#define LETTER \
	"\\p{L}\\x{1c89}-\\x{1c8a}\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{105c0}-\\x{105f3}\\x{10d4a}-\\x{10d65}" \
	"\\x{10d6f}-\\x{10d85}\\x{10ec2}-\\x{10ec4}\\x{1123f}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138b}\\x{1138e}" \
	"\\x{11390}-\\x{113b5}\\x{113b7}\\x{113d1}\\x{113d3}\\x{11bc0}-\\x{11be0}\\x{11f02}\\x{11f04}-\\x{11f10}" \
	"\\x{11f12}-\\x{11f33}\\x{1342f}\\x{13441}-\\x{13446}\\x{13460}-\\x{143fa}\\x{16100}-\\x{1611d}" \
	"\\x{16d40}-\\x{16d6c}\\x{18cff}\\x{1b132}\\x{1b155}\\x{1df25}-\\x{1df2a}\\x{1e030}-\\x{1e06d}" \
	"\\x{1e4d0}-\\x{1e4eb}\\x{1e5d0}-\\x{1e5ed}\\x{1e5f0}\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"

/* \p{N}, likewise. */
#define NUMBER \
	"\\p{N}\\x{10d40}-\\x{10d49}\\x{116d0}-\\x{116e3}\\x{11bf0}-\\x{11bf9}\\x{11f50}-\\x{11f59}" \
	"\\x{16130}-\\x{16139}\\x{16d70}-\\x{16d79}\\x{1ccf0}-\\x{1ccf9}\\x{1d2c0}-\\x{1d2d3}\\x{1e4f0}-\\x{1e4f9}" \
	"\\x{1e5f1}-\\x{1e5fa}"

/* What the Digits splitter isolates: NUMBER and what Unicode 17 added. */
#define DIGIT NUMBER "\\x{11de0}-\\x{11de9}\\x{16ff4}-\\x{16ff6}"

/* Alternatives that most rules share. */
#define GPT2_CONTRACTION "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT2_WORD " ?[" LETTER "]+"
#define LLAMA3_CONTRACTION "(?i:" GPT2_CONTRACTION ")"
#define LLAMA3_WORD "[^\\r\\n" LETTER NUMBER "]?[" LETTER "]+"
#define LLAMA3_SYMBOLS " ?[^" SPACE LETTER NUMBER "]+[\\r\\n]*"
/* Spaces: all but the last before a word, so that the word keeps one; all at the end of the text. */
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"
#define LLAMA3_SPACES "[" SPACE "]*[\\r\\n]+|" SPACES

static const struct pre_rule rules[] = {
	{
		.name = "gpt-2",
		.pattern = GPT2_CONTRACTION "|" GPT2_WORD "| ?[" NUMBER "]+| ?[^" SPACE LETTER NUMBER "]+|" SPACES,
	},
	{
		/* Digits are split off one by one first, and the GPT-2 pattern sees what lies between them, where the end of
		 * such a stretch is the end of the text for it: hence the look-ahead that lets a digit end a run of spaces. */
		.name = "smollm",
		.pattern = GPT2_CONTRACTION "|" GPT2_WORD "|[" DIGIT "]| ?[^" SPACE LETTER DIGIT "]+|[" SPACE "]+(?![^" SPACE DIGIT
					    "])|[" SPACE "]+",
	},
	{
		.name = "llama-bpe",
		.pattern = LLAMA3_CONTRACTION "|" LLAMA3_WORD "|[" NUMBER "]{1,3}|" LLAMA3_SYMBOLS "|" LLAMA3_SPACES,
		.whole_words = true,
		.adds_bos = true,
	},
	{
		.name = "qwen2",
		.pattern = LLAMA3_CONTRACTION "|" LLAMA3_WORD "|[" NUMBER "]|" LLAMA3_SYMBOLS "|" LLAMA3_SPACES,
		.nfc = true,
	},
};

/* Other names that ggml's converters write for the same rules. */
static const struct {
	const char *alias, *name;
} aliases[] = {
	{"gpt2", "gpt-2"},
	{"llama3", "llama-bpe"},
	{"llama-v3", "llama-bpe"},
};

enum status pre_rule_find(struct gguf_string name, struct pre_rule *out, struct err *err)
{
	char printable[NAME_PRINT_BYTES];
	struct text known = {0};

	for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
		if (gguf_string_equal(name, aliases[i].alias))
			name = (struct gguf_string){aliases[i].name, strlen(aliases[i].name)};
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++) {
		if (gguf_string_equal(name, rules[i].name)) {
			*out = rules[i];
			text_release(&known);
			return STATUS_OK;
		}
		text_printf(&known, "%s%s", i ? ", " : "", rules[i].name);
	}
	err_set_code(err, STATUS_INPUT, "unsupported_tokenizer",
		"pre-tokenizer '%s' is not known; known: %s (--tokenizer-pre NAME overrides the file)",
		gguf_printable(name, printable, sizeof(printable)), text_str(&known));
	text_release(&known);
	return STATUS_INPUT;
}
