/* Loads as experiment files write them: what they expand to, which are refused, and what is sent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "harness/workload.h"
#include "tests/support/experiment_text.h"

#define FACTORS "'matrix':{'factors':{'graph_max_bs':[8,0]}}"

/* An experiment with these members of its only workload. Caller releases. */
static struct experiment *with_load(const char *members)
{
	struct text text = {0};
	text_printf(&text, "{'name':'s'," FACTORS ",'workloads':[{%s}]}", members);
	struct experiment *experiment = experiment_from_text(text_str(&text));
	text_release(&text);
	return experiment;
}

static void check_refused(const char *members, const char *rest, const char *complaint)
{
	struct text text = {0};
	struct err err = {0};
	text_printf(&text, "{'name':'s'," FACTORS ",'workloads':[{%s}]%s}", members, rest);
	const char *got = experiment_complaint(text_str(&text), &err);
	if (err.status != STATUS_INPUT || !strstr(got, complaint))
		fail_msg("%s\n  expected: %s\n  got:      %s", text_str(&text), complaint, got);
	text_release(&text);
}

static void rates_and_concurrencies_make_a_workload_of_each_pair(void **state)
{
	struct experiment *e = with_load("'name':'q','rate':[2,'inf',{'from':1,'to':10}],'concurrency':[4,16],'requests':20");
	static const char *const names[] = {"q-r2-c4", "q-r2-c16", "q-rinf-c4", "q-rinf-c16", "q-r1..10-c4", "q-r1..10-c16"};
	assert_int_equal(e->n_workloads, 6);
	for (int i = 0; i < 6; i++)
		assert_string_equal(e->workloads[i].name, names[i]);
	assert_int_equal(e->workloads[0].schedule.kind, SCHEDULE_GAMMA);
	assert_true(e->workloads[0].schedule.burstiness == 1 && e->workloads[0].schedule.rate == 2);
	assert_int_equal(e->workloads[2].schedule.kind, SCHEDULE_AT_ONCE);
	assert_true(e->workloads[4].schedule.rate == 1 && e->workloads[4].schedule.rate_end == 10);
	experiment_release(e);
}

static void an_open_loop_has_no_limit_and_enough_requests_unless_it_says(void **state)
{
	struct experiment *e = with_load("'rate':8");
	assert_string_equal(e->workloads[0].name, "chat-r8");
	assert_int_equal(e->workloads[0].concurrency, 0);
	assert_int_equal(e->workloads[0].requests, 240);
	assert_int_equal(workload_slots(&e->workloads[0]), 240);
	assert_true(workload_arrival_seconds(&e->workloads[0]) > 29 && workload_arrival_seconds(&e->workloads[0]) < 30);
	experiment_release(e);
	e = with_load("'rate':0.1,'arrivals':{'process':'gamma','burstiness':0.5}");
	assert_int_equal(e->workloads[0].requests, 16);
	assert_true(e->workloads[0].schedule.burstiness == 0.5);
	experiment_release(e);
	e = with_load("'rate':5,'concurrency':3,'arrivals':{'process':'constant'}");
	assert_int_equal(e->workloads[0].schedule.kind, SCHEDULE_CONSTANT);
	assert_int_equal(workload_slots(&e->workloads[0]), 3);
	experiment_release(e);
}

static void a_closed_loop_keeps_the_hash_it_always_had(void **state)
{
	struct experiment *e = with_load("'concurrency':2,'dataset':{'input_len':16,'output_len':8}");
	/* Recorded before open loops were there: results of before and after are of the same load. */
	struct json *document = workload_json(&e->workloads[0]);
	assert_int_equal(json_count(document), 10);
	assert_string_equal(e->workloads[0].hash, "1ed884f1b4714893c167e50400f8ad5f26261f5409f3096fa5759995ac19af94");
	json_free(document);
	experiment_release(e);
}

static void what_changes_the_load_changes_its_hash(void **state)
{
	static const char *const loads[] = {"'rate':2,'requests':9", "'rate':3,'requests':9", "'rate':'inf','requests':9",
		"'rate':2,'requests':9,'arrivals':{'process':'constant'}", "'rate':2,'requests':9,'arrivals':{'burstiness':2}",
		"'rate':{'from':2,'to':3},'requests':9", "'rate':2,'requests':9,'concurrency':4",
		"'rate':2,'requests':9,'goodput':{'e2e_ms':5}", "'requests':9,'dataset':{'input_len':256,'jitter':0.5}",
		"'requests':9,'dataset':{'input_len':256}", "'requests':9,'dataset':{'groups':3}",
		"'requests':9,'dataset':{'groups':4}", "'requests':9,'dataset':{'groups':4,'prefix_len':8}"};
	enum { COUNT = sizeof loads / sizeof loads[0] };
	char hashes[COUNT][65];
	for (size_t i = 0; i < COUNT; i++) {
		struct experiment *e = with_load(loads[i]);
		snprintf(hashes[i], sizeof hashes[i], "%s", e->workloads[0].hash);
		experiment_release(e);
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(hashes[i], hashes[k]);
	}
}

