/* Drives forward_step as a scheduler would: blocks dealt in a scattered order, chunks of several sequences in one step. */
#include "tests/support/forward_run.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "tests/support/comm_group.h"

#define SLOTS 5 /* one more than sequences: slot numbers and sequences differ */
#define BLOCKS_PER_SLOT 64

struct shared {
	const struct forward_run *run;
	float *logits; /* [logits_max][vocab], of the step */
	float *const *out;
};

struct forward_run forward_run_default(const char *path)
{
	return (struct forward_run){.path = path, .world = 1, .threads = 1, .chunk = 16, .kv_type = KN_KV_F32};
}

struct model_config forward_run_config(const char *path)
{
	struct source source = {0};
	struct model_config config = {0};
	struct err err = {0};
	if (source_open(path, &source, &err) != STATUS_OK || model_config_read(&source, &config, &err) != STATUS_OK)
		fail_msg("%s", err.text);
	source_close(&source);
	return config;
}

static struct step_limits limits_of(const struct forward_run *run)
{
	int rows = run->chunk * (run->n_sequences > 0 ? run->n_sequences : 1);
	return (struct step_limits){
		.rows_max = rows, .slots_max = SLOTS, .blocks_per_slot_max = BLOCKS_PER_SLOT, .logits_max = rows};
}

/* Fills the step with the next chunk of every sequence; false when all are done. */
static bool next_step(const struct forward_run *run, int done, const struct step_limits *limits, struct step *step)
{
	int n = 0, n_logits = 0;
	for (int s = 0; s < run->n_sequences; s++) {
		int slot = SLOTS - 1 - s, end = done + run->chunk < run->n_tokens[s] ? done + run->chunk : run->n_tokens[s];
		for (int b = 0; b < limits->blocks_per_slot_max; b++) /* 1, 1 + 4, …: never neighbours, never block 0 */
			step->block_tables[slot * limits->blocks_per_slot_max + b] = 1 + s + b * 4;
		for (int position = done; position < end; position++, n++) {
			step->tokens[n] = run->tokens[s][position];
			step->positions[n] = position;
			step->slots[n] = slot;
			if (!run->last_only || position + 1 == end)
				step->logit_rows[n_logits++] = n;
		}
	}
	*step->n_rows = n;
	*step->n_logits = n_logits;
	return n > 0;
}

static void keep_logits(const struct shared *shared, const struct step *step, int vocab)
{
	for (int i = 0; i < *step->n_logits; i++) {
		int row = step->logit_rows[i], sequence = SLOTS - 1 - step->slots[row];
		memcpy(shared->out[sequence] + (size_t)step->positions[row] * (size_t)vocab,
			shared->logits + (size_t)i * (size_t)vocab, (size_t)vocab * sizeof(float));
	}
}

/* Every rank walks the same steps. */
static enum status run_steps(const struct shared *shared, struct forward *forward, int vocab, struct err *err)
{
	const struct forward_run *run = shared->run;
	struct step_limits limits = limits_of(run);
	void *memory = mem_calloc(step_bytes(&limits), 1);
	struct step step;
	step_bind(&limits, memory, &step);
	enum status status = STATUS_OK;
	for (int done = 0; status == STATUS_OK && next_step(run, done, &limits, &step); done += run->chunk) {
		status = forward_step(forward, &step, NULL, err);
		if (status == STATUS_OK)
			keep_logits(shared, &step, vocab);
	}
	mem_free(memory);
	return status;
}

