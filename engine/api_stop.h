/* Stop strings across token boundaries: text goes in as it is generated, text that cannot become part of a stop string
 * any more comes out. Pure. */
#ifndef ENGINE_API_STOP_H
#define ENGINE_API_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

#define STOP_STRINGS_MAX 16
#define STOP_STRING_BYTES_MAX 1024

struct stop_string {
	const char *bytes; /* never empty; borrowed, must outlive the filter */
	size_t len;
};

struct stop_filter { /* {.strings, .count} and zeros; released by stop_filter_release */
	const struct stop_string *strings;
	size_t count;
	struct text held; /* the longest end of the text so far that may still become a stop string */
	bool matched;
};

/* Takes the next piece and appends to out what is certain. True once a stop string was found: out then ends just before
 * it, and everything later is dropped. The one that is complete first counts, of several that end together the longest, so
 * the result does not depend on how the text was cut into pieces. */
bool stop_filter_push(struct stop_filter *filter, const char *bytes, size_t len, struct text *out);

/* The text has ended: what was held back is certain now. */
void stop_filter_finish(struct stop_filter *filter, struct text *out);

void stop_filter_release(struct stop_filter *filter);

#endif
