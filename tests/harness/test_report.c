/* harness/report: headline, tables, history and details from stored records. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "harness/report_format.h"

static const struct report_style plain = {false};

/* A record as store_show gives it, with ' for ". */
static struct json *shown_from(const char *text)
{
	char *copy = mem_strdup(text);
	struct json *shown = NULL;
	struct err err = {0};
	for (char *c = copy; *c; c++)
		if (*c == '\'')
			*c = '"';
	if (json_parse(copy, strlen(copy), "test", &shown, &err))
		fail_msg("%s", err.text);
	mem_free(copy);
	return shown;
}

#define HEAD \
	"'experiment_id':12,'experiment':{'name':'quickstart','metric':'output_tps','quick':0},'workloads':[{'workload':0,'name':" \
	"'w'}]," \
	"'arms':[{'arm':0,'kind':'baseline','name':'baseline'},{'arm':1,'kind':'aa_twin','name':'A/A twin'}," \
	"{'arm':2,'kind':'candidate','name':'speculation=ngram'},{'arm':3,'kind':'candidate','name':'allreduce=ref-socket'}," \
	"{'arm':4,'kind':'candidate','name':'graph_max_bs=0'},{'arm':5,'kind':'candidate','name':'mem_fraction=0.1'}],"
#define TWIN \
	"{'arm':1,'workload':0,'verdict':'neutral','reason':'equivalent within 2 " \
	"%','arm_metric':137.0,'effect_pct':-0.1,'ci_low_pct':-1.3," \
	"'ci_high_pct':1.2,'min_effect_pct':2}"
#define LAUNCH(block, tps) \
	"{'arm':0,'block':" #block \
	",'attempt':0,'failure':'none','runs':[{'workload':0,'idx':0,'warmup':1,'voided':0,'output_tps':1}," \
	"{'workload':0,'idx':0,'warmup':0,'voided':0,'output_tps':" #tps "}]}"
#define LAUNCHES "'launches':[" LAUNCH(0, 136.0) "," LAUNCH(1, 138.2) "," LAUNCH(2, 137.1) "]"

static const char full[] = "{" HEAD "'verdicts':[" TWIN ","
			   "{'arm':2,'workload':0,'verdict':'helped','reason':null,'arm_metric':179.8,'effect_pct':31.1,'ci_low_"
			   "pct':29.8,'ci_high_pct':32.5,'min_effect_pct':2},"
			   "{'arm':3,'workload':0,'verdict':'hurt','reason':null,'arm_metric':96.4,'effect_pct':-29.7,'ci_low_pct':"
			   "-31.0,'ci_high_pct':-28.3,'min_effect_pct':2},"
			   "{'arm':4,'workload':0,'verdict':'neutral','reason':'equivalent within 2 "
			   "%','arm_metric':136.6,'effect_pct':-0.4,'ci_low_pct':-1.6,'ci_high_pct':0.9,"
			   "'min_effect_pct':2},"
			   "{'arm':5,'workload':0,'verdict':'failed','reason':'oom_load: needs mem_fraction "
			   "0.31','arm_metric':null,'effect_pct':null,'min_effect_pct':2}]," LAUNCHES "}";

static void check_headline(const char *record, const char *expected)
{
	struct json *shown = shown_from(record);
	struct text text = {0};
	report_headline(shown, &text);
	assert_string_equal(text_str(&text), expected);
	text_release(&text);
	json_free(shown);
}

static void the_headline_is_the_answer_in_words(void **state)
{
	check_headline(full,
		"speculation=ngram helped: 1.31× the baseline. allreduce=ref-socket hurt. mem_fraction=0.1 cannot start. "
		"graph_max_bs=0: no difference (within 2 %).");
}

#define ONE(fields) "{" HEAD "'verdicts':[" TWIN ",{'arm':4,'workload':0,'min_effect_pct':2," fields "}]," LAUNCHES "}"