static enum status run_rank(
	const struct shared *shared, int rank, struct comm *comm, const struct comm_ops *comm_ops, struct err *err)
{
	const struct forward_run *run = shared->run;
	struct source source = {0};
	struct model_config config;
	struct forward *forward = NULL;
	struct forward_options options = {
		.kn = run->kn ? run->kn : &kn_cpu_ops,
		.kn_options = {.threads = run->threads, .isa = run->isa, .deterministic = run->deterministic},
		.limits = limits_of(run),
		.rank = rank,
		.world = run->world,
		.kv_type = run->kv_type,
		.graph_max_bs = run->graph_max_bs,
		.n_blocks = 1 + 4 * BLOCKS_PER_SLOT,
		.logits = shared->logits,
	};
	enum status status = source_open(run->path, &source, err);
	if (status == STATUS_OK)
		status = model_config_read(&source, &config, err);
	if (status == STATUS_OK)
		status = forward_create(&source, &config, &options, &forward, err);
	if (status == STATUS_OK) {
		forward_set_comm(forward, comm_ops, comm);
		status = run_steps(shared, forward, config.vocab, err);
	}
	forward_destroy(forward);
	source_close(&source);
	return status;
}

/* A rank of several: its logits go to buffers of its own, and only its share of the vocabulary is copied out. */
static int run_member(const struct comm_group_member *member)
{
	const struct shared *shared = member->ctx;
	const struct forward_run *run = shared->run;
	int rank = member->options.rank;
	struct err err = {0};
	struct comm *comm = NULL;
	struct source source = {0};
	struct model_config config;
	struct shard shard;
	enum status status = source_open(run->path, &source, &err);
	if (status == STATUS_OK)
		status = model_config_read(&source, &config, &err);
	if (status == STATUS_OK)
		status = shard_compute(&config, rank, run->world, &shard, &err);
	if (status == STATUS_OK)
		status = member->ops->create(&member->options, &comm, &err);
	if (status != STATUS_OK) {
		source_close(&source);
		snprintf(member->text, COMM_GROUP_TEXT_BYTES, "%.500s", err.text);
		return 1;
	}
	size_t vocab = (size_t)config.vocab;
	float *own[4] = {NULL};
	for (int s = 0; s < run->n_sequences; s++)
		own[s] = mem_calloc((size_t)run->n_tokens[s] * vocab, sizeof(float));
	struct step_limits limits = limits_of(run);
	struct shared mine = {.run = run, .logits = mem_calloc((size_t)limits.logits_max * vocab, sizeof(float)), .out = own};
	status = run_rank(&mine, rank, comm, member->ops, &err);
	for (int s = 0; s < run->n_sequences; s++) {
		for (size_t row = 0; row < (size_t)run->n_tokens[s]; row++)
			memcpy(shared->out[s] + row * vocab + shard.vocab_begin, own[s] + row * vocab + shard.vocab_begin,
				(size_t)(shard.vocab_end - shard.vocab_begin) * sizeof(float));
		mem_free(own[s]);
	}
	mem_free(mine.logits);
	member->ops->destroy(comm);
	source_close(&source);
	snprintf(member->text, COMM_GROUP_TEXT_BYTES, "%.500s", err.text);
	return status == STATUS_OK ? 0 : 1;
}

void forward_run(const struct forward_run *run, float *const *logits)
{
	struct model_config config = forward_run_config(run->path);
	struct step_limits limits = limits_of(run);
	struct shared shared = {.run = run, .out = logits};
	if (run->world > 1) {
		struct comm_group group = {
			.kind = COMM_GROUP_THREADS,
			.world = run->world,
			.count_max = (size_t)limits.rows_max * (size_t)config.hidden,
			.body = run_member,
			.ctx = &shared,
		};
		assert_int_equal(comm_find(run->allreduce ? run->allreduce : "shm-flag", "cpu", &group.ops, NULL), STATUS_OK);
		if (!comm_group_run(&group))
			fail_msg("%s", comm_group_complaint(&group));
		return;
	}
	struct err err = {0};
	shared.logits = mem_calloc((size_t)limits.logits_max * (size_t)config.vocab, sizeof(float));
	enum status status = run_rank(&shared, 0, NULL, NULL, &err);
	mem_free(shared.logits);
	if (status != STATUS_OK)
		fail_msg("%s", err.text);
}
