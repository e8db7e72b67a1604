/* Paged KV accounting: free stack, reference counts, hash table of full blocks, LRU list of unheld ones.
 *
 * A published block names its parent block, the one that holds the 16 tokens before it. Whoever holds or finds a block holds
 * or found all its ancestors, and a slot releases its blocks last to first, so in the LRU list a child is always older than
 * its parent and is evicted earlier. Hence a parent's number means the same content as long as a child names it, and
 * comparing parent and 16 tokens compares the whole text up to the block's end. */
#include "engine/kvcache.h"

#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

#define BLOCK_TOKENS KN_KV_BLOCK_TOKENS
#define NONE 0 /* the dummy block ends lists and chains */

struct block {
	int32_t tokens[BLOCK_TOKENS]; /* of a published block */
	uint64_t hash; /* chained hash of a published block */
	int32_t parent; /* of a published block; NONE for the first 16 tokens of a text */
	int32_t children; /* published blocks that name this one as parent */
	int32_t next_in_bucket;
	int32_t older, younger; /* in the LRU list, while cached */
	int32_t holders; /* slots that hold it */
	bool published;
};

struct slot {
	int32_t n_blocks; /* held */
	int32_t n_published; /* of those, the leading ones that are findable */
	bool open;
};

struct kvcache {
	struct kvcache_options options;
	struct block *blocks; /* [n_blocks] */
	struct slot *slots; /* [slots_max] */
	int32_t *free_stack; /* [n_free] */
	int32_t *buckets; /* [bucket_mask + 1] */
	uint64_t bucket_mask;
	int32_t n_free, n_cached;
	int32_t oldest, youngest; /* ends of the LRU list */
	uint64_t lookups, hits, evictions;
};

int32_t kvcache_blocks_for(int32_t n_tokens)
{
	return n_tokens / BLOCK_TOKENS + (n_tokens % BLOCK_TOKENS != 0);
}

struct kvcache *kvcache_create(const struct kvcache_options *options)
{
	ASSERT(options->n_blocks >= 1 && options->slots_max >= 1 && options->blocks_per_slot_max >= 1);
	struct kvcache *cache = mem_calloc(1, sizeof *cache);
	cache->options = *options;
	cache->blocks = mem_calloc((size_t)options->n_blocks, sizeof *cache->blocks);
	cache->slots = mem_calloc((size_t)options->slots_max, sizeof *cache->slots);
	cache->free_stack = mem_calloc((size_t)options->n_blocks, sizeof *cache->free_stack);
	uint64_t n_buckets = 16;
	while (n_buckets < 2 * (uint64_t)options->n_blocks)
		n_buckets *= 2;
	cache->buckets = mem_calloc(n_buckets, sizeof *cache->buckets);
	cache->bucket_mask = n_buckets - 1;
	for (int32_t block = options->n_blocks - 1; block > NONE; block--) /* the lowest number is handed out first */
		cache->free_stack[cache->n_free++] = block;
	return cache;
}

void kvcache_destroy(struct kvcache *cache)
{
	if (!cache)
		return;
	mem_free(cache->buckets);
	mem_free(cache->free_stack);
	mem_free(cache->slots);
	mem_free(cache->blocks);
	mem_free(cache);
}

static int32_t *table_of(struct kvcache *cache, int32_t slot)
{
	ASSERT(slot >= 0 && slot < cache->options.slots_max);
	return cache->options.block_tables + (int64_t)slot * cache->options.blocks_per_slot_max;
}

/* --- LRU list of cached blocks --------------------------------------------------------------------------------------- */

static void lru_add_youngest(struct kvcache *cache, int32_t number)
{
	struct block *block = &cache->blocks[number];
	block->older = cache->youngest;
	block->younger = NONE;
	if (cache->youngest != NONE)
		cache->blocks[cache->youngest].younger = number;
	else
		cache->oldest = number;
	cache->youngest = number;
	cache->n_cached++;
}

static void lru_remove(struct kvcache *cache, int32_t number)
{
	struct block *block = &cache->blocks[number];
	if (block->older != NONE)
		cache->blocks[block->older].younger = block->younger;
	else
		cache->oldest = block->younger;
	if (block->younger != NONE)
		cache->blocks[block->younger].older = block->older;
	else
		cache->youngest = block->older;
	block->older = block->younger = NONE;
	cache->n_cached--;
}

