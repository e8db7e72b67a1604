/* Tiny models of every family on a GPU, read from Hugging Face folders, against transformers in fp32 and in bf16. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/gguf_twin.h"
#include "tests/support/golden_family.h"

/* Relative errors of logits, measured on an H200: 2.8e-6 where one row runs, from a graph or as it comes, with activations in fp32
 * all the way (3.6e-6 for several rows, too, where weights are fp32); 9.1e-4 beside 8-bit weights; 1.8e-2 for several rows of bf16
 * weights, whose activations are rounded to the weights' type. What bf16 costs transformers itself: 1.3e-2 to 3.9e-2. */
#define BOUND_ONE_ROW 1e-5
#define BOUND_FP8 2e-3
#define BOUND_ROWS 3e-2
#define NEAR_TIE_ONE_ROW 1e-3
#define NEAR_TIE_FP8 0.1
#define NEAR_TIE_ROWS 1.0

static int n_families = GOLDEN_FAMILIES; /* fewer for a tool that watches every access */

/* path NULL: the family's folder. */
static void compare(const char *family, const char *path, int chunk, int graph_max_bs, double bound, double near_tie)
{
	struct forward_run run = forward_run_default(NULL);
	run.kn = &kn_cuda_ops;
	run.chunk = chunk;
	run.graph_max_bs = graph_max_bs;
	run.kv_type = KN_KV_F32;
	struct golden_distances distances = golden_family_distances(family, path, &run, near_tie);
	print_message("%s, %d rows a step, graphs to %d: from transformers in fp32 %.2g, in bf16 %.2g (its own two: %.2g)\n",
		family, chunk, graph_max_bs, distances.fp32, distances.bf16, distances.theirs);
	if (!(distances.fp32 < bound))
		fail_msg("%s, %d rows a step: relative error %.3g, allowed %.3g", family, chunk, distances.fp32, bound);
	/* Of what lies between us and their bf16, their own rounding is all but ours. */
	if (!(distances.bf16 < 1.01 * distances.theirs + bound))
		fail_msg("%s, %d rows a step: %.3g from transformers in bf16, which is %.3g from itself in fp32", family, chunk,
			distances.bf16, distances.theirs);
}

static void compare_steps_of_all_sizes(const char *family, double one_row, double near_tie)
{
	if (n_families == GOLDEN_FAMILIES)
		compare(family, NULL, 1, 0, one_row, near_tie);
	compare(family, NULL, 1, 1, one_row, near_tie);
	compare(family, NULL, 7, 7, BOUND_ROWS, NEAR_TIE_ROWS);
	compare(family, NULL, 256, 0, BOUND_ROWS, NEAR_TIE_ROWS);
}

static void logits_and_greedy_text_are_those_of_transformers(void **state)
{
	for (int i = 0; i < n_families; i++)
		compare_steps_of_all_sizes(golden_families[i], BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
}

/* The same weights as fp32: every product then keeps its activations in fp32. */
static void weights_in_fp32_give_the_same_logits(void **state)
{
	for (int i = 0; i < n_families; i++) {
		char folder[GOLDEN_PATH_BYTES], path[] = "/tmp/verdict-twin-XXXXXX";
		int fd = mkstemp(path);
		assert_true(fd >= 0);
		close(fd);
		gguf_twin_write(golden_family_path(golden_families[i], folder), true, path);
		if (n_families == GOLDEN_FAMILIES)
			compare(golden_families[i], path, 1, 1, BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
		compare(golden_families[i], path, 7, 7, BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
		compare(golden_families[i], path, 256, 0, BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
		unlink(path);
	}
}

/* Scales for blocks, for rows and for whole tensors, in one model. */
static void eight_bit_weights_give_the_logits_of_what_they_stand_for(void **state)
{
	compare_steps_of_all_sizes("fp8", BOUND_FP8, NEAR_TIE_FP8);
}

/* usage: test_families_cuda [few] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_and_greedy_text_are_those_of_transformers),
		cmocka_unit_test(weights_in_fp32_give_the_same_logits),
		cmocka_unit_test(eight_bit_weights_give_the_logits_of_what_they_stand_for),
	};
	if (argc > 1 && strcmp(argv[1], "few") == 0)
		n_families = 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
