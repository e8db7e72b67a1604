/* Sampling on the GPU against the sampler of the engine: the same token for the same logits, settings and noise; and steps passed
 * through an exchange, rows that fill up a plan and tokens taken from the step before included. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "engine/exchange.h"
#include "engine/sampler.h"

#define LINES 24

/* A tool that watches every access gets fewer cases and more time. */
static int n_settings = 120; /* of sampling, each vocabulary */
static int64_t await_ns = 10000000000;

struct bed {
	struct kn_backend *backend;
	struct exchange *exchange;
	struct step step;
	void *step_memory;
	struct step_limits limits;
	int vocab;
	float *logits; /* [LINES][vocab] */
	void *device_logits;
	struct sampler *sampler;
};

static void ok(enum status status, const struct err *err)
{
	if (status)
		fail_msg("%s", err->text);
}

static void open_bed(struct bed *bed, int vocab)
{
	struct err err = {0};
	struct kn_options options = {.rows_max = LINES, .cols_max = 64};
	*bed = (struct bed){.vocab = vocab};
	bed->limits = (struct step_limits){.rows_max = LINES, .slots_max = 4, .blocks_per_slot_max = 8, .logits_max = LINES};
	ok(kn_cuda_ops.create(&options, &bed->backend, &err), &err);
	ok(exchange_create(&kn_cuda_ops, bed->backend, &bed->limits, vocab, &bed->exchange, &err), &err);
	bed->step_memory = mem_calloc(step_bytes(&bed->limits), 1);
	step_bind(&bed->limits, bed->step_memory, &bed->step);
	bed->logits = mem_calloc((size_t)LINES * (size_t)vocab, sizeof(float));
	ok(kn_cuda_ops.alloc(bed->backend, (size_t)LINES * (size_t)vocab * sizeof(float), &bed->device_logits, &err), &err);
	bed->sampler = sampler_create(vocab);
}

static void close_bed(struct bed *bed)
{
	sampler_destroy(bed->sampler);
	kn_cuda_ops.release(bed->backend, bed->device_logits, 0);
	mem_free(bed->logits);
	mem_free(bed->step_memory);
	exchange_destroy(bed->exchange);
	kn_cuda_ops.destroy(bed->backend);
}

/* Runs take and sample alone, for n_rows rows of which the step has fewer, and returns the outcomes. */
static const struct kn_sampled *run(struct bed *bed, int n_rows)
{
	struct err err = {0};
	struct exchange_outcome outcome;
	const struct kn_exchange *shared = exchange_shared(bed->exchange);
	exchange_post(bed->exchange, &bed->step);
	ok(kn_cuda_ops.take(bed->backend, shared, n_rows, &err), &err);
	ok(kn_cuda_ops.sample(bed->backend, shared, bed->device_logits, bed->vocab, n_rows, &err), &err);
	ok(exchange_await(bed->exchange, await_ns, &outcome, &err), &err);
	assert_true(outcome.end_ns >= outcome.begin_ns && outcome.begin_ns > 0);
	return outcome.sampled;
}

/* Line by line another kind of row: normal, spread wide, few values and so many equal ones, all equal, one peak, many -infinities.
 */
static void fill_logits(struct bed *bed, uint64_t seed)
{
	struct err err = {0};
	for (int line = 0; line < LINES; line++) {
		float *row = bed->logits + (size_t)line * (size_t)bed->vocab;
		for (int id = 0; id < bed->vocab; id++) {
			float normal = (float)random_normal(seed, (uint64_t)line, (uint64_t)id);
			const float kinds[] = {3 * normal, 40 * normal, floorf(2 * normal), 1.5f,
				id == bed->vocab / 3 ? 50 : normal, normal > 0.5f || id == 0 ? normal : -INFINITY};
			row[id] = kinds[line % 6];
		}
	}
	ok(kn_cuda_ops.to_device(
		   bed->backend, bed->device_logits, bed->logits, (size_t)LINES * (size_t)bed->vocab * sizeof(float), &err),
		&err);
	ok(kn_cuda_ops.synchronize(bed->backend, &err), &err);
}

