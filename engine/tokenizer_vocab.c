/* Loads the vocabulary of a byte-level BPE tokenizer. Its entries are written in the alphabet of GPT-2, where each byte is a
 * printable character; they are turned into the bytes they stand for once, here. */
#include "engine/tokenizer_vocab.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/utf8.h"

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

/* Writes the bytes an entry stands for at out, which has room for entry.len bytes. An entry with any character outside the
 * alphabet stands for itself, as in Hugging Face's decoder. Returns the length. */
static size_t decode_entry(const int16_t byte_of[ALPHABET_END], struct gguf_string entry, char *out)
{
	size_t written = 0;

	for (size_t pos = 0; pos < entry.len;) {
		uint32_t code_point = 0;
		int bytes = utf8_decode(entry.data + pos, entry.len - pos, &code_point);

		if (bytes <= 0 || code_point >= ALPHABET_END || byte_of[code_point] < 0) {
			memcpy(out, entry.data, entry.len);
			return entry.len;
		}
		out[written++] = (char)byte_of[code_point];
		pos += (size_t)bytes;
	}
	return written;
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

static enum status read_tokens(const struct tokenizer_spec *spec, struct vocab *vocab, struct err *err)
{
	int16_t byte_of[ALPHABET_END];
	size_t total = 0;
	char *out;

	vocab->size = spec->n_tokens;
	vocab->tokens = mem_calloc((size_t)vocab->size, sizeof(*vocab->tokens));
	for (int32_t id = 0; id < vocab->size; id++) {
		if (spec->tokens[id].len > UINT32_MAX)
			return err_set(err, STATUS_INPUT, "token %" PRId32 " has %zu bytes", id, spec->tokens[id].len);
		total += spec->tokens[id].len;
	}
	alphabet_init(byte_of);
	vocab->bytes = mem_calloc(total + 1, 1);
	out = vocab->bytes;
	for (int32_t id = 0; id < vocab->size; id++) {
		struct gguf_string entry = spec->tokens[id];
		struct token *token = &vocab->tokens[id];

		token->kind = spec->kinds[id];
		token->bytes = out;
		token->len = (uint32_t)entry.len;
		if (is_in_alphabet(token->kind))
			token->len = (uint32_t)decode_entry(byte_of, entry, out);
		else if (entry.len > 0)
			memcpy(out, entry.data, entry.len);
		out += token->len;
	}
	return STATUS_OK;
}

/* Words. ------------------------------------------------------------------------------------------------------------ */

static bool may_be_text(const struct token *token)
{
	return token->kind == TOKEN_NORMAL || token->kind == TOKEN_BYTE || token->kind == TOKEN_USER;
}

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

			if (!may_be_text(token) || (token->kind == TOKEN_USER) != user_pass[pass])
				continue;
			slot = word_slot(vocab, token->bytes, token->len);
			if (*slot < 0)
				*slot = id;
		}
	}
	for (int byte = 0; byte < 256; byte++) {
		char c = (char)byte;

		vocab->byte_ids[byte] = vocab_find_word(vocab, &c, 1);
	}
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
static bool find_merge_tokens(const struct vocab *vocab, const int16_t byte_of[ALPHABET_END],
	const struct tokenizer_spec_merge *entry, char *scratch, struct merge *out)
{
	size_t left_len = decode_entry(byte_of, entry->left, scratch);
	size_t right_len = decode_entry(byte_of, entry->right, scratch + left_len);

	out->left = vocab_find_word(vocab, scratch, left_len);
	out->right = vocab_find_word(vocab, scratch + left_len, right_len);
	out->result = vocab_find_word(vocab, scratch, left_len + right_len);
	return right_len > 0 && out->left >= 0 && out->right >= 0 && out->result >= 0;
}

static enum status read_merges(const struct tokenizer_spec *spec, struct vocab *vocab, struct err *err)
{
	int16_t byte_of[ALPHABET_END];
	size_t longest = 0;
	char *scratch;
	enum status status = STATUS_OK;

	alphabet_init(byte_of);
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

