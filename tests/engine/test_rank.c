/* Ranks built from one shared region: named and measured collectives, the same step on all, one set of logits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/wait.h"
#include "engine/options.h"
#include "engine/rank.h"
#include "tests/support/comm_group.h"
#include "tests/support/tiny_gguf.h"

#define N_TOKENS 5

/* What all ranks of a group use; each works on its own copy of the pointers. */
struct group_context {
	const char *path;
	void *region;
	_Atomic uint32_t *go; /* steps that rank 0 has let the others begin */
};

#define N_STEPS 100

static int fail_with(const struct comm_group_member *member, const struct err *err)
{
	snprintf(member->text, COMM_GROUP_TEXT_BYTES, "%.500s", err->text);
	return 1;
}

/* Rank 0 clears the logits, lets everybody run, and must find all of them filled in when its step returns. */
static enum status run_steps(
	const struct group_context *context, struct rank *rank, int number, struct region *region, struct err *err)
{
	size_t vocab = (size_t)region->header->setup.vocab;
	for (uint32_t i = 0; i < N_STEPS; i++) {
		if (number == 0) {
			memset(region->logits, 0, vocab * sizeof(float));
			atomic_store(context->go, i + 1);
			wait_wake_all(context->go);
		} else if (!wait_while_equal(context->go, i, 0, NULL, clock_monotonic_ns() + 20000000000)) {
			return err_set(err, STATUS_TIMEOUT, "rank 0 did not go on");
		}
		enum status status = rank_step(rank, NULL, err);
		for (size_t id = 0; number == 0 && status == STATUS_OK && id < vocab; id++)
			if (region->logits[id] == 0)
				status = err_set(err, STATUS_INTERNAL, "step %u: no logit %zu yet", i, id);
		if (status != STATUS_OK)
			return status;
	}
	return STATUS_OK;
}

static int run_member(const struct comm_group_member *member)
{
	const struct group_context *context = member->ctx;
	struct source source = {0};
	struct model_config config;
	struct region region;
	struct rank *rank = NULL;
	struct err err = {0};
	struct rank_peers peers = {.rank = member->options.rank, .sockets = member->options.sockets};
	region_bind(context->region, &region);
	enum status status = source_open(context->path, &source, &err);
	if (status == STATUS_OK)
		status = model_config_read(&source, &config, &err);
	if (status == STATUS_OK)
		status = rank_create(&region, &source, &config, &peers, &rank, &err);
	if (status == STATUS_OK)
		status = rank_connect(rank, &err);
	if (status == STATUS_OK)
		status = run_steps(context, rank, peers.rank, &region, &err);
	struct comm_stats stats = {0};
	if (status == STATUS_OK)
		rank_allreduce_stats(rank, &stats);
	if (status == STATUS_OK && stats.calls != N_STEPS * 2 * (uint64_t)config.n_layers)
		status = err_set(
			&err, STATUS_INTERNAL, "%llu sums in all steps, expected 2 per layer", (unsigned long long)stats.calls);
	if (status == STATUS_OK && strlen(rank_allreduce_why(rank)) == 0)
		status = err_set(&err, STATUS_INTERNAL, "no reason for %s", rank_allreduce_name(rank));
	rank_destroy(rank);
	source_close(&source);
	return status == STATUS_OK ? 0 : fail_with(member, &err);
}

static void write_step(struct region *region)
{
	struct step *step = &region->step;
	*step->n_rows = N_TOKENS;
	*step->n_logits = 1;
	step->logit_rows[0] = N_TOKENS - 1;
	step->block_tables[0] = 1;
	for (int i = 0; i < N_TOKENS; i++) {
		step->tokens[i] = 100 + i;
		step->positions[i] = i;
		step->slots[i] = 0;
	}
}

