/* What the fuzzer of whole models does with one input: everything from the directory to the logits of three rows. */
#include "tests/support/fuzz_bodies.h"

#include "base/mem.h"
#include "engine/forward.h"

#define BYTES_MAX ((uint64_t)8 << 20) /* larger models are not run, only checked */
#define ROWS 3

static void run_step(struct forward *forward, const struct step_limits *limits, int vocab)
{
	void *memory = mem_calloc(step_bytes(limits), 1);
	struct step step;
	step_bind(limits, memory, &step);
	*step.n_rows = *step.n_logits = ROWS;
	step.block_tables[0] = 1;
	for (int i = 0; i < ROWS; i++) {
		step.tokens[i] = (i * 7) % vocab;
		step.positions[i] = i;
		step.logit_rows[i] = i;
	}
	ASSERT(forward_step(forward, &step, NULL, NULL) == STATUS_OK);
	mem_free(memory);
}

static void run_model(const struct source *source, const struct model_config *config)
{
	struct forward_options options = {
		.kn = &kn_cpu_ops,
		.kn_options = {.threads = 1},
		.limits = {.rows_max = 4, .slots_max = 1, .blocks_per_slot_max = 1, .logits_max = 4},
		.world = 1,
		.n_blocks = 2,
		.graph_max_bs = 1,
	};
	struct forward_memory needed;
	struct forward *forward = NULL;
	/* The backend may refuse shapes that the model check has no opinion on, such as head sizes. */
	if (forward_check(options.kn, config, NULL) != STATUS_OK)
		return;
	ASSERT(forward_memory_needed(source, config, &options, &needed, NULL) == STATUS_OK);
	if (needed.weights + needed.workspace + needed.kv > BYTES_MAX)
		return;
	options.logits = mem_calloc((size_t)options.limits.logits_max * (size_t)config->vocab, sizeof(float));
	if (forward_create(source, config, &options, &forward, NULL) == STATUS_OK)
		run_step(forward, &options.limits, config->vocab);
	forward_destroy(forward);
	mem_free(options.logits);
}

void fuzz_model(const uint8_t *data, size_t size)
{
	struct source source;
	struct model_config config;
	struct err err = {0};
	if (source_open_bytes(data, size, "fuzz", &source, NULL) != STATUS_OK)
		return;
	if (model_config_read(&source, &config, &err) == STATUS_OK) {
		for (int world = 1; world <= 5; world++) {
			struct shard shard;
			if (shard_compute(&config, world - 1, world, &shard, NULL) == STATUS_OK)
				ASSERT(shard.head_end > shard.head_begin && shard.ffn_end > shard.ffn_begin &&
					shard.vocab_end > shard.vocab_begin);
		}
		run_model(&source, &config);
	} else {
		ASSERT(err.text[0]);
	}
	source_close(&source);
}
