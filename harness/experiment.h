/* A checked experiment file: what to launch, under which settings, with which loads, by which protocol.
 * Pure data; made by experiment_parse, owned by its arena, never changed afterwards. Schema: experiments/schema.json. */
#ifndef HARNESS_EXPERIMENT_H
#define HARNESS_EXPERIMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "harness/schedule.h"
#include "harness/cpu_list.h"
#include "harness/metric.h"
#include "harness/prompt_file.h"

#define EXPERIMENT_ARMS_MAX 256
#define EXPERIMENT_KNOBS_MAX 32
#define EXPERIMENT_WORKLOADS_MAX 64
#define EXPERIMENT_LIMITS_MAX 4
#define EXPERIMENT_LOOKS_MAX 8
#define EXPERIMENT_EXTENSIONS_MAX 8
#define EXPERIMENT_ENGINES_MAX 16
#define EXPERIMENT_ENGINE_KNOB "engine" /* whose values are the names under "engines" */

struct string_list {
	const char **items;
	size_t count;
};
struct name_value {
	const char *name, *value;
};

/* One setting of a knob. text is how rows and titles show it; value is the JSON as written. */
struct knob_value {
	const char *knob;
	const struct json *value;
	const char *text;
};

struct engine_spec;

/* What makes launches beyond the plan of blocks needless. */
enum search { SEARCH_NONE, SEARCH_RACE, SEARCH_GREEDY };

/* Larger values (up) or smaller ones ask more memory. */
struct monotone_knob {
	const char *knob;
	bool up;
};

enum arm_kind { ARM_BASELINE, ARM_AA_TWIN, ARM_CANDIDATE };

struct arm {
	enum arm_kind kind;
	const char *name; /* "baseline", "A/A twin", "speculation=ngram", or the given name */
	const struct engine_spec *engine; /* that the knob "engine" names; NULL: the experiment's, see arm_engine */
	struct knob_value *settings; /* every knob with its value, in file order, then those of its engine alone */
	size_t n_settings;
	struct knob_value *changed; /* those that differ from the baseline */
	size_t n_changed;
	char config_hash[65]; /* SHA-256 of the canonical configuration (adapter, command, settings, env); twin == baseline */
};

enum cache_policy { CACHE_COLD, CACHE_WARM };
enum dataset_kind {
	DATASET_RANDOM_IDS,
	DATASET_JSONL,
	DATASET_TEXT, /* inline list of prompts */
	DATASET_SHARED_PREFIX, /* random ids; requests of a group begin alike */
	DATASET_TRACE /* random ids; lengths, times and shared blocks from a file */
};
const char *dataset_name(enum dataset_kind kind); /* as experiment files spell it */

struct workload {
	const char *name;
	const char *endpoint; /* "/v1/completions" or "/v1/chat/completions" */
	struct schedule schedule;
	int concurrency; /* requests in flight at most; 0: no limit, in open loops alone */
	int requests; /* per run */
	enum dataset_kind dataset;
	const char *path; /* of a file of prompts or a trace, resolved against the experiment file */
	struct prompt_list prompts; /* DATASET_TEXT and DATASET_JSONL */
	size_t file_entries, file_usable; /* of a file that is one array, which prompts are a sample of; 0: it is none */
	struct trace trace; /* DATASET_TRACE */
	int block_tokens; /* of a trace: tokens for each of its hash_ids */
	int groups, prefix_len; /* DATASET_SHARED_PREFIX; input_len counts the tokens after the prefix */
	int input_len, output_len; /* tokens; input_len for random ids */
	double jitter; /* lengths vary by this share either way */
	uint64_t seed;
	double temperature;
	bool ignore_eos;
	enum cache_policy cache;
	struct goodput_limits goodput;
	const bool *applies; /* by arm index: whether that arm runs this workload (baseline and twin always do) */
	char hash[65]; /* SHA-256 of the canonical workload, prompts included */
};

struct protocol {
	int blocks; /* first look; at least 3 for a verdict */
	int max_blocks;
	int looks[EXPERIMENT_LOOKS_MAX];
	int n_looks;
	int level_looks; /* looks that the level of each is corrected for: those planned, or more when the experiment was extended
			  */
	int extended_from; /* blocks there were before the last extension; 0: none. Looks up to there are behind us */
	uint64_t order_seed;
	int runs_per_launch;
	int warmup_requests; /* per slot and workload */
	double warmup_stable_pct, warmup_max_s; /* warm up again until three passes agree so far, no longer than that; 0: once */
	double cooldown_s, run_timeout_s, stall_s, budget_s;
	int retry_client_error, retry_crash, retry_oom_load;
	int budget_launches; /* start no block that would exceed so many launches; 0: no limit */
	bool screening; /* drop an arm after one or two blocks when it is hopelessly slower: see verdict_screen */
	bool quick;
	char hash[65];
};

