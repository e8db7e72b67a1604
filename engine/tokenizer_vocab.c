/* Loads a vocabulary. Its entries are written in the alphabet of GPT-2, where each byte is a printable character, or in
 * SentencePiece's way; they are turned into the bytes they stand for once, here. */
#include "engine/tokenizer_vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"
#include "engine/tokenizer_normal.h"

/* The alphabet: bytes that are printable in Latin-1 stand for themselves, the others follow from U+0100 on in order. */
#define ALPHABET_END 0x144

static bool byte_is_printable(int byte)
{
	return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static void alphabet_init(int16_t byte_of[ALPHABET_END])
{
	int next = 0x100;

	for (int i = 0; i < ALPHABET_END; i++)
		byte_of[i] = -1;
	for (int byte = 0; byte < 256; byte++)
		byte_of[byte_is_printable(byte) ? byte : next++] = (int16_t)byte;
}

/* Turns entries of one form into what they stand for. */
struct reader {
	enum tokenizer_form form;
	int16_t byte_of[ALPHABET_END];
};

static struct reader reader_of(enum tokenizer_form form)
{
	struct reader reader = {.form = form};

	alphabet_init(reader.byte_of);
	return reader;
}

static size_t copy_entry(struct gguf_string entry, char *out)
{
	if (entry.len > 0)
		memcpy(out, entry.data, entry.len);
	return entry.len;
}

/* An entry with any character outside the alphabet stands for itself, as in Hugging Face's decoder. */
static size_t decode_alphabet(const struct reader *reader, struct gguf_string entry, char *out)
{
	size_t written = 0;

	for (size_t pos = 0; pos < entry.len;) {
		uint32_t code_point = 0;
		int bytes = utf8_decode(entry.data + pos, entry.len - pos, &code_point);

		if (bytes <= 0 || code_point >= ALPHABET_END || reader->byte_of[code_point] < 0)
			return copy_entry(entry, out);
		out[written++] = (char)reader->byte_of[code_point];
		pos += (size_t)bytes;
	}
	return written;
}

static size_t decode_spaces(struct gguf_string entry, char *out)
{
	size_t written = 0;

	for (size_t pos = 0; pos < entry.len;) {
		bool is_space = tokenizer_is_space_mark(entry.data + pos, entry.len - pos);

		out[written++] = is_space ? ' ' : entry.data[pos];
		pos += is_space ? SPACE_MARK_BYTES : 1;
	}
	return written;
}

/* Writes the bytes that an entry of kind normal stands for at out, which has room for entry.len bytes. Returns the length. */
static size_t decode_entry(const struct reader *reader, struct gguf_string entry, char *out)
{
	return reader->form == FORM_BYTES ? decode_alphabet(reader, entry, out) : decode_spaces(entry, out);
}

static size_t table_capacity(size_t items)
{
	size_t capacity = 16;

	while (capacity < 2 * items)
		capacity *= 2;
	return capacity;
}

/* Tokens. ----------------------------------------------------------------------------------------------------------- */

static bool is_in_alphabet(uint8_t kind)
{
	return kind == TOKEN_NORMAL || kind == TOKEN_BYTE || kind == TOKEN_UNUSED;
}

static bool may_be_text(uint8_t kind)
{
	return kind == TOKEN_NORMAL || kind == TOKEN_BYTE || kind == TOKEN_USER;
}

/* Sets what token stands for, and whether plain text may become it; writes its bytes at out. */
static void read_token(const struct reader *reader, struct gguf_string entry, struct token *token, char *out)
{
	int byte = reader->form == FORM_SENTENCEPIECE && token->kind == TOKEN_BYTE ? tokenizer_byte_of_entry(entry) : -1;

	token->bytes = out;
	token->is_word = may_be_text(token->kind);
	if (byte >= 0) {
		out[0] = (char)byte;
		token->len = 1;
		token->is_word = false; /* it stands for a byte of a character that has no token */
	} else if (is_in_alphabet(token->kind)) {
		token->len = (uint32_t)decode_entry(reader, entry, out);
		/* Text has no space left when it comes to merging by SentencePiece. */
		if (reader->form == FORM_SENTENCEPIECE && entry.len > 0 && memchr(entry.data, ' ', entry.len))
			token->is_word = false;
	} else {
		token->len = (uint32_t)copy_entry(entry, out);
	}
}

static enum status read_tokens(const struct tokenizer_spec *spec, struct vocab *vocab, struct err *err)
{
	const struct reader reader = reader_of(spec->form);
	size_t total = 0;
	char *out;

	vocab->size = spec->n_tokens;
	vocab->tokens = mem_calloc((size_t)vocab->size, sizeof(*vocab->tokens));
	for (int32_t id = 0; id < vocab->size; id++) {
		if (spec->tokens[id].len > UINT32_MAX)
			return err_set(err, STATUS_INPUT, "token %" PRId32 " has %zu bytes", id, spec->tokens[id].len);
		total += spec->tokens[id].len;
	}
	vocab->bytes = mem_calloc(total + 1, 1);
	out = vocab->bytes;
	for (int32_t id = 0; id < vocab->size; id++) {
		struct token *token = &vocab->tokens[id];

		token->kind = spec->kinds[id];
		token->flags = spec->flags ? spec->flags[id] : 0;
		read_token(&reader, spec->tokens[id], token, out);
		if (token->is_word && token->len > vocab->longest_word)
			vocab->longest_word = token->len;
		out += token->len;
	}
	return STATUS_OK;
}

struct scored {
	float score;
	int32_t id;
};

static int compare_scores(const void *a, const void *b)
{
	const struct scored *left = a, *right = b;

	return (left->score < right->score) - (left->score > right->score);
}

/* The order of scores, which is all of them that counts. */
static void rank_by_scores(const float *scores, struct vocab *vocab)
{
	struct scored *order = mem_calloc((size_t)vocab->size, sizeof(*order));
	uint32_t rank = 0;

	for (int32_t id = 0; id < vocab->size; id++)
		order[id] = (struct scored){scores[id], id};
	qsort(order, (size_t)vocab->size, sizeof(*order), compare_scores);
	for (int32_t i = 0; i < vocab->size; i++) {
		rank += i > 0 && order[i].score < order[i - 1].score;
		vocab->tokens[order[i].id].rank = rank;
	}
	mem_free(order);
}

/* Words. ------------------------------------------------------------------------------------------------------------ */

static int32_t *word_slot(const struct vocab *vocab, const char *bytes, size_t len)
{
	size_t mask = vocab->words_capacity - 1;
	size_t slot = (size_t)hash64(bytes, len, vocab->seed) & mask;

	while (vocab->words[slot] >= 0) {
		const struct token *token = &vocab->tokens[vocab->words[slot]];

		if (token->len == len && memcmp(token->bytes, bytes, len) == 0)
			break;
		slot = (slot + 1) & mask;
	}
	return &vocab->words[slot];
}

int32_t vocab_find_word(const struct vocab *vocab, const char *bytes, size_t len)
{
	return *word_slot(vocab, bytes, len);
}

/* Of two tokens with the same bytes the first is used, and ordinary ones before those that users added. */
static void index_words(struct vocab *vocab)
{
	static const bool user_pass[] = {false, true};

	vocab->words_capacity = table_capacity((size_t)vocab->size);
	vocab->words = mem_calloc(vocab->words_capacity, sizeof(*vocab->words));
	for (size_t i = 0; i < vocab->words_capacity; i++)
		vocab->words[i] = -1;
	for (size_t pass = 0; pass < 2; pass++) {
		for (int32_t id = 0; id < vocab->size; id++) {
			const struct token *token = &vocab->tokens[id];
			int32_t *slot;

			if (!token->is_word || (token->kind == TOKEN_USER) != user_pass[pass])
				continue;
			slot = word_slot(vocab, token->bytes, token->len);
			if (*slot < 0)
				*slot = id;
		}
	}
}

static void index_bytes(struct vocab *vocab)
{
	for (int byte = 0; byte < 256; byte++) {
		char c = (char)byte;

		vocab->byte_ids[byte] = vocab->form == FORM_BYTES ? vocab_find_word(vocab, &c, 1) : -1;
	}
	for (int32_t id = vocab->size - 1; id >= 0 && vocab->form == FORM_SENTENCEPIECE; id--)
		if (vocab->tokens[id].kind == TOKEN_BYTE && vocab->tokens[id].len == 1 && !vocab->tokens[id].is_word)
			vocab->byte_ids[(unsigned char)vocab->tokens[id].bytes[0]] = id;
}

/* Merges. ----------------------------------------------------------------------------------------------------------- */

static struct merge *merge_slot(const struct vocab *vocab, int32_t left, int32_t right)
{
	size_t mask = vocab->merges_capacity - 1;
	uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
	size_t slot = (size_t)hash64_mix(pair ^ vocab->seed) & mask;

	while (vocab->merges[slot].result >= 0 && (vocab->merges[slot].left != left || vocab->merges[slot].right != right))
		slot = (slot + 1) & mask;
	return &vocab->merges[slot];
}

const struct merge *vocab_find_merge(const struct vocab *vocab, int32_t left, int32_t right)
{
	const struct merge *merge = merge_slot(vocab, left, right);

	return merge->result >= 0 ? merge : NULL;
}

/* Finds the tokens that the parts and the whole are; scratch has room for the whole. */
static bool find_merge_tokens(const struct vocab *vocab, const struct reader *reader, const struct tokenizer_spec_merge *entry,
	char *scratch, struct merge *out)
{
	size_t left_len = decode_entry(reader, entry->left, scratch);
	size_t right_len = decode_entry(reader, entry->right, scratch + left_len);

	out->left = vocab_find_word(vocab, scratch, left_len);
	out->right = vocab_find_word(vocab, scratch + left_len, right_len);
	out->result = vocab_find_word(vocab, scratch, left_len + right_len);
	return right_len > 0 && out->left >= 0 && out->right >= 0 && out->result >= 0;
}

static enum status read_merges(const struct tokenizer_spec *spec, struct vocab *vocab, struct err *err)
{
	const struct reader reader = reader_of(spec->form);
	size_t longest = 0;
	char *scratch;
	enum status status = STATUS_OK;

	vocab->merges_capacity = table_capacity(spec->n_merges);
	vocab->merges = mem_calloc(vocab->merges_capacity, sizeof(*vocab->merges));
	for (size_t i = 0; i < vocab->merges_capacity; i++)
		vocab->merges[i].result = -1;
	for (size_t i = 0; i < spec->n_merges; i++) {
		size_t len = spec->merges[i].left.len + spec->merges[i].right.len;

		longest = len > longest ? len : longest;
	}
	scratch = mem_calloc(longest + 1, 1);
	for (size_t i = 0; i < spec->n_merges && !status; i++) {
		struct merge merge = {.rank = (uint32_t)i};

		if (find_merge_tokens(vocab, &reader, &spec->merges[i], scratch, &merge))
			*merge_slot(vocab, merge.left, merge.right) = merge; /* of two equal ones the last counts, as in HF */
		else
			status = err_set(err, STATUS_INPUT, "%s: entry %zu does not name two tokens whose union is a token",
				spec->merges_place, i);
	}
	mem_free(scratch);
	return status;
}

/* Specials. --------------------------------------------------------------------------------------------------------- */

static void index_specials(const struct tokenizer_spec *spec, struct vocab *vocab)
{
	struct text pattern = {0};

	for (int32_t id = 0; id < vocab->size; id++) {
		const struct token *token = &vocab->tokens[id];

		if (!token_kind_is_control(token->kind) && token->kind != TOKEN_USER)
			continue;
		special_set_add(&vocab->specials, id, token->kind, token->flags, token->bytes, token->len);
		if (!(token->flags & TOKEN_NORMALIZED))
			continue;
		text_clear(&pattern);
		tokenizer_normalise(spec->form, &spec->spaces, spec->rule.nfc, token->bytes, token->len, &pattern);
		special_set_add(&vocab->normalised, id, token->kind, token->flags, text_str(&pattern), pattern.len);
	}
	special_set_finish(&vocab->specials);
	special_set_finish(&vocab->normalised);
	text_release(&pattern);
}

/* The whole. -------------------------------------------------------------------------------------------------------- */

/* End-of-generation tokens: those the files name, and control tokens whose text says so in the families we know. Files often
 * name only one of them, and a model that ends with another would never stop. */
static void mark_ends(const struct tokenizer_spec *spec, struct vocab *vocab)
{
	static const char *const texts[] = {
		"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>"};

	for (size_t i = 0; i < spec->n_ends; i++)
		vocab->tokens[spec->ends[i]].is_end = true;
	for (size_t i = 0; i < vocab->specials.count; i++) {
		struct token *token = &vocab->tokens[vocab->specials.items[i].id];

		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			if (token_kind_is_control(token->kind) && token->len == strlen(texts[k]) &&
				memcmp(token->bytes, texts[k], token->len) == 0)
				token->is_end = true;
	}
}

enum status vocab_load(const struct tokenizer_spec *spec, struct vocab *out, struct err *err)
{
	enum status status;

	*out = (struct vocab){.seed = random_entropy(), .form = spec->form, .has_scores = spec->scores != NULL};
	status = read_tokens(spec, out, err);
	if (status)
		return status;
	index_words(out);
	index_bytes(out);
	index_specials(spec, out);
	mark_ends(spec, out);
	if (!spec->scores)
		return read_merges(spec, out, err);
	rank_by_scores(spec->scores, out);
	return STATUS_OK;
}

void vocab_release(struct vocab *vocab)
{
	mem_free(vocab->tokens);
	mem_free(vocab->bytes);
	mem_free(vocab->merges);
	mem_free(vocab->words);
	special_set_release(&vocab->specials);
	special_set_release(&vocab->normalised);
	*vocab = (struct vocab){0};
}
