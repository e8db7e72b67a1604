/* The adapters of vLLM and SGLang against what the installed programs were recorded to say: tests/golden/servers/README.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "base/file.h"
#include "harness/counters.h"
#include "harness/effective.h"
#include "harness/help_check.h"
#include "harness/target.h"
#include "tests/support/golden_file.h"

static struct json *parse(const char *bytes, size_t len)
{
	struct json *document = NULL;
	struct err err = {0};
	if (json_parse(bytes, len, "text", &document, &err))
		fail_msg("%s", err.text);
	return document;
}

/* The settings that an adapter takes from a recorded document. */
static struct json *settings_of(const struct target_ops *ops, const char *name)
{
	struct text text = {0};
	golden_file_read("servers", name, &text);
	struct json *told = parse(text_str(&text), text.len), *settings = ops->settings(told);
	json_free(told);
	text_release(&text);
	return settings;
}

/* Whether one setting, as it was asked for, agrees with what the engine told; flag is the experiment's own switch, or NULL. */
static bool is_active(const struct target_ops *ops, const struct json *config, const char *knob, const char *flag,
	const char *value, char reason[512])
{
	struct json *asked = parse(value, strlen(value));
	struct name_value own = {knob, flag};
	struct knob_value setting = {.knob = knob, .value = asked, .text = value};
	const struct engine_spec engine = {.adapter = ops->name, .flags = &own, .n_flags = flag ? 1 : 0};
	const struct arm arm = {.settings = &setting, .n_settings = 1};
	reason[0] = '\0';
	bool active = target_settings_active(ops, &engine, &arm, config, reason);
	json_free(asked);
	return active;
}

static void every_switch_of_the_adapters_is_in_the_recorded_help(void **state)
{
	static const struct {
		const struct target_ops *ops;
		const char *file;
	} cases[] = {{&target_vllm, "vllm_help.txt"}, {&target_sglang, "sglang_help.txt"}};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct text help = {0};
		golden_file_read("servers", cases[i].file, &help);
		for (size_t k = 0; k < cases[i].ops->n_switches; k++) {
			struct err err = {0};
			if (help_check_switch(cases[i].ops, text_str(&help), "a", cases[i].ops->switches[k].value, &err))
				fail_msg("%s", err.text);
		}
		struct err err = {0};
		assert_int_equal(help_check_switch(cases[i].ops, text_str(&help), "a", "--frobnicate", &err), STATUS_INPUT);
		assert_null(strstr(err.text, "write"));
		assert_true(help_names_switch(text_str(&help), "--port"));
		assert_false(help_names_switch(text_str(&help), "--max"));
		text_release(&help);
	}
}

static void a_switch_without_its_opposite_is_not_taken_for_having_one(void **state)
{
	struct text help = {0};
	golden_file_read("servers", "vllm_help.txt", &help);
	assert_true(help_names_switch(text_str(&help), "--no-async-scheduling"));
	assert_true(help_names_switch(text_str(&help), "--no-enable-prefix-caching")); /* taken, though not listed in these words */
	assert_true(help_names_switch(text_str(&help), "--no-disable-custom-all-reduce"));
	assert_false(help_names_switch(text_str(&help), "--no-disable-log-stats"));
	text_release(&help);
	golden_file_read("servers", "sglang_help.txt", &help);
	assert_true(help_names_switch(text_str(&help), "--disable-radix-cache"));
	assert_false(help_names_switch(text_str(&help), "--no-disable-radix-cache"));
	text_release(&help);
}