struct guards {
	double completed_frac;
	bool output_len_exact;
	double cached_prompt_frac_max; /* below 0: not said; the dataset decides */
	double token_count_mismatch_pct; /* of the stream against the server's count */
	bool foreign_process_voids; /* other processes that compute on the engine's GPUs */
	double foreign_cpu_frac_max, throttle_frac_max, client_cpu_frac_max,
		client_late_ms_max; /* more voids a run: see conditions_void */
	int fingerprint_prompts;
	int fingerprint_tokens; /* asked of the first prompt; 0: as many as the longest answer that is measured */
	double fingerprint_min_match_frac; /* greedy output against the baseline's */
};

/* A metric that a winner may not make worse by max_regress_pct or more. Metric names are those of metric.h. */
struct metric_limit {
	const char *metric;
	bool higher_is_better;
	double max_regress_pct;
};

/* CPUs for client and engine; texts are NULL where the file does not say. */
struct pin {
	const char *client_text, *engine_text;
	struct cpu_list client, engine;
};

struct verdict_rules {
	const char *metric;
	bool higher_is_better;
	double min_effect_pct, alpha;
	bool equivalence;
	int confirm_winner_blocks; /* fresh blocks for the winner after the last look; 0: the search's estimate stands */
	struct metric_limit limits[EXPERIMENT_LIMITS_MAX];
	int n_limits;
};

struct engine_spec {
	const char *adapter; /* "builtin", "llamacpp", "vllm", "sglang", "command", "attach" */
	struct string_list command; /* argument vector; ${MODEL} and ${PORT} replaced at launch; empty: the adapter's own */
	struct name_value *flags;
	size_t n_flags; /* knob to command-line flag, as written; others follow the adapter's table */
	struct name_value *env;
	size_t n_env;
	const char *url; /* attach */
	const char *ready_path; /* NULL: the adapter's own */
	double ready_timeout_s;
	double term_s;
	double memory_within_mib, memory_wait_s; /* what may be missing after the engine's end, and how long it may come back */
	const char *readback_path; /* NULL: the adapter's own, if any */
	const char *model; /* path or name given to ${MODEL} */
	const char *name; /* its key under "engines"; NULL for "engine" */
	struct knob_value *params; /* settings of this engine alone */
	size_t n_params;
};

struct experiment {
	struct arena arena;
	const char *source; /* file name for messages */
	const char *name;
	const char *hypothesis; /* text, or compact JSON when it was an object; NULL when absent */
	struct engine_spec engine; /* the baseline's */
	struct engine_spec engines[EXPERIMENT_ENGINES_MAX]; /* that are compared; none: engine is the only one */
	size_t n_engines;
	struct arm arms[EXPERIMENT_ARMS_MAX]; /* baseline first, A/A twin second (when wanted), then candidates in plan order */
	int n_arms;
	enum search search;
	struct monotone_knob monotone[EXPERIMENT_KNOBS_MAX]; /* matrix.monotone_oom */
	int n_monotone;
	struct workload workloads[EXPERIMENT_WORKLOADS_MAX];
	int n_workloads;
	struct protocol protocol;
	struct guards guards;
	struct pin pin;
	struct verdict_rules rules;
	struct string_list tags;
	struct string_list notices; /* sentences for the user: duplicates removed, exclusions that match nothing, … */
	struct json *document; /* as written, after --set */
	struct json *range_values; /* array that owns the values made from ranges */
	char hash[65];
};

struct experiment_overrides {
	bool quick;
	const char *const *set;
	size_t n_set; /* "key.path=value" */
	const char *only; /* arm name or knob=value; baseline and twin always stay */
	const char *model;
	const struct json *recorded_workloads; /* rows of a record whose prompts stand for those of files; NULL: files are read */
};

/* The engine that an arm is launched with. */
const struct engine_spec *arm_engine(const struct experiment *experiment, const struct arm *arm);

/* Reads, checks and expands a file. Every error is "FILE:LINE:COL: path: reason", STATUS_INPUT. Release with experiment_release. */
enum status experiment_load(
	const char *path, const struct experiment_overrides *overrides, struct experiment **out, struct err *err);
enum status experiment_parse(const char *bytes, size_t len, const char *source, const struct experiment_overrides *overrides,
	struct experiment **out, struct err *err);
void experiment_release(struct experiment *experiment);

/* Adds blocks to a finished experiment, of which from_blocks were run: to_blocks in all, and one more look, at the end. The hash
 * stays. The level of that look counts every look taken so far. STATUS_INPUT: more than EXPERIMENT_LOOKS_MAX looks. Pure. */
enum status experiment_extend(struct experiment *experiment, int from_blocks, int to_blocks, struct err *err);

/* Everything that makes two loads the same load, prompts included; workload->hash is its hash. Caller frees. */
struct json *workload_json(const struct workload *workload);

/* Requests in flight at most, where an open loop sets no limit of its own too. */
int workload_slots(const struct workload *workload);

/* Seconds over which the requests of a run arrive; 0 in closed loops and when all come at once. */
double workload_arrival_seconds(const struct workload *workload);

/* Whether the load alone tells what a metric needs (flags of metric.h); what an engine must do is not asked. */
bool workload_gives(const struct workload *workload, unsigned needs);

#endif
