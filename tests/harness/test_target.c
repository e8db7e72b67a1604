/* Adapters: from an arm to arguments and environment, comparing settings, understanding logs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "harness/target.h"

#define SETTINGS_MAX 8

/* An experiment with one arm, by hand: only what adapters read. */
struct fixture {
	struct experiment experiment;
	struct arm arm;
	struct knob_value settings[SETTINGS_MAX];
	struct json *values;
};

/* values: JSON object of knob and value. */
static void set_up(struct fixture *fixture, const char *adapter, const char *const *command, size_t n_command, const char *values)
{
	*fixture = (struct fixture){0};
	assert_int_equal(json_parse(values, strlen(values), "values", &fixture->values, NULL), STATUS_OK);
	for (void *it = json_first(fixture->values); it; it = json_next(fixture->values, it))
		fixture->settings[fixture->arm.n_settings++] =
			(struct knob_value){json_iterator_key(it), json_iterator_value(it), json_iterator_key(it)};
	fixture->arm.name = "arm";
	fixture->arm.settings = fixture->settings;
	fixture->experiment.engine.adapter = adapter;
	fixture->experiment.engine.command = (struct string_list){(const char **)command, n_command};
	fixture->experiment.engine.model = "m.gguf";
}

static void expect_arguments(struct fixture *fixture, const char *expected)
{
	struct string_vector out = {0};
	struct err err = {0};
	struct target_launch launch = {&fixture->experiment, &fixture->arm, NULL, 4242};
	enum status status = target_command(&launch, &out, &err);
	char *json = string_vector_json(&out);
	assert_string_equal(status ? err.text : json, expected);
	mem_free(json);
	string_vector_release(&out);
	json_free(fixture->values);
}

static void the_builtin_engine_has_a_switch_for_every_knob(void **state)
{
	struct fixture fixture;
	set_up(&fixture, "builtin", NULL, 0,
		"{\"allreduce\":\"shm-flag\",\"graph_max_bs\":8,\"mem_fraction\":0.85,\"speculation\":\"off\"}");
	expect_arguments(&fixture,
		"[\"verdict-engine\",\"serve\",\"--model\",\"m.gguf\",\"--host\",\"127.0.0.1\",\"--port\",\"4242\",\"--allreduce\","
		"\"shm-flag\",\"--graph-max-bs\",\"8\",\"--mem-fraction\",\"0.85\",\"--speculation\",\"off\"]");
}

static void placeholders_are_replaced_anywhere_and_nothing_else_is(void **state)
{
	const char *command[] = {"./s", "--m=${MODEL}", "${PORT}:${PORT}", "$HOME", "${OTHER}", "a b;c"};
	struct fixture fixture;
	set_up(&fixture, "command", command, 6, "{}");
	expect_arguments(&fixture, "[\"./s\",\"--m=m.gguf\",\"4242:4242\",\"$HOME\",\"${OTHER}\",\"a b;c\"]");
}

static void kinds_of_values_become_arguments_as_documented(void **state)
{
	struct fixture fixture;
	const char *command[] = {"s", "${PORT}"};
	static struct name_value flags[] = {{"on", "--on"}, {"off", "--off"}, {"none", "--none"}, {"empty", "--empty"},
		{"list", "--list"}, {"object", "--object"}, {"short", "-q"}};
	set_up(&fixture, "command", command, 2,
		"{\"on\":true,\"off\":false,\"none\":null,\"empty\":\"\",\"list\":[1,\"b\",0.5],\"object\":{\"k\":1},\"short\":"
		"false}");
	fixture.experiment.engine.flags = flags;
	fixture.experiment.engine.n_flags = 7;
	expect_arguments(&fixture,
		"[\"s\",\"4242\",\"--on\",\"--no-off\",\"--empty\",\"\",\"--list\",\"1\",\"b\",\"0.5\",\"--object\",\"{\\\"k\\\":1}"
		"\"]");
}