/* --- Published blocks ------------------------------------------------------------------------------------------------ */

static uint64_t chained_hash(const struct kvcache *cache, int32_t parent, const int32_t *tokens)
{
	uint64_t seed = parent == NONE ? 0 : cache->blocks[parent].hash;
	return hash64(tokens, BLOCK_TOKENS * sizeof *tokens, seed) & cache->options.hash_mask;
}

static int32_t find_published(const struct kvcache *cache, uint64_t hash, int32_t parent, const int32_t *tokens)
{
	for (int32_t number = cache->buckets[hash & cache->bucket_mask]; number != NONE;) {
		const struct block *block = &cache->blocks[number];
		if (block->hash == hash && block->parent == parent && memcmp(block->tokens, tokens, sizeof block->tokens) == 0)
			return number;
		number = block->next_in_bucket;
	}
	return NONE;
}

static void publish(struct kvcache *cache, int32_t number, uint64_t hash, int32_t parent, const int32_t *tokens)
{
	struct block *block = &cache->blocks[number];
	memcpy(block->tokens, tokens, sizeof block->tokens);
	block->hash = hash;
	block->parent = parent;
	block->published = true;
	block->next_in_bucket = cache->buckets[hash & cache->bucket_mask];
	cache->buckets[hash & cache->bucket_mask] = number;
	if (parent != NONE)
		cache->blocks[parent].children++;
}

static void unpublish(struct kvcache *cache, int32_t number)
{
	struct block *block = &cache->blocks[number];
	ASSERT(block->published && block->children == 0); /* children go first: see the top of this file */
	int32_t *link = &cache->buckets[block->hash & cache->bucket_mask];
	while (*link != number)
		link = &cache->blocks[*link].next_in_bucket;
	*link = block->next_in_bucket;
	if (block->parent != NONE)
		cache->blocks[block->parent].children--;
	block->published = false;
	block->parent = block->next_in_bucket = NONE;
}

/* --- Holding --------------------------------------------------------------------------------------------------------- */

static void hold(struct kvcache *cache, int32_t number)
{
	if (cache->blocks[number].holders++ == 0)
		lru_remove(cache, number);
}

static void release(struct kvcache *cache, int32_t number)
{
	struct block *block = &cache->blocks[number];
	ASSERT(number != NONE && block->holders > 0);
	if (--block->holders > 0)
		return;
	if (block->published)
		lru_add_youngest(cache, number);
	else
		cache->free_stack[cache->n_free++] = number;
}

/* A block of one holder and no content. The caller made sure that one is available. */
static int32_t take(struct kvcache *cache)
{
	int32_t number;
	if (cache->n_free > 0) {
		number = cache->free_stack[--cache->n_free];
	} else {
		number = cache->oldest;
		ASSERT(number != NONE);
		lru_remove(cache, number);
		unpublish(cache, number);
		cache->evictions++;
	}
	cache->blocks[number].holders = 1;
	return number;
}

/* Walks the leading full blocks of tokens that are findable, leaving at least one token out; with a table, stores them. */
static int32_t match_prefix(struct kvcache *cache, const int32_t *tokens, int32_t count, int32_t *table, int32_t *unheld)
{
	int32_t n_blocks_max = count > 0 ? (count - 1) / BLOCK_TOKENS : 0, matched = 0, parent = NONE;
	*unheld = 0;
	if (!cache->options.prefix_cache)
		return 0;
	for (; matched < n_blocks_max; matched++) {
		const int32_t *block_tokens = tokens + (int64_t)matched * BLOCK_TOKENS;
		int32_t found = find_published(cache, chained_hash(cache, parent, block_tokens), parent, block_tokens);
		if (found == NONE)
			break;
		*unheld += cache->blocks[found].holders == 0;
		if (table)
			table[matched] = found;
		parent = found;
	}
	return matched;
}

int32_t kvcache_peek(struct kvcache *cache, const int32_t *tokens, int32_t count, int32_t *unheld)
{
	return match_prefix(cache, tokens, count, NULL, unheld) * BLOCK_TOKENS;
}