static void the_switch_of_an_older_version_is_proposed(void **state)
{
	const char *older = "  --port PORT\n  --cuda-graph-max-bs CUDA_GRAPH_MAX_BS\n";
	struct err err = {0};
	assert_int_equal(
		help_check_switch(&target_sglang, older, "graph_max_bs=8", "--cuda-graph-max-bs-decode", &err), STATUS_INPUT);
	assert_string_equal(err.text,
		"arm 'graph_max_bs=8' uses --cuda-graph-max-bs-decode, which in this version of the engine is --cuda-graph-max-bs: "
		"write "
		"\"flags\": {\"graph_max_bs\": \"--cuda-graph-max-bs\"} in \"engine\"");
	assert_int_equal(help_check_switch(&target_sglang, older, "a", "--cuda-graph-max-bs-decode", NULL),
		STATUS_INPUT); /* no one listens */
}

static void recorded_counters_have_the_names_that_are_looked_for(void **state)
{
	struct text text = {0};
	struct run_counters c;
	golden_file_read("servers", "vllm_metrics_recorded.txt", &text);
	counters_read(text_str(&text), target_vllm.counters, &c);
	assert_true(c.prompt == 0 && c.generated == 0 && c.looked_up == 0 && c.cached == 0);
	assert_true(c.drafted == 0 && c.accepted == 0 && c.rounds == 0);
	struct json *labels = counters_labels(text_str(&text), target_vllm.settings_metric);
	assert_true(json_number(json_get(labels, "block_size"), 0) == 32);
	json_free(labels);
	text_release(&text);
	golden_file_read("servers", "sglang_metrics_recorded.txt", &text);
	counters_read(text_str(&text), target_sglang.counters, &c);
	assert_true(c.prompt == 4100 && c.generated == 256 && c.cached == 128 && c.rounds == 100 && c.accepted == -1);
	text_release(&text);
}

static void older_names_of_counters_are_read_where_the_newer_are_missing(void **state)
{
	struct run_counters c;
	counters_read("vllm:gpu_prefix_cache_queries_total{engine=\"0\"} 8\nvllm:gpu_prefix_cache_hits_total{engine=\"0\"} 3\n",
		target_vllm.counters, &c);
	assert_true(c.looked_up == 8 && c.cached == 3);
	counters_read("vllm:prefix_cache_hits_total 2\nvllm:gpu_prefix_cache_hits_total 3\n", target_vllm.counters, &c);
	assert_true(c.cached == 2);
}

static void where_only_rounds_are_counted_they_tell_the_tokens_of_a_round(void **state)
{
	struct run_counters before = {.generated = 10, .rounds = 5, .accepted = -1},
			    after = {.generated = 260, .rounds = 105, .accepted = -1};
	assert_true(counters_difference(&before, &after).accept_length == 2.5);
	before.accepted = 3;
	after.accepted = 4; /* then the accepted tokens tell it */
	assert_true(counters_difference(&before, &after).accept_length == 0);
	before.rounds = after.rounds = -1;
	assert_true(counters_difference(&before, &after).accept_length == 0);
}

