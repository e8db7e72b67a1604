/* Tests of engine/scheduler: single facts, then random histories on a fake model whose "keys and values" are hashes of the
 * text: any row that would attend to another text, or to a block that was taken away, changes what is generated. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "engine/accept.h"
#include "engine/scheduler.h"

#define BLOCK KN_KV_BLOCK_TOKENS
#define LENGTH_MAX 160
#define SLOTS_MAX 8
#define BLOCKS_PER_SLOT (LENGTH_MAX / BLOCK)
#define REQUESTS_MAX 64
#define VOCAB 50

struct request {
	struct sequence sequence;
	int32_t tokens[LENGTH_MAX];
	int32_t expected[LENGTH_MAX]; /* the whole text, made without any scheduling */
	int32_t logits_seen; /* with all_logits: leading positions whose logits came, each once */
	int32_t n_cached; /* as first reported */
	bool started, alive;
};

struct bed {
	struct scheduler *scheduler;
	struct kvcache *kvcache;
	int32_t tables[SLOTS_MAX * BLOCKS_PER_SLOT];
	uint64_t content[128][BLOCK];
	struct request requests[REQUESTS_MAX];
	uint64_t seed, counter;
	int64_t steps, rows, drafted, accepted;
};

struct bed_options {
	int32_t n_blocks, slots, chunk, draft_rows, queue_max;
	bool prefix_cache;
	int32_t logits_max; /* 0: room for a draft of draft_rows in every slot */
};

static struct bed bed;

static void set_up(const struct bed_options *options, uint64_t seed)
{
	memset(&bed, 0, sizeof bed);
	bed.seed = seed;
	bed.kvcache = kvcache_create(&(struct kvcache_options){
		.n_blocks = options->n_blocks,
		.slots_max = options->slots,
		.blocks_per_slot_max = BLOCKS_PER_SLOT,
		.prefix_cache = options->prefix_cache,
		.hash_mask = UINT64_MAX,
		.block_tables = bed.tables,
	});
	int32_t rows = options->slots * (1 + options->draft_rows);
	bed.scheduler = scheduler_create(&(struct scheduler_options){
		.limits = {.rows_max = options->chunk + rows,
			.slots_max = options->slots,
			.blocks_per_slot_max = BLOCKS_PER_SLOT,
			.logits_max = options->logits_max > 0 ? options->logits_max : rows},
		.chunk_tokens = options->chunk,
		.queue_max = options->queue_max,
		.max_model_len = LENGTH_MAX,
		.kvcache = bed.kvcache,
	});
}

static void tear_down(void)
{
	scheduler_destroy(bed.scheduler);
	kvcache_destroy(bed.kvcache);
}

static uint64_t draw(uint64_t bound)
{
	return random_below(bed.seed, 1, bed.counter++, bound);
}

static void check(void)
{
	const char *wrong = scheduler_check(bed.scheduler);
	if (wrong)
		fail_msg("seed %llu, step %lld: %s", (unsigned long long)bed.seed, (long long)bed.steps, wrong);
}

/* --- Fake model ------------------------------------------------------------------------------------------------------ */

static uint64_t extend(uint64_t text_hash, int32_t token)
{
	return hash64_mix(text_hash * 31 + (uint64_t)token + 1);
}

static int32_t next_token(uint64_t text_hash)
{
	return (int32_t)(hash64_mix(text_hash ^ 0x5eed) % VOCAB);
}

static void write_expected(struct request *request)
{
	uint64_t text = 0;
	memcpy(request->expected, request->tokens, sizeof request->expected);
	for (int32_t i = 0; i < request->sequence.tokens_max; i++) {
		if (i >= request->sequence.n_prompt)
			request->expected[i] = next_token(text);
		text = extend(text, request->expected[i]);
	}
}

static uint64_t *cell(const struct sequence *sequence, int32_t position)
{
	int32_t block = bed.tables[sequence->slot * BLOCKS_PER_SLOT + position / BLOCK];
	assert_in_range(block, 1, 127);
	return &bed.content[block][position % BLOCK];
}

static int32_t token_at(const struct sequence *sequence, int32_t position)
{
	return position < sequence->n_tokens ? sequence->tokens[position] : sequence->drafts[position - sequence->n_tokens];
}

