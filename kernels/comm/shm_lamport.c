/* shm-lamport: one-shot allreduce whose data is its own flag. A slot holds the sentinel until its owner stores there, so a peer
 * that reads anything else has the value, without a flag's round trip before it. Twin of p2p-lamport.
 *
 * Sentinel. The bit pattern of -0.0, compared as bits. An input of -0.0 is stored as +0.0, which comm.h's sum allows.
 *
 * Three thirds. Call k uses third k mod 3 and, once it has every peer's data of call k, refills its own slot of call k - 1:
 * those data came after their owners had finished reading in call k - 1. The slot is written again in call k + 2. A peer that
 * looks for it there has finished call k + 1, so has this rank's data of call k + 1, stored after the refill: it sees the
 * sentinel or the new value, never the old one. Two thirds would not do: the slot would be looked at in call k + 1, by a peer
 * that knows only of this rank's data of call k, stored before the refill.
 *
 * Words of two floats, release and acquire: on x86 these are plain moves, elsewhere they carry the argument above. */
#include <string.h>

#include "base/mem.h"
#include "base/wait.h"
#include "kernels/comm/backends.h"
#include "kernels/comm/shm.h"

#define THIRDS 3
#define SENTINEL_BITS 0x80000000u
#define SENTINEL_PAIR 0x8000000080000000u

/* Words taken from a peer before they are added: 2 KB, a small part of the L1 cache. */
#define BLOCK_WORDS 256
#define BLOCK_FLOATS (2 * (size_t)BLOCK_WORDS)

struct lamport_comm {
	struct shm_group group; /* first: struct comm is its first member */
	_Atomic uint64_t *slots; /* [THIRDS][world][slot_words] */
	size_t slot_words;
	size_t words_used[THIRDS]; /* words to refill in this rank's slot of each third */
	uint32_t third; /* of the next call */
	float *staged; /* [world][BLOCK_FLOATS] private: one block of every rank */
};

static _Atomic uint64_t *slot_of(const struct lamport_comm *lamport, uint32_t third, int rank)
{
	size_t index = (size_t)third * (size_t)lamport->group.base.options.world + (size_t)rank;
	return lamport->slots + index * lamport->slot_words;
}

static size_t lamport_shared_bytes(int world, size_t count_max)
{
	return shm_lines_bytes(world) + THIRDS * (size_t)world * shm_slot_floats(count_max) * sizeof(float);
}

static void refill(struct lamport_comm *lamport, uint32_t third, size_t n_words)
{
	_Atomic uint64_t *slot = slot_of(lamport, third, lamport->group.base.options.rank);
	for (size_t word = 0; word < n_words; word++)
		atomic_store_explicit(&slot[word], SENTINEL_PAIR, memory_order_relaxed);
}

static enum status lamport_create(const struct comm_options *options, struct comm **out, struct err *err)
{
	struct lamport_comm *lamport = mem_calloc_aligned(_Alignof(struct lamport_comm), 1, sizeof(*lamport));
	enum status status = shm_group_init(&lamport->group, &comm_shm_lamport, options, err);
	if (status != STATUS_OK) {
		mem_free(lamport);
		return status;
	}
	lamport->slots = lamport->group.payload;
	lamport->slot_words = shm_slot_floats(options->count_max) / 2;
	lamport->staged = mem_calloc_aligned(SHM_ALIGN, (size_t)options->world * BLOCK_FLOATS, sizeof(float));
	for (uint32_t third = 0; third < THIRDS; third++)
		refill(lamport, third, lamport->slot_words);
	shm_group_attach(&lamport->group);
	*out = &lamport->group.base;
	return STATUS_OK;
}

static inline uint32_t stored_bits(uint32_t bits)
{
	return bits == SENTINEL_BITS ? 0 : bits;
}

static inline bool has_sentinel(uint64_t word)
{
	return (uint32_t)word == SENTINEL_BITS || (uint32_t)(word >> 32) == SENTINEL_BITS;
}

static void push(struct lamport_comm *lamport, const float *data, size_t count)
{
	_Atomic uint64_t *slot = slot_of(lamport, lamport->third, lamport->group.base.options.rank);
	for (size_t word = 0; word < count / 2; word++) {
		uint32_t pair[2];
		memcpy(pair, data + 2 * word, sizeof(pair));
		atomic_store_explicit(
			&slot[word], stored_bits(pair[0]) | (uint64_t)stored_bits(pair[1]) << 32, memory_order_release);
	}
	if (count % 2 != 0) { /* the missing half is +0.0: any value but the sentinel */
		uint32_t bits;
		memcpy(&bits, data + count - 1, sizeof(bits));
		atomic_store_explicit(&slot[count / 2], stored_bits(bits), memory_order_release);
	}
	lamport->words_used[lamport->third] = (count + 1) / 2;
}