static struct kn_sampling setting(int i, int line)
{
	static const double temperatures[] = {0, 0.7, 1, 2.5}, top_ps[] = {1, 0.9, 0.3, 1e-6, 0.999}, min_ps[] = {0, 0, 0.05};
	static const int top_ks[] = {0, 1, 20, 1000, 0, 5};
	return (struct kn_sampling){
		.temperature = temperatures[i % 4],
		.top_p = top_ps[i / 2 % 5],
		.min_p = min_ps[i / 3 % 3],
		.top_k = top_ks[i / 4 % 6],
		.seed = (uint64_t)i * 77 + 5,
		.position = 1000 * line + i,
		.wants_logprob = i % 2,
	};
}

static void check_line(struct bed *bed, int line, const struct kn_sampled *got)
{
	const struct kn_sampling *how = &bed->step.sampling[line];
	const struct sampling sampling = {
		.temperature = how->temperature,
		.top_p = how->top_p,
		.min_p = how->min_p,
		.top_k = how->top_k,
		.seed = how->seed,
		.logprobs = how->wants_logprob ? 0 : -1,
	};
	struct engine_token expected;
	struct err err = {0};
	ok(sampler_sample(bed->sampler, bed->logits + (size_t)line * (size_t)bed->vocab, &sampling, how->position, &expected, &err),
		&err);
	if (got->id != expected.id)
		fail_msg("vocabulary %d, line %d (T %g, top_k %d, top_p %g, min_p %g, seed %llu): token %d, expected %d",
			bed->vocab, line, how->temperature, how->top_k, how->top_p, how->min_p, (unsigned long long)how->seed,
			got->id, expected.id);
	assert_true(fabsf(got->logprob - expected.logprob) < 1e-5f);
}

static void tokens_are_those_of_the_reference_sampler(void **state)
{
	static const int vocabs[] = {2, 50, 64, 4096, 4097, 49152, 128256, 151936};
	for (size_t v = 0; v < sizeof vocabs / sizeof vocabs[0]; v += n_settings < 10 ? 4 : 1) {
		struct bed bed;
		open_bed(&bed, vocabs[v]);
		fill_logits(&bed, 9 + v);
		for (int i = 0; i < n_settings; i++) {
			*bed.step.n_rows = *bed.step.n_logits = LINES;
			for (int line = 0; line < LINES; line++) {
				bed.step.logit_rows[line] = line;
				bed.step.sampling[line] = setting(i + 7 * line, line);
			}
			const struct kn_sampled *sampled = run(&bed, LINES);
			for (int line = 0; line < LINES; line++)
				check_line(&bed, line, &sampled[line]);
		}
		close_bed(&bed);
	}
}

/* All logits of a large vocabulary equal: their weights sum up to as many as there are tokens. The share of 1e-6 is one token's. */
static void the_share_of_a_flat_row_does_not_overflow(void **state)
{
	enum { VOCAB = 1 << 18 };
	static const double top_ps[] = {0.5, 0.9, 1e-6};
	struct err err = {0};
	struct bed bed;
	open_bed(&bed, VOCAB);
	for (size_t i = 0; i < (size_t)LINES * VOCAB; i++)
		bed.logits[i] = 1.5f;
	ok(kn_cuda_ops.to_device(bed.backend, bed.device_logits, bed.logits, (size_t)LINES * VOCAB * sizeof(float), &err), &err);
	ok(kn_cuda_ops.synchronize(bed.backend, &err), &err);
	*bed.step.n_rows = *bed.step.n_logits = LINES;
	for (int line = 0; line < LINES; line++) {
		bed.step.logit_rows[line] = line;
		bed.step.sampling[line] =
			(struct kn_sampling){.temperature = 1, .top_p = top_ps[line % 3], .seed = 3, .position = line};
	}
	const struct kn_sampled *sampled = run(&bed, LINES);
	for (int line = 0; line < LINES; line++)
		check_line(&bed, line, &sampled[line]);
	close_bed(&bed);
}