/* Writes each row's cell from the cell before it, as attention over the past would. */
static void run_part(const struct schedule_part *part)
{
	for (int32_t i = 0; i < part->n_rows; i++) {
		int32_t position = part->position + i;
		uint64_t past = position > 0 ? *cell(part->sequence, position - 1) : 0;
		*cell(part->sequence, position) = extend(past, token_at(part->sequence, position));
	}
}

static enum status sample(void *ctx, int32_t row, int32_t *token, bool *last, struct err *err)
{
	const struct schedule_part *part = ctx;
	int32_t position = part->position + part->n_rows - part->n_drafts - 1 + row;
	*token = next_token(*cell(part->sequence, position));
	*last = position + 2 >= part->sequence->tokens_max;
	return STATUS_OK;
}

static void finish(struct request *request)
{
	scheduler_end(bed.scheduler, &request->sequence);
	request->alive = false;
}

static void advance_part(const struct schedule_part *part)
{
	struct sequence *sequence = part->sequence;
	struct request *request = sequence->owner;
	int32_t tokens[DRAFTER_TOKENS_MAX + 1], drafts[DRAFTER_TOKENS_MAX];
	if (!request->started)
		request->n_cached = sequence->n_cached;
	request->started = true;
	assert_int_equal(sequence->n_cached, request->n_cached); /* also after a preemption */
	if (sequence->all_logits && part->position + part->n_rows > request->logits_seen) {
		assert_int_equal(part->position + part->n_rows - part->n_logits, request->logits_seen);
		request->logits_seen += part->n_logits;
	}
	struct accept_result result = {0};
	if (part->samples) {
		memcpy(drafts, sequence->drafts, sizeof drafts);
		assert_int_equal(accept_chain(drafts, part->n_drafts, sample, (void *)part, &result, NULL), STATUS_OK);
		for (int32_t i = 0; i < result.n_tokens; i++) {
			bool last;
			sample((void *)part, i, &tokens[i], &last, NULL);
		}
	}
	bed.drafted += part->n_drafts;
	bed.accepted += result.n_accepted;
	scheduler_advance(bed.scheduler, part, tokens, result.n_tokens, result.n_accepted);
	assert_int_equal(kvcache_held(bed.kvcache, sequence->slot), kvcache_blocks_for(sequence->n_computed));
	if (memcmp(sequence->tokens, request->expected, (size_t)sequence->n_tokens * sizeof(int32_t)) != 0)
		fail_msg("seed %llu, step %lld: a text differs from the one made alone", (unsigned long long)bed.seed,
			(long long)bed.steps);
	if (sequence->n_tokens == sequence->tokens_max)
		finish(request);
}

/* Drafts that are right for a random while. */
static void offer_drafts(int32_t max)
{
	struct sequence *sequence;
	for (int32_t i = 0; (sequence = scheduler_running(bed.scheduler, i)); i++) {
		int32_t room = scheduler_may_draft(sequence);
		sequence->n_drafts = room < max ? room : max;
		const struct request *request = sequence->owner;
		for (int32_t k = 0; k < sequence->n_drafts; k++)
			sequence->drafts[k] = request->expected[sequence->n_tokens + k] + (draw(5) == 0);
	}
}

static bool run_step(const struct bed_options *options)
{
	struct schedule schedule;
	offer_drafts((int32_t)draw((uint64_t)options->draft_rows + 1));
	scheduler_plan(bed.scheduler, &schedule);
	check();
	int32_t n_rows = 0, n_logits = 0, n_prefill = 0;
	for (int32_t i = 0; i < schedule.n_parts; i++) {
		const struct schedule_part *part = &schedule.parts[i];
		assert_int_equal(part->row, n_rows);
		assert_int_equal(part->logit, n_logits);
		n_rows += part->n_rows;
		n_logits += part->n_logits;
		n_prefill += i >= schedule.n_decode_parts ? part->n_rows : 0;
		run_part(part);
	}
	assert_int_equal(n_rows, schedule.n_rows);
	assert_int_equal(n_logits, schedule.n_logits);
	assert_int_equal(n_prefill, schedule.n_prefill_rows);
	assert_true(n_prefill <= options->chunk);
	assert_true(n_logits <= options->slots * (1 + options->draft_rows));
	for (int32_t i = 0; i < schedule.n_parts; i++)
		advance_part(&schedule.parts[i]);
	bed.steps++;
	bed.rows += n_rows;
	check();
	return schedule.n_parts > 0;
}

