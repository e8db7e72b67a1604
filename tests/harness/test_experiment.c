/* harness/experiment: what files mean and how they expand. What is refused: test_experiment_files.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/experiment_text.h"

static const struct arm *arm_named(const struct experiment *experiment, const char *name)
{
	for (int i = 0; i < experiment->n_arms; i++)
		if (text_equal(experiment->arms[i].name, name))
			return &experiment->arms[i];
	return NULL;
}

static void the_smallest_file_gets_sensible_defaults(void **state)
{
	struct experiment *e = experiment_from_text("{'name':'s','matrix':{'factors':{'speculation':['off','ngram']}}}");
	assert_string_equal(e->engine.adapter, "builtin");
	assert_int_equal(e->n_arms, 3);
	assert_string_equal(e->arms[0].name, "baseline");
	assert_int_equal(e->arms[1].kind, ARM_AA_TWIN);
	assert_string_equal(e->arms[1].name, "A/A twin");
	assert_string_equal(e->arms[0].config_hash, e->arms[1].config_hash);
	assert_string_equal(e->arms[2].name, "speculation=ngram");
	assert_string_not_equal(e->arms[0].config_hash, e->arms[2].config_hash);
	assert_int_equal(e->arms[2].n_changed, 1);
	assert_string_equal(e->arms[2].changed[0].text, "ngram");
	assert_int_equal(e->n_workloads, 1);
	assert_string_equal(e->workloads[0].endpoint, "/v1/chat/completions");
	assert_int_equal(e->workloads[0].dataset, DATASET_TEXT);
	assert_true(e->workloads[0].prompts.count > 0 && !e->workloads[0].ignore_eos);
	assert_int_equal(e->protocol.blocks, 3);
	assert_int_equal(e->protocol.n_looks, 1);
	assert_string_equal(e->rules.metric, "output_tps");
	assert_true(e->rules.higher_is_better && e->rules.min_effect_pct == 2 && e->rules.alpha == 0.05);
	assert_int_equal(e->notices.count, 0);
	experiment_release(e);
}

#define ENGINES \
	"'engine':{'model':'m'},'engines':{'a':{'params':{'tp':2}},'b':{'adapter':'command','command':['x'],'flags':{'threads':'-" \
	"t'}}}"

static void engines_are_values_of_a_knob(void **state)
{
	struct experiment *e = experiment_from_text("{'name':'s'," ENGINES ",'baseline':{'params':{'engine':'b','threads':1}},"
						    "'matrix':{'factors':{'engine':['b','a'],'threads':[1,2]}}}");
	assert_int_equal(e->n_arms, 4);
	assert_string_equal(e->engine.name, "b");
	assert_string_equal(e->engine.model, "m");
	assert_string_equal(arm_engine(e, &e->arms[1])->adapter, "command");
	assert_string_equal(e->arms[0].config_hash, e->arms[1].config_hash);
	const struct arm *other = arm_named(e, "engine=a");
	assert_string_equal(arm_engine(e, other)->adapter, "builtin");
	assert_int_equal(other->n_changed, 1);
	assert_int_equal(other->n_settings, 3);
	assert_string_equal(other->settings[2].knob, "tp");
	assert_int_equal(arm_named(e, "threads=2")->n_settings, 2);
	experiment_release(e);
}

static void one_factor_at_a_time_changes_one_knob_in_each_arm(void **state)
{
	struct experiment *e = experiment_from_text(
		"{'name':'s','baseline':{'name':'base','params':{'allreduce':'auto','graph_max_bs':8,'mem_fraction':0.85}},"
		"'matrix':{'factors':{'allreduce':['auto','ref-socket'],'graph_max_bs':[0,8],'mem_fraction':[0.85,0.2]},"
		"'include':[{'name':'both','allreduce':'ref-socket','graph_max_bs':0}],'exclude':[{'mem_fraction':0.2}]}}");
	assert_int_equal(e->n_arms, 5);
	assert_string_equal(e->arms[0].name, "base");
	assert_string_equal(e->arms[2].name, "allreduce=ref-socket");
	assert_string_equal(e->arms[3].name, "graph_max_bs=0");
	assert_string_equal(e->arms[4].name, "both");
	assert_int_equal(e->arms[4].n_changed, 2);
	assert_int_equal(e->arms[4].n_settings, 3);
	assert_string_equal(e->arms[4].settings[2].text, "0.85");
	experiment_release(e);
}

static void a_grid_is_the_product_without_the_baselines_point(void **state)
{
	struct experiment *e = experiment_from_text("{'name':'s','matrix':{'mode':'grid','aa_twin':false,"
						    "'factors':{'max_num_seqs':[128,256],'graph_max_bs':[1024,2048,4096]}}}");
	assert_int_equal(e->n_arms, 6); /* the baseline is one of the six points */
	assert_string_equal(e->arms[1].name, "graph_max_bs=2048");
	assert_string_equal(e->arms[5].name, "max_num_seqs=256+graph_max_bs=4096");
	experiment_release(e);
}

