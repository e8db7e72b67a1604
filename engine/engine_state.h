/* What the engine is made of, for its own sources: engine.c makes and ends it, jobs.c takes requests in, step_loop.c runs them,
 * engine_config.c and engine_metrics.c describe it. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/mem.h"
#include "engine/accept.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/rank.h"
#include "engine/ranks.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"

/* One request from submit to on_done. Made by the submitting thread with all memory it will need, freed by the step thread. */
struct job {
	struct sequence sequence;
	uint64_t id;
	struct sampling sampling;
	struct engine_listener listener;
	struct job *before, *after; /* all jobs, oldest first */
	bool cancelled; /* by engine_cancel; under the engine's lock */

	/* Step thread. */
	struct accept_pace pace;
	int32_t drafted_stay; /* sequence.preemptions when the drafter last began with it; -1 before */
	int32_t n_positions_seen; /* prompt positions whose logits the listener got */
	int completion_tokens, drafted, accepted, verify_steps;
	enum finish finish;
	char error[ERR_TEXT_BYTES_MAX]; /* for FINISH_ERROR */
	int64_t submitted_ns, admitted_ns, first_token_ns;
	int32_t first_new, n_new, n_accepted; /* of the step that ran last: engine->tokens[first_new .. first_new + n_new) */
	/* While a step is under way whose token is counted already: its place in sequence.tokens, and its line of logits. -1: none.
	 */
	int32_t foreseen_at, foreseen_line;
};

/* A step that was begun and is not settled. */
struct flight {
	struct schedule schedule;
	struct schedule_part *parts; /* [slots_max] the schedule's, kept beyond the next plan; sequence NULL: its job has ended */
	bool follows; /* the device had work until this step came */
	bool verifies; /* has drafts */
	bool foreseen; /* its sequences are one token further already, whatever it is */
	bool wants_logits; /* on the host */
};

/* Seconds of the step thread by what it did; the last is everything else: planning, copying, callbacks. */
enum phase { PHASE_DRAFT, PHASE_VERIFY, PHASE_FORWARD, PHASE_ALLREDUCE, PHASE_SAMPLE, PHASE_HOST, PHASE_COUNT };
enum step_kind { STEP_DECODE, STEP_PREFILL, STEP_MIXED, STEP_KIND_COUNT };

struct metrics {
	uint64_t requests[FINISH_ERROR + 1]; /* ended, by enum finish */
	uint64_t prompt_tokens, cached_tokens, generated_tokens;
	uint64_t steps[STEP_KIND_COUNT][2]; /* [kind][ran from a plan] */
	int64_t phase_ns[PHASE_COUNT];
	struct accept_counters accept;
	struct comm_stats allreduce;
	uint64_t steps_above_plans; /* decode steps with more rows than the largest plan */
	uint64_t device_steps; /* on a device of its own: steps, time in them, and time between one and the next while there was
				  work */
	int64_t device_ns, gap_ns;
};

enum engine_phase { ENGINE_STARTING, ENGINE_READY, ENGINE_FAILED, ENGINE_STOPPING };

struct engine {
	/* Made by engine_create, then constant. */
	struct arena arena;
	struct engine_options options; /* its strings live in arena */
	struct source source;
	struct model_config config;
	struct tokenizer *tokenizer;
	struct setup setup;
	struct ranks *ranks;
	struct region region;
	const struct drafter_ops *drafter_ops; /* NULL: speculation is off */

	/* Step thread, once it runs. */
	struct rank *rank;
	struct sampler *sampler;
	struct drafter *drafter;
	struct engine_token *tokens; /* [limits.logits_max] of the step that ran last */
	struct flight flights[2]; /* under way, oldest first */
	int n_flights;
	bool settling; /* flights[0] is being settled: it keeps its jobs */
	bool slept; /* since the last step there was nothing to do */
	int64_t device_end_ns; /* of the last step, by the device's clock */

	/* lock guards what follows. The step thread lets go of it while ranks compute and while listeners are called. */
	pthread_mutex_t lock;
	pthread_cond_t work; /* something for the step thread to look at */
	struct kvcache *kvcache;
	struct scheduler *scheduler;
	struct job *first_job, *last_job;
	uint64_t last_id;
	struct metrics metrics;
	struct comm_stats allreduce_base; /* counters when the metrics began, after the proof */
	struct err failure; /* why phase is ENGINE_FAILED */
	bool thread_started;

	_Atomic uint32_t phase; /* enum engine_phase; written under lock */
	pthread_t thread;
};

/* As engine_create, with a drafter that is not in the list of drafters; for tests. */
enum status engine_create_with(
	const struct engine_options *options, const struct drafter_ops *drafter_ops, struct engine **out, struct err *err);

/* jobs.c: takes the job out of the list, under the lock. */
void engine_unlink_job(struct engine *engine, struct job *job);

/* step_loop.c: the step thread's main function. */
void *engine_run_steps(void *engine);

/* step_begin.c, on the step thread: plans and begins a step, if any job can move. Lock held before and after. */
enum status engine_begin_step(struct engine *engine, struct flight *flight, struct err *err);

/* step_end.c, on the step thread. */
/* True when the next step can be planned before this one's tokens are known. */
bool engine_may_foresee(const struct engine *engine, const struct flight *flight);
/* Counts its tokens as if they were there. Under the lock. */
void engine_foresee(struct engine *engine, struct flight *flight);
/* Waits for it (or computes it here and now), samples what is to be sampled here, settles and tells. Lock held before and after. On
 * an error nothing was settled: the caller ends all jobs. */
enum status engine_end_step(struct engine *engine, struct flight *flight, struct err *err);
/* Takes the job out of everything but its listener's hands. Under the lock; its blocks are free and its counts in the metrics
 * before the listener hears of its end. */
void engine_retire(struct engine *engine, struct job *job, enum finish finish);
/* Tells the listener and frees the job. Without the lock. */
void engine_tell_end(struct job *job);

static inline struct job *job_of(const struct sequence *sequence)
{
	return sequence->owner;
}

#endif
