/* Bars, lines and estimates. */
#include "harness/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/utf8.h"

#define BAR_CELLS 24
#define COLUMNS_DEFAULT 100
#define CLEAR_LINE "\r\x1b[K"

void progress_open(struct progress *progress, int fd, const struct experiment *experiment, int done, int total)
{
	struct winsize size = {0};
	*progress = (struct progress){.fd = fd, .experiment = experiment, .done = done, .total = total, .columns = COLUMNS_DEFAULT};
	progress->is_terminal = fd >= 0 && isatty(fd);
	if (progress->is_terminal && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
		progress->columns = size.ws_col;
	progress->begin_ns = clock_monotonic_ns();
}

static void write_text(struct progress *progress, const struct text *text)
{
	/* A terminal that is gone is no reason to lose a measurement. */
	if (progress->fd >= 0)
		file_write_all(progress->fd, text_str(text), text->len, NULL);
}

static void clear_bar(struct progress *progress, struct text *out)
{
	if (progress->drawn)
		text_append_str(out, CLEAR_LINE);
	progress->drawn = false;
}

void progress_close(struct progress *progress)
{
	struct text text = {0};
	clear_bar(progress, &text);
	write_text(progress, &text);
	text_release(&text);
}

void progress_note(struct progress *progress, const char *format, ...)
{
	struct text text = {0};
	va_list args;
	clear_bar(progress, &text);
	va_start(args, format);
	text_vprintf(&text, format, args);
	va_end(args);
	text_append_char(&text, '\n');
	write_text(progress, &text);
	text_release(&text);
}

static void append_minutes(double seconds, struct text *out)
{
	if (seconds < 60)
		text_append_str(out, "under a minute");
	else if (seconds < 90 * 60)
		text_printf(out, "about %.0f min", seconds / 60);
	else
		text_printf(out, "about %.1f h", seconds / 3600);
}

void progress_headline(const struct experiment *experiment, int done, int total, double seconds, struct text *out)
{
	text_printf(out, "%s: %d settings × %d blocks, %d launches", experiment->name, experiment->n_arms,
		experiment->protocol.blocks, total);
	if (done > 0)
		text_printf(out, ", %d of them already there", done);
	text_append_str(out, ", ");
	append_minutes(seconds, out);
	text_append_char(out, '\n');
}

/* Cuts text to a number of columns; every code point here is one wide. */
static void cut(struct text *text, size_t begin, int columns)
{
	size_t at = begin;
	for (int column = 0; at < text->len && column < columns; column++) {
		uint32_t code_point;
		int len = utf8_decode(text->data + at, text->len - at, &code_point);
		at += len > 0 ? (size_t)len : 1;
	}
	text_truncate(text, at);
}

void progress_bar(const struct progress *progress, const struct measure_progress *step, double eta_s, struct text *out)
{
	size_t begin = out->len;
	int filled = progress->total > 0 ? progress->done * BAR_CELLS / progress->total : 0;
	for (int i = 0; i < BAR_CELLS; i++)
		text_append_str(out, i < filled ? "█" : "░");
	text_printf(out, "  %d/%d  block %d  %s", progress->done, progress->total, progress->block + 1,
		progress->experiment->arms[progress->arm].name);
	if (step && step->runs > 0)
		text_printf(out, "  run %d/%d", step->run, step->runs);
	else if (step)
		text_printf(out, "  %s", step->phase);
	if (step && isfinite(step->tokens_per_s))
		text_printf(out, "  %.1f tok/s", step->tokens_per_s);
	if (isfinite(eta_s))
		text_printf(out, "  ETA %d:%02d", (int)eta_s / 60, (int)eta_s % 60);
	cut(out, begin, progress->columns > 1 ? progress->columns - 1 : 1);
}

/* From the launches of this process alone: those of an earlier one may have run on a busier machine. */
static double estimate_s(const struct progress *progress)
{
	if (progress->launched == 0 || progress->done >= progress->total)
		return NAN;
	double spent_s = (double)(clock_monotonic_ns() - progress->begin_ns) / 1e9;
	return spent_s / progress->launched * (progress->total - progress->done);
}

static void draw(struct progress *progress, const struct measure_progress *step)
{
	if (!progress->is_terminal)
		return;
	struct text text = {0};
	text_append_str(&text, CLEAR_LINE);
	progress_bar(progress, step, estimate_s(progress), &text);
	write_text(progress, &text);
	progress->drawn = true;
	text_release(&text);
}

void progress_begin(struct progress *progress, int block, int arm)
{
	progress->block = block;
	progress->arm = arm;
	draw(progress, NULL);
}

void progress_step(struct progress *progress, const struct measure_progress *step)
{
	draw(progress, step);
}

/* Mean of the primary metric over the measured runs of the first workload that has any. */
static double launch_metric(const struct experiment *experiment, const struct launch_result *launch)
{
	const struct metric_spec *spec = metric_by_name(experiment->rules.metric);
	struct metric_mean mean = {0};
	int workload = -1;
	for (size_t i = 0; i < launch->n_runs; i++) {
		const struct run_result *run = &launch->runs[i];
		if (run->warmup || (workload >= 0 && run->workload != workload))
			continue;
		struct run_metrics metrics;
		run_metrics_compute(run, workload_slots(&experiment->workloads[run->workload]), &metrics);
		workload = run->workload;
		metric_mean_add(&mean, spec, run_metric_by_name(&metrics, spec->name));
	}
	return exp(metric_mean_log(&mean, spec));
}

/* Why a measured run does not count; NULL: all of them do. */
static const char *void_reason(const struct launch_result *launch)
{
	for (size_t i = 0; i < launch->n_runs; i++)
		if (!launch->runs[i].warmup && launch->runs[i].voided)
			return launch->runs[i].void_reason;
	return NULL;
}

void progress_launch_line(const struct progress *progress, const struct launch_result *launch, struct text *out)
{
	const struct experiment *experiment = progress->experiment;
	text_printf(out, "[%d/%d] block %d  %s  ", progress->done, progress->total, launch->block + 1,
		experiment->arms[launch->arm].name);
	double metric = launch_metric(experiment, launch);
	if (launch->failure != FAILURE_NONE)
		text_printf(out, "failed: %s", launch->reason);
	else if (void_reason(launch))
		text_append_str(out, void_reason(launch));
	else if (isfinite(metric))
		text_printf(out, "%.4g %s", metric,
			text_equal(experiment->rules.metric, "output_tps") ? "tok/s" : experiment->rules.metric);
	else
		text_append_str(out, "done");
	text_printf(out, "  %.1f s\n", (double)launch->total_ns / 1e9);
}

void progress_end(struct progress *progress, const struct launch_result *launch, bool counts)
{
	progress->done += counts;
	progress->launched += counts;
	if (progress->is_terminal) {
		draw(progress, NULL);
		return;
	}
	struct text text = {0};
	progress_launch_line(progress, launch, &text);
	write_text(progress, &text);
	text_release(&text);
}