static void what_could_not_be_told_is_never_called_no_difference(void **state)
{
	check_headline(
		ONE("'verdict':'neutral','reason':'inconclusive: about 4 more blocks needed','effect_pct':1,'needed_blocks':4"),
		"No setting was found to help. graph_max_bs=0: could not tell.");
	check_headline(
		ONE("'verdict':'neutral','reason':'inconclusive: too few launches to judge','effect_pct':1,'needed_blocks':null"),
		"No setting was found to help. graph_max_bs=0: could not tell.");
	check_headline(ONE("'verdict':'neutral','reason':'below_min_effect: real, but smaller than 2 %','effect_pct':1.5"),
		"No setting was found to help. graph_max_bs=0: a difference, but a smaller one than 2 %.");
}

static void settings_of_which_the_same_is_said_share_a_sentence(void **state)
{
	check_headline("{" HEAD "'verdicts':[{'arm':2,'workload':0,'verdict':'hurt'},{'arm':3,'workload':0,'verdict':'hurt'},"
		       "{'arm':4,'workload':0,'verdict':'neutral','reason':'inconclusive: about 9 more blocks needed'},"
		       "{'arm':5,'workload':0,'verdict':'neutral','reason':'equivalent within 2 %','min_effect_pct':2}]," LAUNCHES
		       "}",
		"No setting was found to help. speculation=ngram, allreduce=ref-socket hurt. graph_max_bs=0: could not tell. "
		"mem_fraction=0.1: no difference (within 2 %).");
}

