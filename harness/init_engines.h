/* What `verdict init` knows of each engine: its switches and which values are worth a first try. Data only; for init*.c. */
#ifndef HARNESS_INIT_ENGINES_H
#define HARNESS_INIT_ENGINES_H

#include <stdbool.h>
#include <stddef.h>

enum init_rule {
	INIT_NEVER, /* recorded as part of the baseline; no candidates */
	INIT_ALWAYS, /* candidates, whether or not the command line sets it */
	INIT_WHEN_GIVEN, /* candidates when the command line sets it: elsewhere they would not mean anything */
	INIT_HALF_DOUBLE, /* half and twice the number given; candidates when none is given */
	INIT_CPUS, /* all CPUs and half of them */
	INIT_RANKS, /* candidates when there is more than one rank, on CPUs */
};

enum init_kind {
	INIT_VALUE, /* --switch VALUE */
	INIT_SWITCH, /* --switch, or --no-switch where the engine has it */
	INIT_MAYBE_VALUE, /* --switch, with a value unless another switch or the end follows */
};

struct init_knob {
	const char *knob;
	const char *names[5]; /* of the switch; the first is the one we write. NULL-terminated */
	enum init_kind kind;
	enum init_rule rule;
	const char *candidates; /* JSON array; null leaves the switch out */
};

struct init_engine {
	const char *adapter;
	const char *programs[3]; /* base names of its program; NULL-terminated */
	const char *modules[3]; /* of `python -m`; NULL-terminated */
	bool serves; /* the word "serve" follows the program */
	bool model_is_word; /* the model may follow "serve" as a plain word */
	const char *models[4]; /* switches that name the model */
	const char *dropped[8]; /* switches with a value that a launch sets itself */
	const char *alone[12]; /* switches without a value that are no knobs here: the next word is not theirs */
	const struct init_knob *knobs;
	size_t n_knobs;
	const char *env; /* JSON object of variables that make it measurable; NULL: none */
	double ready_timeout_s; /* large models take long to load */
};

extern const struct init_engine init_engines[];
extern const size_t init_engines_count;

#endif
