/* The protocols of the shared-memory collectives, reduced to what is stored where, run through every interleaving of 2 or 3 ranks
 * over a few calls: no rank may ever take a value of another call, and none may wait for ever. The same check must find the fault
 * in each protocol that lacks one of its parts. Memory is sequentially consistent here: ordering is the sanitizer's business. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/mem.h"

#define RANKS_MAX 3
#define BUFFERS_MAX 3
#define WORDS 2 /* of a slot: stored and taken one by one */
#define OPS_MAX 128
#define STATES_MAX (1u << 20) /* power of two: slots of the visited table */

enum op_kind {
	OP_PUT, /* slot[buffer][own][word] = call */
	OP_CLEAR, /* slot[buffer][own][word] = 0, the sentinel */
	OP_SIGNAL, /* flag[own]++ */
	OP_WAIT, /* until every flag is at least the own one */
	OP_TAKE, /* slot[buffer][peer][word] must be call */
	OP_TAKE_POLL, /* the same, but waits while it is 0 */
	OP_PUT_SHARD, /* shard[own] = call */
	OP_TAKE_SHARD /* shard[peer] must be call */
};

struct op {
	uint8_t kind, buffer, peer, word, call;
};

/* Every rank runs the same list; a rank's own peer number means itself, whose slot it need not wait for. */
struct protocol {
	struct op ops[OPS_MAX];
	int n_ops, ranks;
};

struct state {
	uint8_t at[RANKS_MAX]; /* next op */
	uint8_t flag[RANKS_MAX], shard[RANKS_MAX];
	uint8_t slot[BUFFERS_MAX][RANKS_MAX][WORDS];
};

static void add(struct protocol *protocol, enum op_kind kind, int buffer, int peer, int word, int call)
{
	assert_true(protocol->n_ops < OPS_MAX);
	protocol->ops[protocol->n_ops++] = (struct op){(uint8_t)kind, (uint8_t)buffer, (uint8_t)peer, (uint8_t)word, (uint8_t)call};
}

static void add_words(struct protocol *protocol, enum op_kind kind, int buffer, int peer, int call)
{
	for (int word = 0; word < WORDS; word++)
		add(protocol, kind, buffer, peer, word, call);
}

static void take_all(struct protocol *protocol, enum op_kind kind, int buffer, int call)
{
	for (int peer = 0; peer < protocol->ranks; peer++)
		add_words(protocol, kind, buffer, peer, call);
}

static void make_flag(struct protocol *protocol, int ranks, int calls, int halves, bool waits)
{
	*protocol = (struct protocol){.ranks = ranks};
	for (int call = 1; call <= calls; call++) {
		add_words(protocol, OP_PUT, call % halves, 0, call);
		add(protocol, OP_SIGNAL, 0, 0, 0, call);
		if (waits)
			add(protocol, OP_WAIT, 0, 0, 0, call);
		take_all(protocol, OP_TAKE, call % halves, call);
	}
}

static void make_lamport(struct protocol *protocol, int ranks, int calls, int buffers, bool refills)
{
	*protocol = (struct protocol){.ranks = ranks};
	for (int call = 1; call <= calls; call++) {
		add_words(protocol, OP_PUT, call % buffers, 0, call);
		take_all(protocol, OP_TAKE_POLL, call % buffers, call);
		if (refills && call > 1)
			add_words(protocol, OP_CLEAR, (call - 1) % buffers, 0, call);
	}
}

static void make_twoshot(struct protocol *protocol, int ranks, int calls, bool second_meeting)
{
	*protocol = (struct protocol){.ranks = ranks};
	for (int call = 1; call <= calls; call++) {
		add_words(protocol, OP_PUT, 0, 0, call);
		add(protocol, OP_SIGNAL, 0, 0, 0, call);
		add(protocol, OP_WAIT, 0, 0, 0, call);
		take_all(protocol, OP_TAKE, 0, call);
		add(protocol, OP_PUT_SHARD, 0, 0, 0, call);
		if (second_meeting) {
			add(protocol, OP_SIGNAL, 0, 0, 0, call);
			add(protocol, OP_WAIT, 0, 0, 0, call);
		}
		for (int peer = 0; peer < ranks; peer++)
			add(protocol, OP_TAKE_SHARD, 0, peer, 0, call);
	}
}

enum outcome { OUTCOME_DONE, OUTCOME_BLOCKED, OUTCOME_WRONG };

static bool all_have_signalled(const struct protocol *protocol, const struct state *state, int rank)
{
	for (int peer = 0; peer < protocol->ranks; peer++) {
		if (state->flag[peer] < state->flag[rank])
			return false;
	}
	return true;
}

