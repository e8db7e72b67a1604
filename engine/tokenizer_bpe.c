/* Byte-pair merging with a linked list of symbols and a heap of candidate pairs. A candidate is not removed when a neighbour's
 * merge makes it stale; it is recognised when it comes up, because the symbols at its place are no longer those it names. */
#include "engine/tokenizer_bpe.h"

#include <stdint.h>

#include "base/mem.h"

struct bpe_symbol {
	int32_t id; /* -1: merged into its left neighbour */
	int32_t previous, next; /* -1: none */
};

struct bpe_candidate {
	uint32_t rank;
	int32_t place; /* symbol on the left */
	int32_t left, right, result;
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

/* Queues the pair of place and its right neighbour when they merge. */
static void consider(const struct vocab *vocab, struct bpe_scratch *scratch, int32_t place)
{
	const struct bpe_symbol *left, *right;
	const struct merge *merge;

	if (place < 0 || scratch->symbols[place].next < 0)
		return;
	left = &scratch->symbols[place];
	right = &scratch->symbols[left->next];
	merge = vocab_find_merge(vocab, left->id, right->id);
	if (merge)
		heap_push(scratch, (struct bpe_candidate){merge->rank, place, left->id, right->id, merge->result});
}

/* One symbol for each byte that has a token. Returns their number. */
static int32_t start_symbols(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch)
{
	int32_t count = 0;

	if (len > scratch->symbols_capacity) {
		scratch->symbols_capacity = len + len / 2 + 64;
		scratch->symbols = mem_realloc(scratch->symbols, scratch->symbols_capacity, sizeof(*scratch->symbols));
	}
	for (size_t i = 0; i < len; i++) {
		int32_t id = vocab->byte_ids[(unsigned char)bytes[i]];

		if (id < 0)
			continue;
		scratch->symbols[count] = (struct bpe_symbol){id, count - 1, count + 1};
		count++;
	}
	if (count > 0)
		scratch->symbols[count - 1].next = -1;
	return count;
}

void bpe_encode(const struct vocab *vocab, const char *bytes, size_t len, struct bpe_scratch *scratch, struct token_list *out)
{
	int32_t count = start_symbols(vocab, bytes, len, scratch);
	struct bpe_symbol *symbols = scratch->symbols;

	scratch->heap_count = 0;
	for (int32_t place = 0; place + 1 < count; place++)
		consider(vocab, scratch, place);
	while (scratch->heap_count > 0) {
		struct bpe_candidate best = heap_pop(scratch);
		struct bpe_symbol *left = &symbols[best.place];
		struct bpe_symbol *right;

		if (left->id != best.left || left->next < 0 || symbols[left->next].id != best.right)
			continue;
		right = &symbols[left->next];
		left->id = best.result;
		left->next = right->next;
		right->id = -1;
		if (left->next >= 0)
			symbols[left->next].previous = best.place;
		consider(vocab, scratch, left->previous);
		consider(vocab, scratch, best.place);
	}
	for (int32_t place = count > 0 ? 0 : -1; place >= 0; place = symbols[place].next)
		token_list_append(out, symbols[place].id);
}