static void the_whole_configuration_of_vllm_is_read_back(void **state)
{
	struct json *config = settings_of(&target_vllm, "vllm_server_info.json");
	char why[512];
	static const struct {
		const char *knob, *flag, *value;
		bool active;
	} cases[] = {
		{"mem_fraction", NULL, "0.92", true},
		{"mem_fraction", NULL, "0.9", false},
		{"max_num_seqs", NULL, "64", true},
		{"max_num_seqs", NULL, "128", false},
		{"max_num_batched_tokens", NULL, "4096", true},
		{"max_model_len", NULL, "4096", false},
		{"block_size", NULL, "16", false},
		{"enable_prefix_caching", NULL, "false", false},
		{"tensor_parallel_size", NULL, "2", false},
		{"disable_custom_all_reduce", NULL, "true", true},
		{"enforce_eager", NULL, "true", false},
		{"enable_chunked_prefill", NULL, "true", true},
		{"async_scheduling", NULL, "true", false}, /* it was turned off by the engine itself */
		{"kv_cache_dtype", NULL, "\"auto\"", true},
		{"kv_cache_dtype", NULL, "\"fp8\"", false},
		{"dtype", NULL, "\"bfloat16\"", true},
		{"dtype", NULL, "\"float16\"", false},
		{"scheduling_policy", NULL, "\"priority\"", false},
		{"graph_max_bs", NULL, "64", false}, /* no graphs on this device */
		{"speculation", NULL, "{\"method\":\"ngram\",\"num_speculative_tokens\":3,\"prompt_lookup_max\":4}", true},
		{"speculation", NULL, "{\"method\":\"ngram\",\"num_speculative_tokens\":5}", false},
		{"speculation", NULL, "{\"method\":\"eagle\",\"num_speculative_tokens\":3}", false},
		{"speculation", NULL, "{\"method\":\"gram\"}", false}, /* a part of a word is another word */
		{"speculation", NULL, "{\"method\":\"ngram2\"}", false},
		{"speculation", NULL, "null", true},
		{"compilation_config", NULL, "{\"cudagraph_mode\":\"FULL\",\"backend\":\"inductor\"}",
			true}, /* the mode is a number */
		{"compilation_config", NULL, "{\"backend\":\"eager\"}", false},
		{"steps", "--prefill-schedule-interval", "1", true}, /* a switch of the experiment's own */
		{"steps", "--prefill-schedule-interval", "4", false},
		{"dev", "env:VLLM_SERVER_DEV_MODE", "\"1\"", true}, /* a variable, and its value of another form */
		{"dev", "env:VLLM_SERVER_DEV_MODE", "0", false},
		{"other", "env:NOBODY_TELLS", "5", true},
		{"unknown", "--nobody-tells", "5", true},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (is_active(&target_vllm, config, cases[i].knob, cases[i].flag, cases[i].value, why) != cases[i].active)
			fail_msg("%s=%s: %s", cases[i].knob, cases[i].value, why[0] ? why : "active");
	assert_false(is_active(&target_vllm, config, "max_num_seqs", NULL, "128", why));
	assert_string_equal(why, "inactive: max_num_seqs=128 was asked, 64 is in effect");
	/* Secrets and what is new with every start are not kept. */
	assert_null(json_get(config, "instance_id"));
	assert_null(json_get(config, "hf_token"));
	assert_null(json_get(config, "master_port"));
	json_free(config);
}

static void speculation_that_is_off_although_it_was_asked_for_is_seen(void **state)
{
	const char *text = "{\"vllm_config\":{\"speculative_config\":null,\"cache_config\":{\"block_size\":16}}}";
	struct json *told = parse(text, strlen(text)), *config = target_vllm.settings(told);
	char why[512];
	assert_false(is_active(&target_vllm, config, "speculation", NULL, "{\"method\":\"ngram\"}", why));
	assert_true(is_active(&target_vllm, config, "block_size", NULL, "16", why));
	json_free(config);
	json_free(told);
}

static void a_document_of_another_form_is_taken_as_it_is_or_not_at_all(void **state)
{
	static const char *const nothing[] = {
		"{\"vllm_config\":\"model='m', dtype=auto\"}", "{\"vllm_config\":[1]}", "{\"vllm_config\":7}"};
	for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
		struct json *told = parse(nothing[i], strlen(nothing[i]));
		assert_null(target_vllm.settings(told));
		json_free(told);
	}
	const char *plain = "{\"block_size\":16}",
		   *odd = "{\"vllm_config\":{\"a\":1,\"a_config\":{\"a\":2,\"_b\":3,\"c\":[4]},\"z\":null}}";
	struct json *told = parse(plain, strlen(plain)), *config = target_vllm.settings(told);
	assert_int_equal(json_int(json_get(config, "block_size"), 0), 16);
	json_free(config);
	json_free(told);
	told = parse(odd, strlen(odd));
	config = target_vllm.settings(told);
	assert_int_equal(json_int(json_get(config, "a"), 0), 1);
	assert_int_equal(json_int(json_get(config, "a_config.a"), 0), 2);
	assert_null(json_get(config, "_b"));
	assert_null(json_get(config, "c"));
	json_free(config);
	json_free(told);
}

