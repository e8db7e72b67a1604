/* The engine's switches: defaults, forms, refusals, and what setup makes of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "engine/options.h"
#include "engine/region.h"
#include "engine/setup.h"
#include "tests/support/tiny_gguf.h"

#define WORDS_MAX 16

/* Parses words as a command line would be, then checks. */
static enum status parse(const char *const *words, struct engine_options *options, struct err *err)
{
	struct option table[ENGINE_OPTIONS_COUNT_MAX];
	char storage[WORDS_MAX][64], *argv[WORDS_MAX + 1] = {storage[0]};
	int argc = 1;
	snprintf(storage[0], sizeof storage[0], "once");
	for (; words[argc - 1]; argc++) {
		snprintf(storage[argc], sizeof storage[argc], "%s", words[argc - 1]);
		argv[argc] = storage[argc];
	}
	engine_options_init(options);
	size_t count = engine_options_table(options, table, 0);
	enum status status = options_parse(table, count, argc, argv, 1, NULL, 0, NULL, err);
	if (status == STATUS_OK)
		status = engine_options_check(options, err);
	/* Strings are borrowed from words that end here: what tests look at later is numbers. */
	options->model_path = options->model_path ? "m.gguf" : NULL;
	return status;
}

static void defaults_are_accepted_with_a_model_alone(void **state)
{
	struct engine_options options;
	struct err err = {0};
	const char *const words[] = {"--model", "m.gguf", NULL};
	if (parse(words, &options, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	assert_int_equal(options.tp, 1);
	assert_int_equal(options.max_num_seqs, 16);
	assert_int_equal(options.graph_max_bs, 32);
	assert_string_equal(options.speculation, "off");
	assert_string_equal(options.mem_fraction, "auto");
	assert_string_equal(options.allreduce, "auto");
	assert_true(options.prefix_cache);
	assert_int_equal(options.mem_budget, 0);
}

static void every_switch_is_taken(void **state)
{
	struct engine_options options;
	struct err err = {0};
	const char *const words[] = {"--model=m.gguf", "--tp=3", "--threads=2", "--allreduce=shm-flag", "--allreduce-force",
		"--graph-max-bs=0", "--mem-fraction=0.25", "--mem-budget=2GiB", "--speculation=ngram", "--spec-draft-max=3",
		"--kv-type=f32", "--no-prefix-cache", "--max-model-len=512", "--isa=scalar", NULL};
	if (parse(words, &options, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	assert_int_equal(options.tp, 3);
	assert_true(options.allreduce_force);
	assert_false(options.prefix_cache);
	assert_int_equal(options.mem_budget, 2147483648ll);
	assert_int_equal(options.spec_draft_max, 3);
}

static void bad_values_are_refused_with_the_accepted_forms(void **state)
{
	static const struct {
		const char *words[4];
		const char *expected;
	} cases[] = {
		{{"--tp=2", NULL}, "--model PATH is required"},
		{{"--model=m", "--device=tpu", NULL}, "--device is 'tpu', expected one of: auto, cpu, cuda"},
		{{"--model=m", "--kv-type=int8", NULL}, "--kv-type is 'int8', expected one of: f16, f32"},
		{{"--model=m", "--speculation=eagle3", NULL}, "expected one of: off, ngram"},
		{{"--model=m", "--isa=sse", NULL}, "--isa is 'sse'"},
		{{"--model=m", "--mem-fraction=0", NULL}, "--mem-fraction is '0', expected auto or a number above 0 and at most 1"},
		{{"--model=m", "--mem-fraction=1.01", NULL}, "at most 1"},
		{{"--model=m", "--mem-fraction=nan", NULL}, "--mem-fraction is 'nan'"},
		{{"--model=m", "--mem-fraction=0,5", NULL}, "--mem-fraction is '0,5'"},
		{{"--model=m", "--mem-budget=2 GiB", NULL}, "--mem-budget is '2 GiB'"},
		{{"--model=m", "--mem-budget=0", NULL}, "--mem-budget is '0'"},
		{{"--model=m", "--allreduce=warp", NULL}, "warp"},
		{{"--model=m", "--allreduce=nccl", NULL}, "ref-socket"},
		{{"--model=m", "--allreduce-force", NULL}, "--allreduce-force needs a backend named by --allreduce"},
		{{"--model=m", "--spec-ngram-min=5", NULL}, "--spec-ngram-min 5 is above --spec-ngram-max 4"},
		{{"--model=m", "--tp=0", NULL}, "tp"},
		{{"--model=m", "--graph-max-bs=-1", NULL}, "graph-max-bs"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct engine_options options;
		struct err err = {0};
		assert_int_equal(parse(cases[i].words, &options, &err), STATUS_INPUT);
		if (!strstr(err.text, cases[i].expected))
			fail_msg("expected '%s' in: %s", cases[i].expected, err.text);
	}
}

static void sizes_have_units(void **state)
{
	static const struct {
		const char *text;
		long long bytes;
	} good[] = {
		{"1", 1},
		{"512B", 512},
		{"1K", 1024},
		{"1KiB", 1024},
		{"1KB", 1000},
		{"3M", 3 << 20},
		{"500MB", 500000000},
		{"1G", 1 << 30},
		{"2TiB", 2ll << 40},
	};
	static const char *const bad[] = {
		"", "G", "-1", "1.5G", "1 G", "1g", "1GiBs", "0x10", "99999999999999999999", "9999999999T"};
	long long bytes;
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		assert_true(engine_options_bytes(good[i].text, &bytes));
		assert_int_equal(bytes, good[i].bytes);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		if (engine_options_bytes(bad[i], &bytes))
			fail_msg("'%s' was taken for %lld bytes", bad[i], bytes);
}

/* ---- setup ---- */

struct opened {
	struct source source;
	struct model_config config;
	struct engine_options options;
};

static void open_tiny(struct opened *out)
{
	char path[TINY_PATH_BYTES];
	struct tiny_model model = tiny_model_default();
	tiny_model_write_temp(&model, path);
	*out = (struct opened){0};
	assert_int_equal(source_open(path, &out->source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&out->source, &out->config, NULL), STATUS_OK);
	unlink(path);
	engine_options_init(&out->options);
	out->options.model_path = "m.gguf";
}

static void setup_fills_in_what_was_left_open(void **state)
{
	struct opened tiny;
	struct setup setup;
	open_tiny(&tiny);
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, NULL), STATUS_OK);
	assert_int_equal(setup.rank.max_model_len, 256); /* the model's context */
	assert_int_equal(setup.chunk_tokens, 256); /* no prompt is longer */
	assert_int_equal(setup.rank.limits.rows_max, 256 + 16);
	assert_int_equal(setup.rank.limits.blocks_per_slot_max, 16);
	assert_int_equal(setup.rank.limits.slots_max, 16);
	assert_int_equal(setup.rank.limits.logits_max, 32);
	assert_int_equal(setup.rank.n_blocks, 16 * 16 + 1);
	assert_string_equal(setup.rank.device, "cpu");
	assert_in_range(setup.rank.threads, 1, 16);
	assert_true(setup.whys.threads[0] && setup.whys.graph_max_bs[0] && setup.whys.allreduce[0] && setup.whys.max_model_len[0]);

	/* Speculation widens decode steps. */
	tiny.options.speculation = "ngram";
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, NULL), STATUS_OK);
	assert_int_equal(setup.rank.limits.rows_max, 256 + 16 * 7);
	assert_int_equal(setup.rank.limits.logits_max, 16 * 7);
	source_close(&tiny.source);
}

static void setup_is_the_same_at_every_launch(void **state)
{
	struct opened tiny;
	struct setup a, b;
	open_tiny(&tiny);
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &a, NULL), STATUS_OK);
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &b, NULL), STATUS_OK);
	assert_memory_equal(&a.rank, &b.rank, sizeof a.rank);
	assert_int_equal(a.memplan.budget_bytes, b.memplan.budget_bytes);
	source_close(&tiny.source);
}

