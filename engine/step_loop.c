/* The step thread: one step after another, and on a device of its own the next one begun while one runs. Allocates nothing; sleeps
 * on a condition while there is nothing to do. */
#include <stdio.h>

#include "base/log.h"
#include "engine/engine_state.h"

/* Ends all jobs, or the cancelled ones, one at a time. Lock held before and after, not while a listener is called. */
static void end_jobs(struct engine *engine, bool all, enum finish finish, const char *error)
{
	for (struct job *job = engine->first_job; job;) {
		if (!all && !job->cancelled) {
			job = job->after;
			continue;
		}
		if (error)
			snprintf(job->error, sizeof job->error, "%s", error);
		engine_retire(engine, job, finish);
		pthread_mutex_unlock(&engine->lock);
		engine_tell_end(job);
		pthread_mutex_lock(&engine->lock);
		job = engine->first_job; /* the list may have changed meanwhile */
	}
}

/* Begins what can be begun, then ends the oldest step under way. Lock held before and after. */
static enum status run_step(struct engine *engine, struct err *err)
{
	struct flight *current = &engine->flights[0], *next = &engine->flights[1];
	enum status status = STATUS_OK;
	if (engine->n_flights == 0) {
		status = engine_begin_step(engine, current, err);
		ASSERT(status != STATUS_OK || current->schedule.n_parts > 0); /* some job can always move */
		engine->n_flights = 1;
	}
	if (status == STATUS_OK && engine_may_foresee(engine, current)) {
		engine_foresee(engine, current);
		status = engine_begin_step(engine, next, err);
		engine->n_flights += status == STATUS_OK && next->schedule.n_parts > 0;
	}
	if (status == STATUS_OK)
		status = engine_end_step(engine, current, err);
	if (status != STATUS_OK)
		return status;
	struct flight ended = *current;
	*current = *next;
	*next = ended;
	engine->n_flights--;
	return STATUS_OK;
}

void *engine_run_steps(void *ctx)
{
	struct engine *engine = ctx;
	struct err err = {0};
	pthread_mutex_lock(&engine->lock);
	while (atomic_load(&engine->phase) != ENGINE_STOPPING) {
		end_jobs(engine, false, FINISH_CANCELLED, NULL);
		if (!engine->first_job && engine->n_flights == 0) {
			engine->slept = true;
			pthread_cond_wait(&engine->work, &engine->lock);
			continue;
		}
		if (run_step(engine, &err) == STATUS_OK)
			continue;
		/* A step that fails leaves ranks out of step and caches half written: nothing can go on from here. */
		log_error("engine", "a step failed: %s", err.text);
		engine->failure = err;
		atomic_store(&engine->phase, ENGINE_FAILED);
		end_jobs(engine, true, FINISH_ERROR, err.text);
		break;
	}
	end_jobs(engine, true, FINISH_CANCELLED, NULL);
	pthread_mutex_unlock(&engine->lock);
	return NULL;
}
