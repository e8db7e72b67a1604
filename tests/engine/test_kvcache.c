/* Tests of engine/kvcache: single facts, then random histories against a model that stores what each block really holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/hash.h"
#include "base/random.h"
#include "engine/kvcache.h"

#define BLOCK KN_KV_BLOCK_TOKENS
#define SLOTS 6
#define BLOCKS_PER_SLOT 8

static int32_t tables[SLOTS * BLOCKS_PER_SLOT];

static struct kvcache *make(int32_t n_blocks, bool prefix_cache, uint64_t hash_mask)
{
	memset(tables, 0, sizeof tables);
	return kvcache_create(&(struct kvcache_options){
		.n_blocks = n_blocks,
		.slots_max = SLOTS,
		.blocks_per_slot_max = BLOCKS_PER_SLOT,
		.prefix_cache = prefix_cache,
		.hash_mask = hash_mask,
		.block_tables = tables,
	});
}

static void fill(int32_t *tokens, int32_t count, int32_t first)
{
	for (int32_t i = 0; i < count; i++)
		tokens[i] = first + i;
}

static struct kvcache_counts counts_of(const struct kvcache *cache)
{
	struct kvcache_counts counts;
	kvcache_counts(cache, &counts);
	return counts;
}

static void run_and_close(struct kvcache *cache, int32_t slot, const int32_t *tokens, int32_t count)
{
	kvcache_open(cache, slot, tokens, count);
	assert_true(kvcache_reserve(cache, slot, count));
	kvcache_commit(cache, slot, tokens, count);
	kvcache_close(cache, slot);
	assert_null(kvcache_check(cache));
}

static void kvcache_never_hands_out_block_0_and_refuses_past_the_end(void **state)
{
	struct kvcache *cache = make(5, true, UINT64_MAX);
	int32_t tokens[BLOCK * 8];
	fill(tokens, BLOCK * 8, 0);
	assert_int_equal(kvcache_available(cache), 4);
	kvcache_open(cache, 0, tokens, 3);
	kvcache_open(cache, 1, tokens, 3);
	assert_true(kvcache_reserve(cache, 0, 3 * BLOCK));
	assert_true(kvcache_reserve(cache, 1, 1));
	assert_int_equal(kvcache_available(cache), 0);
	for (int i = 0; i < 3; i++)
		assert_true(tables[i] > 0 && tables[i] != tables[BLOCKS_PER_SLOT]);
	assert_false(kvcache_reserve(cache, 1, BLOCK + 1));
	assert_int_equal(kvcache_held(cache, 1), 1);
	assert_false(kvcache_reserve(cache, 0, BLOCK * BLOCKS_PER_SLOT + 1));
	assert_null(kvcache_check(cache));
	kvcache_destroy(cache);
}

static void kvcache_reuses_full_blocks_and_leaves_one_token(void **state)
{
	struct kvcache *cache = make(20, true, UINT64_MAX);
	int32_t tokens[3 * BLOCK];
	fill(tokens, 3 * BLOCK, 7);
	run_and_close(cache, 0, tokens, 3 * BLOCK);
	assert_int_equal(counts_of(cache).cached, 3);
	int32_t unheld;
	assert_int_equal(kvcache_peek(cache, tokens, 3 * BLOCK, &unheld), 2 * BLOCK);
	assert_int_equal(unheld, 2);
	assert_int_equal(kvcache_open(cache, 1, tokens, 3 * BLOCK), 2 * BLOCK); /* not 3: the last token must be computed */
	assert_int_equal(kvcache_open(cache, 2, tokens, 2 * BLOCK + 1), 2 * BLOCK);
	assert_int_equal(tables[BLOCKS_PER_SLOT], tables[2 * BLOCKS_PER_SLOT]);
	tokens[BLOCK] = -1; /* second block differs */
	assert_int_equal(kvcache_open(cache, 3, tokens, 3 * BLOCK), BLOCK);
	tokens[0] = -1; /* first block differs, second is known only after another first */
	assert_int_equal(kvcache_open(cache, 4, tokens, 3 * BLOCK), 0);
	assert_int_equal(kvcache_open(cache, 5, tokens, 0), 0);
	assert_null(kvcache_check(cache));
	assert_int_equal(counts_of(cache).hits, 5);
	kvcache_destroy(cache);
}

