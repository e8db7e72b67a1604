/* The sampling thread owns the samples until it is joined. */
#include "harness/sampler.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "harness/proctree.h"

struct sampler {
	const struct probe_ops *probe;
	void *session;
	pid_t root;
	int64_t own_ticks, engine_ticks; /* at the beginning */
	struct proctree tree;
	pthread_t thread;
	bool running;
	int end_fd; /* readable: the thread is to end */
	struct probe_sample *samples;
	int count;
};

/* ---- what samples say ---- */

static bool is_ours(const struct sampler_ours *ours, int pid)
{
	for (size_t i = 0; i < ours->n_pids; i++)
		if (ours->pids[i] == pid)
			return true;
	return false;
}

/* Of the processes on a GPU, those that are not the engine's; -1: none of them is the engine's, so this GPU is not in use by it (or
 * the driver numbers processes as another container does, and nothing can be said). */
static int count_foreign(const struct probe_gpu *gpu, const struct sampler_ours *ours)
{
	int own = 0;
	for (int i = 0; i < gpu->n_pids; i++)
		own += is_ours(ours, gpu->pids[i]);
	return own ? gpu->n_pids - own : -1;
}

/* GPUs on which the engine was seen in any sample. */
static void find_our_gpus(const struct probe_sample *samples, int count, const struct sampler_ours *ours, bool used[PROBE_GPUS_MAX])
{
	memset(used, 0, PROBE_GPUS_MAX * sizeof(used[0]));
	for (int i = 0; i < count; i++)
		for (int g = 0; g < samples[i].n_gpus; g++)
			used[g] = used[g] || count_foreign(&samples[i].gpus[g], ours) >= 0;
}

/* Mean of what is known. */
struct mean {
	double sum;
	int count;
};

static void mean_add(struct mean *mean, double value)
{
	if (isfinite(value)) {
		mean->sum += value;
		mean->count++;
	}
}

static double mean_of(const struct mean *mean)
{
	return mean->count ? mean->sum / mean->count : NAN;
}

static void summarise_cpus(const struct probe_sample *samples, int count, struct run_conditions *out)
{
	struct mean mhz = {0};
	for (int i = 0; i < count; i++) {
		mean_add(&mhz, samples[i].cpu_mhz);
		out->cpu_celsius_max = fmax(out->cpu_celsius_max, samples[i].cpu_celsius);
		out->memory_available_mib_min = fmin(out->memory_available_mib_min, samples[i].memory_available_mib);
	}
	out->cpu_mhz = mean_of(&mhz);
}

static void summarise_gpus(const struct probe_sample *samples, int count, const struct sampler_ours *ours,
	const bool used[PROBE_GPUS_MAX], struct run_conditions *out)
{
	struct mean mhz = {0}, watts = {0};
	for (int i = 0; i < count; i++) {
		double watts_now = 0;
		int foreign = 0;
		for (int g = 0; g < samples[i].n_gpus; g++) {
			const struct probe_gpu *gpu = &samples[i].gpus[g];
			if (!used[g])
				continue;
			int here = count_foreign(gpu, ours);
			foreign += here > 0 ? here : 0;
			mean_add(&mhz, gpu->mhz);
			out->gpu_celsius_max = fmax(out->gpu_celsius_max, gpu->celsius);
			watts_now += gpu->watts;
		}
		if (out->gpus)
			mean_add(&watts, watts_now);
		out->foreign_gpu_processes = foreign > out->foreign_gpu_processes ? foreign : out->foreign_gpu_processes;
	}
	out->gpu_mhz = mean_of(&mhz);
	out->gpu_watts = mean_of(&watts);
}

/* Share of the intervals at whose end a GPU of ours was held back, or in which the CPUs counted a throttling. */
static double throttle_fraction(const struct probe_sample *samples, int count, const bool used[PROBE_GPUS_MAX])
{
	int throttled = 0;
	bool known = false;
	for (int i = 1; i < count; i++) {
		bool now = false;
		if (samples[i].throttle_count >= 0 && samples[i - 1].throttle_count >= 0) {
			known = true;
			now = samples[i].throttle_count > samples[i - 1].throttle_count;
		}
		for (int g = 0; g < samples[i].n_gpus; g++) {
			known = known || used[g];
			now = now || (used[g] && samples[i].gpus[g].throttled);
		}
		throttled += now;
	}
	return known && count > 1 ? (double)throttled / (count - 1) : NAN;
}

static double joules_between(const struct probe_sample *first, const struct probe_sample *last, const bool used[PROBE_GPUS_MAX])
{
	double joules = last->cpu_joules - first->cpu_joules; /* negative when the counter started again */
	bool known = joules >= 0;
	if (!known)
		joules = 0;
	for (int g = 0; g < last->n_gpus && g < first->n_gpus; g++) {
		double spent = last->gpus[g].joules - first->gpus[g].joules;
		if (!used[g] || !(spent >= 0))
			continue;
		joules += spent;
		known = true;
	}
	return known ? joules : NAN;
}