		if (find_merge_tokens(vocab, byte_of, &spec->merges[i], scratch, &merge))
			*merge_slot(vocab, merge.left, merge.right) = merge; /* of two equal ones the last counts, as in HF */
		else
			status = err_set(err, STATUS_INPUT, "%s: entry %zu does not name two tokens whose union is a token",
				spec->merges_place, i);
	}
	mem_free(scratch);
	return status;
}

/* Specials. --------------------------------------------------------------------------------------------------------- */

struct special {
	const struct token *token;
	int32_t id;
};

static int compare_specials(const void *a, const void *b)
{
	const struct special *left = a, *right = b;
	size_t len = left->token->len < right->token->len ? left->token->len : right->token->len;
	int order = memcmp(left->token->bytes, right->token->bytes, len);

	if (order)
		return order;
	if (left->token->len != right->token->len)
		return left->token->len < right->token->len ? -1 : 1;
	return left->id - right->id;
}

static bool is_special(const struct token *token)
{
	return (token_kind_is_control(token->kind) || token->kind == TOKEN_USER) && token->len > 0;
}

static void index_specials(struct vocab *vocab)
{
	struct special *found = mem_calloc((size_t)vocab->size, sizeof(*found));
	size_t count = 0;

	for (int32_t id = 0; id < vocab->size; id++)
		if (is_special(&vocab->tokens[id]))
			found[count++] = (struct special){&vocab->tokens[id], id};
	qsort(found, count, sizeof(*found), compare_specials);
	vocab->specials = mem_calloc(count + 1, sizeof(*vocab->specials));
	vocab->n_specials = count;
	for (size_t i = 0; i < count; i++) {
		vocab->specials[i] = found[i].id;
		vocab->special_start[(unsigned char)found[i].token->bytes[0]] = true;
	}
	mem_free(found);
}

/* First of specials[low..high) whose byte at depth is >= byte (or > byte with after). All are longer than depth. */
static size_t special_bound(const struct vocab *vocab, size_t low, size_t high, size_t depth, int byte, bool after)
{
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int here = (unsigned char)vocab->tokens[vocab->specials[middle]].bytes[depth];

		if (here < byte || (after && here == byte))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int32_t vocab_match_special(const struct vocab *vocab, const char *text, size_t len, bool with_control)
{
	size_t low = 0, high = vocab->n_specials;
	int32_t longest = -1;

	if (len == 0 || !vocab->special_start[(unsigned char)text[0]])
		return -1;
	/* The sorted list is narrowed byte by byte to those that agree with the text so far; one that ends here comes first. */
	for (size_t depth = 0; depth < len && low < high; depth++) {
		int byte = (unsigned char)text[depth];

		low = special_bound(vocab, low, high, depth, byte, false);
		high = special_bound(vocab, low, high, depth, byte, true);
		while (low < high && vocab->tokens[vocab->specials[low]].len == depth + 1) {
			int32_t id = vocab->specials[low++];

			if (with_control || vocab->tokens[id].kind == TOKEN_USER)
				longest = id;
		}
	}
	return longest;
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
	for (size_t i = 0; i < vocab->n_specials; i++) {
		struct token *token = &vocab->tokens[vocab->specials[i]];

		for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++)
			if (token_kind_is_control(token->kind) && token->len == strlen(texts[k]) &&
				memcmp(token->bytes, texts[k], token->len) == 0)
				token->is_end = true;
	}
}

enum status vocab_load(const struct tokenizer_spec *spec, struct vocab *out, struct err *err)
{
	enum status status;

	*out = (struct vocab){.seed = random_entropy()};
	status = read_tokens(spec, out, err);
	if (status)
		return status;
	index_words(out);
	index_specials(out);
	mark_ends(spec, out);
	return read_merges(spec, out, err);
}

void vocab_release(struct vocab *vocab)
{
	mem_free(vocab->tokens);
	mem_free(vocab->bytes);
	mem_free(vocab->merges);
	mem_free(vocab->words);
	mem_free(vocab->specials);
	*vocab = (struct vocab){0};
}
