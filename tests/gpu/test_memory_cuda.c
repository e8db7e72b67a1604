/* Memory of a GPU as an engine plans and takes it: fractions that are too low and too high name one that works, and it does; what
 * another process holds is seen and named; a budget caps a large card; a graph that finds no memory names its size and what the
 * others hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/engine_state.h"
#include "tests/support/engine_bed.h"

#define MIB (1LL << 20)
#define HELD_BYTES (48LL << 30) /* by the other process: a third of the card this was written on */
#define HOLDER_DEADLINE_MS 60000
#define UNPLANNED_BYTES (512 * MIB) /* code that the driver loads when it is first launched, and its own lists */

static char path[TINY_PATH_BYTES]; /* a model of few weights and large keys and values: 128 KiB a token */

static int set_up(void **state)
{
	struct tiny_model model = tiny_model_default();
	model.n_layers = 8;
	model.hidden = 256;
	model.n_heads = model.n_kv_heads = 32;
	model.head_dim = 128;
	model.context = 512;
	model.dtype = model.value_dtype = model.embedding_dtype = DTYPE_BF16;
	tiny_model_write_temp(&model, path);
	return 0;
}

static int tear_down(void **state)
{
	unlink(path);
	return 0;
}

/* Enough sequences to use 256 GiB of keys and values, so that the memory is what limits them. */
static struct engine_options options_with(const char *fraction)
{
	struct engine_options options;
	bed_options(path, &options);
	options.device = "cuda";
	options.mem_budget_text = NULL;
	options.mem_budget = 0;
	options.mem_fraction = fraction;
	options.max_num_seqs = 4096;
	options.max_model_len = 512;
	options.graph_max_bs = 8;
	return options;
}