static void kvcache_shares_nothing_when_switched_off(void **state)
{
	struct kvcache *cache = make(20, false, UINT64_MAX);
	int32_t tokens[3 * BLOCK];
	fill(tokens, 3 * BLOCK, 7);
	run_and_close(cache, 0, tokens, 3 * BLOCK);
	assert_int_equal(kvcache_open(cache, 0, tokens, 3 * BLOCK), 0);
	assert_int_equal(counts_of(cache).cached, 0);
	assert_int_equal(counts_of(cache).free, 19);
	kvcache_destroy(cache);
}

static void kvcache_publishes_only_committed_blocks(void **state)
{
	struct kvcache *cache = make(20, true, UINT64_MAX);
	int32_t tokens[4 * BLOCK];
	fill(tokens, 4 * BLOCK, 7);
	kvcache_open(cache, 0, tokens, 4 * BLOCK);
	assert_true(kvcache_reserve(cache, 0, 4 * BLOCK));
	kvcache_commit(cache, 0, tokens, 2 * BLOCK - 1);
	kvcache_close(cache, 0); /* given up in the middle of its prompt */
	assert_int_equal(counts_of(cache).cached, 1);
	assert_int_equal(counts_of(cache).free, 18);
	assert_int_equal(kvcache_open(cache, 1, tokens, 4 * BLOCK), BLOCK);
	assert_null(kvcache_check(cache));
	kvcache_destroy(cache);
}

static void kvcache_evicts_the_least_recently_used_from_its_end(void **state)
{
	struct kvcache *cache = make(7, true, UINT64_MAX);
	int32_t a[3 * BLOCK + 1], b[3 * BLOCK + 1], c[BLOCK];
	fill(a, 3 * BLOCK + 1, 100);
	fill(b, 3 * BLOCK + 1, 500);
	fill(c, BLOCK, 900);
	run_and_close(cache, 0, a, 3 * BLOCK);
	run_and_close(cache, 0, b, 3 * BLOCK);
	assert_int_equal(counts_of(cache).free, 0);
	run_and_close(cache, 0, a, BLOCK + 1); /* touches a's first block; its second, evicted, is a new unfinished one */
	int32_t unheld;
	run_and_close(cache, 0, c, BLOCK);
	assert_int_equal(kvcache_peek(cache, b, 3 * BLOCK + 1, &unheld), 3 * BLOCK);
	assert_int_equal(kvcache_peek(cache, a, 3 * BLOCK + 1, &unheld), 2 * BLOCK);
	assert_int_equal(counts_of(cache).evictions, 1);
	kvcache_destroy(cache);
}

static void kvcache_exchanges_twins_computed_at_the_same_time(void **state)
{
	struct kvcache *cache = make(20, true, UINT64_MAX);
	int32_t tokens[2 * BLOCK];
	fill(tokens, 2 * BLOCK, 7);
	for (int32_t slot = 0; slot < 2; slot++) {
		assert_int_equal(kvcache_open(cache, slot, tokens, 2 * BLOCK), 0);
		assert_true(kvcache_reserve(cache, slot, 2 * BLOCK));
	}
	kvcache_commit(cache, 0, tokens, 2 * BLOCK);
	kvcache_commit(cache, 1, tokens, BLOCK);
	assert_int_equal(tables[0], tables[BLOCKS_PER_SLOT]);
	kvcache_commit(cache, 1, tokens, 2 * BLOCK);
	assert_int_equal(tables[1], tables[BLOCKS_PER_SLOT + 1]);
	assert_int_equal(counts_of(cache).used, 2);
	assert_null(kvcache_check(cache));
	kvcache_close(cache, 0);
	kvcache_close(cache, 1);
	assert_int_equal(counts_of(cache).cached, 2);
	assert_null(kvcache_check(cache));
	kvcache_destroy(cache);
}

