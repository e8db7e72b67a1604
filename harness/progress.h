/* How a run tells people where it stands, on standard error: a bar that is redrawn on a terminal, one plain line per launch
 * elsewhere. Nothing is written while a run is being timed. */
#ifndef HARNESS_PROGRESS_H
#define HARNESS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include "harness/experiment.h"
#include "harness/measure.h"
#include "harness/result.h"

struct progress {
	int fd; /* -1: says nothing */
	bool is_terminal;
	int columns; /* of the terminal */
	const struct experiment *experiment;
	int done, total; /* launches */
	int block, arm; /* of the launch under way */
	int64_t begin_ns; /* of this process's first launch */
	int launched; /* by this process */
	bool drawn; /* a bar is on the screen */
};

/* Chooses by what fd is. total: launches planned up to the first look, of which done are already there. */
void progress_open(struct progress *progress, int fd, const struct experiment *experiment, int done, int total);
void progress_close(struct progress *progress); /* removes the bar */

/* The launch that begins, its phases, its end. */
void progress_begin(struct progress *progress, int block, int arm);
void progress_step(struct progress *progress, const struct measure_progress *step);
void progress_end(struct progress *progress, const struct launch_result *launch, bool counts);

/* A sentence for the user, on a line of its own. */
void progress_note(struct progress *progress, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Pure parts. "quickstart: 6 settings × 3 blocks, 18 launches, about 3 min" */
void progress_headline(const struct experiment *experiment, int done, int total, double seconds, struct text *out);
/* "███░░░  13/18  block 2  speculation=ngram  run 2/3  178.2 tok/s  ETA 1:12"; eta_s NaN leaves it out. Cut to columns. */
void progress_bar(const struct progress *progress, const struct measure_progress *step, double eta_s, struct text *out);
/* "[13/18] block 2  speculation=ngram  178.2 tok/s  9.8 s" or its failure. */
void progress_launch_line(const struct progress *progress, const struct launch_result *launch, struct text *out);

#endif