static void failures_are_named_by_what_they_mean(void **state)
{
	static const struct {
		const char *reason, *words;
	} cases[] = {
		{"wrong_output: 3 of 8 greedy texts differ", "gives other text than the baseline"},
		{"inactive: graph_max_bs is 8", "did not take effect"},
		{"crash: signal 11", "failed (crash)"},
		{"ready_timeout: 300 s", "cannot start"},
		{"launch_error: no such flag", "cannot start"},
		{"hang", "failed (hang)"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text record = {0}, expected = {0};
		text_printf(&record, "{" HEAD "'verdicts':[{'arm':4,'workload':0,'verdict':'failed','reason':'%s'}]," LAUNCHES "}",
			cases[i].reason);
		text_printf(&expected, "No setting was found to help. graph_max_bs=0 %s.", cases[i].words);
		check_headline(text_str(&record), text_str(&expected));
		text_release(&record);
		text_release(&expected);
	}
}

static void a_differing_twin_is_said_in_the_headline(void **state)
{
	check_headline("{" HEAD "'verdicts':[{'arm':1,'workload':0,'verdict':'neutral','reason':'inconclusive','effect_pct':-3.2,'"
		       "min_effect_pct':2},"
		       "{'arm':4,'workload':0,'verdict':'helped','effect_pct':4,'min_effect_pct':2}]," LAUNCHES "}",
		"graph_max_bs=0 helped: 1.04× the baseline. Noisy: the baseline differs from its own twin by −3.2 %, so no effect "
		"of this size can "
		"be trusted.");
}

static void a_failed_baseline_is_the_whole_answer(void **state)
{
	check_headline("{" HEAD "'verdicts':[" TWIN
		       "],'launches':[{'arm':0,'block':0,'attempt':0,'failure':'crash','reason':'crash: signal 11'}]}",
		"The baseline failed, so nothing can be compared: crash: signal 11.");
	/* Repeated with success: not a failure. */
	check_headline("{" HEAD "'verdicts':[" TWIN
		       "],'launches':[{'arm':0,'block':0,'attempt':0,'failure':'crash','reason':'crash'}," LAUNCH(0, 1) "]}",
		"No setting was found to help.");
}

static void several_workloads_are_told_apart(void **state)
{
	check_headline("{'experiment':{'metric':'ttft_ms_p50'},'workloads':[{'workload':0,'name':'c1'},{'workload':1,'name':'c8'}],"
		       "'arms':[{'arm':0,'kind':'baseline','name':'b'},{'arm':1,'kind':'candidate','name':'x'},{'arm':2,'kind':'"
		       "candidate','name':'y'}],"
		       "'verdicts':[{'arm':1,'workload':0,'verdict':'helped','effect_pct':-10},{'arm':2,'workload':0,'verdict':'"
		       "helped','effect_pct':-20},"
		       "{'arm':1,'workload':1,'verdict':'hurt','effect_pct':30}]}",
		"[c1] y helped: 0.80× the baseline's ttft_ms_p50. x helped: 0.90× the baseline's ttft_ms_p50. [c8] x hurt.");
}

/* Of 0 nothing is a percentage or a multiple. */
static void zeros_are_shown_as_zero(void **state)
{
	static const char record[] =
		"{'experiment_id':7,'experiment':{'name':'x','metric':'goodput_rps','quick':0},"
		"'arms':[{'arm':0,'kind':'baseline','name':'baseline'},{'arm':1,'kind':'candidate','name':'a'},"
		"{'arm':2,'kind':'candidate','name':'b'},{'arm':3,'kind':'candidate','name':'c'}],"
		"'workloads':[{'workload':0,'name':'w'}],"
		"'launches':[{'arm':0,'block':0,'failure':'none','runs':[{'workload':0,'warmup':0,'voided':0,'goodput_rps':0}]},"
		"{'arm':0,'block':1,'failure':'none','runs':[{'workload':0,'warmup':0,'voided':0,'goodput_rps':0}]}],"
		"'verdicts':[{'arm':1,'workload':0,'verdict':'helped','reason':'the baseline gave 0 in every "
		"launch','arm_metric':0.5},"
		"{'arm':2,'workload':0,'verdict':'helped','reason':'the baseline gave 0 in every launch','arm_metric':3.25},"
		"{'arm':3,'workload':0,'verdict':'neutral','reason':'equivalent: 0 on both sides','arm_metric':0,'effect_pct':0,"
		"'ci_low_pct':0,'ci_high_pct':0,'min_effect_pct':2}]}";
	check_headline(record,
		"a helped: from 0 to 0.5 goodput_rps. b helped: from 0 to 3.25 goodput_rps. "
		"c: no difference (within 2 %).");
	struct json *shown = shown_from(record);
	struct text text = {0};
	report_table(shown, (struct report_style){false}, &text);
	assert_non_null(strstr(text_str(&text), "baseline         0\n"));
	assert_non_null(strstr(text_str(&text), "c                0"));
	text_release(&text);
	json_free(shown);
}

static void the_table_lines_up_in_columns(void **state)
{
	struct json *shown = shown_from(full);
	struct text text = {0};
	report_experiment(shown, "results.db", plain, &text);
	static const char expected[] =
		"  setting                  tok/s   against baseline         verdict\n"
		"  baseline                 137.1    ±0.8 % between launches\n"
		"  speculation=ngram        179.8   +31.1 % [+29.8, +32.5]   helped\n"
		"  allreduce=ref-socket      96.4   −29.7 % [−31.0, −28.3]   hurt\n"
		"  graph_max_bs=0           136.6    −0.4 % [−1.6, +0.9]     neutral: equivalent within 2 %\n"
		"  mem_fraction=0.1             –                            failed: oom_load: needs mem_fraction 0.31\n"
		"  A/A twin                 137.0    −0.1 % [−1.3, +1.2]     neutral: equivalent within 2 %\n"
		"\n"
		"results.db · verdict show 12 for the evidence\n";
	const char *table = strstr(text_str(&text), "\n\n");
	assert_non_null(table);
	if (strcmp(table + 2, expected) != 0)
		fail_msg("got:\n%s\nexpected:\n%s", table + 2, expected);
	text_release(&text);
	json_free(shown);
}

static void colour_is_for_terminals_that_want_it(void **state)
{
	struct json *shown = shown_from(full);
	struct text text = {0};
	report_table(shown, (struct report_style){true}, &text);
	assert_non_null(strstr(text_str(&text), "\033[32mhelped\033[0m"));
	assert_non_null(strstr(text_str(&text), "\033[31mhurt\033[0m"));
	text_clear(&text);
	report_table(shown, plain, &text);
	assert_null(strchr(text_str(&text), '\033'));
	char *environment[] = {(char *)"NO_COLOR=1", NULL};
	assert_false(report_style_for(1, environment).colour);
	assert_false(report_style_for(-1, NULL).colour);
	text_release(&text);
	json_free(shown);
}

static void columns_count_what_a_terminal_shows(void **state)
{
	assert_int_equal(format_columns("abc"), 3);
	assert_int_equal(format_columns("±−×…"), 4);
	assert_int_equal(format_columns("模型"), 4);
	assert_int_equal(format_columns("e\xcc\x81"), 1);
	assert_int_equal(format_columns("\xff\xfe"), 2);
	struct text text = {0};
	format_clipped(&text, "模型模型", 5);
	assert_string_equal(text_str(&text), "模型…");
	text_clear(&text);
	format_clipped(&text, "short", 5);
	assert_string_equal(text_str(&text), "short");
	text_clear(&text);
	format_padded(&text, "模", 4);
	format_padded(&text, "×", -3);
	assert_string_equal(text_str(&text), "模    ×");
	text_release(&text);
}

static void check_signed(double value, int digits, const char *expected)
{
	struct text text = {0};
	format_signed(&text, value, digits);
	assert_string_equal(text_str(&text), expected);
	text_release(&text);
}

static void signs_are_shown_unless_there_is_nothing_to_show(void **state)
{
	check_signed(31.14, 1, "+31.1");
	check_signed(-0.4, 1, "−0.4");
	check_signed(0.04, 1, "±0.0");
	check_signed(-0.04, 1, "±0.0");
	check_signed(-0.04, 2, "−0.04");
}

static void times_are_in_the_unit_people_use(void **state)
{
	static const struct {
		double seconds;
		const char *text;
	} cases[] = {{3.21, "3.2 s"}, {41.4, "41 s"}, {99.4, "99 s"}, {180, "3 min"}, {9000, "2.5 h"}, {-1, "?"}};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct text text = {0};
		format_seconds(&text, cases[i].seconds);
		assert_string_equal(text_str(&text), cases[i].text);
		text_release(&text);
	}
}

