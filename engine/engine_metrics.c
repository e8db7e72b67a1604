/* GET /metrics: Prometheus text. Names end in what they count; times are seconds of the step thread. */
#include <inttypes.h>

#include "base/text.h"
#include "engine/engine_state.h"

static void head(struct text *out, const char *name, const char *type, const char *help)
{
	text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one_counter(struct text *out, const char *name, uint64_t value, const char *help)
{
	head(out, name, "counter", help);
	text_printf(out, "%s %" PRIu64 "\n", name, value);
}

static void one_gauge(struct text *out, const char *name, int64_t value, const char *help)
{
	head(out, name, "gauge", help);
	text_printf(out, "%s %" PRId64 "\n", name, value);
}

static void seconds(struct text *out, int64_t ns)
{
	char number[32];
	text_format_double(number, (double)ns / 1e9);
	text_printf(out, " %s\n", number);
}

static void write_requests(const struct metrics *metrics, struct text *out)
{
	static const char *const names[] = {
		[FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_CANCELLED] = "cancelled", [FINISH_ERROR] = "error"};
	head(out, "verdict_requests_total", "counter", "Requests that ended, by reason.");
	for (int finish = FINISH_STOP; finish <= FINISH_ERROR; finish++)
		text_printf(out, "verdict_requests_total{finish=\"%s\"} %" PRIu64 "\n", names[finish], metrics->requests[finish]);
	one_counter(out, "verdict_prompt_tokens_total", metrics->prompt_tokens, "Prompt tokens of ended requests.");
	one_counter(out, "verdict_cached_prompt_tokens_total", metrics->cached_tokens,
		"Prompt tokens of ended requests that a cached prefix saved.");
	one_counter(out, "verdict_generation_tokens_total", metrics->generated_tokens, "Generated tokens of ended requests.");
}

static void write_steps(const struct metrics *metrics, struct text *out)
{
	static const char *const kinds[] = {[STEP_DECODE] = "decode", [STEP_PREFILL] = "prefill", [STEP_MIXED] = "mixed"};
	static const char *const phases[] = {[PHASE_DRAFT] = "draft",
		[PHASE_VERIFY] = "verify",
		[PHASE_FORWARD] = "forward",
		[PHASE_ALLREDUCE] = "allreduce",
		[PHASE_SAMPLE] = "sample",
		[PHASE_HOST] = "host"};
	head(out, "verdict_steps_total", "counter", "Steps, by what they computed and whether they ran from a prepared plan.");
	for (int kind = 0; kind < STEP_KIND_COUNT; kind++)
		for (int planned = 0; planned < 2; planned++)
			text_printf(out, "verdict_steps_total{kind=\"%s\",plan=\"%s\"} %" PRIu64 "\n", kinds[kind],
				planned ? "yes" : "no", metrics->steps[kind][planned]);
	one_counter(out, "verdict_steps_above_plans_total", metrics->steps_above_plans,
		"Decode steps with more rows than the largest plan, run as they came.");
	head(out, "verdict_step_seconds_total", "counter",
		"Time of steps: verify is the forward pass of steps with drafts, forward that of others, both without allreduce.");
	for (int phase = 0; phase < PHASE_COUNT; phase++) {
		text_printf(out, "verdict_step_seconds_total{phase=\"%s\"}", phases[phase]);
		seconds(out, metrics->phase_ns[phase]);
	}
}

/* How much of the time with work the device was busy. */
static void write_device(const struct metrics *metrics, struct text *out)
{
	one_counter(out, "verdict_device_steps_total", metrics->device_steps, "Steps on a device of its own.");
	head(out, "verdict_device_seconds_total", "counter", "Time of steps by the device's clock.");
	text_append_str(out, "verdict_device_seconds_total");
	seconds(out, metrics->device_ns);
	head(out, "verdict_device_gap_seconds_total", "counter",
		"Time between steps that the device waited for the host with work at hand.");
	text_append_str(out, "verdict_device_gap_seconds_total");
	seconds(out, metrics->gap_ns);
}

static void write_allreduce(const struct engine *engine, struct text *out)
{
	const struct comm_stats *now = &engine->metrics.allreduce, *base = &engine->allreduce_base;
	one_counter(out, "verdict_allreduce_calls_total", now->calls - base->calls, "Allreduces of rank 0.");
	one_counter(out, "verdict_allreduce_bytes_total", now->bytes - base->bytes, "Payload of rank 0's allreduces.");
	head(out, "verdict_allreduce_seconds_total", "counter", "Time that rank 0 spent in allreduces, waiting included.");
	text_append_str(out, "verdict_allreduce_seconds_total");
	seconds(out, (int64_t)(now->total_ns - base->total_ns));
	head(out, "verdict_allreduce_wait_seconds_total", "counter", "Part of it spent waiting for other ranks.");
	text_append_str(out, "verdict_allreduce_wait_seconds_total");
	seconds(out, (int64_t)(now->wait_ns - base->wait_ns));
}

static void write_speculation(const struct engine *engine, struct text *out)
{
	const struct accept_counters *accept = &engine->metrics.accept;
	one_counter(out, "verdict_spec_drafts_total", accept->verify_steps, "Drafts verified: one per sequence and step.");
	one_counter(out, "verdict_spec_draft_tokens_total", accept->drafted, "Draft tokens verified.");
	one_counter(out, "verdict_spec_accepted_tokens_total", accept->accepted, "Draft tokens accepted.");
	head(out, "verdict_spec_accepted_tokens_per_pos_total", "counter", "Draft tokens accepted, by position in the draft.");
	for (int i = 0; i < engine->options.spec_draft_max && i < DRAFTER_TOKENS_MAX; i++)
		text_printf(out, "verdict_spec_accepted_tokens_per_pos_total{position=\"%d\"} %" PRIu64 "\n", i,
			accept->accepted_at[i]);
}

static void write_cache(const struct engine *engine, struct text *out)
{
	struct kvcache_counts blocks;
	kvcache_counts(engine->kvcache, &blocks);
	head(out, "verdict_kv_blocks", "gauge", "KV cache blocks of 16 tokens, by state; their sum is constant.");
	text_printf(out,
		"verdict_kv_blocks{state=\"free\"} %d\nverdict_kv_blocks{state=\"cached\"} %d\nverdict_kv_blocks{state=\"used\"} "
		"%d\n",
		blocks.free, blocks.cached, blocks.used);
	one_counter(out, "verdict_prefix_blocks_asked_total", blocks.lookups, "Full prompt blocks looked up in the prefix cache.");
	one_counter(out, "verdict_prefix_blocks_found_total", blocks.hits, "Full prompt blocks found there.");
	one_counter(out, "verdict_kv_evictions_total", blocks.evictions, "Cached blocks given up for new content.");
}

void engine_metrics_text(const struct engine *engine, struct text *out)
{
	struct scheduler_counts counts;
	pthread_mutex_t *lock = (pthread_mutex_t *)&engine->lock; /* reading waits for the writer; nothing else changes */
	pthread_mutex_lock(lock);
	scheduler_counts(engine->scheduler, &counts);
	write_requests(&engine->metrics, out);
	write_steps(&engine->metrics, out);
	write_device(&engine->metrics, out);
	write_allreduce(engine, out);
	write_speculation(engine, out);
	write_cache(engine, out);
	one_counter(out, "verdict_preemptions_total", counts.preemptions, "Sequences that made way for older ones.");
	one_gauge(out, "verdict_running", counts.running, "Sequences that hold a slot.");
	one_gauge(out, "verdict_waiting", counts.waiting, "Sequences that wait for a slot or blocks.");
	pthread_mutex_unlock(lock);
}

void engine_device_times(const struct engine *engine, struct engine_device_times *out)
{
	pthread_mutex_t *lock = (pthread_mutex_t *)&engine->lock;
	pthread_mutex_lock(lock);
	*out = (struct engine_device_times){
		.steps = engine->metrics.device_steps,
		.busy_ns = engine->metrics.device_ns,
		.gap_ns = engine->metrics.gap_ns,
	};
	pthread_mutex_unlock(lock);
}