/* Runs the next op of rank. */
static enum outcome advance(const struct protocol *protocol, struct state *state, int rank)
{
	const struct op *op = &protocol->ops[state->at[rank]];
	uint8_t taken = op->kind == OP_TAKE_SHARD ? state->shard[op->peer] : state->slot[op->buffer][op->peer][op->word];
	switch (op->kind) {
	case OP_PUT:
	case OP_CLEAR:
		state->slot[op->buffer][rank][op->word] = op->kind == OP_PUT ? op->call : 0;
		break;
	case OP_SIGNAL:
		state->flag[rank]++;
		break;
	case OP_WAIT:
		if (!all_have_signalled(protocol, state, rank))
			return OUTCOME_BLOCKED;
		break;
	case OP_PUT_SHARD:
		state->shard[rank] = op->call;
		break;
	default:
		if (op->kind == OP_TAKE_POLL && taken == 0)
			return OUTCOME_BLOCKED;
		if (taken != op->call)
			return OUTCOME_WRONG;
		break;
	}
	state->at[rank]++;
	return OUTCOME_DONE;
}

/* States seen, by open addressing, and those whose successors are still to be looked at. */
struct search {
	struct state *visited, *pending;
	uint8_t *used;
	size_t n_visited, n_pending;
};

static void visit(struct search *search, const struct state *state)
{
	size_t at = hash64(state, sizeof(*state), 1) % STATES_MAX;
	for (; search->used[at]; at = (at + 1) % STATES_MAX) {
		if (memcmp(&search->visited[at], state, sizeof(*state)) == 0)
			return;
	}
	assert_true(search->n_visited < STATES_MAX / 2);
	search->used[at] = 1;
	search->visited[at] = *state;
	search->pending[search->n_pending++] = *state;
	search->n_visited++;
}

/* Whether every interleaving ends well. */
static bool holds(const struct protocol *protocol)
{
	struct search search = {
		.visited = mem_calloc(STATES_MAX, sizeof(struct state)),
		.pending = mem_calloc(STATES_MAX, sizeof(struct state)),
		.used = mem_calloc(STATES_MAX, 1),
	};
	const struct state first = {0};
	bool good = true;
	visit(&search, &first);
	while (search.n_pending > 0 && good) {
		struct state state = search.pending[--search.n_pending];
		int n_moves = 0, n_finished = 0;
		for (int rank = 0; rank < protocol->ranks && good; rank++) {
			struct state next = state;
			if (state.at[rank] == protocol->n_ops) {
				n_finished++;
				continue;
			}
			enum outcome outcome = advance(protocol, &next, rank);
			good = outcome != OUTCOME_WRONG;
			if (outcome == OUTCOME_DONE) {
				n_moves++;
				visit(&search, &next);
			}
		}
		good = good && (n_moves > 0 || n_finished == protocol->ranks);
	}
	mem_free(search.visited);
	mem_free(search.pending);
	mem_free(search.used);
	return good;
}

static void every_interleaving_of_shm_flag_is_right(void **state)
{
	struct protocol protocol;
	make_flag(&protocol, 2, 6, 2, true);
	assert_true(holds(&protocol));
	make_flag(&protocol, 3, 4, 2, true);
	assert_true(holds(&protocol));
}

static void shm_flag_needs_two_halves_and_its_wait(void **state)
{
	struct protocol protocol;
	make_flag(&protocol, 2, 4, 1, true);
	assert_false(holds(&protocol));
	make_flag(&protocol, 2, 4, 2, false);
	assert_false(holds(&protocol));
}

static void every_interleaving_of_shm_lamport_is_right(void **state)
{
	struct protocol protocol;
	make_lamport(&protocol, 2, 7, 3, true);
	assert_true(holds(&protocol));
	make_lamport(&protocol, 3, 5, 3, true);
	assert_true(holds(&protocol));
}

static void shm_lamport_needs_three_thirds_and_its_refill(void **state)
{
	struct protocol protocol;
	make_lamport(&protocol, 2, 5, 2, true);
	assert_false(holds(&protocol));
	make_lamport(&protocol, 2, 5, 3, false);
	assert_false(holds(&protocol));
}

static void every_interleaving_of_shm_2shot_is_right(void **state)
{
	struct protocol protocol;
	make_twoshot(&protocol, 2, 5, true);
	assert_true(holds(&protocol));
	make_twoshot(&protocol, 3, 3, true);
	assert_true(holds(&protocol));
}

static void shm_2shot_needs_its_second_meeting(void **state)
{
	struct protocol protocol;
	make_twoshot(&protocol, 2, 3, false);
	assert_false(holds(&protocol));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_interleaving_of_shm_flag_is_right),
		cmocka_unit_test(shm_flag_needs_two_halves_and_its_wait),
		cmocka_unit_test(every_interleaving_of_shm_lamport_is_right),
		cmocka_unit_test(shm_lamport_needs_three_thirds_and_its_refill),
		cmocka_unit_test(every_interleaving_of_shm_2shot_is_right),
		cmocka_unit_test(shm_2shot_needs_its_second_meeting),
	};
	return cmocka_run_group_tests_name("comm_protocol", tests, NULL, NULL);
}