static void loads_that_cannot_be_are_refused_with_their_place(void **state)
{
	check_refused("'rate':0", "", "workloads[0].rate: must be a number of requests/s from 0.001 to 1000000, \"inf\"");
	check_refused("'rate':'fast'", "", "workloads[0].rate: must be a number of requests/s");
	check_refused("'rate':[]", "", "workloads[0].rate: must list from 1 to 64 rates");
	check_refused("'rate':[1,true]", "", "workloads[0].rate[1]: must be a number");
	check_refused("'rate':{'from':1}", "", "workloads[0].rate: a ramp needs from and to");
	check_refused("'rate':{'from':1,'to':2,'step':1}", "", "workloads[0].rate.step: unknown key");
	check_refused("'arrivals':{'process':'constant'}", "", "workloads[0].arrivals: arrivals need a rate");
	check_refused("'rate':1,'arrivals':{'process':'uniform'}", "", "arrivals.process: must be one of poisson, constant, gamma");
	check_refused("'rate':1,'arrivals':{'process':'gamma'}", "", "process gamma needs a burstiness");
	check_refused("'rate':1,'arrivals':{'process':'poisson','burstiness':2}", "", "burstiness belongs to process gamma");
	check_refused("'rate':1,'arrivals':{'speed':2}", "", "speed belongs to a dataset of kind trace");
	check_refused(
		"'rate':0.01,'requests':100", "", "the requests of a run arrive over 9900 s, more than protocol.run_timeout_s");
	check_refused("'goodput':{}", "", "workloads[0].goodput: must state at least one limit");
	check_refused("'goodput':{'ttft':1}", "", "workloads[0].goodput.ttft: unknown key");
	check_refused("'goodput':{'ttft_ms':0}", "", "goodput.ttft_ms: must be from 0.001");
	check_refused("'dataset':{'input_len':8,'groups':2}", "", "input_len belongs to a dataset of kind random_ids");
	check_refused(
		"'dataset':{'kind':'random_ids','prefix_len':2}", "", "prefix_len belongs to a dataset of kind shared_prefix");
	check_refused("'dataset':{'input_len':8,'jitter':1.5}", "", "dataset.jitter: must be from 0 to 1, is 1.5");
	check_refused("'dataset':{'kind':'trace'}", "", "a dataset of kind trace needs a path");
	check_refused("'dataset':{'groups':2},'endpoint':'/v1/chat/completions'", "", "random token ids can only be sent to");
	check_refused("'concurrency':1000,'requests':1000000,'dataset':{'input_len':1000}", "",
		"the prompts of a run have 1000000000 tokens; at most 153391689 can be prepared");
}

static void warm_up_until_stable_is_read_and_checked(void **state)
{
	struct experiment *e = experiment_from_text(
				  "{'name':'s'," FACTORS
				  ",'protocol':{'warmup':{'requests_per_slot':1,'until_stable_pct':2,'max_s':5}}}"),
			  *plain = experiment_from_text("{'name':'s'," FACTORS ",'protocol':{'warmup':{'requests_per_slot':1}}}");
	assert_true(e->protocol.warmup_stable_pct == 2 && e->protocol.warmup_max_s == 5);
	assert_true(plain->protocol.warmup_stable_pct == 0);
	assert_string_not_equal(e->protocol.hash, plain->protocol.hash);
	experiment_release(e);
	experiment_release(plain);
	check_refused("'name':'w'", ",'protocol':{'warmup':{'max_s':5}}", "protocol.warmup.max_s: max_s limits until_stable_pct");
	check_refused("'name':'w'", ",'protocol':{'warmup':{'requests_per_slot':0,'until_stable_pct':5}}",
		"until_stable_pct needs requests_per_slot");
}