static void the_resolved_arguments_of_sglang_are_read_back(void **state)
{
	struct json *config = settings_of(&target_sglang, "sglang_server_info.json");
	char why[512];
	static const struct {
		const char *knob, *flag, *value;
		bool active;
	} cases[] = {
		{"mem_fraction", NULL, "0.8", true},
		{"mem_fraction", NULL, "0.88", false},
		{"graph_max_bs", NULL, "64", true},
		{"graph_max_bs", NULL, "128", false},
		{"max_running_requests", NULL, "32", false},
		{"chunked_prefill_size", NULL, "1024", true},
		{"attention_backend", NULL, "\"triton\"", false},
		{"tp", NULL, "2", true},
		{"tp", NULL, "4", false},
		{"disable_radix_cache", NULL, "true", true},
		{"disable_radix_cache", NULL, "false", false},
		{"disable_custom_all_reduce", NULL, "true", false},
		{"backend", "--attention-backend", "\"torch_native\"", true},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		if (is_active(&target_sglang, config, cases[i].knob, cases[i].flag, cases[i].value, why) != cases[i].active)
			fail_msg("%s=%s: %s", cases[i].knob, cases[i].value, why[0] ? why : "active");
	assert_null(json_get(config, "internal_states"));
	json_free(config);
	/* Resolution keeps the largest batch in the configuration of graphs, and gives methods their family's name. */
	const char *text = "{\"cuda_graph_config\":{\"decode\":{\"max_bs\":32}},\"cuda_graph_max_bs_decode\":64,"
			   "\"speculative_algorithm\":\"EAGLE\"}";
	config = parse(text, strlen(text));
	assert_false(is_active(&target_sglang, config, "graph_max_bs", NULL, "64", why));
	assert_true(is_active(&target_sglang, config, "speculation", NULL, "\"NEXTN\"", why));
	assert_false(is_active(&target_sglang, config, "speculation", NULL, "\"NGRAM\"", why));
	json_free(config);
}

static void what_differs_although_nobody_asked_is_named(void **state)
{
	struct json *baseline = settings_of(&target_vllm, "vllm_server_info.json"), *other = json_clone(baseline);
	json_set(other, "max_num_seqs", json_new_integer(32));
	json_set(other, "async_scheduling", json_new_bool(true));
	const char *changed_text = "[{\"knob\": \"max_num_seqs\", \"value\": 32}]";
	struct json *changed = parse(changed_text, strlen(changed_text));
	struct json *differences = effective_differences(&target_vllm, baseline, other, changed);
	assert_int_equal(json_count(differences), 1);
	assert_string_equal(json_text(json_get(json_at(differences, 0), "setting")), "async_scheduling");
	json_free(differences);
	json_free(changed);
	json_free(other);
	json_free(baseline);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_switch_of_the_adapters_is_in_the_recorded_help),
		cmocka_unit_test(a_switch_without_its_opposite_is_not_taken_for_having_one),
		cmocka_unit_test(the_switch_of_an_older_version_is_proposed),
		cmocka_unit_test(recorded_counters_have_the_names_that_are_looked_for),
		cmocka_unit_test(older_names_of_counters_are_read_where_the_newer_are_missing),
		cmocka_unit_test(where_only_rounds_are_counted_they_tell_the_tokens_of_a_round),
		cmocka_unit_test(the_whole_configuration_of_vllm_is_read_back),
		cmocka_unit_test(speculation_that_is_off_although_it_was_asked_for_is_seen),
		cmocka_unit_test(a_document_of_another_form_is_taken_as_it_is_or_not_at_all),
		cmocka_unit_test(the_resolved_arguments_of_sglang_are_read_back),
		cmocka_unit_test(what_differs_although_nobody_asked_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