/* Seven tests at seven concurrencies, as a published suite of serving tests has them. */
static void tests_times_concurrencies_give_one_workload_each(void **state)
{
	struct text text = {0};
	text_append_str(&text, "{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]}},'workloads':[");
	for (int i = 0; i < 7; i++)
		text_printf(&text, "%s{'name':'t%d','concurrency':[12,16,24,32,64,128,200],'dataset':{'input_len':%d}}",
			i ? "," : "", i, 128 << i);
	text_append_str(&text, "]}");
	struct experiment *e = experiment_from_text(text_str(&text));
	assert_int_equal(e->n_workloads, 49);
	assert_string_equal(e->workloads[48].name, "t6-c200");
	assert_int_equal(e->workloads[48].requests, 800);
	experiment_release(e);
	text_release(&text);
}

/* 240 valid ones of 750 combinations: what a rule over several knobs leaves is written as a list, with derived values in it. */
static void a_list_holds_what_a_constraint_leaves_of_a_grid(void **state)
{
	static const int batches[] = {1, 2, 4, 8, 16}, steps[] = {0, 1, 3, 5, 7}, topks[] = {0, 1, 2, 4, 8},
			 drafts[] = {0, 2, 4, 8, 16, 32};
	struct text text = {0};
	int valid = 0;
	text_append_str(&text,
		"{'name':'s','engine':{'adapter':'command','command':['x'],'flags':{'b':'-b','s':'-s','k':'-k','d':'-d','m':'-m'}},"
		"'baseline':{'params':{'b':0,'s':0,'k':0,'d':0,'m':0}},'matrix':{'mode':'list','aa_twin':false,'arms':[");
	for (int i = 0; i < 5 * 5 * 5 * 6; i++) {
		int b = batches[i / 150], s = steps[i / 30 % 5], k = topks[i / 6 % 5], d = drafts[i % 6];
		if (s * k + 1 < d || !((s == 0 && k == 0 && d == 0) || (s > 0 && k > 0 && d > 0)))
			continue;
		text_printf(&text, "%s{'b':%d,'s':%d,'k':%d,'d':%d,'m':%d}", valid++ ? "," : "", b, s, k, d, b);
	}
	text_append_str(&text, "]}}");
	assert_int_equal(valid, 240);
	struct experiment *e = experiment_from_text(text_str(&text));
	assert_int_equal(e->n_arms, 241);
	assert_int_equal(e->notices.count, 0);
	experiment_release(e);
	text_release(&text);
}

static void list_values_of_a_factor_are_single_values(void **state)
{
	struct experiment *e = experiment_from_text(
		"{'name':'s','engine':{'adapter':'command','command':['x'],'flags':{'max_batch_size':'-a','preferred':'-b','delay':"
		"'-c','instances':'-d'}},"
		"'matrix':{'mode':'grid','aa_twin':false,'factors':{'max_batch_size':[6,8],'preferred':[[1],[2],[3]],'delay':[200,"
		"300],"
		"'instances':[1,2]}},'workloads':[{'concurrency':[1,2,4,8,16,32,64,128,256,512,1024],'dataset':{'input_len':8}}]}");
	assert_int_equal(e->n_arms * e->n_workloads, 264);
	assert_non_null(arm_named(e, "preferred=[2]"));
	assert_string_equal(e->workloads[10].name, "random-c1024");
	experiment_release(e);
}

