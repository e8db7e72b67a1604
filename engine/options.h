/* Command-line switches shared by serve, once and perplexity: one table, one set of defaults, one check. */
#ifndef ENGINE_OPTIONS_H
#define ENGINE_OPTIONS_H

#include <stddef.h>

#include "base/err.h"
#include "base/options.h"
#include "engine/engine.h"

#define ENGINE_OPTIONS_COUNT_MAX 32 /* room for the table below in a caller's array */

/* Defaults of every switch. Numbers that depend on model or machine are 0 here ("decide at start"). */
void engine_options_init(struct engine_options *options);

/* Appends the switches to table[count..), which has room for ENGINE_OPTIONS_COUNT_MAX more entries. Returns the new count. */
size_t engine_options_table(struct engine_options *options, struct option *table, size_t count);

/* After parsing: names, number forms and combinations that need no model. Fills what is written in text, such as mem_budget.
 * STATUS_INPUT naming the switch and the accepted forms. */
enum status engine_options_check(struct engine_options *options, struct err *err);

/* "1073741824", "1024MiB", "1GiB", "1G" (powers of 1024; KB, MB, GB are powers of 1000). False for anything else or overflow. */
bool engine_options_bytes(const char *text, long long *out);

#endif