static void setup_keeps_steps_within_the_most_rows(void **state)
{
	struct opened tiny;
	struct setup setup;
	struct err err = {0};
	open_tiny(&tiny);
	tiny.config.context = tiny.options.max_model_len = 100000;
	tiny.options.chunk_tokens = 65536;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, NULL), STATUS_OK);
	assert_int_equal(setup.rank.limits.rows_max, KN_ROWS_MAX);
	assert_int_equal(setup.chunk_tokens, KN_ROWS_MAX - 16);
	assert_string_equal(setup.whys.chunk_tokens, "a step has at most 65535 rows, 16 of them for sequences");
	tiny.options.max_num_seqs = 4096;
	tiny.options.speculation = "ngram";
	tiny.options.spec_draft_max = 15;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, &err), STATUS_INPUT);
	assert_string_equal(err.code, "bad_option");
	assert_non_null(strstr(err.text, "are 65536 rows of one step, which has at most 65534"));
	source_close(&tiny.source);
}

static void setup_refuses_what_cannot_be(void **state)
{
	struct opened tiny;
	struct setup setup;
	struct err err = {0};
	open_tiny(&tiny);
	tiny.options.max_model_len = 257;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "--max-model-len 257 is above the model's context of 256"));
	err_clear(&err);
	tiny.options.max_model_len = 0;
	tiny.options.tp = 5;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, &err), STATUS_INPUT);
	assert_string_equal(err.code, "cannot_shard");
	err_clear(&err);
	tiny.options.tp = 1;
	tiny.options.device = "cuda";
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, &err), STATUS_UNAVAILABLE);
	assert_string_equal(err.code, "device_unavailable");
	err_clear(&err);
	tiny.options.device = "cpu";
	tiny.options.mem_budget = 1 << 20;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &setup, &err), STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	assert_non_null(strstr(err.details, "\"need_bytes\":"));
	source_close(&tiny.source);
}

static void more_ranks_cost_more_of_the_same_budget(void **state)
{
	struct opened tiny;
	struct setup one, two;
	open_tiny(&tiny);
	tiny.options.mem_budget = 1ll << 30;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &one, NULL), STATUS_OK);
	tiny.options.tp = 2;
	assert_int_equal(setup_resolve(&tiny.options, &tiny.source, &tiny.config, &two, NULL), STATUS_OK);
	assert_int_equal(one.memplan.request.collectives_bytes, 0);
	assert_true(two.memplan.request.collectives_bytes > 0);
	assert_true(two.memplan.request.workspace_bytes > one.memplan.request.workspace_bytes);
	assert_int_equal(two.memplan.request.block_bytes, one.memplan.request.block_bytes); /* 2 KV heads, one each */
	assert_int_equal(two.memplan.request.logits_bytes + two.memplan.request.collectives_bytes, region_bytes(&two.rank));
	source_close(&tiny.source);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_accepted_with_a_model_alone),
		cmocka_unit_test(every_switch_is_taken),
		cmocka_unit_test(bad_values_are_refused_with_the_accepted_forms),
		cmocka_unit_test(sizes_have_units),
		cmocka_unit_test(setup_fills_in_what_was_left_open),
		cmocka_unit_test(setup_is_the_same_at_every_launch),
		cmocka_unit_test(setup_keeps_steps_within_the_most_rows),
		cmocka_unit_test(setup_refuses_what_cannot_be),
		cmocka_unit_test(more_ranks_cost_more_of_the_same_budget),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