/* Waits for the word a peer stores last, so that polling does not take lines away from a peer that still writes them. Beyond the
 * spins it sleeps on the peer's flag, which follows its data. */
static enum status wait_last_word(struct lamport_comm *lamport, int peer, const _Atomic uint64_t *last, struct err *err)
{
	for (uint32_t spin = 0; has_sentinel(atomic_load_explicit(last, memory_order_acquire)); spin++) {
		if (spin >= lamport->group.base.options.spins)
			return shm_wait_peer(&lamport->group, peer, err);
		wait_spin(spin);
	}
	return STATUS_OK;
}

/* Takes n words of a peer's slot. Each is checked: having the last word promises nothing about the others. */
static enum status take_block(
	struct lamport_comm *lamport, int peer, const _Atomic uint64_t *slot, size_t n_words, float *out, struct err *err)
{
	for (size_t word = 0; word < n_words; word++) {
		uint64_t pair = atomic_load_explicit(&slot[word], memory_order_acquire);
		if (has_sentinel(pair)) {
			if (shm_wait_peer(&lamport->group, peer, err) != STATUS_OK)
				return STATUS_RANK_DIED;
			pair = atomic_load_explicit(&slot[word], memory_order_acquire);
		}
		memcpy(out + 2 * word, &pair, sizeof(pair));
	}
	return STATUS_OK;
}

/* Sums block by block; a block of this rank itself is copied from data, which the sum then overwrites. */
static enum status take_and_sum(struct lamport_comm *lamport, float *data, size_t count, struct err *err)
{
	const struct comm_options *options = &lamport->group.base.options;
	const float *parts[COMM_RANKS_MAX];
	for (int rank = 0; rank < options->world; rank++)
		parts[rank] = lamport->staged + (size_t)rank * BLOCK_FLOATS;
	for (size_t begin = 0; begin < count; begin += BLOCK_FLOATS) {
		size_t n = count - begin < BLOCK_FLOATS ? count - begin : BLOCK_FLOATS;
		for (int rank = 0; rank < options->world; rank++) {
			float *staged = lamport->staged + (size_t)rank * BLOCK_FLOATS;
			const _Atomic uint64_t *slot = slot_of(lamport, lamport->third, rank) + begin / 2;
			if (rank == options->rank)
				memcpy(staged, data + begin, n * sizeof(float));
			else if (take_block(lamport, rank, slot, (n + 1) / 2, staged, err) != STATUS_OK)
				return STATUS_RANK_DIED;
		}
		comm_sum(data + begin, parts, options->world, n);
	}
	return STATUS_OK;
}

static enum status lamport_allreduce(struct comm *comm, float *data, size_t count, struct err *err)
{
	struct lamport_comm *lamport = (struct lamport_comm *)comm;
	enum status status = shm_call_begin(&lamport->group, count, err);
	if (status != STATUS_OK || count == 0)
		return status;
	push(lamport, data, count);
	shm_signal(&lamport->group); /* for sleepers; who spins has the data already */
	for (int rank = 0; rank < comm->options.world; rank++) {
		const _Atomic uint64_t *last = slot_of(lamport, lamport->third, rank) + (count - 1) / 2;
		if (rank != comm->options.rank && wait_last_word(lamport, rank, last, err) != STATUS_OK)
			return STATUS_RANK_DIED;
	}
	if (take_and_sum(lamport, data, count, err) != STATUS_OK)
		return STATUS_RANK_DIED;
	uint32_t previous = (lamport->third + THIRDS - 1) % THIRDS;
	refill(lamport, previous, lamport->words_used[previous]);
	lamport->third = (lamport->third + 1) % THIRDS;
	comm_call_end(comm, count);
	return STATUS_OK;
}

static void lamport_destroy(struct comm *comm)
{
	struct lamport_comm *lamport = (struct lamport_comm *)comm;
	if (lamport != NULL)
		mem_free(lamport->staged);
	mem_free(lamport);
}

const struct comm_ops comm_shm_lamport = {
	.name = "shm-lamport",
	.twin = "p2p-lamport",
	.summary = "one shot without flags: a slot holds a sentinel until its value is there",
	.shared_bytes = lamport_shared_bytes,
	.needs_sockets = 0,
	.create = lamport_create,
	.allreduce = lamport_allreduce,
	.stats = comm_base_stats,
	.destroy = lamport_destroy,
};
