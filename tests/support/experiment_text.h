/* Experiments from short texts, for tests. */
#ifndef TESTS_SUPPORT_EXPERIMENT_TEXT_H
#define TESTS_SUPPORT_EXPERIMENT_TEXT_H

#include "harness/experiment.h"

/* Parses a JSON text in which ' stands for ". Ends the program with the complaint when it is refused. */
struct experiment *experiment_from_text(const char *text);
struct experiment *experiment_from_text_with(const char *text, const struct experiment_overrides *overrides);

/* The complaint about such a text; "" when it is accepted. The source is called "x.json". */
const char *experiment_complaint(const char *text, struct err *err);

#endif