static struct request *submit(int32_t n_prompt, int32_t n_answer, int32_t first_token, enum status expected)
{
	struct request *request = bed.requests;
	while (request->alive)
		request++;
	memset(request, 0, sizeof *request);
	for (int32_t i = 0; i < LENGTH_MAX; i++)
		request->tokens[i] = (first_token + i / 40) % VOCAB;
	request->sequence = (struct sequence){
		.tokens = request->tokens, .n_prompt = n_prompt, .tokens_max = n_prompt + n_answer, .owner = request};
	assert_int_equal(scheduler_submit(bed.scheduler, &request->sequence, NULL), expected);
	request->alive = expected == STATUS_OK;
	if (request->alive)
		write_expected(request);
	return request;
}

static struct kvcache_counts blocks(void)
{
	struct kvcache_counts counts;
	kvcache_counts(bed.kvcache, &counts);
	return counts;
}

static struct scheduler_counts counts(void)
{
	struct scheduler_counts out;
	scheduler_counts(bed.scheduler, &out);
	return out;
}

/* --- Single facts ---------------------------------------------------------------------------------------------------- */

static void requests_that_can_never_fit_are_refused_and_block_nobody(void **state)
{
	const struct bed_options options = {.n_blocks = 9, .slots = 2, .chunk = 32, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	for (int32_t prompt = 120; prompt <= 128; prompt++)
		for (int32_t answer = 1; answer <= 9; answer++) { /* 8 blocks: 128 positions, and the last token needs none */
			bool fits = prompt + answer - 1 <= 128;
			struct request *request = submit(prompt, answer, prompt, fits ? STATUS_OK : STATUS_INPUT);
			if (fits && prompt + answer - 1 < 128)
				finish(request);
		}
	submit(100, LENGTH_MAX, 0, STATUS_INPUT);
	submit(0, 5, 0, STATUS_INPUT);
	submit(5, 0, 0, STATUS_INPUT);
	submit(1, 1, 0, STATUS_OK);
	for (int step = 0; step < 500 && (counts().running > 0 || counts().waiting > 0); step++)
		assert_true(run_step(&options));
	assert_int_equal(counts().running + counts().waiting, 0);
	assert_int_equal(blocks().used, 0);
	tear_down();
}

static void a_full_queue_refuses_and_preempted_ones_do_not_count(void **state)
{
	const struct bed_options options = {.n_blocks = 9, .slots = 2, .chunk = 64, .queue_max = 3, .prefix_cache = true};
	set_up(&options, 1);
	for (int i = 0; i < 3; i++)
		submit(30, 90, i, STATUS_OK);
	submit(30, 90, 9, STATUS_UNAVAILABLE);
	run_step(&options);
	assert_int_equal(counts().running, 2);
	submit(30, 90, 10, STATUS_OK);
	submit(30, 90, 11, STATUS_OK);
	submit(30, 90, 12, STATUS_UNAVAILABLE);
	while (counts().preemptions == 0)
		assert_true(run_step(&options));
	assert_int_equal(counts().waiting, 4); /* three fresh ones and the preempted one */
	for (int step = 0; step < 2000 && counts().running + counts().waiting > 0; step++)
		run_step(&options);
	assert_int_equal(counts().running + counts().waiting, 0);
	tear_down();
}

static void decoding_goes_on_while_a_long_prompt_is_computed(void **state)
{
	const struct bed_options options = {.n_blocks = 40, .slots = 3, .chunk = 8, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *talker = submit(4, 40, 0, STATUS_OK);
	run_step(&options);
	submit(150, 5, 7, STATUS_OK);
	submit(20, 5, 17, STATUS_OK);
	int32_t before = talker->sequence.n_tokens;
	for (int step = 0; step < 15; step++)
		run_step(&options);
	assert_int_equal(talker->sequence.n_tokens, before + 15);
	tear_down();
}

static void drafts_leave_a_row_for_every_decoding_sequence(void **state)
{
	const struct bed_options options = {
		.n_blocks = 40, .slots = 3, .chunk = 24, .draft_rows = 6, .queue_max = 10, .prefix_cache = true, .logits_max = 5};
	struct schedule schedule;
	set_up(&options, 1);
	for (int32_t i = 0; i < 3; i++)
		submit(4, 60, 11 * i, STATUS_OK);
	run_step(&options); /* all three prompts */
	assert_int_equal(counts().running, 3);
	offer_drafts(6);
	scheduler_plan(bed.scheduler, &schedule);
	assert_int_equal(schedule.n_parts, 3);
	assert_int_equal(schedule.n_decode_parts, 3);
	assert_int_equal(schedule.n_logits, 5);
	assert_int_equal(schedule.parts[0].n_drafts, 2); /* five lines of logits, one for each of the three */
	assert_int_equal(schedule.parts[1].n_drafts + schedule.parts[2].n_drafts, 0);
	tear_down();
}

static void a_cached_prompt_leaves_one_block_to_compute(void **state)
{
	const struct bed_options options = {.n_blocks = 40, .slots = 3, .chunk = 64, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *cold = submit(48, 2, 3, STATUS_OK);
	while (cold->alive)
		run_step(&options);
	assert_int_equal(cold->sequence.n_cached, 0);
	bed.rows = 0;
	struct request *warm = submit(48, 2, 3, STATUS_OK);
	while (warm->alive)
		run_step(&options);
	assert_int_equal(warm->sequence.n_cached, 32);
	assert_int_equal(bed.rows, 16 + 1);
	kvcache_flush(bed.kvcache);
	struct request *flushed = submit(48, 2, 3, STATUS_OK);
	while (flushed->alive)
		run_step(&options);
	assert_int_equal(flushed->sequence.n_cached, 0);
	tear_down();
}

static void a_prompt_given_up_half_way_leaves_only_finished_blocks(void **state)
{
	const struct bed_options options = {.n_blocks = 11, .slots = 2, .chunk = 24, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *quitter = submit(150, 5, 3, STATUS_OK);
	for (int step = 0; step < 3; step++)
		run_step(&options);
	finish(quitter);
	assert_int_equal(blocks().cached, 72 / BLOCK);
	struct request *filler = submit(100, 20, 30, STATUS_OK);
	while (filler->alive)
		run_step(&options);
	struct request *again = submit(150, 5, 3, STATUS_OK); /* run_step compares its text with the one made alone */
	while (again->alive)
		run_step(&options);
	assert_int_equal(blocks().used, 0);
	tear_down();
}

static void a_prompt_waits_for_blocks_that_another_prompt_will_need(void **state)
{
	const struct bed_options options = {.n_blocks = 9, .slots = 4, .chunk = 120, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *first = submit(96, 10, 1, STATUS_OK); /* 6 blocks, and a seventh soon */
	struct request *second = submit(16, 10, 2, STATUS_OK); /* 2 blocks with its first answer token: one too many */
	run_step(&options);
	assert_int_equal(first->sequence.state, SEQUENCE_RUNNING);
	assert_int_equal(second->sequence.state, SEQUENCE_WAITING);
	struct request *third = submit(1, 2, 3, STATUS_OK); /* would fit, but does not overtake */
	run_step(&options);
	assert_int_equal(third->sequence.state, SEQUENCE_WAITING);
	while (first->alive || second->alive || third->alive)
		assert_true(run_step(&options));
	assert_int_equal(counts().preemptions, 0);
	tear_down();
}

static void a_preempted_sequence_comes_back_before_those_that_never_ran(void **state)
{
	const struct bed_options options = {.n_blocks = 9, .slots = 2, .chunk = 64, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *first = submit(30, 90, 1, STATUS_OK), *second = submit(30, 90, 2, STATUS_OK);
	struct request *fresh = submit(30, 90, 3, STATUS_OK);
	while (counts().preemptions == 0)
		assert_true(run_step(&options));
	assert_int_equal(second->sequence.state, SEQUENCE_WAITING);
	while (second->sequence.state == SEQUENCE_WAITING) {
		assert_int_equal(fresh->sequence.state, SEQUENCE_WAITING);
		assert_true(run_step(&options));
	}
	while (first->alive || second->alive || fresh->alive)
		assert_true(run_step(&options));
	tear_down();
}

static void all_logits_cover_every_prompt_position_once(void **state)
{
	const struct bed_options options = {
		.n_blocks = 40, .slots = 3, .chunk = 64, .draft_rows = 2, .queue_max = 10, .prefix_cache = true};
	set_up(&options, 1);
	struct request *cold = submit(48, 1, 3, STATUS_OK);
	while (cold->alive)
		run_step(&options);
	struct request *request = submit(48, 3, 3, STATUS_OK);
	request->sequence.all_logits = true;
	int32_t seen = 0;
	while (request->alive) {
		struct schedule schedule;
		scheduler_plan(bed.scheduler, &schedule);
		assert_int_equal(schedule.n_parts, 1);
		const struct schedule_part *part = &schedule.parts[0];
		assert_int_equal(part->position, seen); /* nothing cached is taken over */
		assert_int_equal(part->n_rows, part->n_logits);
		seen += part->n_logits;
		run_part(part);
		advance_part(part);
	}
	assert_int_equal(seen, 50);
	tear_down();
}

/* --- Random histories ------------------------------------------------------------------------------------------------ */

static void submit_random(const struct bed_options *options)
{
	int32_t n_alive = 0;
	for (int i = 0; i < REQUESTS_MAX; i++)
		n_alive += bed.requests[i].alive;
	if (n_alive >= REQUESTS_MAX - 1)
		return;
	int32_t most = (options->n_blocks - 1) * BLOCK + 1;
	most = most < LENGTH_MAX ? most : LENGTH_MAX;
	int32_t total = 2 + (int32_t)draw((uint64_t)most - 1), prompt = 1 + (int32_t)draw((uint64_t)total - 1);
	bool full = counts().waiting >= options->queue_max; /* preempted ones do not count, so this is only an upper bound */
	struct request *request = bed.requests;
	while (request->alive)
		request++;
	if (!full)
		request = submit(prompt, total - prompt, (int32_t)draw(4), STATUS_OK);
	if (request->alive && draw(6) == 0)
		request->sequence.all_logits = true;
}

static void cancel_random(void)
{
	struct request *request = &bed.requests[draw(REQUESTS_MAX)];
	if (request->alive)
		finish(request);
}

static void texts_do_not_depend_on_scheduling_in_random_histories(void **state)
{
	uint64_t preemptions = 0, hits = 0;
	int64_t accepted = 0;
	for (uint64_t seed = 1; seed <= 60; seed++) {
		const struct bed_options options = {
			.n_blocks = 4 + (int32_t)(seed * 7 % 60),
			.slots = 1 + (int32_t)(seed % SLOTS_MAX),
			.chunk = 1 + (int32_t)(seed * 13 % 48),
			.draft_rows = (int32_t)(seed % 5),
			.queue_max = 12,
			.prefix_cache = seed % 3 != 0,
		};
		set_up(&options, seed);
		for (int i = 0; i < 400; i++) {
			if (draw(3) == 0)
				submit_random(&options);
			if (draw(12) == 0)
				cancel_random();
			if (draw(200) == 0)
				kvcache_flush(bed.kvcache);
			bool moved = run_step(&options);
			assert_true(moved || counts().running + counts().waiting == 0);
		}
		for (int i = 0; i < 40000 && counts().running + counts().waiting > 0; i++) /* bounded: each step makes a row */
			assert_true(run_step(&options));
		assert_int_equal(counts().running + counts().waiting, 0);
		assert_int_equal(blocks().used, 0);
		assert_int_equal(blocks().free + blocks().cached, blocks().total);
		preemptions += counts().preemptions;
		hits += blocks().hits;
		accepted += bed.accepted;
		tear_down();
	}
	assert_true(preemptions > 100 && hits > 100 && accepted > 100); /* the histories reach what they are about */
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_that_can_never_fit_are_refused_and_block_nobody),
		cmocka_unit_test(a_full_queue_refuses_and_preempted_ones_do_not_count),
		cmocka_unit_test(decoding_goes_on_while_a_long_prompt_is_computed),
		cmocka_unit_test(drafts_leave_a_row_for_every_decoding_sequence),
		cmocka_unit_test(a_cached_prompt_leaves_one_block_to_compute),
		cmocka_unit_test(a_prompt_given_up_half_way_leaves_only_finished_blocks),
		cmocka_unit_test(a_prompt_waits_for_blocks_that_another_prompt_will_need),
		cmocka_unit_test(a_preempted_sequence_comes_back_before_those_that_never_ran),
		cmocka_unit_test(all_logits_cover_every_prompt_position_once),
		cmocka_unit_test(texts_do_not_depend_on_scheduling_in_random_histories),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