static void history_is_a_table_with_the_ids_that_show_takes(void **state)
{
	struct json *rows = shown_from("[{'experiment':'quickstart','time_utc':'2026-11-29T22:30:05.123Z','workload':'editing-c2','"
				       "knob':'speculation','value':'ngram','verdict':'helped',"
				       "'reason':null,'effect_pct':31.1,'evidence_id':14},"
				       "{'experiment':'q','time_utc':'2026-11-28T22:30:05.123Z','workload':'w','knob':'aa_twin','"
				       "value':null,'verdict':'neutral',"
				       "'reason':'inconclusive: about 4 more blocks needed','effect_pct':null,'evidence_id':3},"
				       "{'experiment':'q','time_utc':'2026-11-28T22:30:05.123Z','workload':'w','knob':'graph_max_"
				       "bs','value':0,'verdict':'failed',"
				       "'reason':'crash','effect_pct':null,'evidence_id':2}]");
	struct text text = {0};
	report_history(rows, plain, &text);
	assert_string_equal(text_str(&text),
		"time (UTC)        experiment  setting            workload     effect      id  verdict\n"
		"2026-11-29 22:30  quickstart  speculation=ngram  editing-c2  +31.1 %      14  helped\n"
		"2026-11-28 22:30  q           aa_twin            w                         3  neutral: inconclusive: about 4 more "
		"blocks needed\n"
		"2026-11-28 22:30  q           graph_max_bs=0     w                         2  failed: crash\n");
	text_clear(&text);
	struct json *empty = json_new_array();
	report_history(empty, plain, &text);
	assert_string_equal(text_str(&text), "no verdicts\n");
	text_release(&text);
	json_free(rows);
	json_free(empty);
}