int32_t kvcache_open(struct kvcache *cache, int32_t slot_number, const int32_t *tokens, int32_t count)
{
	int32_t *table = table_of(cache, slot_number), unheld;
	struct slot *slot = &cache->slots[slot_number];
	ASSERT(!slot->open && slot->n_blocks == 0 && kvcache_blocks_for(count) <= cache->options.blocks_per_slot_max);
	int32_t matched = match_prefix(cache, tokens, count, table, &unheld);
	for (int32_t i = 0; i < matched; i++)
		hold(cache, table[i]);
	*slot = (struct slot){.n_blocks = matched, .n_published = matched, .open = true};
	if (cache->options.prefix_cache && count > 0)
		cache->lookups += (uint64_t)((count - 1) / BLOCK_TOKENS);
	cache->hits += (uint64_t)matched;
	return matched * BLOCK_TOKENS;
}

bool kvcache_reserve(struct kvcache *cache, int32_t slot_number, int32_t n_tokens)
{
	int32_t *table = table_of(cache, slot_number), need = kvcache_blocks_for(n_tokens);
	struct slot *slot = &cache->slots[slot_number];
	ASSERT(slot->open);
	if (need > cache->options.blocks_per_slot_max || need - slot->n_blocks > kvcache_available(cache))
		return false;
	while (slot->n_blocks < need)
		table[slot->n_blocks++] = take(cache);
	return true;
}

void kvcache_commit(struct kvcache *cache, int32_t slot_number, const int32_t *tokens, int32_t n_tokens)
{
	int32_t *table = table_of(cache, slot_number);
	struct slot *slot = &cache->slots[slot_number];
	ASSERT(slot->open && kvcache_blocks_for(n_tokens) <= slot->n_blocks);
	if (!cache->options.prefix_cache)
		return;
	for (; slot->n_published < n_tokens / BLOCK_TOKENS; slot->n_published++) {
		int32_t i = slot->n_published, parent = i > 0 ? table[i - 1] : NONE;
		const int32_t *block_tokens = tokens + (int64_t)i * BLOCK_TOKENS;
		uint64_t hash = chained_hash(cache, parent, block_tokens);
		int32_t twin = find_published(cache, hash, parent, block_tokens);
		if (twin == NONE) {
			publish(cache, table[i], hash, parent, block_tokens);
			continue;
		}
		hold(cache, twin);
		release(cache, table[i]);
		table[i] = twin;
	}
}

static void release_past(struct kvcache *cache, int32_t slot_number, int32_t n_blocks)
{
	int32_t *table = table_of(cache, slot_number);
	struct slot *slot = &cache->slots[slot_number];
	while (slot->n_blocks > n_blocks) { /* last to first: the LRU order depends on it */
		slot->n_blocks--;
		release(cache, table[slot->n_blocks]);
		table[slot->n_blocks] = NONE;
	}
}

void kvcache_truncate(struct kvcache *cache, int32_t slot_number, int32_t n_tokens)
{
	ASSERT(slot_number >= 0 && slot_number < cache->options.slots_max && cache->slots[slot_number].open);
	ASSERT(n_tokens / BLOCK_TOKENS >= cache->slots[slot_number].n_published);
	release_past(cache, slot_number, kvcache_blocks_for(n_tokens));
}

void kvcache_close(struct kvcache *cache, int32_t slot_number)
{
	ASSERT(slot_number >= 0 && slot_number < cache->options.slots_max && cache->slots[slot_number].open);
	release_past(cache, slot_number, 0);
	cache->slots[slot_number] = (struct slot){0};
}

void kvcache_flush(struct kvcache *cache)
{
	while (cache->oldest != NONE) {
		int32_t number = cache->oldest;
		lru_remove(cache, number);
		unpublish(cache, number);
		cache->free_stack[cache->n_free++] = number;
	}
}

int32_t kvcache_held(const struct kvcache *cache, int32_t slot)
{
	ASSERT(slot >= 0 && slot < cache->options.slots_max);
	return cache->slots[slot].n_blocks;
}

