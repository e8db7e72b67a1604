/* Columns, signs and colours of tables. Pure. Private to report*.c and progress display. */
#ifndef HARNESS_REPORT_FORMAT_H
#define HARNESS_REPORT_FORMAT_H

#include <stddef.h>

#include "harness/report.h"

/* Terminal columns that text takes: wide characters two, combining marks none. */
size_t format_columns(const char *text);

/* Appends text padded with spaces to at least columns; a negative number pads on the left. */
void format_padded(struct text *out, const char *text, int columns);

/* Appends at most columns of text, with "…" as the last one where something was cut. */
void format_clipped(struct text *out, const char *text, size_t columns);

/* "+31.1" or "−0.4" with a real minus sign; digits after the point as given. */
void format_signed(struct text *out, double value, int digits);

/* "3.2 s", "41 min", "2.5 h". */
void format_seconds(struct text *out, double seconds);

/* Escape sequence that colours a verdict's word, and the one that ends it; "" without colour. */
const char *format_verdict_colour(const char *verdict, struct report_style style);
const char *format_dim(struct report_style style);
const char *format_plain(struct report_style style);

/* "tok/s" or "ms": the unit of a metric by its name. */
const char *format_unit(const char *metric);

#endif