static void kvcache_rolls_back_rejected_drafts_over_block_borders(void **state)
{
	struct kvcache *cache = make(20, true, UINT64_MAX);
	int32_t tokens[3 * BLOCK];
	fill(tokens, 3 * BLOCK, 7);
	kvcache_open(cache, 0, tokens, BLOCK);
	assert_true(kvcache_reserve(cache, 0, 2 * BLOCK + 5));
	kvcache_commit(cache, 0, tokens, BLOCK);
	kvcache_truncate(cache, 0, BLOCK + 1);
	assert_int_equal(kvcache_held(cache, 0), 2);
	kvcache_truncate(cache, 0, BLOCK);
	assert_int_equal(kvcache_held(cache, 0), 1);
	assert_null(kvcache_check(cache));
	kvcache_close(cache, 0);
	assert_int_equal(kvcache_available(cache), 19);
	kvcache_destroy(cache);
}

static void kvcache_flush_spares_running_sequences(void **state)
{
	struct kvcache *cache = make(20, true, UINT64_MAX);
	int32_t a[2 * BLOCK], b[2 * BLOCK];
	fill(a, 2 * BLOCK, 7);
	fill(b, 2 * BLOCK, 700);
	run_and_close(cache, 0, a, 2 * BLOCK);
	run_and_close(cache, 0, b, 2 * BLOCK);
	assert_int_equal(kvcache_open(cache, 1, a, 2 * BLOCK), BLOCK);
	kvcache_flush(cache);
	assert_null(kvcache_check(cache));
	assert_int_equal(counts_of(cache).cached, 0);
	assert_int_equal(counts_of(cache).used, 1);
	assert_int_equal(kvcache_open(cache, 2, b, 2 * BLOCK), 0);
	assert_int_equal(kvcache_open(cache, 3, a, 2 * BLOCK), BLOCK);
	kvcache_destroy(cache);
}

static void kvcache_tells_texts_of_equal_hash_apart(void **state)
{
	struct kvcache *cache = make(200, true, 0xF); /* sixteen hashes for 64 texts */
	int32_t tokens[64][BLOCK + 1];
	for (int i = 0; i < 64; i++) {
		fill(tokens[i], BLOCK + 1, 1000 * i);
		assert_int_equal(kvcache_open(cache, 0, tokens[i], BLOCK + 1), 0);
		assert_true(kvcache_reserve(cache, 0, BLOCK + 1));
		kvcache_commit(cache, 0, tokens[i], BLOCK + 1);
		kvcache_close(cache, 0);
	}
	int32_t unheld;
	for (int i = 0; i < 64; i++)
		assert_int_equal(kvcache_peek(cache, tokens[i], BLOCK + 1, &unheld), BLOCK);
	assert_null(kvcache_check(cache));
	kvcache_destroy(cache);
}

/* --- Random histories ------------------------------------------------------------------------------------------------ */

struct history {
	struct kvcache *cache;
	int32_t n_blocks;
	uint64_t seed, counter;
	uint64_t content[64][BLOCK]; /* what a forward pass would have written: a hash of the text up to each position */
	struct {
		bool open;
		int32_t tokens[BLOCK * BLOCKS_PER_SLOT], n_computed;
	} slots[SLOTS];
};

static uint64_t draw(struct history *history, uint64_t bound)
{
	return random_below(history->seed, 1, history->counter++, bound);
}

static uint64_t *cell(struct history *history, int32_t slot, int32_t position)
{
	int32_t block = tables[slot * BLOCKS_PER_SLOT + position / BLOCK];
	assert_in_range(block, 1, history->n_blocks - 1);
	return &history->content[block][position % BLOCK];
}

static uint64_t right_content(const int32_t *tokens, int32_t position)
{
	return hash64(tokens, (size_t)(position + 1) * sizeof *tokens, 99);
}

static void open_random(struct history *history, int32_t slot)
{
	int32_t *tokens = history->slots[slot].tokens;
	/* Two symbols, constant within a block but rarely, so that equal beginnings and equal middles are common. */
	for (int32_t i = 0; i < BLOCK * BLOCKS_PER_SLOT; i++)
		tokens[i] = i % BLOCK == 0 ? (int32_t)draw(history, 2) : tokens[i - 1];
	if (draw(history, 4) == 0)
		tokens[draw(history, BLOCK * BLOCKS_PER_SLOT)] ^= 1;
	int32_t count = 1 + (int32_t)draw(history, BLOCK * BLOCKS_PER_SLOT);
	int32_t unheld, peeked = kvcache_peek(history->cache, tokens, count, &unheld);
	int32_t before = kvcache_available(history->cache);
	history->slots[slot].n_computed = kvcache_open(history->cache, slot, tokens, count);
	history->slots[slot].open = true;
	assert_int_equal(history->slots[slot].n_computed, peeked);
	assert_true(peeked < count);
	assert_int_equal(kvcache_available(history->cache), before - unheld);
}