static void a_list_keeps_its_order_and_drops_repeats_with_a_notice(void **state)
{
	struct experiment *e = experiment_from_text(
		"{'name':'s','baseline':{'params':{'max_num_seqs':4,'graph_max_bs':8}},'matrix':{'mode':'list','aa_twin':false,'"
		"arms':["
		"{'name':'z','max_num_seqs':10,'graph_max_bs':1},{'max_num_seqs':40,'graph_max_bs':4},{'max_num_seqs':4},"
		"{'graph_max_bs':4,'max_num_seqs':40}]}}");
	assert_int_equal(e->n_arms, 3);
	assert_string_equal(e->arms[1].name, "z");
	assert_string_equal(e->arms[2].name, "max_num_seqs=40+graph_max_bs=4");
	assert_int_equal(e->notices.count, 2);
	assert_string_equal(e->notices.items[0], "matrix.arms[2] repeats the baseline and is left out");
	assert_string_equal(e->notices.items[1], "matrix.arms[3] repeats max_num_seqs=40+graph_max_bs=4 and is left out");
	experiment_release(e);
}

static void an_exclusion_that_matches_nothing_is_noticed(void **state)
{
	struct experiment *e =
		experiment_from_text("{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]},'exclude':[{'graph_max_bs':99}]}}");
	assert_int_equal(e->notices.count, 1);
	assert_string_equal(e->notices.items[0], "matrix.exclude[0] matches no arm");
	experiment_release(e);
}

static void check_range(const char *range, const char *expected)
{
	struct text text = {0}, got = {0};
	text_printf(&text,
		"{'name':'s','engine':{'adapter':'command','command':['x'],'flags':{'k':'-k'}},'baseline':{'params':{'k':-1}},'"
		"matrix':{'aa_twin':false,'factors':{'k':%s}}}",
		range);
	struct experiment *e = experiment_from_text(text_str(&text));
	for (int i = 1; i < e->n_arms; i++)
		text_printf(&got, "%s%s", i > 1 ? " " : "", e->arms[i].changed[0].text);
	assert_string_equal(text_str(&got), expected);
	experiment_release(e);
	text_release(&text);
	text_release(&got);
}

static void ranges_end_at_the_last_step_inside(void **state)
{
	check_range("{'from':128,'to':1024,'times':2}", "128 256 512 1024");
	check_range("{'from':10,'to':50,'step':10}", "10 20 30 40 50");
	check_range("{'from':1,'to':8,'step':1}", "1 2 3 4 5 6 7 8");
	check_range("{'from':1,'to':10,'step':4}", "1 5 9");
	check_range("{'from':0.9,'to':0.95,'step':0.01}", "0.9 0.91 0.92 0.93 0.94 0.95");
	check_range("{'from':1,'to':1024,'times':2}", "1 2 4 8 16 32 64 128 256 512 1024");
}

/* Numbers of values that a large published search space has, without enumerating the product. */
static void long_ranges_have_exactly_their_values(void **state)
{
	static const struct {
		const char *range;
		int count;
	} cases[] = {
		{"{'from':11500,'to':96000,'step':1024}", 83},
		{"{'from':8,'to':8192,'step':128}", 64},
		{"{'from':0,'to':11500,'step':256}", 45},
		{"{'from':4096,'to':16384,'step':1024}", 13},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text text = {0};
		text_printf(&text,
			"{'name':'s','engine':{'adapter':'command','command':['x'],'flags':{'k':'-k'}},'baseline':{'params':{'k':-"
			"1}},'matrix':{'aa_twin':false,'factors':{'k':%s}}}",
			cases[i].range);
		struct experiment *e = experiment_from_text(text_str(&text));
		assert_int_equal(e->n_arms - 1, cases[i].count);
		experiment_release(e);
		text_release(&text);
	}
}

static void values_keep_their_kind_and_their_text(void **state)
{
	struct experiment *e = experiment_from_text(
		"{'name':'s','engine':{'adapter':'command','command':['x'],'flags':{'k':'-k'}},'baseline':{'params':{'k':'8'}},"
		"'matrix':{'aa_twin':false,'factors':{'k':[8,8.5,true,null,'','a b',{'x':1}]}}}");
	assert_int_equal(e->n_arms, 8);
	static const char *const names[] = {"k=8", "k=8.5", "k=true", "k=null", "k=", "k=a_b", "k={\"x\":1}"};
	for (int i = 0; i < 7; i++)
		assert_string_equal(e->arms[i + 1].name, names[i]);
	assert_int_equal(json_kind_of(e->arms[1].changed[0].value), JSON_KIND_INTEGER);
	assert_string_equal(e->arms[6].changed[0].text, "a b");
	experiment_release(e);
}