/* Logits of the step's one row, [vocab]; caller frees. */
static float *run_group(const char *path, const char *allreduce, int world)
{
	struct source source = {0};
	struct model_config config;
	struct engine_options options;
	struct setup setup;
	struct err err = {0};
	engine_options_init(&options);
	options.model_path = path;
	options.allreduce = allreduce;
	options.tp = world;
	options.threads = 1;
	options.mem_budget = 1ll << 30;
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	if (setup_resolve(&options, &source, &config, &setup, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	source_close(&source);

	size_t bytes = region_bytes(&setup.rank);
	void *memory = NULL;
	struct region region;
	assert_int_equal(mem_map(bytes, &memory, NULL), STATUS_OK);
	region_init(&setup.rank, memory, &region);
	write_step(&region);
	_Atomic uint32_t go = 0;
	struct group_context context = {.path = path, .region = memory, .go = &go};
	struct comm_group group = {.kind = COMM_GROUP_THREADS, .world = world, .body = run_member, .ctx = &context};
	if (!comm_group_run(&group))
		fail_msg("%s: %s", allreduce, comm_group_complaint(&group));
	float *logits = mem_calloc((size_t)config.vocab, sizeof *logits);
	memcpy(logits, region.logits, (size_t)config.vocab * sizeof *logits);
	mem_unmap(memory, bytes);
	return logits;
}

static void named_and_measured_collectives_give_the_same_logits(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	tiny_model_write_temp(&model, path);
	for (int world = 2; world <= 4; world += 2) {
		float *measured = run_group(path, "auto", world);
		for (size_t i = 0; i < comm_cpu_backends_count; i++) {
			float *named = run_group(path, comm_cpu_backends[i]->name, world);
			assert_memory_equal(named, measured, (size_t)model.vocab * sizeof *named);
			mem_free(named);
		}
		mem_free(measured);
	}
	unlink(path);
}

static void one_rank_needs_no_collective(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct source source = {0};
	struct model_config config;
	struct engine_options options;
	struct setup setup;
	struct region region;
	struct rank *rank = NULL;
	void *memory = NULL;
	tiny_model_write_temp(&model, path);
	engine_options_init(&options);
	options.model_path = path;
	options.allreduce = "shm-flag"; /* has nothing to do */
	options.mem_budget = 1ll << 30;
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	assert_int_equal(setup_resolve(&options, &source, &config, &setup, NULL), STATUS_OK);
	assert_int_equal(mem_map(region_bytes(&setup.rank), &memory, NULL), STATUS_OK);
	region_init(&setup.rank, memory, &region);
	assert_null(region.comm_shared);
	write_step(&region);
	struct rank_peers peers = {.rank = 0};
	struct forward_times times;
	assert_int_equal(rank_create(&region, &source, &config, &peers, &rank, NULL), STATUS_OK);
	assert_int_equal(rank_connect(rank, NULL), STATUS_OK);
	assert_int_equal(rank_step(rank, &times, NULL), STATUS_OK);
	assert_string_equal(rank_allreduce_name(rank), "none");
	assert_int_equal(times.allreduce_ns, 0);
	assert_int_equal(times.used_plan, 0); /* one row of five asked for logits */
	*region.step.n_rows = 1;
	region.step.logit_rows[0] = 0;
	assert_int_equal(rank_step(rank, &times, NULL), STATUS_OK);
	assert_int_equal(times.used_plan, 1);
	rank_destroy(rank);
	mem_unmap(memory, region_bytes(&setup.rank));
	source_close(&source);
	unlink(path);
}

static void a_model_that_changed_meanwhile_is_refused(void **state)
{
	struct tiny_model model = tiny_model_default();
	char path[TINY_PATH_BYTES];
	struct source source = {0};
	struct model_config config;
	struct rank *rank = NULL;
	struct err err = {0};
	tiny_model_write_temp(&model, path);
	assert_int_equal(source_open(path, &source, NULL), STATUS_OK);
	assert_int_equal(model_config_read(&source, &config, NULL), STATUS_OK);
	struct region_header header = {
		.setup = {.world = 1, .vocab = config.vocab + 1, .hidden = config.hidden, .model_path = "m.gguf"}};
	struct region region = {.header = &header};
	struct rank_peers peers = {.rank = 0};
	assert_int_equal(rank_create(&region, &source, &config, &peers, &rank, &err), STATUS_INPUT);
	assert_non_null(strstr(err.text, "changed while the ranks were starting"));
	source_close(&source);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(named_and_measured_collectives_give_the_same_logits),
		cmocka_unit_test(one_rank_needs_no_collective),
		cmocka_unit_test(a_model_that_changed_meanwhile_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