static void extend_random(struct history *history, int32_t slot)
{
	int32_t n = history->slots[slot].n_computed, room = BLOCK * BLOCKS_PER_SLOT - n;
	if (room == 0)
		return;
	int32_t written = n + 1 + (int32_t)draw(history, (uint64_t)(room < 24 ? room : 24));
	int32_t kept = n + 1 + (int32_t)draw(history, (uint64_t)(written - n));
	if (!kvcache_reserve(history->cache, slot, written))
		return;
	const int32_t *tokens = history->slots[slot].tokens;
	for (int32_t i = n; i < written; i++) /* rows past kept are rejected drafts: garbage */
		*cell(history, slot, i) = i < kept ? right_content(tokens, i) : draw(history, UINT64_MAX);
	kvcache_truncate(history->cache, slot, kept);
	if (draw(history, 8) != 0)
		kvcache_commit(history->cache, slot, tokens, kept);
	history->slots[slot].n_computed = kept;
}

static void step_random(struct history *history)
{
	int32_t slot = (int32_t)draw(history, SLOTS);
	uint64_t action = draw(history, 100);
	if (action == 0) {
		kvcache_flush(history->cache);
	} else if (!history->slots[slot].open) {
		open_random(history, slot);
	} else if (action < 15) {
		kvcache_close(history->cache, slot);
		history->slots[slot].open = false;
	} else {
		extend_random(history, slot);
	}
}

static void check_contents(struct history *history)
{
	const char *wrong = kvcache_check(history->cache);
	if (wrong)
		fail_msg(
			"seed %llu, step %llu: %s", (unsigned long long)history->seed, (unsigned long long)history->counter, wrong);
	for (int32_t slot = 0; slot < SLOTS; slot++)
		for (int32_t i = 0; history->slots[slot].open && i < history->slots[slot].n_computed; i++)
			if (*cell(history, slot, i) != right_content(history->slots[slot].tokens, i))
				fail_msg("seed %llu: slot %d reads another text at position %d", (unsigned long long)history->seed,
					slot, i);
}

static void kvcache_keeps_contents_apart_in_random_histories(void **state)
{
	static struct history history;
	for (uint64_t seed = 1; seed <= 24; seed++) {
		memset(&history, 0, sizeof history);
		history.seed = seed;
		history.n_blocks = 3 + (int32_t)(seed * 5 % 60);
		history.cache = make(history.n_blocks, seed % 6 != 0, seed % 2 ? UINT64_MAX : 0x3);
		for (int i = 0; i < 1500; i++) {
			step_random(&history);
			if (i % 3 == 0)
				check_contents(&history);
		}
		for (int32_t slot = 0; slot < SLOTS; slot++)
			if (history.slots[slot].open)
				kvcache_close(history.cache, slot);
		assert_int_equal(counts_of(history.cache).used, 0);
		kvcache_flush(history.cache);
		assert_int_equal(counts_of(history.cache).free, history.n_blocks - 1);
		kvcache_destroy(history.cache);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(kvcache_never_hands_out_block_0_and_refuses_past_the_end),
		cmocka_unit_test(kvcache_reuses_full_blocks_and_leaves_one_token),
		cmocka_unit_test(kvcache_shares_nothing_when_switched_off),
		cmocka_unit_test(kvcache_publishes_only_committed_blocks),
		cmocka_unit_test(kvcache_evicts_the_least_recently_used_from_its_end),
		cmocka_unit_test(kvcache_exchanges_twins_computed_at_the_same_time),
		cmocka_unit_test(kvcache_rolls_back_rejected_drafts_over_block_borders),
		cmocka_unit_test(kvcache_flush_spares_running_sequences),
		cmocka_unit_test(kvcache_tells_texts_of_equal_hash_apart),
		cmocka_unit_test(kvcache_keeps_contents_apart_in_random_histories),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
