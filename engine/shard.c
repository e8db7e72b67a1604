/* How a model is cut over ranks: contiguous, even shares of query heads, FFN columns and vocabulary rows. Pure arithmetic. */
#include "engine/model.h"

#define VOCAB_UNIT 16 /* rows; keeps the shares' bounds off each other's cache lines (16 floats) */

static int greatest_common_divisor(int a, int b)
{
	while (b != 0) {
		int rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* Bounds of share number rank when units are dealt evenly: the first units % world ranks get one more. */
static void share(int units, int rank, int world, int *begin, int *end)
{
	int each = units / world, extra = units % world;
	*begin = rank * each + (rank < extra ? rank : extra);
	*end = *begin + each + (rank < extra);
}

enum status shard_compute(const struct model_config *config, int rank, int world, struct shard *out, struct err *err)
{
	ASSERT(world >= 1 && rank >= 0 && rank < world);
	*out = (struct shard){.rank = rank, .world = world};
	if (world == 1) {
		out->head_end = config->n_heads;
		out->kv_head_end = config->n_kv_heads;
		out->ffn_end = config->ffn;
		out->vocab_end = config->vocab;
		return STATUS_OK;
	}

	/* Heads in one unit: so many that the attention output's input is cut between its quantisation blocks. */
	int head_unit = config->attention_block / greatest_common_divisor(config->attention_block, config->head_dim);
	int head_units = config->n_heads % head_unit == 0 ? config->n_heads / head_unit : 0;
	if (head_units < world)
		return err_set_code(err, STATUS_INPUT, "cannot_shard",
			"%d query heads%s make %d shares at most, so %d ranks would leave one without work; use --tp 1 to %d",
			config->n_heads, head_unit > 1 ? " (cut between quantisation blocks)" : "", head_units > 1 ? head_units : 1,
			world, head_units > 1 ? head_units : 1);
	int ffn_units = config->ffn % config->ffn_block == 0 ? config->ffn / config->ffn_block : 0;
	if (ffn_units < world)
		return err_set_code(err, STATUS_INPUT, "cannot_shard",
			"the FFN axis of %d has %d quantisation blocks of %d, too few for %d ranks; use --tp 1 to %d", config->ffn,
			ffn_units, config->ffn_block, world, ffn_units > 1 ? ffn_units : 1);
	int vocab_unit = config->vocab % VOCAB_UNIT == 0 && config->vocab / VOCAB_UNIT >= world ? VOCAB_UNIT : 1;
	if (config->vocab / vocab_unit < world)
		return err_set_code(
			err, STATUS_INPUT, "cannot_shard", "a vocabulary of %d is too small for %d ranks", config->vocab, world);

	share(head_units, rank, world, &out->head_begin, &out->head_end);
	out->head_begin *= head_unit;
	out->head_end *= head_unit;
	int heads_per_kv_head = config->n_heads / config->n_kv_heads;
	out->kv_head_begin = out->head_begin / heads_per_kv_head;
	out->kv_head_end = (out->head_end - 1) / heads_per_kv_head + 1;
	share(ffn_units, rank, world, &out->ffn_begin, &out->ffn_end);
	out->ffn_begin *= config->ffn_block;
	out->ffn_end *= config->ffn_block;
	share(config->vocab / vocab_unit, rank, world, &out->vocab_begin, &out->vocab_end);
	out->vocab_begin *= vocab_unit;
	out->vocab_end *= vocab_unit;
	return STATUS_OK;
}