static void broken_rows_are_told_apart(void **state)
{
	struct bed bed;
	struct err err = {0};
	open_bed(&bed, 1000);
	for (int i = 0; i < 3 * 1000; i++)
		bed.logits[i] = i < 2000 ? (float)(i % 7) : -INFINITY;
	bed.logits[321] = NAN;
	bed.logits[1999] = INFINITY;
	ok(kn_cuda_ops.to_device(bed.backend, bed.device_logits, bed.logits, (size_t)LINES * 1000 * sizeof(float), &err), &err);
	*bed.step.n_rows = *bed.step.n_logits = 4;
	for (int line = 0; line < 4; line++)
		bed.step.sampling[line] = (struct kn_sampling){.temperature = line % 2, .top_p = 0.5};
	const struct kn_sampled *sampled = run(&bed, 4);
	assert_int_equal(sampled[0].id, KN_SAMPLED_NAN);
	assert_int_equal(sampled[1].id, KN_SAMPLED_INFINITY);
	assert_int_equal(sampled[2].id, KN_SAMPLED_NOTHING);
	close_bed(&bed);
}

static void steps_arrive_filled_up_and_with_the_tokens_of_the_step_before(void **state)
{
	struct bed bed;
	struct err err = {0};
	int32_t tokens[LINES], positions[LINES], slots[LINES], tables[5 * 8];
	open_bed(&bed, 500);
	fill_logits(&bed, 3);
	const struct step *device = exchange_step(bed.exchange);
	*bed.step.n_rows = *bed.step.n_logits = 3;
	int32_t before[3] = {0};
	for (int turn = 0; turn < 5; turn++) {
		for (int row = 0; row < 3; row++) {
			bed.step.tokens[row] = 40 + row + turn;
			bed.step.positions[row] = 30 + turn + (row == 1);
			bed.step.slots[row] = row == 2 ? 3 : 1;
			bed.step.sources[row] = turn > 0 && row != 1 ? 3 - row : 0;
			bed.step.sampling[row] = setting(4 * turn + row, row);
		}
		for (int i = 0; i < 4 * 8; i++)
			bed.step.block_tables[i] = 100 * turn + i;
		const struct kn_sampled *sampled = run(&bed, 8);
		ok(kn_cuda_ops.to_host(bed.backend, tokens, device->tokens, sizeof tokens, &err), &err);
		ok(kn_cuda_ops.to_host(bed.backend, positions, device->positions, sizeof positions, &err), &err);
		ok(kn_cuda_ops.to_host(bed.backend, slots, device->slots, sizeof slots, &err), &err);
		ok(kn_cuda_ops.to_host(bed.backend, tables, device->block_tables, sizeof tables, &err), &err);
		for (int row = 0; row < 3; row++) {
			int source = bed.step.sources[row];
			assert_int_equal(tokens[row], source > 0 ? before[source - 1] : bed.step.tokens[row]);
			assert_int_equal(positions[row], bed.step.positions[row]);
			assert_int_equal(slots[row], bed.step.slots[row]);
			for (int b = 0; b <= positions[row] / KN_KV_BLOCK_TOKENS; b++)
				assert_int_equal(tables[slots[row] * 8 + b], 100 * turn + slots[row] * 8 + b);
		}
		for (int row = 3; row < 8; row++) {
			assert_int_equal(tokens[row], 0);
			assert_int_equal(positions[row], row - 3);
			assert_int_equal(slots[row], 4);
			assert_int_equal(tables[4 * 8], 0);
		}
		for (int row = 0; row < 3; row++)
			before[row] = sampled[row].id;
	}
	close_bed(&bed);
}

/* usage: test_sample_cuda [few] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(steps_arrive_filled_up_and_with_the_tokens_of_the_step_before),
		cmocka_unit_test(the_share_of_a_flat_row_does_not_overflow),
		cmocka_unit_test(broken_rows_are_told_apart),
		cmocka_unit_test(tokens_are_those_of_the_reference_sampler),
	};
	if (argc > 1 && strcmp(argv[1], "few") == 0) {
		n_settings = 4;
		await_ns = 300000000000;
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