static void details_show_commands_launches_and_the_end_of_logs(void **state)
{
	struct json *shown = shown_from(
		"{" HEAD "'machine':{'name':'box-1'},'build':{'program':'verdict-engine','version':'0.1.0','hash':'abc'},'model':{'"
		"name':'m.gguf','hash':'d'},"
		"'verdicts':[" TWIN "],'launches':[{'arm':0,'block':0,'attempt':0,'failure':'none','command':['verdict-engine','"
		"serve','--name','a b',''],"
		"'total_ns':4200000000,'runs':[{'workload':0,'warmup':0,'voided':0,'output_tps':137.1},{'workload':0,'warmup':0,'"
		"voided':1,"
		"'void_reason':'throttled'}]},{'arm':5,'block':0,'attempt':1,'failure':'oom_load','reason':'oom_load: needs 0.31',"
		"'log_tail':'1\\n2\\n3\\n4\\n5\\n6\\n7\\n8\\n9\\n10\\n11\\n12\\n13\\nlast\\n','total_ns':300000000}]}");
	struct text text = {0};
	report_details(shown, plain, &text);
	static const char *const expected[] = {"machine     box-1\n", "engine      verdict-engine 0.1.0 (abc)\n",
		"    verdict-engine serve --name 'a b' ''\n",
		"  block 1  baseline                     4.2 s 137.1 void(throttled)\n",
		"(attempt 2) 0.3 s  failed: oom_load: needs 0.31\n", "      | 3\n", "      | last\n"};
	for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++)
		if (!strstr(text_str(&text), expected[i]))
			fail_msg("missing: %s\nin:\n%s", expected[i], text_str(&text));
	assert_null(strstr(text_str(&text), "| 2\n"));
	text_release(&text);
	json_free(shown);
}

static void details_name_settings_that_differ_though_nobody_asked(void **state)
{
	struct json *shown = shown_from("{'experiment':{'experiment_id':1,'name':'q','metric':'output_tps','adapter':'builtin'},"
					"'arms':[{'arm':0,'name':'baseline','changed':[]},"
					"{'arm':1,'name':'graph_max_bs=0','changed':[{'knob':'graph_max_bs'}]}],"
					"'workloads':[],'verdicts':[],'launches':["
					"{'arm':0,'block':0,'effective_config':{'settings':{'allreduce':'a','graph_max_bs':8}}},"
					"{'arm':1,'block':0,'effective_config':{'settings':{'allreduce':'a','graph_max_bs':0}}},"
					"{'arm':0,'block':1,'effective_config':{'settings':{'allreduce':'b','graph_max_bs':8}}},"
					"{'arm':1,'block':1,'effective_config':{'settings':{'allreduce':'a','graph_max_bs':0}}}]}");
	struct text text = {0};
	report_details(shown, plain, &text);
	if (!strstr(text_str(&text), "\nin effect, though nobody asked for it\n  block 2  graph_max_bs=0: allreduce b → a\n\n"))
		fail_msg("in:\n%s", text_str(&text));
	text_release(&text);
	json_free(shown);
}

static void run_json_has_three_members(void **state)
{
	struct json *shown = shown_from("{" HEAD "'rows':[{'knob':'aa_twin'}]}"), *document = report_run_json(shown);
	assert_int_equal(json_count(document), 3);
	assert_int_equal(json_int(json_get(document, "experiment_id"), 0), 12);
	assert_string_equal(json_text(json_get(document, "name")), "quickstart");
	assert_int_equal(json_count(json_get(document, "verdicts")), 1);
	json_free(shown);
	json_free(document);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_headline_is_the_answer_in_words),
		cmocka_unit_test(what_could_not_be_told_is_never_called_no_difference),
		cmocka_unit_test(settings_of_which_the_same_is_said_share_a_sentence),
		cmocka_unit_test(failures_are_named_by_what_they_mean),
		cmocka_unit_test(a_differing_twin_is_said_in_the_headline),
		cmocka_unit_test(a_failed_baseline_is_the_whole_answer),
		cmocka_unit_test(several_workloads_are_told_apart),
		cmocka_unit_test(zeros_are_shown_as_zero),
		cmocka_unit_test(the_table_lines_up_in_columns),
		cmocka_unit_test(colour_is_for_terminals_that_want_it),
		cmocka_unit_test(columns_count_what_a_terminal_shows),
		cmocka_unit_test(signs_are_shown_unless_there_is_nothing_to_show),
		cmocka_unit_test(times_are_in_the_unit_people_use),
		cmocka_unit_test(history_is_a_table_with_the_ids_that_show_takes),
		cmocka_unit_test(details_show_commands_launches_and_the_end_of_logs),
		cmocka_unit_test(details_name_settings_that_differ_though_nobody_asked),
		cmocka_unit_test(run_json_has_three_members),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
