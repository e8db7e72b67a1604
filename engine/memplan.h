/* Memory plan of one machine: from a budget and what must be in it to the size of the KV pool. Pure arithmetic. */
#ifndef ENGINE_MEMPLAN_H
#define ENGINE_MEMPLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

/* Bytes are sums over all ranks that share the machine's memory. */
struct memplan_request {
	uint64_t total_bytes; /* what fractions are fractions of */
	const char *total_source; /* "physical memory or its cgroup limit", "--mem-budget" */
	/* Of them, what is free for this process; 0: all. Device memory is shared with processes that were there before. */
	uint64_t available_bytes;
	const char *others; /* who holds the rest, for messages: "pid 7 (python3) 512 MiB"; NULL or empty: not known */
	bool apart; /* a device's own memory: the system does not live in it, so a smaller reserve does */
	bool automatic; /* fraction chosen here: everything that is free but the reserve */
	double fraction; /* in (0, 1]; ignored when automatic */
	uint64_t weights_bytes, workspace_bytes, plans_bytes, collectives_bytes, logits_bytes;
	uint64_t block_bytes; /* one KV block on all ranks, KN_KV_BLOCK_TOKENS tokens */
	int64_t max_model_len, max_num_seqs;
};

struct memplan {
	struct memplan_request request; /* its strings must outlive the plan */
	double fraction; /* in effect */
	uint64_t reserve_bytes; /* what auto leaves to the rest of the machine */
	uint64_t left_bytes; /* what this plan leaves of all that is free, the reserve among it */
	uint64_t budget_bytes; /* fraction * total */
	uint64_t fixed_bytes; /* everything but KV */
	uint64_t kv_bytes;
	int32_t n_blocks; /* with the dummy block 0 */
	double min_fraction; /* smallest fraction, in hundredths, that holds one sequence of max_model_len; > 1: none does */
	double max_fraction; /* largest fraction, in hundredths, that is free; 1 where others hold nothing */
	char fraction_why[256], blocks_why[256];
	char warning[256]; /* empty, or what is odd about the choice */
};

/* Too little for one full sequence, or more than is free: STATUS_NO_MEMORY with code "not_enough_memory", a text that says which
 * way to move what, and in err->details the members need_bytes, have_bytes, min_mem_fraction and max_mem_fraction (both null when
 * no fraction works). */
enum status memplan_compute(const struct memplan_request *request, struct memplan *out, struct err *err);

/* Caller frees. Every term of the plan in bytes, for /config. */
struct json *memplan_json(const struct memplan *plan);

/* Blocks for n tokens, rounded up. */
int64_t memplan_blocks(int64_t tokens);

#endif