static void workloads_apply_to_the_arms_that_match(void **state)
{
	struct experiment *e = experiment_from_text(
		"{'name':'s','matrix':{'factors':{'speculation':['off','ngram'],'graph_max_bs':[8,0]}},'workloads':["
		"{'name':'all'},{'name':'some','applies_to':[{'speculation':'ngram'},{'baseline':true}]}]}");
	static const bool expected[] = {true, true, true, false};
	for (int arm = 0; arm < 4; arm++) {
		assert_true(e->workloads[0].applies[arm]);
		assert_int_equal(e->workloads[1].applies[arm], expected[arm]);
	}
	experiment_release(e);
}

static void speculation_on_random_tokens_only_is_noticed(void **state)
{
	struct experiment *e =
		experiment_from_text("{'name':'s','matrix':{'factors':{'speculation':['off','ngram']}},"
				     "'workloads':[{'dataset':{'kind':'random_ids','input_len':32,'output_len':8}}]}");
	assert_int_equal(e->notices.count, 1);
	assert_non_null(strstr(e->notices.items[0], "speculation=ngram is measured on random tokens only"));
	experiment_release(e);
}

static void looks_are_derived_or_taken_as_written(void **state)
{
	static const struct {
		const char *protocol;
		int n, looks[3];
	} cases[] = {
		{"{}", 1, {3}},
		{"{'blocks':5}", 1, {5}},
		{"{'blocks':3,'max_blocks':8}", 3, {3, 5, 8}},
		{"{'max_blocks':4}", 2, {3, 4}},
		{"{'looks':[3,4,6]}", 3, {3, 4, 6}},
		{"{'blocks':3,'max_blocks':8,'looks':[3,8]}", 2, {3, 8}},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text text = {0};
		text_printf(&text, "{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0]}},'protocol':%s}", cases[i].protocol);
		struct experiment *e = experiment_from_text(text_str(&text));
		assert_int_equal(e->protocol.n_looks, cases[i].n);
		assert_memory_equal(e->protocol.looks, cases[i].looks, (size_t)cases[i].n * sizeof(int));
		assert_int_equal(e->protocol.blocks, cases[i].looks[0]);
		assert_int_equal(e->protocol.max_blocks, cases[i].looks[cases[i].n - 1]);
		experiment_release(e);
		text_release(&text);
	}
}

#define FACTORS "'matrix':{'factors':{'graph_max_bs':[8,0]}}"
static void settings_from_the_command_line_win(void **state)
{
	static const char *const set[] = {
		"protocol.blocks=5", "workloads[0].requests=8", "engine.env.A=1 2", "matrix.factors.graph_max_bs[1]=16"};
	const struct experiment_overrides overrides = {.set = set, .n_set = 4, .model = "m.gguf"};
	struct experiment *e = experiment_from_text_with("{'name':'s'," FACTORS ",'workloads':[{'requests':2}]}", &overrides);
	assert_int_equal(e->protocol.blocks, 5);
	assert_int_equal(e->workloads[0].requests, 8);
	assert_string_equal(e->engine.env[0].value, "1 2");
	assert_string_equal(e->arms[2].name, "graph_max_bs=16");
	assert_string_equal(e->engine.model, "m.gguf");
	experiment_release(e);
}

