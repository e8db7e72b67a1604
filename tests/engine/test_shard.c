/* Shares of ranks: contiguous, even, complete, cut between quantisation blocks, or refused with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "engine/model.h"

static struct model_config smollm(void)
{
	return (struct model_config){.n_layers = 30,
		.hidden = 576,
		.ffn = 1536,
		.n_heads = 9,
		.n_kv_heads = 3,
		.head_dim = 64,
		.vocab = 49152,
		.ffn_block = 32,
		.attention_block = 32};
}

/* Shares follow each other without gap, differ by one unit at most, and KV heads are those the query heads read. */
static void check_shares(const struct model_config *config, int world, int head_unit, int ffn_unit)
{
	int head = 0, ffn = 0, vocab = 0;
	int group = config->n_heads / config->n_kv_heads;
	for (int rank = 0; rank < world; rank++) {
		struct shard shard;
		struct err err = {0};
		if (shard_compute(config, rank, world, &shard, &err) != STATUS_OK)
			fail_msg("rank %d of %d: %s", rank, world, err.text);
		assert_int_equal(shard.head_begin, head);
		assert_int_equal(shard.ffn_begin, ffn);
		assert_int_equal(shard.vocab_begin, vocab);
		head = shard.head_end;
		ffn = shard.ffn_end;
		vocab = shard.vocab_end;
		int units = (head - shard.head_begin) / head_unit, even = config->n_heads / head_unit / world;
		assert_in_range(units, even, even + 1);
		assert_in_range(
			(ffn - shard.ffn_begin) / ffn_unit, config->ffn / ffn_unit / world, config->ffn / ffn_unit / world + 1);
		assert_int_equal(shard.head_begin % head_unit, 0);
		assert_int_equal(shard.ffn_begin % ffn_unit, 0);
		assert_int_equal(shard.kv_head_begin, shard.head_begin / group);
		assert_int_equal(shard.kv_head_end, (shard.head_end - 1) / group + 1);
		assert_true(shard.vocab_end > shard.vocab_begin);
	}
	assert_int_equal(head, config->n_heads);
	assert_int_equal(ffn, config->ffn);
	assert_int_equal(vocab, config->vocab);
}

static void nine_heads_are_shared_by_one_to_nine_ranks(void **state)
{
	struct model_config config = smollm();
	for (int world = 1; world <= 9; world++)
		check_shares(&config, world, 1, 32);
	struct shard shard;
	assert_int_equal(shard_compute(&config, 0, 2, &shard, NULL), STATUS_OK);
	assert_int_equal(shard.head_end, 5);
	assert_int_equal(shard.kv_head_end, 2);
	assert_int_equal(shard_compute(&config, 1, 2, &shard, NULL), STATUS_OK);
	assert_int_equal(shard.head_begin, 5);
	assert_int_equal(shard.kv_head_begin, 1); /* heads 5 reads KV head 1, which rank 0 keeps too */
	assert_int_equal(shard.kv_head_end, 3);
}

static void coarse_blocks_keep_heads_together(void **state)
{
	struct model_config config = smollm();
	config.n_heads = 32;
	config.n_kv_heads = 8;
	config.ffn = 8192;
	config.attention_block = config.ffn_block = 256; /* four heads of 64 */
	for (int world = 1; world <= 8; world++)
		check_shares(&config, world, world == 1 ? 1 : 4, 256);
	struct shard shard;
	struct err err = {0};
	assert_int_equal(shard_compute(&config, 0, 9, &shard, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "32 query heads (cut between quantisation blocks) make 8 shares"));
	assert_string_equal(err.code, "cannot_shard");
}

static void shapes_that_cannot_be_cut_are_refused_with_the_reason(void **state)
{
	struct model_config config = smollm();
	struct shard shard;
	struct err err = {0};
	assert_int_equal(shard_compute(&config, 0, 10, &shard, &err), STATUS_INPUT);
	assert_non_null(
		strstr(err.text, "9 query heads make 9 shares at most, so 10 ranks would leave one without work; use --tp 1 to 9"));
	err_clear(&err);
	config.ffn = 128;
	assert_int_equal(shard_compute(&config, 0, 5, &shard, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "FFN axis of 128 has 4 quantisation blocks of 32"));
	err_clear(&err);
	config = smollm();
	config.vocab = 5;
	assert_int_equal(shard_compute(&config, 0, 6, &shard, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "vocabulary of 5"));
	err_clear(&err);
	config = smollm();
	config.attention_block = 256; /* 9 heads of 64 are no whole number of blocks of 256 */
	assert_int_equal(shard_compute(&config, 0, 2, &shard, &err), STATUS_INPUT);
	assert_int_equal(shard_compute(&config, 0, 1, &shard, NULL), STATUS_OK);
}

static void odd_vocabularies_are_cut_by_rows(void **state)
{
	struct model_config config = smollm();
	config.vocab = 50257;
	check_shares(&config, 3, 1, 32);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nine_heads_are_shared_by_one_to_nine_ranks),
		cmocka_unit_test(coarse_blocks_keep_heads_together),
		cmocka_unit_test(shapes_that_cannot_be_cut_are_refused_with_the_reason),
		cmocka_unit_test(odd_vocabularies_are_cut_by_rows),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
