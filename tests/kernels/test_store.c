/* Tests of kernels/cpu/store: blocks are zeroed, aligned, apart from each other, and given back in any order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "kernels/cpu/store.h"

#define BLOCKS 40

static void blocks_do_not_overlap_and_may_be_put_back_in_any_order(void **state)
{
	struct store store = {0};
	unsigned char *blocks[BLOCKS];

	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < BLOCKS; i++) { /* 1 byte to 8 MB: more than one chunk */
			size_t bytes = i * i * 5000 + 1;

			assert_int_equal(store_take(&store, bytes, (void **)&blocks[i], NULL), STATUS_OK);
			assert_int_equal((uintptr_t)blocks[i] % 64, 0);
			assert_int_equal(blocks[i][0] | blocks[i][bytes / 2] | blocks[i][bytes - 1], 0);
			memset(blocks[i], (int)i + 1, bytes);
		}
		for (size_t i = 0; i < BLOCKS; i++) {
			assert_int_equal(blocks[i][0], i + 1);
			assert_int_equal(blocks[i][i * i * 5000], i + 1);
		}
		for (size_t i = 0; i < BLOCKS; i++)
			store_put(&store, blocks[i * 7 % BLOCKS]);
		assert_null(store.chunks);
	}
}

static void a_block_larger_than_a_chunk_has_its_own(void **state)
{
	struct store store = {0};
	unsigned char *large, *small;
	size_t bytes = (size_t)100 << 20;

	assert_int_equal(store_take(&store, bytes, (void **)&large, NULL), STATUS_OK);
	assert_int_equal(store_take(&store, 10, (void **)&small, NULL), STATUS_OK);
	large[0] = large[bytes - 1] = 1;
	assert_int_equal(small[0], 0);
	store_put(&store, large);
	small[9] = 2;
	store_put(&store, small);
	assert_null(store.chunks);
	store_put(&store, NULL);
}

static void impossible_sizes_are_refused(void **state)
{
	struct store store = {0};
	struct err err = {0};
	void *block;

	assert_int_equal(store_take(&store, 0, &block, &err), STATUS_NO_MEMORY);
	assert_int_equal(store_take(&store, SIZE_MAX, &block, &err), STATUS_NO_MEMORY);
	assert_null(block);
	assert_null(store.chunks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_do_not_overlap_and_may_be_put_back_in_any_order),
		cmocka_unit_test(a_block_larger_than_a_chunk_has_its_own),
		cmocka_unit_test(impossible_sizes_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