static void metrics_that_a_load_cannot_give_are_refused(void **state)
{
	static const char primary[] = ",'verdict':{'primary':{'metric':'%s'}}";
	static const struct {
		const char *load, *metric, *complaint;
	} cases[] = {
		{"'name':'w','rate':1", "steady_tps", "primary.metric: workload 'w' cannot give steady_tps: it is no closed loop"},
		{"'name':'w'", "goodput_rps", "workload 'w' cannot give goodput_rps: it states no goodput limits"},
		{"'name':'w','sampling':{'max_tokens':1}", "tpot_ms_p90",
			"workload 'w' cannot give tpot_ms_p90: its answers have one token"},
		{"'name':'w','dataset':{'input_len':8}", "cached_frac",
			"workload 'w' cannot give cached_frac: its prompts share nothing"},
		{"'name':'w'", "wait_ms_p50", "nothing can be judged by 'wait_ms_p50'; there are output_tps"},
		{"'name':'w'", "ttft_ms_p33", "unknown metric 'ttft_ms_p33'; there are output_tps"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		char rest[120];
		snprintf(rest, sizeof rest, primary, cases[i].metric);
		check_refused(cases[i].load, rest, cases[i].complaint);
	}
	check_refused("'name':'w'", ",'verdict':{'constraints':[{'metric':'goodput_frac','max_regress_pct':5}]}",
		"verdict.constraints[0].metric: workload 'w' cannot give goodput_frac");
	struct err err = {0};
	const char *got = experiment_complaint("{'name':'s','engine':{'adapter':'llamacpp','command':['python3','-m',"
					       "'llama_cpp.server']},'matrix':{'factors':{'threads':[1,2]}},"
					       "'verdict':{'primary':{'metric':'ttft_ms_p50'}}}",
		&err);
	assert_non_null(strstr(got, "ttft_ms_p50 cannot be measured: this engine counts tokens in whole answers only"));
}

static void every_metric_that_decides_is_accepted_with_its_direction(void **state)
{
	for (size_t i = 0; i < metric_specs_count; i++) {
		struct text text = {0};
		if (!metric_specs[i].decides)
			continue;
		text_printf(&text,
			"{'name':'s'," FACTORS ",'workloads':[{'goodput':{'ttft_ms':9}}],'verdict':{'primary':{'metric':'%s'}}}",
			metric_specs[i].other ? metric_specs[i].other : metric_specs[i].name);
		struct experiment *e = experiment_from_text(text_str(&text));
		assert_string_equal(e->rules.metric, metric_specs[i].name);
		assert_true(
			e->rules.higher_is_better == (strstr(metric_specs[i].name, "_ms") == NULL && i != metric_specs_count - 2));
		experiment_release(e);
		text_release(&text);
	}
	assert_string_equal(metric_specs[metric_specs_count - 2].name, "client_cpu_frac");
}

/* ---- what is sent ---- */

/* The bodies of a run as JSON values in an array. */
static struct json *bodies_of(const struct workload *workload, int run)
{
	struct request_bodies bodies = {0};
	struct request_style style = {0};
	struct json *array = json_new_array();
	workload_build_run(workload, run, workload->requests, 2, &style, 32000, &bodies);
	for (size_t i = 0; i < bodies.count; i++) {
		struct json *body = NULL;
		assert_int_equal(json_parse(bodies.items[i].bytes, bodies.items[i].len, "body", &body, NULL), STATUS_OK);
		assert_int_equal(bodies.items[i].expected_tokens, json_int(json_get(body, "max_tokens"), 0));
		json_append(array, body);
	}
	request_bodies_release(&bodies);
	return array;
}

static const struct json *ids_of(const struct json *bodies, size_t i)
{
	return json_get(json_at(bodies, i), "prompt");
}

/* How many ids two prompts have in common from their beginning on. */
static size_t common(const struct json *a, const struct json *b)
{
	size_t n = 0;
	while (n < json_count(a) && n < json_count(b) && json_int(json_at(a, n), -1) == json_int(json_at(b, n), -2))
		n++;
	return n;
}

static void jitter_spreads_lengths_evenly_around_the_stated_one(void **state)
{
	struct experiment *e = with_load("'requests':400,'dataset':{'input_len':100,'output_len':20,'jitter':0.5}");
	struct json *bodies = bodies_of(&e->workloads[0], 0);
	double sum = 0;
	int low = 1000, high = 0, out_low = 1000, out_high = 0;
	for (size_t i = 0; i < 400; i++) {
		int n = (int)json_count(ids_of(bodies, i)), out = (int)json_int(json_get(json_at(bodies, i), "max_tokens"), 0);
		sum += n;
		low = n < low ? n : low;
		high = n > high ? n : high;
		out_low = out < out_low ? out : out_low;
		out_high = out > out_high ? out : out_high;
	}
	assert_true(low >= 50 && low < 54 && high <= 150 && high > 146);
	assert_true(out_low == 10 && out_high == 30);
	assert_true(sum / 400 > 94 && sum / 400 < 106); /* four standard deviations of the mean */
	json_free(bodies);
	experiment_release(e);
}

static void groups_share_their_prefix_and_nothing_else(void **state)
{
	struct experiment *e =
		with_load("'requests':12,'dataset':{'kind':'shared_prefix','groups':3,'prefix_len':40,'suffix_len':10,'seed':4}");
	struct json *first = bodies_of(&e->workloads[0], 0), *again = bodies_of(&e->workloads[0], 0),
		    *next = bodies_of(&e->workloads[0], 1);
	assert_true(json_same(first, again));
	int alike = 0;
	for (size_t i = 0; i < 12; i++) {
		assert_int_equal(json_count(ids_of(first, i)), 50);
		assert_true(common(ids_of(first, i), ids_of(next, i)) < 5);
		for (size_t k = 0; k < i; k++) {
			size_t n = common(ids_of(first, i), ids_of(first, k));
			assert_true(n < 5 || (n >= 40 && n < 45));
			alike += n >= 40;
			/* Each round of three has each group once. */
			assert_false(n >= 40 && i / 3 == k / 3);
		}
	}
	assert_int_equal(alike, 3 * 6); /* three groups of four requests: six pairs each */
	json_free(first);
	json_free(again);
	json_free(next);
	experiment_release(e);
}

struct folder {
	char path[64], file[96];
};

static void write_file(struct folder *folder, const char *content)
{
	snprintf(folder->path, sizeof folder->path, "/tmp/verdict-loads-XXXXXX");
	assert_non_null(mkdtemp(folder->path));
	snprintf(folder->file, sizeof folder->file, "%s/data.jsonl", folder->path);
	assert_int_equal(file_write_atomic(folder->file, content, strlen(content), NULL), STATUS_OK);
}

static void remove_folder(const struct folder *folder)
{
	unlink(folder->file);
	rmdir(folder->path);
}

static void a_trace_gives_lengths_times_and_shared_blocks(void **state)
{
	struct folder folder;
	char load[300];
	write_file(&folder,
		"{\"timestamp\": 1000, \"input_length\": 20, \"output_length\": 5, \"hash_ids\": [1, 2, 3]}\n"
		"{\"timestamp\": 1500, \"input_length\": 24, \"output_length\": 7, \"hash_ids\": [1, 2, 4]}\n"
		"{\"timestamp\": 3000, \"input_length\": 6, \"output_length\": 2}\n");
	snprintf(load, sizeof load, "'dataset':{'kind':'trace','path':'%s','block_tokens':8},'arrivals':{'speed':2}", folder.file);
	struct experiment *e = with_load(load);
	const struct workload *workload = &e->workloads[0];
	assert_string_equal(workload->name, "trace");
	assert_int_equal(workload->requests, 3);
	assert_int_equal(workload->output_len, 7);
	assert_true(workload_arrival_seconds(workload) == 1);
	struct json *bodies = bodies_of(workload, 0), *other = bodies_of(workload, 1);
	assert_int_equal(json_count(ids_of(bodies, 0)), 20);
	assert_int_equal(json_count(ids_of(bodies, 1)), 24);
	assert_int_equal(json_count(ids_of(bodies, 2)), 6);
	assert_true(common(ids_of(bodies, 0), ids_of(bodies, 1)) >= 16 && common(ids_of(bodies, 0), ids_of(bodies, 1)) < 20);
	assert_true(common(ids_of(bodies, 0), ids_of(other, 0)) < 8);
	assert_int_equal(json_int(json_get(json_at(bodies, 2), "max_tokens"), 0), 2);
	int64_t *due_ns = workload_due_times(workload, 0);
	assert_true(due_ns[0] == 0 && due_ns[1] == 250000000 && due_ns[2] == 1000000000);
	mem_free(due_ns);
	json_free(bodies);
	json_free(other);
	experiment_release(e);
	snprintf(load, sizeof load, "'dataset':{'kind':'trace','path':'%s','block_tokens':8},'requests':4", folder.file);
	check_refused(load, "", "workloads[0].requests: the trace has 3 requests, not 4");
	snprintf(load, sizeof load, "'dataset':{'kind':'trace','path':'%s','block_tokens':8},'rate':4", folder.file);
	check_refused(load, "", "a trace says itself when each request is sent");
	snprintf(load, sizeof load, "'dataset':{'kind':'trace','path':'%s'}", folder.file);
	check_refused(load, "", "data.jsonl:1:1: 3 hash_ids for 20 tokens, but blocks of 512 tokens make 1");
	remove_folder(&folder);
}

static void conversations_are_sent_as_messages_up_to_the_first_answer(void **state)
{
	struct folder folder;
	char load[300];
	write_file(&folder,
		"{\"conversations\": [{\"from\": \"system\", \"value\": \"Be kind.\"}, {\"from\": \"human\", \"value\": \"Why?\"},"
		" {\"from\": \"gpt\", \"value\": \"Because.\"}]}\n{\"prompt\": \"Plain.\", \"output_len\": 9}\n");
	snprintf(load, sizeof load, "'requests':3,'dataset':{'path':'%s'}", folder.file);
	struct experiment *e = with_load(load);
	struct json *bodies = bodies_of(&e->workloads[0], 0);
	const struct json *messages = json_get(json_at(bodies, 0), "messages");
	assert_int_equal(json_count(messages), 2);
	assert_string_equal(json_text(json_get(json_at(messages, 0), "content")), "Be kind.");
	assert_string_equal(json_text(json_get(json_at(messages, 1), "content")), "Why?");
	assert_int_equal(json_int(json_get(json_at(bodies, 0), "max_tokens"), 0), 64);
	assert_int_equal(json_int(json_get(json_at(bodies, 1), "max_tokens"), 0), 9);
	/* The second pass begins otherwise, or a prefix cache would know it. */
	assert_string_equal(json_text(json_get(json_at(json_get(json_at(bodies, 2), "messages"), 0), "content")), "2. Be kind.");
	json_free(bodies);
	experiment_release(e);
	snprintf(load, sizeof load, "'endpoint':'/v1/completions','dataset':{'path':'%s'}", folder.file);
	check_refused(load, "", "prompt 1 of the dataset has several messages, which only /v1/chat/completions takes");
	remove_folder(&folder);
}

static void due_times_are_the_same_for_every_arm_and_others_in_the_next_run(void **state)
{
	struct experiment *e = with_load("'rate':3,'requests':50"), *same = with_load("'rate':3,'requests':50");
	int64_t *first = workload_due_times(&e->workloads[0], 0), *again = workload_due_times(&same->workloads[0], 0),
		*next = workload_due_times(&e->workloads[0], 1);
	assert_memory_equal(first, again, 50 * sizeof *first);
	assert_memory_not_equal(first, next, 50 * sizeof *first);
	mem_free(first);
	mem_free(again);
	mem_free(next);
	experiment_release(e);
	experiment_release(same);
	e = with_load("'concurrency':2");
	assert_null(workload_due_times(&e->workloads[0], 0));
	experiment_release(e);
}

static void quick_shortens_every_kind_of_load(void **state)
{
	struct experiment_overrides quick = {.quick = true};
	struct experiment *e = experiment_from_text_with("{'name':'s'," FACTORS ",'workloads':[{'rate':5,'requests':900},"
							 "{'rate':5,'concurrency':2,'requests':900,'name':'c'}]}",
		&quick);
	assert_int_equal(e->workloads[0].requests, 16);
	assert_int_equal(e->workloads[1].requests, 4);
	experiment_release(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rates_and_concurrencies_make_a_workload_of_each_pair),
		cmocka_unit_test(an_open_loop_has_no_limit_and_enough_requests_unless_it_says),
		cmocka_unit_test(a_closed_loop_keeps_the_hash_it_always_had),
		cmocka_unit_test(what_changes_the_load_changes_its_hash),
		cmocka_unit_test(loads_that_cannot_be_are_refused_with_their_place),
		cmocka_unit_test(warm_up_until_stable_is_read_and_checked),
		cmocka_unit_test(metrics_that_a_load_cannot_give_are_refused),
		cmocka_unit_test(every_metric_that_decides_is_accepted_with_its_direction),
		cmocka_unit_test(jitter_spreads_lengths_evenly_around_the_stated_one),
		cmocka_unit_test(groups_share_their_prefix_and_nothing_else),
		cmocka_unit_test(a_trace_gives_lengths_times_and_shared_blocks),
		cmocka_unit_test(conversations_are_sent_as_messages_up_to_the_first_answer),
		cmocka_unit_test(due_times_are_the_same_for_every_arm_and_others_in_the_next_run),
		cmocka_unit_test(quick_shortens_every_kind_of_load),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