static long long free_bytes(void)
{
	uint64_t total, free_now;
	struct err err = {0};
	if (kn_cuda_memory(0, &total, &free_now, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	return (long long)free_now;
}

/* Opens an engine, lets it answer, and returns what of the GPU's memory it took. */
static long long check_works(const struct engine_options *options)
{
	static struct bed_run run;
	long long before = free_bytes();
	struct engine *engine = bed_open(options, NULL);
	bed_run_init(&run, 1, 100, 20);
	bed_run(engine, &run);
	assert_int_equal(run.result.finish, FINISH_LENGTH);
	long long taken = before - free_bytes();
	engine_destroy(engine);
	return taken;
}

/* Creation fails for lack of memory. Returns the member of the error's details, as text for --mem-fraction. */
static void refused_with(const struct engine_options *options, const char *member, char fraction[32], struct err *err)
{
	struct engine *engine = NULL;
	struct text details = {0};
	struct json *root = NULL;
	assert_int_equal(engine_create(options, &engine, err), STATUS_NO_MEMORY);
	assert_string_equal(err->code, "not_enough_memory");
	print_message("%s\n", err->text);
	text_printf(&details, "{%s}", err->details);
	assert_int_equal(json_parse(text_str(&details), details.len, "details", &root, NULL), STATUS_OK);
	double value = json_number(json_get(root, member), -1);
	assert_true(value > 0 && value <= 1);
	snprintf(fraction, 32, "%g", value);
	json_free(root);
	text_release(&details);
}

static void too_low_a_fraction_names_the_smallest_that_works(void **state)
{
	struct engine_options options = options_with("0.0001");
	struct err err = {0};
	char fraction[32], expected[64];
	refused_with(&options, "min_mem_fraction", fraction, &err);
	snprintf(expected, sizeof expected, "raise --mem-fraction to %s or more", fraction);
	assert_non_null(strstr(err.text, expected));
	options.mem_fraction = fraction;
	check_works(&options);
}

/* --- beside another process ------------------------------------------------------------------------------------------- */

struct holder {
	pid_t pid;
	int in, out; /* ours: it ends when in is closed, and has written a line to out when it holds its memory */
};

/* This program once more, as the other process. */
static int hold(const char *bytes)
{
	struct kn_options options = {.rows_max = 1, .cols_max = 64};
	struct kn_backend *backend = NULL;
	void *block = NULL;
	long long count = 0;
	char byte;
	if (!text_to_i64(bytes, &count) || kn_cuda_ops.create(&options, &backend, NULL) != STATUS_OK ||
		kn_cuda_ops.alloc(backend, (size_t)count, &block, NULL) != STATUS_OK ||
		kn_cuda_ops.synchronize(backend, NULL) != STATUS_OK || write(STDOUT_FILENO, "h", 1) != 1)
		return 1;
	return read(STDIN_FILENO, &byte, 1) == 0 ? 0 : 1;
}

static struct holder start_holder(void)
{
	int in[2], out[2];
	char bytes[32], program[512] = "", byte = 0;
	assert_in_range(readlink("/proc/self/exe", program, sizeof program - 1), 1, sizeof program - 2);
	snprintf(bytes, sizeof bytes, "%lld", HELD_BYTES);
	assert_int_equal(pipe(in), 0);
	assert_int_equal(pipe(out), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
			close(fd);
		execl(program, program, "hold", bytes, (char *)NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	struct pollfd ready = {.fd = out[0], .events = POLLIN};
	assert_int_equal(poll(&ready, 1, HOLDER_DEADLINE_MS), 1);
	assert_int_equal(read(out[0], &byte, 1), 1);
	assert_int_equal(byte, 'h');
	return (struct holder){pid, in[1], out[0]};
}

static void stop_holder(struct holder *holder)
{
	int status = 0;
	close(holder->in);
	close(holder->out);
	assert_int_equal(waitpid(holder->pid, &status, 0), holder->pid);
	assert_int_equal(status, 0);
}

static void memory_of_another_process_is_seen_and_named(void **state)
{
	struct engine_options options = options_with("1");
	struct holder holder = start_holder();
	struct err err = {0};
	char fraction[32], expected[96];
	refused_with(&options, "max_mem_fraction", fraction, &err);
	snprintf(expected, sizeof expected, "lower --mem-fraction to %.2f or less", strtod(fraction, NULL));
	assert_non_null(strstr(err.text, expected));
	snprintf(expected, sizeof expected, "the rest is held by pid %d (test_memory_cu", (int)holder.pid);
	assert_non_null(strstr(err.text, expected));
	options.mem_fraction = fraction; /* the largest that works */
	check_works(&options);
	options.mem_fraction = "auto";
	struct engine *engine = bed_open(&options, NULL);
	struct json *config = engine_config_json(engine);
	const struct json *memory = json_get(config, "memory");
	snprintf(expected, sizeof expected, "pid %d (test_memory_cu", (int)holder.pid);
	assert_non_null(strstr(json_text(json_get(memory, "held_by_others")), expected));
	assert_true(json_number(json_get(memory, "available_bytes"), 0) + (double)HELD_BYTES <
		json_number(json_get(memory, "total_bytes"), 0));
	json_free(config);
	engine_destroy(engine);
	stop_holder(&holder);
}

/* --- a budget --------------------------------------------------------------------------------------------------------- */

static void a_budget_caps_what_an_engine_takes_of_a_large_card(void **state)
{
	struct engine_options options = options_with("1");
	options.mem_budget_text = "3GiB";
	options.mem_budget = 3LL << 30;
	long long first = check_works(&options), taken = check_works(&options);
	print_message("of a budget of 3072 MiB %lld MiB were taken, by the first engine of a process %lld MiB\n", taken / MIB,
		first / MIB);
	assert_true(first < options.mem_budget + UNPLANNED_BYTES);
	assert_true(taken > options.mem_budget * 9 / 10);
	assert_true(taken < options.mem_budget + UNPLANNED_BYTES);
}

/* --- graphs ----------------------------------------------------------------------------------------------------------- */

static void steps_above_the_largest_graph_run_as_they_come_and_are_counted(void **state)
{
	enum { RUNS = 6 };
	struct engine_options options = options_with("auto");
	static struct bed_run runs[RUNS];
	options.mem_budget_text = "3GiB";
	options.mem_budget = 3LL << 30;
	options.max_num_seqs = 8;
	options.graph_max_bs = 2;
	struct engine *engine = bed_open(&options, NULL);
	for (int i = 0; i < RUNS; i++) {
		bed_run_init(&runs[i], (uint64_t)i, 30, 60);
		bed_submit(engine, &runs[i]);
	}
	for (int i = 0; i < RUNS; i++)
		bed_wait(&runs[i]);
	assert_true(bed_metric(engine, "verdict_steps_above_plans_total") > 0);
	assert_true(bed_metric(engine, "verdict_steps_total{kind=\"decode\",plan=\"no\"}") > 0);
	engine_destroy(engine);
}

/* Fills the GPU before the graph of HUNGRY_PLAN is made. */
#define HUNGRY_PLAN 3
#define EATEN_MAX 64
static struct kn_ops hungry;
static int n_plans_begun;
static void *eaten[EATEN_MAX];
static int n_eaten;

static enum status eat_and_begin(struct kn_backend *backend, struct err *err)
{
	size_t bytes = ++n_plans_begun == HUNGRY_PLAN ? (size_t)32 << 30 : 0;
	while (bytes >= 4096 && n_eaten < EATEN_MAX) {
		if (kn_cuda_ops.alloc(backend, bytes, &eaten[n_eaten], NULL) == STATUS_OK)
			n_eaten++;
		else
			bytes /= 2;
	}
	return kn_cuda_ops.plan_begin(backend, err);
}

static void a_graph_without_memory_names_its_size_and_what_the_others_hold(void **state)
{
	struct source source = {0};
	struct model_config config;
	struct forward *forward = NULL;
	struct err err = {0};
	hungry = kn_cuda_ops;
	hungry.plan_begin = eat_and_begin;
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	float *logits = mem_calloc(256 * (size_t)config.vocab, sizeof *logits);
	struct forward_options options = {
		.kn = &hungry, .limits = {256, 256, 2, 256}, .world = 1, .graph_max_bs = 256, .n_blocks = 600, .logits = logits};
	enum status status = forward_create(&source, &config, &options, &forward, &err);
	print_message("%s\n", err.text);
	assert_int_equal(status, STATUS_NO_MEMORY);
	assert_string_equal(err.code, "not_enough_memory");
	assert_non_null(strstr(err.text, "not enough memory for the step plan of "));
	assert_non_null(strstr(err.text, "smaller ones hold "));
	assert_non_null(strstr(err.text, "lower --graph-max-bs to "));
	source_close(&source);
	mem_free(logits);
}

/* usage: test_memory_cuda [few | hold BYTES] */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		/* The first one: code is loaded once a process. */
		cmocka_unit_test(a_budget_caps_what_an_engine_takes_of_a_large_card),
		cmocka_unit_test(too_low_a_fraction_names_the_smallest_that_works),
		cmocka_unit_test(memory_of_another_process_is_seen_and_named),
		cmocka_unit_test(steps_above_the_largest_graph_run_as_they_come_and_are_counted),
		/* The last one: the memory it takes is given back when the process ends. */
		cmocka_unit_test(a_graph_without_memory_names_its_size_and_what_the_others_hold),
	};
	if (argc == 3 && strcmp(argv[1], "hold") == 0)
		return hold(argv[2]);
	if (argc > 1 && strcmp(argv[1], "few") == 0) {
		print_message(
			"these tests need a card of their own, and run no kernel that others do not: left out\n[  SKIPPED ] all\n");
		return 0;
	}
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