int32_t kvcache_available(const struct kvcache *cache)
{
	return cache->n_free + cache->n_cached;
}

void kvcache_counts(const struct kvcache *cache, struct kvcache_counts *out)
{
	int32_t total = cache->options.n_blocks - 1;
	*out = (struct kvcache_counts){
		.total = total,
		.free = cache->n_free,
		.cached = cache->n_cached,
		.used = total - cache->n_free - cache->n_cached,
		.lookups = cache->lookups,
		.hits = cache->hits,
		.evictions = cache->evictions,
	};
}

/* --- Check ----------------------------------------------------------------------------------------------------------- */

/* Slots: tables are full up to n_blocks and 0 after, published blocks lead. Adds each holding to holders. */
static const char *check_slot(const struct kvcache *cache, int32_t slot_number, int32_t *holders)
{
	const struct slot *slot = &cache->slots[slot_number];
	const int32_t *table = cache->options.block_tables + (int64_t)slot_number * cache->options.blocks_per_slot_max;
	if (!slot->open && slot->n_blocks != 0)
		return "a closed slot holds blocks";
	if (slot->n_published > slot->n_blocks)
		return "a slot has more findable blocks than blocks";
	for (int32_t i = 0; i < cache->options.blocks_per_slot_max; i++) {
		if (i >= slot->n_blocks) {
			if (table[i] != NONE)
				return "a table entry past the held blocks is not 0";
			continue;
		}
		if (table[i] <= NONE || table[i] >= cache->options.n_blocks)
			return "a table entry is out of range";
		const struct block *block = &cache->blocks[table[i]];
		if (block->published != (i < slot->n_published))
			return "findable blocks of a slot do not lead";
		if (block->published && block->parent != (i > 0 ? table[i - 1] : NONE))
			return "a block's parent is not the block before it";
		holders[table[i]]++;
	}
	return NULL;
}

static const char *check_blocks(const struct kvcache *cache, const int32_t *holders, int32_t *children)
{
	int32_t n_idle = 0;
	for (int32_t number = 1; number < cache->options.n_blocks; number++) {
		const struct block *block = &cache->blocks[number];
		if (block->holders != holders[number])
			return "a reference count differs from the slots that hold the block";
		if (block->holders > 1 && !block->published)
			return "an unfinished block is shared";
		n_idle += block->holders == 0;
		if (!block->published)
			continue;
		if (find_published(cache, block->hash, block->parent, block->tokens) != number)
			return "a findable block is not found, or exists twice";
		if (block->parent != NONE && !cache->blocks[block->parent].published)
			return "a findable block has lost its parent";
		children[block->parent]++;
	}
	for (int32_t number = 1; number < cache->options.n_blocks; number++)
		if (cache->blocks[number].children != children[number])
			return "a count of children is wrong";
	return n_idle == cache->n_free + cache->n_cached ? NULL : "a block is lost or listed twice";
}

static const char *check_lists(const struct kvcache *cache)
{
	for (int32_t i = 0; i < cache->n_free; i++) {
		const struct block *block = &cache->blocks[cache->free_stack[i]];
		if (block->holders != 0 || block->published)
			return "the free list holds a block in use";
	}
	int32_t n_cached = 0;
	for (int32_t number = cache->oldest; number != NONE; number = cache->blocks[number].younger) {
		if (cache->blocks[number].holders != 0 || !cache->blocks[number].published || n_cached > cache->n_cached)
			return "the LRU list holds a block in use, or goes in a circle";
		n_cached++;
	}
	return n_cached == cache->n_cached ? NULL : "the LRU list has lost blocks";
}

const char *kvcache_check(const struct kvcache *cache)
{
	size_t n_blocks = (size_t)cache->options.n_blocks;
	int32_t *holders = mem_calloc(n_blocks, sizeof *holders);
	int32_t *children = mem_calloc(n_blocks, sizeof *children);
	const char *wrong = check_lists(cache);
	for (int32_t slot = 0; !wrong && slot < cache->options.slots_max; slot++)
		wrong = check_slot(cache, slot, holders);
	if (!wrong)
		wrong = check_blocks(cache, holders, children);
	mem_free(children);
	mem_free(holders);
	return wrong;
}
