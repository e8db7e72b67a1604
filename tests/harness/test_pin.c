/* harness/cpu_list and harness/pin: lists of CPUs, and what pinning changes and gives back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "harness/pin.h"
#include "tests/support/experiment_text.h"

#define FACTORS "'matrix':{'factors':{'graph_max_bs':[8,0]}}"

static void lists_are_read_and_written_in_their_shortest_form(void **state)
{
	static const struct {
		const char *text, *shortest;
		int count;
	} lists[] = {{"0", "0", 1}, {"0,2-5", "0,2-5", 5}, {"3,2,1,0", "0-3", 4}, {"7-7", "7", 1}, {"1-3,2-4", "1-4", 4},
		{"63,64", "63-64", 2}, {"1023", "1023", 1}, {"0-1023", "0-1023", 1024}};
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
		struct cpu_list list;
		struct text text = {0};
		assert_int_equal(cpu_list_parse(lists[i].text, &list, NULL), STATUS_OK);
		cpu_list_text(&list, &text);
		assert_string_equal(text_str(&text), lists[i].shortest);
		assert_int_equal(cpu_list_count(&list), lists[i].count);
		text_release(&text);
	}
}

static void what_is_no_list_is_refused(void **state)
{
	static const char *const wrong[] = {"", ",", "1,", "-1", "1-", "3-2", "a", "1;2", " 1", "1 ", "1024", "0-1024",
		"99999999999999", "1--2", "0x1", "1-2-3"};
	for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
		struct cpu_list list;
		struct err err = {0};
		if (cpu_list_parse(wrong[i], &list, &err) != STATUS_INPUT || !strstr(err.text, "is no list of CPUs"))
			fail_msg("'%s' was accepted", wrong[i]);
	}
}

static void sets_are_compared(void **state)
{
	struct cpu_list a, b;
	cpu_list_parse("0-3", &a, NULL);
	cpu_list_parse("3-5", &b, NULL);
	assert_int_equal(cpu_list_shared(&a, &b), 3);
	assert_int_equal(cpu_list_missing(&a, &b), 0);
	assert_int_equal(cpu_list_missing(&b, &a), 4);
	cpu_list_parse("4", &b, NULL);
	assert_int_equal(cpu_list_shared(&a, &b), -1);
	assert_int_equal(cpu_list_missing(&a, &a), -1);
}

static void a_file_says_which_cpus_are_whose(void **state)
{
	struct experiment *e = experiment_from_text("{'name':'s','pin':{'client':'0','engine':'1-3'}," FACTORS "}"),
			  *plain = experiment_from_text("{'name':'s'," FACTORS "}");
	assert_string_equal(e->pin.client_text, "0");
	assert_int_equal(cpu_list_count(&e->pin.engine), 3);
	assert_string_not_equal(e->protocol.hash, plain->protocol.hash);
	experiment_release(e);
	experiment_release(plain);
	static const char *const cases[][2] = {
		{"{'name':'s','pin':{'client':'0-1','engine':'1-3'}," FACTORS "}",
			"pin: client and engine must be apart, and both have CPU 1"},
		{"{'name':'s','pin':{'client':'x'}," FACTORS "}", "pin.client: 'x' is no list of CPUs"},
		{"{'name':'s','pin':{'server':'1'}," FACTORS "}", "pin.server: unknown key"},
		{"{'name':'s','pin':{}," FACTORS "}", "pin: must name CPUs of the client, the engine or both"},
		{"{'name':'s','pin':'0'," FACTORS "}", "pin: must be object"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct err err = {0};
		const char *got = experiment_complaint(cases[i][0], &err);
		if (!strstr(got, cases[i][1]))
			fail_msg("%s\n  expected: %s\n  got:      %s", cases[i][0], cases[i][1], got);
	}
}

static void cpus_that_are_not_there_are_refused_before_anything_starts(void **state)
{
	struct experiment *e = experiment_from_text("{'name':'s','pin':{'engine':'1023'}," FACTORS "}");
	struct err err = {0};
	struct cpu_list allowed;
	assert_int_equal(cpu_list_allowed(0, &allowed, NULL), STATUS_OK);
	if (cpu_list_missing(&e->pin.engine, &allowed) >= 0) {
		assert_int_equal(pin_check(e, &err), STATUS_INPUT);
		assert_non_null(strstr(err.text, "pin.engine: CPU 1023 cannot be used here; there are "));
	}
	experiment_release(e);
	e = experiment_from_text("{'name':'s'," FACTORS "}");
	assert_int_equal(pin_check(e, NULL), STATUS_OK);
	experiment_release(e);
}

static void a_pin_holds_while_it_lasts_and_is_given_back(void **state)
{
	struct cpu_list before, during, after;
	struct text first = {0}, file = {0};
	assert_int_equal(cpu_list_allowed(0, &before, NULL), STATUS_OK);
	int cpu = 0;
	struct cpu_list one = {0};
	for (; cpu < CPU_LIST_CPUS_MAX; cpu++) {
		one = (struct cpu_list){0};
		one.bits[cpu / 64] = (uint64_t)1 << (cpu % 64);
		if (cpu_list_shared(&one, &before) >= 0)
			break;
	}
	text_printf(&file, "{'name':'s','pin':{'client':'%d'}," FACTORS "}", cpu);
	struct experiment *e = experiment_from_text(text_str(&file));
	struct pin_session session;
	assert_int_equal(pin_begin(e, &session, NULL), STATUS_OK);
	assert_int_equal(cpu_list_allowed(0, &during, NULL), STATUS_OK);
	assert_memory_equal(&during, &one, sizeof one);
	struct json *record = pin_record(&session, 0);
	text_printf(&first, "%d", cpu);
	assert_string_equal(json_text(json_get(record, "client")), text_str(&first));
	/* An engine of which the file says nothing gets what this thread had. */
	assert_memory_equal(&session.engine, &before, sizeof before);
	pin_end(&session);
	assert_int_equal(cpu_list_allowed(0, &after, NULL), STATUS_OK);
	assert_memory_equal(&after, &before, sizeof before);
	json_free(record);
	experiment_release(e);
	text_release(&first);
	text_release(&file);
	e = experiment_from_text("{'name':'s'," FACTORS "}");
	assert_int_equal(pin_begin(e, &session, NULL), STATUS_OK);
	assert_null(pin_record(&session, 1));
	pin_end(&session);
	experiment_release(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_are_read_and_written_in_their_shortest_form),
		cmocka_unit_test(what_is_no_list_is_refused),
		cmocka_unit_test(sets_are_compared),
		cmocka_unit_test(a_file_says_which_cpus_are_whose),
		cmocka_unit_test(cpus_that_are_not_there_are_refused_before_anything_starts),
		cmocka_unit_test(a_pin_holds_while_it_lasts_and_is_given_back),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
