/* Tiny models of every family on a GPU, read from Hugging Face folders, against transformers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/support/golden_family.h"

/* Relative errors of logits. One row keeps activations in fp32; several round them to the weights' bf16, as transformers does in
 * bf16, which costs these models up to 4e-2 there. */
#define BOUND_ONE_ROW 5e-4
#define BOUND_ROWS 4e-2
#define NEAR_TIE_ONE_ROW 0.02
#define NEAR_TIE_ROWS 1.0

static void compare(const char *family, int chunk, int graph_max_bs, double bound, double near_tie)
{
	struct forward_run run = forward_run_default(NULL);
	run.kn = &kn_cuda_ops;
	run.chunk = chunk;
	run.graph_max_bs = graph_max_bs;
	run.kv_type = KN_KV_F32;
	struct golden_distances distances = golden_family_distances(family, NULL, &run, near_tie);
	print_message("%s, %d rows a step, graphs to %d: %.2g (bf16 transformers %.2g)\n", family, chunk, graph_max_bs,
		distances.fp32, distances.theirs);
	if (!(distances.fp32 < bound))
		fail_msg("%s, %d rows a step: relative error %.3g, allowed %.3g", family, chunk, distances.fp32, bound);
}

static void logits_and_greedy_text_are_those_of_transformers(void **state)
{
	for (int i = 0; i < GOLDEN_FAMILIES; i++) {
		compare(golden_families[i], 1, 0, BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
		compare(golden_families[i], 1, 1, BOUND_ONE_ROW, NEAR_TIE_ONE_ROW);
		compare(golden_families[i], 7, 7, BOUND_ROWS, NEAR_TIE_ROWS);
		compare(golden_families[i], 256, 0, BOUND_ROWS, NEAR_TIE_ROWS);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(logits_and_greedy_text_are_those_of_transformers),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
