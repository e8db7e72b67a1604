/* Are the switches of an experiment known to the engine that is installed here? Its --help tells, before hours are spent on
 * launches that end at once, or worse, on a switch that is ignored. */
#ifndef HARNESS_HELP_CHECK_H
#define HARNESS_HELP_CHECK_H

#include <stdbool.h>

#include "harness/experiment.h"
#include "harness/runner.h"
#include "harness/target.h"

/* Runs each engine's command once with its help word and looks for every switch that an arm uses. STATUS_INPUT names the first that
 * is missing, with its arm. An engine whose help cannot be had, or does not list switches, is not held against the experiment: its
 * launches will tell. environment is NULL-terminated; guard_program as in struct launch_request. */
enum status help_check(const struct experiment *experiment, const struct runner_ops *runner, char *const *environment,
	const char *guard_program, struct err *err);

/* STATUS_INPUT when the help text does not name a switch of this arm; where it names the one that the switch was called before, the
 * reason says how to write that. Pure. */
enum status help_check_switch(const struct target_ops *ops, const char *help, const char *arm, const char *name, struct err *err);

/* Whether a help text names the switch as a whole word, or for "--no-enable-x" its opposite "--disable-x". Pure. */
bool help_names_switch(const char *help, const char *name);

#endif
