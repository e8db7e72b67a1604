/* Byte-pair merging with a linked list of symbols and a heap of candidate pairs. A candidate is not removed when a neighbour's
 * merge makes it stale; it is recognised when it comes up, because the symbols at its place have become longer. */
#include "engine/tokenizer_bpe.h"

#include <stdint.h>

#include "base/mem.h"
#include "base/utf8.h"

struct bpe_symbol {
	int32_t id; /* -1: a character that has no token */
	int32_t begin, len; /* its bytes; len 0: merged into its left neighbour */
	int32_t previous, next; /* -1: none */
};

struct bpe_candidate {
	uint32_t rank;
	int32_t place; /* symbol on the left */
	int32_t len; /* bytes of both symbols */
	int32_t result;
};

void bpe_scratch_release(struct bpe_scratch *scratch)
{
	mem_free(scratch->symbols);
	mem_free(scratch->heap);
	*scratch = (struct bpe_scratch){0};
}

/* Heap. ------------------------------------------------------------------------------------------------------------- */

static bool comes_first(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
	return a->rank < b->rank || (a->rank == b->rank && a->place < b->place);
}

static void heap_push(struct bpe_scratch *scratch, struct bpe_candidate candidate)
{
	struct bpe_candidate *heap;
	size_t at = scratch->heap_count++;

	if (scratch->heap_count > scratch->heap_capacity) {
		scratch->heap_capacity = scratch->heap_capacity * 2 + 64;
		scratch->heap = mem_realloc(scratch->heap, scratch->heap_capacity, sizeof(*scratch->heap));
	}
	heap = scratch->heap;
	while (at > 0 && comes_first(&candidate, &heap[(at - 1) / 2])) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = candidate;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *scratch)
{
	struct bpe_candidate *heap = scratch->heap;
	struct bpe_candidate top = heap[0];
	struct bpe_candidate last = heap[--scratch->heap_count];
	size_t at = 0;

	for (;;) {
		size_t child = 2 * at + 1;

		if (child >= scratch->heap_count)
			break;
		if (child + 1 < scratch->heap_count && comes_first(&heap[child + 1], &heap[child]))
			child++;
		if (!comes_first(&heap[child], &last))
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return top;
}

/* Merging. ---------------------------------------------------------------------------------------------------------- */

/* What two neighbours become; false when they do not merge. */
static bool find_pair(const struct vocab *vocab, const char *bytes, const struct bpe_symbol *left, const struct bpe_symbol *right,
	uint32_t *rank, int32_t *result)
{
	size_t len = (size_t)left->len + (size_t)right->len;
	const struct merge *merge;

	if (vocab->has_scores) {
		*result = len <= vocab->longest_word ? vocab_find_word(vocab, bytes + left->begin, len) : -1;
		*rank = *result >= 0 ? vocab->tokens[*result].rank : 0;
		return *result >= 0;
	}
	merge = vocab_find_merge(vocab, left->id, right->id);
	if (!merge)
		return false;
	*rank = merge->rank;
	*result = merge->result;
	return true;
}

/* Queues the pair of place and its right neighbour when they merge. */
static void consider(const struct vocab *vocab, const char *bytes, struct bpe_scratch *scratch, int32_t place)
{
	struct bpe_candidate candidate = {.place = place};
	const struct bpe_symbol *left, *right;

	if (place < 0 || scratch->symbols[place].next < 0)
		return;
	left = &scratch->symbols[place];
	right = &scratch->symbols[left->next];
	candidate.len = left->len + right->len;
	if (find_pair(vocab, bytes, left, right, &candidate.rank, &candidate.result))
		heap_push(scratch, candidate);
}

/* Adds symbol count for bytes[begin..begin + len). */
static int32_t add_symbol(struct bpe_scratch *scratch, int32_t count, int32_t id, size_t begin, size_t len)
{
	scratch->symbols[count] = (struct bpe_symbol){id, (int32_t)begin, (int32_t)len, count - 1, count + 1};
	return count + 1;
}

/* One symbol for each byte that has a token. */
static int32_t add_bytes(
	const struct vocab *vocab, const char *bytes, size_t begin, size_t end, struct bpe_scratch *scratch, int32_t count)
{
	for (size_t i = begin; i < end; i++) {
		int32_t id = vocab->byte_ids[(unsigned char)bytes[i]];

		if (id >= 0)
			count = add_symbol(scratch, count, id, i, 1);
	}
	return count;
}

static int32_t add_characters(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch)
{
	int32_t count = 0;

	for (size_t pos = 0; pos < len;) {
		uint32_t code_point;
		int size = (unsigned char)bytes[pos] < 0x80 ? 1 : utf8_decode(bytes + pos, len - pos, &code_point);
		size_t end = pos + (size_t)(size > 0 ? size : 1);
		int32_t id = vocab_find_word(vocab, bytes + pos, end - pos);

		if (id >= 0 || vocab->has_scores)
			count = add_symbol(scratch, count, id, pos, end - pos);
		else
			count = add_bytes(vocab, bytes, pos, end, scratch, count);
		pos = end;
	}
	return count;
}

/* Returns the number of symbols that bytes begin as. */
static int32_t start_symbols(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch)
{
	int32_t count;

	if (len > scratch->symbols_capacity) {
		scratch->symbols_capacity = len + len / 2 + 64;
		scratch->symbols = mem_realloc(scratch->symbols, scratch->symbols_capacity, sizeof(*scratch->symbols));
	}
	count = vocab->form == FORM_BYTES ? add_bytes(vocab, bytes, 0, len, scratch, 0)
					  : add_characters(vocab, bytes, len, scratch);
	if (count > 0)
		scratch->symbols[count - 1].next = -1;
	return count;
}

static void merge_at(struct bpe_symbol *symbols, int32_t place, int32_t result)
{
	struct bpe_symbol *left = &symbols[place], *right = &symbols[left->next];

	left->id = result;
	left->len += right->len;
	left->next = right->next;
	right->len = 0;
	if (left->next >= 0)
		symbols[left->next].previous = place;
}

static void append_symbol(const struct vocab *vocab, const char *bytes, const struct bpe_symbol *symbol, struct token_list *out)
{
	if (symbol->id >= 0) {
		token_list_append(out, symbol->id);
		return;
	}
	for (int32_t i = 0; i < symbol->len; i++) {
		int32_t id = vocab->byte_ids[(unsigned char)bytes[symbol->begin + i]];

		if (id >= 0)
			token_list_append(out, id);
	}
}

void bpe_encode(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch, struct token_list *out)
{
	int32_t count = start_symbols(vocab, bytes, len, scratch);
	struct bpe_symbol *symbols = scratch->symbols;

	scratch->heap_count = 0;
	for (int32_t place = 0; place + 1 < count; place++)
		consider(vocab, bytes, scratch, place);
	while (scratch->heap_count > 0) {
		struct bpe_candidate best = heap_pop(scratch);
		const struct bpe_symbol *left = &symbols[best.place];

		if (left->len == 0 || left->next < 0 || left->len + symbols[left->next].len != best.len)
			continue;
		merge_at(symbols, best.place, best.result);
		consider(vocab, bytes, scratch, left->previous);
		consider(vocab, bytes, scratch, best.place);
	}
	for (int32_t place = count > 0 ? 0 : -1; place >= 0; place = symbols[place].next)
		append_symbol(vocab, bytes, &symbols[place], out);
}