static void a_knob_can_be_an_environment_variable(void **state)
{
	struct fixture fixture;
	static struct name_value flags[] = {{"threads", "env:OMP_NUM_THREADS"}, {"unset", "env:NOPE"}};
	static struct name_value env[] = {{"CACHE", "/c/${PORT}/${MODEL}"}};
	const char *command[] = {"s", "${PORT}"};
	set_up(&fixture, "command", command, 2, "{\"threads\":4,\"unset\":null}");
	fixture.experiment.engine.flags = flags;
	fixture.experiment.engine.n_flags = 2;
	fixture.experiment.engine.env = env;
	fixture.experiment.engine.n_env = 1;
	struct string_vector out = {0};
	struct target_launch launch = {&fixture.experiment, &fixture.arm, NULL, 4242};
	assert_int_equal(target_environment(&launch, &out, NULL), STATUS_OK);
	assert_int_equal(out.count, 2);
	assert_string_equal(out.items[0], "CACHE=/c/4242/m.gguf");
	assert_string_equal(out.items[1], "OMP_NUM_THREADS=4");
	string_vector_release(&out);
	expect_arguments(&fixture, "[\"s\",\"4242\"]");
}

static void vllm_is_made_to_tell_its_settings_unless_the_experiment_decides(void **state)
{
	static struct name_value env[] = {{"VLLM_SERVER_DEV_MODE", "0"}};
	const char *command[] = {"s"};
	for (int decided = 0; decided < 2; decided++) {
		struct fixture fixture;
		struct string_vector out = {0};
		set_up(&fixture, "vllm", command, 1, "{}");
		fixture.experiment.engine.env = env;
		fixture.experiment.engine.n_env = (size_t)decided;
		struct target_launch launch = {&fixture.experiment, &fixture.arm, NULL, 4242};
		assert_int_equal(target_environment(&launch, &out, NULL), STATUS_OK);
		assert_int_equal(out.count, 1);
		assert_string_equal(out.items[0], decided ? "VLLM_SERVER_DEV_MODE=0" : "VLLM_SERVER_DEV_MODE=1");
		string_vector_release(&out);
		json_free(fixture.values);
	}
}

static void external_engines_have_their_own_names(void **state)
{
	struct fixture fixture;
	const char *command[] = {"s"};
	set_up(&fixture, "sglang", command, 1, "{\"graph_max_bs\":128,\"mem_fraction\":0.88}");
	expect_arguments(&fixture,
		"[\"s\",\"--host\",\"127.0.0.1\",\"--port\",\"4242\",\"--cuda-graph-max-bs-decode\",\"128\",\"--mem-fraction-"
		"static\",\"0."
		"88\"]");
	set_up(&fixture, "vllm", command, 1, "{\"mem_fraction\":0.9,\"max_num_seqs\":64}");
	expect_arguments(&fixture,
		"[\"s\",\"--host\",\"127.0.0.1\",\"--port\",\"4242\",\"--gpu-memory-utilization\",\"0.9\",\"--max-num-seqs\","
		"\"64\"]");
	const char *python[] = {"python3", "-m", "llama_cpp.server"};
	set_up(&fixture, "llamacpp", python, 3, "{\"ctx_size\":4096,\"flash_attn\":true,\"logits_all\":false}");
	expect_arguments(&fixture,
		"[\"python3\",\"-m\",\"llama_cpp.server\",\"--host\",\"127.0.0.1\",\"--port\",\"4242\",\"--n_ctx\",\"4096\","
		"\"--flash_attn\",\"true\",\"--logits_all\",\"false\"]");
	set_up(&fixture, "llamacpp", command, 1, "{\"ctx_size\":4096}");
	expect_arguments(&fixture, "[\"s\",\"--host\",\"127.0.0.1\",\"--port\",\"4242\",\"--ctx-size\",\"4096\"]");
}

