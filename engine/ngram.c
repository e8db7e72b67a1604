/* Prompt lookup. Per slot, a hash table from the last ngram_min tokens to the latest position that ends such a run, and per
 * position a link to the one before with the same hash. Both grow as the text grows; nothing is ever rescanned. */
#include "engine/drafter.h"

#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

struct slot {
	int32_t *heads; /* [head_mask + 1] 1 + position, 0 for none */
	int32_t *earlier; /* [tokens_max] 1 + the position before with the same hash */
	int32_t n_indexed; /* positions [0, n_indexed) are in the table */
};

struct drafter {
	struct drafter_options options;
	struct slot *slots; /* [slots_max] */
	int32_t *heads, *earlier; /* storage of all slots */
	size_t n_heads; /* of one slot, a power of two */
};

static void destroy(struct drafter *drafter)
{
	if (!drafter)
		return;
	mem_free(drafter->earlier);
	mem_free(drafter->heads);
	mem_free(drafter->slots);
	mem_free(drafter);
}

static enum status create(const struct drafter_options *options, struct drafter **out, struct err *err)
{
	*out = NULL;
	if (options->ngram_min < 1 || options->ngram_max < options->ngram_min)
		return err_set_code(err, STATUS_INPUT, "bad_option",
			"--spec-ngram-min %d and --spec-ngram-max %d: needed is 1 <= min <= max", options->ngram_min,
			options->ngram_max);
	ASSERT(options->slots_max > 0 && options->tokens_max > 0);
	struct drafter *drafter = mem_calloc(1, sizeof *drafter);
	drafter->options = *options;
	drafter->n_heads = 16;
	while (drafter->n_heads < (size_t)options->tokens_max)
		drafter->n_heads *= 2;
	size_t n_slots = (size_t)options->slots_max, tokens_max = (size_t)options->tokens_max;
	drafter->slots = mem_calloc(n_slots, sizeof *drafter->slots);
	drafter->heads = mem_calloc(n_slots * drafter->n_heads, sizeof *drafter->heads);
	drafter->earlier = mem_calloc(n_slots * tokens_max, sizeof *drafter->earlier);
	for (size_t i = 0; i < n_slots; i++) {
		drafter->slots[i].heads = drafter->heads + i * drafter->n_heads;
		drafter->slots[i].earlier = drafter->earlier + i * tokens_max;
	}
	*out = drafter;
	return STATUS_OK;
}

static void begin(struct drafter *drafter, int32_t slot_number)
{
	struct slot *slot = &drafter->slots[slot_number];
	memset(slot->heads, 0, drafter->n_heads * sizeof *slot->heads);
	slot->n_indexed = 0;
}

/* Table entry of the ngram_min tokens that end at position. */
static int32_t *head_of(const struct drafter *drafter, const struct slot *slot, const int32_t *tokens, int32_t position)
{
	int32_t n = drafter->options.ngram_min;
	uint64_t hash = hash64(tokens + position + 1 - n, (size_t)n * sizeof *tokens, 0);
	return &slot->heads[hash & (drafter->n_heads - 1)];
}

static void index_up_to(const struct drafter *drafter, struct slot *slot, const int32_t *tokens, int32_t end)
{
	for (; slot->n_indexed < end; slot->n_indexed++) {
		int32_t position = slot->n_indexed;
		if (position + 1 < drafter->options.ngram_min)
			continue;
		int32_t *head = head_of(drafter, slot, tokens, position);
		slot->earlier[position] = *head;
		*head = position + 1;
	}
}

/* How many tokens before and with position equal those at the end of the text. */
static int32_t match_length(const int32_t *tokens, int32_t count, int32_t position, int32_t length_max)
{
	int32_t length = 0;
	while (length < length_max && length <= position && tokens[position - length] == tokens[count - 1 - length])
		length++;
	return length;
}

/* Position that ends the best earlier occurrence of the text's end, or -1. */
static int32_t find_match(const struct drafter *drafter, const struct slot *slot, const int32_t *tokens, int32_t count)
{
	int32_t best = -1, best_length = drafter->options.ngram_min - 1;
	int32_t link = *head_of(drafter, slot, tokens, count - 1);
	for (int tried = 0; link > 0 && tried < NGRAM_CANDIDATES_MAX; tried++) {
		int32_t position = link - 1;
		int32_t length = match_length(tokens, count, position, drafter->options.ngram_max);
		if (length > best_length) {
			best = position;
			best_length = length;
		}
		if (best_length == drafter->options.ngram_max)
			break; /* the latest of the longest: no later one can win */
		link = slot->earlier[position];
	}
	return best;
}

static int32_t draft(struct drafter *drafter, int32_t slot_number, const int32_t *tokens, int32_t count, int32_t max, int32_t *out)
{
	struct slot *slot = &drafter->slots[slot_number];
	ASSERT(count >= slot->n_indexed && count <= drafter->options.tokens_max);
	if (count < drafter->options.ngram_min || count < 2 || max < 1)
		return 0;
	index_up_to(drafter, slot, tokens, count - 1); /* without the end itself */
	int32_t match = find_match(drafter, slot, tokens, count);
	if (match < 0)
		return 0;
	for (int32_t i = 0; i < max; i++) {
		int32_t source = match + 1 + i;
		out[i] = source < count ? tokens[source] : out[source - count];
	}
	return max;
}

const struct drafter_ops drafter_ngram_ops = {
	.name = "ngram",
	.create = create,
	.destroy = destroy,
	.begin = begin,
	.draft = draft,
};
