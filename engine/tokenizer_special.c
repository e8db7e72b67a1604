/* Special tokens as a list sorted by pattern, which is narrowed byte by byte along the text. */
#include "engine/tokenizer_special.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "engine/normalise.h"

void special_set_add(struct special_set *set, int32_t id, uint8_t kind, uint8_t flags, const char *pattern, size_t len)
{
	if (len == 0)
		return;
	if (set->count == set->capacity) {
		set->capacity = set->capacity * 2 + 16;
		set->items = mem_realloc(set->items, set->capacity, sizeof(*set->items));
	}
	set->items[set->count++] = (struct special){set->patterns.len, len, id, kind, flags};
	text_append(&set->patterns, pattern, len);
	set->starts[(unsigned char)pattern[0]] = true;
}

static int compare_specials(const void *a, const void *b, void *ctx)
{
	const struct special *left = a, *right = b;
	const char *patterns = ctx;
	size_t len = left->len < right->len ? left->len : right->len;
	int order = memcmp(patterns + left->begin, patterns + right->begin, len);

	if (order)
		return order;
	if (left->len != right->len)
		return left->len < right->len ? -1 : 1;
	return left->id - right->id;
}

void special_set_finish(struct special_set *set)
{
	if (set->count > 0)
		qsort_r(set->items, set->count, sizeof(*set->items), compare_specials, set->patterns.data);
}

void special_set_release(struct special_set *set)
{
	text_release(&set->patterns);
	mem_free(set->items);
	*set = (struct special_set){0};
}

/* First of items[low..high) whose byte at depth is >= byte (or > byte with after). All are longer than depth. */
static size_t bound(const struct special_set *set, size_t low, size_t high, size_t depth, int byte, bool after)
{
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int here = (unsigned char)set->patterns.data[set->items[middle].begin + depth];

		if (here < byte || (after && here == byte))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool may_be_found(const struct special *special, int which)
{
	if (token_kind_is_control(special->kind) && !(which & SPECIAL_CONTROL))
		return false;
	return !(which & SPECIAL_RAW) || !(special->flags & TOKEN_NORMALIZED);
}

const struct special *special_match(const struct special_set *set, const char *text, size_t len, int which)
{
	size_t low = 0, high = set->count;
	const struct special *longest = NULL;

	if (len == 0 || !set->starts[(unsigned char)text[0]])
		return NULL;
	/* One that ends at a depth comes before those that go on. */
	for (size_t depth = 0; depth < len && low < high; depth++) {
		int byte = (unsigned char)text[depth];

		low = bound(set, low, high, depth, byte, false);
		high = bound(set, low, high, depth, byte, true);
		for (; low < high && set->items[low].len == depth + 1; low++)
			if (may_be_found(&set->items[low], which))
				longest = &set->items[low];
	}
	return longest;
}

/* --- what lies beside a token --------------------------------------------------------------------------------------- */

/* Where the character begins that ends at text + at > text. */
static size_t step_back(const char *text, size_t at)
{
	size_t begin = at - 1;

	while (begin > 0 && at - begin < 4 && ((unsigned char)text[begin] & 0xc0) == 0x80)
		begin--;
	return begin;
}

static bool ends_with_word(const char *text, size_t len)
{
	size_t begin = len > 0 ? step_back(text, len) : 0;
	uint32_t c;

	return len > 0 && utf8_decode(text + begin, len - begin, &c) == (int)(len - begin) && normalise_is_word(c);
}

static bool begins_with_word(const char *text, size_t len)
{
	uint32_t c;

	return len > 0 && utf8_decode(text, len, &c) > 0 && normalise_is_word(c);
}

/* The start of the white space that text[0..end) ends with, not before from. */
static size_t skip_spaces_back(const char *text, size_t from, size_t end)
{
	while (end > from) {
		size_t begin = step_back(text, end);
		uint32_t c;

		if (begin < from || utf8_decode(text + begin, end - begin, &c) != (int)(end - begin) || !normalise_is_space(c))
			break;
		end = begin;
	}
	return end;
}

static size_t skip_spaces(const char *text, size_t len, size_t begin)
{
	while (begin < len) {
		uint32_t c;
		int bytes = utf8_decode(text + begin, len - begin, &c);

		if (bytes <= 0 || !normalise_is_space(c))
			break;
		begin += (size_t)bytes;
	}
	return begin;
}

bool special_next(const struct special_set *set, const char *text, size_t len, int which, struct special_scan *scan, size_t *begin,
	size_t *end, int32_t *id)
{
	while (scan->search < len) {
		size_t at = scan->search, after;
		const struct special *found = special_match(set, text + at, len - at, which);

		if (!found) {
			scan->search++;
			continue;
		}
		after = scan->search = at + found->len;
		if ((found->flags & TOKEN_SINGLE_WORD) && (ends_with_word(text, at) || begins_with_word(text + after, len - after)))
			continue;
		*begin = found->flags & TOKEN_LSTRIP ? skip_spaces_back(text, scan->taken, at) : at;
		*end = scan->taken = found->flags & TOKEN_RSTRIP ? skip_spaces(text, len, after) : after;
		*id = found->id;
		return true;
	}
	return false;
}