static void bad_settings_from_the_command_line_are_refused(void **state)
{
	static const char *const bad[] = {"", "x", "=3", "a..b=1", "protocol.=1", "workloads[9].requests=1", "workloads[x]=1",
		"name.first=1", "protocol.bloks=3", "protocol.blocks=many", "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		static const char text[] = "{\"name\":\"s\",\"matrix\":{\"factors\":{\"graph_max_bs\":[8,0]}}}";
		const struct experiment_overrides overrides = {.set = &bad[i], .n_set = 1};
		struct experiment *e = NULL;
		struct err err = {0};
		if (experiment_parse(text, sizeof text - 1, "x.json", &overrides, &e, &err) != STATUS_INPUT)
			fail_msg("--set %s is accepted", bad[i]);
	}
}

static void only_keeps_one_candidate_and_the_references(void **state)
{
	struct experiment_overrides overrides = {.only = "graph_max_bs=16"};
	static const char text[] = "{'name':'s','matrix':{'factors':{'graph_max_bs':[8,0,16]}}}";
	struct experiment *e = experiment_from_text_with(text, &overrides), *all = experiment_from_text(text);
	assert_int_equal(e->n_arms, 3);
	assert_string_equal(e->arms[2].name, "graph_max_bs=16");
	assert_string_not_equal(e->hash, all->hash);
	experiment_release(e);
	experiment_release(all);
	struct err err = {0};
	overrides.only = "graph_max_bs=17";
	assert_int_equal(experiment_parse("{\"name\":\"s\",\"matrix\":{\"factors\":{\"graph_max_bs\":[8,0]}}}", 56, "x.json",
				 &overrides, &e, &err),
		STATUS_INPUT);
	assert_string_equal(err.text, "--only graph_max_bs=17: no such arm; there are graph_max_bs=0");
}

static void quick_means_three_blocks_one_run_and_short_outputs(void **state)
{
	const struct experiment_overrides overrides = {.quick = true};
	static const char text[] = "{'name':'s'," FACTORS ",'protocol':{'blocks':5,'max_blocks':9,'runs_per_launch':4},"
				   "'workloads':[{'concurrency':2,'requests':40,'sampling':{'max_tokens':512}}]}";
	struct experiment *e = experiment_from_text_with(text, &overrides), *full = experiment_from_text(text);
	assert_true(e->protocol.quick && e->protocol.blocks == 3 && e->protocol.max_blocks == 3 && e->protocol.n_looks == 1);
	assert_int_equal(e->protocol.runs_per_launch, 1);
	assert_true(e->workloads[0].output_len <= 32 && e->workloads[0].requests == 4);
	assert_string_not_equal(e->hash, full->hash);
	assert_string_not_equal(e->workloads[0].hash, full->workloads[0].hash);
	experiment_release(e);
	experiment_release(full);
}

static void hashes_name_the_content_not_the_layout_of_the_file(void **state)
{
	struct experiment *a = experiment_from_text("{'name':'s'," FACTORS "}");
	struct experiment *b = experiment_from_text("{ " FACTORS ",\n'name' : 's' }");
	struct experiment *c = experiment_from_text("{'name':'s'," FACTORS ",'engine':{'env':{'A':'1'}}}");
	assert_string_equal(a->hash, b->hash);
	assert_string_not_equal(a->hash, c->hash);
	assert_string_not_equal(a->arms[0].config_hash, c->arms[0].config_hash);
	experiment_release(a);
	experiment_release(b);
	experiment_release(c);
}

static void a_comma_locale_changes_nothing(void **state)
{
	struct experiment *a =
		experiment_from_text("{'name':'s','matrix':{'factors':{'mem_fraction':[0.85,0.9]}},'protocol':{'cooldown_s':0.5}}");
	setlocale(LC_ALL, "de_DE.UTF-8"); /* where it is installed; base/test_text has the numbers themselves */
	struct experiment *b =
		experiment_from_text("{'name':'s','matrix':{'factors':{'mem_fraction':[0.85,0.9]}},'protocol':{'cooldown_s':0.5}}");
	assert_string_equal(b->arms[2].name, "mem_fraction=0.9");
	assert_string_equal(a->hash, b->hash);
	assert_true(b->protocol.cooldown_s == 0.5);
	setlocale(LC_ALL, "C");
	experiment_release(a);
	experiment_release(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_smallest_file_gets_sensible_defaults),
		cmocka_unit_test(engines_are_values_of_a_knob),
		cmocka_unit_test(one_factor_at_a_time_changes_one_knob_in_each_arm),
		cmocka_unit_test(a_grid_is_the_product_without_the_baselines_point),
		cmocka_unit_test(tests_times_concurrencies_give_one_workload_each),
		cmocka_unit_test(a_list_holds_what_a_constraint_leaves_of_a_grid),
		cmocka_unit_test(list_values_of_a_factor_are_single_values),
		cmocka_unit_test(a_list_keeps_its_order_and_drops_repeats_with_a_notice),
		cmocka_unit_test(an_exclusion_that_matches_nothing_is_noticed),
		cmocka_unit_test(ranges_end_at_the_last_step_inside),
		cmocka_unit_test(long_ranges_have_exactly_their_values),
		cmocka_unit_test(values_keep_their_kind_and_their_text),
		cmocka_unit_test(workloads_apply_to_the_arms_that_match),
		cmocka_unit_test(speculation_on_random_tokens_only_is_noticed),
		cmocka_unit_test(looks_are_derived_or_taken_as_written),
		cmocka_unit_test(settings_from_the_command_line_win),
		cmocka_unit_test(bad_settings_from_the_command_line_are_refused),
		cmocka_unit_test(only_keeps_one_candidate_and_the_references),
		cmocka_unit_test(quick_means_three_blocks_one_run_and_short_outputs),
		cmocka_unit_test(hashes_name_the_content_not_the_layout_of_the_file),
		cmocka_unit_test(a_comma_locale_changes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