void sampler_summarise(const struct probe_sample *samples, int count, const struct sampler_ours *ours, struct run_conditions *out)
{
	bool used[PROBE_GPUS_MAX];
	*out = (struct run_conditions){.samples = count,
		.client_cpu_frac = NAN,
		.engine_cpu_frac = NAN,
		.foreign_cpu_frac = NAN,
		.steal_cpu_frac = NAN,
		.throttle_frac = NAN,
		.cpu_mhz = NAN,
		.cpu_celsius_max = NAN,
		.memory_available_mib_min = NAN,
		.gpu_mhz = NAN,
		.gpu_celsius_max = NAN,
		.gpu_watts = NAN,
		.joules = NAN};
	if (count < 1)
		return;
	const struct probe_sample *first = &samples[0], *last = &samples[count - 1];
	double all = (double)(last->ticks_all - first->ticks_all);
	out->seconds = (double)(last->at_ns - first->at_ns) / 1e9;
	find_our_gpus(samples, count, ours, used);
	for (int g = 0; g < PROBE_GPUS_MAX; g++)
		out->gpus += used[g];
	if (all > 0) {
		out->steal_cpu_frac = (double)(last->ticks_stolen - first->ticks_stolen) / all;
		double busy = (double)(last->ticks_busy - first->ticks_busy - (last->ticks_stolen - first->ticks_stolen));
		if (ours->own_ticks >= 0) {
			out->engine_cpu_frac = (double)ours->engine_ticks / all;
			out->foreign_cpu_frac = fmax(0, busy - (double)ours->own_ticks) / all;
		}
	}
	summarise_cpus(samples, count, out);
	summarise_gpus(samples, count, ours, used, out);
	out->throttle_frac = throttle_fraction(samples, count, used);
	out->joules = joules_between(first, last, used);
}

/* ---- taking them ---- */

/* CPU time of the engine: its guard reaps what is orphaned, so nothing of it gets lost. */
static int64_t engine_ticks(struct sampler *sampler)
{
	int64_t ticks = process_cpu_ticks(sampler->root, true);
	proctree_read(&sampler->tree, sampler->root);
	for (size_t i = 0; i < sampler->tree.count; i++)
		ticks += process_cpu_ticks(sampler->tree.pids[i], true);
	return ticks;
}

static void take(struct sampler *sampler)
{
	sampler->probe->sample(sampler->session, &sampler->samples[sampler->count++]);
}

/* Every other sample is enough for a run that long; the last slot stays free for the last sample. */
static void thin_out(struct sampler *sampler)
{
	int kept = 0;
	for (int i = 0; i < sampler->count; i += 2)
		sampler->samples[kept++] = sampler->samples[i];
	sampler->count = kept;
}

static void *run(void *ctx)
{
	struct sampler *sampler = ctx;
	struct pollfd end = {.fd = sampler->end_fd, .events = POLLIN};
	int period_ms = SAMPLER_PERIOD_MS;
	for (;;) {
		int ready = poll(&end, 1, period_ms);
		if (ready > 0 || (ready < 0 && errno != EINTR))
			return NULL;
		if (sampler->count == SAMPLER_SAMPLES_MAX - 1) {
			thin_out(sampler);
			period_ms *= 2;
		}
		take(sampler);
	}
}

struct sampler *sampler_start(const struct probe_ops *probe, void *session, pid_t root)
{
	struct sampler *sampler = mem_calloc(1, sizeof(*sampler));
	sampler->probe = probe;
	sampler->session = session;
	sampler->root = root;
	sampler->samples = mem_calloc(SAMPLER_SAMPLES_MAX, sizeof(sampler->samples[0]));
	sampler->end_fd = eventfd(0, EFD_CLOEXEC);
	if (root) {
		sampler->engine_ticks = engine_ticks(sampler);
		sampler->own_ticks = process_cpu_ticks(getpid(), false);
	}
	take(sampler);
	/* Without a thread there are the first and the last sample. */
	sampler->running = sampler->end_fd >= 0 && pthread_create(&sampler->thread, NULL, run, sampler) == 0;
	return sampler;
}

void sampler_stop(struct sampler *sampler, struct run_conditions *out)
{
	uint64_t one = 1;
	if (sampler->running) {
		(void)!write(sampler->end_fd, &one, sizeof(one));
		pthread_join(sampler->thread, NULL);
	}
	take(sampler);
	struct sampler_ours ours = {.own_ticks = -1};
	if (sampler->root) {
		ours.engine_ticks = engine_ticks(sampler) - sampler->engine_ticks;
		ours.own_ticks = ours.engine_ticks + process_cpu_ticks(getpid(), false) - sampler->own_ticks;
	}
	ours.pids = sampler->tree.pids;
	ours.n_pids = sampler->tree.count;
	sampler_summarise(sampler->samples, sampler->count, &ours, out);
	if (sampler->end_fd >= 0)
		close(sampler->end_fd);
	proctree_release(&sampler->tree);
	mem_free(sampler->samples);
	mem_free(sampler);
}