static void what_cannot_be_launched_is_refused_with_the_reason(void **state)
{
	struct fixture fixture;
	const char *command[] = {"s", "${PORT}"}, *with_model[] = {"s", "${MODEL}"};
	set_up(&fixture, "command", command, 2, "{\"unknown\":1}");
	expect_arguments(&fixture, "knob 'unknown' has no switch: name one in engine.flags");
	set_up(&fixture, "command", with_model, 2, "{}");
	fixture.experiment.engine.model = NULL;
	expect_arguments(&fixture, "engine.command uses ${MODEL}, but no model is named (engine.model or --model)");
	set_up(&fixture, "vllm", NULL, 0, "{}");
	expect_arguments(&fixture, "engine.command is needed for adapter 'vllm'");
	set_up(&fixture, "nginx", NULL, 0, "{}");
	expect_arguments(&fixture, "unknown adapter 'nginx'");
	set_up(&fixture, "attach", NULL, 0, "{}");
	expect_arguments(&fixture, "[]");
}

static void before_a_port_is_chosen_its_place_stays_visible(void **state)
{
	struct fixture fixture;
	set_up(&fixture, "builtin", NULL, 0, "{}");
	struct string_vector out = {0};
	struct target_launch launch = {&fixture.experiment, &fixture.arm, "/bin/e", 0};
	assert_int_equal(target_command(&launch, &out, NULL), STATUS_OK);
	assert_string_equal(out.items[0], "/bin/e");
	assert_string_equal(out.items[out.count - 1], "${PORT}");
	string_vector_release(&out);
	json_free(fixture.values);
}

static bool is_active(const struct target_ops *ops, const char *values, const char *config_text, char reason[512])
{
	struct fixture fixture;
	struct json *config = NULL;
	set_up(&fixture, ops->name, NULL, 0, values);
	assert_int_equal(json_parse(config_text, strlen(config_text), "config", &config, NULL), STATUS_OK);
	reason[0] = '\0';
	bool active = target_settings_active(ops, &fixture.experiment.engine, &fixture.arm, config, reason);
	json_free(config);
	json_free(fixture.values);
	return active;
}

static void settings_are_compared_by_value(void **state)
{
	char reason[512];
	const char *config = "{\"settings\":{\"graph_max_bs\":{\"value\":8},\"mem_fraction\":{\"value\":0.85},\"allreduce\":{"
			     "\"value\":\"shm-flag\"}}}";
	assert_true(
		is_active(&target_builtin, "{\"graph_max_bs\":8,\"mem_fraction\":0.85,\"allreduce\":\"auto\"}", config, reason));
	assert_true(is_active(&target_builtin, "{\"graph_max_bs\":\"8\",\"mem_fraction\":0.850000}", config, reason));
	assert_true(is_active(&target_builtin, "{\"graph_max_bs\":8.0,\"mem_fraction\":null}", config, reason));
	assert_false(is_active(&target_builtin, "{\"graph_max_bs\":16}", config, reason));
	assert_string_equal(reason, "inactive: graph_max_bs=graph_max_bs was asked, 8 is in effect");
	assert_false(is_active(&target_builtin, "{\"speculation\":\"ngram\"}", config, reason));
	assert_string_equal(reason, "inactive: the engine does not report speculation");
	assert_true(is_active(&target_command_line, "{\"speculation\":\"ngram\"}", config, reason));
	assert_false(is_active(&target_command_line, "{\"graph_max_bs\":16}", config, reason));
	assert_true(
		is_active(&target_sglang, "{\"graph_max_bs\":128,\"tp\":2}", "{\"cuda_graph_max_bs\":128,\"tp_size\":2}", reason));
	assert_false(is_active(&target_sglang, "{\"graph_max_bs\":128}", "{\"cuda_graph_max_bs\":160}", reason));
}

static void expect_explanation(const struct target_ops *ops, const char *log, bool running, const char *expected)
{
	enum failure failure = FAILURE_NONE;
	char reason[512] = "";
	bool explained = ops->explain(ops, log, running, &failure, reason);
	assert_string_equal(explained ? reason : "(none)", expected);
	if (explained)
		assert_true(text_starts_with(reason, failure_name(failure)));
}

