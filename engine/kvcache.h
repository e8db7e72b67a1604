/* Accounting of the paged KV cache: who holds which block, and which full blocks can be shared by equal prefixes.
 * Pure: it knows block numbers and token ids, never keys and values. All memory is taken at create.
 *
 * A block is free, held by one or more sequences, or cached (held by nobody, content findable until it is evicted, least
 * recently used first). Only full blocks whose keys and values are final are ever shared, so nothing is copied on write.
 * A shared block is found by a hash chained from the first token, and then compared token by token along the whole chain:
 * equal hashes of different texts never mix contents. One thread uses it. */
#ifndef ENGINE_KVCACHE_H
#define ENGINE_KVCACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kn.h"

struct kvcache;

struct kvcache_options {
	int32_t n_blocks; /* block 0 is a dummy that is never handed out; the others are 1 .. n_blocks - 1 */
	int32_t slots_max; /* sequences at a time */
	int32_t blocks_per_slot_max; /* longest sequence */
	bool prefix_cache; /* off: every sequence computes everything itself */
	uint64_t hash_mask; /* bits of the hash that count; UINT64_MAX but for tests of collisions */
	int32_t *block_tables; /* [slots_max][blocks_per_slot_max], kept up to date here; unused entries are 0. Borrowed */
};

struct kvcache_counts {
	int32_t total; /* blocks that can be handed out: n_blocks - 1 = free + cached + used */
	int32_t free, cached, used;
	uint64_t lookups, hits; /* full prompt blocks asked for, and found */
	uint64_t evictions; /* cached blocks given to somebody else */
};

struct kvcache *kvcache_create(const struct kvcache_options *options);
void kvcache_destroy(struct kvcache *cache);

/* Opens a sequence of count known tokens in an empty slot. Cached blocks that hold its beginning are shared with it; at
 * least one token is left to compute. Returns how many tokens need no computing (a multiple of the block size). */
int32_t kvcache_open(struct kvcache *cache, int32_t slot, const int32_t *tokens, int32_t count);

/* As kvcache_open finds them, without opening anything: cached tokens of a beginning, and in *unheld how many of their
 * blocks nobody holds now (taking them lowers kvcache_available). */
int32_t kvcache_peek(struct kvcache *cache, const int32_t *tokens, int32_t count, int32_t *unheld);

/* Gives the slot blocks for positions [0, n_tokens). False, with nothing changed, when there are too few. */
bool kvcache_reserve(struct kvcache *cache, int32_t slot, int32_t n_tokens);

/* Says that positions [0, n_tokens) hold the final keys and values of tokens: full blocks become findable. A block whose
 * twin is already findable is exchanged for the twin, so equal contents are held once. Never goes back. */
void kvcache_commit(struct kvcache *cache, int32_t slot, const int32_t *tokens, int32_t n_tokens);

/* Gives back blocks past position n_tokens, which is not below what was committed (rejected drafts). */
void kvcache_truncate(struct kvcache *cache, int32_t slot, int32_t n_tokens);

/* Ends the sequence; its findable blocks stay cached. */
void kvcache_close(struct kvcache *cache, int32_t slot);

/* Frees every cached block. Blocks of running sequences stay findable. */
void kvcache_flush(struct kvcache *cache);

int32_t kvcache_held(const struct kvcache *cache, int32_t slot); /* blocks the slot holds */
int32_t kvcache_available(const struct kvcache *cache); /* blocks that can be had now: free + cached */
void kvcache_counts(const struct kvcache *cache, struct kvcache_counts *out);

/* Blocks that n_tokens positions need. */
int32_t kvcache_blocks_for(int32_t n_tokens);

/* Recounts everything. NULL when all is consistent, else what is wrong. O(blocks + slots); for tests and debugging. */
const char *kvcache_check(const struct kvcache *cache);

#endif