static void the_builtin_engine_explains_itself_by_its_last_line(void **state)
{
	expect_explanation(&target_builtin,
		"x\nverdict-engine: not enough memory: 120 "
		"MiB\n{\"error\":\"not_enough_memory\",\"need_bytes\":5,\"min_mem_fraction\":0.31}\n",
		false, "oom_load: needs mem_fraction 0.31");
	expect_explanation(&target_builtin, "{\"error\":\"not_enough_memory\",\"need_bytes\":5,\"min_mem_fraction\":0.305}", false,
		"oom_load: needs mem_fraction 0.31");
	expect_explanation(&target_builtin, "{\"error\":\"not_enough_memory\",\"need_bytes\":1048576,\"min_mem_fraction\":null}\n",
		false, "oom_load: needs 1.0 MiB, more than the whole memory budget");
	expect_explanation(&target_builtin, "a\nverdict-engine: allreduce 'nccl' needs a GPU\n{\"error\":\"bad_allreduce\"}\n",
		false, "launch_error: bad_allreduce: allreduce 'nccl' needs a GPU");
	expect_explanation(&target_builtin, "a\nverdict-engine: rank 1 died\n{\"error\":\"rank_died\",\"rank\":1}\n\n", true,
		"crash: rank_died: rank 1 died");
	/* Also while it starts: a rank that was killed is no fault of the settings, and is tried again. */
	expect_explanation(&target_builtin, "verdict-engine: rank 1 died\n{\"error\":\"rank_died\",\"rank\":1}\n", false,
		"crash: rank_died: rank 1 died");
	expect_explanation(&target_builtin, "{\"error\":5}\n{\"errors\":\"x\"}\nno json {\"error\":\"x\"}\n", false, "(none)");
	expect_explanation(&target_builtin, "", false, "(none)");
}

static void other_engines_are_understood_by_their_words(void **state)
{
	expect_explanation(&target_vllm, "INFO a\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", false,
		"oom_load: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB");
	expect_explanation(&target_vllm, "ValueError: No available memory for the cache blocks. Try increasing\n", false,
		"oom_load: ValueError: No available memory for the cache blocks. Try increasing");
	expect_explanation(&target_sglang, "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n",
		false, "oom_load: RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.");
	expect_explanation(&target_llamacpp, "ggml: cudaMalloc failed: out of memory\n", true,
		"oom_run: ggml: cudaMalloc failed: out of memory");
	expect_explanation(&target_llamacpp, "error: invalid argument: --frobnicate\n", false,
		"launch_error: error: invalid argument: --frobnicate");
	expect_explanation(&target_vllm, "vllm: error: unrecognized arguments: --x\n", false,
		"launch_error: vllm: error: unrecognized arguments: --x");
	expect_explanation(&target_command_line, "all is well\n", false, "(none)");
	expect_explanation(&target_attach, "out of memory", true, "(none)");
}

static void every_adapter_fills_every_slot(void **state)
{
	static const char *const names[] = {"builtin", "llamacpp", "vllm", "sglang", "command", "attach"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct target_ops *ops = target_by_name(names[i]);
		assert_non_null(ops);
		assert_true(ops->ready_path && ops->add_address && ops->switch_of && ops->effective && ops->explain);
	}
	assert_null(target_by_name("tgi"));
	assert_null(target_by_name(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_builtin_engine_has_a_switch_for_every_knob),
		cmocka_unit_test(placeholders_are_replaced_anywhere_and_nothing_else_is),
		cmocka_unit_test(kinds_of_values_become_arguments_as_documented),
		cmocka_unit_test(a_knob_can_be_an_environment_variable),
		cmocka_unit_test(vllm_is_made_to_tell_its_settings_unless_the_experiment_decides),
		cmocka_unit_test(external_engines_have_their_own_names),
		cmocka_unit_test(what_cannot_be_launched_is_refused_with_the_reason),
		cmocka_unit_test(before_a_port_is_chosen_its_place_stays_visible),
		cmocka_unit_test(settings_are_compared_by_value),
		cmocka_unit_test(the_builtin_engine_explains_itself_by_its_last_line),
		cmocka_unit_test(other_engines_are_understood_by_their_words),
		cmocka_unit_test(every_adapter_fills_every_slot),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
